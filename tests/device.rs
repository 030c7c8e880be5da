//! All-gather + GEMM and GEMM + reduce-scatter on real GPUs: virtual ranks of one, and ranks on several.
//!
//! Without a device every case is counted as ignored and the reason is printed; without a second
//! one, the cases that need two.

#![expect(unreachable_pub, reason = "kernels stand as they would in a library")]

#[path = "support/bad_device.rs"]
mod bad_device;
#[path = "support/chained_device.rs"]
mod chained_device;
#[path = "support/data.rs"]
mod data;
#[path = "support/language_device.rs"]
mod language_device;
#[allow(dead_code, reason = "its kernel is what is tested, not how it is called")]
#[path = "../examples/low_latency.rs"]
mod low_latency;
#[path = "support/missing_device.rs"]
mod missing_device;
#[path = "support/passive_device.rs"]
mod passive_device;
#[path = "support/placed.rs"]
mod placed;
#[allow(dead_code, reason = "its kernels are what is tested, not how it is called")]
#[path = "../examples/protocols.rs"]
mod protocols;
#[path = "support/protocols_device.rs"]
mod protocols_device;
#[path = "support/real_devices.rs"]
mod real_devices;
#[path = "support/reduced_device.rs"]
mod reduced_device;
#[allow(dead_code, reason = "its kernel is what is tested, not how it is called")]
#[path = "../examples/sum_ahead.rs"]
mod sum_ahead;

use cudarc::driver::CudaContext;
use data::{Draw, Number, gelu, product, relative_error};
use flux::prelude::*;
use flux::runtime::{DeviceBuffer, Stream};
use flux::{Error, Order, Schedule, TileCoord, Transport};
use libtest_mimic::{Arguments, Failed, Trial};
use missing_device::{abandoned_copies, missing_from_gather};
use std::process::ExitCode;
use std::sync::Arc;

#[flux::module]
mod kernels {
    use flux::prelude::*;

    #[kernel]
    pub fn ag_gelu_bf16(
        a: &Gathered<bf16>,
        b: &Global<bf16>,
        bias: &Global<f32>,
        c: &mut Global<bf16>,
    ) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gelu(gemm(a, b.t(), tile) + bias.cols(tile)));
        }
    }

    #[kernel]
    pub fn ag_gelu_f16(
        a: &Gathered<f16>,
        b: &Global<f16>,
        bias: &Global<f32>,
        c: &mut Global<f16>,
    ) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gelu(gemm(a, b.t(), tile) + bias.cols(tile)));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong, tail = (200, 3))]
    #[schedule(sm_90a, tile = (128, 176, 64), consumers = ping_pong, transport = put)]
    #[schedule(sm_90a, tile = (128, 192, 64), consumers = ping_pong, transport = tma)]
    pub fn ag_relu_bf16(
        a: &Gathered<bf16>,
        b: &Global<bf16>,
        bias: &Global<f32>,
        c: &mut Global<bf16>,
    ) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, relu(gemm(a, b.t(), tile) + bias.cols(tile)));
        }
    }

    #[kernel]
    #[schedule(sm_90a)]
    #[schedule(sm_90a, tail = (128, 4))]
    #[schedule(sm_90a, tile = (16, 48, 64), consumers = single, transport = put, chunk_rows = 5)]
    #[schedule(sm_90a, tile = (16, 48, 64), consumers = single, transport = tma, chunk_rows = 5)]
    pub fn ag_relu_f16(
        a: &Gathered<f16>,
        b: &Global<f16>,
        bias: &Global<f32>,
        c: &mut Global<f16>,
    ) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, relu(gemm(a, b.t(), tile) + bias.cols(tile)));
        }
    }

    #[kernel]
    #[schedule(sm_90a)]
    #[schedule(sm_90a, tile = (128, 112, 64), stages = 6, consumers = ping_pong, transport = copy_engine, head = (128, 2), tail = (200, 2))]
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
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, transport = copy_engine, chunk_rows = 150)]
    pub fn rs_f16(a: &Global<f16>, b: &Global<f16>, bias: &Global<f32>, c: &mut Scattered<f16>) {
        for tile in c.tiles() {
            let sum = c.reduce(tile, gemm(a, b.t(), tile));
            c.store(tile, sum + bias.cols(tile));
        }
    }
}

/// Rows, columns and reduction of the output.
type Dims = [usize; 3];

