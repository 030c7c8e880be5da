//! The time model: what a launch of a Program takes on a machine, without running it.
//!
//! Each op gets a duration from a [`Machine`], and the agents of all ranks are walked in the order
//! of time, as the checker walks them: waits end when signals are seen, copies of a stream follow
//! each other, transfers share links. [`simulate`] gives total, what the parts take alone, the
//! timeline and the critical path. `docs/time-model.md` says what is modeled and how well it fits.
//!
//! Where ranks do the same, one of each class stands for all: [`Fold`].

mod actor;
mod awaited;
mod copies;
mod cost;
mod cta;
mod fold;
mod instant;
mod machine;
mod memory;
mod network;
mod path;
mod queue;
mod record;
mod recording;
mod report;
mod run;
mod signals;
mod slots;
mod summary;
mod svg;
mod trace;
mod transfers;

pub use fold::Fold;
pub use instant::Time;
pub use machine::{
    ClockPoint, Compute, Count, Curve, Cycles, Factor, FlagStream, Gbps, Link, Machine,
    MachineError, Memory, Micros, NarrowPoint, Point, RowPoint, WirePoint,
};
pub use path::{Path, Segment, Stall};
pub use record::{Actor, Kind, Lane, NONE, Op, Role, Timeline};
pub use recording::{RECORDING_VERSION, RankRecord, Recording, RecordingError, TileRecord};
pub use report::{Report, simulate};
pub use summary::{Share, Summary, Wait};
pub use svg::draw;
pub use trace::chrome_trace;

use flux_ir::Span;
use flux_ir::order::OrderError;

/// What is simulated, beyond the launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Consecutive launches; the last is reported.
    pub launches: u32,
    /// Whether peers load the other direction of the links.
    pub peers: Peers,
    /// Whether ranks that do the same are simulated once.
    pub symmetry: Symmetry,
}

impl Default for Options {
    fn default() -> Self {
        Options { launches: 1, peers: Peers::Active, symmetry: Symmetry::Fold }
    }
}

/// What the peers of a rank are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peers {
    /// Ranks like it: links are loaded in both directions.
    Active,
    /// Memory: each link is loaded in one direction at a time, as `flux bench --peers` measures.
    Passive,
}

/// Which ranks are simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symmetry {
    /// One of each class that does the same, where that can be shown.
    Fold,
    /// Every rank.
    All,
}

/// Why nothing is predicted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The launch has no tile order.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// An extent that no launch has.
    #[error("expected {what} of {least} to {most}, found {found}")]
    Extent {
        /// Which one.
        what: &'static str,
        /// Its least value.
        least: u32,
        /// Its largest.
        most: u32,
        /// What was asked for.
        found: u32,
    },
    /// More tiles or signals than are simulated.
    #[error("the launch has {found} {what} on {ranks} ranks that differ, expected at most {most}")]
    TooLarge {
        /// Tiles or signals.
        what: &'static str,
        /// How many of them.
        found: u64,
        /// The ranks that have to be simulated.
        ranks: u32,
        /// The limit.
        most: u64,
    },
    /// Ranks of several nodes on a machine that has no network between them.
    #[error(
        "machine `{machine}` has no network between nodes: add `network` to it, as `h200-ib` has one"
    )]
    NoNetwork {
        /// The machine.
        machine: String,
    },
    /// The machine does not say what products of a type take.
    #[error(
        "machine `{machine}` has no rate for products of {element}: add it to \
         `compute.mac_per_cycle`"
    )]
    NoRate {
        /// The machine.
        machine: String,
        /// The element type.
        element: &'static str,
    },
    /// The launch does not end.
    #[error("{who} waits for `{signal}` to reach {target} for good; ask `flux check`")]
    Deadlock {
        /// The actor that waits.
        who: String,
        /// The signal.
        signal: String,
        /// The value it waits for.
        target: i64,
        /// The statement.
        span: Span,
    },
    /// The Program names something that is not there.
    #[error("{who} names a signal that is not there; ask `flux check`")]
    Unsound {
        /// The actor.
        who: String,
        /// The statement.
        span: Span,
    },
}
