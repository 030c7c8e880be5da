//! Runs all ranks on one thread, in an order that a seed decides.
//!
//! Nothing is faster than the slowest hardware here: what an agent puts to a peer, and what a
//! copy engine copies, is kept back until a signal that follows it demands that it has been
//! performed, and the source of a copy is read only then. Launches of one rank follow each
//! other, while ranks may be a launch apart, as far as the signals of the Program allow.
//!
//! What goes over the network is on its way until it is delivered, which comes when the seed says so, also behind
//! the end of the launch that sent it: puts in any order, then the signal that travels behind them.
//!
//! A seed stands for one interleaving, the same on every machine. Odd seeds draw the next agent
//! anew at each step; even seeds give each agent a fixed priority and now and then another one,
//! so that some agents run far ahead while others starve.

mod network;

use crate::error::{Actor, Error, Fault};
use crate::memory::{Memory, RankArgs};
use crate::signal::{raise, reached};
use crate::stall::{self, Stall};
use crate::worker::Worker;
use crate::workspace::Workspace;
use flux_ir::Span;
use flux_ir::arena::Handle;
use flux_ir::check::Verified;
use flux_ir::eval::{Action, AgentRun, Event, Launch, RankView, Region};
use flux_ir::program::{AgentId, Completion, Engine, Op, SignalId};
use network::Flight;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Runs consecutive launches, numbered from 1, on a fresh workspace: `launches` holds the
/// arguments of each rank for each launch. The caller has checked `launch`
/// ([`Verified::check_launch`]).
///
/// # Errors
/// As [`crate::launch_rank`]; [`Error::Stalled`] where no agent can go on in this interleaving.
pub fn run(
    verified: &Verified,
    launch: Launch,
    launches: Vec<Vec<RankArgs<'_>>>,
    seed: u64,
) -> Result<(), Error> {
    let workspace = Workspace::new(verified, launch)?;
    let program = workspace.program();
    let views = (0..launch.world)
        .map(|rank| RankView::new(program, launch, rank))
        .collect::<Result<Vec<_>, _>>()?;
    let mut memories = Vec::new();
    for ranks in launches {
        let (expected, found) = (launch.world, ranks.len());
        if expected as usize != found {
            return Err(Error::RankCount { expected, found });
        }
        let bind = |(rank, args)| Memory::bind(&workspace, rank, args);
        memories.push((0..).zip(ranks).map(bind).collect::<Result<Vec<_>, _>>()?);
    }
    let mut play = Play {
        workspace: &workspace,
        views: &views,
        memories: &memories,
        actors: Vec::new(),
        flights: Vec::new(),
        ranks: Vec::new(),
        random: Random(seed),
        by_priority: seed.is_multiple_of(2),
    };
    for rank in 0..launch.world {
        play.ranks.push(Rank { epoch: 0, running: Vec::new(), actors: 0 });
        play.start_next_launch(rank);
    }
    play.finish_all()
}

/// All ranks at some moment.
struct Play<'r, 'a> {
    workspace: &'r Workspace,
    views: &'r [RankView<'r>],
    /// By launch, then by rank.
    memories: &'r [Vec<Memory<'a>>],
    actors: Vec<Acting<'r, 'a>>,
    /// What the network carries.
    flights: Vec<Flight<'r, 'a>>,
    ranks: Vec<Rank>,
    random: Random,
    by_priority: bool,
}

/// Where a rank is.
struct Rank {
    epoch: u32,
    /// By agent: CTAs that have not finished.
    running: Vec<u32>,
    /// Agents that have not finished, each CTA counted.
    actors: u32,
}

/// An agent before its next event.
struct Acting<'r, 'a> {
    actor: Actor<'r>,
    id: AgentId,
    engine: Engine,
    memory: &'r Memory<'a>,
    worker: Worker<'r, 'a>,
    events: AgentRun<'r, 'r>,
    next: Option<Event<'r>>,
    late: Vec<Late>,
    /// Puts over the network that no signal follows yet, with their rank.
    outgoing: Vec<(u32, Late)>,
    priority: u64,
    in_exit: bool,
}

/// A write that has been issued and is not performed.
struct Late {
    span: Span,
    to: Region,
    from: Source,
}

enum Source {
    /// Rows that were computed or read.
    Values(Vec<f32>),
    /// To be read when the copy is performed, and added to what lies there or put in its place.
    Region(Region, bool),
    /// What was computed, and is added to what lies there.
    Addends(Vec<f32>),
}

