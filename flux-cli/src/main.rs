//! The `flux` command: shows what a kernel becomes, and checks kernels without building them.

mod check;
mod order;
mod show;
mod source;

use clap::{Args, Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

/// Shows and checks tile-fused compute-communication kernels.
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
  flux check src/                                      every kernel below a folder";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Shows a kernel: its IR, its Program, its PTX or its tile order.
    Show(Show),
    /// Checks kernels: every schedule is lowered and has to pass the checker.
    Check(Check),
}

/// Shows a kernel.
#[derive(Debug, Args)]
struct Show {
    /// `NAME` of a kernel of the library, `FILE.rs:NAME`, or `FILE.flux` with Kernel IR; nothing
    /// lists what there is.
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
    /// The rank whose order is drawn.
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
    #[command(flatten)]
    launch: LaunchOptions,
}

fn main() -> ExitCode {
    let outcome = match Command::parse().verb {
        Verb::Show(options) => show::run(&options).map(|text| (text, ExitCode::SUCCESS)),
        Verb::Check(options) => check::run(&options),
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
