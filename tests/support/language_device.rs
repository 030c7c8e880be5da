//! The language on a device: the same kernels on the host world and on virtual ranks agree.

use super::data::{Draw, Number};
use flux::Error;
use flux::prelude::*;
use libtest_mimic::{Failed, Trial};

#[flux::module]
mod kernels {
    use flux::prelude::*;

    const HALF: f32 = 0.5;

    /// Clamped to what f16 and bf16 hold exactly.
    fn clamped(x: Fragment, bound: f32) -> Fragment {
        max(min(x, bound), -bound)
    }

    /// Vectors over rows and columns, a matrix, a scalar, a helper, a closure; two outputs of
    /// different types from one accumulator.
    #[kernel]
    pub fn two_outputs(
        a: &Gathered<bf16>,
        b: &Global<bf16>,
        bias: &Global<f32>,
        scale: &Global<f16>,
        residual: &Global<bf16>,
        alpha: f32,
        c: &mut Global<bf16>,
        d: &mut Global<f32>,
    ) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            let acc = gemm(a, b.t(), tile);
            let scaled = acc * scale.rows(tile) + bias.cols(tile);
            let blend = |x: Fragment, y: Fragment| x * alpha - y * HALF;
            c.store(tile, clamped(blend(scaled, residual.load(tile)), 64.0));
            d.store(tile, cast::<f16>(-acc) / 4.0);
        }
    }

    /// Gathered rows in, summed rows out, in one kernel.
    #[kernel]
    pub fn gather_and_scatter(
        a: &Gathered<f16>,
        b: &Global<f16>,
        residual: &Sharded<f16>,
        c: &mut Scattered<f16>,
    ) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            let sum = c.reduce(tile, relu(gemm(a, b.t(), tile)));
            c.store(tile, sum + residual.load(tile));
        }
    }

    /// Two products of one left operand, and every smooth function.
    #[kernel]
    pub fn gated(
        a: &Global<bf16>,
        w1: &Global<bf16>,
        w3: &Global<bf16>,
        c: &mut Global<f32>,
        d: &mut Global<f32>,
    ) {
        for tile in c.tiles() {
            let gate = gemm(a, w1.t(), tile) * 0.125;
            let up = gemm(a, w3.t(), tile) * 0.125;
            c.store(tile, silu(gate) * up + gelu(gate) - gelu_tanh(up));
            d.store(tile, tanh(gate) + exp(min(up, 1.0)));
        }
    }

    /// The right operand as `[k, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4)]
    pub fn not_transposed(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b, tile));
        }
    }
}

/// The outputs of a kernel on every rank.
type Outputs = Vec<Vec<f32>>;
/// Runs a kernel on one rank, for m, n and k.
type Run = fn(&Rank, [usize; 3]) -> Result<Vec<f32>, Error>;

/// Ragged in every dimension; straddling shards; several tiles; rows of no multiple of 16 bytes.
const SHAPES: [[usize; 3]; 4] = [[1, 8, 16], [130, 264, 72], [385, 333, 200], [700, 520, 333]];

/// Kernels, and how far their values may lie apart.
const CASES: [(&str, Run, f32); 4] = [
    ("two_outputs_of_one_accumulator", two_outputs, 0.0),
    ("gathered_in_and_scattered_out", gather_and_scatter, 0.0),
    ("two_products_and_smooth_functions", gated, 2e-5),
    ("a_right_operand_that_is_not_transposed", not_transposed, 0.0),
];

/// Every case, ignored where there is no device.
pub(crate) fn trials(ignored: bool) -> impl Iterator<Item = Trial> {
    CASES.into_iter().map(move |(name, run, tolerance)| {
        let test = move || {
            let worlds = [1, 2, 3, 8].into_iter();
            worlds.map(super::placed::world).try_for_each(|world| agree(&world?, run, tolerance))
        };
        Trial::test(name, test).with_ignored_flag(ignored)
    })
}

/// Every case on `world`.
pub(crate) fn agree_on(world: &World) -> Result<(), Failed> {
    CASES.into_iter().try_for_each(|(_, run, tolerance)| agree(world, run, tolerance))
}

