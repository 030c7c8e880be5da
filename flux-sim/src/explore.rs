//! Explores every interleaving of a few launches of a small Program.
//!
//! The checker (`flux_ir::check`) decides by one run and an order of events. This module asks the
//! same question without any of that: it plays all orders in which the actors of all ranks can act
//! and in which memory can show what they did, and looks at what each read sees. It is the oracle
//! the checker is tested against, and shows that two Programs do the same.
//!
//! # What can happen
//!
//! Actors are the CTAs and copy engines of all ranks, and the exit of each agent. Each does its
//! [events](flux_ir::eval::Event) in order, through `epochs` launches. An exit begins when the bodies
//! of its agent are through, a launch of a rank when the launch before is over on that rank. What
//! memory shows is late:
//!
//! * A store to a symmetric buffer and a copy are issued first. The source of a copy is read at any
//!   time later, and the write is performed at any time after that: two writes of one CTA in either
//!   order, copies of one engine in the order of the stream. A signal `after performed` and the end
//!   of the actor's launch wait for all of it, a signal `after read` for the sources alone.
//! * A mainloop reads through the async proxy. A wait with no proxy fence behind it does not hold
//!   such a read back, nor does the actor's own write: the read happens at any time from where the
//!   actor first learned something that no fence follows. So may what a CTA stores on its own rank, which
//!   can leave by TMA.
//! * A tensor that peers read is written by its owner's caller when a launch begins, and again when
//!   it is over.
//!
//! # What is asked
//!
//! Memory holds, for each cell (`explore/cells.rs`), which move wrote it last. In every interleaving
//!
//! * all actors come to their ends ([`Rule::Deadlock`], [`Rule::WaitWithoutSignal`]),
//! * a read sees a write of its own launch ([`Rule::ReadBeforeArrival`],
//!   [`Rule::OverwriteBeforeRead`], [`Rule::ExitBeforeRead`]),
//! * and always the same one ([`Rule::OverwriteBeforeRead`]),
//! * a write follows always the same write ([`Rule::UnorderedWrites`]),
//! * the raises that make a signal reach the target of a wait are always the same, and exactly as
//!   much as the target ([`Rule::CountNotExact`]),
//! * all raises of a signal and all waits for it reach each other ([`Rule::ScopeTooNarrow`]),
//! * a sum finds one contribution of each other rank ([`Rule::SumNotExact`]),
//! * and a signal is set by one actor alone, each time to more ([`Rule::SignalNotMonotone`]).
//!
//! Reads that always see the same write make an outcome that is always the same: what an actor
//! computes is a function of what it reads.
//!
//! # Why it may leave out orders
//!
//! Moves that only let their thread go on are taken at once. With [`Reduction::Persistent`], so is a
//! move `m` that is in no conflict with anything that can happen while `m` is held back. Two moves
//! are in conflict if both touch a cell and one writes it, or both raise one signal (unless every
//! count that is waited for and not reached yet needs all raises in question); else each order of
//! them leads to the same state, and everything asked above has the same answer. What can happen
//! while `m` is held back is a set found by letting everything else go on as long as anything can:
//! no move here is ever disabled by another (signals only grow, control does not depend on data), so
//! one greedy attempt finds all of them. Hence `{m}` is a *persistent set* (Godefroid, *Partial-Order
//! Methods*, 1996): each complete order of moves from here equals, but for swaps of neighbors that
//! are in no conflict, one that begins with `m`. No thread ever returns to a place it has left, so no
//! move is put off for ever. In a state with no such move all that can happen is followed.
//!
//! [`Reduction::None`] needs none of this; tests compare the two on small Programs.

mod build;
mod cells;
mod same;
mod search;
mod system;
mod watch;

pub use same::{Difference, equivalent};

use flux_ir::Span;
use flux_ir::check::EPOCHS;
use flux_ir::diagnostic::Rule;
use flux_ir::eval::Launch;
use flux_ir::order::OrderError;
use flux_ir::program::{Engine, Program};
use flux_ir::target::Target;
use search::Search;
use std::collections::BTreeSet;
use system::System;

/// What is explored.
#[derive(Debug, Clone, Copy)]
struct Config {
    launch: Launch,
    epochs: u32,
    /// Whether the host does the waits of copy engines before it launches the grid.
    host_first: bool,
}

