//! Copy engines, and the host that feeds them.

use super::actor::Moment;
use super::instant::Time;
use super::machine::FlagStream;
use super::network::{Carrier, Transfer};
use super::record::{Kind, Op};
use super::run::{Parts, Run, Step};
use flux_ir::eval::{Action, Event, Region};
use flux_ir::program::Home;

impl<'p> Run<'_, 'p> {
    /// The host: it waits itself for signals that live on the host, and enqueues all else.
    pub(super) fn host(&mut self, index: u32, event: &Event<'p>) -> Step {
        if let Action::Wait { signal, ref slots, target, .. } = event.action
            && self.home(signal) == Home::Host
        {
            match self.await_slots(index, event, (signal, slots.clone(), target)) {
                Ok(seen) => {
                    let state = &mut self.states[index as usize];
                    state.busy_until = state.busy_until.max(seen);
                }
                Err(blocked) => return blocked,
            }
        }
        Step::Done
    }

    /// A copy engine: one thing after the other, as in a stream.
    pub(super) fn engine(&mut self, index: u32, event: &Event<'p>) -> Step {
        if self.parts == Parts::Compute {
            return Step::Done;
        }
        match &event.action {
            Action::Wait { signal, slots, target, .. } => {
                let wait = (*signal, slots.clone(), *target);
                match self.await_slots(index, event, wait) {
                    Ok(seen) => self.stream_waited(index, event, *signal, seen),
                    Err(blocked) => return blocked,
                }
            }
            Action::Copy { from, to, adds: _ } => return self.copy(index, event, from, to),
            Action::Signal { rank, signal, slot, change, .. } if self.parts == Parts::All => {
                let raise = (*rank, *signal, *slot, *change);
                let link = &self.cost.machine.link;
                let now = self.states[index as usize].busy_until;
                let at = now.at + Time::from_us(link.flag_us.get());
                let stays = link.flag_stream == FlagStream::Same;
                let op = self.record(Op {
                    kind: Kind::Signal,
                    start: now.at,
                    end: at,
                    cause: now.cause,
                    peer: *rank,
                    stmt: event.number,
                    ..self.blank(index)
                });
                self.raise(index, event, raise, (at, op));
                if stays {
                    self.states[index as usize].busy_until = Moment::of(at, op);
                }
            }
            _ => {}
        }
        Step::Done
    }

    /// The stream goes on when its wait has ended.
    fn stream_waited(
        &mut self,
        index: u32,
        event: &Event<'p>,
        signal: flux_ir::program::SignalId,
        seen: Moment,
    ) {
        let now = self.states[index as usize].busy_until;
        let mut ready = now.max(seen);
        if self.home(signal) == Home::Device && self.parts == Parts::All {
            ready.at = ready.at + Time::from_us(self.cost.machine.link.stream_wait_us.get());
        }
        if ready.at > now.at {
            let op = self.record(Op {
                kind: Kind::Wait,
                start: now.at,
                end: ready.at,
                cause: ready.cause,
                crosses: ready.crosses,
                stmt: event.number,
                ..self.blank(index)
            });
            self.states[index as usize].busy_until = Moment::of(ready.at, op);
        }
    }

    fn copy(&mut self, index: u32, event: &Event<'p>, from: &Region, to: &Region) -> Step {
        let local = from.rank == to.rank;
        if from.is_empty() || to.is_empty() || (local && self.parts == Parts::Transfers) {
            return Step::Done;
        }
        let bytes = self.cost.bytes(from);
        let link = &self.cost.machine.link;
        let state = &mut self.states[index as usize];
        let first = !local && !state.copied;
        // A link that is loaded both ways is what copies wait for, whichever stream they are in.
        let (before, on_link) = match self.cost.both_ways_us {
            _ if first => (link.copy_start_us.get(), 0.0),
            Some(on_link) if !local => (0.0, on_link),
            _ => (link.copy_gap_us.get(), 0.0),
        };
        let now = state.busy_until;
        let ready = Moment { at: now.at + Time::from_us(before), ..now };
        if local {
            let end = ready.at + self.cost.local_copy(bytes);
            let op = self.record(Op {
                kind: Kind::Copy,
                start: ready.at,
                end,
                cause: now.cause,
                crosses: now.crosses,
                stmt: event.number,
                ..self.blank(index)
            });
            self.states[index as usize].busy_until = Moment::of(end, op);
            return Step::Done;
        }
        state.copied = true;
        // Data moves from the rank it lies on to the rank it is for, whichever engine moves it.
        let columns = self.views[0].extent(from.buffer).cols;
        let pushed = from.rank == self.actors[index as usize].rank;
        self.send(Transfer {
            actor: index,
            carrier: Carrier::Engine,
            between: (self.fold.class(from.rank), self.fold.class(to.rank)),
            pushed,
            remote: false,
            issued: ready,
            start: Time::ZERO,
            takes: self.cost.wire(from, columns) + Time::from_us(on_link),
            bytes,
            peer: if pushed { to.rank } else { from.rank },
            tile: event.tile.clone(),
            stmt: event.number,
        });
        Step::Sent
    }
}
