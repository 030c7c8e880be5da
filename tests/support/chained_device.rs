//! Sums that pass from rank to rank, or that owners pull, on a GPU: against plain sums and launch after
//! launch.

use super::data::{Draw, product};
use super::missing_device::missing_rank;
use super::{Gpus, ODD, WORLDS, poison, same, world};
use flux::Error;
use flux::prelude::*;
use libtest_mimic::{Failed, Trial};
use std::time::{Duration, Instant};

#[flux::module]
mod kernels {
    use flux::prelude::*;

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, reduce_scatter = ring)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, reduce_scatter = ring, partials = f32)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, reduce_scatter = add)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, reduce_scatter = add, partials = f32)]
    #[schedule(sm_90a, tile = (64, 128, 64), stages = 6, consumers = ping_pong, reduce_scatter = add)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, reduce_scatter = pull)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, reduce_scatter = pull, partials = f32)]
    #[schedule(sm_90a, tile = (64, 128, 64), stages = 6, consumers = ping_pong, reduce_scatter = pull)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, reduce_scatter = pull, transport = tma)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, reduce_scatter = pull, transport = tma, partials = f32)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5)]
    pub fn rs_bf16(
        a: &Global<bf16>,
        b: &Global<bf16>,
        bias: &Global<f32>,
        c: &mut Scattered<bf16>,
    ) {
        for tile in c.tiles() {
            let sum = c.reduce(tile, gemm(a, b.t(), tile));
            c.store(tile, sum + bias.cols(tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, reduce_scatter = add)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, reduce_scatter = ring)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, reduce_scatter = pull)]
    pub fn rs_f16(a: &Global<f16>, b: &Global<f16>, c: &mut Scattered<f16>) {
        for tile in c.tiles() {
            c.add(tile, gemm(a, b.t(), tile));
        }
    }
}

pub(crate) fn trials(skipped: bool) -> Vec<Trial> {
    let mut all = Vec::new();
    let mut add = |name: String, test: Box<dyn FnOnce() -> Result<(), Failed> + Send>| {
        all.push(Trial::test(name, test).with_ignored_flag(skipped));
    };
    for gpus in WORLDS {
        let ranks = gpus.len();
        for member in 0..10 {
            let test = move || exact(gpus, member);
            add(format!("chained_{member}_odd_exact_{ranks}"), Box::new(test));
        }
        for member in 0..3 {
            let test = move || exact_f16(gpus, member);
            add(format!("chained_f16_{member}_odd_exact_{ranks}"), Box::new(test));
        }
        add(format!("chained_launches_without_reset_{ranks}"), Box::new(move || many(gpus)));
    }
    for (what, member) in [("chain", 0), ("pulled_sum", 5), ("bulk_sum", 8)] {
        let test = move || missing(WORLDS[2], member);
        add(format!("a_rank_missing_of_a_{what}_stalls_within_its_limit"), Box::new(test));
    }
    add("chained_times".into(), Box::new(|| times(WORLDS[2])));
    all
}

/// What a rank multiplies.
fn part<T: super::data::Number>(rank: u64, [m, n, k]: [usize; 3]) -> (Vec<T>, Vec<T>) {
    (Draw::Integers.rows(10 + rank, 0..m, k), Draw::Integers.rows(30 + rank, 0..n, k))
}

/// The sum over ranks of all products.
fn total<T: super::data::Number>(ranks: usize, shape @ [m, n, k]: [usize; 3]) -> Vec<f64> {
    let rows: Vec<usize> = (0..m).collect();
    let mut sum = vec![0.0; m * n];
    for rank in 0..ranks as u64 {
        let (a, b) = part::<T>(rank, shape);
        let products = product(&a, &b, k, &rows);
        sum.iter_mut().zip(products).for_each(|(sum, x)| *sum += x);
    }
    sum
}

