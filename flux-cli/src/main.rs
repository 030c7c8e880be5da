//! The `flux` command: shows what a kernel becomes, checks kernels without building them, and
//! measures them.

mod bench;
mod build;
mod check;
mod explain;
mod here;
mod instrumented;
mod launch;
mod order;
mod show;
mod sim;
mod source;
mod topo;
mod trace;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use flux_ir::check::Element;
use flux_ir::eval::Launch;
use flux_ir::{Departure, Head, Shape, Tail};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Shows, checks and measures tile-fused compute-communication kernels.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  flux show                                            the kernels that come with the library
  flux show ag_gemm --program                          what a kernel does on every rank
  flux show examples/tp_mlp.rs:ag_gemm_gelu --ptx      a kernel of one's own, without building it
  flux show gemm_rs --order --m 2048 --world 4         the sequence of tiles, as a grid
  flux check src/                                      every kernel below a folder
  flux check --explain gemm_rs --m 4096 --world 8      why one launch is right, or what is wrong
  flux check --explain ag_gemm --svg ag_gemm.svg       a small launch as a picture
  flux build --bundle src/mlp.rs:gemm_rs -o mlp.flux-bundle
                                                       a kernel as a file, to load without a compiler
  flux sim ag_gemm --m 8192 --n 49152 --k 12288 --world 8 --machine h200-nvlink
                                                       what a launch takes, and what it waits for
  flux bench gemm --set large --svg gemm.svg           products against live cuBLASLt
  flux launch -n 4 -- my_program --world env           four processes, each of them a rank
  flux topo                                            the GPUs of this machine and their links
  flux topo --machine                                  the same for flux sim, as far as it can be read";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Shows a kernel: its IR, its Program, its PTX or its tile order.
    Show(Show),
    /// Checks kernels: every schedule is lowered and has to pass the checker.
    Check(Check),
    /// Compiles kernels to bundles, which programs in Rust, C or Python load without a compiler.
    Build(Build),
    /// Predicts what a launch takes on a machine, without a GPU.
    Sim(Sim),
    /// Draws when the tiles of a launch waited, computed and stored, from a recording.
    Trace(Trace),
    /// Measures: every contestant in one run, in turn, verified.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Starts a program as the ranks of a world: processes of this machine.
    Launch(launch::Launch),
    /// Shows the GPUs of this machine, what links them, and which part of the host is near each.
    Topo(Topo),
}

/// Shows the GPUs of this machine.
#[derive(Debug, Args)]
struct Topo {
    /// Prints this machine for `flux sim --machine FILE.json` instead: what can be read, and of the
    /// nearest machine that comes with the library what cannot.
    #[arg(long)]
    machine: bool,
}

/// Shows a kernel.
#[derive(Debug, Args)]
struct Show {
    /// `NAME` of a kernel of the library, `FILE.rs:NAME`, or `FILE.flux` with Kernel IR or a
    /// Program; nothing lists what there is.
    kernel: Option<String>,
    /// The Kernel IR: what the user wrote.
    #[arg(long)]
    ir: bool,
    /// The Program: what will happen on every rank.
    #[arg(long)]
    program: bool,
    /// The machine code.
    #[arg(long)]
    ptx: bool,
    /// The tile order as a grid: the step at which each tile is visited.
    #[arg(long)]
    order: bool,
    /// Which of the kernel's schedules, from 0.
    #[arg(long, default_value_t = 0)]
    schedule: usize,
    #[command(flatten)]
    launch: LaunchOptions,
}

/// The launch whose tile order is drawn, or that is checked exactly.
#[derive(Debug, Clone, Args)]
struct LaunchOptions {
    /// Rows of the output, over all ranks.
    #[arg(long, default_value_t = 2048)]
    m: u32,
    /// Columns of the output.
    #[arg(long, default_value_t = 2048)]
    n: u32,
    /// Length of the reduction.
    #[arg(long, default_value_t = 1024)]
    k: u32,
    /// The number of ranks.
    #[arg(long, default_value_t = 4)]
    world: u32,
    /// The rank whose order is drawn, or whose memory is asked about.
    #[arg(long, default_value_t = 0)]
    rank: u32,
    /// CTAs of each rank's grid.
    #[arg(long, default_value_t = 132)]
    ctas: u32,
    /// A built-in order in place of the schedule's own.
    #[arg(long = "by")]
    order_name: Option<String>,
}

/// Checks kernels.
#[derive(Debug, Args)]
struct Check {
    /// `.rs` files, folders, `FILE.rs:NAME`, `.flux` files, or names of kernels of the library;
    /// nothing checks the whole library.
    kernels: Vec<String>,
    /// Also checks one exact launch, given by --m, --n, --k, --world and --ctas.
    #[arg(long)]
    exact: bool,
    /// Explains one launch of one kernel: the exact one where --m, --n, --k, --world or --ctas is
    /// given, else the smallest that is rejected, or one that is small.
    #[arg(long)]
    explain: bool,
    /// The element that is argued about, as BUFFER[ROW,COLUMN]; --rank is whose memory it lies in.
    #[arg(long, requires = "explain")]
    element: Option<Element>,
    /// The launch that is argued about, from 1: of consecutive ones.
    #[arg(long = "launch", requires = "explain")]
    epoch: Option<u32>,
    /// Draws the launch as a Graphviz graph; `-` is standard output.
    #[arg(long, value_name = "FILE", requires = "explain")]
    dot: Option<PathBuf>,
    /// Draws the launch as an SVG image; `-` is standard output.
    #[arg(long, value_name = "FILE", requires = "explain")]
    svg: Option<PathBuf>,
    /// Which of the kernel's schedules is explained, from 0.
    #[arg(long, default_value_t = 0, requires = "explain")]
    schedule: usize,
    #[command(flatten)]
    launch: LaunchOptions,
}

