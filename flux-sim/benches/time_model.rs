//! The time model against what was measured, and what it costs.
//!
//! `cargo bench -p flux-sim --bench time_model`

use flux_ir::eval::Launch;
use flux_ir::lower::lower;
use flux_ir::{Consumers, Kernel, Order, Schedule, Shape};
use flux_sim::time::{Machine, Options, Symmetry, simulate};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Instant;

fn kernel(name: &str) -> Result<Kernel, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flux-ir/tests/filetests/kernel");
    Ok(fs::read_to_string(folder.join(format!("{name}.flux")))?.parse()?)
}

fn cooperative(columns: u32) -> Schedule {
    Schedule::sm_90a().tile(128, columns, 64)
}

fn ping_pong(columns: u32) -> Schedule {
    cooperative(columns).consumers(Consumers::PingPong)
}

const fn launch(m: u32, n: u32, k: u32, world: u32) -> Launch {
    Launch { shape: Shape { m, n, k }, world, ctas: 132 }
}

fn main() -> Result<(), Box<dyn Error>> {
    plain()?;
    speed()
}

fn error(predicted: f64, measured: f64) -> f64 {
    (predicted / measured - 1.0) * 100.0
}

/// GEMM alone against the faster of two products measured on an H200 (docs/time-model.md): the
/// schedule that is predicted fastest against cuBLAS and a hand-written kernel.
fn plain() -> Result<(), Box<dyn Error>> {
    let machine = Machine::find("h200-pcie")?;
    let gemm = kernel("gemm")?;
    println!("GEMM alone: measured, predicted");
    let mut errors = Vec::new();
    for (m, n, k, measured) in [
        (8192, 6144, 12288, 1.499),
        (4096, 6144, 12288, 0.749),
        (2048, 6144, 12288, 0.376),
        (512, 6144, 12288, 0.104),
        (8192, 24576, 12288, 6.178),
        (4096, 24576, 12288, 3.034),
        (2048, 24576, 12288, 1.503),
        (512, 24576, 12288, 0.382),
        (8192, 3584, 8192, 0.587),
        (4096, 3584, 8192, 0.312),
        (2048, 3584, 8192, 0.173),
        (512, 3584, 8192, 0.042),
        (8192, 12288, 6144, 1.513),
        (4096, 12288, 6144, 0.757),
        (2048, 12288, 6144, 0.382),
        (8192, 12288, 24576, 6.030),
        (4096, 12288, 24576, 3.037),
        (2048, 12288, 24576, 1.501),
        (8192, 8192, 3584, 0.584),
        (4096, 8192, 3584, 0.308),
        (2048, 8192, 3584, 0.161),
        (512, 8192, 3584, 0.042),
    ] {
        let mut best: Option<(f64, Schedule)> = None;
        let wide = [192, 224, 256].map(cooperative).into_iter();
        for schedule in wide.chain([112, 128, 144, 160, 176, 192, 208].map(ping_pong)) {
            let program = lower(&gemm, &schedule.clone().order(Order::Grouped(16)))?;
            let report = simulate(&program, launch(m, n, k, 1), &machine, Options::default())?;
            if best.as_ref().is_none_or(|(least, _)| report.total.ms() < *least) {
                best = Some((report.total.ms(), schedule));
            }
        }
        let Some((predicted, schedule)) = best else { continue };
        errors.push(error(predicted, measured));
        println!(
            "  {m:5} x {n:5} x {k:5}  {measured:.3}  {predicted:.3}  {:+.1} %  {} {}",
            error(predicted, measured),
            schedule.consumers.name(),
            schedule.tile.n
        );
    }
    summary(&errors);
    Ok(())
}

fn summary(errors: &[f64]) {
    let mean = errors.iter().map(|e| e.abs()).sum::<f64>() / errors.len() as f64;
    let worst =
        errors.iter().fold(0.0f64, |worst, e| if e.abs() > worst.abs() { *e } else { worst });
    println!("  mean {mean:.1} %, worst {worst:+.1} %\n");
}

fn speed() -> Result<(), Box<dyn Error>> {
    println!("what a simulation takes, GPT-3 8192 x 49152 x 12288");
    for (name, machine) in [("ag_gemm_gelu", "h200-nvlink"), ("gemm_rs", "h200-nvlink")] {
        let machine = Machine::find(machine)?;
        let program = lower(&kernel(name)?, &Schedule::sm_90a())?;
        let worlds = [8, 64, 512].map(|world| (world, Symmetry::Fold));
        for (world, symmetry) in [(8, Symmetry::All)].into_iter().chain(worlds) {
            let started = Instant::now();
            let options = Options { symmetry, ..Options::default() };
            let report = simulate(&program, launch(8192, 49152, 12288, world), &machine, options)?;
            println!(
                "  {name} world {world} {symmetry:?}: {:.3} s, {} of {world} ranks, {} ops; predicted {}",
                started.elapsed().as_secs_f64(),
                report.timeline.classes,
                report.timeline.ops.len(),
                report.total
            );
        }
    }
    Ok(())
}
