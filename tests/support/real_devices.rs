//! Ranks on several GPUs, alone or together, whose kernels store into each other's memory.

use super::bad_device::{is_k, ones, says};
use super::data::{Draw, product};
use super::missing_device::{abandoned_copies, missing_from_gather};
use super::{
    COPIED, Gpus, PUSHED, Test, exact_cases, language_device, many_launches, pick, poison, same,
    sample,
};
use flux::kernels::{
    a2a_gemm, ag_gemm, ag_gemm_tn, all_reduce, gemm_a2a, gemm_ag_tn, gemm_ar, gemm_bf16, gemm_rs,
    gemm_tn_bf16, reduce_scatter,
};
use flux::prelude::*;
use flux::runtime::{Device, DeviceBuffer, Stream};
use flux::{Error, Transport};
use flux_runtime::ElementKind;
use flux_runtime::numbers::Numbers;
use libtest_mimic::{Failed, Trial};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A rank on each of two GPUs.
const PAIR: Gpus = &[0, 1];

/// As many ranks on both, in turn; ranks whose numbers are not those of their GPUs; more of them on
/// one than on the other; a world of eight.
const SHARED: [Gpus; 3] = [&[0, 0, 1, 1], &[1, 0, 1], &[0, 1, 0, 1, 1, 0, 1, 0]];

/// The GPUs, which stay open from the first case on: a context takes as long to make as a case.
static OPEN: OnceLock<Vec<Arc<Device>>> = OnceLock::new();

/// Every case, ignored unless there are two GPUs that reach each other. What only one of them lacks
/// is told.
pub(crate) fn trials(no_device: bool) -> Vec<Trial> {
    let missing = World::devices(PAIR).err();
    if let (Some(reason), false) = (&missing, no_device) {
        println!("skipped: one CUDA device ({reason})");
    }
    let mut trials = Vec::new();
    let mut add = |name: &str, gpus: Gpus, test: Test| {
        let gpus: Vec<_> = gpus.iter().map(u32::to_string).collect();
        let name = format!("{name}_devices_{}", gpus.join("_"));
        let test = || {
            OPEN.get_or_init(|| PAIR.iter().flat_map(|&gpu| Device::open(gpu)).collect());
            test()
        };
        trials.push(Trial::test(name, test).with_ignored_flag(missing.is_some()));
    };
    for gpus in [PAIR].into_iter().chain(SHARED) {
        // What differs between the formats has nothing to do with where ranks are.
        let cases = exact_cases(gpus).into_iter();
        for (name, test) in cases.filter(|(name, _)| gpus == PAIR || name.contains("bf16")) {
            add(&name, gpus, test);
        }
        let language = move || language_device::agree_on(&World::devices(gpus)?);
        add("the_language_agrees_with_the_host", gpus, Box::new(language));
        add("shipped_kernels_on_larger_shapes", gpus, Box::new(move || shipped(gpus)));
    }
    add("a_thousand_launches", PAIR, Box::new(|| many_launches(PAIR, 100)));
    add("a_hundred_launches", SHARED[0], Box::new(|| many_launches(SHARED[0], 10)));
    add("a_missing_rank_stalls_and_the_next_world_runs", PAIR, Box::new(stalls));
    add("copies_that_gave_up_are_let_go", PAIR, Box::new(|| abandoned_copies(PAIR)));
    add("what_belongs_to_another_gpu_is_refused", PAIR, Box::new(other_gpu));
    add("worlds_say_what_they_are", PAIR, Box::new(names));
    add("times", PAIR, Box::new(times));
    trials
}

