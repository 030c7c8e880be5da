//! Worlds of processes on the host: operators, groups, recovery, and ranks that are killed.
//!
//! The program starts itself again, as ranks.

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

use flux::prelude::*;
use flux::{Error, Processes, Processor};
use life::{Operators, kernels};
use ranks::{LONG, Process, port, start};
use rustix::process::Signal;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// A limit that is meant to pass.
const SHORT: Duration = Duration::from_millis(1500);

fn main() -> ExitCode {
    let cases: [(&str, fn()); 11] = [
        ("operators_give_what_threads_give", operators),
        ("groups_go_their_own_ways", groups),
        ("a_thousand_launches", thousand),
        ("a_stall_is_recovered_from", stall),
        ("a_rank_killed_in_a_launch_ends_the_others_at_once", killed_in_a_launch),
        ("a_rank_killed_between_launches_ends_the_others", killed_between_launches),
        ("a_rank_whose_program_fails_is_named", failing_program),
        ("ranks_that_load_other_kernels_are_told", other_kernels),
        ("ranks_on_other_backends_are_told", other_backends),
        ("ways_to_peers_that_differ_or_are_none_are_told", other_ways),
        ("descriptors_that_run_out_are_an_error_to_all", no_descriptors),
    ];
    // Each has processes of its own, of which some wait.
    ranks::run(play, 2, cases)
}

