//! Counts raises by walking a launch, and compares them with what proofs say.

use flux_ir::arena::Handle;
use flux_ir::eval::{Action, Change, Launch, RankView};
use flux_ir::parametric::{Proof, Verdict};
use flux_ir::program::{Engine, Program, SignalId, Stmt};

/// Launches of each rank that are walked.
pub(crate) const EPOCHS: u32 = 3;

/// What reached one slot in one launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reached {
    raises: u64,
    added: u64,
    set: Option<u32>,
}

/// A slot that a wait waits for, with its target.
struct Waited {
    signal: SignalId,
    rank: u32,
    slot: u32,
    epoch: u32,
    target: i64,
}

/// Every wait and every raise of [`EPOCHS`] launches on all ranks.
pub(crate) struct Walked<'p> {
    views: Vec<RankView<'p>>,
    /// By statement.
    waited: Vec<(&'p Stmt, Vec<Waited>)>,
    /// By epoch, array, rank and slot.
    reached: Vec<Vec<Vec<Vec<Reached>>>>,
    /// Events, raises and waited slots together.
    pub(crate) events: u64,
}

/// Walks a launch; `None` where it has more than `limit` events.
pub(crate) fn walk(program: &Program, launch: Launch, limit: u64) -> Option<Walked<'_>> {
    let views: Vec<_> = (0..launch.world)
        .map(|rank| RankView::new(program, launch, rank))
        .collect::<Result<_, _>>()
        .ok()?;
    let mut walked = Walked {
        reached: vec![
            vec![vec![Vec::new(); launch.world as usize]; program.signals.len()];
            EPOCHS as usize
        ],
        waited: Vec::new(),
        views: Vec::new(),
        events: 0,
    };
    for view in &views {
        for (id, agent) in program.agents.iter() {
            let actors = if agent.engine == Engine::Ctas { launch.ctas } else { 1 };
            for epoch in 1..=EPOCHS {
                for cta in 0..actors {
                    walked.record(view.agent(id, cta, epoch), view.rank, epoch, limit)?;
                }
                walked.record(view.exit(id, epoch), view.rank, epoch, limit)?;
            }
        }
    }
    walked.views = views;
    Some(walked)
}

impl<'p> Walked<'p> {
    fn record(
        &mut self,
        run: flux_ir::eval::AgentRun<'_, 'p>,
        rank: u32,
        epoch: u32,
        limit: u64,
    ) -> Option<()> {
        for event in run {
            self.events += 1;
            match event.action {
                Action::Wait { signal, slots, target, .. } => {
                    for slot in slots {
                        self.events += 1;
                        let waited = Waited { signal, rank, slot, epoch, target };
                        self.waited_by(event.stmt).push(waited);
                        if self.events > limit {
                            return None;
                        }
                    }
                }
                Action::Signal { rank, signal, slot, change, .. } => {
                    let slots =
                        self.reached[epoch as usize - 1][signal.index()].get_mut(rank as usize);
                    let Some(slots) = slots.filter(|_| u64::from(slot) < limit) else { continue };
                    if slots.len() <= slot as usize {
                        slots.resize(slot as usize + 1, Reached::default());
                    }
                    let reached = &mut slots[slot as usize];
                    reached.raises += 1;
                    match change {
                        Change::Add(count) => reached.added += u64::from(count),
                        Change::Set(value) => reached.set = Some(value),
                    }
                }
                _ => {}
            }
            if self.events > limit {
                return None;
            }
        }
        Some(())
    }

    fn waited_by(&mut self, stmt: &'p Stmt) -> &mut Vec<Waited> {
        let known = self.waited.iter().position(|(known, _)| std::ptr::eq(*known, stmt));
        let at = known.unwrap_or_else(|| {
            self.waited.push((stmt, Vec::new()));
            self.waited.len() - 1
        });
        &mut self.waited[at].1
    }

    /// Slots that were waited for.
    pub(crate) fn waits(&self) -> u64 {
        self.waited.iter().map(|(_, waited)| waited.len() as u64).sum()
    }

    /// Compares every wait with its verdict.
    pub(crate) fn compare(&self, verdicts: &[Verdict<'_>]) -> Result<(), String> {
        for verdict in verdicts {
            if let Ok(proof) = &verdict.outcome {
                self.compare_one(verdict, proof).map_err(|why| format!("{verdict}\n{why}"))?;
            }
        }
        Ok(())
    }

    fn compare_one(&self, verdict: &Verdict<'_>, proof: &Proof) -> Result<(), String> {
        let Some(view) = self.views.first() else { return Ok(()) };
        let raises = view.constant(&proof.raises);
        let per_launch = view.constant(&proof.per_launch);
        let of_wait = self.waited.iter().filter(|(stmt, _)| std::ptr::eq(*stmt, verdict.wait));
        for waited in of_wait.flat_map(|(_, waited)| waited) {
            let Waited { signal, rank, slot, epoch, target, .. } = waited;
            let at = format!("rank {rank}, slot {slot}, epoch {epoch}, {:?}", view.launch);
            let lag = i64::from(proof.lag);
            if *target != per_launch * (i64::from(*epoch) - lag) {
                return Err(format!("{at}: target {target}"));
            }
            for launch in 1..=EPOCHS {
                let slots = &self.reached[launch as usize - 1][signal.index()][*rank as usize];
                let reached = slots.get(*slot as usize).copied().unwrap_or_default();
                let wanted = match reached.set {
                    None => reached.added as i64 == per_launch,
                    Some(set) => {
                        reached.added == 0 && i64::from(set) == per_launch * i64::from(launch)
                    }
                };
                if reached.raises as i64 != raises || !wanted {
                    return Err(format!("{at}: launch {launch} raises {reached:?}"));
                }
            }
        }
        Ok(())
    }
}
