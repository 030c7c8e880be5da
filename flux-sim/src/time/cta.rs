//! A CTA: a producer that waits and loads ahead, tensor cores, and one or two consumers whose
//! epilogues may hide behind the other's mainloop.

use super::actor::{Moment, State};
use super::cost::extent;
use super::instant::Time;
use super::network::{Carrier, Transfer};
use super::record::{Kind, Lane, Op};
use super::run::{Holds, Parts, Run, Step};
use flux_ir::Consumers;
use flux_ir::arena::Handle;
use flux_ir::eval::{Action, Event, Loads, Region};
use flux_ir::program::{self, Program, Stmt, Transposed, ValueId};

/// What each statement holds up, by its number among [`Program::statements`]: a wait ahead of
/// the mainloop in the tile loop holds up loads, one behind it the epilogue.
pub(super) fn holds(program: &Program) -> Vec<Holds> {
    let mut all = Vec::new();
    for agent in program.agents.values() {
        number(&agent.body, Holds::Both, &mut all);
        number(&agent.exit, Holds::Both, &mut all);
    }
    all
}

fn multiplies(stmt: &Stmt) -> bool {
    matches!(stmt.op, program::Op::Mainloop { .. }) || stmt.op.body().iter().any(multiplies)
}

/// Numbers a body; `outside` is what its waits hold up where it has no mainloop.
fn number(body: &[Stmt], outside: Holds, all: &mut Vec<Holds>) {
    let in_tile = outside != Holds::Both
        || body
            .iter()
            .any(|s| matches!(s.op, program::Op::Row { .. } | program::Op::Mainloop { .. }));
    let last = body.iter().rposition(multiplies);
    for (index, stmt) in body.iter().enumerate() {
        let here = match last {
            // Around the tile loop.
            _ if !in_tile => Holds::Both,
            Some(last) if index <= last => Holds::Loads,
            Some(_) => Holds::Epilogue,
            // A tile that multiplies nothing is all epilogue.
            None if outside == Holds::Both => Holds::Epilogue,
            None => outside,
        };
        all.push(here);
        number(stmt.op.body(), here, all);
    }
}

