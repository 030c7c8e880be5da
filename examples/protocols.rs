//! Protocols of one's own: four ways to bring the rows of every rank to a product, each with roles,
//! puts, signals and waits. The checker judges them as it judges any other kernel.
//!
//! ```text
//! cargo run --release --example protocols -- --world host:4
//! cargo run --release --example protocols -- --world gpu:4
//! cargo run -p flux-cli -- show examples/protocols.rs:kernels::ring --program
//! ```

#![expect(unreachable_pub, reason = "kernels stand as they would in a library")]

use clap::Parser;
use flux::prelude::*;
use std::error::Error;
use std::process::ExitCode;

#[flux::module]
mod kernels {
    use flux::prelude::*;

    /// Around a ring: each rank hands on what reached it, to the rank before it.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, transport = put)]
    pub fn ring(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        let all = symmetric::<bf16>(Extent::M, Extent::K);
        let arrived = signals(world());
        role("forward", || {
            let own = all.put(rank(), a.part(shard(rank())));
            arrived.signal(rank(), rank(), own);
            let before = (rank() + world() - 1) % world();
            for hop in 0..world() - 1 {
                let source = (rank() + hop) % world();
                let here = all.ready(shard(source), arrived.wait(source));
                let sent = all.put(before, here);
                arrived.signal(before, source, sent);
            }
        });
        for tile in c.tiles() {
            let rows = tile.rows();
            let a = all.ready(rows, arrived.wait(owners(rows)));
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    /// The same ring, pulled: each rank fetches what its neighbor says it has.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, transport = put)]
    pub fn pulled(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        let all = symmetric::<bf16>(Extent::M, Extent::K);
        let arrived = signals(world());
        let offered = signals(world());
        role("fetch", || {
            let before = (rank() + world() - 1) % world();
            let next = (rank() + 1) % world();
            let own = all.put(rank(), a.part(shard(rank())));
            arrived.signal(rank(), rank(), own);
            offered.signal(before, rank(), own);
            for hop in 1..world() {
                let source = (rank() + hop) % world();
                let got = all.get(next, shard(source), offered.wait(source));
                arrived.signal(rank(), source, got);
                offered.signal(before, source, got);
            }
        });
        for tile in c.tiles() {
            let rows = tile.rows();
            let a = all.ready(rows, arrived.wait(owners(rows)));
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    /// To every rank in slices along k: a tile begins when the first slice of its rows is there.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, transport = put)]
    pub fn sliced(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        let all = symmetric::<bf16>(Extent::M, Extent::K);
        let arrived = signals(4 * world());
        role("push", || {
            for hop in 0..world() {
                let to = (rank() + hop) % world();
                for slice in 0..4 {
                    let part = a.part(shard(rank())).cols(k_slice(slice, 4));
                    let sent = all.put(to, part);
                    arrived.signal(to, slice * world() + rank(), sent);
                }
            }
        });
        for tile in c.tiles() {
            let rows = tile.rows();
            let from = owners(rows);
            let mut acc = zeros();
            for k in tile.k_slices(4) {
                let first = k.index() * world();
                let slots = first + from.start..first + from.end;
                let a = all.ready(rows, arrived.wait(slots));
                acc += gemm(a, b.t(), k);
            }
            c.store(tile, acc);
        }
    }

    /// Ranks of one node.
    const NODE: u32 = 2;

    /// On two levels: a shard crosses to each other node once, to the rank of the same place there,
    /// which hands it to its neighbors. The last node may have fewer ranks.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, transport = put)]
    pub fn two_levels(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        let all = symmetric::<bf16>(Extent::M, Extent::K);
        let arrived = signals(world());
        let nodes = world().div_ceil(NODE);
        let node = rank() / NODE;
        role("spread", || {
            let own = a.part(shard(rank()));
            // To the own node, this rank included.
            for other in node * NODE..(node * NODE + NODE).min(world()) {
                let sent = all.put(other, own);
                arrived.signal(other, rank(), sent);
            }
            // Across, to the same place or the last one that there is.
            for hop in 1..nodes {
                let there = (node + hop) % nodes * NODE;
                let to = (there + rank() % NODE).min(world() - 1);
                let sent = all.put(to, own);
                arrived.signal(to, rank(), sent);
            }
            // What has come across goes on to the neighbors.
            for hop in 1..nodes {
                let there = (node + nodes - hop) % nodes * NODE;
                for source in there..(there + NODE).min(world()) {
                    let carrier = (node * NODE + source % NODE).min(world() - 1);
                    if carrier == rank() {
                        let here = all.ready(shard(source), arrived.wait(source));
                        for other in node * NODE..(node * NODE + NODE).min(world()) {
                            if other != rank() {
                                let sent = all.put(other, here);
                                arrived.signal(other, source, sent);
                            }
                        }
                    }
                }
            }
        });
        for tile in c.tiles() {
            let rows = tile.rows();
            let a = all.ready(rows, arrived.wait(owners(rows)));
            c.store(tile, gemm(a, b.t(), tile));
        }
    }
}

/// Runs four all-gathers that feed a product, and compares each with the plain product.
#[derive(Parser)]
struct Options {
    /// The ranks: `host:N` (threads), `gpu:N` (virtual ranks of one GPU) or `devices:0,1`.
    #[arg(long, default_value = "host:4")]
    world: String,
}

/// Rows of the whole output, columns and reduction.
const SHAPE: [usize; 3] = [700, 520, 328];

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
    let wrong: usize = world.run(run_rank)?.into_iter().sum();
    if wrong > 0 {
        return Err(format!("{wrong} elements differ from the plain product").into());
    }
    println!("ring, pulled, sliced and two_levels: every element is that of the plain product");
    Ok(())
}

/// A small integer for each place.
fn number(row: usize, col: usize) -> bf16 {
    bf16::from_f32(((row * 31 + col * 17) % 3) as f32 - 1.0)
}

/// Elements of all launches that are wrong on this rank.
fn run_rank(rank: &Rank) -> Result<usize, flux::Error> {
    let [m, n, k] = SHAPE;
    let matrix = |rows: std::ops::Range<usize>| -> Vec<bf16> {
        rows.flat_map(|row| (0..k).map(move |col| number(row, col))).collect()
    };
    let own = matrix(rank.own_range(m));
    let (a, b) = (matrix(0..m), matrix(m..m + n));
    let a_here = rank.tensor(rank.own_rows(m), k, &own)?;
    let b_here = rank.tensor(n, k, &b)?;
    let dot = |row: usize, col: usize| -> f32 {
        let (a, b) = (&a[row * k..][..k], &b[col * k..][..k]);
        a.iter().zip(b).map(|(a, b)| a.to_f32() * b.to_f32()).sum()
    };
    let expected: Vec<bf16> =
        (0..m * n).map(|place| bf16::from_f32(dot(place / n, place % n))).collect();
    let ring = kernels::ring::load(rank)?;
    let pulled = kernels::pulled::load(rank)?;
    let sliced = kernels::sliced::load(rank)?;
    let two_levels = kernels::two_levels::load(rank)?;
    let mut wrong = 0;
    for launch in 0..4 {
        let mut c = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
        match launch {
            0 => ring.launch(&a_here, &b_here, &mut c)?,
            1 => pulled.launch(&a_here, &b_here, &mut c)?,
            2 => sliced.launch(&a_here, &b_here, &mut c)?,
            _ => two_levels.launch(&a_here, &b_here, &mut c)?,
        }
        let found = c.to_vec()?;
        wrong += found.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
    }
    Ok(wrong)
}
