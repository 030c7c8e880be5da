//! What happens next: events in the order of time, ties in a fixed order.

use super::instant::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// A raise is seen: a number among those on their way.
    Seen(u32),
    /// An actor goes on.
    Go(u32),
    /// A transfer starts to leave: how many ranks on it is for, its turn among all, and its
    /// number. Transfers that start at once get to a link in the order of distance, which is the
    /// same on all ranks.
    Leaves(u32, u64, u32),
}

/// Events to come.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(Time, Item)>>,
}

impl Queue {
    pub(super) fn push(&mut self, at: Time, item: Item) {
        self.heap.push(Reverse((at, item)));
    }

    pub(super) fn pop(&mut self) -> Option<(Time, Item)> {
        self.heap.pop().map(|Reverse(next)| next)
    }

    /// Whether something happens before `at`.
    pub(super) fn before(&self, at: Time) -> bool {
        self.heap.peek().is_some_and(|Reverse((next, _))| *next <= at)
    }
}
