//! Runs one rank's agents on threads.

use crate::error::{Actor, Error, Fault};
use crate::memory::{Memory, RankArgs};
use crate::signal::{Waited, raise, wait};
use crate::stall::{self, Stall};
use crate::worker::Worker;
use crate::workspace::{Workspace, lock};
use flux_ir::Span;
use flux_ir::arena::Handle;
use flux_ir::check::Verified;
use flux_ir::eval::{Action, AgentRun, Launch, RankView, TileRange};
use flux_ir::program::{AgentId, Engine, SignalId};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Runs the agents of `rank` for launch number `epoch` and returns when all have finished: a
/// thread for each CTA, and one for each copy engine. `launch` has been checked by the caller
/// ([`Verified::check_launch`]), and is the one that `workspace` was made for. Each single wait
/// takes at most `limit`.
///
/// Outputs hold the result only where `Ok` is returned.
///
/// # Errors
/// Arguments that do not fit leave the workspace as it was. Whatever goes wrong later, such as
/// [`Error::Stalled`] where a peer never comes, loses the workspace: peers that wait end with
/// [`Error::Abandoned`], and further launches are refused with [`Error::Lost`] until
/// [`Workspace::restart`].
pub fn launch_rank(
    verified: &Verified,
    launch: Launch,
    rank: u32,
    epoch: u32,
    workspace: &Workspace,
    args: RankArgs<'_>,
    limit: Duration,
) -> Result<(), Error> {
    workspace.accepts(verified, launch, rank)?;
    let view = RankView::new(workspace.program(), launch, rank)?;
    let memory = Memory::bind(workspace, rank, args)?;
    workspace.begin(rank, epoch)?;
    let ctas = view.program.agents.handles().map(|_| AtomicU32::new(launch.ctas)).collect();
    let run = Run {
        workspace,
        memory: &memory,
        view: &view,
        epoch,
        limit,
        failed: AtomicBool::new(false),
        error: Mutex::new(None),
        running_ctas: ctas,
    };
    run.agents();
    match run.error.into_inner() {
        Ok(None) => {
            workspace.complete(rank);
            Ok(())
        }
        Ok(Some(error)) => {
            workspace.leave(rank);
            Err(error)
        }
        Err(poisoned) => poisoned.into_inner().map_or(Ok(()), Err),
    }
}

/// One rank's launch, shared by its threads.
struct Run<'r, 'a> {
    workspace: &'a Workspace,
    memory: &'r Memory<'a>,
    view: &'r RankView<'r>,
    epoch: u32,
    limit: Duration,
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
    /// By agent: CTAs that have not finished.
    running_ctas: Vec<AtomicU32>,
}

/// An agent ends early: the error has been told.
struct Stopped;

impl<'r, 'a> Run<'r, 'a> {
    fn agents(&self) {
        thread::scope(|scope| {
            for (id, agent) in self.view.program.agents.iter() {
                for cta in 0..agent.engine.bodies(self.view.launch.ctas) {
                    let actor = Actor { rank: self.view.rank, agent: &agent.name, cta };
                    let name = format!("rank {} {} {cta}", actor.rank, actor.agent);
                    let work = move || self.guarded(actor, id, agent.engine);
                    if let Err(error) = thread::Builder::new().name(name).spawn_scoped(scope, work)
                    {
                        let (rank, agent) = (actor.rank, agent.name.clone());
                        self.fail(Error::Spawn { rank, agent, reason: error.to_string() });
                        return;
                    }
                }
            }
        });
    }

