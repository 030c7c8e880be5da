//! Runs the traces of all ranks: only who waits for whom.
//!
//! The run is greedy: an actor goes on until a slot it waits for is too small, and is woken by
//! the raise that makes it large enough. Cost is linear in steps.

use super::launch::{bodies, describe};
use super::trace::{Act, Actor, ActorTrace, Layout};
use super::{Findings, deadlock};
use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Rule};
use crate::program::{AgentId, Completion, Op, Program};
use crate::span::Span;
use crate::target::Target;
use rustc_hash::FxHashMap;

/// A raise that happened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raise {
    pub(super) slot: u32,
    pub(super) actor: u32,
    /// Of the raise itself.
    pub(super) stamp: u32,
    /// Up to where the actor's puts and copies are performed when it happens: those that memory is mapped for.
    pub(super) performed: u32,
    /// Up to where the network has read what the actor puts.
    pub(super) flushed: u32,
    /// Whether it travels over the network, behind what the actor put to its rank.
    pub(super) delivers: bool,
    pub(super) epoch: u32,
    /// Its place among the actor's raises of this launch.
    pub(super) place: u32,
    /// The value the slot has then.
    pub(super) value: u32,
}

/// A complete run.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Every raise, in the order of the run.
    pub(super) raises: Vec<Raise>,
    /// Of each actor: from which step on it ran at which time. Times of actors differ.
    pub(super) segments: Vec<Vec<(u32, u32)>>,
}

/// A wait that has not ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocked {
    /// The first slot that has not been seen at the target.
    pub(super) slot: u32,
    pub(super) target: i32,
}

/// Where an actor is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cursor {
    /// Its next step.
    pub(super) next: u32,
    /// Up to which step it may go.
    end: u32,
    pub(super) blocked: Option<Blocked>,
    /// The stamp up to which its puts and copies are performed.
    performed: u32,
    /// The stamp up to which the network has read what it puts.
    flushed: u32,
    /// Raises it has done in the launch at hand.
    raised: u32,
}

/// A rank's progress.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// The launch at hand, from 1; one more than there are when all are over.
    pub(super) epoch: u32,
    /// The stage of the launch.
    stage: usize,
    /// Bodies of each agent that are not through.
    bodies: Vec<u32>,
    /// Agents of the stage that are not through, their exits included.
    agents: usize,
}

/// Which agents of a launch start when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// As on the target: on a GPU one copy engine behind the other, then the grid and those that
    /// wait for it.
    OfTarget,
    /// All together.
    Together,
}

/// How traces are run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Play<'l> {
    pub(super) start: Start,
    /// The stamp up to which each actor goes, where it is not the end.
    pub(super) limits: Option<&'l [u32]>,
    /// Whether to keep the order in which steps were done.
    pub(super) recorded: bool,
}

/// A run, complete or not.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) run: Run,
    /// Every step that was done, where they were recorded: actor and stamp.
    pub(super) order: Vec<(u32, u32)>,
    pub(super) cursors: Vec<Cursor>,
    pub(super) ranks: Vec<Progress>,
    /// The value of every slot.
    pub(super) slots: Vec<u32>,
    /// The agents that start together, one stage of a launch behind the other.
    stages: Vec<Vec<AgentId>>,
    misraised: Vec<Misraise>,
}

impl Played {
    /// The actors that wait for what does not come.
    pub(super) fn stuck(&self) -> Vec<u32> {
        let cursors = (0..).zip(&self.cursors);
        cursors.filter(|(_, cursor)| cursor.blocked.is_some()).map(|(actor, _)| actor).collect()
    }

    /// Whether an agent waits for others of its rank's launch to end before it starts.
    pub(super) fn is_to_start(&self, rank: u32, agent: AgentId) -> bool {
        let stage = self.ranks[rank as usize].stage;
        self.stages.iter().skip(stage + 1).any(|stage| stage.contains(&agent))
    }
}

/// A raise that breaks a rule of counters: who did it, at which step, in which launch.
#[derive(Debug)]
struct Misraise {
    actor: u32,
    step: u32,
    slot: u32,
    epoch: u32,
    wrong: Wrong,
}

#[derive(Debug)]
enum Wrong {
    /// Sets what is as large already.
    Sets { old: u32, value: u32 },
    /// Sets what this actor sets too.
    WithAnother(u32),
    /// Leaves 31 bits.
    Wraps { new: u32 },
}

/// Runs all launches; says what is wrong with them, or how they went.
pub(super) fn run(layout: &Layout<'_>, traces: &[ActorTrace], found: &mut Findings) -> Option<Run> {
    let before = found.count;
    let played =
        play(layout, traces, Play { start: Start::OfTarget, limits: None, recorded: false });
    for misraise in &played.misraised {
        report(layout, traces, misraise, found);
    }
    if found.count > before {
        return None;
    }
    if played.cursors.iter().all(|cursor| cursor.blocked.is_none()) {
        return Some(played.run);
    }
    for (stmt, diagnostic) in deadlock::explain(layout, traces, &played) {
        found.once(diagnostic.rule, stmt, || diagnostic);
    }
    None
}

