//! What a user can get wrong on a device, and what only looks wrong.

use flux::kernels::{gemm_bf16, gemm_rs};
use flux::prelude::*;
use flux::runtime::DeviceBuffer;
use flux::{Error, Schedule};
use libtest_mimic::{Failed, Trial};
use std::time::{Duration, Instant};

type Case = fn() -> Result<(), Failed>;

/// Every case, ignored where there is no device.
pub(crate) fn trials(ignored: bool) -> impl Iterator<Item = Trial> {
    let cases: [(&str, Case); 9] = [
        ("tensors_of_another_place_are_refused", other_place),
        ("a_schedule_that_was_not_compiled_in_is_refused", not_compiled),
        ("a_schedule_that_does_not_fit_is_refused", does_not_fit),
        ("an_input_that_tma_cannot_load_is_refused_and_costs_nothing", unaligned_input),
        ("an_output_at_any_address_is_written", unaligned_output),
        ("memory_that_is_too_small_or_nobodys_is_not_adopted", adopted),
        ("more_than_fits_at_once_is_refused", too_much_at_once),
        ("empty_extents_do_nothing", empty),
        ("a_rank_that_never_launches_is_named", never_launches),
    ];
    cases.into_iter().map(move |(name, case)| Trial::test(name, case).with_ignored_flag(ignored))
}

/// That an error says what is expected of it.
pub(crate) fn says<T>(outcome: Result<T, Error>, expected: &str) -> Result<(), Failed> {
    match outcome {
        Ok(_) => Err(format!("expected an error with `{expected}`").into()),
        Err(error) if error.to_string().contains(expected) => Ok(()),
        Err(error) => Err(format!("expected `{expected}`, found `{error}`").into()),
    }
}

/// Runs a test on the only rank of a device.
fn alone(test: impl Fn(&Rank) -> Result<(), Failed> + Sync) -> Result<(), Failed> {
    World::virtual_ranks(0, 1)?.run(|rank| Ok(test(rank)))?.into_iter().collect()
}

/// Ones times ones: every element of the product is k.
pub(crate) fn ones(rank: &Rank, rows: usize, cols: usize) -> Result<Tensor<bf16>, Error> {
    rank.tensor(rows, cols, &vec![bf16::ONE; rows * cols])
}

pub(crate) fn is_k(c: &Tensor<bf16>, k: usize) -> Result<(), Failed> {
    let wrong = c.to_vec()?.into_iter().position(|x| x != bf16::from_f32(k as f32));
    wrong.map_or(Ok(()), |index| Err(format!("element {index} is wrong").into()))
}

fn other_place() -> Result<(), Failed> {
    let hosts = World::host(1)?.ranks();
    let host = &hosts[0];
    alone(|device| {
        let (a, b) = (ones(device, 4, 8)?, ones(device, 16, 8)?);
        let mut c = device.zeros(4, 16)?;
        let kernel = gemm_bf16::load(device)?;
        let stray = kernel.launch(&a, &ones(host, 16, 8)?, &mut c);
        says(stray, "`b` lives on the host, the kernel was loaded on the GPU")?;
        let stray = kernel.launch(&a, &b, &mut host.zeros(4, 16)?);
        says(stray, "`c` lives on the host, the kernel was loaded on the GPU")?;
        kernel.launch(&a, &b, &mut c)?;
        is_k(&c, 8)?;
        let stray = gemm_bf16::load(host)?.launch(&a, &ones(host, 16, 8)?, &mut host.zeros(4, 16)?);
        says(stray, "`a` lives on the GPU, the kernel was loaded on the host")
    })
}

fn not_compiled() -> Result<(), Failed> {
    alone(|rank| {
        let wanted = Schedule::sm_90a().stages(3);
        let refused = gemm_rs::load_with(rank, &wanted);
        says(refused, "kernel `gemm_rs` has no machine code for the schedule (sm_90a, tile = ")?;
        let refused = gemm_rs::load_with(rank, &wanted);
        says(refused, "compiled in: (sm_90a, tile = (128, 256, 64), stages = 4")?;
        let refused = gemm_rs::load_with(rank, &Schedule::host());
        says(refused, "its schedule is for host, expected one for sm_90a")
    })
}

fn does_not_fit() -> Result<(), Failed> {
    alone(|rank| {
        let refused = gemm_rs::load_with(rank, &Schedule::sm_90a().stages(6));
        says(refused, "bytes of shared memory, sm_90a has 232448")?;
        let order = flux::Order::custom("stuck", |_, _, _, _| TileCoord { m: 0, n: 0 });
        let refused = gemm_rs::load_with(rank, &Schedule::sm_90a().order(order));
        says(refused, "order `stuck` is no permutation")
    })
}

/// Memory of `bytes` bytes that begins two bytes into `buffer`.
fn shifted(buffer: &DeviceBuffer, bytes: u64) -> Result<DeviceBuffer, Failed> {
    assert!(bytes + 2 <= buffer.bytes());
    // SAFETY: the callers keep `buffer` until the world is at rest.
    let shifted = unsafe { DeviceBuffer::from_raw(buffer.device(), buffer.address() + 2, bytes) };
    Ok(shifted?)
}

