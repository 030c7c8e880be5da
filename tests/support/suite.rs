//! Every kind of operator on small odd shapes, exactly: every rank has operands of its own.

use crate::data::{Draw, product};
use flux::Error;
use flux::prelude::*;
use std::ops::Range;

#[flux::module]
pub(crate) mod kernels {
    use flux::prelude::*;

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong, transport = put)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong, transport = tma)]
    pub fn gather(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong, transport = copy_engine)]
    pub fn scatter(a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>) {
        for tile in c.tiles() {
            c.add(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (64, 128, 64), stages = 6, consumers = ping_pong, all_reduce = one_shot)]
    #[schedule(sm_90a, tile = (64, 128, 64), stages = 6, consumers = ping_pong, all_reduce = two_shot)]
    pub fn reduce(a: &Global<bf16>, b: &Global<bf16>, c: &mut Reduced<bf16>) {
        for tile in c.tiles() {
            c.add(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, transport = tma)]
    pub fn to_columns(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Exchanged<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, transport = put)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, transport = tma)]
    pub fn to_rows(a: &Exchanged<bf16>, b: &Global<bf16>, c: &mut Sharded<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gemm(a, b.t(), tile));
        }
    }
}

/// Launches of each operator and schedule.
const LAUNCHES: u64 = 3;

/// Fewer rows than ranks, ragged ones, whole tiles.
const SHAPES: [[usize; 3]; 4] = [[3, 16, 24], [150, 136, 40], [256, 256, 128], [130, 72, 200]];

/// A product and where its parts lie.
struct Problem<'r> {
    rank: &'r Rank,
    m: usize,
    n: usize,
    k: usize,
}

/// Runs everything. The number of launches that were looked at.
pub(crate) fn exact(rank: &Rank) -> Result<u32, Error> {
    let mut count = 0;
    for [m, n, k] in SHAPES {
        let problem = Problem { rank, m, n, k };
        for schedule in (kernels::gather::definition().schedules)() {
            let kernel = kernels::gather::load_with(rank, &schedule)?;
            let (own, mut c) = (rank.own_range(m), rank.zeros(m, n)?);
            count += problem.each(|seed, b| {
                let a = problem.rows(seed, own.clone())?;
                kernel.launch(&a, b, &mut c)?;
                let expected = problem.product(seed, 0..m);
                same(&format!("gather ({schedule})"), &c, &expected)
            })?;
        }
        for schedule in (kernels::scatter::definition().schedules)() {
            let kernel = kernels::scatter::load_with(rank, &schedule)?;
            let own = rank.own_range(m);
            let mut c = rank.zeros(own.len(), n)?;
            count += problem.each(|seed, b| {
                kernel.launch(
                    &problem.rows(seed + 100 * u64::from(rank.index()), 0..m)?,
                    b,
                    &mut c,
                )?;
                same(&format!("scatter ({schedule})"), &c, &problem.sum(seed, own.clone()))
            })?;
        }
        for schedule in (kernels::reduce::definition().schedules)() {
            let kernel = kernels::reduce::load_with(rank, &schedule)?;
            let mut c = rank.zeros(m, n)?;
            count += problem.each(|seed, b| {
                kernel.launch(
                    &problem.rows(seed + 100 * u64::from(rank.index()), 0..m)?,
                    b,
                    &mut c,
                )?;
                same(&format!("reduce ({schedule})"), &c, &problem.sum(seed, 0..m))
            })?;
        }
        count += problem.exchanges()?;
    }
    Ok(count)
}

impl Problem<'_> {
    fn each(
        &self,
        mut launch: impl FnMut(u64, &Tensor<bf16>) -> Result<(), Error>,
    ) -> Result<u32, Error> {
        let b = self.rank.tensor(self.n, self.k, &Draw::Integers.rows(99, 0..self.n, self.k))?;
        (1..=LAUNCHES).try_for_each(|seed| launch(seed, &b))?;
        Ok(LAUNCHES as u32)
    }

    /// Rows of the left operand of a seed.
    fn rows(&self, seed: u64, rows: Range<usize>) -> Result<Tensor<bf16>, Error> {
        self.rank.tensor(rows.len(), self.k, &Draw::Integers.rows(seed, rows, self.k))
    }

    fn product(&self, seed: u64, rows: Range<usize>) -> Vec<f64> {
        let a: Vec<bf16> = Draw::Integers.rows(seed, rows.clone(), self.k);
        let b: Vec<bf16> = Draw::Integers.rows(99, 0..self.n, self.k);
        product(&a, &b, self.k, &(0..rows.len()).collect::<Vec<_>>())
    }

    /// The sum of all ranks' products.
    fn sum(&self, seed: u64, rows: Range<usize>) -> Vec<f64> {
        let mut sum = vec![0.0; rows.len() * self.n];
        for rank in 0..u64::from(self.rank.world_size()) {
            let part = self.product(seed + 100 * rank, rows.clone());
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        sum
    }

    fn exchanges(&self) -> Result<u32, Error> {
        let Problem { rank, m, n, k } = *self;
        let own = rank.own_range(m);
        let mut count = 0;
        for schedule in (kernels::to_columns::definition().schedules)() {
            let kernel = kernels::to_columns::load_with(rank, &schedule)?;
            let of_n = rank.own_range(n);
            let mut c = rank.zeros(m, of_n.len())?;
            count += self.each(|seed, b| {
                kernel.launch(&self.rows(seed, own.clone())?, b, &mut c)?;
                let expected = columns(&self.product(seed, 0..m), n, &of_n);
                same(&format!("to_columns ({schedule})"), &c, &expected)
            })?;
        }
        for schedule in (kernels::to_rows::definition().schedules)() {
            let kernel = kernels::to_rows::load_with(rank, &schedule)?;
            let of_k = rank.own_range(k);
            let mut c = rank.zeros(own.len(), n)?;
            count += self.each(|seed, b| {
                let a = columns(&Draw::Integers.rows(seed, 0..m, k), k, &of_k);
                let a = rank.tensor(m, of_k.len(), &a)?;
                kernel.launch(&a, b, &mut c)?;
                same(&format!("to_rows ({schedule})"), &c, &self.product(seed, own.clone()))
            })?;
        }
        Ok(count)
    }
}

fn columns<T: Copy>(matrix: &[T], cols: usize, own: &Range<usize>) -> Vec<T> {
    matrix.chunks_exact(cols).flat_map(|row| row[own.clone()].iter().copied()).collect()
}

fn same(what: &str, found: &Tensor<bf16>, expected: &[f64]) -> Result<(), Error> {
    let found = found.to_vec()?;
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let expected = bf16::from_f64(*expected);
        assert!(*found == expected, "{what}: element {index} is {found}, expected {expected}");
    }
    Ok(())
}
