//! Worlds of processes on GPUs: as many as there are, several ranks on one where these are fewer.
//! Operators, replays, groups, recovery, and ranks that are killed or have no memory left.
//!
//! The program starts itself again, as ranks. Without a device every case is counted as ignored and
//! the reason is printed.

#![expect(unreachable_pub, reason = "kernels stand as they would in a library")]

#[path = "support/data.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod data;
#[path = "support/life.rs"]
#[expect(dead_code, reason = "shared with tests of threads and devices")]
mod life;
#[path = "../flux-runtime/tests/support/ranks.rs"]
#[expect(dead_code, reason = "shared with tests of the runtime")]
mod ranks;
#[path = "support/suite.rs"]
mod suite;

use flux::prelude::*;
use flux::runtime::DeviceBuffer;
use flux::{Error, Transport};
use flux_runtime::probe;
use life::{Operators, gather_by, kernels};
use ranks::{LONG, Process, port, start};
use rustix::process::Signal;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// A limit that is meant to pass. Processes that share a GPU have it in turns.
const SHORT: Duration = Duration::from_secs(2);

/// What passes until a launch surely waits.
const PAUSE: Duration = Duration::from_millis(500);

/// Rows and columns of what is gathered where memory is to run out: 2 GiB of workspace.
const MUCH: [usize; 2] = [16 << 10, 32 << 10];

fn main() -> ExitCode {
    let cases: [(&str, fn()); 13] = [
        ("operators_on_1", || operators(1)),
        ("operators_on_2", || operators(2)),
        ("operators_on_4", || operators(4)),
        ("a_thousand_launches_on_2", || all_succeed("thousand", 2)),
        ("a_thousand_launches_on_4", || all_succeed("thousand", 4)),
        ("groups_go_their_own_ways", || all_succeed("groups", 8)),
        ("a_stall_is_recovered_from", stall),
        ("a_rank_killed_in_a_launch_ends_the_others_at_once", killed_in_a_launch),
        ("a_rank_killed_in_a_copy_ends_the_others_at_once", killed_in_a_copy),
        ("a_rank_killed_between_launches_ends_the_others", killed_between_launches),
        ("memory_that_runs_out_is_an_error_to_all", no_memory),
        ("a_rank_without_memory_for_its_tensors_is_named", no_tensors),
        ("a_rank_without_a_gpu_is_told_to_all", no_gpu),
    ];
    let missing = || probe().err().map(|reason| format!("no CUDA device ({reason})"));
    ranks::run_unless(missing, play, 1, cases)
}

