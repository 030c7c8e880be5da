//! `flux bench`: the options of the instrument, and where its results go.

mod ranks;

use crate::instrumented::instrumented;
use crate::sim::write_file;
use clap::{Args, Subcommand, ValueEnum};
use flux::Peers;
use flux_bench::chart::Chart;
use flux_bench::device::{
    self, Costs, GemmOptions, GemmRow, Kind, Members, OverlapOptions, OverlapRow, Section, ShareRow,
};
use flux_bench::kernels::{Choice, Layout};
use flux_bench::quick::{self, Operator};
use flux_bench::report::{Measured, Report};
use flux_bench::rotation::Rounds;
use flux_bench::shapes::{self, Dims};
use flux_bench::workload::{self, Phase};

use flux_sim::time::Machine;
use half::{bf16, f16};
use serde::Serialize;
use serde_json::json;
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// What is measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// The product alone against live cuBLASLt.
    Gemm(Gemm),
    /// All-gather + GEMM against its parts, one after the other and in chunks.
    AgGemm(Fused),
    /// GEMM + reduce-scatter against its parts, one after the other and in chunks.
    GemmRs(Fused),
    /// Operators over ranks on several GPUs, against NCCL and cuBLASLt.
    Ranks(ranks::Ranks),
    /// How much of a model's step is communication that nothing hides, before and after fusing.
    Share(Share),
    /// Measures what copies and signals cost here, and writes a machine for `flux sim`.
    Calibrate(Calibrate),
}

/// The machine that is measured.
#[derive(Debug, Args)]
pub(crate) struct Calibrate {
    /// A machine that lends what is not measured: the costs of products and epilogues.
    #[arg(long, default_value = "h200-pcie", value_name = "NAME|FILE.json")]
    machine: String,
    /// Where the peers' memory lies.
    #[arg(long, default_value = "host")]
    peers: Place,
    #[command(flatten)]
    how: How,
}

/// The layers of a model, shared among ranks.
#[derive(Debug, Args)]
pub(crate) struct Share {
    /// The model.
    #[arg(long)]
    model: ModelName,
    /// Ranks that share each layer.
    #[arg(long, default_value_t = 8)]
    tp: u32,
    /// What the model does.
    #[arg(long)]
    phase: PhaseName,
    /// Tokens of one step; 8192 for prefill, 512 for decode, 2048 for train where nothing is said.
    #[arg(long)]
    tokens: Option<usize>,
    /// Where the peers' memory lies.
    #[arg(long, default_value = "host")]
    peers: Place,
    #[command(flatten)]
    how: How,
}

/// Models whose layers are known.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ModelName {
    #[value(name = "gpt3-175b")]
    Gpt3,
    #[value(name = "llama2-70b")]
    Llama2,
}

/// What a model does.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PhaseName {
    /// Reads prompts.
    Prefill,
    /// Writes answers.
    Decode,
    /// Forward and backward.
    Train,
}

/// An operator over ranks, one of them active, its peers nothing but memory.
#[derive(Debug, Args)]
pub(crate) struct Fused {
    /// Where the peers' memory lies.
    #[arg(long, default_value = "host")]
    peers: Place,
    /// The number of ranks.
    #[arg(long, default_value_t = 8)]
    world: u32,
    /// A named set of shapes; `overlap` where no shape is given either.
    #[arg(long)]
    set: Option<FusedSet>,
    /// A shape as M,N,K: all rows, one rank's columns and reduction; may be repeated.
    #[arg(long = "shape", value_name = "M,N,K")]
    shapes: Vec<Dims>,
    /// Which of the kernel's schedules, from 0; the library chooses where nothing is said.
    #[arg(long)]
    schedule: Option<usize>,
    /// Rows of a communication chunk.
    #[arg(long)]
    chunk_rows: Option<u32>,
    /// A further way to run the kernel, measured in the same rotation; may be repeated.
    #[arg(long = "plan", value_name = "SCHEDULE[,chunk=R][,head=R/C][,tail=R/S][,order=NAME]")]
    plans: Vec<Choice>,
    /// In place of a measurement, writes when each tile of one launch of the first shape waited,
    /// computed and stored, as `flux trace` reads it; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

/// Sets of shapes for operators over ranks.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum FusedSet {
    /// GPT-3 175B and Llama-2 70B, M 512 … 8192.
    Overlap,
}

