//! Every single-point mutant of a Program: what the checker has to reject, or what changes nothing.
//!
//! A **mutant** is a Program with one term of its text changed: a statement dropped, moved or
//! swapped with its neighbor, a scope, completion, array, peer or order replaced by another one, a
//! number shifted. [`of`] derives all of them, each text once. The epilogue's arithmetic and what
//! callers know of their tensors are left alone: with other ones it is another kernel.
//!
//! | file | changes |
//! |---|---|
//! | `statements.rs` | which statements there are, and their sequence |
//! | `operands.rs` | scopes, completions, arrays, peers, and where numbers stand |
//! | `numbers.rs` | one number |
//! | `orders.rs` | tile orders and what a table row holds |
//! | `declarations.rs` | definitions, workspace, signals and the length of tables |
//! | `events.rs` | shows that a mutant does the same things in the same sequence |
//! | `proof.rs` | shows that every interleaving of a mutant leaves the same contents |
//! | `score.rs` | judges mutants, and counts |
//!
//! A mutant that the checker accepts is fine where it gives what the original gives. That is
//! **shown**, by [`score`]: every actor has the same events, or every interleaving of small
//! launches leaves the same contents.

mod declarations;
mod events;
mod numbers;
mod operands;
mod orders;
mod proof;
pub mod score;
mod statements;

use flux_ir::Span;
use flux_ir::program::Program;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// What a mutant changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A statement is gone; a condition is gone and what it guards always runs.
    Drop,
    /// A statement stands elsewhere.
    Move,
    /// Two neighbors are swapped.
    Swap,
    /// A scope is narrower.
    Scope,
    /// A completion is weaker.
    Completion,
    /// An array of signals is another one.
    Array,
    /// A peer is another rank.
    Peer,
    /// The value of a signal or the target of a wait.
    Count,
    /// The part that the epoch has in a number.
    Epoch,
    /// A slot or a plane.
    Index,
    /// Rows or columns of a place.
    Region,
    /// A bound or the step of a loop, or an operand of a condition.
    Loop,
    /// A number that gets a name.
    Definition,
    /// A tile order, or a field of a table row.
    Order,
    /// A definition, or an extent of workspace, signals or a table.
    Declaration,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 15] = [
        Kind::Drop,
        Kind::Move,
        Kind::Swap,
        Kind::Scope,
        Kind::Completion,
        Kind::Array,
        Kind::Peer,
        Kind::Count,
        Kind::Epoch,
        Kind::Index,
        Kind::Region,
        Kind::Loop,
        Kind::Definition,
        Kind::Order,
        Kind::Declaration,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Drop => "drop",
            Kind::Move => "move",
            Kind::Swap => "swap",
            Kind::Scope => "scope",
            Kind::Completion => "completion",
            Kind::Array => "array",
            Kind::Peer => "peer",
            Kind::Count => "count",
            Kind::Epoch => "epoch",
            Kind::Index => "index",
            Kind::Region => "region",
            Kind::Loop => "loop",
            Kind::Definition => "definition",
            Kind::Order => "order",
            Kind::Declaration => "declaration",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A Program with one term changed.
#[derive(Debug, Clone)]
pub struct Mutant {
    /// What kind of term.
    pub kind: Kind,
    /// Which term, and how it was changed: the same for every schedule of a kernel, so that the
    /// mutant of one tile size can be found among those of another.
    pub point: String,
    /// The line of the text that differs, as it was; empty where there was none.
    pub before: String,
    /// The line of the text that differs, as it is; empty where there is none.
    pub after: String,
    /// The user's token.
    pub span: Span,
    /// The changed Program.
    pub program: Program,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            |line: &str| if line.is_empty() { "(nothing)".into() } else { format!("`{line}`") };
        write!(
            f,
            "{} ({}): {} → {}",
            self.kind,
            self.point,
            shown(&self.before),
            shown(&self.after)
        )
    }
}

/// A change before it has been compared with others.
struct Edit {
    kind: Kind,
    point: String,
    span: Span,
    program: Program,
}

/// Every single-point mutant of `program`, in the order of its text. Those with equal text are
/// one, and none has the text of the original.
pub fn of(program: &Program) -> Vec<Mutant> {
    let original = text(program);
    let mut seen = HashSet::from([original.clone()]);
    let mut mutants = Vec::new();
    for edit in edits(program) {
        let changed = text(&edit.program);
        let (before, after) = difference(&original, &changed);
        if seen.insert(changed) {
            let Edit { kind, point, span, program } = edit;
            mutants.push(Mutant { kind, point, before, after, span, program });
        }
    }
    mutants
}

/// The mutants of `program` by their points, as [`Mutant::point`] names them.
fn by_point(program: &Program) -> HashMap<String, Program> {
    edits(program).into_iter().map(|edit| (edit.point, edit.program)).collect()
}

fn edits(program: &Program) -> Vec<Edit> {
    let mut edits = statements::edits(program);
    edits.extend(operands::edits(program));
    edits.extend(orders::edits(program));
    edits.extend(declarations::edits(program));
    edits
}

/// The text without the numbering of variables, which says nothing.
fn text(program: &Program) -> String {
    let text = program.to_string();
    let lines = text.lines().filter(|line| !line.starts_with("  vars "));
    lines.collect::<Vec<_>>().join("\n")
}

/// The first line that differs, as it was and as it is.
fn difference(before: &str, after: &str) -> (String, String) {
    let (old, new): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let first = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let same_end = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let end = same_end.min(old.len().min(new.len()) - first);
    let line = |lines: &[&str]| {
        let changed = &lines[first..lines.len() - end];
        changed.first().map_or(String::new(), |line| shown(line))
    };
    (line(&old), line(&new))
}

/// A line without indentation and without the place of the user's token.
fn shown(line: &str) -> String {
    let line = match line.rsplit_once(" @") {
        Some((line, place)) if place.bytes().all(|b| b.is_ascii_digit() || b == b':') => line,
        _ => line,
    };
    line.trim().to_owned()
}