/// What a rank does.
fn play(role: &str) -> Result<(), Error> {
    let begin = Instant::now();
    let world = World::from_env()?.with_limit(LONG);
    println!("{world}: joined after {}", ms(begin));
    ranks::step("has joined");
    match role {
        "operators" => {
            // Ranks are made anew for each run.
            for seed in [1, 5] {
                let ran = world.run(|rank| Operators::load(rank, None)?.exact(seed))?;
                assert_eq!(ran.len(), 1, "of this process");
            }
            let begin = Instant::now();
            let count = world.run(suite::exact)?[0];
            println!("{world}: {count} launches with their kernels in {}", ms(begin));
            Ok(())
        }
        "thousand" => each(&world, LONG, None, |operators| {
            thousand(operators)?;
            replays(operators.rank)
        }),
        "works" => each(&world, LONG, None, |_| Ok(())),
        "groups" => {
            life::groups_go_their_own_ways(&world);
            Ok(())
        }
        "stall" => each(&world, SHORT, None, |operators| {
            if operators.rank.index() == 1 {
                // Until the others have given up.
                thread::sleep(2 * SHORT);
            } else {
                operators.scatter()?;
                let stalled = operators.rank.synchronize().expect_err("rank 1 does not launch");
                println!("{stalled}");
                operators.scatter().expect_err("the kernel is lost");
                thread::sleep(SHORT);
            }
            operators.rank.recover()?;
            operators.exact(4)
        }),
        "absent" => each(&world, LONG, None, |operators| {
            println!("ready");
            if operators.rank.index() == 2 {
                // Rank 1 is killed while it waits for this one, as rank 0 does.
                thread::sleep(4 * PAUSE);
            }
            operators.scatter()?;
            operators.rank.synchronize()
        }),
        // Its copies wait on the host for the rank that does not launch, two launches back.
        "copies" => each(&world, LONG, Some(None), |operators| {
            println!("ready");
            if operators.rank.index() == 2 {
                thread::sleep(4 * PAUSE);
            }
            (0..4).try_for_each(|_| operators.gather())?;
            operators.rank.synchronize()
        }),
        "patient" => each(&world, LONG, None, |operators| {
            println!("ready");
            let start = Instant::now();
            while start.elapsed() < LONG {
                operators.gather()?;
                operators.rank.synchronize()?;
                thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        }),
        "full" => world.run(full).map(drop),
        "poor" => world
            .run(|rank| {
                if rank.index() == 1 {
                    rank.zeros::<bf16>(1 << 20, 1 << 20)?;
                }
                kernels::scattered::load(rank).map(drop)
            })
            .map(drop),
        other => panic!("no role `{other}`"),
    }
}

fn ms(begin: Instant) -> String {
    format!("{:.1} ms", begin.elapsed().as_secs_f64() * 1e3)
}

/// What a rank does with operators that have been launched. `by` says how a gather moves its shards,
/// where that is not left open.
fn each(
    world: &World,
    limit: Duration,
    by: Option<Option<Transport>>,
    program: impl Fn(&mut Operators<'_>) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let world = world.clone().with_limit(limit);
    let run = world.run(|rank| {
        let schedule = by.map(gather_by);
        let begin = Instant::now();
        let mut operators = Operators::load(rank, schedule.as_ref())?;
        operators.exact(1)?;
        ranks::step("has launched its operators");
        println!("{world}: two operators loaded and launched after {}", ms(begin));
        program(&mut operators)
    });
    run.map(drop)
}

/// One launch behind the other, and then each behind a wait for the one before.
fn thousand(operators: &mut Operators<'_>) -> Result<(), Error> {
    operators.fill(3)?;
    for (how, waits, launches) in [("enqueued", false, 400), ("waited for", true, 100)] {
        let begin = Instant::now();
        for _ in 0..launches {
            operators.gather()?;
            operators.scatter()?;
            if waits {
                operators.rank.synchronize()?;
            }
        }
        operators.rank.synchronize()?;
        let one = begin.elapsed().as_secs_f64() * 1e3 / f64::from(2 * launches);
        let rank = operators.rank.index();
        println!("rank {rank}: {} launches {how}, each {one:.3} ms", 2 * launches);
    }
    operators.check(3)
}

/// Launches that are recorded and replayed.
fn replays(rank: &Rank) -> Result<(), Error> {
    let mut operators = Operators::load(rank, Some(&gather_by(Some(Transport::Put))))?;
    operators.exact(7)?;
    let graph = rank.capture(|| {
        operators.gather()?;
        operators.scatter()
    })?;
    operators.fill(8)?;
    let begin = Instant::now();
    for _ in 0..200 {
        graph.launch()?;
    }
    rank.synchronize()?;
    println!("rank {}: 200 replays of two launches in {}", rank.index(), ms(begin));
    operators.check(8)
}

/// There is room for the workspace of one rank and a half.
fn full(rank: &Rank) -> Result<(), Error> {
    let ([m, k], n) = (MUCH, 8);
    let kernel = kernels::gathered::load(rank)?;
    let (a, b) = (rank.zeros(rank.own_rows(m), k)?, rank.zeros(n, k)?);
    let mut c = rank.zeros(m, n)?;
    let workspace = 2 * 2 * (m * k) as u64;
    // All have their tensors.
    let small = kernels::scattered::load(rank)?;
    let (left, right) = (rank.zeros(8, 8)?, rank.zeros(8, 8)?);
    let mut sum = rank.zeros(rank.own_rows(8), 8)?;
    small.launch(&left, &right, &mut sum)?;
    rank.synchronize()?;
    let hoard = match rank.device().filter(|_| rank.index() == 0) {
        Some(device) => {
            let room = workspace + workspace / 2;
            Some(DeviceBuffer::alloc(&device, device.free_bytes()?.saturating_sub(room))?)
        }
        None => None,
    };
    small.launch(&left, &right, &mut sum)?;
    rank.synchronize()?;
    let refused = kernel.launch(&a, &b, &mut c).expect_err("there is no room for two");
    println!("{refused}");
    drop(hoard);
    small.launch(&left, &right, &mut sum)?;
    rank.synchronize()?;
    // There is room again.
    kernel.launch(&a, &b, &mut c)?;
    rank.synchronize()
}

fn start_all(role: &str, world: u32, port: u16, variables: &[(&str, &str)]) -> Vec<Process> {
    let variables = [&[("FLUX_BACKEND", "gpu")], variables].concat();
    (0..world).map(|rank| start(role, (rank, world, port), &variables)).collect()
}

fn all_succeed(role: &str, world: u32) {
    start_all(role, world, port(), &[]).into_iter().for_each(Process::succeed);
}

/// That a job at this port works: what was there before has left nothing behind.
fn works_at(port: u16) {
    start_all("works", 2, port, &[]).into_iter().for_each(Process::succeed);
}

fn operators(world: u32) {
    all_succeed("operators", world);
}

fn stall() {
    for (process, rank) in start_all("stall", 3, port(), &[]).into_iter().zip(0..) {
        let ended = process.end();
        assert!(ended.status.success(), "{ended:?}");
        let is_told = ended.said.contains(&format!("rank {rank} stalled"));
        assert!(rank == 1 || is_told, "{ended:?}");
    }
}

/// Rank 1 of three is killed while it plays `role`; the others say so, long before their limit.
fn killed(role: &str) {
    let port = port();
    let mut processes = start_all(role, 3, port, &[]);
    processes.iter().for_each(|process| process.wait_for("ready"));
    thread::sleep(PAUSE);
    processes[1].signal(Signal::KILL);
    processes.remove(1);
    for process in processes {
        let ended = process.end();
        println!("{} after {:?}", ended.said.lines().last().unwrap_or(""), ended.after);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let is_told = ended.said.contains("rank 1 is gone: its process has ended");
        assert!(is_told && ended.after < LONG / 4, "{ended:?}");
    }
    works_at(port);
}

fn killed_in_a_launch() {
    killed("absent");
}

fn killed_in_a_copy() {
    killed("copies");
}

fn killed_between_launches() {
    killed("patient");
}

fn no_memory() {
    let port = port();
    // What runs out is that of one GPU.
    let one = [("CUDA_VISIBLE_DEVICES", "0")];
    for process in start_all("full", 2, port, &one) {
        let ended = process.end();
        println!("{}", ended.said);
        assert!(ended.status.success(), "{ended:?}");
        let is_told = ended.said.contains("bytes of device memory wanted on device 0");
        assert!(is_told, "{ended:?}");
    }
    works_at(port);
}

fn no_tensors() {
    let port = port();
    let said = ["rank 1 has given up: ", "bytes of device memory wanted", "rank 1 has given up: "];
    for (process, said) in start_all("poor", 3, port, &[]).into_iter().zip(said) {
        let ended = process.fail(said);
        assert!(ended.after < LONG / 4, "{ended:?}");
    }
    works_at(port);
}

fn no_gpu() {
    let port = port();
    let start = |rank| {
        let none: &[(&str, &str)] = if rank == 1 { &[("CUDA_VISIBLE_DEVICES", "")] } else { &[] };
        let variables = [&[("FLUX_BACKEND", "gpu")], none].concat();
        start("operators", (rank, 3, port), &variables)
    };
    let processes = [0, 1, 2].map(start);
    let reason = "the CUDA driver sees no device";
    for process in processes {
        let ended = process.fail(reason);
        println!("{}", ended.said);
        assert!(ended.after < LONG / 4, "{ended:?}");
    }
}
