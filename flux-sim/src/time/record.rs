//! What a simulated launch leaves: every op with its time and what it waited for.

use super::instant::Time;
use flux_ir::eval::TileRange;
use serde::{Deserialize, Serialize};

/// No op.
pub const NONE: u32 = u32::MAX;

/// What an op is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A grid starts.
    Start,
    /// A CTA or a copy engine waits for a signal and does nothing else.
    Wait,
    /// Products of a tile.
    Mainloop,
    /// The epilogue of a tile, its local stores included.
    Epilogue,
    /// Stores to a peer, from the first on its link to the last that has landed.
    Put,
    /// Contributions are summed.
    Sum,
    /// A copy engine copies.
    Copy,
    /// A signal is raised.
    Signal,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 8] = [
        Kind::Start,
        Kind::Wait,
        Kind::Mainloop,
        Kind::Epilogue,
        Kind::Put,
        Kind::Sum,
        Kind::Copy,
        Kind::Signal,
    ];

    /// The name in tables and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Start => "start",
            Kind::Wait => "wait",
            Kind::Mainloop => "mainloop",
            Kind::Epilogue => "epilogue",
            Kind::Put => "put",
            Kind::Sum => "sum",
            Kind::Copy => "copy",
            Kind::Signal => "signal",
        }
    }
}

/// Which part of an actor does an op: parts of one actor overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Loads and tensor cores of a CTA; all of another actor.
    Main,
    /// A consumer's epilogue: the first, or the second where they take turns.
    Epilogue(u8),
    /// What is on its way to another actor.
    Link,
}

/// One op of a simulated launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// What it is.
    pub kind: Kind,
    /// Whose it is: a number among [`Timeline::actors`].
    pub actor: u32,
    /// Which part of the actor does it.
    pub lane: Lane,
    /// When it begins.
    pub start: Time,
    /// When it is through.
    pub end: Time,
    /// What it had to wait for: the op that ended last of those it needs, or [`NONE`].
    pub cause: u32,
    /// Whether the cause is an op of another rank that this rank had to wait for.
    pub crosses: bool,
    /// The tile: rows and columns of the whole output. Empty for copies and signals.
    pub tile: TileRange,
    /// The rank it writes to or signals; its own where it does neither.
    pub peer: u32,
    /// The bytes it moves between ranks.
    pub bytes: u64,
    /// The number of its statement in the Program.
    pub stmt: u32,
}

/// Who acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The host of a rank, before it launches the grid.
    Host,
    /// A copy engine, with the number of its agent.
    Engine(u32),
    /// A CTA, with the numbers of its agent and of itself.
    Cta(u32, u32),
    /// The last CTA of an agent, when all are through.
    Exit(u32),
}

/// An actor of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Actor {
    /// The rank.
    pub rank: u32,
    /// What it is.
    pub role: Role,
}

/// A simulated launch: what every actor of every rank that was simulated did, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// Ranks of the world.
    pub world: u32,
    /// Ranks that were simulated, from 0: each other does what the one with its number modulo
    /// this does.
    pub classes: u32,
    /// Who acts.
    pub actors: Vec<Actor>,
    /// What is done.
    pub ops: Vec<Op>,
    /// When the launch began; earlier ops are of launches before it.
    pub begins: Time,
    /// When its last actor was through.
    pub ends: Time,
    /// The op that this was waited for, or [`NONE`].
    pub last: u32,
}

impl Timeline {
    /// What the launch took.
    pub fn total(&self) -> Time {
        self.ends.since(self.begins)
    }

    /// The rank an op belongs to.
    pub fn rank(&self, op: &Op) -> u32 {
        self.actors[op.actor as usize].rank
    }
}
