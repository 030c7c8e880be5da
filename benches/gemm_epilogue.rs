//! What a fused epilogue costs: each kernel against the same kernel without it, alternating on one
//! stream, each launch between its own events. Printed are medians and the quartiles of the ratio.
//!
//! ```text
//! cargo bench --bench gemm_epilogue
//! ```

#![expect(unreachable_pub, reason = "kernels stand as they would in a library")]

use flux::prelude::*;
use flux_runtime::{Event, Stream, Timing};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, StandardNormal};
use std::error::Error;
use std::sync::Arc;

#[flux::module]
mod kernels {
    use flux::prelude::*;

    #[kernel]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    pub fn plain(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    pub fn bias_gelu(a: &Global<bf16>, b: &Global<bf16>, bias: &Global<f32>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gelu(gemm(a, b.t(), tile) + bias.cols(tile)));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    pub fn bias_residual(
        a: &Global<bf16>,
        b: &Global<bf16>,
        bias: &Global<f32>,
        residual: &Global<bf16>,
        c: &mut Global<bf16>,
    ) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile) + bias.cols(tile) + residual.load(tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4)]
    pub fn two_products(
        a: &Global<bf16>,
        b: &Global<bf16>,
        b3: &Global<bf16>,
        c: &mut Global<bf16>,
    ) {
        for tile in c.tiles() {
            let gate = gemm(a, b.t(), tile);
            let up = gemm(a, b3.t(), tile);
            c.store(tile, gate + up);
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4)]
    pub fn swiglu(a: &Global<bf16>, b: &Global<bf16>, b3: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let gate = gemm(a, b.t(), tile);
            let up = gemm(a, b3.t(), tile);
            c.store(tile, silu(gate) * up);
        }
    }
}

const SHAPES: [[usize; 3]; 3] = [[2048, 12288, 6144], [4096, 7168, 8192], [8192, 6144, 12288]];

/// Pairs of launches that are timed, after those that are not.
const PAIRS: usize = 21;
const WARM_UP: usize = 3;

type Fallible<T> = Result<T, Box<dyn Error>>;

fn main() -> Fallible<()> {
    let world = match World::virtual_ranks(0, 1) {
        Ok(world) => world,
        Err(reason) => {
            println!("skipped: no CUDA device ({reason})");
            return Ok(());
        }
    };
    println!("{world}");
    println!("epilogue, m x n x k, without ms, with ms, with / without [quartiles]");
    let rank = &world.ranks()[0];
    SHAPES.iter().try_for_each(|&shape| run(rank, shape))
}

fn run(rank: &Rank, [m, n, k]: [usize; 3]) -> Fallible<()> {
    let stream = rank.stream().ok_or("the rank has no stream")?;
    let a = random::<bf16>(rank, m, k, 1, bf16::from_f32)?;
    let b = random::<bf16>(rank, n, k, 2, bf16::from_f32)?;
    let b3 = random::<bf16>(rank, n, k, 3, bf16::from_f32)?;
    let residual = random::<bf16>(rank, m, n, 4, bf16::from_f32)?;
    let bias = random::<f32>(rank, 1, n, 5, |value| value)?;
    let mut c = rank.zeros::<bf16>(m, n)?;
    let plain = kernels::plain::load(rank)?;
    let bias_gelu = kernels::bias_gelu::load(rank)?;
    let bias_residual = kernels::bias_residual::load(rank)?;
    let two_products = kernels::two_products::load(rank)?;
    let swiglu = kernels::swiglu::load(rank)?;
    let mut report = |name, without: Launch<'_>, with: Launch<'_>| -> Fallible<()> {
        let [without, with] = pairs(&stream, [without, with], &mut c)?;
        let ratios: Vec<f32> = without.iter().zip(&with).map(|(x, y)| y / x).collect();
        let [low, middle, high] = [0.25, 0.5, 0.75].map(|at| quantile(&ratios, at));
        let (without, with) = (quantile(&without, 0.5), quantile(&with, 0.5));
        println!(
            "{name}, {m} x {n} x {k}, {without:.4}, {with:.4}, {middle:.3} [{low:.3} {high:.3}]"
        );
        Ok(())
    };
    report("bias + gelu", &|c| plain.launch(&a, &b, c), &|c| bias_gelu.launch(&a, &b, &bias, c))?;
    report("bias + residual", &|c| plain.launch(&a, &b, c), &|c| {
        bias_residual.launch(&a, &b, &bias, &residual, c)
    })?;
    report("swiglu", &|c| two_products.launch(&a, &b, &b3, c), &|c| swiglu.launch(&a, &b, &b3, c))
}

type Launch<'k> = &'k dyn Fn(&mut Tensor<bf16>) -> Result<(), flux::Error>;

/// Milliseconds of each launch of both, pair by pair.
fn pairs(
    stream: &Arc<Stream>,
    both: [Launch<'_>; 2],
    c: &mut Tensor<bf16>,
) -> Fallible<[Vec<f32>; 2]> {
    let mut events = [Vec::new(), Vec::new()];
    for _ in 0..WARM_UP + PAIRS {
        for (launch, events) in both.iter().zip(&mut events) {
            let (start, end) = (
                Event::new(stream.device(), Timing::On)?,
                Event::new(stream.device(), Timing::On)?,
            );
            stream.record(&start)?;
            launch(c)?;
            stream.record(&end)?;
            events.push((start, end));
        }
    }
    stream.synchronize(std::time::Duration::from_secs(60))?;
    let times = |events: &Vec<(Event, Event)>| -> Fallible<Vec<f32>> {
        events[WARM_UP..].iter().map(|(start, end)| Ok(end.ms_since(start)?)).collect()
    };
    Ok([times(&events[0])?, times(&events[1])?])
}

fn random<T: flux::Element>(
    rank: &Rank,
    rows: usize,
    cols: usize,
    seed: u64,
    from: impl Fn(f32) -> T,
) -> Fallible<Tensor<T>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut draw = || {
        let value: f32 = StandardNormal.sample(&mut rng);
        from(value)
    };
    // Drawn once, repeated out of step with the rows.
    let pool: Vec<T> = (0..(1 << 20) + 7).map(|_| draw()).collect();
    let data: Vec<T> = pool.iter().copied().cycle().take(rows * cols).collect();
    Ok(rank.tensor(rows, cols, &data)?)
}

fn quantile(values: &[f32], at: f64) -> f32 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f32::total_cmp);
    sorted[((sorted.len() - 1) as f64 * at).round() as usize]
}
