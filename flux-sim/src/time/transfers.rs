//! Transfers between ranks, from where they are issued to where they land.

use super::actor::Moment;
use super::instant::Time;
use super::network::{Carrier, Transfer};
use super::queue::Item;
use super::record::{Actor, Kind, Lane, NONE, Op};
use super::run::Run;

impl Run<'_, '_> {
    /// Sends a transfer on its way: from when it is ready or its rank's link is free.
    pub(super) fn send(&mut self, mut transfer: Transfer) {
        transfer.start = match transfer.remote {
            true => self.fabric.leave(&transfer),
            false => self.network.leave(&transfer),
        };
        let Actor { rank, .. } = self.actors[transfer.actor as usize];
        let (start, world) = (transfer.start, self.fold.world());
        let distance = (transfer.peer + world - rank % world) % world;
        let lane = match transfer.carrier {
            Carrier::Engine => 0,
            Carrier::Consumer(lane) => lane,
        };
        self.states[transfer.actor as usize].on_their_way[lane] += 1;
        let number = match self.free_transfers.pop() {
            Some(number) => {
                self.transfers[number as usize] = Some(transfer);
                number
            }
            None => {
                self.transfers.push(Some(transfer));
                self.transfers.len() as u32 - 1
            }
        };
        self.turn += 1;
        self.queue.push(start, Item::Leaves(distance, self.turn, number));
    }

    /// A transfer leaves: when it lands is known.
    pub(super) fn land(&mut self, number: u32, now: Time) {
        let Some(transfer) = self.transfers[number as usize].take() else { return };
        self.free_transfers.push(number);
        let op = if self.keeps { self.ops.len() as u32 } else { NONE };
        let (mut end, waited_for) = match transfer.remote {
            true => self.fabric.land(&transfer, op),
            false => self.network.land(&transfer, op),
        };
        let (kind, lane, of) = match transfer.carrier {
            Carrier::Engine => (Kind::Copy, Lane::Main, 0),
            Carrier::Consumer(lane) => {
                let machine = self.cost.machine;
                let network = machine.network.filter(|_| transfer.remote);
                let put_us = network.map_or(machine.link.put_us, |network| network.put_us);
                end = end + Time::from_us(put_us.get());
                (Kind::Put, Lane::Link, lane)
            }
        };
        self.record(Op {
            kind,
            lane,
            start: transfer.start,
            end,
            cause: waited_for.cause,
            crosses: waited_for.crosses,
            tile: transfer.tile,
            peer: transfer.peer,
            bytes: transfer.bytes,
            stmt: transfer.stmt,
            ..self.blank(transfer.actor)
        });
        let landed = Moment::of(end, op);
        let state = &mut self.states[transfer.actor as usize];
        match transfer.carrier {
            Carrier::Engine => state.busy_until = landed,
            // Who puts it goes on: the signal behind it waits, on its way.
            Carrier::Consumer(_) if transfer.remote => {
                let carried = state.carried.entry(transfer.peer).or_insert(Moment::START);
                *carried = carried.max(landed);
            }
            Carrier::Consumer(lane) => state.landed[lane] = state.landed[lane].max(landed),
        }
        state.on_their_way[of] -= 1;
        if state.parked && state.on_their_way[of] == 0 {
            state.parked = false;
            self.queue.push(now, Item::Go(transfer.actor));
        }
    }
}
