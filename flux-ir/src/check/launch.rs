//! Checks one launch: whether it can be run at all, then the run itself.

use super::counters::Counters;
use super::ends::Ends;
use super::epochs::{self, EPOCH_LIMIT, Uniform};
use super::happens::{History, Scene};
use super::memory::Memory;
use super::regions::Regions;
use super::trace::Layout;
use super::{
    Findings, WORLD_LIMIT, arithmetic, effects, flags, machine, memory, races, scopes, wrap,
};
use crate::diagnostic::{Diagnostic, Rule};
use crate::eval::{Launch, RankView};
use crate::order::OrderError;
use crate::program::{Agent, BufferKind, Program};
use crate::span::Span;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::AtomicU64;

/// Bytes the run of a launch may take: tables, signals, traces and actors.
pub(super) const MEMORY_LIMIT: u64 = 1 << 32;

/// The largest grid: far above any device's.
const CTA_LIMIT: u32 = 1 << 16;

/// Steps the check of one exact launch may take: a minute or so, where a real one takes
/// milliseconds.
pub(super) const STEP_LIMIT: u64 = 1 << 33;

/// Steps a launch of the family may take: there are hundreds, or as the bound counts them, which does not
/// know how many pieces a chunk of few rows has, some millions.
pub(super) const FAMILY_STEP_LIMIT: u64 = 1 << 28;

/// The launch in words.
pub(super) fn describe(launch: Launch) -> String {
    let Launch { shape, world, ctas } = launch;
    let (ranks, grid) =
        (if world == 1 { "rank" } else { "ranks" }, if ctas == 1 { "" } else { "s" });
    format!("in a launch of {shape} on {world} {ranks} with {ctas} CTA{grid} each")
}

/// Checks `launch`. Needs a sound structure.
pub(super) fn check(program: &Program, launch: Launch, step_limit: u64, found: &mut Findings) {
    let before = found.count;
    if !lengths_fit(program, launch, found) {
        return;
    }
    let Some(plan) = admit(program, launch, step_limit, found) else { return };
    let mut views = Vec::with_capacity(launch.world as usize);
    for view in each_rank(launch, plan.steps, |rank| view(program, launch, rank)) {
        match view {
            Ok(view) => views.push(view),
            Err(refusal) => return refuse_order(program, launch, views.len(), refusal, found),
        }
    }
    declarations(&views, found);
    if found.count > before {
        return;
    }
    let regions = Regions::new(&views);
    // Where launches follow from the first, its reads stand for those of all: until waits turn out
    // not to keep up with what they wait for.
    let first = if plan.uniform.is_some() { 1 } else { plan.epochs };
    for read_epochs in [first, plan.epochs] {
        if decide(&views, &regions, &plan, read_epochs, found) == Outcome::Decided {
            return;
        }
    }
}

/// Whether lengths of shards are those of a launch.
fn lengths_fit(program: &Program, launch: Launch, found: &mut Findings) -> bool {
    let rows: u64 = program.lengths.iter().map(|&rows| u64::from(rows)).sum();
    let (ranks, m) = (program.lengths.len(), launch.shape.m);
    let fit = ranks == 0 || ranks == launch.world as usize && rows == u64::from(m);
    if !fit {
        found.once(Rule::Bounds, program, || {
            let message = format!("lengths of {ranks} shards, {rows} rows in all");
            Diagnostic::new(Rule::Bounds, Span::UNKNOWN, message)
                .note(Span::UNKNOWN, describe(launch))
                .help("give each rank a length; they add up to m")
        });
    }
    fit
}

/// Whether a run with the reads of some launches decides.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Decided,
    /// The reads of all launches have to be looked at.
    Drifts,
}

