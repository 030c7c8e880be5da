//! What the actors of a launch do, in a few words a step: the form in which a run is decided.
//!
//! Agents are walked once, launch by launch; what is left of a walk are waits, raises, fences and
//! accesses to memory that ranks share. An **actor** is one body of an agent on one rank, or the
//! agent's exit; its steps of all launches stand in one list, and a **stamp** is a position in
//! that list, from 1 (0 is before everything).

use super::launch::bodies;
use crate::arena::Handle;
use crate::eval::{Launch, RankView};
use crate::program::{AgentId, At, Engine, Op, Program, SignalId, Stmt, ValueId};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// How an access reaches memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Proxy {
    /// By ordinary loads and stores, or by a copy engine.
    #[default]
    Generic,
    /// By bulk (TMA) accesses, which acquires do not order.
    Async,
}

impl Proxy {
    /// How copies reach memory.
    pub(super) fn of_copies(engine: Engine) -> Proxy {
        match engine {
            Engine::CopyEngine | Engine::Ctas | Engine::CopyWarps => Proxy::Generic,
            Engine::Tma => Proxy::Async,
        }
    }
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Blocks until each of `len` slots from `slot` has reached `target`.
    Wait { slot: u32, len: u32, target: i32 },
    /// Orders what was acquired before bulk reads that follow.
    Fence,
    /// Adds to a slot, or sets it.
    Raise { slot: u32, sets: bool, value: u32 },
    /// Reads a rectangle.
    Read { rect: u32, proxy: Proxy },
    /// Reads a contribution to a sum; the first of the sum has `first`.
    Contribution { rect: u32, own: ValueId, first: bool, last: bool },
    /// Writes a rectangle: `value` is what a store writes, a copy has none. `origin` is the rank
    /// the data comes from.
    Write { rect: u32, value: Option<ValueId>, origin: u16 },
}

/// A step, and the statement it comes from by its number in the Program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) number: u32,
    pub(super) act: Act,
}

/// The steps of one actor in all launches.
#[derive(Debug, Default, Clone)]
pub(super) struct ActorTrace {
    pub(super) steps: Vec<Step>,
    /// Where each launch begins; one more at the end.
    pub(super) starts: Vec<u32>,
}

impl ActorTrace {
    /// The steps of launch `epoch`, by position.
    pub(super) fn launch(&self, epoch: u32) -> Range<usize> {
        self.starts[epoch as usize - 1] as usize..self.starts[epoch as usize] as usize
    }

    /// The waits of launch `epoch`: each step, its slots and its target.
    pub(super) fn waits(&self, epoch: u32) -> impl Iterator<Item = (Step, Range<u32>, i32)> + '_ {
        self.steps[self.launch(epoch)].iter().filter_map(|step| match step.act {
            Act::Wait { slot, len, target } => Some((*step, slot..slot + len, target)),
            Act::Fence
            | Act::Raise { .. }
            | Act::Read { .. }
            | Act::Contribution { .. }
            | Act::Write { .. } => None,
        })
    }

    /// The stamp of the end of launch `epoch`.
    pub(super) fn end(&self, epoch: u32) -> u32 {
        self.starts[epoch as usize]
    }
}

/// What an actor is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Actor {
    pub(super) rank: u32,
    pub(super) agent: AgentId,
    /// The CTA; `None` for the exit.
    pub(super) cta: Option<u32>,
    /// The exit of its agent.
    pub(super) exit: u32,
    pub(super) engine: Engine,
}

/// Numbers of actors and slots, and the statements, of one launch.
#[derive(Debug)]
pub(super) struct Layout<'p> {
    pub(super) program: &'p Program,
    pub(super) launch: Launch,
    /// Consecutive launches that are run.
    pub(super) epochs: u32,
    /// Launches, from the first, whose reads are in the traces: the first alone where the others
    /// are like it.
    pub(super) read_epochs: u32,
    /// Whether traces hold waits and fences that give an actor nothing it does not have already.
    pub(super) repeats: bool,
    /// Events that traces may hold in all, of which so many are left.
    pub(super) room: AtomicU64,
    /// A bound on the bytes the check takes.
    pub(super) estimate: u64,
    /// Whether something goes over the network.
    pub(super) networked: bool,
    /// Every statement, by number.
    pub(super) stmts: Vec<&'p Stmt>,
    /// Every actor: of each rank in turn, of each agent in turn its bodies and its exit.
    pub(super) actors: Vec<Actor>,
    /// Actors of one rank.
    pub(super) each: u32,
    /// Slots of each (rank, array), by where they begin; one more at the end.
    bases: Vec<u32>,
}

