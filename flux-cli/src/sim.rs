//! `flux sim`.

use crate::Sim;
use crate::here;
use crate::show::with_order;
use crate::source::{self, Content, Source};
use flux_ir::check::verify;
use flux_ir::eval::Launch;
use flux_ir::lower::lower;
use flux_ir::program::Engine;
use flux_ir::{Departure, Head, Order, Program, Tail, Transport};
use flux_sim::time::{
    Machine, Options, Peers, Recording, Report, Summary, Symmetry, chrome_trace, draw, simulate,
};
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// What `flux sim` prints. `ctas`: whether the grid was given.
pub(crate) fn run(options: &Sim, ctas: bool) -> Result<String, Box<dyn Error>> {
    let machine = here::find(&options.machine)?;
    let source = source::find(&options.kernel)?;
    let mut text = String::new();
    if options.schedules {
        return rank(options, ctas, &source, &machine);
    }
    let candidate = Candidate::new(options, ctas, &source, &machine, options.schedule)?;
    let report = &candidate.report;
    let summary = Summary::new(report, &candidate.program, &machine.name);
    let mut to_stdout = false;
    if let Some(path) = &options.svg {
        let title = format!("{}: {}, rank {}", summary.title(), report.total, options.launch.rank);
        let image = draw(&report.timeline, &candidate.program, options.launch.rank, &title);
        to_stdout |= write_file(path, &image, &mut text)?;
    }
    if let Some(path) = &options.trace {
        let trace = chrome_trace(&report.timeline, &candidate.program);
        to_stdout |= write_file(path, &trace, &mut text)?;
    }
    if let Some(path) = &options.record {
        let origin = format!("predicted, {}", machine.name);
        let Candidate { program, .. } = &candidate;
        let recording = Recording::of(&report.timeline, program, report.launch, &origin);
        to_stdout |= write_file(path, &(serde_json::to_string(&recording)? + "\n"), &mut text)?;
    }
    if to_stdout {
        return Ok(text);
    }
    if options.json {
        text += &serde_json::to_string_pretty(&summary)?;
        text += "\n";
    } else {
        write!(text, "{summary}")?;
    }
    Ok(text)
}

/// Writes a file, or, for `-`, to `text`; says whether it was that.
pub(crate) fn write_file(
    path: &Path,
    content: &str,
    text: &mut String,
) -> Result<bool, Box<dyn Error>> {
    if path == Path::new("-") {
        *text += content;
        return Ok(true);
    }
    fs::write(path, content)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(false)
}

/// A schedule of the kernel with its prediction.
struct Candidate {
    name: String,
    program: Program,
    report: Report,
}

impl Candidate {
    fn new(
        options: &Sim,
        ctas: bool,
        source: &Source,
        machine: &Machine,
        schedule: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let content = source.content.clone().map_err(|found| source.located(&found))?;
        let (name, program, own) = match content {
            Content::Program(_) => {
                ("as it is".into(), source.program(schedule, &options.launch)?, None)
            }
            Content::Kernel(kernel) => {
                let mut schedule = with_order(source.schedule(schedule)?, &options.launch)?;
                if let Some(rows) = options.chunk_rows {
                    schedule = schedule.chunk_rows(rows);
                }
                if let Some(Tail { rows, slices }) = options.tail {
                    schedule = schedule.tail(rows, slices);
                }
                if let Some(Head { rows, copies }) = options.head {
                    schedule = schedule.head(rows, copies);
                }
                if let Some(departure) = options.departure {
                    schedule = schedule.order(Order::Departure(departure));
                }
                if let Some(ranks) = options.node {
                    schedule = schedule.transport(Transport::Put).node(ranks);
                }
                let program = lower(&kernel, &schedule).map_err(|found| source.located(&found))?;
                (schedule.to_string(), program, schedule.ctas)
            }
        };
        let verified = verify(program).map_err(|found| source.located(&found))?;
        let program = verified.program().clone();
        let given = ctas.then_some(options.launch.ctas);
        let launch = launch(options, machine, &program, given.or(own));
        let report = simulate(&program, launch, machine, model(options))?;
        Ok(Candidate { name, program, report })
    }
}

