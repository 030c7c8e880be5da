//! `flux bench`: the options of the instrument, and where its results go.

use clap::{Args, Subcommand, ValueEnum};
use flux_bench::chart::Chart;
use flux_bench::device::{self, GemmOptions, GemmRow, Number};
use flux_bench::kernels::Plain;
use flux_bench::report::{Measured, Report};
use flux_bench::rotation::Rounds;
use flux_bench::shapes::{self, Dims};
use half::{bf16, f16};
use serde::Serialize;
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
    #[command(flatten)]
    how: How,
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
    /// Milliseconds that the device rests between shapes, at least.
    #[arg(long, default_value_t = 200, value_name = "MS")]
    rest: u64,
    /// Writes all numbers as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the rows as bars.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl How {
    fn rounds(&self) -> Rounds {
        Rounds { warm_up: self.warm_up, measured: self.rounds.max(1) }
    }

    fn rest(&self) -> Duration {
        Duration::from_millis(self.rest)
    }

    /// Writes what was asked for.
    fn write<R: Serialize>(&self, report: &Report<R>, chart: &Chart) -> Result<(), Box<dyn Error>> {
        let failed = |path: &Path, error: Box<dyn Error>| {
            format!("cannot write {}: {error}", path.display())
        };
        if let Some(path) = &self.json {
            report.write_json(path).map_err(|error| failed(path, error.into()))?;
        }
        if let Some(path) = &self.svg {
            chart.write(path).map_err(|error| failed(path, error))?;
        }
        Ok(())
    }
}

/// Runs the instrument. Without a device it says `skipped` and succeeds.
pub(crate) fn run(bench: &Bench) -> Result<(String, ExitCode), Box<dyn Error>> {
    if let Err(reason) = flux_bench::device::available() {
        return Ok((format!("skipped: no CUDA device ({reason})\n"), ExitCode::SUCCESS));
    }
    let text = match bench {
        Bench::Gemm(options) => match options.format {
            Format::Bf16 => gemm::<bf16>(options),
            Format::F16 => gemm::<f16>(options),
        },
    }?;
    Ok((text, ExitCode::SUCCESS))
}

fn gemm<T: Number + Plain>(options: &Gemm) -> Result<String, Box<dyn Error>> {
    let mut shapes = options.shapes.clone();
    match options.set {
        Some(GemmSet::Large) => shapes.extend(shapes::large()),
        Some(GemmSet::Small) => shapes.extend(shapes::small()),
        Some(GemmSet::Ragged) => shapes.extend(shapes::ragged()),
        None if shapes.is_empty() => shapes = shapes::large(),
        None => {}
    }
    let how = &options.how;
    let command = command();
    let gemm = GemmOptions { command, shapes, rounds: how.rounds(), rest: how.rest() };
    let report = device::gemm::<T>(&gemm, |row: &Measured<GemmRow>| {
        progress(&format!("{} {:.3}", row.row.shape, row.row.ratio.median));
    })?;
    how.write(&report, &device::gemm_chart(&report))?;
    Ok(head(&report) + &device::gemm_table(&report.rows))
}

/// What stands above a table.
fn head<R>(report: &Report<R>) -> String {
    let conditions = &report.conditions;
    format!(
        "{}\n{} ({} multiprocessors, L2 {} MiB), driver for CUDA {}; medians of {} rounds after {}\n\n",
        report.title,
        conditions.device,
        conditions.sms,
        conditions.l2_bytes >> 20,
        conditions.driver,
        conditions.rounds,
        conditions.warm_up
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
