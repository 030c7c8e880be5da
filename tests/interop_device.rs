//! Kernels from bundles, memory that ranks share with others, and memory of others, on one GPU.
//!
//! Without a device every case is counted as ignored and the reason is printed.

#[path = "support/data.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod data;

use cudarc::driver::{CudaContext, DevicePtr};
use data::{Draw, product};
use flux::prelude::*;
use flux::runtime::{DeviceBuffer, DlForm, DlMatrix, DlPlace, DlTensor, ElementKind, Stream};
use flux::{AnyKernel, Arg, Bundle, kernels};
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::sync::Arc;

const FORMS: [DlForm; 2] = [DlForm::Legacy, DlForm::Versioned];

/// Runs `program` on virtual ranks; what fails on one fails the test.
fn on_ranks<T: Send>(
    ranks: u32,
    program: impl Fn(&Rank) -> Result<T, Failed> + Sync,
) -> Result<Vec<T>, Failed> {
    let outcomes = World::virtual_ranks(0, ranks)?.run(|rank| Ok(program(rank)))?;
    outcomes.into_iter().collect()
}

/// A · Bᵀ of integers, whose sums bf16 rounds as it rounds the f64.
fn expected(a: &[bf16], b: &[bf16], k: usize) -> Vec<bf16> {
    let rows: Vec<_> = (0..a.len() / k).collect();
    product(a, b, k, &rows).into_iter().map(bf16::from_f64).collect()
}

fn same(what: &str, found: &[bf16], expected: &[bf16]) -> Result<(), Failed> {
    let pairs = found.iter().zip(expected);
    let differ = pairs.filter(|(found, expected)| found != expected).count();
    if found.len() == expected.len() && differ == 0 {
        return Ok(());
    }
    Err(format!("{what}: {differ} of {} differ, {} found", expected.len(), found.len()).into())
}