    /// Runs one actor; a panic becomes an error.
    fn guarded(&self, actor: Actor<'_>, id: AgentId, engine: Engine) {
        let work = || self.actor(actor, id, engine);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let (rank, agent, cta) = (actor.rank, actor.agent.to_string(), actor.cta);
            self.fail(Error::Panicked { rank, agent, cta, message: message(&*panic) });
        }
    }

    fn actor(&self, actor: Actor<'_>, id: AgentId, engine: Engine) {
        let mut worker = Worker::new(self.memory);
        let body = self.view.agent(id, actor.cta, self.epoch);
        if self.walk(actor, &mut worker, body).is_err() {
            return;
        }
        let is_last = match engine {
            Engine::CopyEngine => true,
            // Acquires what the other CTAs did, so that the exit's signals release it.
            Engine::Ctas | Engine::CopyWarps | Engine::Tma => {
                self.running_ctas[id.index()].fetch_sub(1, Ordering::AcqRel) == 1
            }
        };
        if is_last {
            let exit = self.view.exit(id, self.epoch);
            // A failure has been told; nothing follows the exit.
            let _ = self.walk(actor, &mut worker, exit);
        }
    }

    fn walk(
        &self,
        actor: Actor<'_>,
        worker: &mut Worker<'_, 'a>,
        events: AgentRun<'_, '_>,
    ) -> Result<(), Stopped> {
        for event in events {
            // After a failure the rank touches its peers no more.
            if self.failed.load(Ordering::Acquire) {
                return Err(Stopped);
            }
            let span = event.stmt.span;
            let done = match &event.action {
                Action::Wait { signal, slots, target, scope: _ } => {
                    for slot in slots.clone() {
                        self.wait(actor, (span, &event.tile), *signal, slot, *target)?;
                    }
                    Ok(())
                }
                Action::Signal { rank, signal, slot, change, scope: _, after: _ } => {
                    // Stores and copies are performed when they return.
                    match self.workspace.signal(*rank, *signal, *slot) {
                        Some(word) => {
                            raise(word, *change);
                            Ok(())
                        }
                        None => Err(self.no_signal(*rank, *signal, *slot)),
                    }
                }
                // Threads of the host have one memory and no proxies.
                Action::FenceProxyAsync => Ok(()),
                Action::Mainloop { products } => {
                    worker.mainloop((&event.tile, event.visit), products)
                }
                Action::Store { to, value, loads, adds } => {
                    worker.store((*value, *adds), to, loads)
                }
                Action::Sum { own, element, from, loads } => {
                    worker.sum(&event.tile, (*own, *element, loads), from)
                }
                Action::Copy { from, to, adds } => self.memory.copy(from, to, *adds),
            };
            done.map_err(|fault| self.fail(actor.error(span, fault)))?;
        }
        Ok(())
    }

    fn wait(
        &self,
        actor: Actor<'_>,
        (span, tile): (Span, &TileRange),
        signal: SignalId,
        slot: u32,
        target: i64,
    ) -> Result<(), Stopped> {
        let Some(word) = self.workspace.signal(actor.rank, signal, slot) else {
            let fault = self.no_signal(actor.rank, signal, slot);
            return Err(self.fail(actor.error(span, fault)));
        };
        let give_up = || self.failed.load(Ordering::Acquire) || self.workspace.has_failed();
        let begun = Instant::now();
        let stall = |seen, waited| Stall {
            rank: actor.rank,
            agent: actor.agent.into(),
            cta: actor.cta,
            tile: stall::tile(tile),
            signal: self.view.program.signals[signal].name.clone(),
            slot,
            seen,
            wanted: target as u32,
            span,
            waited,
        };
        match wait(word, target, self.limit, give_up) {
            Waited::Reached => Ok(()),
            Waited::TimedOut { seen, after } => {
                Err(self.fail(Error::Stalled(stall(seen, after).into())))
            }
            Waited::GivenUp => {
                // The own rank's failure has been told already.
                if let Some(first) = self.workspace.failure() {
                    let stall = stall(word.load(Ordering::Acquire), begun.elapsed());
                    self.fail(Error::Abandoned { stall: stall.into(), first: first.into() });
                }
                Err(Stopped)
            }
        }
    }

    fn no_signal(&self, rank: u32, signal: SignalId, slot: u32) -> Fault {
        let name = self.view.program.signals.get(signal).map_or("nothing", |array| &array.name);
        Fault::Malformed(format!("expected a signal of a rank, found `{name}[{slot}]` on {rank}"))
    }

    /// Notes a failure; the rank's first is the one that is told.
    fn fail(&self, error: Error) -> Stopped {
        // Held until both know, so that no other agent of this rank tells of a peer's failure
        // what was its own rank's.
        let mut first = lock(&self.error);
        if first.is_none() {
            self.workspace.fail(self.view.rank, &error);
            *first = Some(error);
        }
        self.failed.store(true, Ordering::Release);
        Stopped
    }
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".into())
}

#[cfg(test)]
mod tests;