/// Shapes of several waves and of less than one, under whatever plan the launch picks for them.
fn shipped(gpus: Gpus) -> Result<(), Failed> {
    let world = World::devices(gpus)?;
    let ranks = gpus.len();
    for [m, n, k] in [[64, 512, 256], [2048, 2304, 1024], [8192, 1024, 512]] {
        let (a, b): (Vec<bf16>, Vec<bf16>) =
            (Draw::Integers.rows(1, 0..m, k), Draw::Integers.rows(2, 0..n, k));
        let outputs = world.run(|rank| {
            let (gather, scatter) = (ag_gemm::load(rank)?, gemm_rs::load(rank)?);
            let own = rank.own_range(m);
            let shard = rank.tensor(own.len(), k, &a[own.start * k..own.end * k])?;
            let (whole, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
            let (mut c, mut sum) = (poison::<bf16>(rank, m, n)?, poison(rank, own.len(), n)?);
            // Of each a launch with odd number and one with even number.
            for _ in 0..2 {
                gather.launch(&shard, &b, &mut c)?;
                scatter.launch(&whole, &b, &mut sum)?;
            }
            Ok((c.to_vec()?, sum.to_vec()?))
        })?;
        let rows = sample(m);
        let expected = product(&a, &b, k, &rows);
        let check = |what: &str, found: &[bf16], times: f64| {
            let found: Vec<f32> = pick(|i| found[i].to_f32(), &rows, n);
            let what = format!("{what} {m}x{n}x{k}, {gpus:?}");
            same(&what, &found, expected.iter().map(|x| bf16::from_f64(x * times).to_f64()))
        };
        for (c, _) in &outputs {
            check("gather", c, 1.0)?;
        }
        let sum: Vec<bf16> = outputs.iter().flat_map(|(_, sum)| sum).copied().collect();
        check("scatter", &sum, ranks as f64)?;
    }
    Ok(())
}

/// After a world whose launch gave up, another one on the same GPUs finds them as they should be.
fn stalls() -> Result<(), Failed> {
    missing_from_gather(PAIR, COPIED)?;
    missing_from_gather(PAIR, PUSHED)?;
    let ended = World::devices(PAIR)?.run(|rank| {
        let (m, n, k) = (300, 264, 64);
        let mut c = rank.zeros(m, n)?;
        let a = ones(rank, rank.own_rows(m), k)?;
        ag_gemm::load(rank)?.launch(&a, &ones(rank, n, k)?, &mut c)?;
        Ok(is_k(&c, k))
    })?;
    ended.into_iter().collect()
}

fn other_gpu() -> Result<(), Failed> {
    let world = World::devices(PAIR)?;
    let ranks = world.ranks();
    let far = DeviceBuffer::alloc_zeroed(&ranks[0].device().ok_or("no device")?, 4096)?;
    says(ranks[1].adopt::<bf16>(8, 8, far), "expected memory of device 1, found some of device 0")?;
    let far = Stream::new(&ranks[0].device().ok_or("no device")?)?;
    says(ranks[1].use_stream(far), "expected a stream of device 1, found one of device 0")?;
    let virtual_ranks = World::virtual_ranks(0, 1)?.ranks();
    let stray = ones(&virtual_ranks[0], 16, 8)?;
    let outcomes = world.run(|rank| {
        let (m, k) = (4, 8);
        let kernel = ag_gemm::load(rank)?;
        let (a, b) = (ones(rank, rank.own_rows(m), k)?, ones(rank, 16, k)?);
        let mut c = rank.zeros(m, 16)?;
        // Memory of GPU 0 is at home on rank 0 alone.
        let refused = match rank.index() {
            0 => Ok(()),
            _ => says(
                kernel.launch(&a, &stray, &mut c),
                "`b` lives on GPU 0, the kernel was loaded on GPU 1",
            ),
        };
        kernel.launch(&a, &b, &mut c)?;
        Ok(refused.and_then(|()| is_k(&c, k)))
    })?;
    outcomes.into_iter().collect()
}

fn names() -> Result<(), Failed> {
    let world: World = "devices:1,0".parse()?;
    let (name, ranks) = (world.to_string(), world.ranks());
    println!("  {name}");
    let ordinals: Vec<_> =
        ranks.iter().filter_map(|rank| rank.device()).map(|device| device.ordinal()).collect();
    let streams = ranks.iter().filter_map(|rank| rank.stream());
    let of_streams: Vec<_> = streams.map(|stream| stream.device().ordinal()).collect();
    if !name.starts_with("devices:1,0 (") || ordinals != [1, 0] || of_streams != [1, 0] {
        return Err(format!("{name}: ranks on {ordinals:?}, streams on {of_streams:?}").into());
    }
    let same_gpu: World = "devices:0,0".parse()?;
    if !same_gpu.to_string().starts_with("gpu:2 (") {
        return Err(format!("{same_gpu}: two virtual ranks of one GPU").into());
    }
    says(World::devices(&[0, 99]), "device 99 does not exist")
}

/// Microseconds of a launch, over several in a row; nothing is asserted.
fn times() -> Result<(), Failed> {
    let world = World::devices(PAIR)?.with_limit(Duration::from_secs(5));
    println!("  {world}: us a launch, random data");
    for [m, n, k] in [[512, 6144, 12288], [2048, 24576, 12288], [8192, 14336, 8192]] {
        let found = world.run(|rank| {
            let mut rows = times_of_gathers_and_sums(rank, [m, n, k])?;
            rows.extend(times_of_exchanges(rank, [m, n, k])?);
            rows.extend(times_of_gradients(rank, [m, n, k])?);
            Ok(rows)
        })?;
        for (index, (name, _)) in found[0].iter().enumerate() {
            let of_ranks: Vec<_> =
                found.iter().map(|rows| format!("{:8.1}", rows[index].1)).collect();
            println!("  {m} x {n} x {k}  {name:16} {}", of_ranks.join(" "));
        }
    }
    Ok(())
}

/// A contestant, and what its launch takes on this rank.
type Row = (&'static str, f64);

/// The least of five times ten launches, in microseconds each.
fn timed(rank: &Rank, mut launch: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        launch()?;
        rank.synchronize()?;
        let start = Instant::now();
        (0..10).try_for_each(|_| launch())?;
        rank.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64() * 1e5);
    }
    Ok(best)
}