fn unaligned_input() -> Result<(), Failed> {
    alone(|rank| {
        let (m, n, k) = (40, 48, 64);
        let Some(device) = rank.device() else { return Err("a rank without device".into()) };
        let memory = DeviceBuffer::alloc_zeroed(&device, 2 * (m * k + 8) as u64)?;
        let odd = rank.adopt(m, k, shifted(&memory, 2 * (m * k) as u64)?)?;
        let (a, b) = (ones(rank, m, k)?, ones(rank, n, k)?);
        let mut c = rank.zeros(m, n)?;
        let kernel = gemm_bf16::load(rank)?;
        kernel.launch(&a, &b, &mut c)?;
        says(kernel.launch(&odd, &b, &mut c), "`a`: ")?;
        c.write(&vec![bf16::NAN; m * n])?;
        kernel.launch(&a, &b, &mut c)?;
        is_k(&c, k)
    })
}

fn unaligned_output() -> Result<(), Failed> {
    alone(|rank| {
        let (m, n, k) = (200, 264, 64);
        let Some(device) = rank.device() else { return Err("a rank without device".into()) };
        let memory = DeviceBuffer::alloc_zeroed(&device, 2 * (m * n + 8) as u64)?;
        let mut c = rank.adopt(m, n, shifted(&memory, 2 * (m * n) as u64)?)?;
        gemm_bf16::load(rank)?.launch(&ones(rank, m, k)?, &ones(rank, n, k)?, &mut c)?;
        is_k(&c, k)?;
        let mut all = vec![bf16::NAN; m * n + 8];
        memory.copy_to(0, &mut all)?;
        let around = all[0] == bf16::ZERO && all[m * n + 1..].iter().all(|&x| x == bf16::ZERO);
        if around { Ok(()) } else { Err("elements around the output were written".into()) }
    })
}

fn adopted() -> Result<(), Failed> {
    alone(|rank| {
        let Some(device) = rank.device() else { return Err("a rank without device".into()) };
        let small = DeviceBuffer::alloc_zeroed(&device, 100)?;
        says(rank.adopt::<bf16>(10, 6, small), "holds 60 elements, found 50")?;
        let host = World::host(1)?.ranks();
        let memory = DeviceBuffer::alloc_zeroed(&device, 100)?;
        says(host[0].adopt::<bf16>(5, 10, memory), "given to a rank of the host")?;
        says(rank.zeros::<f32>(1 << 30, 1 << 20), "bytes of device memory wanted on device 0")?;
        // SAFETY: the address is never used, since it is refused.
        let null = unsafe { DeviceBuffer::from_raw(&device, 0, 64) };
        says(null.map_err(Error::from), "is not memory that CUDA knows")
    })
}

fn too_much_at_once() -> Result<(), Failed> {
    says(World::virtual_ranks(0, 64), "hardware queues")?;
    alone(|rank| {
        let kernel = gemm_bf16::load_with(rank, &Schedule::sm_90a().ctas(10_000))?;
        let (a, b) = (rank.zeros(128 * 100, 8)?, rank.zeros(256 * 10, 8)?);
        let launched = kernel.launch(&a, &b, &mut rank.zeros(128 * 100, 256 * 10)?);
        says(launched, "must be resident at once")
    })
}

fn empty() -> Result<(), Failed> {
    let outcomes = World::virtual_ranks(0, 2)?.with_limit(Duration::MAX).run(|rank| {
        let kernel = gemm_rs::load(rank)?;
        let launch = |m: usize, n: usize, k: usize| {
            let (a, b) = (ones(rank, m, k)?, ones(rank, n, k)?);
            let mut c = rank.zeros(rank.own_rows(m), n)?;
            kernel.launch(&a, &b, &mut c)?;
            Ok::<_, Error>(c)
        };
        launch(0, 16, 8)?;
        launch(16, 0, 8)?;
        let nothing = says(launch(16, 16, 0), "k = 0: ");
        Ok(nothing.and_then(|()| is_k(&launch(1, 16, 8)?, 16)))
    })?;
    outcomes.into_iter().collect()
}

fn never_launches() -> Result<(), Failed> {
    let limit = Duration::from_millis(300);
    let outcomes = World::virtual_ranks(0, 2)?.with_limit(limit).run(|rank| {
        let kernel = gemm_rs::load(rank)?;
        if rank.index() == 1 {
            std::thread::sleep(3 * limit);
            return Ok(Ok(()));
        }
        let start = Instant::now();
        let (a, b) = (ones(rank, 4, 8)?, ones(rank, 16, 8)?);
        let launched = kernel.launch(&a, &b, &mut rank.zeros(2, 16)?);
        let late = start.elapsed() > limit + Duration::from_secs(1);
        let named = says(launched, "ranks [1] did not come within 300ms");
        Ok(if late { Err("later than the limit".into()) } else { named })
    })?;
    outcomes.into_iter().collect()
}