/// Odd shapes: smaller than a tile, than the world, ragged in every dimension, straddling shards.
const ODD: [Dims; 24] = [
    [1, 264, 72],
    [1, 8, 8],
    [2, 16, 64],
    [7, 40, 200],
    [17, 520, 1000],
    [17, 264, 128],
    [64, 256, 64],
    [100, 264, 520],
    [127, 130, 136],
    [128, 256, 256],
    [129, 257, 264],
    [130, 512, 72],
    [200, 520, 1000],
    [200, 264, 72],
    [255, 100, 96],
    [256, 8, 1000],
    [300, 333, 77],
    [385, 264, 1001],
    [500, 520, 168],
    [512, 768, 512],
    [777, 520, 72],
    [1000, 264, 1000],
    [1000, 520, 264],
    [1023, 129, 65],
];

/// GPT-3 175B and Llama-2 70B, divided by eight: (n, k) of the gathered and of the scattered product.
const MODELS: [(&str, [usize; 2], [usize; 2]); 2] =
    [("gpt3", [6144, 12288], [12288, 6144]), ("llama2", [3584, 8192], [8192, 3584])];

/// Numbers of the GPUs of each rank.
type Gpus = &'static [u32];

/// Virtual ranks of the first GPU.
const WORLDS: [Gpus; 4] = [&[0], &[0; 2], &[0; 4], &[0; 8]];

/// Relative Frobenius error that 8 significant bits and one more rounding of partial sums explain.
const TOLERANCE: f64 = 5e-3;

/// A loaded kernel of the form (a, b, bias) → c.
type Launch<T> =
    Box<dyn Fn(&Tensor<T>, &Tensor<T>, &Tensor<f32>, &mut Tensor<T>) -> Result<(), Error>>;
type Load<T> = fn(&Rank) -> Result<Launch<T>, Error>;

/// Wraps a kernel's typed `load` and `launch`.
macro_rules! load {
    ($kernel:ident) => {
        |rank| {
            let kernel = kernels::$kernel::load(rank)?;
            Ok(Box::new(move |a, b, bias, c| kernel.launch(a, b, bias, c)))
        }
    };
    ($kernel:ident, $which:expr) => {
        |rank| {
            let schedules = (kernels::$kernel::definition().schedules)();
            let schedule = schedules.iter().find($which).expect("the family has such a member");
            let kernel = kernels::$kernel::load_with(rank, schedule)?;
            Ok(Box::new(move |a, b, bias, c| kernel.launch(a, b, bias, c)))
        }
    };
}
use load;

fn sliced(schedule: &&Schedule) -> bool {
    schedule.tail.is_some()
}

/// A gather by copy engines, one by copy warps, and one by bulk copies.
const COPIED: Load<bf16> = load!(ag_relu_bf16, copied);
const PUSHED: Load<bf16> = load!(ag_relu_bf16, pushed);
const IN_BULK: Load<bf16> = load!(ag_relu_bf16, in_bulk);

fn copied(schedule: &&Schedule) -> bool {
    schedule.transport.is_none() && schedule.tail.is_none()
}

fn pushed(schedule: &&Schedule) -> bool {
    schedule.transport == Some(Transport::Put)
}

fn in_bulk(schedule: &&Schedule) -> bool {
    schedule.transport == Some(Transport::Tma)
}

fn sent(schedule: &&Schedule) -> bool {
    schedule.transport == Some(Transport::CopyEngine)
}

