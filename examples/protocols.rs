//! Protocols of one's own: four ways to bring the rows of every rank to a product, each with roles,
//! puts, signals and waits. The checker judges them as it judges any other kernel.
//!
//! ```text
//! cargo run --release --example protocols -- --world host:4
//! cargo run --release --example protocols -- --world gpu:4
//! flux launch -n 4 -- target/release/examples/protocols --world env
//! cargo run -p flux-cli -- show examples/protocols.rs:ring --program
//! ```

#![allow(unreachable_pub, reason = "kernels stand as they would in a library")]

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
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, transport = tma)]
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
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, transport = tma)]
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
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, transport = tma)]
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
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, transport = tma)]
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
    let wrong: usize = world.run(|rank| count_wrong(rank, SHAPE, 2, None))?.into_iter().sum();
    if wrong > 0 {
        return Err(format!("{wrong} elements differ from the plain product").into());
    }
    println!("ring, pulled, sliced and two_levels: every element is that of the plain product");
    Ok(())
}

/// A small integer for each place, other ones in each launch.
fn number(launch: usize, row: usize, col: usize) -> bf16 {
    bf16::from_f32(((row * 31 + col * 17 + launch * 7 + row / 3) % 3) as f32 - 1.0)
}

/// Launches every protocol `launches` times, under the schedule of that number or the one that suits
/// the shape; elements of all outputs that are wrong on this rank.
pub fn count_wrong(
    rank: &Rank,
    [m, n, k]: [usize; 3],
    launches: usize,
    schedule: Option<usize>,
) -> Result<usize, flux::Error> {
    macro_rules! loaded {
        ($kernel:ident) => {
            match schedule {
                None => kernels::$kernel::load(rank)?,
                Some(index) => {
                    let schedules = (kernels::$kernel::definition().schedules)();
                    kernels::$kernel::load_with(rank, &schedules[index])?
                }
            }
        };
    }
    let (ring, pulled) = (loaded!(ring), loaded!(pulled));
    let (sliced, two_levels) = (loaded!(sliced), loaded!(two_levels));
    let mut wrong = 0;
    for launch in 0..launches {
        let matrix = |rows: std::ops::Range<usize>| -> Vec<bf16> {
            rows.flat_map(|row| (0..k).map(move |col| number(launch, row, col))).collect()
        };
        let (a, b) = (matrix(0..m), matrix(m..m + n));
        let a_here = rank.tensor(rank.own_rows(m), k, &matrix(rank.own_range(m)))?;
        let b_here = rank.tensor(n, k, &b)?;
        let expected = product(&a, &b, [m, n, k]);
        let mut check = |run: &dyn Fn(&mut Tensor<bf16>) -> Result<(), flux::Error>| {
            let mut c = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
            run(&mut c)?;
            let found = c.to_vec()?;
            let differ = |(found, expected): &(&bf16, &bf16)| found != expected;
            wrong += found.iter().zip(&expected).filter(differ).count();
            Ok::<_, flux::Error>(())
        };
        check(&|c| ring.launch(&a_here, &b_here, c))?;
        check(&|c| pulled.launch(&a_here, &b_here, c))?;
        check(&|c| sliced.launch(&a_here, &b_here, c))?;
        check(&|c| two_levels.launch(&a_here, &b_here, c))?;
    }
    Ok(wrong)
}

/// `a · bᵀ`, summed in f32: exact on small integers.
fn product(a: &[bf16], b: &[bf16], [m, n, k]: [usize; 3]) -> Vec<bf16> {
    let dot = |row: usize, col: usize| -> f32 {
        let (a, b) = (&a[row * k..][..k], &b[col * k..][..k]);
        a.iter().zip(b).map(|(a, b)| a.to_f32() * b.to_f32()).sum()
    };
    (0..m * n).map(|place| bf16::from_f32(dot(place / n, place % n))).collect()
}
