//! Tables of steps, as a reader sees them.

use crate::span::Span;
use std::fmt;

/// One thing that an actor does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The launch of its rank, from 1.
    pub launch: u32,
    /// The rank.
    pub rank: u32,
    /// Which of its actors: `gemm cta 0`, `push_a`, `gemm exit`.
    pub actor: String,
    /// What it does, in the text form of the Program on the numbers of the launch; or what ends.
    pub does: String,
    /// The user's token.
    pub span: Span,
    /// What is to be seen here.
    pub note: String,
}

/// Steps in the order in which they happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What the steps show.
    pub title: String,
    /// The steps.
    pub rows: Vec<Row>,
    /// Behind how many rows steps are left out, and how many.
    pub left_out: Option<(usize, usize)>,
}

/// Rows of one table, at most.
pub(super) const MOST_ROWS: usize = 40;

impl Table {
    pub(super) fn new(title: impl Into<String>, rows: Vec<Row>) -> Self {
        Table { title: title.into(), rows, left_out: None }
    }

    /// Leaves out steps before the last, which closes a cycle.
    pub(super) fn cut(mut self) -> Self {
        let more = self.rows.len().saturating_sub(MOST_ROWS);
        if more > 0 {
            let from = MOST_ROWS - 1;
            self.rows.drain(from..from + more);
            self.left_out = Some((from, more));
        }
        self
    }

    /// Leaves out steps that are furthest from the last, which are what it comes to.
    pub(super) fn shortened(mut self) -> Self {
        let more = self.rows.len().saturating_sub(MOST_ROWS);
        if more > 0 {
            self.rows.drain(..more);
            self.left_out = Some((0, more));
        }
        self
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut cells = vec![["step", "launch", "rank", "actor", "does", "line"].map(String::from)];
        let (gap, more) = self.left_out.unwrap_or_default();
        for (index, row) in self.rows.iter().enumerate() {
            let step = index + 1 + if index >= gap { more } else { 0 };
            let span = if row.span.is_known() { row.span.to_string() } else { String::new() };
            let (launch, rank) = (row.launch.to_string(), row.rank.to_string());
            cells.push([step.to_string(), launch, rank, row.actor.clone(), row.does.clone(), span]);
        }
        let width = |column: usize| {
            cells.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
        };
        let widths = [0, 1, 2, 3, 4, 5].map(width);
        let notes = std::iter::once("").chain(self.rows.iter().map(|row| row.note.as_str()));
        for (index, (row, note)) in cells.iter().zip(notes).enumerate() {
            if more > 0 && index == gap + 1 {
                writeln!(f, "  … {more} more")?;
            }
            let mut line = String::from(" ");
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                line.push_str(&match column {
                    0..=2 => format!(" {cell:>width$} "),
                    _ => format!(" {cell:<width$} "),
                });
            }
            line.push_str(if note.is_empty() { "" } else { " " });
            line.push_str(note);
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