type Test = Box<dyn FnOnce() -> Result<(), Failed> + Send>;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let missing = World::virtual_ranks(0, 1).err();
    if let Some(reason) = &missing {
        println!("skipped: no CUDA device ({reason})");
    }
    let mut trials = Vec::new();
    let mut add = |name: String, test: Test| {
        trials.push(Trial::test(name, test).with_ignored_flag(missing.is_some()));
    };
    for gpus in WORLDS {
        for (name, test) in exact_cases(gpus).into_iter().chain(close_cases(gpus)) {
            add(format!("{name}_{}", gpus.len()), test);
        }
    }
    let two = WORLDS[1];
    add("a_hundred_launches_without_reset".into(), Box::new(|| many_launches(WORLDS[2], 10)));
    add("a_custom_order_runs_without_recompiling".into(), Box::new(custom_order));
    add("memory_and_streams_of_cudarc_are_taken_as_they_are".into(), Box::new(cudarc_slices));
    add(
        "a_missing_rank_stalls_within_its_limit".into(),
        Box::new(|| missing_from_gather(two, COPIED)),
    );
    add(
        "a_missing_rank_that_pushes_stalls_within_its_limit".into(),
        Box::new(|| missing_from_gather(two, PUSHED)),
    );
    add(
        "a_missing_rank_that_copies_in_bulk_stalls_within_its_limit".into(),
        Box::new(|| missing_from_gather(two, IN_BULK)),
    );
    add(
        "copies_behind_a_launch_that_gave_up_are_let_go".into(),
        Box::new(|| abandoned_copies(two)),
    );
    trials.extend(language_device::trials(missing.is_some()));
    trials.extend(bad_device::trials(missing.is_some()));
    trials.extend(chained_device::trials(missing.is_some()));
    trials.extend(passive_device::trials(missing.is_some()));
    trials.extend(protocols_device::trials(missing.is_some()));
    trials.extend(real_devices::trials(missing.is_some()));
    trials.extend(reduced_device::trials(missing.is_some()));
    let mut arguments = arguments;
    // Every case wants the whole device.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Every operator on odd shapes, exactly.
fn exact_cases(gpus: Gpus) -> [(String, Test); 12] {
    let cases: [(&str, Test); 12] = [
        ("gather_bf16", Box::new(move || exact_gathers(gpus, load!(ag_relu_bf16, copied)))),
        ("gather_f16", Box::new(move || exact_gathers(gpus, load!(ag_relu_f16, copied)))),
        ("sliced_bf16", Box::new(move || exact_gathers(gpus, load!(ag_relu_bf16, sliced)))),
        ("sliced_f16", Box::new(move || exact_gathers(gpus, load!(ag_relu_f16, sliced)))),
        ("pushed_bf16", Box::new(move || exact_gathers(gpus, load!(ag_relu_bf16, pushed)))),
        ("pushed_f16", Box::new(move || exact_gathers(gpus, load!(ag_relu_f16, pushed)))),
        ("bulk_bf16", Box::new(move || exact_gathers(gpus, load!(ag_relu_bf16, in_bulk)))),
        ("bulk_f16", Box::new(move || exact_gathers(gpus, load!(ag_relu_f16, in_bulk)))),
        ("scatter_bf16", Box::new(move || exact_scatters(gpus, load!(rs_bf16)))),
        ("sent_bf16", Box::new(move || exact_scatters(gpus, load!(rs_bf16, sent)))),
        ("sent_f16", Box::new(move || exact_scatters(gpus, load!(rs_f16, sent)))),
        ("scatter_f16", Box::new(move || exact_scatters(gpus, load!(rs_f16)))),
    ];
    cases.map(|(name, test)| (format!("{name}_odd_exact"), test))
}

/// Every operator on shapes of models, closely.
fn close_cases(gpus: Gpus) -> impl Iterator<Item = (String, Test)> {
    MODELS.into_iter().flat_map(move |(model, gathered, scattered)| {
        let cases: [(&str, Test); 4] = [
            ("gather_bf16", Box::new(move || close_gather(gpus, gathered, load!(ag_gelu_bf16)))),
            ("gather_f16", Box::new(move || close_gather(gpus, gathered, load!(ag_gelu_f16)))),
            ("scatter_bf16", Box::new(move || close_scatter(gpus, scattered, load!(rs_bf16)))),
            ("scatter_f16", Box::new(move || close_scatter(gpus, scattered, load!(rs_f16)))),
        ];
        cases.map(|(name, test)| (format!("{name}_{model}"), test))
    })
}

fn world(gpus: Gpus) -> Result<World, Error> {
    let ranks = gpus.len() as u32;
    if gpus.iter().all(|&gpu| gpu == 0) { placed::world(ranks) } else { World::devices(gpus) }
}

fn poison<T: Number>(rank: &Rank, rows: usize, cols: usize) -> Result<Tensor<T>, Error> {
    rank.tensor(rows, cols, &vec![T::from_f32(f32::NAN); rows * cols])
}