/// Which orders are left out because another one shows the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// None but those of moves that touch nothing.
    None,
    /// Those that begin with a move that is in conflict with nothing else.
    Persistent,
}

/// How far an exploration goes before it gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// States.
    pub states: usize,
    /// Bytes for the states that were visited.
    pub bytes: usize,
    /// Which orders are left out.
    pub reduction: Reduction,
    /// Whether to end at the first fault.
    pub first_fault: bool,
}

impl Default for Limits {
    /// A million states in 512 MiB, reduced, all faults.
    fn default() -> Self {
        Limits {
            states: 1 << 20,
            bytes: 512 << 20,
            reduction: Reduction::Persistent,
            first_fault: false,
        }
    }
}

/// A rule that some interleaving breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fault {
    /// The rule. Which of the rules of reads and writes is named depends on what was seen; that
    /// one is broken does not.
    pub rule: Rule,
    /// The statement, by its number among [`Program::statements`]; none where a
    /// caller or a launch itself is at fault.
    pub stmt: Option<u32>,
}

/// What was seen in all interleavings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What some interleaving breaks.
    pub faults: BTreeSet<Fault>,
    /// States that were visited.
    pub states: usize,
    /// States among them that nothing follows.
    pub last: usize,
    /// Moves of one run.
    pub moves: usize,
    /// The most launches between a wait and the last raise that it stands for. Where this grows with
    /// the number of launches, a signal runs away from a wait, until 32 bits do not tell which of
    /// them is ahead.
    pub lag: u32,
}

impl Outcome {
    /// Whether no interleaving breaks anything.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    /// The rules that are broken.
    pub fn rules(&self) -> BTreeSet<Rule> {
        self.faults.iter().map(|fault| fault.rule).collect()
    }
}

/// Why there is no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExploreError {
    /// More states than allowed.
    #[error("expected at most {limit} states, found more")]
    States {
        /// States that were allowed.
        limit: usize,
    },
    /// More memory than allowed.
    #[error("expected at most {limit} bytes of states, found more")]
    Bytes {
        /// Bytes that were allowed.
        limit: usize,
    },
    /// The launches are too long.
    #[error("expected at most {limit} moves, found {found}")]
    Moves {
        /// Moves of one run.
        found: usize,
        /// Moves that can be numbered.
        limit: usize,
    },
    /// A statement names an index outside of what it indexes: the checker's rule `bounds`.
    #[error("the statement at {span} leaves what it indexes")]
    OutOfBounds {
        /// The statement.
        span: Span,
    },
    /// The tile order gave no table.
    #[error(transparent)]
    Order(#[from] OrderError),
}

/// Explores `epochs` consecutive launches of `program` on every rank, whose structure has been
/// checked.
///
/// For `sm_90a` the host does the waits of copy engines before it launches the grid. That only makes
/// launches harder to end: whether they end is asked with the host first, all else without.
///
/// # Errors
/// A limit was reached, an index left what it indexes, or the tile order is no permutation. No
/// verdict follows from an error.
pub fn run(
    program: &Program,
    launch: Launch,
    epochs: u32,
    limits: &Limits,
) -> Result<Outcome, ExploreError> {
    let mut outcome = explore(program, Config { launch, epochs, host_first: false }, limits)?;
    let copies = program.agents.values().any(|agent| agent.engine == Engine::CopyEngine);
    let goes_on = outcome.is_sound() || !limits.first_fault;
    if copies && program.target == Target::Sm90a && goes_on {
        let staged = explore(program, Config { launch, epochs, host_first: true }, limits)?;
        let ends = [Rule::Deadlock, Rule::WaitWithoutSignal];
        outcome.states += staged.states;
        outcome.faults.extend(staged.faults.iter().filter(|fault| ends.contains(&fault.rule)));
    }
    Ok(outcome)
}

fn explore(program: &Program, config: Config, limits: &Limits) -> Result<Outcome, ExploreError> {
    let system = System::new(program, config)?;
    let mut search = Search::new(&system, limits);
    search.run()?;
    let (states, last, moves) = (search.states(), search.last, system.moves.len() - 1);
    let lag = search.watch.lag;
    Ok(Outcome { faults: search.watch.into_faults(), states, last, moves, lag })
}