/// Runs traces as far as they go.
pub(super) fn play(layout: &Layout<'_>, traces: &[ActorTrace], how: Play<'_>) -> Played {
    let run = Run { raises: Vec::new(), segments: vec![Vec::new(); layout.actors.len()] };
    let played = Played {
        run,
        order: Vec::new(),
        cursors: vec![Cursor::default(); layout.actors.len()],
        ranks: vec![Progress::default(); layout.launch.world as usize],
        slots: vec![0; layout.slot_count()],
        stages: stages(layout.program, how.start),
        misraised: Vec::new(),
    };
    let (waiting, setters) = (FxHashMap::default(), FxHashMap::default());
    let mut machine =
        Machine { layout, traces, how, waiting, ready: Vec::new(), setters, time: 0, played };
    for rank in 0..layout.launch.world {
        machine.next_launch(rank);
    }
    while let Some(actor) = machine.ready.pop() {
        machine.advance(actor);
    }
    machine.played
}

struct Machine<'a, 'p> {
    layout: &'a Layout<'p>,
    traces: &'a [ActorTrace],
    how: Play<'a>,
    /// By slot: who waits, and for what.
    waiting: FxHashMap<u32, Vec<(i32, u32)>>,
    ready: Vec<u32>,
    /// Which actor sets a slot.
    setters: FxHashMap<u32, u32>,
    time: u32,
    played: Played,
}

impl Machine<'_, '_> {
    fn next_launch(&mut self, rank: u32) {
        let epoch = self.played.ranks[rank as usize].epoch + 1;
        let agents = self.layout.program.agents.values();
        let bodies = agents.map(|agent| bodies(agent, self.layout.launch)).collect();
        self.played.ranks[rank as usize] = Progress { epoch, stage: 0, bodies, agents: 0 };
        if epoch <= self.layout.epochs {
            self.start_stage(rank);
        }
    }

    fn start_stage(&mut self, rank: u32) {
        let progress = &mut self.played.ranks[rank as usize];
        let Some(agents) = self.played.stages.get(progress.stage) else { return };
        progress.agents = agents.len();
        let epoch = progress.epoch;
        for agent in agents {
            for actor in self.layout.bodies(self.layout.exit(rank, *agent)) {
                start(&mut self.played.cursors, self.traces, self.how, actor, epoch);
                self.ready.push(actor);
            }
        }
    }

    /// Runs an actor until it blocks or is through.
    fn advance(&mut self, actor: u32) {
        let at = actor as usize;
        let (steps, mut next) = (&self.traces[at].steps, self.played.cursors[at].next);
        self.played.run.segments[at].push((next, self.time));
        self.time += 1;
        self.played.cursors[at].blocked = None;
        while next < self.played.cursors[at].end {
            match steps[next as usize].act {
                Act::Wait { slot, len, target } => {
                    let slots = &self.played.slots;
                    let short = (slot..slot + len)
                        .find(|&slot| i64::from(slots[slot as usize]) < target.into());
                    if let Some(slot) = short {
                        self.waiting.entry(slot).or_default().push((target, actor));
                        self.played.cursors[at].blocked = Some(Blocked { slot, target });
                        self.played.cursors[at].next = next;
                        return;
                    }
                }
                Act::Raise { slot, sets, value } => self.raise(actor, next, slot, sets, value),
                Act::Fence | Act::Read { .. } | Act::Contribution { .. } | Act::Write { .. } => {}
            }
            next += 1;
            if self.how.recorded {
                self.played.order.push((actor, next));
            }
        }
        self.played.cursors[at].next = next;
        self.finish(actor);
    }

    fn finish(&mut self, actor: u32) {
        let Actor { rank, agent, cta, exit, .. } = self.layout.actor(actor);
        let progress = &mut self.played.ranks[rank as usize];
        let epoch = progress.epoch;
        if self.played.cursors[actor as usize].next < self.traces[actor as usize].end(epoch) {
            // Stopped by its limit.
            return;
        }
        if cta.is_some() {
            progress.bodies[agent.index()] -= 1;
            if progress.bodies[agent.index()] == 0 {
                start(&mut self.played.cursors, self.traces, self.how, exit, epoch);
                self.ready.push(exit);
            }
            return;
        }
        progress.agents -= 1;
        if progress.agents > 0 {
            return;
        }
        progress.stage += 1;
        if progress.stage < self.played.stages.len() {
            self.start_stage(rank);
        } else {
            self.next_launch(rank);
        }
    }

