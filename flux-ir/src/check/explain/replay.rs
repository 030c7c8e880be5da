//! Runs a launch again, as far as one likes: with the order in which everything happened, and
//! where it got stuck.

use super::super::launch::bodies;
use super::super::machine::{Raise, Run};
use super::super::trace::{Act, Actor, ActorTrace, Layout};
use crate::arena::Handle;
use crate::program::{AgentId, Completion, Engine, Op};
use crate::target::Target;

/// Where an actor is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    /// Its next step.
    pub(super) next: u32,
    /// Up to which step the launch at hand goes.
    end: u32,
    /// The slot it waits for, and the value it wants.
    pub(super) blocked: Option<(u32, i32)>,
    /// It has begun the launch at hand, and has not ended it.
    active: bool,
    performed: u32,
    /// Raises it has done in the launch at hand.
    raised: u32,
}

/// A rank's progress.
#[derive(Debug, Clone, Default)]
pub(super) struct Rank {
    /// The launch at hand, from 1; one more than there are when all are over.
    pub(super) epoch: u32,
    /// By agent: bodies of the launch at hand that are not through; `None` before they start.
    left: Vec<Option<u32>>,
    /// Agents that are not through, their exits included.
    agents: usize,
}

/// A run, complete or not.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) run: Run,
    /// Every step that was done: actor and stamp.
    pub(super) order: Vec<(u32, u32)>,
    pub(super) places: Vec<Place>,
    pub(super) ranks: Vec<Rank>,
    pub(super) slots: Vec<u32>,
}

impl Replay {
    /// The actors that wait for what does not come.
    pub(super) fn stuck(&self) -> Vec<u32> {
        let places = (0..).zip(&self.places);
        places.filter(|(_, place)| place.blocked.is_some()).map(|(actor, _)| actor).collect()
    }

    /// Whether an agent of the launch at hand has not started.
    pub(super) fn is_to_start(&self, rank: u32, agent: AgentId) -> bool {
        self.ranks[rank as usize].left.get(agent.index()).is_some_and(Option::is_none)
    }
}

/// Which agents of a launch start when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// As on the target: on a GPU one copy engine behind the other, then the grid.
    OfTarget,
    /// All together.
    Together,
}

/// Runs the actors, each up to its stamp in `limits` where there are some.
pub(super) fn replay(
    layout: &Layout<'_>,
    traces: &[ActorTrace],
    start: Start,
    limits: Option<&[u32]>,
) -> Replay {
    let mut player = Player {
        layout,
        traces,
        limits,
        staged: start == Start::OfTarget && layout.program.target == Target::Sm90a,
        ready: Vec::new(),
        waiting: vec![Vec::new(); layout.slot_count()],
        time: 0,
        replay: Replay {
            run: Run { raises: Vec::new(), segments: vec![Vec::new(); layout.actors.len()] },
            order: Vec::new(),
            places: vec![Place::default(); layout.actors.len()],
            ranks: vec![Rank::default(); layout.launch.world as usize],
            slots: vec![0; layout.slot_count()],
        },
    };
    (0..layout.launch.world).for_each(|rank| player.next_launch(rank));
    while let Some(actor) = player.ready.pop() {
        player.advance(actor);
    }
    player.replay
}

struct Player<'a, 'p> {
    layout: &'a Layout<'p>,
    traces: &'a [ActorTrace],
    limits: Option<&'a [u32]>,
    staged: bool,
    ready: Vec<u32>,
    /// By slot: who waits, and for what.
    waiting: Vec<Vec<(i32, u32)>>,
    time: u32,
    replay: Replay,
}

impl Player<'_, '_> {
    fn next_launch(&mut self, rank: u32) {
        let agents = self.layout.program.agents.len();
        let progress = &mut self.replay.ranks[rank as usize];
        progress.epoch += 1;
        progress.left = vec![None; agents];
        progress.agents = agents;
        if progress.epoch <= self.layout.epochs {
            self.start(rank);
        }
    }