impl<'p> Run<'_, 'p> {
    pub(super) fn cta(&mut self, index: u32, event: &Event<'p>) -> Step {
        match &event.action {
            Action::Wait { signal, slots, target, .. } => {
                match self.await_slots(index, event, (*signal, slots.clone(), *target)) {
                    Ok(seen) => self.cta_waited(index, event, seen),
                    Err(blocked) => return blocked,
                }
            }
            Action::Mainloop { products } => {
                for (a, b, transposed) in products {
                    self.product(index, event, (a, b, *transposed));
                }
            }
            Action::Store { to, value, loads, adds: _ } => {
                self.store(index, event, (to, *value, loads));
            }
            Action::Sum { from, .. } if self.parts == Parts::All => {
                let bytes: u64 = from.iter().map(|region| self.cost.bytes(region)).sum();
                let now = self.lane(index);
                let end = now.at + self.cost.sum(bytes);
                self.on_lane(index, event, Kind::Sum, now, end);
            }
            Action::Signal { rank, signal, slot, change, .. } if self.parts == Parts::All => {
                let state = &mut self.states[index as usize];
                let lane = state.lane;
                if state.on_their_way[lane] > 0 {
                    return Step::Parked;
                }
                let now = match self.program.is_mapped(self.actors[index as usize].rank, *rank) {
                    // A release waits for what the consumer has stored.
                    true => {
                        state.lanes[lane] = state.lanes[lane].max(state.landed[lane]);
                        state.lanes[lane]
                    }
                    // The signal waits for what it travels behind, and the consumer goes on.
                    false => {
                        let carried = state.carried.get(rank).copied().unwrap_or(Moment::START);
                        state.lanes[lane].max(carried)
                    }
                };
                self.signal(index, event, (*rank, *signal, *slot, *change), now);
            }
            Action::Sum { .. } | Action::Signal { .. } | Action::FenceProxyAsync => {}
            Action::Copy { from, to, adds: _ } => self.copy_beside(index, event, from, to),
        }
        Step::Done
    }

    /// A copy by copy warps, or in bulk: beside the tiles, so only what it sends or brings takes
    /// time.
    fn copy_beside(&mut self, index: u32, event: &Event<'p>, from: &Region, to: &Region) {
        let own = self.actors[index as usize].rank;
        if to.is_empty() || self.parts == Parts::Compute {
            return;
        }
        let takes = self.cost.copied_beside(self.cost.bytes(to));
        if !self.program.is_mapped(own, to.rank) {
            let columns = self.views[0].extent(to.buffer).cols;
            let whole = u64::from(extent(&to.cols)) >= columns;
            let messages = if whole { 1 } else { extent(&to.rows) };
            let takes = self.cost.put_over_network(self.cost.bytes(to), messages);
            let between = (own, self.fold.class(to.rank));
            self.transfer(index, event, to, (between, true), takes);
        } else if to.rank != own {
            let between = (own, self.fold.class(to.rank));
            self.transfer(index, event, to, (between, true), takes);
        } else if from.rank != own {
            let between = (self.fold.class(from.rank), own);
            self.transfer(index, event, from, (between, false), takes);
        }
    }

    /// The consumer that an event's tile belongs to: ping-pong consumers take turns.
    pub(super) fn lane_of(&self, state: &State<'_, '_>, event: &Event<'_>) -> usize {
        let turns = self.program.consumers == Consumers::PingPong && state.tile != event.tile;
        if turns { state.lane ^ 1 } else { state.lane }
    }

    fn lane(&self, index: u32) -> Moment {
        let state = &self.states[index as usize];
        state.lanes[state.lane]
    }

    fn cta_waited(&mut self, index: u32, event: &Event<'p>, seen: Moment) {
        let fill = Time::from_us(self.cost.machine.compute.fill_us.get());
        let holds = self.holds(event.number);
        let state = &mut self.states[index as usize];
        match holds {
            Holds::Loads if seen.at > Time::ZERO => {
                let loaded = Moment { at: seen.at + fill, ..seen };
                state.operands = state.operands.max(loaded);
            }
            Holds::Loads => {}
            Holds::Epilogue => {
                let lane = state.lane;
                let now = state.lanes[lane].max(state.landed[lane]);
                self.stall(index, event, now, seen);
                let state = &mut self.states[index as usize];
                state.lanes[lane] = state.lanes[lane].max(now);
            }
            Holds::Both => {
                let now = state.busy_until;
                if seen.at > now.at {
                    self.stall(index, event, now, seen);
                    let state = &mut self.states[index as usize];
                    let since = state.lanes[state.lane];
                    state.lanes = [since; 2];
                    state.operands = state.operands.max(since);
                    state.busy_until = since;
                }
            }
        }
    }

    /// Records that the lane at hand waits from `now` until `seen`.
    fn stall(&mut self, index: u32, event: &Event<'p>, now: Moment, seen: Moment) -> Moment {
        if seen.at <= now.at {
            return now;
        }
        let lane = match self.holds(event.number) {
            Holds::Epilogue if matches!(event.action, Action::Wait { .. }) => {
                Lane::Epilogue(self.states[index as usize].lane as u8)
            }
            _ => Lane::Main,
        };
        let op = self.record(Op {
            kind: Kind::Wait,
            lane,
            start: now.at,
            end: seen.at,
            cause: seen.cause,
            crosses: seen.crosses,
            tile: event.tile.clone(),
            stmt: event.number,
            ..self.blank(index)
        });
        let state = &mut self.states[index as usize];
        state.lanes[state.lane] = Moment::of(seen.at, op);
        state.lanes[state.lane]
    }

    /// An op of the consumer at hand.
    fn on_lane(&mut self, index: u32, event: &Event<'p>, kind: Kind, now: Moment, end: Time) {
        let lane = match kind {
            Kind::Mainloop => Lane::Main,
            _ => Lane::Epilogue(self.states[index as usize].lane as u8),
        };
        let op = self.record(Op {
            kind,
            lane,
            start: now.at,
            end,
            cause: now.cause,
            crosses: now.crosses,
            tile: event.tile.clone(),
            stmt: event.number,
            ..self.blank(index)
        });
        let state = &mut self.states[index as usize];
        state.lanes[state.lane] = Moment::of(end, op);
    }

    /// One product of a tile: all that its operands bring of the reduction.
    fn product(
        &mut self,
        index: u32,
        event: &Event<'p>,
        (a, b, transposed): (&Region, &Region, Transposed),
    ) {
        let lane = self.lane_of(&self.states[index as usize], event);
        let state = &mut self.states[index as usize];
        let mut tensor = state.busy_until;
        if state.tile != event.tile {
            let turn = self.cost.turn(state.tensor_time);
            if !state.tile.rows.is_empty() {
                tensor.at = tensor.at + turn;
            }
            state.tile = event.tile.clone();
            state.lane = lane;
        }
        let (free, operands) = (tensor.max(state.lanes[state.lane]), state.operands);
        let mut start = free;
        if operands.at > free.at {
            start = self.stall(index, event, free, operands);
        }
        let mut end = start.at;
        if self.parts != Parts::Transfers {
            let state = &self.states[index as usize];
            let takes = self.cost.product((a, transposed), state.tensor_time);
            end = start.at + takes;
            for operand in [a, b] {
                end = end.max(self.load(index, operand, (start.at, start.at + takes)));
            }
            let state = &mut self.states[index as usize];
            state.tensor_time = state.tensor_time + takes;
        }
        self.on_lane(index, event, Kind::Mainloop, start, end);
        let state = &mut self.states[index as usize];
        state.busy_until = state.lanes[state.lane];
        state.operands = Moment::START;
    }

    /// When an operand of a mainloop has been loaded.
    fn load(&mut self, index: u32, operand: &Region, while_busy: (Time, Time)) -> Time {
        let panel =
            (operand.buffer.index() as u32, operand.plane, operand.rows.start, operand.cols.start);
        let bytes = self.cost.bytes(operand);
        let memory = &self.cost.machine.memory;
        let rates = (memory.hbm_gbps.get(), memory.l2_bytes.get());
        let rank = self.actors[index as usize].rank as usize;
        self.memories[rank].load(panel, bytes, while_busy, rates)
    }

    /// The epilogue of the part of the tile that goes to one place.
    fn store(&mut self, index: u32, event: &Event<'p>, stored: (&Region, ValueId, &Loads)) {
        let (to, value, loads) = stored;
        let cells = |rows, cols| f64::from(rows) * f64::from(cols);
        let whole = cells(extent(&event.tile.rows), extent(&event.tile.cols));
        let part = cells(extent(&to.rows), extent(&to.cols));
        if part <= 0.0 || whole <= 0.0 {
            return;
        }
        let now = self.lane(index);
        if self.parts != Parts::Transfers {
            let busy = self.states[index as usize].tensor_time;
            let mut end = now.at + self.cost.epilogue((part / whole).min(1.0), busy);
            if !self.cost.multiplies {
                end = end.max(self.moved(index, (to, value, loads), (now.at, end)));
            }
            self.on_lane(index, event, Kind::Epilogue, now, end);
        }
        let own = self.actors[index as usize].rank;
        if to.rank != own && self.parts != Parts::Compute {
            self.put(index, event, to);
        }
    }

    /// When what an epilogue reads and writes has been moved, where no product hides that.
    fn moved(
        &mut self,
        index: u32,
        (to, value, loads): (&Region, ValueId, &Loads),
        while_busy: (Time, Time),
    ) -> Time {
        let rank = self.actors[index as usize].rank;
        let mut regions: Vec<Region> = loads.iter().map(|(_, region)| region.clone()).collect();
        for buffer in self.cost.reads(value) {
            regions.push(Region { rank, buffer, plane: 0, ..to.clone() });
        }
        if to.rank == rank {
            regions.push(to.clone());
        }
        regions.iter().fold(Time::ZERO, |end, region| end.max(self.load(index, region, while_busy)))
    }

    /// Stores to a peer: they leave behind the epilogue, and land later.
    fn put(&mut self, index: u32, event: &Event<'p>, to: &Region) {
        let own = self.actors[index as usize].rank;
        let takes = self.cost.put(self.cost.bytes(to));
        self.transfer(index, event, to, ((own, self.fold.class(to.rank)), true), takes);
    }

    /// Moves a region of a peer between the links of two classes of ranks.
    fn transfer(
        &mut self,
        index: u32,
        event: &Event<'p>,
        of: &Region,
        (between, pushed): ((u32, u32), bool),
        takes: Time,
    ) {
        let bytes = self.cost.bytes(of);
        let remote = !self.program.is_mapped(self.actors[index as usize].rank, of.rank);
        let transfer = Transfer {
            actor: index,
            carrier: Carrier::Consumer(self.states[index as usize].lane),
            between,
            pushed,
            remote,
            issued: self.lane(index),
            start: Time::ZERO,
            takes,
            bytes,
            peer: of.rank,
            tile: event.tile.clone(),
            stmt: event.number,
        };
        self.send(transfer);
    }
}