fn normal(rank: &Rank, rows: usize, cols: usize) -> Result<Tensor<bf16>, Error> {
    let numbers = Numbers::load(&rank.device().expect("a GPU"), ElementKind::Bf16)?;
    let tensor = rank.zeros::<bf16>(rows, cols)?;
    let span = tensor.buffer().expect("on a GPU").span();
    numbers.normal(&rank.stream().expect("of a GPU"), span, (rows + cols) as u64, 1.0)?;
    Ok(tensor)
}

fn times_of_gathers_and_sums(rank: &Rank, [m, n, k]: [usize; 3]) -> Result<Vec<Row>, Error> {
    let own = rank.own_rows(m);
    let (shard, whole, b) = (normal(rank, own, k)?, normal(rank, m, k)?, normal(rank, n, k)?);
    let (mut c, mut sum) = (rank.zeros::<bf16>(m, n)?, rank.zeros::<bf16>(own, n)?);
    let mut rows = Vec::new();
    let gemm = gemm_bf16::load(rank)?;
    rows.push(("gemm", timed(rank, || gemm.launch(&whole, &b, &mut c))?));
    let chosen = ag_gemm::load(rank)?;
    rows.push(("ag_gemm", timed(rank, || chosen.launch(&shard, &b, &mut c))?));
    let family = (ag_gemm::definition().schedules)();
    let plain = family.into_iter().find(|plan| plan.tail.is_none()).expect("one without a tail");
    let first = plain.clone().transport(Transport::CopyFirst);
    for (name, plan) in [("ag copies first", first), ("ag whole shards", plain)] {
        let of = ag_gemm::load_with(rank, &plan)?;
        rows.push((name, timed(rank, || of.launch(&shard, &b, &mut c))?));
    }
    let chosen = gemm_rs::load(rank)?;
    rows.push(("gemm_rs", timed(rank, || chosen.launch(&whole, &b, &mut sum))?));
    for (name, transport) in [("rs put", None), ("rs sent", Some(Transport::CopyEngine))] {
        let mut family = (gemm_rs::definition().schedules)().into_iter();
        let plan = family.find(|plan| plan.transport == transport);
        let of = gemm_rs::load_with(rank, &plan.expect("one of each"))?;
        rows.push((name, timed(rank, || of.launch(&whole, &b, &mut sum))?));
    }
    let reduced = gemm_ar::load(rank)?;
    rows.push(("gemm_ar", timed(rank, || reduced.launch(&whole, &b, &mut c))?));
    let addend = normal(rank, m, n)?;
    let scatter = reduce_scatter::load(rank)?;
    rows.push(("reduce_scatter", timed(rank, || scatter.launch(&addend, &mut sum))?));
    let reduce = all_reduce::load(rank)?;
    rows.push(("all_reduce", timed(rank, || reduce.launch(&addend, &mut c))?));
    Ok(rows)
}

/// Each rank multiplies its rows: the product alone, and with an exchange behind or ahead of it.
fn times_of_exchanges(rank: &Rank, [m, n, k]: [usize; 3]) -> Result<Vec<Row>, Error> {
    let own = rank.own_rows(m);
    let (shard, b) = (normal(rank, own, k)?, normal(rank, n, k)?);
    let columns = normal(rank, m, rank.own_range(k).len())?;
    let mut own_rows = rank.zeros::<bf16>(own, n)?;
    let mut own_columns = rank.zeros::<bf16>(m, rank.own_range(n).len())?;
    let gemm = gemm_bf16::load(rank)?;
    let alone = timed(rank, || gemm.launch(&shard, &b, &mut own_rows))?;
    let behind = gemm_a2a::load(rank)?;
    let behind = timed(rank, || behind.launch(&shard, &b, &mut own_columns))?;
    let ahead = a2a_gemm::load(rank)?;
    let ahead = timed(rank, || ahead.launch(&columns, &b, &mut own_rows))?;
    Ok(vec![("gemm of own rows", alone), ("gemm_a2a", behind), ("a2a_gemm", ahead)])
}

/// Products that sum over all rows: alone, and with either operand gathered.
fn times_of_gradients(rank: &Rank, [m, n, k]: [usize; 3]) -> Result<Vec<Row>, Error> {
    let own = rank.own_rows(m);
    let (x, y) = (normal(rank, m, k)?, normal(rank, m, n)?);
    let (x_shard, y_shard) = (normal(rank, own, k)?, normal(rank, own, n)?);
    let mut c = rank.zeros::<bf16>(k, n)?;
    let gemm = gemm_tn_bf16::load(rank)?;
    let alone = timed(rank, || gemm.launch(&x, &y, &mut c))?;
    let right = gemm_ag_tn::load(rank)?;
    let right = timed(rank, || right.launch(&x, &y_shard, &mut c))?;
    let left = ag_gemm_tn::load(rank)?;
    let left = timed(rank, || left.launch(&x_shard, &y, &mut c))?;
    Ok(vec![("gemm_tn", alone), ("gemm_ag_tn", right), ("ag_gemm_tn", left)])
}