    fn raise(&mut self, actor: u32, step: u32, slot: u32, sets: bool, value: u32) {
        let old = self.played.slots[slot as usize];
        let new = if sets { value.max(old) } else { old.saturating_add(value) };
        let epoch = self.played.ranks[self.layout.actor(actor).rank as usize].epoch;
        let setter = if sets { *self.setters.entry(slot).or_insert(actor) } else { actor };
        let wrong = if setter != actor {
            Some(Wrong::WithAnother(setter))
        } else if sets && value <= old {
            Some(Wrong::Sets { old, value })
        } else {
            (new > i32::MAX as u32).then_some(Wrong::Wraps { new })
        };
        self.played.misraised.extend(wrong.map(|wrong| Misraise {
            actor,
            step,
            slot,
            epoch,
            wrong,
        }));
        let trace = &self.traces[actor as usize];
        let stmt = self.layout.stmt(trace.steps[step as usize]);
        let stamp = step + 1;
        let cursor = &mut self.played.cursors[actor as usize];
        let mut delivers = false;
        if let Op::Signal { after, .. } = stmt.op {
            match after {
                Completion::Performed => cursor.performed = stamp,
                Completion::Read => cursor.flushed = stamp,
                Completion::Delivered => delivers = true,
            }
        }
        // What an earlier launch put is performed at its end, or has been read where it goes over the network.
        let start = trace.starts[epoch as usize - 1];
        let (performed, flushed) = (cursor.performed.max(start), cursor.flushed.max(start));
        let place = cursor.raised;
        cursor.raised += 1;
        let raise =
            Raise { slot, actor, stamp, performed, flushed, delivers, epoch, place, value: new };
        self.played.run.raises.push(raise);
        self.played.slots[slot as usize] = new;
        self.wake(slot, new);
    }

    fn wake(&mut self, slot: u32, value: u32) {
        let Some(waiting) = self.waiting.get_mut(&slot) else { return };
        let ready = &mut self.ready;
        waiting.retain(|&(target, actor)| {
            let waits = i64::from(target) > i64::from(value);
            if !waits {
                ready.push(actor);
            }
            waits
        });
        if waiting.is_empty() {
            self.waiting.remove(&slot);
        }
    }
}

/// Lets an actor go on to the end of launch `epoch`, or to its limit.
fn start(cursors: &mut [Cursor], traces: &[ActorTrace], how: Play<'_>, actor: u32, epoch: u32) {
    let limit = how.limits.map_or(u32::MAX, |limits| limits[actor as usize]);
    let cursor = &mut cursors[actor as usize];
    (cursor.end, cursor.raised) = (traces[actor as usize].end(epoch).min(limit), 0);
}

fn report(layout: &Layout<'_>, traces: &[ActorTrace], misraise: &Misraise, found: &mut Findings) {
    let Misraise { actor, step, slot, epoch, ref wrong } = *misraise;
    let stmt = layout.stmt(traces[actor as usize].steps[step as usize]);
    let (rule, verb, why) = match *wrong {
        Wrong::Sets { old, value } => {
            (Rule::SignalNotMonotone, "sets", format!(" to {value} when it is {old}"))
        }
        Wrong::WithAnother(setter) => {
            let setter = layout.name(setter);
            (Rule::SignalNotMonotone, "sets", format!(", as {setter} does: their order is open"))
        }
        Wrong::Wraps { new } => (Rule::CounterWrap, "raises", format!(" to {new}, beyond 31 bits")),
    };
    found.once(rule, stmt, || {
        let (rank, ..) = layout.place_of_slot(slot);
        let (name, slot) = (layout.name(actor), layout.slot_name(slot));
        Diagnostic::new(rule, stmt.span, format!("{name} {verb} `{slot}` of rank {rank}{why}"))
            .note(Span::UNKNOWN, moment(layout, epoch))
    });
}

/// Which launch of the run.
pub(super) fn moment(layout: &Layout<'_>, epoch: u32) -> String {
    format!("{}, launch {epoch} of {}", describe(layout.launch), layout.epochs)
}

/// Agents of a launch start together. On a GPU the host feeds the copy engines, one behind the
/// other, and does their waits before it launches the grid: a run in which they end first is one
/// of those that are possible, and the one that is hardest to end. Those that wait in their
/// stream are fed when the grid has been launched.
fn stages(program: &Program, start: Start) -> Vec<Vec<AgentId>> {
    let all: Vec<AgentId> = program.agents.handles().collect();
    match (program.target, start) {
        (Target::Host, _) | (_, Start::Together) => vec![all],
        (Target::Sm90a, Start::OfTarget) => {
            let beside = |&agent: &AgentId| program.beside_grid(&program.agents[agent]);
            let (grid, copies): (Vec<_>, Vec<_>) = all.into_iter().partition(beside);
            let copies = copies.into_iter().map(|agent| vec![agent]);
            copies.chain([grid]).filter(|stage| !stage.is_empty()).collect()
        }
    }
}
