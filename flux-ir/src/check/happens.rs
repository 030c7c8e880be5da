//! What has happened before a step, in every run.
//!
//! Waits are conjunctions: each stands for certain raises, all of which have happened when it
//! ends, in any run (`count-not-exact` refuses other waits). So a step happens before another in
//! every run exactly if a path of program order, ends of launches, and raise-to-wait edges
//! leads from the one to the other.
//!
//! [`Known`] holds how much of each actor is known at a step. The walk of an actor learns from
//! each raise that a wait of its own stands for, which decides nearly every question at once; what
//! it learns from the exits of grids is worked out once for all ([`super::ends`]); [`Past`] follows
//! all paths, for those that are left.

use super::grouped::Grouped;
use super::machine::Raise;
use super::memory::Access;
use super::network::Network;
use super::trace::{Act, Actor, ActorTrace, Layout};
use crate::eval::Region;
use crate::program::BufferId;

/// Raises by slot, in the order of the run.
#[derive(Debug)]
pub(super) struct History(Grouped<Raise>);

impl History {
    pub(super) fn new(slots: usize, raises: &[Raise]) -> Self {
        History(Grouped::new(slots, raises, |raise| raise.slot))
    }

    /// The raises of a slot.
    pub(super) fn of(&self, slot: u32) -> &[Raise] {
        self.0.of(slot)
    }

    /// How much a slot grows by the raises of launches behind `from`, up to `to`.
    pub(super) fn growth(&self, slot: u32, from: u32, to: u32) -> i64 {
        let mut before = 0;
        let steps = self.of(slot).iter().map(|raise| {
            let by = i64::from(raise.value) - i64::from(before);
            before = raise.value;
            if (from + 1..=to).contains(&raise.epoch) { by } else { 0 }
        });
        steps.sum()
    }

    /// The raises a wait stands for: the first whose sum reaches the target. A target that is
    /// not positive asks for none.
    pub(super) fn stands_for(&self, slot: u32, target: i32) -> &[Raise] {
        if target <= 0 {
            return &[];
        }
        let all = self.of(slot);
        let below = all.partition_point(|raise| i64::from(raise.value) < i64::from(target));
        &all[..all.len().min(below + 1)]
    }
}

/// How much of each actor is known.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// Stamps up to which steps have been issued, and sources read.
    issued: Vec<u32>,
    /// Stamps up to which puts and copies are performed.
    performed: Vec<u32>,
    /// By rank: the launch of which something is known; earlier ones are over.
    launches: Vec<u32>,
    /// What the network has done.
    network: Network,
}

impl Known {
    pub(super) fn nothing(layout: &Layout<'_>) -> Self {
        Known {
            issued: vec![0; layout.actors.len()],
            performed: vec![0; layout.actors.len()],
            launches: vec![0; layout.launch.world as usize],
            network: Network::default(),
        }
    }

    /// Learns that a raise has happened; says whether that is new.
    pub(super) fn learn(&mut self, layout: &Layout<'_>, raise: &Raise) -> bool {
        let Raise { actor, stamp, performed, epoch, .. } = *raise;
        let issued = raise_to(&mut self.issued[actor as usize], stamp);
        let performed = raise_to(&mut self.performed[actor as usize], performed);
        if issued {
            raise_to(&mut self.launches[layout.actor(actor).rank as usize], epoch);
        }
        let network = layout.networked && self.network.learn(layout, raise);
        issued || performed || network
    }

    /// Takes over what another knows of one actor.
    pub(super) fn copy(&mut self, layout: &Layout<'_>, actor: u32, from: &Known) {
        let (at, rank) = (actor as usize, layout.actor(actor).rank as usize);
        self.issued[at] = from.issued[at];
        self.performed[at] = from.performed[at];
        self.launches[rank] = from.launches[rank];
        self.network.copy(actor, &from.network);
    }

    /// Forgets one actor, and its rank.
    pub(super) fn forget(&mut self, layout: &Layout<'_>, actor: u32) {
        self.issued[actor as usize] = 0;
        self.performed[actor as usize] = 0;
        self.launches[layout.actor(actor).rank as usize] = 0;
        self.network.forget(actor);
    }

    /// Whether an access of another actor is known to be issued, and its source read.
    pub(super) fn has_issued(&self, scene: &Scene<'_, '_>, access: &Access) -> bool {
        if let Some(to) = scene.sent_to(access) {
            // The end of an actor waits until its sources have been read, and for nothing more.
            return match scene.is_read(access) {
                true => self.network.has_read(access, to) || self.has_ended(scene, access),
                false => self.network.has_delivered(access, to),
            };
        }
        self.issued[access.actor as usize] >= access.stamp || self.has_ended(scene, access)
    }

    /// Whether a write of another actor is known to be performed.
    pub(super) fn has_performed(&self, scene: &Scene<'_, '_>, access: &Access) -> bool {
        if let Some(to) = scene.sent_to(access) {
            return self.network.has_delivered(access, to);
        }
        self.performed[access.actor as usize] >= access.stamp || self.has_ended(scene, access)
    }

    /// Whether the body or the launch that an access is in is known to be over.
    fn has_ended(&self, scene: &Scene<'_, '_>, access: &Access) -> bool {
        let Actor { rank, cta, exit, .. } = scene.layout.actor(access.actor);
        if self.launches[rank as usize] != access.epoch {
            return self.launches[rank as usize] > access.epoch;
        }
        let exit = exit as usize;
        cta.is_some() && self.issued[exit] > scene.traces[exit].starts[access.epoch as usize - 1]
    }

