//! What a signal, a count or a sum lacks: the few steps that are involved.

use super::super::machine::Raise;
use super::super::trace::{Act, Actor};
use super::race::Shown;
use super::stage::Stage;
use super::table::{Row, Table};
use crate::program::{Engine, Op, Scope};

impl Stage<'_> {
    /// A raise and a wait for it of which one does not reach the other.
    pub(super) fn narrow(&self, number: u32) -> Option<Shown> {
        for (actor, trace) in (0..).zip(&self.traces) {
            let me = self.layout.actor(actor);
            for (at, step) in trace.steps.iter().enumerate() {
                let Act::Wait { slot, len, target } = step.act else { continue };
                let Op::Wait { scope: waits, .. } = &self.layout.stmt(*step).op else { continue };
                for raise in (slot..slot + len).flat_map(|s| self.history.stands_for(s, target)) {
                    let by = self.layout.actor(raise.actor);
                    let needed = needed(actor, me, raise.actor, by);
                    let raised = self.step(raise.actor, raise.stamp);
                    let Op::Signal { scope, .. } = &self.layout.stmt(raised).op else { continue };
                    let faulty = step.number == number && *waits < needed
                        || raised.number == number && *scope < needed;
                    if !faulty {
                        continue;
                    }
                    let note = |scope: Scope| match scope < needed {
                        true => format!("reaches {}, needed {}", scope.name(), needed.name()),
                        false => String::new(),
                    };
                    let wait = at as u32 + 1;
                    let rows = vec![
                        self.row(raise.actor, raise.stamp, note(*scope)),
                        self.row(actor, wait, note(*waits)),
                    ];
                    let steps = vec![(raise.actor, raise.stamp), (actor, wait)];
                    let title = "What one end says does not reach the other";
                    return Some((Table::new(title, rows), steps));
                }
            }
        }
        None
    }

    /// A wait that its raises do not meet, or a raise that ends a wait in place of another.
    pub(super) fn inexact(&self, number: u32) -> Option<Shown> {
        for (actor, trace) in (0..).zip(&self.traces) {
            for (at, step) in trace.steps.iter().enumerate() {
                let Act::Wait { slot, len, target } = step.act else { continue };
                if step.number != number {
                    continue;
                }
                for slot in slot..slot + len {
                    let raises = self.history.stands_for(slot, target);
                    let Some(last) = raises.last() else { continue };
                    if i64::from(last.value) == i64::from(target) {
                        continue;
                    }
                    let rows = raises.iter().map(|raise| {
                        self.row(raise.actor, raise.stamp, format!("makes it {}", raise.value))
                    });
                    let mut rows: Vec<Row> = rows.collect();
                    let wait = at as u32 + 1;
                    let note = format!("wants {target}, and never sees just that");
                    rows.push(self.row(actor, wait, note));
                    let steps = vec![(last.actor, last.stamp), (actor, wait)];
                    let title = "The count goes past the target";
                    return Some((Table::new(title, rows).shortened(), steps));
                }
            }
        }
        self.shortest(self.stand_ins(number)).or_else(|| self.drifts(number))
    }

    /// A wait that does not keep up with its raises, in all launches.
    fn drifts(&self, number: u32) -> Option<Shown> {
        let waits = (0..).zip(&self.traces).find_map(|(actor, trace)| {
            let at = trace.steps.iter().position(|step| step.number == number)?;
            let Act::Wait { slot, .. } = trace.steps[at].act else { return None };
            Some((actor, slot))
        });
        let (actor, slot) = waits?;
        let (mut rows, mut steps) = (Vec::new(), Vec::new());
        for (at, step) in self.traces[actor as usize].steps.iter().enumerate() {
            let Act::Wait { slot: from, len, target } = step.act else { continue };
            if step.number != number || !(from..from + len).contains(&slot) {
                continue;
            }
            let stamp = at as u32 + 1;
            let epoch = self.epoch(actor, stamp);
            let raises = self.history.of(slot).iter().filter(|raise| raise.epoch <= epoch);
            let value = raises.map(|raise| raise.value).max().unwrap_or(0);
            let name = self.layout.slot_name(slot);
            let note = format!("wants {target}; launches up to {epoch} make {name} {value}");
            rows.push(self.row(actor, stamp, note));
            steps.push((actor, stamp));
        }
        let title = "From launch to launch, the target and the signal grow apart";
        Some((Table::new(title, rows).shortened(), steps))
    }

    /// The contributions to a sum that does not take each once.
    pub(super) fn sum(&self, number: u32) -> Option<Shown> {
        for (actor, trace) in (0..).zip(&self.traces) {
            let rank = self.layout.actor(actor).rank;
            let (mut rows, mut steps, mut taken) = (Vec::new(), Vec::new(), Vec::new());
            for (at, step) in trace.steps.iter().enumerate() {
                let Act::Contribution { rect, first, last, own } = step.act else { continue };
                if step.number != number {
                    continue;
                }
                if first {
                    (rows, steps, taken) = (Vec::new(), Vec::new(), Vec::new());
                }
                let stamp = at as u32 + 1;
                let read = self.memory.reads(rect).iter();
                let read = read.copied().find(|read| (read.actor, read.stamp) == (actor, stamp));
                let region = &self.memory.rects[rect as usize];
                let (row, col) = (region.rows.start, region.cols.start);
                let write = read.and_then(|read| self.write_for(&read, row, col));
                let note = match write {
                    Some(write) => {
                        let from = u32::from(write.origin);
                        let again = taken.contains(&from);
                        taken.push(from);
                        let other = write.value.is_some_and(|value| value != own);
                        let own = from == rank;
                        let what = match (own, again, other) {
                            (true, ..) => ": the sum's own, twice",
                            (_, true, _) => ": again",
                            (_, _, true) => ": another value than the sum's own",
                            _ => "",
                        };
                        format!("from rank {from}{what}")
                    }
                    None => "from nobody".into(),
                };
                let faulty = note.contains(':') || note.ends_with("nobody");
                if faulty {
                    steps.push((actor, stamp));
                }
                rows.push(self.row(actor, stamp, note));
                if !last {
                    continue;
                }
                let mut others = (0..self.layout.launch.world).filter(|&other| other != rank);
                let left_out = others.find(|other| !taken.contains(other));
                if let Some(other) = left_out
                    && let Some(row) = rows.last_mut()
                {
                    row.note = format!("{}; none from rank {other}", row.note);
                    steps.push((actor, stamp));
                }
                if !steps.is_empty() {
                    let title = format!("What rank {rank} adds to its own contribution");
                    return Some((Table::new(title, rows), steps));
                }
            }
        }
        None
    }

    /// A put, and all that its actor does after it.
    pub(super) fn untold(&self, number: u32) -> Option<Shown> {
        for (write, _) in
            self.accesses().filter(|(access, write)| *write && access.number == number)
        {
            let rank = self.memory.rects[write.rect as usize].rank;
            let Actor { rank: own, exit, .. } = self.layout.actor(write.actor);
            let trace = &self.traces[write.actor as usize];
            let rest = write.stamp..trace.end(write.epoch);
            let exits = self.traces[exit as usize].launch(write.epoch);
            let rest = rest.map(|at| (write.actor, at + 1));
            let exits = exits.map(|at| (exit, at as u32 + 1));
            let raises =
                rest.chain(exits).filter_map(|(actor, stamp)| match self.step(actor, stamp).act {
                    Act::Raise { slot, .. } => {
                        Some((actor, stamp, self.layout.place_of_slot(slot).0))
                    }
                    _ => None,
                });
            let raises: Vec<(u32, u32, u32)> = raises.collect();
            if rank == own || raises.iter().any(|(.., on)| *on == rank) {
                continue;
            }
            let mut rows =
                vec![self.row(write.actor, write.stamp, format!("a put to rank {rank}"))];
            rows.extend(
                raises
                    .into_iter()
                    .map(|(actor, stamp, on)| self.row(actor, stamp, format!("tells rank {on}"))),
            );
            let text = format!("launch {} of this actor is over", write.epoch);
            let note = format!("rank {rank} has been told nothing");
            rows.push(self.event(write.actor, write.epoch, text, note));
            let title = "A put, and every signal that its actor raises after it";
            let steps = vec![(write.actor, write.stamp)];
            return Some((Table::new(title, rows), steps));
        }
        None
    }

    /// All raises of a slot that a statement sets.
    pub(super) fn raises(&self, number: u32) -> Option<Shown> {
        let of = |raise: &&Raise| self.step(raise.actor, raise.stamp).number == number;
        let by_actor = |slot: u32| {
            let all = self.history.of(slot);
            let sets = |actor, stamp| match self.step(actor, stamp).act {
                Act::Raise { sets, value, .. } => Some((sets, value)),
                _ => None,
            };
            let mut value = 0;
            all.iter().any(|raise| {
                let Some((true, to)) = sets(raise.actor, raise.stamp) else { return false };
                let falls_short = to <= value;
                value = raise.value;
                falls_short || raise.actor != all[0].actor
            })
        };
        let raises = self.played.run.raises.iter().filter(of);
        let raise = raises.into_iter().find(|raise| by_actor(raise.slot))?;
        let (mut rows, mut value) = (Vec::new(), 0);
        let mut steps = Vec::new();
        for raise in self.history.of(raise.slot) {
            let note = match self.step(raise.actor, raise.stamp).act {
                Act::Raise { sets: true, value: to, .. } if to <= value => {
                    steps.push((raise.actor, raise.stamp));
                    format!("is {value} already, and has to grow")
                }
                _ => format!("makes it {}", raise.value),
            };
            value = raise.value;
            rows.push(self.row(raise.actor, raise.stamp, note));
        }
        let title = "All raises of the slot; what is set has to grow, and one actor alone sets it";
        Some((Table::new(title, rows).shortened(), steps))
    }
}

/// The scope that a raise and a wait for it need.
fn needed(waits: u32, me: Actor, raises: u32, by: Actor) -> Scope {
    let engine = me.engine == Engine::CopyEngine || by.engine == Engine::CopyEngine;
    if waits == raises {
        Scope::Cta
    } else if me.rank != by.rank || engine {
        Scope::Sys
    } else {
        Scope::Gpu
    }
}