/// Where passive peers have their memory.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Place {
    /// In pinned memory of the host: the link is PCIe.
    Host,
    /// On the same device, copies included that play what they send.
    Device,
    /// On the same device, what they send in place: of a launch their signals are played.
    Resident,
}

/// The product alone.
#[derive(Debug, Args)]
pub(crate) struct Gemm {
    /// A named set of shapes; `large` where no shape is given either.
    #[arg(long)]
    set: Option<GemmSet>,
    /// A shape as M,N,K; may be repeated.
    #[arg(long = "shape", value_name = "M,N,K")]
    shapes: Vec<Dims>,
    /// The format of operands and result.
    #[arg(long, default_value = "bf16")]
    format: Format,
    /// How operands lie in memory.
    #[arg(long, default_value = "nt")]
    layout: LayoutName,
    /// Every row of the project's table: both formats, all sets, layouts and epilogues.
    #[arg(long, conflicts_with_all = ["set", "shapes", "format", "layout", "epilogues", "members"])]
    all: bool,
    /// What fused epilogues cost, against the same kernel without: bias + GELU, bias + residual,
    /// SwiGLU.
    #[arg(long, conflicts_with_all = ["format", "layout", "members"])]
    epilogues: bool,
    /// Each schedule of the kernel that is not far off, and not just the one the library chooses.
    #[arg(long)]
    members: bool,
    /// Of the schedules, those whose text holds this; may be repeated.
    #[arg(long = "match", value_name = "TEXT", requires = "members")]
    matching: Vec<String>,
    #[command(flatten)]
    how: How,
}

/// How operands lie.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LayoutName {
    /// A · Bᵀ.
    Nt,
    /// A · B.
    Nn,
    /// Aᵀ · B.
    Tn,
}

/// Sets of shapes for products.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum GemmSet {
    /// M 512 … 8192 by the models' N and K, and two cubes.
    Large,
    /// M 1 … 256 by the models' N and K.
    Small,
    /// M between tiles, unaligned N, K that is no multiple of 64.
    Ragged,
    /// M 2048 and 8192 by the models' N and K, and a cube.
    Chosen,
}

/// Formats that are measured.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Bf16,
    F16,
}

/// How it is measured and where results go.
#[derive(Debug, Args)]
struct How {
    /// Rounds that count.
    #[arg(long, default_value_t = Rounds::default().measured)]
    rounds: u32,
    /// Rounds before them that warm up.
    #[arg(long, default_value_t = Rounds::default().warm_up)]
    warm_up: u32,
    /// Pause after each run, in times of that run: 0 keeps the chip at work, and at its power cap.
    #[arg(long, default_value_t = Rounds::default().pause)]
    pause: f64,
    /// Milliseconds that the device rests between shapes, at least.
    #[arg(long, default_value_t = 200, value_name = "MS")]
    rest: u64,
    /// Results alone, on ranks of the host: nothing is timed, no device is needed.
    #[arg(long)]
    quick: bool,
    /// Tells every stage on standard error.
    #[arg(long)]
    verbose: bool,
    /// Writes all numbers as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the rows as bars.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl How {
    fn rounds(&self) -> Rounds {
        if self.verbose {
            flux_bench::tell_stages();
        }
        Rounds { warm_up: self.warm_up, measured: self.rounds.max(1), pause: self.pause }
    }

    fn rest(&self) -> Duration {
        Duration::from_millis(self.rest)
    }

    /// Writes what was asked for.
    fn write<R: Serialize>(&self, report: &Report<R>, chart: &Chart) -> Result<(), Box<dyn Error>> {
        if let Some(path) = &self.json {
            report.write_json(path).map_err(|error| failed(path, &error))?;
        }
        if let Some(path) = &self.svg {
            chart.write(path).map_err(|error| failed(path, &*error))?;
        }
        Ok(())
    }
}

