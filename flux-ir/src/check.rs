//! The checker: what a Program must satisfy before it is compiled or run.
//!
//! | step | asks | rules |
//! |---|---|---|
//! | `structure` | does every name mean something, in this place | `types`, `bounds`, `signal-not-monotone` |
//! | `resources` | does it fit the target | `schedule`, `resources` |
//! | `arithmetic` | does index arithmetic stay in 31 bits on this launch | `bounds` |
//! | `rows`, `wrap` | do waits derive from the tile at hand, and does the epoch keep its meaning | `order-differs`, `counter-wrap` |
//! | `effects` | does this launch stay in its buffers, and write every output element once; leaves traces | `bounds`, `dimensions`, `written-twice`, `never-written` |
//! | `machine` | does this launch end; leaves the order of a run | `wait-without-signal`, `deadlock`, `signal-not-monotone` |
//! | `scopes`, `epochs` | do raises reach waits, and do both grow alike | `scope-too-narrow`, `count-not-exact` |
//! | `races` | what happens before what, in every run | `read-before-arrival`, `overwrite-before-read`, `unordered-writes`, … |
//! | `network` | who reaches ranks of other nodes, and how | `not-mapped`, `put-not-delivered` |
//! | `flags` | are data that carry their own flag stored and read once, and is all else in order without them | `flag-not-exact`, and those of `races` |
//! | `agreement` | do ranks and device agree | `residency`, `launch-differs` |
//!
//! [`verify`] runs all but the last on a family of small launches, [`Verified::check_launch`] on one
//! exact launch. `docs/checker.md` argues why one run decides for all.

mod agreement;
mod arithmetic;
mod counters;
mod coverage;
mod deadlock;
mod effects;
mod ends;
mod epochs;
mod explain;
mod family;
mod flags;
mod grouped;
mod happens;
mod launch;
mod machine;
mod memory;
mod network;
mod races;
mod regions;
mod report;
mod resources;
mod rows;
mod scopes;
mod structure;
mod trace;
mod wrap;

pub use agreement::{check_agreement, check_residency};

pub use explain::{
    Argument, Counts, Element, Explanation, Query, QueryError, Row, SignalUse, Table, Trace,
    explain, small_launch, smallest_rejected,
};

use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::eval::Launch;
use crate::program::{Op, Program, SignalId, Stmt, Update};
use crate::span::Span;

/// Consecutive launches that are run, at least: the third is the first that needs credit for a
/// buffer that two launches share in turn.
pub const EPOCHS: u32 = 3;

/// The largest world a Program runs on.
pub const WORLD_LIMIT: u32 = 64;

/// A Program that passed the checker. Only [`verify`] makes one, and only such a Program is
/// compiled or run.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified(Program);

impl Verified {
    /// The Program.
    pub fn program(&self) -> &Program {
        &self.0
    }

    /// The Program for launches in which each rank owns so many rows, in the order of ranks. It is the same
    /// Program but for these numbers, and each launch of it is checked like any other.
    ///
    /// # Errors
    /// `bounds`: shards of the Program have no lengths of their own.
    pub fn with_lengths(&self, lengths: &[u32]) -> Result<Verified, Diagnostics> {
        if !self.0.has_own_lengths() {
            let message = format!("shards of `{}` are all of one length", self.0.name);
            let diagnostic = Diagnostic::new(Rule::Bounds, Span::UNKNOWN, message);
            let help = "give the kernel tiles of own rows: an output `&mut Sharded<_>` or `&mut Exchanged<_>`";
            return Err(diagnostic.help(help).into());
        }
        Ok(Verified(Program { lengths: lengths.to_vec(), ..self.0.clone() }))
    }

    /// Checks one exact launch, [`EPOCHS`] times in a row on every rank.
    ///
    /// # Errors
    /// Every rule the launch breaks. A launch whose index arithmetic leaves 31 bits, or whose
    /// check would take too much memory or too many steps, is refused with the numbers.
    pub fn check_launch(&self, launch: Launch) -> Result<(), Diagnostics> {
        let mut found = Findings::default();
        launch::check(&self.0, launch, launch::STEP_LIMIT, &mut found);
        found.told_once().into_result(())
    }
}

/// Checks one launch of a Program of sound structure, whatever its target has room for: what
/// [`Verified::check_launch`] asks, without the family.
///
/// # Errors
/// Every rule the launch breaks, or those the Program breaks by itself.
pub fn check_program(program: &Program, launch: Launch) -> Result<(), Diagnostics> {
    let mut found = Findings { diagnostics: structure::check(program), ..Findings::default() };
    if found.diagnostics.is_empty() {
        rows::check(program, &mut found);
        wrap::check(program, &mut found);
        launch::check(program, launch, launch::STEP_LIMIT, &mut found);
    }
    found.told_once().into_result(())
}

/// Checks `program` on its own, and on a family of small launches: worlds of 1, 2, 3, 4 and 8
/// ranks, 1 to 3 CTAs, tiles whole, ragged and across shards, fewer rows than ranks.
///
/// # Errors
/// Every rule found broken, each once for every statement that breaks it.
pub fn verify(program: Program) -> Result<Verified, Diagnostics> {
    let mut found = Findings { diagnostics: structure::check(&program), ..Findings::default() };
    if found.diagnostics.is_empty() {
        resources::check(&program, &mut found.diagnostics);
        rows::check(&program, &mut found);
        wrap::check(&program, &mut found);
        // Lengths are those of one world.
        match program.lengths.is_empty() {
            true => family::check(&program, &mut found),
            false => family::check(&Program { lengths: Vec::new(), ..program.clone() }, &mut found),
        }
    }
    found.told_once().into_result(Verified(program))
}

/// What was found, each rule once for every entry of the Program that breaks it.
#[derive(Debug, Default)]
struct Findings {
    diagnostics: Diagnostics,
    /// Rule and entry of each, by the entry's address.
    seen: Vec<(Rule, usize)>,
    /// How often a rule was found broken, by an entry that had broken it before as well.
    count: usize,
}

impl Findings {
    /// Adds what `diagnostic` makes, unless `rule` has been found broken by `entry` before.
    fn once<T>(&mut self, rule: Rule, entry: &T, diagnostic: impl FnOnce() -> Diagnostic) {
        self.count += 1;
        let key = (rule, std::ptr::from_ref(entry).addr());
        if !self.seen.contains(&key) {
            self.seen.push(key);
            self.diagnostics.push(diagnostic());
        }
    }

    /// What was found, without what statements of one token of the user's say in the same words.
    fn told_once(self) -> Diagnostics {
        let mut all: Vec<Diagnostic> = Vec::with_capacity(self.diagnostics.0.len());
        for diagnostic in self.diagnostics.0 {
            if diagnostic.span == Span::UNKNOWN || !all.contains(&diagnostic) {
                all.push(diagnostic);
            }
        }
        Diagnostics(all)
    }

    /// Adds what another check of the same Program found.
    fn merge(&mut self, other: Findings) {
        self.count += other.count;
        for (key, diagnostic) in other.seen.into_iter().zip(other.diagnostics.0) {
            if !self.seen.contains(&key) {
                self.seen.push(key);
                self.diagnostics.push(diagnostic);
            }
        }
    }
}

/// The statements that raise an array, and how.
fn raises(program: &Program, array: SignalId) -> Vec<(&Stmt, &Update)> {
    let raising = program.statements().filter_map(|stmt| match &stmt.op {
        Op::Signal { signal, update, .. } if *signal == array => Some((stmt, update)),
        _ => None,
    });
    raising.collect()
}
