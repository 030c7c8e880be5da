//! What a run of the instrument leaves: a table to read, JSON to keep.

use crate::telemetry::Reading;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::Path;

/// Under which conditions rows were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// The command, as it can be run again.
    pub command: String,
    /// Name of the device.
    pub device: String,
    /// Streaming multiprocessors of the device.
    pub sms: u32,
    /// Bytes of its L2 cache.
    pub l2_bytes: u64,
    /// CUDA version of the driver.
    pub driver: String,
    /// Rounds measured, after those that warm up.
    pub rounds: u32,
    /// Rounds that warm up.
    pub warm_up: u32,
    /// Pause after each run, in times of that run.
    pub pause: f64,
}

/// All rows of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report<R> {
    /// What was measured.
    pub title: String,
    /// Under which conditions.
    pub conditions: Conditions,
    /// One row per shape.
    pub rows: Vec<R>,
}

/// A row with what the device said of itself when its rotation had ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured<R> {
    /// The row.
    #[serde(flatten)]
    pub row: R,
    /// Clocks, power and temperature; `None` where the device does not tell.
    pub reading: Option<Reading>,
}

impl<R: Serialize> Report<R> {
    /// Writes the report as JSON.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write_json(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        text.push('\n');
        std::fs::write(path, text)
    }
}

/// Columns of text, each as wide as it needs; all but the first are aligned to the right.
#[derive(Debug, Clone, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these titles.
    pub fn new<S: Into<String>>(titles: impl IntoIterator<Item = S>) -> Table {
        let mut table = Table::default();
        table.row(titles);
        table
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = " ".repeat(width - cell.chars().count());
                let separator = if column == 0 { "" } else { "  " };
                line += separator;
                line += &if column == 0 { format!("{cell}{gap}") } else { format!("{gap}{cell}") };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Conditions, Measured, Report, Table};
    use crate::sample::Samples;
    use crate::shapes::Dims;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["shape", "ms"]);
        table.row(["8192 x 6144", "1.5"]);
        table.row(["1 x 2", "12.25"]);
        assert_eq!(
            table.to_string(),
            "shape           ms\n8192 x 6144    1.5\n1 x 2        12.25\n"
        );
    }

    #[test]
    fn a_report_comes_back_from_its_json() {
        let summary = [1.0, 2.0].into_iter().collect::<Samples>().summary();
        let conditions = Conditions {
            command: "flux bench gemm".into(),
            device: "a device".into(),
            sms: 132,
            l2_bytes: 60 << 20,
            driver: "13.0".into(),
            rounds: 31,
            warm_up: 3,
            pause: 1.0,
        };
        let row = (Dims::new(1, 2, 3), summary);
        let rows = vec![row];
        let report = Report { title: "GEMM".into(), conditions, rows };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report<_>>(&text).unwrap(), report);
        let measured = Measured { row: Dims::new(1, 2, 3), reading: None };
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(text, r#"{"m":1,"n":2,"k":3,"reading":null}"#);
    }
}