impl<'p> Layout<'p> {
    /// Numbers the actors and slots of a launch; `views` are those of its ranks. Traces hold
    /// everything.
    pub(super) fn new(views: &[RankView<'p>], epochs: u32) -> Self {
        let (program, launch) = (views[0].program, views[0].launch);
        let mut actors = Vec::new();
        for rank in 0..launch.world {
            for (agent, entry) in program.agents.iter() {
                let count = bodies(entry, launch);
                let exit = actors.len() as u32 + count;
                let ctas = (0..count).map(Some).chain([None]);
                let engine = entry.engine;
                actors.extend(ctas.map(|cta| Actor { rank, agent, cta, exit, engine }));
            }
        }
        let each = actors.len() as u32 / launch.world;
        let mut bases = vec![0];
        let mut end = 0;
        for view in views {
            for signal in program.signals.handles() {
                end += view.signal_len(signal);
                bases.push(end);
            }
        }
        let stmts = program.statements().collect();
        let (read_epochs, room) = (epochs, AtomicU64::new(u64::MAX));
        Layout {
            program,
            launch,
            epochs,
            read_epochs,
            repeats: true,
            room,
            estimate: 0,
            networked: program.is_networked(),
            stmts,
            actors,
            each,
            bases,
        }
    }

    pub(super) fn actor(&self, actor: u32) -> Actor {
        self.actors[actor as usize]
    }

    /// Every actor of `rank`.
    pub(super) fn of_rank(&self, rank: u32) -> Range<u32> {
        rank * self.each..(rank + 1) * self.each
    }

    /// The exit of `agent` on `rank`.
    pub(super) fn exit(&self, rank: u32, agent: AgentId) -> u32 {
        let exit = |&actor: &u32| {
            let Actor { agent: of, cta, .. } = self.actor(actor);
            of == agent && cta.is_none()
        };
        self.of_rank(rank).rev().find(exit).unwrap_or_default()
    }

    /// The bodies of the agent that `exit` is the exit of.
    pub(super) fn bodies(&self, exit: u32) -> Range<u32> {
        let agent = &self.program.agents[self.actor(exit).agent];
        exit - bodies(agent, self.launch)..exit
    }

    /// `rank 1, cta 0 of gemm`, or the exit of it.
    pub(super) fn name(&self, actor: u32) -> String {
        let Actor { rank, agent, cta, .. } = self.actor(actor);
        name(self.program, rank, agent, cta)
    }

    /// The slots of an array on `rank`.
    pub(super) fn slots(&self, rank: u32, signal: SignalId) -> Range<u32> {
        let array = rank as usize * self.program.signals.len() + signal.index();
        self.bases[array]..self.bases[array + 1]
    }

    /// All slots of all ranks.
    pub(super) fn slot_count(&self) -> usize {
        self.bases.last().map_or(0, |&end| end as usize)
    }

    /// The rank and the array a slot is of, and its place in the array.
    pub(super) fn place_of_slot(&self, slot: u32) -> (u32, SignalId, u32) {
        let array = self.bases.partition_point(|&base| base <= slot) - 1;
        let signals = self.program.signals.len();
        ((array / signals) as u32, SignalId((array % signals) as u32), slot - self.bases[array])
    }

    /// How what `stmt` writes reaches memory, as far as it has to come behind something. Tiles that a CTA stores on its
    /// own rank leave by TMA where their boxes are whole and aligned, and by ordinary stores elsewhere; so they come
    /// behind what either has to. What tells by itself that it has come is always stored by the latter.
    pub(super) fn writes_by(&self, engine: Engine, stmt: &Stmt) -> Proxy {
        match &stmt.op {
            Op::Store { to, adds, .. } if to.at == At::Own && !adds => {
                if self.program.is_flagged(to.buffer) { Proxy::Generic } else { Proxy::Async }
            }
            _ => Proxy::of_copies(engine),
        }
    }

    /// Whether data stand for the raises of a slot.
    pub(super) fn is_carried(&self, slot: u32) -> bool {
        let (_, signal, _) = self.place_of_slot(slot);
        self.program.signals[signal].carrier.is_some()
    }

    /// `%x[3]`.
    pub(super) fn slot_name(&self, slot: u32) -> String {
        let (_, signal, place) = self.place_of_slot(slot);
        format!("%{}[{place}]", self.program.signals[signal].name)
    }

    pub(super) fn stmt(&self, step: Step) -> &'p Stmt {
        self.stmts[step.number as usize]
    }
}

/// `rank 1, cta 0 of gemm`, or the exit of it.
pub(super) fn name(program: &Program, rank: u32, agent: AgentId, cta: Option<u32>) -> String {
    let agent = &program.agents[agent];
    let what = match (cta, agent.engine) {
        (None, _) => "the exit".into(),
        (Some(cta), Engine::Ctas) => format!("cta {cta}"),
        (Some(cta), Engine::CopyWarps) => format!("the copy warps of cta {cta}"),
        (Some(cta), Engine::Tma) => format!("the bulk copies of cta {cta}"),
        (Some(_), Engine::CopyEngine) => "the copy engine".into(),
    };
    format!("rank {rank}, {what} of `{}`", agent.name)
}
