//! The links: each rank has one into the fabric and one out of it, each serving one transfer
//! after the other at full rate, in the order in which they get there. Between nodes there are as many again.

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
    /// Whether it goes to another node: by adapters, and not by links.
    pub(super) remote: bool,
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

    /// The link of the actor's own rank that a transfer takes, and the one of its peer.
    fn links(&mut self, transfer: &Transfer) -> (&mut Direction, &mut Direction) {
        let (from, to) = transfer.between;
        let (out, into) = (&mut self.out[from as usize], &mut self.into[to as usize]);
        if transfer.pushed { (out, into) } else { (into, out) }
    }

    /// Takes the link of the actor's own rank from when the transfer is issued or as soon as it is
    /// free; says from when.
    pub(super) fn leave(&mut self, transfer: &Transfer) -> Time {
        let (near, _) = self.links(transfer);
        let start = near.free.max(transfer.issued.at);
        near.free = start + transfer.takes;
        start
    }

    /// Takes the peer's link for a transfer that starts now, as op number `op`. Says when its last
    /// byte is there, and what it waited for.
    pub(super) fn land(&mut self, transfer: &Transfer, op: u32) -> (Time, Moment) {
        let (near, far) = self.links(transfer);
        let mut waited_for = transfer.issued;
        if transfer.start > transfer.issued.at {
            waited_for = Moment { at: transfer.start, cause: near.holder, crosses: false };
        }
        let lands = far.free.max(transfer.start);
        if lands > transfer.start {
            waited_for = Moment { at: lands, cause: far.holder, crosses: true };
        }
        let end = lands + transfer.takes;
        *far = Direction { free: end, holder: op };
        near.holder = op;
        (end, waited_for)
    }
}