fn failed(path: &Path, error: &dyn Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

/// Runs the instrument. Without a device it says `skipped` and succeeds.
pub(crate) fn run(bench: &Bench) -> Result<(String, ExitCode), Box<dyn Error>> {
    if let Some((operator, worlds)) = bench.quick() {
        return Ok((quick(operator, worlds)?, ExitCode::SUCCESS));
    }
    if let Err(reason) = flux_bench::device::available() {
        return Ok((format!("skipped: no CUDA device ({reason})\n"), ExitCode::SUCCESS));
    }
    let text = match bench {
        Bench::Gemm(options) => gemm(options),
        Bench::AgGemm(options) => fused(Kind::Gather, options),
        Bench::GemmRs(options) => fused(Kind::Scatter, options),
        Bench::Ranks(options) => ranks::run(options),
        Bench::Share(options) => share(options),
        Bench::Calibrate(options) => calibrate(options),
    }?;
    Ok((text, ExitCode::SUCCESS))
}

fn gemm(options: &Gemm) -> Result<String, Box<dyn Error>> {
    let how = &options.how;
    let (rounds, rest) = (how.rounds(), how.rest());
    let tell = |row: &Measured<GemmRow>| {
        let GemmRow { section, shape, schedule, ratio, .. } = &row.row;
        progress(&format!("{section}: {shape} {schedule} {:.3}", ratio.median));
    };
    let members = match options.members {
        true => Members::Each(options.matching.clone()),
        false => Members::Chosen,
    };
    let measure = |format, sections: Vec<Section>| {
        let (command, members) = (command(), members.clone());
        let options = GemmOptions { command, sections, members, rounds, rest };
        match format {
            Format::Bf16 => device::gemm::<bf16>(&options, tell),
            Format::F16 => device::gemm::<f16>(&options, tell),
        }
    };
    let sections = options.sections();
    let mut report = measure(options.format, sections)?;
    if options.all {
        report.rows.extend(measure(Format::F16, models())?.rows);
    }
    if options.all || options.epilogues {
        let shapes = match options.all {
            true => shapes::chosen(),
            false => options.shapes(shapes::chosen()),
        };
        report.rows.extend(device::epilogues(&shapes, rounds, rest, tell)?);
    }
    how.write(&report, &device::gemm_chart(&report))?;
    Ok(head(&report) + &device::gemm_table(&report.rows))
}

/// The sets that the library's own choices are judged by.
fn models() -> Vec<Section> {
    let section = |name: &str, shapes| Section { name: name.into(), layout: Layout::Nt, shapes };
    vec![
        section("M 512 … 8192, cuBLASLt / ours", shapes::large()),
        section("M 1 … 256, cuBLASLt / ours", shapes::small()),
    ]
}

impl Gemm {
    /// The shapes that were asked for; `otherwise` where none were.
    fn shapes(&self, otherwise: Vec<Dims>) -> Vec<Dims> {
        let mut shapes = self.shapes.clone();
        match self.set {
            Some(GemmSet::Large) => shapes.extend(shapes::large()),
            Some(GemmSet::Small) => shapes.extend(shapes::small()),
            Some(GemmSet::Ragged) => shapes.extend(shapes::ragged()),
            Some(GemmSet::Chosen) => shapes.extend(shapes::chosen()),
            None if shapes.is_empty() => return otherwise,
            None => {}
        }
        shapes
    }

    /// What is measured against cuBLASLt, but for f16 under `--all`.
    fn sections(&self) -> Vec<Section> {
        let section = |name: String, layout, shapes| Section { name, layout, shapes };
        if self.epilogues {
            return Vec::new();
        }
        if !self.all {
            let (layout, text) = self.layout.layout();
            let name = format!("{text}, cuBLASLt / ours");
            return vec![section(name, layout, self.shapes(shapes::large()))];
        }
        let name = "edges of tiles, cuBLASLt / ours".into();
        let ragged = section(name, Layout::Nt, shapes::ragged());
        let layouts = [LayoutName::Nn, LayoutName::Tn].map(|name| {
            let (layout, text) = name.layout();
            section(format!("{text}, cuBLASLt / ours"), layout, shapes::chosen())
        });
        models().into_iter().chain([ragged]).chain(layouts).collect()
    }
}

impl LayoutName {
    fn layout(self) -> (Layout, &'static str) {
        match self {
            LayoutName::Nt => (Layout::Nt, "A · Bᵀ"),
            LayoutName::Nn => (Layout::Nn, "A · B"),
            LayoutName::Tn => (Layout::Tn, "Aᵀ · B"),
        }
    }
}

fn fused(kind: Kind, options: &Fused) -> Result<String, Box<dyn Error>> {
    let mut shapes = options.shapes.clone();
    if options.set.is_some() || shapes.is_empty() {
        shapes.extend(match kind {
            Kind::Gather => shapes::gathers(options.world),
            Kind::Scatter => shapes::scatters(options.world),
        });
    }
    let (how, peers) = (&options.how, options.peers.peers());
    let (world, rounds, rest, command) = (options.world, how.rounds(), how.rest(), command());
    let (schedule, chunk_rows) = (options.schedule, options.chunk_rows);
    let choice = Choice { schedule, chunk_rows, ..Choice::default() };
    let plans = options.plans.clone();
    let overlap =
        OverlapOptions { command, kind, world, peers, shapes, choice, plans, rounds, rest };
    if let Some(path) = &options.record {
        return record(&overlap, path);
    }
    let report = device::overlap::<bf16>(&overlap, |row: &Measured<OverlapRow>| {
        let OverlapRow { shape, overlap, .. } = &row.row;
        progress(&format!("{shape} {:.3}", overlap.bound_ratio.median));
    })?;
    how.write(&report, &device::overlap_chart(&report))?;
    Ok(head(&report) + &device::overlap_table(&report.rows))
}

/// One launch of the instrumented kernel.
fn record(options: &OverlapOptions, path: &Path) -> Result<String, Box<dyn Error>> {
    let definition = match options.kind {
        Kind::Gather => flux::kernels::ag_gemm::definition(),
        Kind::Scatter => flux::kernels::gemm_rs::definition(),
    };
    let shape = *options.shapes.first().ok_or("expected a shape: --shape M,N,K")?;
    let recording = device::record::<bf16>(options, shape, instrumented(definition)?)?;
    let mut text = String::new();
    if !write_file(path, &(serde_json::to_string(&recording)? + "\n"), &mut text)? {
        text = format!("{}: `flux trace` draws it\n", path.display());
    }
    Ok(text)
}

fn share(options: &Share) -> Result<String, Box<dyn Error>> {
    let model = match options.model {
        ModelName::Gpt3 => workload::GPT3_175B,
        ModelName::Llama2 => workload::LLAMA2_70B,
    };
    let phase = match options.phase {
        PhaseName::Prefill => Phase::Prefill,
        PhaseName::Decode => Phase::Decode,
        PhaseName::Train => Phase::Train,
    };
    let tokens = options.tokens.unwrap_or(phase.tokens());
    let steps = workload::layer(&model, phase, tokens, options.tp as usize)?;
    let (how, peers, world) = (&options.how, options.peers.peers(), options.tp);
    let (rounds, rest, command) = (how.rounds(), how.rest(), command());
    let (kind, shapes, choice) = (Kind::Gather, Vec::new(), Choice::default());
    let plans = Vec::new();
    let overlap =
        OverlapOptions { command, kind, world, peers, shapes, choice, plans, rounds, rest };
    let mut report = device::share::<bf16>(&overlap, &steps, |row: &ShareRow| {
        progress(&format!("{} {:.3}", row.step.name, row.none));
    })?;
    report.title = format!("{}, {phase:?} of {tokens} tokens: {}", model.name, report.title);
    if let Some(path) = &how.json {
        report.write_json(path).map_err(|error| failed(path, &error))?;
    }
    Ok(head(&report) + &device::share_table(&report.rows, model.layers))
}

/// The machine as JSON, to the file asked for or to standard output.
fn calibrate(options: &Calibrate) -> Result<String, Box<dyn Error>> {
    let machine = crate::here::find(&options.machine)?;
    let how = &options.how;
    let costs = device::calibrate(options.peers.peers(), how.rounds())?;
    let measured = measured(machine, &costs, &command())?;
    let text = serde_json::to_string_pretty(&measured)? + "\n";
    let Some(path) = &how.json else { return Ok(text) };
    std::fs::write(path, text).map_err(|error| failed(path, &error))?;
    Ok(format!("{costs:#?}\n"))
}

/// `machine` with what was measured in the place of what it had, each with its source.
fn measured(machine: Machine, costs: &Costs, command: &str) -> Result<Machine, Box<dyn Error>> {
    let mut json = serde_json::to_value(machine)?;
    let wire = costs.copy_wire.iter().map(|(bytes, us)| json!({ "bytes": bytes, "us": us }));
    let numbers = [
        ("compute", "sms", json!(costs.sms)),
        ("memory", "l2_bytes", json!(costs.l2_bytes)),
        ("memory", "local_copy_gbps", json!(costs.local_copy_gbps)),
        ("link", "copy_start_us", json!(costs.copy_start_us)),
        ("link", "copy_gap_us", json!(costs.copy_gap_us)),
        ("link", "copy_wire", json!(wire.collect::<Vec<_>>())),
        ("link", "both_ways", json!(costs.both_ways)),
        ("link", "flag_us", json!(costs.flag_us)),
        ("link", "stream_wait_us", json!(costs.stream_wait_us)),
    ];
    for (part, name, number) in numbers {
        json[part][name] = number;
        json["sources"][format!("{part}.{name}")] = json!(format!("measured: {command}"));
    }
    // Where signals go is a choice of the runtime, not a cost.
    json["link"]["flag_stream"] = json!("own");
    json["sources"]["link.flag_stream"] = json!("flux runtime: signals have a stream of their own");
    json["about"] = json!(format!("{}, copies and signals as measured", costs.device));
    // Read as any other file: ranges are checked, and numbers without a source.
    Ok(Machine::read("what was measured", &json.to_string())?)
}

impl Place {
    fn peers(self) -> Peers {
        match self {
            Place::Host => Peers::Host,
            Place::Device => Peers::Device,
            Place::Resident => Peers::Resident,
        }
    }
}

impl Bench {
    /// The operator, and the worlds it runs in, where results alone are asked for.
    fn quick(&self) -> Option<(Operator, &'static [u32])> {
        let (operator, how): (_, &How) = match self {
            Bench::Gemm(options) => (Operator::Gemm, &options.how),
            Bench::AgGemm(options) => (Operator::Gather, &options.how),
            Bench::GemmRs(options) => (Operator::Scatter, &options.how),
            Bench::Ranks(_) | Bench::Share(_) | Bench::Calibrate(_) => return None,
        };
        let worlds: &[u32] = if operator == Operator::Gemm { &[1] } else { &[1, 2, 4, 8] };
        how.quick.then_some((operator, worlds))
    }
}

/// Results on the host.
fn quick(operator: Operator, worlds: &[u32]) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    for &world in worlds {
        for shape in quick::SHAPES {
            quick::run(operator, world, shape)?;
            text += &format!("ok  {shape} on {world} ranks of the host\n");
        }
    }
    Ok(text)
}