/// Small integers, so that every output is known to the last bit.
fn exact_gathers<T: Number>(gpus: Gpus, load: Load<T>) -> Result<(), Failed> {
    let (world, ranks) = (world(gpus)?, gpus.len());
    for [m, n, k] in ODD {
        let a: Vec<T> = Draw::Integers.rows(1, 0..m, k);
        let outputs = world.run(|rank| {
            let b =
                rank.tensor(n, k, &Draw::Integers.rows::<T>(2 + u64::from(rank.index()), 0..n, k))?;
            let bias = rank.tensor(1, n, &Draw::Integers.rows::<f32>(9, 0..1, n))?;
            let rows = rank.own_range(m);
            let a = rank.tensor(rows.len(), k, &a[rows.start * k..rows.end * k])?;
            let mut c = poison::<T>(rank, m, n)?;
            load(rank)?(&a, &b, &bias, &mut c)?;
            c.to_vec()
        })?;
        let rows: Vec<usize> = (0..m).collect();
        let bias = Draw::Integers.rows::<f32>(9, 0..1, n);
        for (rank, found) in outputs.iter().enumerate() {
            let b: Vec<T> = Draw::Integers.rows(2 + rank as u64, 0..n, k);
            let expected = product(&a, &b, k, &rows);
            let expected =
                expected.iter().enumerate().map(|(i, x)| (x + f64::from(bias[i % n])).max(0.0));
            same(&format!("gather {m}x{n}x{k}, rank {rank} of {ranks}"), found, expected)?;
        }
    }
    Ok(())
}

fn exact_scatters<T: Number>(gpus: Gpus, load: Load<T>) -> Result<(), Failed> {
    let (world, ranks) = (world(gpus)?, gpus.len());
    for [m, n, k] in ODD {
        let part = |rank: u64| -> (Vec<T>, Vec<T>) {
            (Draw::Integers.rows(10 + rank, 0..m, k), Draw::Integers.rows(30 + rank, 0..n, k))
        };
        let outputs = world.run(|rank| {
            let (a, b) = part(rank.index().into());
            let (a, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
            let bias = rank.tensor(1, n, &Draw::Integers.rows::<f32>(9, 0..1, n))?;
            let mut c = poison::<T>(rank, rank.own_rows(m), n)?;
            load(rank)?(&a, &b, &bias, &mut c)?;
            c.to_vec()
        })?;
        let rows: Vec<usize> = (0..m).collect();
        let bias = Draw::Integers.rows::<f32>(9, 0..1, n);
        let mut expected: Vec<f64> = (0..m * n).map(|i| bias[i % n].into()).collect();
        for rank in 0..ranks as u64 {
            let (a, b) = part(rank);
            for (sum, x) in expected.iter_mut().zip(product(&a, &b, k, &rows)) {
                *sum += x;
            }
        }
        let found: Vec<T> = outputs.concat();
        same(&format!("scatter {m}x{n}x{k}, world {ranks}"), &found, expected.into_iter())?;
    }
    Ok(())
}

fn same<T: Number>(
    what: &str,
    found: &[T],
    expected: impl ExactSizeIterator<Item = f64>,
) -> Result<(), Failed> {
    if found.len() != expected.len() {
        return Err(format!("{what}: {} elements, expected {}", found.len(), expected.len()).into());
    }
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let expected = T::from_f32(expected as f32).to_f32();
        if found.to_f32() != expected {
            return Err(format!(
                "{what}: element {index} is {}, expected {expected}",
                found.to_f32()
            )
            .into());
        }
    }
    Ok(())
}

/// Rows that are compared with an f64 product: the edges and a sample between.
fn sample(m: usize) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..m).step_by((m / 29).max(1)).collect();
    rows.extend([m - 1, m / 2]);
    rows
}

fn pick(found: impl Fn(usize) -> f32, rows: &[usize], n: usize) -> Vec<f32> {
    rows.iter().flat_map(|&row| (row * n..(row + 1) * n).map(&found).collect::<Vec<_>>()).collect()
}

fn close(what: &str, found: &[f32], expected: &[f64]) -> Result<(), Failed> {
    let error = relative_error(found, expected);
    println!("  {what}: relative error {error:.2e}");
    if error < TOLERANCE {
        Ok(())
    } else {
        Err(format!("{what}: relative error {error:.2e}").into())
    }
}