impl<'r> Play<'r, '_> {
    fn start_next_launch(&mut self, rank: u32) {
        let view = &self.views[rank as usize];
        let state = &mut self.ranks[rank as usize];
        let Some(memories) = self.memories.get(state.epoch as usize) else { return };
        state.epoch += 1;
        state.running = vec![view.launch.ctas; view.program.agents.len()];
        for (id, agent) in view.program.agents.iter() {
            let ctas = agent.engine.bodies(view.launch.ctas);
            state.actors += ctas;
            for cta in 0..ctas {
                let memory = &memories[rank as usize];
                let mut events = view.agent(id, cta, state.epoch);
                self.actors.push(Acting {
                    actor: Actor { rank, agent: &agent.name, cta },
                    id,
                    engine: agent.engine,
                    memory,
                    worker: Worker::new(memory),
                    next: events.next(),
                    events,
                    late: Vec::new(),
                    outgoing: Vec::new(),
                    priority: self.random.next(),
                    in_exit: false,
                });
            }
        }
        if state.actors == 0 {
            self.start_next_launch(rank);
        }
    }

    fn finish_all(&mut self) -> Result<(), Error> {
        while !self.actors.is_empty() || !self.flights.is_empty() {
            if self.delivers_now() {
                self.deliver()?;
                continue;
            }
            let ready: Vec<_> = (0..self.actors.len())
                .filter(|&index| self.unmet(&self.actors[index]).is_none())
                .collect();
            let Some(index) = self.choose(&ready) else {
                if self.flights.is_empty() {
                    return Err(self.stalled());
                }
                self.deliver()?;
                continue;
            };
            if self.actors[index].next.is_some() {
                self.step(index)?;
            } else {
                self.finish(index)?;
            }
        }
        Ok(())
    }

    /// Which of the agents that can go on does.
    fn choose(&mut self, ready: &[usize]) -> Option<usize> {
        let drawn = self.random.next();
        if !self.by_priority {
            return ready.get((drawn % ready.len().max(1) as u64) as usize).copied();
        }
        let first = ready.iter().copied().max_by_key(|&index| self.actors[index].priority)?;
        if drawn.is_multiple_of(16) {
            self.actors[first].priority = self.random.next();
        }
        Some(first)
    }

    /// The signal that keeps an agent from going on: slot, value and target.
    fn unmet(&self, acting: &Acting<'_, '_>) -> Option<(SignalId, u32, u32, i64)> {
        let Action::Wait { signal, slots, target, scope: _ } = &acting.next.as_ref()?.action else {
            return None;
        };
        slots.clone().find_map(|slot| {
            // A slot that does not exist is never raised.
            let word = self.workspace.signal(acting.actor.rank, *signal, slot);
            let seen = word.map_or(0, |word| word.load(Ordering::Acquire));
            let met = word.is_some() && reached(seen, *target);
            (!met).then_some((*signal, slot, seen, *target))
        })
    }

    fn stalled(&self) -> Error {
        let stuck = self.actors.iter().find_map(|acting| Some((acting, self.unmet(acting)?)));
        let Some((acting, (signal, slot, seen, target))) = stuck else {
            unreachable!("an agent that waits for nothing can go on")
        };
        let Actor { rank, agent, cta } = acting.actor;
        let next = acting.next.as_ref();
        let stall = Stall {
            rank,
            agent: agent.into(),
            cta,
            tile: next.and_then(|event| stall::tile(&event.tile)),
            signal: self.workspace.program().signals[signal].name.clone(),
            slot,
            seen,
            wanted: target as u32,
            span: next.map_or(Span::UNKNOWN, |event| event.stmt.span),
            waited: Duration::ZERO,
        };
        Error::Stalled(stall.into())
    }

    fn step(&mut self, index: usize) -> Result<(), Error> {
        let acting = &mut self.actors[index];
        let Some(event) = acting.next.take() else { return Ok(()) };
        acting.next = acting.events.next();
        let span = event.stmt.span;
        match &event.action {
            Action::Wait { .. } | Action::FenceProxyAsync => Ok(()),
            Action::Mainloop { products } => {
                acting.worker.mainloop((&event.tile, event.visit), products)
            }
            Action::Sum { own, element, from, loads } => {
                acting.worker.sum(&event.tile, (*own, *element, loads), from)
            }
            Action::Store { to, value, loads, adds } if to.rank == acting.actor.rank => {
                acting.worker.store((*value, *adds), to, loads)
            }
            Action::Store { to, value, loads, adds } => {
                let mut values = Vec::new();
                let keep = |_, row: &[f32]| {
                    values.extend_from_slice(row);
                    Ok(())
                };
                acting.worker.evaluate(*value, to, loads, keep).map(|()| {
                    let from = if *adds { Source::Addends(values) } else { Source::Values(values) };
                    acting.late.push(Late { span, to: to.clone(), from });
                })
            }
            Action::Copy { from, to, adds } => {
                let from = Source::Region(from.clone(), *adds);
                if matches!(&event.stmt.op, Op::Copy { to, .. } if to.at.is_remote()) {
                    acting.outgoing.push((to.rank, Late { span, to: to.clone(), from }));
                    return Ok(());
                }
                acting.late.push(Late { span, to: to.clone(), from });
                Ok(())
            }
            Action::Signal { rank, signal, slot, change, scope: _, after } => {
                match after {
                    Completion::Performed => acting.perform_late()?,
                    Completion::Read => {
                        acting.read_sources()?;
                        acting.flush(&mut self.flights)?;
                    }
                    Completion::Delivered => {
                        let (signal, slot) = (*signal, *slot);
                        self.flights.push(acting.send(*rank, (signal, slot, *change)));
                        return Ok(());
                    }
                }
                match self.workspace.signal(*rank, *signal, *slot) {
                    Some(word) => {
                        raise(word, *change);
                        Ok(())
                    }
                    None => Err(Fault::Malformed(format!("no signal {slot} on rank {rank}"))),
                }
            }
        }
        .map_err(|fault| acting.actor.error(span, fault))
    }

    /// An agent is through with its events: the last CTA goes on with the exit, and the last
    /// agent of a rank makes room for the next launch.
    fn finish(&mut self, index: usize) -> Result<(), Error> {
        let acting = &mut self.actors[index];
        acting.flush(&mut self.flights)?;
        acting.perform_late()?;
        let rank = acting.actor.rank;
        let state = &mut self.ranks[rank as usize];
        if !acting.in_exit {
            let running = &mut state.running[acting.id.index()];
            *running -= 1;
            if acting.engine == Engine::CopyEngine || *running == 0 {
                acting.in_exit = true;
                acting.events = self.views[rank as usize].exit(acting.id, state.epoch);
                acting.next = acting.events.next();
                return Ok(());
            }
        }
        self.actors.swap_remove(index);
        state.actors -= 1;
        if state.actors == 0 {
            self.start_next_launch(rank);
        }
        Ok(())
    }
}

