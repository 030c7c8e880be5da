//! The time model against what was measured, and what it costs.
//!
//! `cargo bench -p flux-sim --bench time_model`

use flux_ir::eval::Launch;
use flux_ir::lower::lower;
use flux_ir::{Consumers, Grid, Kernel, Order, Program, Schedule, Shape, TileCoord};
use flux_sim::time::{Machine, Options, Peers, simulate};
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

/// Groups of so many tile rows, the last size again and again, in the order in which shards
/// arrive.
fn growing(sizes: &'static [u32]) -> Order {
    Order::custom("growing", move |step, grid: &Grid, rank, world| {
        let mut rows: Vec<u32> = Vec::new();
        for hop in 0..world {
            let shard = (rank + world - hop) % world;
            rows.extend((0..grid.rows).filter(|&m| grid.owners(m).1 == shard));
        }
        let (mut first, mut before) = (0, 0);
        for index in 0.. {
            let size = sizes.get(index).or(sizes.last()).copied().unwrap_or(1).max(1);
            let taken = size.min(rows.len() as u32 - first);
            if step < before + taken * grid.cols {
                let within = step - before;
                let m = rows[(first + within % taken) as usize];
                return TileCoord { m, n: within / taken };
            }
            first += taken;
            before += taken * grid.cols;
        }
        TileCoord { m: 0, n: 0 }
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    plain()?;
    gathers()?;
    speed()
}

fn error(predicted: f64, measured: f64) -> f64 {
    (predicted / measured - 1.0) * 100.0
}

/// `hopper-gemm.md` 1a and `overlap.md` 1a, 1b: GEMM alone.
fn plain() -> Result<(), Box<dyn Error>> {
    let machine = Machine::find("h200-pcie")?;
    let gemm = kernel("gemm")?;
    println!("GEMM alone, overlap.md 1a and 1b, 'ours'");
    let mut errors = Vec::new();
    for (m, n, k, measured) in [
        (8192, 6144, 12288, 1.505),
        (4096, 6144, 12288, 0.755),
        (2048, 6144, 12288, 0.376),
        (512, 6144, 12288, 0.104),
        (8192, 24576, 12288, 6.183),
        (4096, 24576, 12288, 3.041),
        (2048, 24576, 12288, 1.503),
        (512, 24576, 12288, 0.382),
        (8192, 3584, 8192, 0.628),
        (4096, 3584, 8192, 0.312),
        (2048, 3584, 8192, 0.194),
        (512, 3584, 8192, 0.045),
        (8192, 12288, 6144, 1.539),
        (4096, 12288, 6144, 0.757),
        (2048, 12288, 6144, 0.382),
        (8192, 12288, 24576, 6.208),
        (4096, 12288, 24576, 3.076),
        (2048, 12288, 24576, 1.507),
        (8192, 8192, 3584, 0.584),
        (4096, 8192, 3584, 0.313),
        (2048, 8192, 3584, 0.175),
        (512, 8192, 3584, 0.060),
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

/// m, n, k, world, tile columns, chunk rows, groups of tile rows, fused ms, comm ms.
type Row = (u32, u32, u32, u32, u32, Option<u32>, &'static [u32], f64, f64);

/// Rows of `overlap.md` 1a whose schedule has no K slices.
fn gathers() -> Result<(), Box<dyn Error>> {
    let machine = Machine::find("h200-pcie")?;
    let ag = kernel("ag_gemm_gelu")?;
    println!("all-gather + GEMM, overlap.md 1a: fused (predicted), comm (predicted)");
    let options = Options { peers: Peers::Passive, ..Options::default() };
    let mut errors = Vec::new();
    let rows: [Row; 10] = [
        (8192, 24576, 12288, 8, 176, None, &[8], 6.076, 3.217),
        (4096, 24576, 12288, 8, 176, None, &[4, 4, 8], 3.032, 1.617),
        (2048, 24576, 12288, 8, 176, None, &[2, 2, 4], 1.558, 0.822),
        (512, 24576, 12288, 8, 192, None, &[1, 2, 1], 0.530, 0.225),
        (8192, 24576, 12288, 2, 176, Some(1024), &[8], 6.083, 1.828),
        (2048, 24576, 12288, 2, 176, Some(512), &[8], 1.511, 0.463),
        (512, 24576, 12288, 2, 192, None, &[2], 0.407, 0.123),
        (8192, 6144, 12288, 8, 176, None, &[8], 3.467, 3.201),
        (8192, 6144, 12288, 8, 176, Some(512), &[4], 3.395, 3.201),
        (8192, 6144, 12288, 8, 176, Some(256), &[2], 3.53, 3.201),
    ];
    for (m, n, k, world, columns, chunk, groups, fused, comm) in rows {
        let mut schedule = ping_pong(columns).order(growing(groups));
        if let Some(rows) = chunk {
            schedule = schedule.chunk_rows(rows);
        }
        let program: Program = lower(&ag, &schedule)?;
        let report = simulate(&program, launch(m, n, k, world), &machine, options)?;
        errors.push(error(report.total.ms(), fused));
        println!(
            "  W {world} {m:5} x {n:5} x {k:5} {chunk:?}  fused {fused:.3} {:.3} {:+.1} %  comm {comm:.3} {:.3} {:+.1} %  gemm {:.3}",
            report.total.ms(),
            error(report.total.ms(), fused),
            report.comm.ms(),
            error(report.comm.ms(), comm),
            report.gemm.ms(),
        );
    }
    summary(&errors);
    Ok(())
}

fn speed() -> Result<(), Box<dyn Error>> {
    println!("what a simulation takes, GPT-3 8192 x 49152 x 12288");
    for (name, machine) in [("ag_gemm_gelu", "h200-nvlink"), ("gemm_rs", "h200-nvlink")] {
        let machine = Machine::find(machine)?;
        let program = lower(&kernel(name)?, &Schedule::sm_90a())?;
        for (world, symmetry) in [
            (8, flux_sim::time::Symmetry::Fold),
            (8, flux_sim::time::Symmetry::All),
            (64, flux_sim::time::Symmetry::Fold),
            (512, flux_sim::time::Symmetry::Fold),
        ] {
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