    /// Whether a launch behind the one of an access is known to have begun on its rank.
    pub(super) fn is_later(&self, scene: &Scene<'_, '_>, access: &Access) -> bool {
        let rank = scene.layout.actor(access.actor).rank;
        self.launches[rank as usize] > access.epoch
    }

    /// Whether launch `epoch` of `rank` is known to have begun.
    pub(super) fn has_begun(&self, rank: u32, epoch: u32) -> bool {
        self.launches[rank as usize] >= epoch
    }
}

/// Raises `word` to `value`; says whether that changed it.
fn raise_to(word: &mut u32, value: u32) -> bool {
    let grows = *word < value;
    *word = (*word).max(value);
    grows
}

/// A run that ended, as the questions about it need it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene<'a, 'p> {
    pub(super) layout: &'a Layout<'p>,
    pub(super) traces: &'a [ActorTrace],
    pub(super) history: &'a History,
    pub(super) rects: &'a [Region],
    /// Whether data that carry their own flag count as raises and waits; where not, `history` lacks them.
    pub(super) carried: bool,
}

impl Scene<'_, '_> {
    /// Whether data stand for a slot, and they do not count.
    pub(super) fn leaves_out(&self, slot: u32) -> bool {
        !self.carried && self.layout.is_carried(slot)
    }

    /// Whether data of `buffer` carry their own flag, and no signal stands for them.
    pub(super) fn orders_itself(&self, buffer: BufferId) -> bool {
        !self.carried && self.layout.program.is_flagged(buffer)
    }
}

/// Everything that happened before some steps, along all paths.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) known: Known,
    /// By actor: the stamp up to which its waits have been followed.
    followed: Vec<u32>,
    /// By slot: how many of its first raises have been followed. What waits stand for are first raises,
    /// more of them or fewer.
    raised: Vec<u32>,
    /// By rank: the launch up to which all actors have been followed.
    over: Vec<u32>,
    work: Vec<(u32, u32, u32)>,
    /// Steps followed, and words made, since the last call of [`Past::extend`].
    cost: u64,
}

impl Past {
    pub(super) fn new(layout: &Layout<'_>) -> Self {
        Past {
            known: Known::nothing(layout),
            followed: vec![0; layout.actors.len()],
            raised: vec![0; layout.slot_count()],
            over: vec![0; layout.launch.world as usize],
            work: Vec::new(),
            cost: layout.actors.len() as u64,
        }
    }

    /// Adds what happened before stamp `upto` of `actor`, which is in launch `epoch`. Returns
    /// how many steps that took.
    pub(super) fn extend(
        &mut self,
        scene: &Scene<'_, '_>,
        actor: u32,
        upto: u32,
        epoch: u32,
    ) -> u64 {
        self.work.push((actor, upto, epoch));
        while let Some((actor, upto, epoch)) = self.work.pop() {
            self.follow(scene, actor, upto, epoch);
        }
        std::mem::take(&mut self.cost)
    }

    /// Adds everything in launches of `rank` up to number `epoch`.
    pub(super) fn complete(&mut self, scene: &Scene<'_, '_>, rank: u32, epoch: u32) {
        if raise_to(&mut self.over[rank as usize], epoch) {
            raise_to(&mut self.known.launches[rank as usize], epoch + 1);
            for actor in scene.layout.of_rank(rank) {
                self.work.push((actor, scene.traces[actor as usize].end(epoch), epoch));
            }
        }
        while let Some((actor, upto, epoch)) = self.work.pop() {
            self.follow(scene, actor, upto, epoch);
        }
    }

    fn follow(&mut self, scene: &Scene<'_, '_>, actor: u32, upto: u32, epoch: u32) {
        let layout = scene.layout;
        let Actor { rank, cta, .. } = layout.actor(actor);
        if epoch > 1 && raise_to(&mut self.over[rank as usize], epoch - 1) {
            raise_to(&mut self.known.launches[rank as usize], epoch);
            for actor in layout.of_rank(rank) {
                self.work.push((actor, scene.traces[actor as usize].end(epoch - 1), epoch - 1));
            }
        }
        if cta.is_none() && upto > scene.traces[actor as usize].starts[epoch as usize - 1] {
            for body in layout.bodies(actor) {
                self.work.push((body, scene.traces[body as usize].end(epoch), epoch));
            }
        }
        let from = self.followed[actor as usize];
        if from >= upto {
            return;
        }
        self.followed[actor as usize] = upto;
        self.cost += u64::from(upto - from);
        for step in &scene.traces[actor as usize].steps[from as usize..upto as usize] {
            let Act::Wait { slot, len, target } = step.act else { continue };
            for slot in slot..slot + len {
                let raises = scene.history.stands_for(slot, target);
                let known = &mut self.raised[slot as usize];
                let new = raises.get(*known as usize..).unwrap_or_default();
                *known = (*known).max(raises.len() as u32);
                self.cost += 1 + new.len() as u64;
                for raise in new {
                    self.known.learn(layout, raise);
                    self.work.push((raise.actor, raise.stamp, raise.epoch));
                }
            }
        }
    }
}