fn close_gather<T: Number>(gpus: Gpus, [n, k]: [usize; 2], load: Load<T>) -> Result<(), Failed> {
    let (m, ranks) = (2048, gpus.len());
    let a: Vec<T> = Draw::Uniform.rows(1, 0..m, k);
    let bias = Draw::Uniform.rows::<f32>(3, 0..1, n);
    let outputs = world(gpus)?.run(|rank| {
        let b = rank.tensor(n, k, &Draw::Uniform.rows::<T>(2, 0..n, k))?;
        let rows = rank.own_range(m);
        let shard = rank.tensor(rows.len(), k, &a[rows.start * k..rows.end * k])?;
        let bias = rank.tensor(1, n, &bias)?;
        let mut c = poison::<T>(rank, m, n)?;
        load(rank)?(&shard, &b, &bias, &mut c)?;
        c.to_vec()
    })?;
    let b: Vec<T> = Draw::Uniform.rows(2, 0..n, k);
    let rows = sample(m);
    let expected: Vec<f64> = product(&a, &b, k, &rows)
        .iter()
        .enumerate()
        .map(|(i, x)| gelu(x + f64::from(bias[i % n])))
        .collect();
    for (rank, found) in outputs.iter().enumerate() {
        if found.iter().any(|x| !x.to_f32().is_finite()) {
            return Err(format!("rank {rank} left elements unwritten").into());
        }
        let found = pick(|i| found[i].to_f32(), &rows, n);
        close(&format!("gather {m}x{n}x{k}, rank {rank} of {ranks}"), &found, &expected)?;
    }
    Ok(())
}

fn close_scatter<T: Number>(gpus: Gpus, [n, k]: [usize; 2], load: Load<T>) -> Result<(), Failed> {
    let (m, ranks) = (2048, gpus.len());
    // f16 ends at 65504: scaled so that sums over k and ranks stay far below.
    let a: Vec<T> = Draw::Uniform.rows(1, 0..m, k);
    let bias = Draw::Uniform.rows::<f32>(3, 0..1, n);
    let outputs = world(gpus)?.run(|rank| {
        let seed = 20 + u64::from(rank.index());
        let b = rank.tensor(n, k, &Draw::Uniform.rows::<T>(seed, 0..n, k))?;
        let a = rank.tensor(m, k, &a)?;
        let bias = rank.tensor(1, n, &bias)?;
        let mut c = poison::<T>(rank, rank.own_rows(m), n)?;
        load(rank)?(&a, &b, &bias, &mut c)?;
        c.to_vec()
    })?;
    let rows = sample(m);
    let mut expected: Vec<f64> = (0..rows.len() * n).map(|i| f64::from(bias[i % n])).collect();
    for rank in 0..ranks as u64 {
        let b: Vec<T> = Draw::Uniform.rows(20 + rank, 0..n, k);
        for (sum, x) in expected.iter_mut().zip(product(&a, &b, k, &rows)) {
            *sum += x;
        }
    }
    let found = outputs.concat();
    if found.iter().any(|x| !x.to_f32().is_finite()) {
        return Err("elements were left unwritten".into());
    }
    let found = pick(|i| found[i].to_f32(), &rows, n);
    close(&format!("scatter {m}x{n}x{k}, world {ranks}"), &found, &expected)
}

/// Both operators on every rank without a reset, ten times as often as `each`, with new data now
/// and then.
fn many_launches(gpus: Gpus, each: usize) -> Result<(), Failed> {
    let (m, n, k, ranks) = (500, 264, 200, gpus.len() as f64);
    let rows: Vec<usize> = (0..m).collect();
    let b: Vec<bf16> = Draw::Integers.rows(99, 0..n, k);
    let expected: Vec<Vec<f64>> = (0..10)
        .map(|round| product(&Draw::Integers.rows::<bf16>(round, 0..m, k), &b, k, &rows))
        .collect();
    let outcomes = world(gpus)?.run(|rank| {
        let (gather, push) = (COPIED(rank)?, PUSHED(rank)?);
        let scatter = kernels::rs_bf16::load(rank)?;
        let bias = rank.zeros::<f32>(1, n)?;
        let b = rank.tensor(n, k, &b)?;
        let own = rank.own_range(m);
        let mut shard = rank.zeros::<bf16>(own.len(), k)?;
        let mut whole = rank.zeros::<bf16>(m, k)?;
        let mut c = poison::<bf16>(rank, m, n)?;
        let mut again = poison::<bf16>(rank, m, n)?;
        let mut sum = poison::<bf16>(rank, own.len(), n)?;
        for round in 0..10 {
            shard.write(&Draw::Integers.rows::<bf16>(round, own.clone(), k))?;
            whole.write(&Draw::Integers.rows::<bf16>(round, 0..m, k))?;
            for _ in 0..each {
                gather(&shard, &b, &bias, &mut c)?;
                push(&shard, &b, &bias, &mut again)?;
                scatter.launch(&whole, &b, &bias, &mut sum)?;
            }
            let product = &expected[round as usize];
            let relu = || product.iter().map(|x| x.max(0.0));
            // Every rank contributed the same product.
            let total = product[own.start * n..own.end * n].iter().map(|x| x * ranks);
            let (c, again, sum) = (c.to_vec()?, again.to_vec()?, sum.to_vec()?);
            let checked = same(&format!("gather, round {round}"), &c, relu())
                .and_then(|()| same(&format!("push, round {round}"), &again, relu()))
                .and_then(|()| same(&format!("scatter, round {round}"), &sum, total));
            if checked.is_err() {
                return Ok(checked);
            }
        }
        Ok(Ok(()))
    })?;
    outcomes.into_iter().collect()
}