/// Rows, and slices.
pub(crate) fn tail(text: &str) -> Result<Tail, String> {
    let (rows, slices) = pair(text).ok_or("expected ROWS,SLICES, as 256,4")?;
    Ok(Tail { rows, slices })
}

/// Rows, and copies.
pub(crate) fn head(text: &str) -> Result<Head, String> {
    let (rows, copies) = pair(text).ok_or("expected ROWS,COPIES, as 256,2")?;
    Ok(Head { rows, copies })
}

/// Rows, and shards that are walked together.
pub(crate) fn departure(text: &str) -> Result<Departure, String> {
    let (rows, shards) = pair(text).ok_or("expected ROWS,SHARDS, as 256,1")?;
    Ok(Departure { rows, shards })
}

/// Two numbers with a comma between.
fn pair(text: &str) -> Option<(u32, u32)> {
    let parse = |number: &str| number.trim().parse::<u32>().ok().filter(|number| *number > 0);
    text.split_once(',').and_then(|(a, b)| Some((parse(a)?, parse(b)?)))
}

/// The launch: a grid of what the machine has, and no more CTAs than tiles.
fn launch(options: &Sim, machine: &Machine, program: &Program, ctas: Option<u32>) -> Launch {
    let mut launch = options.launch.exact();
    let copies = program.agents.values().any(|agent| agent.engine == Engine::CopyEngine);
    let kept = if copies { machine.compute.copy_sms } else { 0 };
    let across = |extent: u32, tile: u32| u64::from(extent.div_ceil(tile.max(1)));
    let (shape, tile) = (launch.shape, program.tile);
    let tiles = across(shape.m, tile.m).saturating_mul(across(shape.n, tile.n));
    let most = u32::try_from(tiles).unwrap_or(u32::MAX).max(1);
    launch.ctas = ctas.unwrap_or_else(|| (machine.sms() - kept).min(most));
    launch
}

fn model(options: &Sim) -> Options {
    Options {
        launches: options.launches,
        peers: if options.passive_peers { Peers::Passive } else { Peers::Active },
        symmetry: if options.every_rank { Symmetry::All } else { Symmetry::Fold },
    }
}

/// Every schedule of the kernel, the fastest first.
fn rank(
    options: &Sim,
    ctas: bool,
    source: &Source,
    machine: &Machine,
) -> Result<String, Box<dyn Error>> {
    let count = source.schedules.clone().map_err(|found| source.located(&found))?.len().max(1);
    let mut all = Vec::new();
    for schedule in 0..count {
        all.push((schedule, Candidate::new(options, ctas, source, machine, schedule)?));
    }
    all.sort_by_key(|(schedule, candidate)| (candidate.report.total, *schedule));
    let summaries: Vec<_> =
        all.iter().map(|(_, c)| Summary::new(&c.report, &c.program, &machine.name)).collect();
    if options.json {
        return Ok(serde_json::to_string_pretty(&summaries)? + "\n");
    }
    let mut text = String::new();
    if let Some(first) = summaries.first() {
        writeln!(text, "{}\n", first.title())?;
    }
    writeln!(text, "   total ms    GEMM    comm  exposed  bound ratio  schedule")?;
    for ((index, candidate), summary) in all.iter().zip(&summaries) {
        writeln!(
            text,
            "  {:9.3} {:7.3} {:7.3}  {:7.3}  {:11.3}  {index}: {}",
            summary.total_ms,
            summary.gemm_ms,
            summary.comm_ms,
            summary.exposed_ms,
            summary.bound_ratio,
            candidate.name
        )?;
    }
    Ok(text)
}
