//! Runs the traces of all ranks: only who waits for whom.
//!
//! The run is greedy: an actor goes on until a slot it waits for is too small, and is woken by
//! the raise that makes it large enough. Cost is linear in steps.

use super::launch::{bodies, describe};
use super::trace::{Act, Actor, ActorTrace, Layout};
use super::{Findings, deadlock};
use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Rule};
use crate::program::{AgentId, Completion, Engine, Op, Program};
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
    /// Up to where the actor's puts and copies are performed when it happens.
    pub(super) performed: u32,
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
    /// Up to which step it may go: the end of the launch at hand.
    pub(super) end: u32,
    pub(super) blocked: Option<Blocked>,
    /// The stamp up to which its puts and copies are performed.
    performed: u32,
    /// Raises it has done in the launch at hand.
    raised: u32,
}

impl Cursor {
    /// Lets the actor go on to the end of the next launch.
    fn start(&mut self, end: u32) {
        (self.end, self.raised) = (end, 0);
    }
}

/// A rank's progress.
#[derive(Debug, Default)]
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

pub(super) struct Machine<'a, 'p> {
    pub(super) layout: &'a Layout<'p>,
    pub(super) traces: &'a [ActorTrace],
    pub(super) cursors: Vec<Cursor>,
    /// The agents that start together, one stage of a launch behind the other.
    stages: Vec<Vec<AgentId>>,
    pub(super) ranks: Vec<Progress>,
    /// The value of every slot.
    pub(super) slots: Vec<u32>,
    waiting: FxHashMap<u32, Vec<(i32, u32)>>,
    ready: Vec<u32>,
    /// Which actor sets a slot.
    setters: FxHashMap<u32, u32>,
    run: Run,
    time: u32,
    found: &'a mut Findings,
    before: usize,
}

impl<'a, 'p> Machine<'a, 'p> {
    pub(super) fn new(
        layout: &'a Layout<'p>,
        traces: &'a [ActorTrace],
        found: &'a mut Findings,
    ) -> Self {
        let run = Run { raises: Vec::new(), segments: vec![Vec::new(); layout.actors.len()] };
        Machine {
            layout,
            traces,
            cursors: vec![Cursor::default(); layout.actors.len()],
            stages: stages(layout.program),
            ranks: (0..layout.launch.world).map(|_| Progress::default()).collect(),
            slots: vec![0; layout.slot_count()],
            waiting: FxHashMap::default(),
            ready: Vec::new(),
            setters: FxHashMap::default(),
            run,
            time: 0,
            before: found.count,
            found,
        }
    }

    /// Runs all launches; says what is wrong with them, or how they went.
    pub(super) fn run(mut self) -> Option<Run> {
        for rank in 0..self.layout.launch.world {
            self.next_launch(rank);
        }
        while let Some(actor) = self.ready.pop() {
            self.advance(actor);
        }
        if self.found.count > self.before {
            return None;
        }
        if self.cursors.iter().all(|cursor| cursor.blocked.is_none()) {
            return Some(self.run);
        }
        for (stmt, diagnostic) in deadlock::explain(&self) {
            self.found.once(diagnostic.rule, stmt, || diagnostic);
        }
        None
    }

    /// Whether an agent waits for others of its rank's launch to end before it starts.
    pub(super) fn is_to_start(&self, rank: u32, agent: AgentId) -> bool {
        let stage = self.ranks[rank as usize].stage;
        self.stages.iter().skip(stage + 1).any(|stage| stage.contains(&agent))
    }

    fn next_launch(&mut self, rank: u32) {
        let epoch = self.ranks[rank as usize].epoch + 1;
        let agents = self.layout.program.agents.values();
        let bodies = agents.map(|agent| bodies(agent, self.layout.launch)).collect();
        self.ranks[rank as usize] = Progress { epoch, stage: 0, bodies, agents: 0 };
        if epoch <= self.layout.epochs {
            self.start_stage(rank);
        }
    }

    fn start_stage(&mut self, rank: u32) {
        let progress = &mut self.ranks[rank as usize];
        let Some(agents) = self.stages.get(progress.stage) else { return };
        progress.agents = agents.len();
        let epoch = progress.epoch;
        for agent in agents {
            for actor in self.layout.bodies(self.layout.exit(rank, *agent)) {
                self.cursors[actor as usize].start(self.traces[actor as usize].end(epoch));
                self.ready.push(actor);
            }
        }
    }

