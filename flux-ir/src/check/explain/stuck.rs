//! Why a run got stuck: the shortest cycle of actors that wait for each other, or all raises that
//! a wait which never ends could count on.

use super::super::machine::Blocked;
use super::super::trace::{Act, Actor};
use super::stage::Stage;
use super::table::{Row, Table};
use rustc_hash::{FxHashMap, FxHashSet};

/// Actors from which a cycle is looked for, at most.
const MOST_STARTS: usize = 1024;

/// A raise that has not happened, and what it stands behind.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    actor: u32,
    stamp: u32,
    epoch: u32,
    /// The stuck actor that has to go on first.
    behind: u32,
    why: Why,
}

#[derive(Debug, Clone, Copy)]
enum Why {
    /// The actor itself is stuck before it.
    Own,
    /// It stands in the exit of an agent of which a body is stuck.
    Exit,
    /// The agent starts once another has ended.
    Start,
    /// It stands in a later launch.
    Launch,
}

impl Stage<'_> {
    /// The shortest cycle of a run that is stuck.
    pub(super) fn cycle(&self) -> Option<(Table, Vec<(u32, u32)>)> {
        let stuck = self.played.stuck();
        let ahead = self.ahead(&stuck);
        let mut cycle: Option<Vec<(u32, Ahead)>> = None;
        for &actor in stuck.iter().take(MOST_STARTS) {
            let most = cycle.as_ref().map_or(usize::MAX, Vec::len);
            if most <= 2 {
                break;
            }
            cycle = self.cycle_from(actor, &ahead, most - 1).or(cycle);
        }
        let cycle = cycle?;
        let (mut rows, mut steps) = (Vec::new(), Vec::new());
        for (actor, ahead) in &cycle {
            let (row, stamp) = self.blocked_row(*actor);
            rows.push(row);
            steps.push((*actor, stamp));
            let behind = self.actor_name(ahead.behind);
            let rank = self.layout.actor(ahead.behind).rank;
            let why = match ahead.why {
                Why::Own => "not reached: it stands behind the wait of this actor".to_owned(),
                Why::Exit => format!("not reached: the exit begins when {behind} is through"),
                Why::Start => format!("not reached: the agent starts when {behind} is through"),
                Why::Launch => {
                    format!("not reached: {behind} of rank {rank} has to end its launch first")
                }
            };
            rows.push(self.row(ahead.actor, ahead.stamp, why));
            steps.push((ahead.actor, ahead.stamp));
        }
        if let Some((actor, _)) = cycle.first() {
            let (row, _) = self.blocked_row(*actor);
            rows.push(Row { note: "the first wait again: nobody can go on".into(), ..row });
        }
        let waits = cycle.len();
        let title = match waits {
            1 => "An actor waits for what stands behind its own wait".to_owned(),
            _ => format!(
                "{waits} actors wait for each other; each raise below is the one above it waits for"
            ),
        };
        Some((Table::new(title, rows).cut(), steps))
    }

    /// The row of the wait an actor is stuck at, and its stamp.
    fn blocked_row(&self, actor: u32) -> (Row, u32) {
        let place = self.played.cursors[actor as usize];
        let stamp = place.next + 1;
        let note = match place.blocked {
            Some(Blocked { slot, target }) => {
                let seen = self.played.slots[slot as usize];
                format!("stuck: {} is {seen}, wants {target}", self.layout.slot_name(slot))
            }
            None => String::new(),
        };
        (self.row(actor, stamp, note), stamp)
    }

    /// The shortest way from an actor's wait back to it, over `most` waits at most.
    fn cycle_from(
        &self,
        from: u32,
        pending: &FxHashMap<u32, Vec<Ahead>>,
        most: usize,
    ) -> Option<Vec<(u32, Ahead)>> {
        // How each actor was come to, and over how many waits.
        let mut came: Vec<(u32, Option<usize>, Option<Ahead>, usize)> = vec![(from, None, None, 1)];
        let mut known = FxHashSet::from_iter([from]);
        let mut at = 0;
        while let Some(&(actor, _, _, waits)) = came.get(at).filter(|(.., waits)| *waits <= most) {
            for &ahead in self.needed(actor, pending) {
                if ahead.behind == from {
                    let mut cycle = vec![(actor, ahead)];
                    let mut place = at;
                    while let (_, Some(before), Some(ahead), _) = came[place] {
                        cycle.push((came[before].0, ahead));
                        place = before;
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                if known.insert(ahead.behind) {
                    came.push((ahead.behind, Some(at), Some(ahead), waits + 1));
                }
            }
            at += 1;
        }
        None
    }

    /// The raises that a stuck actor needs, by what they stand behind: of launches up to its own
    /// where there are some.
    fn needed<'a>(
        &self,
        actor: u32,
        pending: &'a FxHashMap<u32, Vec<Ahead>>,
    ) -> impl Iterator<Item = &'a Ahead> + use<'a> {
        let slot = self.played.cursors[actor as usize].blocked.map(|blocked| blocked.slot);
        let ahead = slot.and_then(|slot| pending.get(&slot)).map_or(&[][..], Vec::as_slice);
        let epoch = self.played.ranks[self.layout.actor(actor).rank as usize].epoch;
        let any = ahead.iter().any(|ahead| ahead.epoch <= epoch);
        ahead.iter().filter(move |ahead| !any || ahead.epoch <= epoch)
    }

    /// By slot: the first raise of each actor that has not happened, once for each stuck actor it
    /// stands behind.
    fn ahead(&self, stuck: &[u32]) -> FxHashMap<u32, Vec<Ahead>> {
        let slots = stuck.iter().filter_map(|&actor| self.played.cursors[actor as usize].blocked);
        let mut found: FxHashMap<u32, Vec<Ahead>> =
            slots.map(|blocked| (blocked.slot, Vec::new())).collect();
        for (actor, trace) in (0..).zip(&self.traces) {
            let Actor { rank, agent, cta, exit, .. } = self.layout.actor(actor);
            let (place, now) =
                (self.played.cursors[actor as usize], &self.played.ranks[rank as usize]);
            let of_rank = self.layout.of_rank(rank);
            let here: Vec<u32> =
                stuck.iter().copied().filter(|actor| of_rank.contains(actor)).collect();
            let bodies = self.layout.bodies(exit);
            let mut raised = FxHashSet::default();
            for (at, step) in trace.steps.iter().enumerate().skip(place.next as usize) {
                let Act::Raise { slot, .. } = step.act else { continue };
                let Some(ahead) = found.get_mut(&slot).filter(|_| raised.insert(slot)) else {
                    continue;
                };
                let stamp = at as u32 + 1;
                let epoch = self.epoch(actor, stamp);
                let (why, behind): (Why, Vec<u32>) = if epoch > now.epoch {
                    (Why::Launch, here.clone())
                } else if place.blocked.is_some() {
                    (Why::Own, vec![actor])
                } else if self.played.is_to_start(rank, agent) {
                    (Why::Start, here.clone())
                } else if cta.is_none() {
                    let of_agent = here.iter().copied().filter(|body| bodies.contains(body));
                    (Why::Exit, of_agent.collect())
                } else {
                    continue;
                };
                let each = behind.into_iter();
                ahead.extend(each.map(|behind| Ahead { actor, stamp, epoch, behind, why }));
            }
        }
        found
    }

    /// All raises that a wait which never ends could count on; `number` is its statement.
    pub(super) fn starved(&self, number: u32) -> Option<(Table, Vec<(u32, u32)>)> {
        let waits = |actor: &u32| {
            let next = self.played.cursors[*actor as usize].next;
            self.step(*actor, next + 1).number == number
        };
        let actor = self.played.stuck().into_iter().find(waits)?;
        let Blocked { slot, target } = self.played.cursors[actor as usize].blocked?;
        let rank = self.layout.actor(actor).rank;
        let epoch = self.played.ranks[rank as usize].epoch;
        let (mut rows, mut steps) = (Vec::new(), Vec::new());
        for raise in self.history.of(slot) {
            let note = format!("makes it {}", raise.value);
            rows.push(self.row(raise.actor, raise.stamp, note));
            steps.push((raise.actor, raise.stamp));
        }
        let mut value = i64::from(self.played.slots[slot as usize]);
        for (raiser, trace) in (0..).zip(&self.traces) {
            let next = self.played.cursors[raiser as usize].next;
            for (at, step) in trace.steps.iter().enumerate().skip(next as usize) {
                let Act::Raise { slot: of, sets, value: by } = step.act else { continue };
                let stamp = at as u32 + 1;
                if of == slot && self.epoch(raiser, stamp) <= epoch {
                    value = if sets { value.max(by.into()) } else { value + i64::from(by) };
                    rows.push(self.row(raiser, stamp, format!("to come, makes it {value}")));
                    steps.push((raiser, stamp));
                }
            }
        }
        let (row, stamp) = self.blocked_row(actor);
        steps.push((actor, stamp));
        let raised = rows.len();
        rows.push(Row { note: format!("waits forever: {value} of {target}"), ..row });
        let title = match raised {
            0 => "Nothing raises what is waited for".to_owned(),
            1 => "One raise is all there is, up to this launch".to_owned(),
            _ => format!("{raised} raises are all there is, up to this launch"),
        };
        Some((Table::new(title, rows).shortened(), steps))
    }
}