impl Acting<'_, '_> {
    /// Performs what was kept back, in order.
    fn perform_late(&mut self) -> Result<(), Error> {
        self.late.drain(..).try_for_each(|late| late.perform(self.memory, &self.actor))
    }

    /// Reads the sources of copies that were kept back, and keeps back the writes.
    fn read_sources(&mut self) -> Result<(), Error> {
        self.late.iter_mut().try_for_each(|late| late.read_source(self.memory, &self.actor))
    }
}

impl Late {
    fn perform(&self, memory: &Memory<'_>, actor: &Actor<'_>) -> Result<(), Error> {
        let performed = match &self.from {
            Source::Region(from, adds) => memory.copy(from, &self.to, *adds),
            Source::Values(values) => write(memory, &self.to, values, false),
            Source::Addends(values) => write(memory, &self.to, values, true),
        };
        performed.map_err(|fault| actor.error(self.span, fault))
    }

    /// Reads the source, where that has not been done.
    fn read_source(&mut self, memory: &Memory<'_>, actor: &Actor<'_>) -> Result<(), Error> {
        if let Source::Region(from, adds) = &self.from {
            let values = read(memory, from).map_err(|fault| actor.error(self.span, fault))?;
            self.from = if *adds { Source::Addends(values) } else { Source::Values(values) };
        }
        Ok(())
    }
}

/// Hands each row of `values` to `memory.store`, or `memory.add` where `adds`.
fn write(memory: &Memory<'_>, to: &Region, values: &[f32], adds: bool) -> Result<(), Fault> {
    let place = memory.locate(to)?;
    let (rows, cols) = place.extent();
    for row in 0..rows {
        let values = &values[row * cols..][..cols];
        match adds {
            true => memory.add(&place, row, values)?,
            false => memory.store(&place, row, values)?,
        }
    }
    Ok(())
}

/// A region in f32, from which every element type is restored as it was.
fn read(memory: &Memory<'_>, from: &Region) -> Result<Vec<f32>, Fault> {
    let place = memory.locate(from)?;
    let (rows, cols) = place.extent();
    let mut values = vec![0.0; rows * cols];
    for row in 0..rows {
        let range: Range<usize> = 0..cols;
        memory.load(&place, row, range, &mut values[row * cols..][..cols])?;
    }
    Ok(values)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}
