//! Sums over ranks on a GPU: whole on every rank, and in the order of ranks.

use super::data::{Draw, product};
use super::missing_device::missing_rank;
use super::{Gpus, ODD, WORLDS, poison, same, world};
use flux::prelude::*;
use flux::{AllReduce, Error};
use libtest_mimic::{Failed, Trial};
use std::time::{Duration, Instant};

#[flux::module]
mod kernels {
    use flux::prelude::*;

    #[kernel]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, all_reduce = two_shot)]
    #[schedule(sm_90a, tile = (64, 128, 64), stages = 6, consumers = ping_pong, all_reduce = two_shot)]
    #[schedule(sm_90a, tile = (16, 64, 64), stages = 16, consumers = single, all_reduce = one_shot)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single, all_reduce = one_shot)]
    #[schedule(sm_90a, tile = (16, 64, 64), stages = 16, consumers = single, all_reduce = flagged)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single, all_reduce = flagged, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 88, 64), stages = 6, all_reduce = flagged)]
    #[schedule(sm_90a, tile = (64, 128, 64), stages = 6, consumers = ping_pong, all_reduce = flagged, partials = f32)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, all_reduce = flagged)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, all_reduce = two_shot, transport = tma)]
    pub fn ar_bf16(a: &Global<bf16>, b: &Global<bf16>, bias: &Global<f32>, c: &mut Reduced<bf16>) {
        for tile in c.tiles() {
            let sum = c.reduce(tile, gemm(a, b.t(), tile));
            c.store(tile, sum + bias.cols(tile));
        }
    }

    #[kernel]
    pub fn rs_plain(a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>) {
        for tile in c.tiles() {
            c.add(tile, gemm(a, b.t(), tile));
        }
    }
}

/// Schedules of `ar_bf16`.
const MEMBERS: usize = 10;

pub(crate) fn trials(skipped: bool) -> Vec<Trial> {
    let mut all = Vec::new();
    let mut add = |name: String, test: Box<dyn FnOnce() -> Result<(), Failed> + Send>| {
        all.push(Trial::test(name, test).with_ignored_flag(skipped));
    };
    for gpus in WORLDS {
        let ranks = gpus.len();
        for member in 0..MEMBERS {
            let test = move || exact(gpus, member);
            add(format!("reduced_{member}_odd_exact_{ranks}"), Box::new(test));
        }
        add(format!("sums_in_the_order_of_ranks_{ranks}"), Box::new(move || ordered(gpus)));
    }
    add("reduced_launches_without_reset".into(), Box::new(|| many(WORLDS[2])));
    for algorithm in AllReduce::ALL {
        let name = format!("a_rank_missing_of_a_{}_stalls_within_its_limit", algorithm.name());
        add(name, Box::new(move || missing(WORLDS[1], algorithm)));
    }
    add("reduced_times".into(), Box::new(|| times(WORLDS[3])));
    all
}