    /// Runs an actor until it blocks or is through.
    fn advance(&mut self, actor: u32) {
        let at = actor as usize;
        let (steps, mut next) = (&self.traces[at].steps, self.cursors[at].next);
        self.run.segments[at].push((next, self.time));
        self.time += 1;
        self.cursors[at].blocked = None;
        while next < self.cursors[at].end {
            match steps[next as usize].act {
                Act::Wait { slot, len, target } => {
                    let short = (slot..slot + len)
                        .find(|&slot| i64::from(self.slots[slot as usize]) < target.into());
                    if let Some(slot) = short {
                        self.waiting.entry(slot).or_default().push((target, actor));
                        self.cursors[at].blocked = Some(Blocked { slot, target });
                        self.cursors[at].next = next;
                        return;
                    }
                }
                Act::Raise { slot, sets, value } => self.raise(actor, next, slot, sets, value),
                Act::Fence | Act::Read { .. } | Act::Contribution { .. } | Act::Write { .. } => {}
            }
            next += 1;
        }
        self.cursors[at].next = next;
        self.finish(actor);
    }

    fn finish(&mut self, actor: u32) {
        let Actor { rank, agent, cta, exit, .. } = self.layout.actor(actor);
        let progress = &mut self.ranks[rank as usize];
        if cta.is_some() {
            progress.bodies[agent.index()] -= 1;
            if progress.bodies[agent.index()] == 0 {
                self.cursors[exit as usize].start(self.traces[exit as usize].end(progress.epoch));
                self.ready.push(exit);
            }
            return;
        }
        progress.agents -= 1;
        if progress.agents > 0 {
            return;
        }
        progress.stage += 1;
        if progress.stage < self.stages.len() {
            self.start_stage(rank);
        } else {
            self.next_launch(rank);
        }
    }

    fn raise(&mut self, actor: u32, step: u32, slot: u32, sets: bool, value: u32) {
        let old = self.slots[slot as usize];
        let new = if sets { value } else { old.saturating_add(value) };
        if sets {
            let setter = *self.setters.entry(slot).or_insert(actor);
            if new <= old || setter != actor {
                let why = if setter == actor {
                    format!(" to {value} when it is {old}")
                } else {
                    format!(", as {} does: their order is open", self.layout.name(setter))
                };
                return self.fault(actor, step, Rule::SignalNotMonotone, "sets", slot, &why);
            }
        }
        if new > i32::MAX as u32 {
            let why = format!(" to {new}, beyond 31 bits");
            return self.fault(actor, step, Rule::CounterWrap, "raises", slot, &why);
        }
        let trace = &self.traces[actor as usize];
        let stmt = self.layout.stmt(trace.steps[step as usize]);
        let stamp = step + 1;
        let cursor = &mut self.cursors[actor as usize];
        if let Op::Signal { after: Completion::Performed, .. } = stmt.op {
            cursor.performed = stamp;
        }
        let epoch = self.ranks[self.layout.actor(actor).rank as usize].epoch;
        // What an earlier launch put is performed at its end.
        let performed = cursor.performed.max(trace.starts[epoch as usize - 1]);
        let place = cursor.raised;
        cursor.raised += 1;
        self.run.raises.push(Raise { slot, actor, stamp, performed, epoch, place, value: new });
        self.slots[slot as usize] = new;
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

    fn fault(&mut self, actor: u32, step: u32, rule: Rule, verb: &str, slot: u32, why: &str) {
        let layout = self.layout;
        let stmt = layout.stmt(self.traces[actor as usize].steps[step as usize]);
        let moment = moment(layout, self.ranks[layout.actor(actor).rank as usize].epoch);
        self.found.once(rule, stmt, || {
            let (rank, ..) = layout.place_of_slot(slot);
            let (name, slot) = (layout.name(actor), layout.slot_name(slot));
            Diagnostic::new(rule, stmt.span, format!("{name} {verb} `{slot}` of rank {rank}{why}"))
                .note(Span::UNKNOWN, moment)
        });
    }
}

/// Which launch of the run.
pub(super) fn moment(layout: &Layout<'_>, epoch: u32) -> String {
    format!("{}, launch {epoch} of {}", describe(layout.launch), layout.epochs)
}

/// Agents of a launch start together. On a GPU the host feeds the copy engines, one behind the
/// other, and does their waits before it launches the grid: a run in which they end first is one
/// of those that are possible, and the one that is hardest to end.
fn stages(program: &Program) -> Vec<Vec<AgentId>> {
    let all: Vec<AgentId> = program.agents.handles().collect();
    match program.target {
        Target::Host => vec![all],
        Target::Sm90a => {
            let on_host = |&agent: &AgentId| program.agents[agent].engine == Engine::CopyEngine;
            let (copies, ctas): (Vec<_>, Vec<_>) = all.into_iter().partition(on_host);
            let copies = copies.into_iter().map(|agent| vec![agent]);
            copies.chain([ctas]).filter(|stage| !stage.is_empty()).collect()
        }
    }
}