/// What is loaded from bytes runs as what was compiled in: its machine code is another copy.
fn a_bundle_runs_on_virtual_ranks() -> Result<(), Failed> {
    let (ranks, m, n, k) = (4, 500, 264, 192);
    let compiled_in = kernels::gemm_rs::definition();
    let bundle = Bundle::decode(&Bundle::encode(compiled_in)?)?;
    let own = |rank: u32| -> [Vec<bf16>; 2] {
        let seed = u64::from(10 * rank);
        [Draw::Integers.rows(seed, 0..m, k), Draw::Integers.rows(seed + 1, 0..n, k)]
    };
    let found = on_ranks(ranks, |rank| {
        let kernel = AnyKernel::load(bundle.definition(), rank, None)?;
        let [a, b] = own(rank.index());
        let (a, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
        let rows = rank.own_rows(m);
        let mut c = rank.tensor(rows, n, &vec![bf16::NAN; rows * n])?;
        for _ in 0..3 {
            kernel.launch(&mut [Arg::input(&a), Arg::input(&b), Arg::output(&mut c)])?;
        }
        let wrong = kernel.launch(&mut [Arg::input(&a), Arg::input(&b), Arg::input(&c)]);
        let wrong = wrong.err().ok_or("an input was taken for an output")?.to_string();
        if wrong != "`c` of `gemm_rs` is an output of bf16, found a tensor of bf16" {
            return Err(wrong.into());
        }
        Ok(c.to_vec()?)
    })?;
    let rows: Vec<_> = (0..m).collect();
    let mut sum = vec![0.0; m * n];
    for rank in 0..ranks {
        let [a, b] = own(rank);
        let part = product(&a, &b, k, &rows);
        sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    let sum: Vec<_> = sum.into_iter().map(bf16::from_f64).collect();
    same("the sum", &found.concat(), &sum)
}

/// Pointers and a stream of the caller's, without a copy.
fn raw_pointers_and_streams() -> Result<(), Failed> {
    let (m, n, k) = (300, 264, 128);
    let (a, b): (Vec<bf16>, Vec<bf16>) =
        (Draw::Integers.rows(1, 0..m, k), Draw::Integers.rows(2, 0..n, k));
    let found = on_ranks(1, |rank| {
        let device = rank.device().ok_or("no device")?;
        let stream = CudaContext::new(0)?.new_stream()?;
        let (on_a, on_b) = (stream.clone_htod(&a)?, stream.clone_htod(&b)?);
        let out = stream.clone_htod(&vec![bf16::NAN; m * n])?;
        let adopt = |slice: &cudarc::driver::CudaSlice<bf16>| {
            let (address, _order) = slice.device_ptr(&stream);
            // SAFETY: the slice outlives the launches, which are awaited below.
            unsafe { DeviceBuffer::from_raw(&device, address, 2 * slice.len() as u64) }
        };
        // SAFETY: the stream outlives the rank's use of it.
        let theirs = unsafe { Stream::from_raw(&device, stream.cu_stream()) };
        rank.use_stream(theirs)?;
        let kernel = kernels::gemm_bf16::load(rank)?;
        for _ in 0..3 {
            let (a, b) = (rank.adopt(m, k, adopt(&on_a)?)?, rank.adopt(n, k, adopt(&on_b)?)?);
            let mut c = rank.adopt(m, n, adopt(&out)?)?;
            kernel.launch(&a, &b, &mut c)?;
        }
        let found = stream.clone_dtoh(&out)?;
        stream.synchronize()?;
        rank.synchronize()?;
        Ok(found)
    })?;
    same("the product", &found.concat(), &expected(&a, &b, k))
}

/// Every rank writes into the next one's part by way of cudarc, and multiplies what it finds in its own.
fn symmetric_memory_is_reached_by_all_and_by_cudarc() -> Result<(), Failed> {
    let (ranks, rows, cols) = (4, 192, 64);
    let sent = |rank: u32| -> Vec<bf16> { Draw::Integers.rows(u64::from(rank), 0..rows, cols) };
    let found = on_ranks(ranks, |rank| {
        let symmetric = rank.symmetric::<bf16>(rows, cols)?;
        if symmetric.own().to_vec()?.iter().any(|x| *x != bf16::ZERO) {
            return Err("it is not zero at first".into());
        }
        let next = (rank.index() + 1) % ranks;
        let peer = symmetric.of(next)?;
        let stream = CudaContext::new(0)?.new_stream()?;
        {
            let buffer = peer.buffer().ok_or("no device")?;
            let mut slice = buffer.as_cudarc::<bf16>(&stream)?;
            if slice.len() != rows * cols {
                return Err(format!("{} elements", slice.len()).into());
            }
            stream.memcpy_htod(&sent(rank.index()), &mut *slice)?;
        }
        stream.synchronize()?;
        // A launch on all ranks is behind every rank's copy only if each has come here.
        let kernel = kernels::gemm_rs::load(rank)?;
        let (a, b) = (rank.zeros::<bf16>(8, 8)?, rank.zeros::<bf16>(8, 8)?);
        kernel.launch(&a, &b, &mut rank.zeros(rank.own_rows(8), 8)?)?;
        rank.synchronize()?;
        let own = symmetric.own().to_vec()?;
        let kernel = kernels::gemm_bf16::load(rank)?;
        let mut c = rank.tensor(rows, rows, &vec![bf16::NAN; rows * rows])?;
        kernel.launch(symmetric.own(), symmetric.own(), &mut c)?;
        // What is left of it: the view of a peer's part.
        drop(symmetric);
        rank.synchronize()?;
        if rank.symmetric::<bf16>(2, 2)?.of(ranks).is_ok() {
            return Err("there is no such rank".into());
        }
        Ok((own, c.to_vec()?))
    })?;
    for (rank, (own, c)) in (0..).zip(&found) {
        let before = sent((rank + ranks - 1) % ranks);
        same(&format!("rank {rank}, what was sent"), own, &before)?;
        same(&format!("rank {rank}, the product"), c, &expected(&before, &before, cols))?;
    }
    Ok(())
}

fn dlpack_shares_memory_and_gives_it_back() -> Result<(), Failed> {
    let (m, n, k) = (130, 72, 96);
    let (a, b): (Vec<bf16>, Vec<bf16>) =
        (Draw::Integers.rows(3, 0..m, k), Draw::Integers.rows(4, 0..n, k));
    for form in FORMS {
        let found = on_ranks(1, |rank| {
            let device = rank.device().ok_or("no device")?;
            let kernel = kernels::gemm_bf16::load(rank)?;
            // Ours to others: the tensor is gone, its memory is not.
            let given = rank.tensor(m, k, &a)?.into_dlpack(form);
            let matrix = given.matrix()?;
            let place = DlPlace::Device(device.ordinal());
            if (matrix.rows, matrix.cols, matrix.place) != (m, k, place) {
                return Err(format!("{matrix:?}").into());
            }
            // Others' to us: somebody waits for it to come back.
            let memory = rank.tensor(n, k, &b)?;
            let address = memory.buffer().ok_or("no device")?.address();
            let owner = Arc::new(memory);
            let theirs = DlMatrix {
                element: ElementKind::Bf16,
                rows: n,
                cols: k,
                address,
                place,
                read_only: false,
            };
            let theirs = DlTensor::export(&theirs, Box::new(Arc::clone(&owner)), form);
            let (a, b) = (rank.from_dlpack::<bf16>(given)?, rank.from_dlpack::<bf16>(theirs)?);
            let mut c = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
            let shared = rank.from_dlpack::<bf16>(c.to_dlpack(form)?)?;
            kernel.launch(&a, &b, &mut c)?;
            drop((a, b));
            if Arc::strong_count(&owner) != 2 {
                return Err("it was given back while a kernel may read it".into());
            }
            rank.synchronize()?;
            if Arc::strong_count(&owner) != 1 {
                return Err("it was not given back".into());
            }
            let wrong = rank.from_dlpack::<f16>(c.to_dlpack(form)?).err();
            let wrong = wrong.ok_or("bf16 was taken for f16")?.to_string();
            if !wrong.contains("expected elements of f16, found Bf16") {
                return Err(wrong.into());
            }
            drop(c);
            Ok(shared.to_vec()?)
        })?;
        same("the product", &found.concat(), &expected(&a, &b, k))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let missing = World::virtual_ranks(0, 1).err();
    if let Some(reason) = &missing {
        println!("skipped: no CUDA device ({reason})");
    }
    type Case = fn() -> Result<(), Failed>;
    let cases: [(&str, Case); 4] = [
        ("a_bundle_runs_on_virtual_ranks", a_bundle_runs_on_virtual_ranks),
        ("raw_pointers_and_streams", raw_pointers_and_streams),
        (
            "symmetric_memory_is_reached_by_all_and_by_cudarc",
            symmetric_memory_is_reached_by_all_and_by_cudarc,
        ),
        ("dlpack_shares_memory_and_gives_it_back", dlpack_shares_memory_and_gives_it_back),
    ];
    let trial = |(name, case)| Trial::test(name, case).with_ignored_flag(missing.is_some());
    // Every case wants the whole device.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, cases.into_iter().map(trial).collect()).exit_code()
}