/// Small integers on odd shapes: every element on every rank is known to the last bit.
fn exact(gpus: Gpus, member: usize) -> Result<(), Failed> {
    let (world, ranks) = (world(gpus)?, gpus.len());
    let schedule = &(kernels::ar_bf16::definition().schedules)()[member];
    for [m, n, k] in ODD {
        let part = |rank: u64| -> (Vec<bf16>, Vec<bf16>) {
            (Draw::Integers.rows(10 + rank, 0..m, k), Draw::Integers.rows(30 + rank, 0..n, k))
        };
        let outputs = world.run(|rank| {
            let kernel = kernels::ar_bf16::load_with(rank, schedule)?;
            let (a, b) = part(rank.index().into());
            let (a, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
            let bias = rank.tensor(1, n, &Draw::Integers.rows::<f32>(9, 0..1, n))?;
            let mut c = poison::<bf16>(rank, m, n)?;
            kernel.launch(&a, &b, &bias, &mut c)?;
            c.to_vec()
        })?;
        let rows: Vec<usize> = (0..m).collect();
        let bias = Draw::Integers.rows::<f32>(9, 0..1, n);
        let mut expected: Vec<f64> = (0..m * n).map(|i| bias[i % n].into()).collect();
        for rank in 0..ranks as u64 {
            let (a, b) = part(rank);
            let products = product(&a, &b, k, &rows);
            expected.iter_mut().zip(products).for_each(|(sum, x)| *sum += x);
        }
        for (rank, found) in outputs.iter().enumerate() {
            let what = format!("reduced {m}x{n}x{k}, rank {rank} of {ranks}, {schedule}");
            same(&what, found, expected.iter().copied())?;
        }
    }
    Ok(())
}

/// Numbers whose sum depends on the order, one product to an element, so that contributions are
/// rounded once: the host adds them up in the order of ranks.
fn ordered(gpus: Gpus) -> Result<(), Failed> {
    let (world, ranks) = (world(gpus)?, gpus.len());
    let [m, n, k] = [300, 264, 64];
    let column = |seed: u64, rows: usize, scale: f32| -> Vec<f32> {
        let drawn = Draw::Uniform.rows::<f32>(seed, 0..rows, 1);
        drawn.into_iter().map(|x| bf16::from_f32(x * scale).to_f32()).collect()
    };
    let factors = |rank: u64| {
        // Magnitudes that differ by more bits than bf16 has and fewer than f32.
        let scale = [64.0, 1.0, 0.03][rank as usize % 3];
        (column(50 + rank, m, scale), column(70 + rank, n, scale))
    };
    let spread = |column: &[f32]| -> Vec<bf16> {
        let row = |&x: &f32| (0..k).map(move |i| bf16::from_f32(if i == 0 { x } else { 0.0 }));
        column.iter().flat_map(row).collect()
    };
    let contributions: Vec<Vec<f32>> = (0..ranks as u64)
        .map(|rank| {
            let (a, b) = factors(rank);
            let products = a.iter().flat_map(|x| b.iter().map(move |y| x * y));
            products.map(|x| bf16::from_f32(x).to_f32()).collect()
        })
        .collect();
    let expected: Vec<f64> = (0..m * n)
        .map(|i| contributions[1..].iter().fold(contributions[0][i], |sum, part| sum + part[i]))
        .map(f64::from)
        .collect();
    let schedules = (kernels::ar_bf16::definition().schedules)();
    for _ in 0..2 {
        // Partial sums of more bits are rounded elsewhere.
        let alike = schedules.iter().filter(|schedule| schedule.partials.is_none());
        for schedule in alike.map(Some).chain([None]) {
            let outputs = world.run(|rank| {
                let (a, b) = factors(rank.index().into());
                let (a, b) = (rank.tensor(m, k, &spread(&a))?, rank.tensor(n, k, &spread(&b))?);
                let bias = rank.zeros::<f32>(1, n)?;
                match schedule {
                    Some(schedule) => {
                        let mut c = poison::<bf16>(rank, m, n)?;
                        let kernel = kernels::ar_bf16::load_with(rank, schedule)?;
                        kernel.launch(&a, &b, &bias, &mut c)?;
                        c.to_vec()
                    }
                    None => {
                        let mut c = poison::<bf16>(rank, rank.own_rows(m), n)?;
                        kernels::rs_plain::load(rank)?.launch(&a, &b, &mut c)?;
                        c.to_vec()
                    }
                }
            })?;
            match schedule {
                Some(schedule) => {
                    for (rank, found) in outputs.iter().enumerate() {
                        let what = format!("ordered, rank {rank} of {ranks}, {schedule}");
                        same(&what, found, expected.iter().copied())?;
                    }
                }
                None => {
                    let found = outputs.concat();
                    same(&format!("ordered shards of {ranks}"), &found, expected.iter().copied())?;
                }
            }
        }
    }
    Ok(())
}

/// Both algorithms in turn without a reset, with new data and another M now and then.
fn many(gpus: Gpus) -> Result<(), Failed> {
    let (n, k, ranks) = (264, 200, gpus.len() as f64);
    let b: Vec<bf16> = Draw::Integers.rows(99, 0..n, k);
    let shape = |round: u64| [1, 500, 37, 128, 301][round as usize % 5];
    let expected: Vec<Vec<f64>> = (0..10)
        .map(|round| {
            let m = shape(round);
            let a: Vec<bf16> = Draw::Integers.rows(round, 0..m, k);
            product(&a, &b, k, &(0..m).collect::<Vec<_>>())
        })
        .collect();
    let schedules = (kernels::ar_bf16::definition().schedules)();
    let outcomes = world(gpus)?.run(|rank| {
        let kernels = schedules
            .iter()
            .map(|schedule| kernels::ar_bf16::load_with(rank, schedule))
            .collect::<Result<Vec<_>, Error>>()?;
        let bias = rank.zeros::<f32>(1, n)?;
        let b = rank.tensor(n, k, &b)?;
        for round in 0..10 {
            let m = shape(round);
            let a = rank.tensor(m, k, &Draw::Integers.rows::<bf16>(round, 0..m, k))?;
            let mut outputs = Vec::new();
            for kernel in &kernels {
                let mut c = poison::<bf16>(rank, m, n)?;
                for _ in 0..10 {
                    kernel.launch(&a, &b, &bias, &mut c)?;
                }
                outputs.push(c);
            }
            for (member, c) in outputs.iter().enumerate() {
                let total = expected[round as usize].iter().map(|x| x * ranks);
                let checked = same(&format!("member {member}, round {round}"), &c.to_vec()?, total);
                if checked.is_err() {
                    return Ok(checked);
                }
            }
        }
        Ok(Ok(()))
    })?;
    outcomes.into_iter().collect()
}

/// One of the ranks prepares the launch and never makes it: the other must say so.
fn missing(gpus: Gpus, algorithm: AllReduce) -> Result<(), Failed> {
    let schedules = (kernels::ar_bf16::definition().schedules)();
    let schedule = schedules.iter().find(|schedule| schedule.all_reduce == Some(algorithm));
    let schedule = schedule.ok_or("the family has each")?;
    missing_rank(
        gpus,
        |_, m| [m, m],
        |rank| {
            let kernel = kernels::ar_bf16::load_with(rank, schedule)?;
            Ok(Box::new(move |a, b, bias, c| kernel.launch(a, b, bias, c)))
        },
    )?;
    Ok(())
}

/// Prints what launches take: of every member, of what is chosen, and of the product alone.
fn times(gpus: Gpus) -> Result<(), Failed> {
    use flux::kernels::{gemm_ar, gemm_bf16};
    let ([n, k], launches) = ([8192, 4096], 20);
    let rows = world(gpus)?.run(|rank| {
        let b = rank.tensor(n, k, &Draw::Uniform.rows::<bf16>(1, 0..n, k))?;
        let schedules = (gemm_ar::definition().schedules)();
        let mut rows = Vec::new();
        for m in [1, 16, 64, 128, 1024, 4096] {
            let a = rank.tensor(m, k, &Draw::Uniform.rows::<bf16>(2, 0..m, k))?;
            let mut c = rank.zeros::<bf16>(m, n)?;
            let mut timed = |launch: &mut dyn FnMut(&mut Tensor<bf16>) -> Result<(), Error>| {
                launch(&mut c)?;
                let mut best = Duration::MAX;
                for _ in 0..3 {
                    rank.synchronize()?;
                    let begun = Instant::now();
                    (0..launches).try_for_each(|_| launch(&mut c))?;
                    rank.synchronize()?;
                    best = best.min(begun.elapsed() / launches);
                }
                Ok::<_, Error>(best)
            };
            let chosen = gemm_ar::load(rank)?;
            rows.push((m, "chosen".to_owned(), timed(&mut |c| chosen.launch(&a, &b, c))?));
            // Of many rows in small tiles a check would take longer than it may.
            let fits = |schedule: &&Schedule| m <= 1024 || schedule.tile.n > 64;
            for schedule in schedules.iter().filter(fits) {
                let member = gemm_ar::load_with(rank, schedule)?;
                let took = timed(&mut |c| member.launch(&a, &b, c))?;
                rows.push((m, schedule.to_string(), took));
            }
            let alone = gemm_bf16::load(rank)?;
            rows.push((m, "product alone".into(), timed(&mut |c| alone.launch(&a, &b, c))?));
        }
        Ok(rows)
    })?;
    for (m, what, took) in &rows[0] {
        println!("  {m} rows: {:.1} us, {what}", took.as_secs_f64() * 1e6);
    }
    Ok(())
}
