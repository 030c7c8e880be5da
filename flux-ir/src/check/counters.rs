//! Counters that several actors raise, and the waits for them.
//!
//! A wait stands for the first raises of its slot whose sum is the target. Where one actor raises
//! a slot, those come first in every run. Where several do, that is to be shown.

use super::happens::Scene;
use super::machine::Raise;
use super::memory::Access;
use super::trace::{Act, Layout};
use rustc_hash::FxHashMap;

/// A counter that several actors raise.
#[derive(Debug, Default)]
pub(super) struct Counter {
    /// Its targets, ascending.
    pub(super) levels: Vec<Level>,
    /// The place of each raise, by actor and stamp, in the order of the run.
    pub(super) places: FxHashMap<(u32, u32), usize>,
}

/// A target of waits for a counter.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) target: i32,
    /// How many raises, the first of the run, it stands for.
    pub(super) members: usize,
    /// The groups these raises are of.
    pub(super) groups: Vec<Group>,
    pub(super) waits: Vec<Access>,
}

/// What the actors of one agent did in one launch of a rank: named by the agent's exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Group {
    pub(super) exit: u32,
    pub(super) epoch: u32,
}

impl Group {
    pub(super) fn of(layout: &Layout<'_>, raise: &Raise) -> Self {
        Group { exit: layout.actor(raise.actor).exit, epoch: raise.epoch }
    }
}

/// Every counter that several actors raise, by slot.
#[derive(Debug, Default)]
pub(super) struct Counters {
    slots: FxHashMap<u32, Counter>,
}

impl Counters {
    /// Collects counters and waits of a run.
    pub(super) fn new(scene: &Scene<'_, '_>) -> Self {
        let mut slots = FxHashMap::default();
        for slot in 0..scene.layout.slot_count() as u32 {
            let raises = scene.history.of(slot);
            if raises.iter().any(|raise| raise.actor != raises[0].actor) {
                let places = raises.iter().enumerate();
                let places = places.map(|(at, raise)| ((raise.actor, raise.stamp), at)).collect();
                slots.insert(slot, Counter { levels: Vec::new(), places });
            }
        }
        if slots.is_empty() {
            return Counters { slots };
        }
        let mut waits: FxHashMap<(u32, i32), Vec<Access>> = FxHashMap::default();
        for (actor, trace) in (0..).zip(scene.traces) {
            for epoch in 1..=scene.layout.epochs {
                for at in trace.launch(epoch) {
                    let Act::Wait { slot, len, target } = trace.steps[at].act else { continue };
                    let number = trace.steps[at].number;
                    for slot in (slot..slot + len).filter(|slot| slots.contains_key(slot)) {
                        let wait = Access::point(actor, at as u32 + 1, epoch, number);
                        waits.entry((slot, target)).or_default().push(wait);
                    }
                }
            }
        }
        for ((slot, target), waits) in waits {
            let members = scene.history.stands_for(slot, target);
            let mut groups: Vec<Group> =
                members.iter().map(|member| Group::of(scene.layout, member)).collect();
            groups.sort_unstable_by_key(|group| (group.exit, group.epoch));
            groups.dedup();
            let level = Level { target, members: members.len(), groups, waits };
            if let Some(counter) = slots.get_mut(&slot) {
                counter.levels.push(level);
            }
        }
        for counter in slots.values_mut() {
            counter.levels.sort_unstable_by_key(|level| level.target);
        }
        Counters { slots }
    }

    pub(super) fn of(&self, slot: u32) -> Option<&Counter> {
        self.slots.get(&slot)
    }
}
