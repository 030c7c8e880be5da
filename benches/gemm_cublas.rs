//! The GEMM without communication against live cuBLASLt, interleaved in one run.
//!
//! ```text
//! cargo bench --bench gemm_cublas            # 8192³ and the square and model shapes
//! cargo bench --bench gemm_cublas -- 4096 4096 4096
//! ```
//!
//! Both multiply the same operands, which rotate over more than twice the L2 cache; data are
//! random; the two alternate on one stream, each launch between its own events. Printed are medians
//! and the quartiles of the ratio. Results are compared with each other in the same run.

use flux::prelude::*;
use flux_runtime::blas::{Blas, GemmShape};
use flux_runtime::{ElementKind, Event, Stream, Timing};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, StandardNormal};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

const SHAPES: [[usize; 3]; 6] = [
    [8192, 8192, 8192],
    [4096, 4096, 4096],
    [8192, 6144, 12288],
    [2048, 6144, 12288],
    [2048, 12288, 6144],
    [2048, 7168, 8192],
];

/// Pairs of launches that are timed, after those that are not.
const PAIRS: usize = 31;
const WARM_UP: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let world = match World::virtual_ranks(0, 1) {
        Ok(world) => world,
        Err(reason) => {
            println!("skipped: no CUDA device ({reason})");
            return Ok(());
        }
    };
    println!("{world}");
    println!("m x n x k, ours ms, cuBLASLt ms, ours TFLOP/s, cuBLASLt / ours [quartiles]");
    let numbers: Vec<usize> = std::env::args().filter_map(|text| text.parse().ok()).collect();
    let shapes: Vec<[usize; 3]> = match numbers[..] {
        [m, n, k] => vec![[m, n, k]],
        _ => SHAPES.to_vec(),
    };
    let ranks = world.ranks();
    for shape in shapes {
        run(&ranks[0], shape)?;
        // Lets the chip cool, so that a shape does not pay for the one before.
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

fn run(rank: &Rank, [m, n, k]: [usize; 3]) -> Result<(), Box<dyn Error>> {
    let (Some(stream), Some(device)) = (rank.stream(), rank.device()) else {
        return Err("the rank has no device".into());
    };
    let set_bytes = 2 * (m * k + n * k + m * n) as u64;
    let sets = (2 * device.properties().l2_bytes).div_ceil(set_bytes).max(2) as usize + 1;
    let kernel = flux::kernels::gemm_bf16::load(rank)?;
    let a = operands(rank, sets, m, k, 1)?;
    let b = operands(rank, sets, n, k, 2)?;
    let mut c = (0..sets).map(|_| rank.zeros(m, n)).collect::<Result<Vec<_>, _>>()?;
    let d = (0..sets).map(|_| rank.zeros(m, n)).collect::<Result<Vec<_>, _>>()?;
    let blas = Blas::new(&device)?;
    let shape = GemmShape {
        element: ElementKind::Bf16,
        m: m as u64,
        n: n as u64,
        k: k as u64,
        alignment: 16,
    };
    let mut gemm = blas.gemm(shape)?;
    let limit = Duration::from_secs(60);
    gemm.tune(&stream, span(&a[0])?, span(&b[0])?, span(&d[0])?, 5, limit)?;

    let mut times = [Vec::new(), Vec::new()];
    for pair in 0..WARM_UP + PAIRS {
        let (ours, theirs) = (pair % sets, (pair + sets / 2) % sets);
        let first = timed(&stream, || Ok(kernel.launch(&a[ours], &b[ours], &mut c[ours])?))?;
        let second = timed(&stream, || {
            Ok(gemm.run(&stream, span(&a[theirs])?, span(&b[theirs])?, span(&d[theirs])?)?)
        })?;
        if pair >= WARM_UP {
            times[0].push(first);
            times[1].push(second);
        }
    }
    rank.synchronize()?;
    let times = times.map(|events| {
        events.iter().map(|(start, end)| end.ms_since(start)).collect::<Result<Vec<_>, _>>()
    });
    let [ours, theirs] = times;
    let (ours, theirs) = (ours?, theirs?);
    let ratios: Vec<f32> = ours.iter().zip(&theirs).map(|(ours, theirs)| theirs / ours).collect();
    let flops = 2.0 * (m * n * k) as f64;
    println!(
        "{m} x {n} x {k}, {:.4}, {:.4}, {:.0}, {:.3} [{:.3} {:.3}]",
        quantile(&ours, 0.5),
        quantile(&theirs, 0.5),
        flops / f64::from(quantile(&ours, 0.5)) / 1e9,
        quantile(&ratios, 0.5),
        quantile(&ratios, 0.25),
        quantile(&ratios, 0.75)
    );
    compare(&c[0].to_vec()?, &d[0].to_vec()?)
}

fn operands(
    rank: &Rank,
    sets: usize,
    rows: usize,
    cols: usize,
    seed: u64,
) -> Result<Vec<Tensor<bf16>>, Box<dyn Error>> {
    let mut rng = StdRng::seed_from_u64(seed);
    // Drawn once and rotated by an odd amount for each set: random enough, and quick to make.
    let pool: Vec<bf16> = (0..rows * cols)
        .map(|_| {
            let value: f32 = StandardNormal.sample(&mut rng);
            bf16::from_f32(value)
        })
        .collect();
    let tensors = (0..sets).map(|set| {
        let mut data = pool.clone();
        data.rotate_left((set * 7919 + set) % pool.len());
        Ok(rank.tensor(rows, cols, &data)?)
    });
    tensors.collect()
}

fn span(tensor: &Tensor<bf16>) -> Result<flux_runtime::Span<'_>, Box<dyn Error>> {
    Ok(tensor.buffer().ok_or("a tensor of the host")?.span())
}

fn timed(
    stream: &Arc<Stream>,
    launch: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<(Event, Event), Box<dyn Error>> {
    let (start, end) =
        (Event::new(stream.device(), Timing::On)?, Event::new(stream.device(), Timing::On)?);
    stream.record(&start)?;
    launch()?;
    stream.record(&end)?;
    Ok((start, end))
}

fn quantile(values: &[f32], at: f64) -> f32 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f32::total_cmp);
    sorted[((sorted.len() - 1) as f64 * at).round() as usize]
}

/// Both sum in f32 and round once: they may differ in the last bit, no more.
fn compare(ours: &[bf16], theirs: &[bf16]) -> Result<(), Box<dyn Error>> {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = ours.iter().zip(theirs).map(|(x, y)| square(x.to_f32() - y.to_f32())).sum();
    let all: f64 = theirs.iter().map(|y| square(y.to_f32())).sum();
    let error = (off / all).sqrt();
    if error < 5e-3 { Ok(()) } else { Err(format!("the results differ by {error:.2e}").into()) }
}
