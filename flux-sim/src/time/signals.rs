//! Signals: waits for them, raises of them, and their way between.

use super::actor::Moment;
use super::instant::Time;
use super::queue::Item;
use super::record::{Kind, Lane, Op};
use super::run::{Parts, Run, Step};
use flux_ir::arena::Handle;
use flux_ir::eval::{Change, Event};
use flux_ir::program::SignalId;
use std::ops::Range;

/// A raise on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raise {
    slot: u64,
    change: Change,
    cause: u32,
    crosses: bool,
}

impl<'p> Run<'_, 'p> {
    fn slot(&self, rank: u32, signal: SignalId, place: u32) -> Option<u64> {
        let slots = &self.bases[signal.index()..=signal.index() + 1];
        let slot = slots[0] + u64::from(place);
        let each = self.bases.last().copied().unwrap_or(0);
        (slot < slots[1]).then(|| u64::from(rank) * each + slot)
    }

    /// When every slot has reached the target, or one that has not.
    pub(super) fn await_slots(
        &mut self,
        index: u32,
        event: &Event<'p>,
        (signal, slots, target): (SignalId, Range<u32>, i64),
    ) -> Result<Moment, Step> {
        let mut seen = Moment::START;
        if target <= 0 || self.parts != Parts::All {
            return Ok(seen);
        }
        let rank = self.actors[index as usize].rank;
        for place in slots {
            let Some(slot) = self.slot(rank, signal, place) else {
                self.unsound(index, event);
                return Ok(seen);
            };
            let held = self.slots.get(slot);
            if i64::from(held.value) < target {
                return Err(Step::Blocked(slot));
            }
            seen = seen.max(held.seen);
        }
        Ok(seen)
    }

    /// Sends a raise on its way: it is seen at `at`.
    pub(super) fn raise(
        &mut self,
        index: u32,
        event: &Event<'p>,
        (rank, signal, slot, change): (u32, SignalId, u32, Change),
        (at, cause): (Time, u32),
    ) {
        let (to, place) = self.fold.slot(rank, signal, slot);
        let Some(slot) = self.slot(to, signal, place) else {
            return self.unsound(index, event);
        };
        let crosses = rank != self.actors[index as usize].rank;
        let raise = Raise { slot, change, cause, crosses };
        let number = match self.free_raises.pop() {
            Some(number) => {
                self.raises[number as usize] = raise;
                number
            }
            None => {
                self.raises.push(raise);
                self.raises.len() as u32 - 1
            }
        };
        self.queue.push(at, Item::Seen(number));
    }

    pub(super) fn see(&mut self, number: u32, now: Time) {
        let Raise { slot, change, cause, crosses } = self.raises[number as usize];
        self.free_raises.push(number);
        let held = self.slots.get_mut(slot);
        held.value = match change {
            Change::Add(value) => held.value.saturating_add(value),
            Change::Set(value) => value.max(held.value),
        };
        held.seen = Moment { at: now, cause, crosses };
        for actor in self.waiting.remove(&slot).unwrap_or_default() {
            self.queue.push(now, Item::Go(actor));
        }
    }

    /// A CTA raises a signal.
    pub(super) fn signal(
        &mut self,
        index: u32,
        event: &Event<'p>,
        raise: (u32, SignalId, u32, Change),
        now: Moment,
    ) {
        let link = &self.cost.machine.link;
        let rank = self.actors[index as usize].rank;
        let network = self.cost.machine.network.filter(|_| !self.program.is_mapped(rank, raise.0));
        let mapped = if raise.0 == rank { link.own_signal_us } else { link.signal_us };
        let seen = network.map_or(mapped, |network| network.signal_us);
        let at = now.at + Time::from_us(seen.get());
        let op = self.record(Op {
            kind: Kind::Signal,
            lane: Lane::Link,
            start: now.at,
            end: at,
            cause: now.cause,
            crosses: now.crosses,
            tile: event.tile.clone(),
            peer: raise.0,
            stmt: event.number,
            ..self.blank(index)
        });
        self.raise(index, event, raise, (at, op));
    }
}