/// Compiles kernels to bundles.
#[derive(Debug, Args)]
struct Build {
    /// `FILE.rs:NAME`, `NAME` of a kernel of the library, or, where the output is a folder, a file or a
    /// folder with several: all of its schedules are lowered, checked and compiled.
    #[arg(long, value_name = "KERNEL")]
    bundle: String,
    /// The file that is written, or a folder, for files named NAME.flux-bundle.
    #[arg(short, long, value_name = "PATH")]
    output: String,
}

/// Predicts what a launch takes on a machine.
#[derive(Debug, Args)]
struct Sim {
    /// `NAME` of a kernel of the library, `FILE.rs:NAME`, or `FILE.flux` with Kernel IR or a
    /// Program.
    kernel: String,
    /// A machine that comes with the library, `here` for the one that this runs on, or `FILE.json`
    /// with one of your own.
    #[arg(long, default_value = "h200-nvlink")]
    machine: String,
    /// Which of the kernel's schedules, from 0.
    #[arg(long, default_value_t = 0)]
    schedule: usize,
    /// Predicts every schedule of the kernel, and puts the fastest first.
    #[arg(long, conflicts_with_all = ["schedule", "svg", "trace", "record"])]
    schedules: bool,
    /// Rows that are sent, and waited for, together, in place of the schedule's own.
    #[arg(long, value_name = "ROWS")]
    chunk_rows: Option<u32>,
    /// Rows of a scattered output that are sent first, and the number of copies they go in, in place
    /// of the schedule's own.
    #[arg(long, value_name = "ROWS,COPIES", value_parser = sim::head)]
    head: Option<Head>,
    /// Rows that are walked together where contributions leave and arrive in small chunks, and
    /// shards that are between.
    #[arg(long, value_name = "ROWS,SHARDS", value_parser = sim::departure)]
    departure: Option<Departure>,
    /// Ranks of a node: shards go to those of other nodes over the machine's network, put by copy
    /// warps as all others.
    #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..=64))]
    node: Option<u32>,
    /// Rows at the end of the last shard that travel in slices, and how many slices, in place of
    /// the schedule's own.
    #[arg(long, value_name = "ROWS,SLICES", value_parser = sim::tail)]
    tail: Option<Tail>,
    /// Consecutive launches; the last is reported.
    #[arg(long, default_value_t = 1)]
    launches: u32,
    /// Links are loaded in one direction at a time, as where peers are memory.
    #[arg(long)]
    passive_peers: bool,
    /// Simulates every rank, also those that do the same as others.
    #[arg(long)]
    every_rank: bool,
    /// Prints JSON in place of a table.
    #[arg(long)]
    json: bool,
    /// Draws what --rank does as an SVG image; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Writes the timeline as a Chrome trace, for Perfetto; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Writes when each tile waits, computes and stores, as `flux trace` reads it; `-` is
    /// standard output.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    launch: LaunchOptions,
}

/// Draws a recording.
#[derive(Debug, Args)]
struct Trace {
    /// The recording: a JSON file, from an instrumented kernel or `flux sim --record`.
    recording: PathBuf,
    /// The rank that is drawn.
    #[arg(long, default_value_t = 0)]
    rank: u32,
    /// Draws what --rank did as an SVG image; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Writes the timeline as a Chrome trace, for Perfetto; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl LaunchOptions {
    /// The launch.
    fn exact(&self) -> Launch {
        let shape = Shape { m: self.m, n: self.n, k: self.k };
        Launch { shape, world: self.world, ctas: self.ctas }
    }
}

/// Whether one of some options was given.
fn given(matches: &ArgMatches, options: &[&str]) -> bool {
    let Some((_, matches)) = matches.subcommand() else { return false };
    options.iter().any(|option| matches.value_source(option) == Some(ValueSource::CommandLine))
}

fn main() -> ExitCode {
    let matches = Command::command().get_matches();
    let verb = match Command::from_arg_matches(&matches) {
        Ok(command) => command.verb,
        Err(error) => error.exit(),
    };
    let outcome = match verb {
        Verb::Show(options) => show::run(&options).map(|text| (text, ExitCode::SUCCESS)),
        Verb::Check(options) if options.explain => {
            let asked = explain::Asked {
                launch: given(&matches, &["m", "n", "k", "world", "ctas"]),
                rank: given(&matches, &["rank"]),
            };
            explain::run(&options, asked)
        }
        Verb::Check(options) => check::run(&options),
        Verb::Build(options) => build::run(&options).map(|text| (text, ExitCode::SUCCESS)),
        Verb::Trace(options) => trace::run(&options).map(|text| (text, ExitCode::SUCCESS)),
        Verb::Sim(options) => {
            let ctas = given(&matches, &["ctas"]);
            sim::run(&options, ctas).map(|text| (text, ExitCode::SUCCESS))
        }
        Verb::Bench(bench) => bench::run(&bench),
        Verb::Launch(options) => launch::run(&options).map(|code| (String::new(), code)),
        Verb::Topo(Topo { machine: false }) => Ok((topo::run(), ExitCode::SUCCESS)),
        Verb::Topo(Topo { machine: true }) => here::json().map(|text| (text, ExitCode::SUCCESS)),
    };
    match outcome {
        Ok((text, code)) => match io::stdout().lock().write_all(text.as_bytes()) {
            // Whoever reads has seen enough: `flux show … | head`.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(&error),
            Ok(()) | Err(_) => code,
        },
        Err(error) => fail(&*error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}
