//! Worlds of processes on GPUs whose memory is not mapped: NCCL moves their data. Operators, groups, a rank
//! that does not come, and one that is killed.
//!
//! The program starts itself again, as ranks. Where there are fewer GPUs than ranks several have one, which
//! NCCL takes for GPUs of several machines. Without a device, or without NCCL, every case is counted as
//! ignored and the reason is printed.

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
use flux::{Error, PeerAccess, Processes};
use flux_runtime::{nccl, probe};
use life::Operators;
use ranks::{LONG, Process, port, start};
use rustix::process::Signal;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// A limit that is meant to pass.
const SHORT: Duration = Duration::from_secs(2);

/// What passes until a launch surely waits.
const PAUSE: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let cases: [(&str, fn()); 7] = [
        ("operators_on_1", || all_succeed("operators", 1)),
        ("operators_on_2", || all_succeed("operators", 2)),
        ("operators_on_3", || all_succeed("operators", 3)),
        ("groups_of_2_and_3", || all_succeed("groups", 5)),
        ("a_rank_that_does_not_come_is_late", late),
        ("a_rank_killed_in_a_collective_ends_the_others", killed),
        ("what_needs_mapped_memory_is_refused", || all_succeed("refused", 2)),
    ];
    let no_device = || probe().err().map(|reason| format!("no CUDA device ({reason})"));
    let no_nccl = || nccl::version().err().map(|reason| format!("no NCCL ({reason})"));
    ranks::run_unless(|| no_device().or_else(no_nccl), play, 1, cases)
}

/// What a rank does.
fn play(role: &str) -> Result<(), Error> {
    let world = Processes::from_env()?.peers(PeerAccess::Nccl).join()?.with_limit(LONG);
    ranks::step("has joined");
    match role {
        "operators" => {
            let begin = Instant::now();
            let count = world.run(|rank| {
                Operators::load(rank, None)?.exact(1)?;
                suite::exact(rank)
            })?[0];
            let took = begin.elapsed().as_secs_f64() * 1e3;
            println!("{world}: {count} launches with their kernels in {took:.1} ms");
            Ok(())
        }
        "groups" => world
            .run(|rank| {
                let members: &[u32] = if rank.index() < 2 { &[1, 0] } else { &[2, 3, 4] };
                suite::exact(&rank.group(members)?)?;
                suite::exact(rank)
            })
            .map(drop),
        "late" => world
            .with_limit(SHORT)
            .run(|rank| {
                let mut operators = Operators::load(rank, None)?;
                operators.exact(1)?;
                if rank.index() == 1 {
                    thread::sleep(3 * SHORT);
                    return Ok(());
                }
                let begin = Instant::now();
                operators.scatter()?;
                let late = rank.synchronize().expect_err("rank 1 does not launch");
                println!("{late} (after {} ms)", begin.elapsed().as_millis());
                assert!(matches!(late, Error::CollectiveLate { rank: 0, .. }), "{late}");
                assert!(begin.elapsed() < SHORT + Duration::from_secs(1), "{:?}", begin.elapsed());
                operators.scatter().expect_err("the communicator is gone");
                let refused = rank.recover().expect_err("rank 1 does not recover");
                println!("{refused}");
                Ok(())
            })
            .map(drop),
        "absent" => world
            .run(|rank| {
                let mut operators = Operators::load(rank, None)?;
                operators.exact(1)?;
                println!("ready");
                if rank.index() > 0 {
                    // Rank 1 is killed meanwhile.
                    thread::sleep(8 * PAUSE);
                }
                operators.scatter()?;
                rank.synchronize()
            })
            .map(drop),
        "refused" => world.run(refused).map(drop),
        other => panic!("no role `{other}`"),
    }
}

fn refused(rank: &Rank) -> Result<(), Error> {
    let kernel = flux::kernels::gemm_rs_bias_residual::load(rank).expect_err("a sum that goes on");
    println!("{kernel}");
    assert!(kernel.to_string().contains("write `c.add(tile, …)`"), "{kernel}");
    let symmetric = rank.symmetric::<bf16>(8, 8).expect_err("memory that all reach");
    println!("{symmetric}");
    assert!(symmetric.to_string().contains("FLUX_PEERS"), "{symmetric}");
    let kernel = flux::kernels::ag_gemm::load(rank)?;
    let (a, b) = (rank.zeros(rank.own_rows(64), 64)?, rank.zeros(64, 64)?);
    let mut c = rank.zeros(64, 64)?;
    kernel.launch(&a, &b, &mut c)?;
    let captured = rank.capture(|| kernel.launch(&a, &b, &mut c)).expect_err("a graph");
    println!("{captured}");
    rank.synchronize()
}

/// Ranks that NCCL takes to be on machines of their own.
fn start_all(role: &str, world: u32, port: u16) -> Vec<Process> {
    let start = |rank: u32| {
        let host = format!("machine-{rank}");
        let variables = [
            ("FLUX_BACKEND", "gpu"),
            ("NCCL_HOSTID", &*host),
            ("NCCL_SOCKET_IFNAME", "lo"),
            ("NCCL_IB_DISABLE", "1"),
        ];
        start(role, (rank, world, port), &variables)
    };
    (0..world).map(start).collect()
}

fn all_succeed(role: &str, world: u32) {
    start_all(role, world, port()).into_iter().for_each(Process::succeed);
}

fn late() {
    for process in start_all("late", 2, port()) {
        let ended = process.end();
        println!("{}", ended.said);
        assert!(ended.status.success(), "{ended:?}");
    }
}

/// Rank 1 of three is killed while rank 0 waits for it; the others say so, long before their limit.
fn killed() {
    let port = port();
    let mut processes = start_all("absent", 3, port);
    processes.iter().for_each(|process| process.wait_for("ready"));
    thread::sleep(PAUSE);
    processes[1].signal(Signal::KILL);
    processes.remove(1);
    for process in processes {
        let ended = process.end();
        println!("{} after {:?}", ended.said.lines().last().unwrap_or(""), ended.after);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let is_told = ended.said.contains("rank 1 is gone");
        assert!(is_told && ended.after < LONG / 4, "{ended:?}");
    }
    // What was there before has left nothing behind.
    start_all("operators", 2, port).into_iter().for_each(Process::succeed);
}
