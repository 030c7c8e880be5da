//! What the checker costs: the family of a kernel, exact launches, and how cost grows.
//!
//! `cargo bench -p flux-ir --bench check`; a name as argument takes that kernel alone, in a
//! process of its own, whose peak memory is then its own as well.

use flux_ir::check::{Verified, verify};
use flux_ir::eval::Launch;
use flux_ir::lower::lower;
use flux_ir::{Kernel, Schedule, Shape};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Instant;

const KERNELS: [&str; 4] = ["ag_gemm_gelu", "gemm_rs", "ag_gemm_rs_gated", "gemm"];

/// Exact launches are repeated so often; the family once more than that.
const ROUNDS: usize = 7;

/// CTAs of a grid on a device with as many multiprocessors.
const CTAS: u32 = 132;

fn main() -> Result<(), Box<dyn Error>> {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    for name in KERNELS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            kernel(name)?;
        }
    }
    if let Some(peak) = peak_memory() {
        println!("peak memory of all of the above: {peak}");
    }
    Ok(())
}

fn kernel(name: &str) -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/kernel");
    let kernel: Kernel = fs::read_to_string(folder.join(format!("{name}.flux")))?.parse()?;
    let schedule = match name {
        // Two accumulators share the registers.
        "ag_gemm_rs_gated" => Schedule::sm_90a().tile(128, 128, 64),
        _ => Schedule::sm_90a(),
    };
    let program = lower(&kernel, &schedule)?;
    let family = median(|| {
        let started = Instant::now();
        verify(program.clone()).map(|_| started.elapsed().as_secs_f64())
    })?;
    println!("{name}: family {:.1} ms", family * 1e3);
    let verified = verify(program)?;
    println!("  m x n x k, world: ms, ns for each tile of each rank and launch");
    for (m, n, k, world) in [
        // GPT-3 175B: whole, at a quarter and a sixteenth of its columns, and over 64 ranks.
        (8192, 49152, 12288, 8),
        (8192, 12288, 12288, 8),
        (8192, 3072, 12288, 8),
        (8192, 49152, 12288, 64),
        // Llama-2 70B.
        (8192, 28672, 8192, 8),
    ] {
        exact(&verified, Launch { shape: Shape { m, n, k }, world, ctas: CTAS })?;
    }
    Ok(())
}

fn exact(verified: &Verified, launch: Launch) -> Result<(), Box<dyn Error>> {
    let seconds = median(|| {
        let started = Instant::now();
        verified.check_launch(launch).map(|()| started.elapsed().as_secs_f64())
    })?;
    let (tile, Shape { m, n, .. }) = (verified.program().tile, launch.shape);
    let tiles = u64::from(m.div_ceil(tile.m)) * u64::from(n.div_ceil(tile.n));
    let all = (tiles * u64::from(launch.world) * u64::from(flux_ir::check::EPOCHS)) as f64;
    let (ms, each) = (seconds * 1e3, seconds * 1e9 / all);
    println!("  {}, {}: {ms:.1}, {each:.0}", launch.shape, launch.world);
    Ok(())
}

/// The median of what `measure` gives.
fn median<E>(mut measure: impl FnMut() -> Result<f64, E>) -> Result<f64, E> {
    let mut times = (0..ROUNDS).map(|_| measure()).collect::<Result<Vec<_>, E>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

/// The largest amount of memory this process held, as Linux gives it.
fn peak_memory() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().to_owned())
}
