//! A product of a sum: every rank holds addends of all rows, which roles add up around a ring and hand
//! on, ahead of the tiles that multiply them. A protocol of one's own with `reduce_add`.
//!
//! ```text
//! cargo run --release --example sum_ahead -- --world host:4
//! cargo run --release --example sum_ahead -- --world gpu:4
//! cargo run -p flux-cli -- show examples/sum_ahead.rs:sum_ahead --program
//! ```

#![allow(unreachable_pub, reason = "kernels stand as they would in a library")]

use clap::Parser;
use flux::prelude::*;
use std::error::Error;
use std::process::ExitCode;

#[flux::module]
mod kernels {
    use flux::prelude::*;

    /// C = all_reduce(A) · Bᵀ, B of each rank's own.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, transport = put)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, transport = tma)]
    pub fn sum_ahead(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        let sums = symmetric::<bf16>(Extent::M, Extent::K);
        let laid = signals(world());
        let added = signals(world());
        let whole = signals(world());
        role("sum", || {
            let next = (rank() + 1) % world();
            let before = (rank() + world() - 1) % world();
            // The rank before adds to what is laid here; the sum of its own shard begins here.
            for source in 0..world() {
                let own = sums.put(rank(), a.part(shard(source)));
                laid.signal(before, source, own);
                if source == before {
                    added.signal(rank(), source, own);
                }
            }
            for hop in 1..world() {
                let source = (rank() + world() - hop) % world();
                let here = sums.ready(shard(source), added.wait(source));
                let sent = sums.reduce_add(next, here, laid.wait(source));
                added.signal(next, source, sent);
            }
            // Who owns a shard has its sum, and hands it on.
            let own = sums.ready(shard(rank()), added.wait(rank()));
            whole.signal(rank(), rank(), ());
            if world() > 1 {
                let sent = sums.put(next, own);
                whole.signal(next, rank(), sent);
            }
            for hop in 1..world() - 1 {
                let source = (rank() + world() - hop) % world();
                let here = sums.ready(shard(source), whole.wait(source));
                let sent = sums.put(next, here);
                whole.signal(next, source, sent);
            }
        });
        for tile in c.tiles() {
            let rows = tile.rows();
            let a = sums.ready(rows, whole.wait(owners(rows)));
            c.store(tile, gemm(a, b.t(), tile));
        }
    }
}

/// Multiplies a sum over ranks, and compares with the plain product.
#[derive(Parser)]
struct Options {
    /// The ranks: `host:N` (threads), `gpu:N` (virtual ranks of one GPU) or `devices:0,1`.
    #[arg(long, default_value = "host:4")]
    world: String,
}

/// Rows of the whole output, columns and reduction.
const SHAPE: [usize; 3] = [290, 136, 200];

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
        return Err(format!("{wrong} elements differ from the plain product").into());
    }
    println!("sum_ahead: every element is that of the plain product");
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
        None => kernels::sum_ahead::load(rank)?,
        Some(index) => {
            let schedules = (kernels::sum_ahead::definition().schedules)();
            kernels::sum_ahead::load_with(rank, &schedules[index])?
        }
    };
    let mut wrong = 0;
    for launch in 0..launches {
        let seed = |rank: u32| 100 * launch + rank as usize;
        let addend = |of: u32, row: usize, col: usize| number(seed(of), row, col);
        let a: Vec<bf16> = (0..m * k).map(|at| addend(rank.index(), at / k, at % k)).collect();
        let b: Vec<bf16> = (0..n * k).map(|at| number(launch, at / k + 1000, at % k)).collect();
        let sum: Vec<f32> = (0..m * k)
            .map(|at| (0..rank.world_size()).map(|of| addend(of, at / k, at % k).to_f32()).sum())
            .collect();
        let (a, b_here) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
        let mut c = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
        kernel.launch(&a, &b_here, &mut c)?;
        let dot = |row: usize, col: usize| -> f32 {
            let (a, b) = (&sum[row * k..][..k], &b[col * k..][..k]);
            a.iter().zip(b).map(|(a, b)| a * b.to_f32()).sum()
        };
        let expected = |place: usize| bf16::from_f32(dot(place / n, place % n));
        let found = c.to_vec()?;
        wrong += found.iter().enumerate().filter(|(at, found)| **found != expected(*at)).count();
    }
    Ok(wrong)
}