fn custom_order() -> Result<(), Failed> {
    let (m, n, k) = (1000, 520, 264);
    let schedule = kernels::ag_relu_bf16::definition().schedules;
    let backwards = Order::custom("backwards", |step, grid, _, _| {
        let tile = grid.tiles() - 1 - step;
        TileCoord { m: tile / grid.cols, n: tile % grid.cols }
    });
    let schedule = schedule()[0].clone().order(backwards).chunk_rows(100);
    let outputs = world(WORLDS[1])?.run(|rank| {
        let kernel = kernels::ag_relu_bf16::load_with(rank, &schedule)?;
        let rows = rank.own_range(m);
        let a = rank.tensor(rows.len(), k, &Draw::Integers.rows::<bf16>(1, rows.clone(), k))?;
        let b = rank.tensor(n, k, &Draw::Integers.rows::<bf16>(2, 0..n, k))?;
        let bias = rank.zeros::<f32>(1, n)?;
        let mut c = poison::<bf16>(rank, m, n)?;
        kernel.launch(&a, &b, &bias, &mut c)?;
        c.to_vec()
    })?;
    let a: Vec<bf16> = Draw::Integers.rows(1, 0..m, k);
    let b: Vec<bf16> = Draw::Integers.rows(2, 0..n, k);
    let expected = product(&a, &b, k, &(0..m).collect::<Vec<_>>());
    for found in &outputs {
        same("backwards", found, expected.iter().map(|x| x.max(0.0)))?;
    }
    Ok(())
}

/// A caller who has cudarc's slices and streams already: no copy, and the caller's own order.
fn cudarc_slices() -> Result<(), Failed> {
    let (m, n, k) = (300, 264, 128);
    let outputs = world(WORLDS[0])?.run(|rank| {
        let outcome = || -> Result<Vec<bf16>, Failed> {
            let device = rank.device().ok_or("no device")?;
            let context = CudaContext::new(0)?;
            let stream = context.new_stream()?;
            rank.use_stream(Stream::from_cudarc(&device, Arc::clone(&stream))?)?;
            let upload = |data: Vec<bf16>| -> Result<DeviceBuffer, Failed> {
                Ok(DeviceBuffer::from_cudarc(&device, Arc::new(stream.clone_htod(&data)?))?)
            };
            let a = rank.adopt::<bf16>(m, k, upload(Draw::Integers.rows(1, 0..m, k))?)?;
            let b = rank.adopt::<bf16>(n, k, upload(Draw::Integers.rows(2, 0..n, k))?)?;
            let bias = rank.zeros::<f32>(1, n)?;
            let out = Arc::new(stream.clone_htod(&vec![bf16::NAN; m * n])?);
            let buffer = DeviceBuffer::from_cudarc(&device, Arc::clone(&out))?;
            let mut c = rank.adopt::<bf16>(m, n, buffer)?;
            kernels::ag_relu_bf16::load(rank)?.launch(&a, &b, &bias, &mut c)?;
            let found = stream.clone_dtoh(&*out)?;
            stream.synchronize()?;
            Ok(found)
        };
        Ok(outcome())
    })?;
    let found = outputs.into_iter().next().ok_or("one rank")??;
    let a: Vec<bf16> = Draw::Integers.rows(1, 0..m, k);
    let b: Vec<bf16> = Draw::Integers.rows(2, 0..n, k);
    let expected = product(&a, &b, k, &(0..m).collect::<Vec<_>>());
    same("cudarc", &found, expected.iter().map(|x| x.max(0.0)))
}
