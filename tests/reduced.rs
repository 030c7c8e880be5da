//! Shipped kernels whose sum every rank gets, on threads of the host.

#[path = "support/data.rs"]
#[allow(dead_code, reason = "each test file is a crate that uses a part")]
mod data;

use data::{Draw, product};
use flux::kernels::{gemm_ar, gemm_ar_bias_residual, gemm_rs};
use flux::prelude::*;
use flux::{AllReduce, ElementKind, Error, ReduceScatter};

const SHAPES: [[usize; 3]; 4] = [[1, 8, 8], [5, 40, 24], [37, 72, 16], [130, 200, 40]];

fn parts(rank: u64, [m, n, k]: [usize; 3]) -> (Vec<bf16>, Vec<bf16>) {
    (Draw::Integers.rows(10 + rank, 0..m, k), Draw::Integers.rows(30 + rank, 0..n, k))
}

fn expected(ranks: u32, shape: [usize; 3]) -> Vec<f64> {
    let rows: Vec<usize> = (0..shape[0]).collect();
    let mut sum = vec![0.0; shape[0] * shape[1]];
    for rank in 0..u64::from(ranks) {
        let (a, b) = parts(rank, shape);
        let products = product(&a, &b, shape[2], &rows);
        sum.iter_mut().zip(products).for_each(|(sum, x)| *sum += x);
    }
    sum
}

fn schedules() -> [Option<Schedule>; 3] {
    let of = |algorithm| Some(Schedule::host().tile(16, 24, 16).all_reduce(algorithm));
    [None, of(AllReduce::OneShot), of(AllReduce::TwoShot)]
}

/// A shipped kernel takes a path of one's own on the host, and every path gives the sum.
#[test]
fn sums_that_pass_from_rank_to_rank_are_whole() -> Result<(), Error> {
    for ranks in 1..=8 {
        let world = World::host(ranks)?;
        let shape @ [m, n, k] = SHAPES[ranks as usize % SHAPES.len()];
        let sum = expected(ranks, shape);
        for algorithm in ReduceScatter::ALL {
            for element in [None, Some(ElementKind::F32)] {
                let mut schedule = Schedule::host().tile(16, 24, 16).reduce_scatter(algorithm);
                schedule.partials = element;
                let outputs = world.run(|rank| {
                    let kernel = gemm_rs::load_with(rank, &schedule)?;
                    let (a, b) = parts(rank.index().into(), shape);
                    let (a, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
                    let mut c = rank.zeros::<bf16>(rank.own_rows(m), n)?;
                    for _ in 0..3 {
                        kernel.launch(&a, &b, &mut c)?;
                    }
                    c.to_vec()
                })?;
                let found: Vec<f64> = outputs.concat().iter().map(|x| x.to_f64()).collect();
                assert_eq!(found, sum, "{ranks} ranks, {schedule}");
            }
        }
    }
    Ok(())
}

#[test]
fn every_rank_gets_the_whole_sum() -> Result<(), Error> {
    for ranks in 1..=8 {
        let world = World::host(ranks)?;
        let shape @ [m, n, k] = SHAPES[ranks as usize % SHAPES.len()];
        let sum = expected(ranks, shape);
        for schedule in schedules() {
            let outputs = world.run(|rank| {
                let kernel = match &schedule {
                    Some(schedule) => gemm_ar::load_with(rank, schedule)?,
                    None => gemm_ar::load(rank)?,
                };
                let (a, b) = parts(rank.index().into(), shape);
                let (a, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
                let mut c = rank.zeros::<bf16>(m, n)?;
                for _ in 0..3 {
                    kernel.launch(&a, &b, &mut c)?;
                }
                c.to_vec()
            })?;
            for (rank, found) in outputs.iter().enumerate() {
                let found: Vec<f64> = found.iter().map(|x| x.to_f64()).collect();
                assert_eq!(found, sum, "rank {rank} of {ranks}, {schedule:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_bias_and_a_residual_are_added_once() -> Result<(), Error> {
    for ranks in [1, 3, 4] {
        let shape @ [m, n, k] = SHAPES[ranks as usize % SHAPES.len()];
        let bias: Vec<f32> = Draw::Integers.rows(5, 0..1, n);
        let residual: Vec<bf16> = Draw::Integers.rows(6, 0..m, n);
        let mut sum = expected(ranks, shape);
        for (index, sum) in sum.iter_mut().enumerate() {
            *sum += f64::from(bias[index % n]) + residual[index].to_f64();
        }
        for schedule in schedules() {
            let outputs = World::host(ranks)?.run(|rank| {
                let kernel = match &schedule {
                    Some(schedule) => gemm_ar_bias_residual::load_with(rank, schedule)?,
                    None => gemm_ar_bias_residual::load(rank)?,
                };
                let (a, b) = parts(rank.index().into(), shape);
                let (a, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
                let (bias, residual) = (rank.tensor(1, n, &bias)?, rank.tensor(m, n, &residual)?);
                let mut c = rank.zeros::<bf16>(m, n)?;
                kernel.launch(&a, &b, &bias, &residual, &mut c)?;
                c.to_vec()
            })?;
            for found in outputs {
                let found: Vec<f64> = found.iter().map(|x| x.to_f64()).collect();
                assert_eq!(found, sum, "{ranks} ranks, {schedule:?}");
            }
        }
    }
    Ok(())
}

/// Numbers that are no integers: the shards of a reduce-scatter, and both forms of all-reduce, hold the
/// same bits.
#[test]
fn all_sums_have_the_same_bits() -> Result<(), Error> {
    let [m, n, k] = [45, 40, 24];
    let world = World::host(5)?;
    let outputs = world.run(|rank| {
        let seed = u64::from(rank.index());
        let a = rank.tensor(m, k, &Draw::Uniform.rows::<bf16>(seed, 0..m, k))?;
        let b = rank.tensor(n, k, &Draw::Uniform.rows::<bf16>(seed + 20, 0..n, k))?;
        let mut whole = Vec::new();
        for schedule in schedules().into_iter().flatten() {
            let mut c = rank.zeros::<bf16>(m, n)?;
            gemm_ar::load_with(rank, &schedule)?.launch(&a, &b, &mut c)?;
            whole.push(c.to_vec()?);
        }
        let mut shard = rank.zeros::<bf16>(rank.own_rows(m), n)?;
        let schedule = Schedule::host().tile(16, 24, 16);
        gemm_rs::load_with(rank, &schedule)?.launch(&a, &b, &mut shard)?;
        Ok((whole, shard.to_vec()?))
    })?;
    let shards: Vec<bf16> = outputs.iter().flat_map(|(_, shard)| shard.clone()).collect();
    for (rank, (whole, _)) in outputs.iter().enumerate() {
        for found in whole {
            assert!(*found == shards, "rank {rank}");
        }
    }
    Ok(())
}

#[test]
fn tensors_that_do_not_fit_are_refused() -> Result<(), Error> {
    let outcome = World::host(2)?.run(|rank| {
        let kernel = gemm_ar::load(rank)?;
        let (a, b) = (rank.zeros::<bf16>(8, 16)?, rank.zeros::<bf16>(24, 16)?);
        let mut shard = rank.zeros::<bf16>(4, 24)?;
        Ok(kernel.launch(&a, &b, &mut shard).map_err(|error| error.to_string()))
    })?;
    for found in outcome {
        let said = found.expect_err("a shard is no whole output");
        assert!(said.contains('8') && said.contains('4') && said.contains('c'), "{said}");
    }
    Ok(())
}
