//! An all-reduce for few rows, in one step: tiles are put to every rank, each element tells by itself that it has come,
//! and every rank adds up. A sum of one's own, without a signal behind the data.
//!
//! ```text
//! cargo run --release --example low_latency -- --world host:4
//! cargo run --release --example low_latency -- --world gpu:4
//! cargo run -p flux-cli -- show examples/low_latency.rs:low_latency --program
//! ```

#![allow(unreachable_pub, reason = "kernels stand as they would in a library")]

use clap::Parser;
use flux::prelude::*;
use std::error::Error;
use std::process::ExitCode;

#[flux::module]
mod kernels {
    use flux::prelude::*;

    /// C = all_reduce(A · Bᵀ) + bias, the same bias on all ranks.
    #[kernel]
    #[schedule(sm_90a, tile = (16, 64, 64), stages = 16, consumers = single)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single)]
    pub fn low_latency(
        a: &Global<bf16>,
        b: &Global<bf16>,
        bias: &Global<f32>,
        c: &mut Global<bf16>,
    ) {
        let parts = flagged::<bf16>(Extent::M, Extent::N);
        for tile in c.tiles() {
            let part = gemm(a, b.t(), tile);
            for hop in 1..world() {
                parts.put((rank() + hop) % world(), tile, part);
            }
            c.store(tile, parts.sum(tile, part) + bias.cols(tile));
        }
    }
}

/// Sums products over ranks, and compares with the plain sum.
#[derive(Parser)]
struct Options {
    /// The ranks: `host:N` (threads), `gpu:N` (virtual ranks of one GPU) or `devices:0,1`.
    #[arg(long, default_value = "host:4")]
    world: String,
}

/// Rows of the whole output, columns and reduction.
const SHAPE: [usize; 3] = [19, 136, 200];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let world: World = Options::parse().world.parse()?;
    println!("world: {world}");
    let wrong: usize = world.run(|rank| count_wrong(rank, SHAPE, 3, None))?.into_iter().sum();
    if wrong > 0 {
        return Err(format!("{wrong} elements differ from the plain sum").into());
    }
    println!("low_latency: every element is that of the plain sum");
    Ok(())
}

/// A small integer for each place, other ones in each launch and on each rank.
fn number(seed: usize, row: usize, col: usize) -> bf16 {
    bf16::from_f32(((row * 31 + col * 17 + seed * 7 + row / 3) % 3) as f32 - 1.0)
}

/// Launches `launches` times, under the schedule of that number or the one that suits the shape;
/// elements of all outputs that are wrong on this rank.
pub fn count_wrong(
    rank: &Rank,
    [m, n, k]: [usize; 3],
    launches: usize,
    schedule: Option<usize>,
) -> Result<usize, flux::Error> {
    let kernel = match schedule {
        None => kernels::low_latency::load(rank)?,
        Some(index) => {
            let schedules = (kernels::low_latency::definition().schedules)();
            kernels::low_latency::load_with(rank, &schedules[index])?
        }
    };
    let mut wrong = 0;
    for launch in 0..launches {
        let seed = |of: usize| 100 * launch + of;
        let numbers = |of: usize, rows: usize, first: usize| -> Vec<bf16> {
            (0..rows * k).map(|at| number(seed(of), at / k + first, at % k)).collect()
        };
        let ranks = 0..rank.world_size() as usize;
        let all: Vec<_> = ranks.map(|of| (numbers(of, m, 0), numbers(of, n, 1000))).collect();
        let bias: Vec<f32> = (0..n).map(|col| number(launch, 7, col).to_f32()).collect();
        let (a, b) = &all[rank.index() as usize];
        let (a, b) = (rank.tensor(m, k, a)?, rank.tensor(n, k, b)?);
        let mut c = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
        kernel.launch(&a, &b, &rank.tensor(1, n, &bias)?, &mut c)?;
        let dot = |(a, b): &(Vec<bf16>, Vec<bf16>), row: usize, col: usize| -> f32 {
            let (a, b) = (&a[row * k..][..k], &b[col * k..][..k]);
            a.iter().zip(b).map(|(a, b)| a.to_f32() * b.to_f32()).sum()
        };
        let expected = |row: usize, col: usize| {
            bf16::from_f32(all.iter().map(|of| dot(of, row, col)).sum::<f32>() + bias[col])
        };
        let found = c.to_vec()?;
        wrong += (0..m * n).filter(|&at| found[at] != expected(at / n, at % n)).count();
    }
    Ok(wrong)
}