/// Walks and runs a launch that was admitted, with the reads of the first `read_epochs` launches.
fn decide(
    views: &[RankView<'_>],
    regions: &Regions<'_, '_>,
    plan: &Plan,
    read_epochs: u32,
    found: &mut Findings,
) -> Outcome {
    let before = found.count;
    let Plan { steps, epochs, ref uniform, .. } = *plan;
    let mut layout = Layout::new(views, epochs);
    let (program, launch) = (layout.program, layout.launch);
    let walked = if uniform.is_some() { 1 } else { epochs };
    layout.estimate = plan.estimate;
    layout.room = AtomicU64::new(MEMORY_LIMIT / EVENT_BYTES / u64::from(epochs / walked));
    (layout.repeats, layout.read_epochs) = (false, read_epochs);
    let walked = each_rank(launch, steps, |rank| {
        let mut found = Findings::default();
        (effects::walk(&layout, regions, uniform.as_ref(), rank, &mut found), found)
    });
    let mut traces = Vec::with_capacity(walked.len());
    for (trace, of_rank) in walked {
        traces.push(trace);
        found.merge(of_rank);
    }
    if found.count > before || !shares_memory(program) {
        return Outcome::Decided;
    }
    let (traces, rects) = memory::join(traces);
    let alike_after = if uniform.is_some() { 1 } else { plan.period };
    epochs::lag(&layout, &traces, alike_after, found);
    let Some(run) = machine::run(&layout, &traces, found) else { return Outcome::Decided };
    let history = History::new(layout.slot_count(), &run.raises);
    let mut drift = Findings::default();
    epochs::drift(&layout, &traces, &history, alike_after, &mut drift);
    if drift.count > 0 && read_epochs < epochs {
        return Outcome::Drifts;
    }
    scopes::check(&layout, &traces, &history, found);
    let memory = Memory::new(&layout, &traces, rects, &run);
    let (rects, carried) = (memory.rects.as_slice(), true);
    let scene = Scene { layout: &layout, traces: &traces, history: &history, rects, carried };
    let (counters, ends) = (Counters::new(&scene), Ends::new(&scene));
    let before = found.count;
    for of_rank in each_rank(launch, steps, |rank| {
        let mut found = Findings::default();
        races::check(&scene, &memory, &run.segments, (&counters, &ends), rank, &mut found);
        found
    }) {
        found.merge(of_rank);
    }
    if flags::are_carried(program) && found.count == before {
        flags::check(&scene, &memory, &run, found);
    }
    found.merge(drift);
    Outcome::Decided
}

/// Whether ranks have signals or memory in common.
fn shares_memory(program: &Program) -> bool {
    if program.communicates() {
        return true;
    }
    let shared = |kind| matches!(kind, BufferKind::Symmetric | BufferKind::Exposed);
    program.buffers.values().any(|buffer| shared(buffer.kind))
}

/// Steps from which threads are worth their start.
const PARALLEL_STEPS: u64 = 1 << 17;

/// What `check` gives for each rank, in order; on several threads where there is much to do.
fn each_rank<T: Send>(launch: Launch, steps: u64, check: impl Fn(u32) -> T + Sync) -> Vec<T> {
    let threads = if steps < PARALLEL_STEPS {
        1
    } else {
        std::thread::available_parallelism().map_or(1, NonZero::get).min(launch.world as usize)
    };
    if threads == 1 {
        return (0..launch.world).map(check).collect();
    }
    let ranks: Vec<u32> = (0..launch.world).collect();
    std::thread::scope(|scope| {
        let parts = ranks.chunks(ranks.len().div_ceil(threads)).map(|part| {
            let check = &check;
            scope.spawn(move || part.iter().map(|&rank| check(rank)).collect::<Vec<T>>())
        });
        let parts: Vec<_> = parts.collect();
        let joined = parts.into_iter().map(|part| part.join());
        joined.flat_map(|part| part.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// How a launch is checked.
struct Plan {
    /// A bound on steps of all its agents, in all launches that are run.
    steps: u64,
    /// A bound on the bytes it takes.
    estimate: u64,
    /// Consecutive launches that are run.
    epochs: u32,
    period: u32,
    uniform: Option<Uniform>,
}

/// Bytes that an event takes: a step of a trace, and an access or a raise, each of them twice
/// while they are sorted.
pub(super) const EVENT_BYTES: u64 = 120;

/// Whether the launch is one that can be run: a world, a grid, and numbers that stay small.
/// A launch without output elements does nothing, and is not run.
fn admit(program: &Program, launch: Launch, step_limit: u64, found: &mut Findings) -> Option<Plan> {
    let Launch { shape, world, ctas } = launch;
    let before = found.count;
    let mut refuse = |message: String| {
        found.once(Rule::Bounds, program, || {
            Diagnostic::new(Rule::Bounds, Span::UNKNOWN, message)
                .note(Span::UNKNOWN, describe(launch))
        });
    };
    if !(1..=WORLD_LIMIT).contains(&world) {
        refuse(format!("expected a world of 1 to {WORLD_LIMIT} ranks, found {world}"));
    }
    if !(1..=CTA_LIMIT).contains(&ctas) {
        refuse(format!("expected 1 to {CTA_LIMIT} CTAs, found {ctas}"));
    }
    for (name, extent) in [("M", shape.m), ("N", shape.n), ("K", shape.k)] {
        if extent > i32::MAX as u32 {
            refuse(format!("expected {name} below 2147483648, found {extent}"));
        }
    }
    let across = |extent: u32, tile: u32| u64::from(extent.div_ceil(tile));
    let tiles = across(shape.m, program.tile.m) * across(shape.n, program.tile.n);
    if tiles > i32::MAX as u64 {
        refuse(format!("expected fewer than 2147483648 tiles, found {tiles}"));
    }
    if tiles == 0 || found.count > before {
        return None;
    }
    let period = wrap::period(program);
    let uniform = Uniform::of(&RankView::definitions(program, launch, 0), EPOCH_LIMIT);
    let shares = shares_memory(program);
    let epochs = if shares { epochs::count(program, period, uniform.is_some()) } else { 1 };
    let (mut steps, mut bytes, mut kept) = (0u64, 0u64, 0u64);
    for rank in 0..world {
        let size = arithmetic::check(program, launch, rank, found);
        steps = steps.saturating_add(size.steps.saturating_mul(epochs.into()));
        bytes = bytes.saturating_add(memory(program, launch, tiles, size.signals));
        kept = kept.saturating_add(size.events.saturating_mul(EVENT_BYTES * u64::from(epochs)));
    }
    // What stands below a condition is counted for every tile, where it may hold for those of
    // one rank: traces are held to the limit when they are made.
    let estimate = bytes.saturating_add(kept);
    bytes = bytes.max(estimate / u64::from(WORLD_LIMIT));
    if found.count > before {
        return None;
    }
    let bytes = if bytes > MEMORY_LIMIT { estimate } else { bytes };
    for (taken, limit, unit) in [(bytes, MEMORY_LIMIT, "bytes"), (steps, step_limit, "steps")] {
        if taken > limit {
            let message = format!("the check would take {taken} {unit}, expected at most {limit}");
            found.once(Rule::Bounds, program, || {
                Diagnostic::new(Rule::Bounds, Span::UNKNOWN, message)
                    .note(Span::UNKNOWN, describe(launch))
            });
        }
    }
    (found.count == before).then_some(Plan { steps, estimate, epochs, period, uniform })
}

/// Bytes the run takes for one rank, at most.
fn memory(program: &Program, launch: Launch, tiles: u64, signals: u64) -> u64 {
    let outputs = program.buffers.values().filter(|b| b.kind == BufferKind::Output).count() as u64;
    let actors = program.agents.values().map(|agent| u64::from(bodies(agent, launch)) + 1);
    let actor = 8 * program.vars.len() + 128;
    let actors = actors.sum::<u64>() * actor as u64;
    // A row is 16 bytes and 8 while the order is evaluated; a write is a rectangle, a statement
    // and a mark.
    let tables = 24 * tiles * program.tables.len() as u64;
    let written = 32 * tiles * outputs;
    signals.saturating_mul(24).saturating_add(actors + tables + written)
}

/// How many CTAs or engines run an agent's body on one rank.
pub(super) fn bodies(agent: &Agent, launch: Launch) -> u32 {
    agent.engine.bodies(launch.ctas)
}

/// What is wrong with an order, and what to do about it.
type Refusal = (String, &'static str);

/// The Program as `rank` sees it.
fn view(program: &Program, launch: Launch, rank: u32) -> Result<RankView<'_>, Refusal> {
    RankView::new(program, launch, rank).map_err(|error| {
        let help = match error {
            OrderError::NoFunction(_) => "give the schedule the order as a function",
            _ => "an order has to visit each tile of the grid once, whatever the grid",
        };
        (error.to_string(), help)
    })
}

fn refuse_order(
    program: &Program,
    launch: Launch,
    rank: usize,
    (message, help): Refusal,
    found: &mut Findings,
) {
    found.once(Rule::OrderNotPermutation, program, || {
        Diagnostic::new(Rule::OrderNotPermutation, Span::UNKNOWN, message)
            .note(Span::UNKNOWN, format!("on rank {rank}, {}", describe(launch)))
            .help(help)
    });
}

/// Whether all ranks agree on the workspace, and tables are as long as declared.
fn declarations(views: &[RankView<'_>], found: &mut Findings) {
    let (program, launch) = (views[0].program, views[0].launch);
    for (rank, view) in views.iter().enumerate() {
        let mut differs = |name: &str, entry: Span| {
            let message = format!("`%{name}` has another size on rank {rank} than on rank 0");
            found.once(Rule::Bounds, &program.buffers, || {
                Diagnostic::new(Rule::Bounds, entry, message)
                    .note(Span::UNKNOWN, describe(launch))
                    .help("workspace lies at the same offset on every rank: leave `rank` out")
            });
        };
        for (id, buffer) in program.buffers.iter() {
            if buffer.kind == BufferKind::Symmetric && view.extent(id) != views[0].extent(id) {
                differs(&buffer.name, buffer.span);
            }
        }
        for (id, signal) in program.signals.iter() {
            if view.signal_len(id) != views[0].signal_len(id) {
                differs(&signal.name, Span::UNKNOWN);
            }
        }
        for (id, table) in program.tables.iter() {
            let (declared, rows) = (view.constant(&table.len), view.table(id).len());
            if declared != rows as i64 {
                found.once(Rule::Bounds, table, || {
                    let message =
                        format!("`%{}` is declared with {declared} rows, has {rows}", table.name);
                    Diagnostic::new(Rule::Bounds, Span::UNKNOWN, message)
                        .note(Span::UNKNOWN, describe(launch))
                });
            }
        }
    }
}
