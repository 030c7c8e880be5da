//! The network between nodes, as far as one machine goes: ranks of one process, a GPU each, join a communicator, register
//! memory and make a device communicator. Whether the machine has an adapter that kernels can put through is told, and
//! what follows from it is asked for.
//!
//! Without a device, or without NCCL, every case is counted as ignored and the reason is printed.

use flux_runtime::network::{Nccl, Network, NetworkId, NetworkProperties};
use flux_runtime::{Device, Error, probe};
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Far beyond what ranks take to find each other.
const LONG: Duration = Duration::from_secs(60);

/// Bytes of a window.
const BYTES: u64 = 4 << 20;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let missing = match (probe(), Nccl::open()) {
        (Err(reason), _) => Some(format!("no CUDA device ({reason})")),
        (_, Err(reason)) => Some(reason.to_string()),
        (Ok(_), Ok(_)) => None,
    };
    if let Some(reason) = &missing {
        println!("skipped: {reason}");
    }
    let cases: [(&str, fn()); 4] = [
        ("ranks_join_and_know_what_they_can_do", joined),
        ("memory_becomes_windows_and_back", windows),
        ("device_communicators_are_made_as_far_as_the_machine_goes", device_comms),
        ("a_rank_that_does_not_come_is_an_error_in_time", absent),
    ];
    let trials = cases.map(|(name, case)| {
        let run = move || {
            case();
            Ok::<(), Failed>(())
        };
        Trial::test(name, run).with_ignored_flag(missing.is_some())
    });
    // Ranks of all cases want the same devices.
    let arguments = Arguments { test_threads: Some(1), ..arguments };
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

/// Runs `play` as every rank of a world of as many GPUs as there are, up to two.
fn ranks(play: impl Fn(&Network, (u32, u32)) + Sync) {
    let world = probe().expect("a driver").devices.min(2);
    let nccl = Nccl::open().expect("NCCL");
    let id = nccl.new_id().expect("an id");
    let all = Barrier::new(world as usize);
    thread::scope(|scope| {
        for rank in 0..world {
            let (nccl, all, play) = (&nccl, &all, &play);
            scope.spawn(move || {
                let network = join(nccl, id, (rank, world), LONG).expect("it joins");
                play(&network, (rank, world));
                all.wait();
            });
        }
    });
}

fn join(
    nccl: &Arc<Nccl>,
    id: NetworkId,
    (rank, world): (u32, u32),
    limit: Duration,
) -> Result<Network, Error> {
    let device = Device::open(rank)?;
    Network::join(nccl, &device, id, (rank, world), limit)
}

fn told(network: &Network, rank: u32) -> NetworkProperties {
    let properties = network.properties().expect("properties");
    if rank == 0 {
        println!("{properties:?}");
    }
    properties
}

fn joined() {
    ranks(|network, (rank, _)| {
        let properties = told(network, rank);
        // On one machine all memory is mapped, if any is.
        assert!(properties.nodes >= 1 || !properties.device_api, "{properties:?}");
    });
}

fn windows() {
    ranks(|network, _| {
        for _ in 0..2 {
            let memory = network.memory(BYTES).expect("a window");
            assert_eq!(memory.bytes(), BYTES);
            assert!(memory.address() != 0 && memory.window() != 0);
            assert_eq!(memory.address() % 4096, 0);
        }
    });
}

fn device_comms() {
    ranks(|network, (rank, world)| {
        let properties = told(network, rank);
        if !properties.device_api {
            println!("rank {rank}: this machine has no device API");
            return;
        }
        let mapped = network.device_comm(0, false).expect("without a network");
        assert_eq!(mapped.place(), (rank, world));
        assert!(mapped.address() != 0);
        drop(mapped);
        let networked = network.device_comm(64, true);
        match (properties.puts, networked) {
            (true, made) => {
                let made = made.expect("with a network");
                assert_eq!(made.place(), (rank, world));
                println!("rank {rank}: 64 signals, back end {}", properties.back_end);
            }
            // What is not there is said, and nothing hangs.
            (false, Err(error)) => println!("rank {rank}: no adapter to put through: {error}"),
            (false, Ok(made)) => {
                println!("rank {rank}: made without a back end: {:?}", made.place())
            }
        }
    });
}

fn absent() {
    let nccl = Nccl::open().expect("NCCL");
    let id = nccl.new_id().expect("an id");
    let begin = Instant::now();
    let alone = join(&nccl, id, (0, 2), Duration::from_secs(2));
    let error = alone.expect_err("the other rank never comes").to_string();
    assert!(error.contains("some rank did not come"), "{error}");
    assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
}