/// Small integers on odd shapes: every element is known to the last bit, whatever the order.
fn exact(gpus: Gpus, member: usize) -> Result<(), Failed> {
    let (world, ranks) = (world(gpus)?, gpus.len());
    let schedule = &(kernels::rs_bf16::definition().schedules)()[member];
    for shape @ [m, n, k] in ODD {
        let outputs = world.run(|rank| {
            let kernel = kernels::rs_bf16::load_with(rank, schedule)?;
            let (a, b) = part::<bf16>(rank.index().into(), shape);
            let (a, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
            let bias = rank.tensor(1, n, &Draw::Integers.rows::<f32>(9, 0..1, n))?;
            let mut c = poison::<bf16>(rank, rank.own_rows(m), n)?;
            kernel.launch(&a, &b, &bias, &mut c)?;
            c.to_vec()
        })?;
        let bias = Draw::Integers.rows::<f32>(9, 0..1, n);
        let mut expected = total::<bf16>(ranks, shape);
        expected.iter_mut().enumerate().for_each(|(i, x)| *x += f64::from(bias[i % n]));
        let what = format!("chained {m}x{n}x{k}, {ranks} ranks, {schedule}");
        same(&what, &outputs.concat(), expected.into_iter())?;
    }
    Ok(())
}

fn exact_f16(gpus: Gpus, member: usize) -> Result<(), Failed> {
    let (world, ranks) = (world(gpus)?, gpus.len());
    let schedule = &(kernels::rs_f16::definition().schedules)()[member];
    for shape @ [m, n, k] in ODD {
        let outputs = world.run(|rank| {
            let kernel = kernels::rs_f16::load_with(rank, schedule)?;
            let (a, b) = part::<f16>(rank.index().into(), shape);
            let (a, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
            let mut c = poison::<f16>(rank, rank.own_rows(m), n)?;
            kernel.launch(&a, &b, &mut c)?;
            c.to_vec()
        })?;
        let what = format!("chained f16 {m}x{n}x{k}, {ranks} ranks, {schedule}");
        same(&what, &outputs.concat(), total::<f16>(ranks, shape).into_iter())?;
    }
    Ok(())
}

/// Every member in turn without a reset, ten launches behind each other before one is looked at, with
/// new data and another M each round.
fn many(gpus: Gpus) -> Result<(), Failed> {
    let (n, k, ranks) = (264, 200, gpus.len());
    let shapes: Vec<[usize; 3]> =
        (0..10).map(|round| [[1, 500, 37, 128, 301][round % 5], n, k]).collect();
    let expected: Vec<Vec<f64>> = shapes.iter().map(|&s| total::<bf16>(ranks, s)).collect();
    let schedules = (kernels::rs_bf16::definition().schedules)();
    let on_rank = |rank: &Rank| -> Result<Result<(), Failed>, Error> {
        let kernels = schedules
            .iter()
            .map(|schedule| kernels::rs_bf16::load_with(rank, schedule))
            .collect::<Result<Vec<_>, Error>>()?;
        let bias = rank.zeros::<f32>(1, n)?;
        for (shape @ [m, n, k], expected) in shapes.iter().copied().zip(&expected) {
            let (a, b) = part::<bf16>(rank.index().into(), shape);
            let (a, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
            for (member, kernel) in kernels.iter().enumerate() {
                let mut c = poison::<bf16>(rank, rank.own_rows(m), n)?;
                for _ in 0..10 {
                    kernel.launch(&a, &b, &bias, &mut c)?;
                }
                let own = rank.own_range(m);
                let expected = expected[own.start * n..own.end * n].iter().copied();
                let checked = same(&format!("member {member}, {m} rows"), &c.to_vec()?, expected);
                if checked.is_err() {
                    return Ok(checked);
                }
            }
        }
        Ok(Ok(()))
    };
    // Of a stall all ranks tell, not the one that is heard first.
    let outcomes = world(gpus)?.run(|rank| Ok(on_rank(rank)))?;
    let failed = outcomes.into_iter().enumerate().filter_map(|(rank, outcome)| match outcome {
        Ok(Ok(())) => None,
        Ok(Err(wrong)) => Some(format!("rank {rank}: {}", wrong.message().unwrap_or("wrong"))),
        Err(error) => Some(format!("rank {rank}: {error}")),
    });
    let failed: Vec<String> = failed.collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

/// One of the ranks prepares the launch and never makes it: all others must say so.
fn missing(gpus: Gpus, member: usize) -> Result<(), Failed> {
    let schedules = (kernels::rs_bf16::definition().schedules)();
    missing_rank(
        gpus,
        |rank, m| [m, rank.own_rows(m)],
        |rank| {
            let kernel = kernels::rs_bf16::load_with(rank, &schedules[member])?;
            Ok(Box::new(move |a, b, bias, c| kernel.launch(a, b, bias, c)))
        },
    )?;
    Ok(())
}

/// Prints what launches take of every member.
fn times(gpus: Gpus) -> Result<(), Failed> {
    let ([n, k], launches) = ([2048, 1024], 20);
    let rows = world(gpus)?.run(|rank| {
        let b = rank.tensor(n, k, &Draw::Uniform.rows::<bf16>(1, 0..n, k))?;
        let bias = rank.zeros::<f32>(1, n)?;
        let mut rows = Vec::new();
        for m in [512, 4096] {
            let a = rank.tensor(m, k, &Draw::Uniform.rows::<bf16>(2, 0..m, k))?;
            let mut c = rank.zeros::<bf16>(rank.own_rows(m), n)?;
            for schedule in &(kernels::rs_bf16::definition().schedules)() {
                let kernel = kernels::rs_bf16::load_with(rank, schedule)?;
                kernel.launch(&a, &b, &bias, &mut c)?;
                let mut best = Duration::MAX;
                for _ in 0..3 {
                    rank.synchronize()?;
                    let begun = Instant::now();
                    (0..launches).try_for_each(|_| kernel.launch(&a, &b, &bias, &mut c))?;
                    rank.synchronize()?;
                    best = best.min(begun.elapsed() / launches);
                }
                rows.push((m, schedule.to_string(), best));
            }
        }
        Ok(rows)
    })?;
    for (m, what, took) in &rows[0] {
        println!("  {m} rows: {:.1} us, {what}", took.as_secs_f64() * 1e6);
    }
    Ok(())
}