/// What stands above a table.
fn head<R>(report: &Report<R>) -> String {
    let conditions = &report.conditions;
    format!(
        "{}\n{} ({} multiprocessors, L2 {} MiB), driver for CUDA {}; medians of {} rounds after {}, pause {}\n\n",
        report.title,
        conditions.device,
        conditions.sms,
        conditions.l2_bytes >> 20,
        conditions.driver,
        conditions.rounds,
        conditions.warm_up,
        conditions.pause
    )
}

/// Tells whoever waits how far it is.
fn progress(text: &str) {
    // Nobody may be listening.
    let _ = writeln!(io::stderr(), "{text}");
}

/// The command line, without the path of the program.
fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!("flux {}", arguments.join(" "))
}

#[cfg(test)]
mod tests {
    use super::{Costs, measured};
    use flux_sim::time::Machine;

    #[test]
    fn what_is_measured_takes_the_place_of_what_was_assumed() {
        let costs = Costs {
            device: "a device".into(),
            sms: 100,
            l2_bytes: 50 << 20,
            copy_start_us: 4.0,
            copy_gap_us: 2.0,
            copy_wire: vec![(1 << 20, 20.0), (1 << 26, 1200.0)],
            both_ways: 1.05,
            flag_us: 3.0,
            stream_wait_us: 2.5,
            local_copy_gbps: 2000.0,
        };
        let machine = |name| Machine::find(name).unwrap();
        let found = measured(machine("h200-pcie"), &costs, "flux bench calibrate").unwrap();
        assert_eq!(found.sms(), 100);
        assert!(found.sources["link.flag_us"].contains("flux bench calibrate"));
        assert_eq!(found.sources["compute.clock"], machine("h200-pcie").sources["compute.clock"]);
        // A number that no machine has is refused, as in a file.
        let wrong = Costs { both_ways: -1.0, ..costs };
        assert!(measured(machine("h200-pcie"), &wrong, "flux bench calibrate").is_err());
    }
}