/// Host and device give the same, up to `tolerance` relative to the larger of 1 and the value.
fn agree(device: &World, run: Run, tolerance: f32) -> Result<(), Failed> {
    let ranks = device.size();
    let host = World::host(ranks)?;
    for shape in SHAPES {
        let expected: Outputs = host.run(|rank| run(rank, shape))?;
        let found: Outputs = device.run(|rank| run(rank, shape))?;
        for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let close = |(x, y): (&f32, &f32)| (x - y).abs() <= tolerance * y.abs().max(1.0);
            let wrong = found.iter().zip(expected).position(|pair| !close(pair));
            if found.len() != expected.len() || wrong.is_some() {
                let at = wrong.unwrap_or(found.len().min(expected.len()));
                let (x, y) = (found.get(at), expected.get(at));
                let place = format!("{shape:?}, rank {rank} of {ranks}, element {at}");
                return Err(format!("{place}: the device gives {x:?}, the host {y:?}").into());
            }
        }
    }
    Ok(())
}

fn integers<T: Number>(
    rank: &Rank,
    seed: u64,
    rows: std::ops::Range<usize>,
    cols: usize,
) -> Result<Tensor<T>, Error> {
    rank.tensor(rows.len(), cols, &Draw::Integers.rows::<T>(seed, rows, cols))
}

fn join<T: Number, U: Number>(c: &Tensor<T>, d: Option<&Tensor<U>>) -> Result<Vec<f32>, Error> {
    let mut all: Vec<f32> = c.to_vec()?.into_iter().map(Number::to_f32).collect();
    if let Some(d) = d {
        all.extend(d.to_vec()?.into_iter().map(Number::to_f32));
    }
    Ok(all)
}

fn two_outputs(rank: &Rank, [m, n, k]: [usize; 3]) -> Result<Vec<f32>, Error> {
    let kernel = kernels::two_outputs::load(rank)?;
    let a = integers(rank, 1, rank.own_range(m), k)?;
    let b = integers(rank, 2 + u64::from(rank.index()), 0..n, k)?;
    let bias = integers(rank, 50, 0..1, n)?;
    let scale = integers(rank, 51, 0..m, 1)?;
    let residual = integers(rank, 52, 0..m, n)?;
    let mut c = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
    let mut d = rank.tensor(m, n, &vec![f32::NAN; m * n])?;
    kernel.launch(&a, &b, &bias, &scale, &residual, 2.0, &mut c, &mut d)?;
    join(&c, Some(&d))
}

fn gather_and_scatter(rank: &Rank, [m, n, k]: [usize; 3]) -> Result<Vec<f32>, Error> {
    let kernel = kernels::gather_and_scatter::load(rank)?;
    let own = rank.own_range(m);
    let a = integers(rank, 1, own.clone(), k)?;
    let b = integers(rank, 2 + u64::from(rank.index()), 0..n, k)?;
    let residual = integers(rank, 52, own.clone(), n)?;
    let mut c = rank.tensor(own.len(), n, &vec![f16::NAN; own.len() * n])?;
    for _ in 0..3 {
        kernel.launch(&a, &b, &residual, &mut c)?;
    }
    join::<_, f32>(&c, None)
}

fn gated(rank: &Rank, [m, n, k]: [usize; 3]) -> Result<Vec<f32>, Error> {
    let kernel = kernels::gated::load(rank)?;
    let a = integers(rank, 1, 0..m, k)?;
    let (w1, w3) = (integers(rank, 2, 0..n, k)?, integers(rank, 3, 0..n, k)?);
    let mut c = rank.tensor(m, n, &vec![f32::NAN; m * n])?;
    let mut d = rank.tensor(m, n, &vec![f32::NAN; m * n])?;
    kernel.launch(&a, &w1, &w3, &mut c, &mut d)?;
    join(&c, Some(&d))
}

fn not_transposed(rank: &Rank, [m, n, k]: [usize; 3]) -> Result<Vec<f32>, Error> {
    let kernel = kernels::not_transposed::load(rank)?;
    let (a, b) = (integers(rank, 1, 0..m, k)?, integers(rank, 2, 0..k, n)?);
    let mut c = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
    kernel.launch(&a, &b, &mut c)?;
    join::<_, f32>(&c, None)
}
