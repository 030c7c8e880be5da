//! Kernels that reach ranks of other nodes: what they call, and that the whole assembles.

mod support;

use flux_codegen::{Error, Image, compile, compile_unlinked, network};
use flux_ir::{Consumers, Schedule, Transport};
use std::path::Path;
use support::kernels::{GATHER, GATHER_ALONE};

fn schedules() -> Vec<Schedule> {
    let base = Schedule::sm_90a().transport(Transport::Put).node(8);
    let ping_pong = base.clone().consumers(Consumers::PingPong);
    let single = base.clone().consumers(Consumers::Single);
    vec![
        base.clone().tile(128, 128, 64),
        base.tile(128, 176, 64),
        ping_pong.tile(128, 128, 64),
        single.tile(16, 64, 64).stages(16),
    ]
}

fn unlinked(kernel: &str, schedule: &Schedule) -> Image {
    let program = support::lower(kernel, schedule);
    compile_unlinked(&program).unwrap_or_else(|error| panic!("{error}"))
}

/// Calls of a function in the text.
fn calls(image: &Image, name: &str) -> usize {
    image.ptx.lines().filter(|line| line.contains("call") && line.contains(name)).count()
}

#[test]
fn what_goes_over_the_network_is_called() {
    for schedule in schedules() {
        for kernel in [GATHER, GATHER_ALONE] {
            let image = unlinked(kernel, &schedule);
            // A put and a signal of the copy warps, a signal of the exit, and one flush.
            assert_eq!(calls(&image, network::PUT), 1, "{schedule}");
            assert_eq!(calls(&image, network::SIGNAL), 2, "{schedule}");
            assert_eq!(calls(&image, network::FLUSH), 1, "{schedule}");
            // Tiles, credits and own chunks are waited for.
            assert!(calls(&image, network::SEEN) >= 3, "{schedule}");
            // Ahead of the signal all copy warps meet.
            let lines: Vec<&str> = image.ptx.lines().map(str::trim).collect();
            let meet = lines.iter().position(|line| line.contains("bar.sync 4, 96;"));
            let signal = |line: &&str| line.contains("call") && line.contains(network::SIGNAL);
            // The exit's comes first in the text.
            let signal = lines.iter().rposition(signal);
            assert!(meet.is_some() && meet < signal, "{schedule}");
        }
    }
}

#[test]
fn kernels_of_one_node_call_nothing() {
    let schedule = Schedule::sm_90a().transport(Transport::Put).tile(128, 128, 64);
    let program = support::lower(GATHER, &schedule);
    let (whole, calls) = (compile(&program), compile_unlinked(&program));
    assert!(whole.as_ref().is_ok_and(|image| !image.ptx.contains("flux_network")));
    assert_eq!(whole, calls);
}

#[test]
fn linked_kernels_assemble() {
    let Some(ptxas) = support::ptxas() else { return };
    if network::library().is_none() {
        println!("skipped: no libnccl_device.bc; `scripts/setup --network` fetches it");
        let refused = compile(&support::lower(GATHER, &schedules()[0]));
        assert!(matches!(refused, Err(Error::NoNetwork { .. })), "{refused:?}");
        return;
    }
    for (index, schedule) in schedules().iter().enumerate() {
        let begin = std::time::Instant::now();
        let image = support::compile(GATHER, schedule);
        println!("{schedule}: {} bytes of PTX in {:?}", image.ptx.len(), begin.elapsed());
        assert!(!image.ptx.contains(".extern .func"), "{schedule}");
        let name = format!("network-{index}");
        let said = support::assemble(&ptxas, &name, &image.ptx);
        let said = said.unwrap_or_else(|said| panic!("{schedule}: {said}"));
        // Registers are given by role, and `wgmma` overlap: neither survives a call of an unknown function.
        assert!(!said.contains("Performance Loss"), "{schedule}: {said}");
        println!("{said}");
    }
}

/// The text of what this crate writes itself.
#[test]
fn calls_become_what_they_became() {
    let schedule = Schedule::sm_90a().transport(Transport::Put).node(8).tile(128, 128, 64);
    let image = unlinked(GATHER_ALONE, &schedule);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/network.ptx.unlinked");
    if std::env::var_os("FLUX_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder to write");
        std::fs::write(&path, &image.ptx).expect("a file to write");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let line = golden.lines().zip(image.ptx.lines()).position(|(a, b)| a != b);
    assert!(golden == image.ptx, "differs from line {line:?} on; FLUX_BLESS=1 rewrites it");
}
