//! What is predicted for a launch.

use super::cost::Cost;
use super::fold::Fold;
use super::instant::Time;
use super::machine::Machine;
use super::path::Path;
use super::record::{Kind, Timeline};
use super::run::{Parts, Run};
use super::{Error, Options, Symmetry};
use flux_ir::eval::{Launch, RankView};
use flux_ir::program::Program;

/// What is predicted for a launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The launch.
    pub launch: Launch,
    /// What it takes, from the start of the first rank to the end of the last.
    pub total: Time,
    /// What its grid takes alone, with every operand there and nothing sent.
    pub gemm: Time,
    /// What its transfers take alone.
    pub comm: Time,
    /// Bytes that a rank sends, the most of any.
    pub sent_bytes: u64,
    /// How long CTAs of a rank waited for signals, on average, the most of any rank.
    pub waited: Time,
    /// What it was waited for, from the end back to the start.
    pub path: Path,
    /// Every op.
    pub timeline: Timeline,
}

impl Report {
    /// Communication that shows: total less GEMM alone.
    pub fn exposed(&self) -> Time {
        self.total.since(self.gemm)
    }

    /// Total over the larger of GEMM and communication alone; 1 is the bound.
    pub fn bound_ratio(&self) -> f64 {
        let bound = self.gemm.max(self.comm);
        if bound == Time::ZERO { 1.0 } else { self.total.us() / bound.us() }
    }

    /// The share of communication that does not show; none where there is no communication.
    pub fn overlap_efficiency(&self) -> Option<f64> {
        (self.comm > Time::ZERO).then(|| 1.0 - self.exposed().us() / self.comm.us())
    }
}

/// Predicts what a launch of `program` takes on `machine`.
///
/// # Errors
/// The launch has no tile order, does not end, or multiplies elements that the machine has no
/// rate for.
pub fn simulate(
    program: &Program,
    launch: Launch,
    machine: &Machine,
    options: Options,
) -> Result<Report, Error> {
    for (what, least, most, found) in [
        ("a world", 1, 1 << 12, launch.world),
        ("CTAs", 1, 1 << 16, launch.ctas),
        ("launches", 1, 1 << 16, options.launches),
        ("M", 1, i32::MAX as u32, launch.shape.m),
        ("N", 1, i32::MAX as u32, launch.shape.n),
        ("K", 1, i32::MAX as u32, launch.shape.k),
    ] {
        if !(least..=most).contains(&found) {
            return Err(Error::Extent { what, least, most, found });
        }
    }
    limit(program, launch, 1)?;
    let fold = match options.symmetry {
        Symmetry::Fold => Fold::of(program, launch)?,
        Symmetry::All => Fold::none(launch.world),
    };
    limit(program, launch, fold.classes())?;
    let views = (0..fold.classes())
        .map(|rank| RankView::new(program, launch, rank))
        .collect::<Result<Vec<_>, _>>()?;
    let cost = Cost::new(machine, program, options.peers)?;
    let run = |parts, launches| {
        let options = Options { launches, ..options };
        Run::new(&cost, parts, &views, &fold, options).run()
    };
    let timeline = run(Parts::All, options.launches)?;
    let gemm = run(Parts::Compute, 1)?.total();
    let comm = run(Parts::Transfers, 1)?.total();
    Ok(Report {
        launch,
        total: timeline.total(),
        gemm,
        comm,
        sent_bytes: sent(&timeline),
        waited: waited(&timeline, launch),
        path: Path::of(&timeline),
        timeline,
    })
}

/// Refuses what would take too much memory: tiles leave ops, and signals pages.
fn limit(program: &Program, launch: Launch, ranks: u32) -> Result<(), Error> {
    let across = |extent: u32, tile: u32| u64::from(extent.div_ceil(tile.max(1)));
    let tiles = across(launch.shape.m, program.tile.m) * across(launch.shape.n, program.tile.n);
    let most = 1 << 23;
    let found = tiles.saturating_mul(ranks.into());
    if found > most {
        return Err(Error::TooLarge { what: "tiles", found, ranks, most });
    }
    let view = RankView::definitions(program, launch, 0);
    let signals = program.signals.handles().map(|signal| u64::from(view.signal_len(signal)));
    let found = signals.sum::<u64>().saturating_mul(ranks.into());
    let most = 1 << 32;
    if found > most {
        return Err(Error::TooLarge { what: "signals", found, ranks, most });
    }
    Ok(())
}

/// Bytes the rank that sends most sends in the launch.
fn sent(timeline: &Timeline) -> u64 {
    let mut ranks = vec![0; timeline.classes as usize];
    for op in timeline.ops.iter().filter(|op| op.start >= timeline.begins) {
        ranks[timeline.rank(op) as usize] += op.bytes;
    }
    ranks.into_iter().max().unwrap_or(0)
}

/// Waits of CTAs, over their number, of the rank that waits longest.
fn waited(timeline: &Timeline, launch: Launch) -> Time {
    let mut ranks = vec![Time::ZERO; timeline.classes as usize];
    for op in timeline.ops.iter().filter(|op| op.start >= timeline.begins) {
        let actor = timeline.actors[op.actor as usize];
        if op.kind == Kind::Wait && matches!(actor.role, super::Role::Cta(..)) {
            let rank = &mut ranks[actor.rank as usize];
            *rank = *rank + op.end.since(op.start);
        }
    }
    let most = ranks.into_iter().max().unwrap_or_default();
    Time::from_us(most.us() / f64::from(launch.ctas.max(1)))
}
