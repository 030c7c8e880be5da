//! Runs one launch on all ranks, several times in a row: only who waits for whom.
//!
//! Actors are the CTAs and copy engines of all ranks, and the exits of their agents. The run is
//! greedy: an actor goes on until a signal it waits for is too small, and is woken by the raise
//! that makes it large enough. Cost is linear in waits and signals; memory holds the tables and
//! the signals.

use super::launch::{bodies, describe};
use super::{EPOCHS, Findings, deadlock};
use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Rule};
use crate::eval::{Action, AgentRun, Change, Event, Launch, RankView};
use crate::program::{AgentId, Engine, Program, SignalId, Stmt};
use crate::span::Span;
use crate::target::Target;
use std::collections::HashMap;
use std::ops::Range;

/// An actor of one rank: a CTA or a copy engine of an agent, or the agent's exit.
#[derive(Debug)]
pub(super) struct Actor<'a, 'p> {
    pub(super) rank: u32,
    pub(super) agent: AgentId,
    /// The CTA; `None` for the exit.
    pub(super) cta: Option<u32>,
    /// What is left of the launch at hand; `None` before it starts and after it ends.
    pub(super) run: Option<AgentRun<'a, 'p>>,
    pub(super) blocked: Option<Blocked<'p>>,
}

/// A wait that has not ended.
#[derive(Debug, Clone)]
pub(super) struct Blocked<'p> {
    pub(super) stmt: &'p Stmt,
    pub(super) signal: SignalId,
    /// The slots that have not been seen at the target.
    pub(super) slots: Range<u32>,
    pub(super) target: i64,
}

/// A rank's progress.
#[derive(Debug)]
pub(super) struct Progress {
    /// The launch at hand, from 1; `EPOCHS + 1` when all are over.
    pub(super) epoch: u32,
    /// The stage of the launch.
    stage: usize,
    /// Bodies of each agent that are not through.
    bodies: Vec<u32>,
    /// Agents of the stage that are not through, their exits included.
    agents: usize,
}

pub(super) struct Machine<'a, 'p> {
    pub(super) views: &'a [RankView<'p>],
    pub(super) program: &'p Program,
    pub(super) launch: Launch,
    pub(super) actors: Vec<Actor<'a, 'p>>,
    /// The actors of a rank: so many, and of each agent the first one's place among them.
    each: usize,
    first: Vec<usize>,
    /// The agents that start together, one stage of a launch behind the other.
    stages: Vec<Vec<AgentId>>,
    pub(super) ranks: Vec<Progress>,
    /// Every signal of every rank, and where each (rank, array) begins.
    pub(super) signals: Vec<u32>,
    bases: Vec<usize>,
    waiting: HashMap<usize, Vec<(i64, usize)>>,
    ready: Vec<usize>,
    /// Which actor sets a slot.
    setters: HashMap<usize, (usize, &'p Stmt)>,
    found: &'a mut Findings,
    before: usize,
}

