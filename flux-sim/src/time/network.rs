//! The links: each rank has one into the fabric and one out of it, each serving one transfer
//! after the other at full rate, in the order in which they get there.

use super::actor::Moment;
use super::instant::Time;
use super::record::NONE;
use flux_ir::eval::TileRange;

/// A link in one direction.
#[derive(Debug, Clone, Copy)]
struct Direction {
    free: Time,
    /// The op that holds it until then.
    holder: u32,
}

/// What moves bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    /// A copy engine, which does nothing else meanwhile.
    Engine,
    /// A consumer of a CTA, by its lane.
    Consumer(usize),
}

/// A transfer that has been issued and has not got to the link it is for.
#[derive(Debug, Clone)]
pub(super) struct Transfer {
    pub(super) actor: u32,
    pub(super) carrier: Carrier,
    /// The classes of the ranks it leads from and to.
    pub(super) between: (u32, u32),
    /// Whether the actor is on the rank that bytes leave.
    pub(super) pushed: bool,
    /// When it was issued.
    pub(super) issued: Moment,
    /// When its first byte leaves.
    pub(super) start: Time,
    pub(super) takes: Time,
    pub(super) bytes: u64,
    pub(super) peer: u32,
    pub(super) tile: TileRange,
    pub(super) stmt: u32,
}

/// Every rank's link in both directions.
#[derive(Debug)]
pub(super) struct Network {
    out: Vec<Direction>,
    into: Vec<Direction>,
}

impl Network {
    pub(super) fn new(ranks: u32) -> Self {
        let idle = vec![Direction { free: Time::ZERO, holder: NONE }; ranks as usize];
        Network { out: idle.clone(), into: idle }
    }

    /// Takes the link out of a rank from `at` or as soon as it is free; says from when.
    pub(super) fn leave(&mut self, from: u32, at: Time, takes: Time) -> Time {
        let out = &mut self.out[from as usize];
        let start = out.free.max(at);
        out.free = start + takes;
        start
    }

    /// Takes the link into a rank for a transfer that starts to leave now, as op number `op`.
    /// Says when its last byte is there, and what it waited for.
    pub(super) fn land(&mut self, transfer: &Transfer, op: u32) -> (Time, Moment) {
        let (from, to) = transfer.between;
        let (out, into) = (&mut self.out[from as usize], &mut self.into[to as usize]);
        let mut waited_for = transfer.issued;
        if transfer.start > transfer.issued.at {
            let crosses = !transfer.pushed;
            waited_for = Moment { at: transfer.start, cause: out.holder, crosses };
        }
        let lands = into.free.max(transfer.start);
        if lands > transfer.start {
            waited_for = Moment { at: lands, cause: into.holder, crosses: transfer.pushed };
        }
        let end = lands + transfer.takes;
        *into = Direction { free: end, holder: op };
        out.holder = op;
        (end, waited_for)
    }
}
