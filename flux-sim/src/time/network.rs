//! The links: each rank has one into the fabric and one out of it, each serving one transfer
//! after the other at full rate.

use super::instant::Time;
use super::record::NONE;

/// A link in one direction.
#[derive(Debug, Clone, Copy)]
struct Direction {
    free: Time,
    /// The op that holds it until then.
    holder: u32,
}

/// An end of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The rank that the bytes leave.
    Source,
    /// The rank that they are for.
    Target,
}

/// A transfer on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    /// When its first byte leaves.
    pub(super) start: Time,
    /// When its last byte is there.
    pub(super) end: Time,
    /// The op it queued behind, and at whose link.
    pub(super) behind: Option<(u32, Side)>,
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

    /// Sends from rank to rank at `at` or as soon as both links are free; `op` is its number.
    pub(super) fn send(
        &mut self,
        (from, to): (u32, u32),
        at: Time,
        takes: Time,
        op: u32,
    ) -> Transfer {
        let (out, into) = (&mut self.out[from as usize], &mut self.into[to as usize]);
        let mut behind = (out.free > at).then_some((out.holder, Side::Source));
        let start = out.free.max(at);
        *out = Direction { free: start + takes, holder: op };
        let lands = into.free.max(start);
        if into.free > start {
            behind = Some((into.holder, Side::Target));
        }
        *into = Direction { free: lands + takes, holder: op };
        Transfer { start, end: lands + takes, behind }
    }
}
