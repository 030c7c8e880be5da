//! Kernels, schedules and a machine of round numbers.

use flux_ir::eval::Launch;
use flux_ir::lower::lower;
use flux_ir::{Consumers, Kernel, Program, Schedule, Shape};
use flux_sim::time::{Machine, Options, Report, simulate};
use std::fs;
use std::path::Path;

pub(crate) fn cooperative(columns: u32) -> Schedule {
    Schedule::sm_90a().tile(128, columns, 64)
}

pub(crate) fn ping_pong(columns: u32) -> Schedule {
    cooperative(columns).consumers(Consumers::PingPong)
}

pub(crate) const fn launch(m: u32, n: u32, k: u32, world: u32, ctas: u32) -> Launch {
    Launch { shape: Shape { m, n, k }, world, ctas }
}

/// A kernel of the file tests.
pub(crate) fn kernel(name: &str) -> Kernel {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flux-ir/tests/filetests/kernel");
    let text = fs::read_to_string(folder.join(format!("{name}.flux"))).expect("the file is there");
    text.parse().unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(crate) fn program(name: &str, schedule: &Schedule) -> Program {
    lower(&kernel(name), schedule).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every kernel of the library with every schedule it is shipped with.
pub(crate) fn library() -> Vec<(Kernel, Schedule)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/kernels.rs");
    let text = fs::read_to_string(path).expect("the library is there");
    let mut all = Vec::new();
    for found in flux_syntax::read_file(&text).expect("the library is Rust") {
        let kernel = found.kernel.expect("a kernel of the library");
        for written in found.schedules.expect("schedules of the library") {
            all.push((kernel.clone(), written.schedule));
        }
    }
    all
}

/// A cycle is a ns, a copied byte too; a step of 64 of a 128 x 256 tile takes 1.024 µs.
pub(crate) const ROUND: &str = include_str!("round.json");

pub(crate) fn round() -> Machine {
    Machine::read("round.json", ROUND).expect("a machine")
}

pub(crate) fn predicted(program: &Program, launch: Launch, machine: &Machine) -> Report {
    simulate(program, launch, machine, Options::default()).expect("a prediction")
}