impl<'a, 'p> Machine<'a, 'p> {
    /// `views` are those of all ranks of a launch.
    pub(super) fn new(views: &'a [RankView<'p>], found: &'a mut Findings) -> Self {
        let (program, launch) = (views[0].program, views[0].launch);
        let mut machine = Machine {
            views,
            program,
            launch,
            actors: Vec::new(),
            each: 0,
            first: Vec::new(),
            stages: stages(program),
            ranks: Vec::new(),
            signals: Vec::new(),
            bases: vec![0],
            waiting: HashMap::new(),
            ready: Vec::new(),
            setters: HashMap::new(),
            before: found.count,
            found,
        };
        machine.place_actors();
        let mut end = 0;
        for view in views {
            for signal in program.signals.handles() {
                end += view.signal_len(signal) as usize;
                machine.bases.push(end);
            }
        }
        machine.signals = vec![0; end];
        machine
    }

    fn place_actors(&mut self) {
        for rank in 0..self.launch.world {
            for (agent, entry) in self.program.agents.iter() {
                if rank == 0 {
                    self.first.push(self.actors.len());
                }
                let ctas = (0..bodies(entry, self.launch)).map(Some).chain([None]);
                let actors = ctas.map(|cta| Actor { rank, agent, cta, run: None, blocked: None });
                self.actors.extend(actors);
            }
            if rank == 0 {
                self.each = self.actors.len();
            }
            self.ranks.push(Progress { epoch: 0, stage: 0, bodies: Vec::new(), agents: 0 });
        }
    }

    /// Runs all launches and reports what is wrong with them.
    pub(super) fn run(mut self) {
        for rank in 0..self.ranks.len() {
            self.next_launch(rank);
        }
        while let Some(actor) = self.ready.pop() {
            self.advance(actor);
        }
        if self.found.count > self.before {
            return;
        }
        if self.actors.iter().any(|actor| actor.blocked.is_some()) {
            let found = deadlock::explain(&self);
            for (stmt, diagnostic) in found {
                self.found.once(diagnostic.rule, stmt, || diagnostic);
            }
        }
    }

    /// Position of a slot among all signals.
    pub(super) fn slot(&self, rank: u32, signal: SignalId, slot: u32) -> usize {
        self.bases[rank as usize * self.program.signals.len() + signal.index()] + slot as usize
    }

    fn actor(&self, rank: usize, agent: AgentId, cta: u32) -> usize {
        rank * self.each + self.first[agent.index()] + cta as usize
    }

    /// The exit of an agent.
    fn exit_actor(&self, rank: usize, agent: AgentId) -> usize {
        self.actor(rank, agent, bodies(&self.program.agents[agent], self.launch))
    }

    /// Whether an agent waits for others of its rank's launch to end before it starts.
    pub(super) fn is_to_start(&self, rank: usize, agent: AgentId) -> bool {
        self.stages.iter().skip(self.ranks[rank].stage + 1).any(|stage| stage.contains(&agent))
    }

    fn next_launch(&mut self, rank: usize) {
        let epoch = self.ranks[rank].epoch + 1;
        let agents = self.program.agents.values();
        let bodies = agents.map(|agent| bodies(agent, self.launch)).collect();
        self.ranks[rank] = Progress { epoch, stage: 0, bodies, agents: 0 };
        if epoch <= EPOCHS {
            self.start_stage(rank);
        }
    }

    fn start_stage(&mut self, rank: usize) {
        let Progress { epoch, stage, .. } = self.ranks[rank];
        let Some(agents) = self.stages.get(stage) else { return };
        self.ranks[rank].agents = agents.len();
        for &agent in agents {
            for cta in 0..bodies(&self.program.agents[agent], self.launch) {
                let actor = self.actor(rank, agent, cta);
                self.actors[actor].run = Some(self.views[rank].agent(agent, cta, epoch));
                self.ready.push(actor);
            }
        }
    }

    /// Runs an actor until it blocks or is through.
    fn advance(&mut self, index: usize) {
        if let Some(blocked) = self.actors[index].blocked.take()
            && !self.pass(index, blocked)
        {
            return;
        }
        let Some(mut run) = self.actors[index].run.take() else { return };
        loop {
            let event = run.next();
            if let Some(stmt) = run.take_escape() {
                self.escaped(index, stmt);
            }
            let Some(event) = event else { break };
            if !self.perform(index, event) {
                self.actors[index].run = Some(run);
                return;
            }
        }
        self.finish(index);
    }

    /// Whether the wait has ended. Where it has not, the actor is left waiting.
    fn pass(&mut self, index: usize, mut blocked: Blocked<'p>) -> bool {
        let rank = self.actors[index].rank;
        while let Some(slot) = blocked.slots.next() {
            let at = self.slot(rank, blocked.signal, slot);
            if i64::from(self.signals[at]) < blocked.target {
                blocked.slots.start = slot;
                self.waiting.entry(at).or_default().push((blocked.target, index));
                self.actors[index].blocked = Some(blocked);
                return false;
            }
        }
        true
    }

    fn finish(&mut self, index: usize) {
        let Actor { rank, agent, cta, .. } = self.actors[index];
        let at = rank as usize;
        if cta.is_some() {
            self.ranks[at].bodies[agent.index()] -= 1;
            if self.ranks[at].bodies[agent.index()] == 0 {
                let exit = self.exit_actor(at, agent);
                let epoch = self.ranks[at].epoch;
                self.actors[exit].run = Some(self.views[at].exit(agent, epoch));
                self.ready.push(exit);
            }
            return;
        }
        self.ranks[at].agents -= 1;
        if self.ranks[at].agents > 0 {
            return;
        }
        self.ranks[at].stage += 1;
        if self.ranks[at].stage < self.stages.len() {
            self.start_stage(at);
        } else {
            self.next_launch(at);
        }
    }

    /// Does what an event says; `false` where it is a wait that has not ended.
    fn perform(&mut self, index: usize, event: Event<'p>) -> bool {
        let (rank, stmt) = (self.actors[index].rank, event.stmt);
        match event.action {
            Action::Wait { signal, slots, target, scope: _ } => {
                let len = self.views[rank as usize].signal_len(signal);
                if slots.end > len && !slots.is_empty() {
                    let name = &self.program.signals[signal].name;
                    let fault = format!("waits for slots {slots:?} of `%{name}`, which has {len}");
                    self.fault(index, stmt, Rule::Bounds, &fault);
                    return true;
                }
                target <= 0 || self.pass(index, Blocked { stmt, signal, slots, target })
            }
            Action::Signal { rank, signal, slot, change, scope: _, after: _ } => {
                if let Err((rule, what)) = self.raise(index, stmt, (rank, signal, slot), change) {
                    self.fault(index, stmt, rule, &what);
                }
                true
            }
            Action::FenceProxyAsync
            | Action::Mainloop { .. }
            | Action::Store { .. }
            | Action::Sum { .. }
            | Action::Copy { .. } => true,
        }
    }

    fn raise(
        &mut self,
        index: usize,
        stmt: &'p Stmt,
        (rank, signal, slot): (u32, SignalId, u32),
        change: Change,
    ) -> Result<(), (Rule, String)> {
        let name = &self.program.signals[signal].name;
        let Some(view) = self.views.get(rank as usize) else {
            let fault = format!("raises `%{name}` on rank {rank}");
            return Err((Rule::Bounds, fault));
        };
        let len = view.signal_len(signal);
        if slot >= len {
            let fault = format!("raises slot {slot} of `%{name}`, which has {len}");
            return Err((Rule::Bounds, fault));
        }
        let at = self.slot(rank, signal, slot);
        let old = self.signals[at];
        let new = match change {
            Change::Add(count) => old.saturating_add(count),
            Change::Set(value) => {
                let setter = self.setters.entry(at).or_insert((index, stmt)).0;
                if value < old || setter != index {
                    let why = if setter == index {
                        format!(" to {value} when it is {old}")
                    } else {
                        let other = self.actors[setter].name(self.program);
                        format!(", as {other} does: their order is open")
                    };
                    let fault = format!("sets `%{name}[{slot}]` of rank {rank}{why}");
                    return Err((Rule::SignalNotMonotone, fault));
                }
                value
            }
        };
        if new > i32::MAX as u32 {
            let fault = format!("raises `%{name}[{slot}]` to {new}, beyond 31 bits");
            return Err((Rule::Bounds, fault));
        }
        self.signals[at] = new;
        if let Some(waiting) = self.waiting.get_mut(&at) {
            let ready = &mut self.ready;
            waiting.retain(|&(target, actor)| {
                let waits = target > i64::from(new);
                if !waits {
                    ready.push(actor);
                }
                waits
            });
            if waiting.is_empty() {
                self.waiting.remove(&at);
            }
        }
        Ok(())
    }

    fn escaped(&mut self, index: usize, stmt: &'p Stmt) {
        let what = "names an index that is negative, too large, or outside of its table or plane";
        self.fault(index, stmt, Rule::Bounds, what);
    }

    fn fault(&mut self, index: usize, stmt: &'p Stmt, rule: Rule, what: &str) {
        let actor = &self.actors[index];
        let (program, launch) = (self.program, self.launch);
        let epoch = self.ranks[actor.rank as usize].epoch;
        self.found.once(rule, stmt, || {
            Diagnostic::new(rule, stmt.span, format!("{} {what}", actor.name(program)))
                .note(Span::UNKNOWN, format!("{}, launch {epoch} of {EPOCHS}", describe(launch)))
        });
    }
}

impl Actor<'_, '_> {
    pub(super) fn name(&self, program: &Program) -> String {
        name(program, self.rank, self.agent, self.cta)
    }
}

/// `rank 1, cta 0 of gemm`, or the exit of it.
pub(super) fn name(program: &Program, rank: u32, agent: AgentId, cta: Option<u32>) -> String {
    let agent = &program.agents[agent];
    let what = match (cta, agent.engine) {
        (None, _) => "the exit".into(),
        (Some(cta), Engine::Ctas) => format!("cta {cta}"),
        (Some(_), Engine::CopyEngine) => "the copy engine".into(),
    };
    format!("rank {rank}, {what} of `{}`", agent.name)
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