/// What a rank does.
fn play(role: &str) -> Result<(), Error> {
    let world = World::from_env()?.with_limit(LONG);
    match role {
        "operators" => {
            // Ranks are made anew for each run.
            for seed in [1, 5] {
                let ran = world.run(|rank| Operators::load(rank, None)?.exact(seed))?;
                assert_eq!(ran.len(), 1, "of this process");
            }
            Ok(())
        }
        "groups" => {
            life::groups_go_their_own_ways(&world);
            Ok(())
        }
        "thousand" => each(&world, LONG, |operators| {
            operators.fill(3)?;
            for _ in 0..500 {
                operators.gather()?;
                operators.scatter()?;
            }
            operators.check(3)
        }),
        "stall" => each(&world, SHORT, |operators| {
            if operators.rank.index() == 1 {
                // Until the others have given up.
                thread::sleep(2 * SHORT);
            } else {
                let stalled = operators.scatter().expect_err("rank 1 does not launch");
                println!("{stalled}");
                let lost = operators.scatter().expect_err("the kernel is lost");
                assert!(!matches!(lost, Error::Stalled { .. }), "{lost}");
                thread::sleep(SHORT);
            }
            operators.rank.recover()?;
            operators.exact(4)
        }),
        "absent" => each(&world, LONG, |operators| {
            println!("ready");
            if operators.rank.index() == 1 {
                thread::sleep(LONG);
            }
            operators.scatter()
        }),
        "patient" => each(&world, LONG, |operators| {
            println!("ready");
            let start = Instant::now();
            while start.elapsed() < LONG {
                // Rank 0 alone needs nothing of the others: launches, not waits, tell it.
                operators.gather()?;
                thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        }),
        "failing" => each(&world, LONG, |operators| {
            if operators.rank.index() == 1 {
                let (kernel, problem) = ("mine".into(), "on purpose".into());
                return Err(Error::Unsupported { kernel, problem });
            }
            kernels::scattered::load(operators.rank).map(drop)
        }),
        "others" => world
            .run(|rank| match rank.index() {
                1 => kernels::scattered::load(rank).map(drop),
                _ => kernels::gathered::load(rank).map(drop),
            })
            .map(drop),
        "poor" => world
            .run(|rank| {
                let mut operators = Operators::load(rank, None)?;
                if rank.index() == 1 {
                    ranks::exhaust_descriptors();
                }
                operators.gather()
            })
            .map(drop),
        other => panic!("no role `{other}`"),
    }
}

/// What a rank does with operators that have been launched.
fn each(
    world: &World,
    limit: Duration,
    program: impl Fn(&mut Operators<'_>) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let world = world.clone().with_limit(limit);
    let run = world.run(|rank| {
        let mut operators = Operators::load(rank, None)?;
        operators.exact(1)?;
        program(&mut operators)
    });
    run.map(drop)
}

fn start_all(role: &str, world: u32, port: u16) -> Vec<Process> {
    let host = [("FLUX_BACKEND", "host")];
    (0..world).map(|rank| start(role, (rank, world, port), &host)).collect()
}

/// That a job at this port works: what was there before has left nothing behind.
fn works_at(port: u16) {
    start_all("operators", 2, port).into_iter().for_each(|process| process.succeed());
}

fn operators() {
    for world in [1, 2, 3, 4] {
        let processes = start_all("operators", world, port());
        processes.into_iter().for_each(|process| process.succeed());
    }
}

fn groups() {
    start_all("groups", 8, port()).into_iter().for_each(|process| process.succeed());
}

fn thousand() {
    start_all("thousand", 2, port()).into_iter().for_each(|process| process.succeed());
}

fn stall() {
    let port = port();
    for (process, rank) in start_all("stall", 3, port).into_iter().zip(0..) {
        let ended = process.end();
        assert!(ended.status.success(), "{ended:?}");
        // Whoever gives up first takes the others along.
        let is_told = ended.said.contains(&format!("rank {rank}"))
            && (ended.said.contains("stalled") || ended.said.contains("failed; its own error"));
        assert!(rank == 1 || is_told, "{ended:?}");
    }
}

fn killed_in_a_launch() {
    let port = port();
    let mut processes = start_all("absent", 3, port);
    processes.iter().for_each(|process| process.wait_for("ready"));
    thread::sleep(Duration::from_millis(200));
    processes[1].signal(Signal::KILL);
    processes.remove(1);
    for process in processes {
        let ended = process.end();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let is_told = ended.said.contains("rank 1 is gone: its process has ended")
            || ended.said.contains("failed; its own error says why");
        assert!(is_told && ended.after < LONG / 2, "{ended:?}");
    }
    works_at(port);
}

fn killed_between_launches() {
    let port = port();
    let mut processes = start_all("patient", 3, port);
    processes.iter().for_each(|process| process.wait_for("ready"));
    thread::sleep(Duration::from_millis(300));
    processes[2].signal(Signal::KILL);
    processes.remove(2);
    for process in processes {
        let ended = process.end();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let is_told = ended.said.contains("rank 2 is gone: its process has ended")
            || ended.said.contains("failed; its own error says why");
        assert!(is_told && ended.after < LONG / 2, "{ended:?}");
    }
    works_at(port);
}

fn failing_program() {
    let port = port();
    let said = ["rank 1 has given up", "`mine` cannot run", "rank 1 has given up"];
    for (process, said) in start_all("failing", 3, port).into_iter().zip(said) {
        let ended = process.fail(said);
        assert!(ended.after < LONG / 2, "{ended:?}");
    }
    works_at(port);
}

fn other_kernels() {
    for (process, rank) in start_all("others", 3, port()).into_iter().zip(0..) {
        let said =
            if rank == 1 { "rank 0 to load `gathered`" } else { "rank 1 to load `scattered`" };
        process.fail(said);
    }
}

fn other_backends() {
    let port = port();
    let backends = ["host", "host", "gpu"];
    let start = |(rank, backend)| start("operators", (rank, 3, port), &[("FLUX_BACKEND", backend)]);
    for process in (0..).zip(backends).map(start).collect::<Vec<_>>() {
        process.fail("ranks [2] disagree with rank 0 on whether they are on GPUs");
    }
    let odd = ranks::start("operators", (0, 1, port), &[("FLUX_BACKEND", "tpu")]);
    odd.fail("FLUX_BACKEND is `tpu`, expected `host` or `gpu`");
    let builder = Processes::new(0, 65, "127.0.0.1:0").on(Processor::Host).join();
    assert!(matches!(builder, Err(Error::WorldSize(65))));
}

fn other_ways() {
    let port = port();
    let start = |(rank, peers)| {
        let variables = [("FLUX_BACKEND", "host"), ("FLUX_PEERS", peers)];
        start("operators", (rank, 3, port), &variables)
    };
    for process in [(0, "mapped"), (1, ""), (2, "nccl")].map(start) {
        process.fail("ranks [2] disagree with rank 0 on how they get what their peers have");
    }
    for process in [(0, "nccl"), (1, "nccl"), (2, "nccl")].map(start) {
        process.fail("NCCL moves data between GPUs");
    }
    start((0, "none")).fail("FLUX_PEERS is `none`, expected `mapped` or `nccl`");
}

fn no_descriptors() {
    let port = port();
    for process in start_all("poor", 3, port) {
        let ended = process.fail("rank 1: no descriptor for ");
        assert!(ended.after < LONG / 2, "{ended:?}");
    }
    works_at(port);
}