    /// Starts the agents that wait for no other to end.
    fn start(&mut self, rank: u32) {
        let program = self.layout.program;
        for ((agent, entry), index) in program.agents.iter().zip(0..) {
            let progress = &self.replay.ranks[rank as usize];
            let before = program.agents.values().zip(&progress.left).enumerate();
            let held = self.staged
                && before.into_iter().any(|(other, (agent, left))| {
                    let ahead = entry.engine == Engine::Ctas || other < index;
                    agent.engine == Engine::CopyEngine && ahead && other != index && !ended(left)
                });
            if held || progress.left[index].is_some() {
                continue;
            }
            let epoch = progress.epoch;
            let count = bodies(entry, self.layout.launch);
            self.replay.ranks[rank as usize].left[index] = Some(count);
            for actor in self.layout.bodies(self.layout.exit(rank, agent)) {
                self.enter(actor, epoch);
            }
        }
    }

    fn enter(&mut self, actor: u32, epoch: u32) {
        let trace = &self.traces[actor as usize];
        let limit = self.limits.map_or(u32::MAX, |limits| limits[actor as usize]);
        let place = &mut self.replay.places[actor as usize];
        place.end = trace.end(epoch).min(limit);
        place.raised = 0;
        place.active = true;
        self.ready.push(actor);
    }

    fn advance(&mut self, actor: u32) {
        let at = actor as usize;
        let steps = &self.traces[at].steps;
        let mut next = self.replay.places[at].next;
        self.replay.run.segments[at].push((next, self.time));
        self.time += 1;
        self.replay.places[at].blocked = None;
        while next < self.replay.places[at].end {
            match steps[next as usize].act {
                Act::Wait { slot, len, target } => {
                    let slots = &self.replay.slots;
                    let short = (slot..slot + len)
                        .find(|&slot| i64::from(slots[slot as usize]) < target.into());
                    if let Some(slot) = short {
                        self.waiting[slot as usize].push((target, actor));
                        self.replay.places[at].blocked = Some((slot, target));
                        self.replay.places[at].next = next;
                        return;
                    }
                }
                Act::Raise { slot, sets, value } => self.raise(actor, next, slot, sets, value),
                Act::Fence | Act::Read { .. } | Act::Contribution { .. } | Act::Write { .. } => {}
            }
            next += 1;
            self.replay.order.push((actor, next));
        }
        self.replay.places[at].next = next;
        self.finish(actor);
    }

    fn raise(&mut self, actor: u32, step: u32, slot: u32, sets: bool, value: u32) {
        let old = self.replay.slots[slot as usize];
        let new = if sets { value.max(old) } else { old.saturating_add(value) };
        let trace = &self.traces[actor as usize];
        let (stamp, stmt) = (step + 1, self.layout.stmt(trace.steps[step as usize]));
        let epoch = self.replay.ranks[self.layout.actor(actor).rank as usize].epoch;
        let place = &mut self.replay.places[actor as usize];
        if let Op::Signal { after: Completion::Performed, .. } = stmt.op {
            place.performed = stamp;
        }
        // What an earlier launch put is performed at its end.
        let performed = place.performed.max(trace.starts[epoch as usize - 1]);
        let nth = place.raised;
        place.raised += 1;
        self.replay.run.raises.push(Raise {
            slot,
            actor,
            stamp,
            performed,
            epoch,
            place: nth,
            value: new,
        });
        self.replay.slots[slot as usize] = new;
        let ready = &mut self.ready;
        self.waiting[slot as usize].retain(|&(target, actor)| {
            let waits = i64::from(target) > i64::from(new);
            if !waits {
                ready.push(actor);
            }
            waits
        });
    }

    fn finish(&mut self, actor: u32) {
        let Actor { rank, agent, cta, exit, .. } = self.layout.actor(actor);
        let epoch = self.replay.ranks[rank as usize].epoch;
        let place = &mut self.replay.places[actor as usize];
        if !place.active || place.next < self.traces[actor as usize].end(epoch) {
            return;
        }
        place.active = false;
        let progress = &mut self.replay.ranks[rank as usize];
        if cta.is_some() {
            let Some(left) = &mut progress.left[agent.index()] else { return };
            *left -= 1;
            if *left == 0 {
                self.enter(exit, epoch);
            }
            return;
        }
        // One that has ended is marked by a number no agent has bodies for.
        progress.left[agent.index()] = Some(u32::MAX);
        progress.agents -= 1;
        if progress.agents == 0 {
            self.next_launch(rank);
        } else {
            self.start(rank);
        }
    }
}

fn ended(left: &Option<u32>) -> bool {
    *left == Some(u32::MAX)
}
