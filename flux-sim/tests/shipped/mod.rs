//! The kernels that are shipped and the schedules they are shipped with.

use flux_ir::kernel::Distribution;
use flux_ir::{AllGather, AllReduce, Consumers, Kernel, ReduceScatter, Schedule, Tail, Transport};
use flux_sim::mutants::score::Subject;
use std::fs;
use std::path::Path;

/// The kernels of the text form, and every schedule kind for each.
const FILES: [&str; 12] = [
    "gemm",
    "ag_gemm_gelu",
    "gemm_rs",
    "ag_gemm_rs_gated",
    "gemm_ar",
    "all_gather",
    "reduce_scatter",
    "gemm_a2a",
    "a2a_gemm",
    "gemm_ag_tn",
    "ag_gemm_tn",
    "ag_gemm_gathered",
];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn subject(kernel: &Kernel, schedule: &Schedule) -> Subject {
    Subject::new(kernel, schedule).unwrap_or_else(|error| panic!("{}: {error}", kernel.name))
}

/// The kernels of the file tests, in the order of [`FILES`].
fn of_files() -> impl Iterator<Item = Kernel> {
    FILES.into_iter().map(|name| {
        let text = read(&format!("flux-ir/tests/filetests/kernel/{name}.flux"));
        text.parse().unwrap_or_else(|error| panic!("{name}: {error}"))
    })
}

/// Whether a kernel gathers an operand, so that its schedule can send chunks.
fn gathers(kernel: &Kernel) -> bool {
    kernel.ops.values().any(|op| matches!(op.op, flux_ir::kernel::Op::Wait { .. }))
}

/// Whether a kernel has an output of this distribution, so that its schedule can say how
/// contributions travel.
fn has(kernel: &Kernel, wanted: Distribution) -> bool {
    let is = |param| kernel.tensor(param).is_some_and(|(found, ..)| found == wanted);
    kernel.params.handles().any(is)
}

fn scatters(kernel: &Kernel) -> bool {
    has(kernel, Distribution::Scattered)
}

fn reduces(kernel: &Kernel) -> bool {
    has(kernel, Distribution::Reduced)
}

/// Sums that pass from rank to rank, and those that owners pull.
fn chained() -> [Schedule; 3] {
    [ReduceScatter::Add, ReduceScatter::Ring, ReduceScatter::Pull]
        .map(|algorithm| Schedule::host().tile(8, 8, 8).reduce_scatter(algorithm))
}

/// What comes in bulk copies though nothing is gathered: sums from their owners, contributions that owners pull,
/// tiles of exchanged outputs.
#[allow(dead_code, reason = "the test judges few")]
fn in_bulk(kernel: &Kernel) -> Option<Schedule> {
    let host = Schedule::host().tile(8, 8, 8).transport(Transport::Tma);
    match kernel.name.as_str() {
        "gemm_ar" | "gemm_a2a" => Some(host),
        "gemm_rs" => Some(host.reduce_scatter(ReduceScatter::Pull)),
        _ => None,
    }
}

/// The first four kernels of the file tests once, each under another schedule.
#[allow(dead_code, reason = "the tool judges all")]
pub(crate) fn few() -> Vec<Subject> {
    let schedules = [
        Schedule::sm_90a(),
        Schedule::host().tile(8, 8, 8).chunk_rows(2),
        Schedule::sm_90a().tile(128, 128, 64).consumers(Consumers::PingPong),
        Schedule::sm_90a().tile(128, 128, 64),
        Schedule::host().tile(8, 8, 8),
    ];
    let one_shot = Schedule::host().tile(8, 8, 8).all_reduce(AllReduce::OneShot);
    let reduced = of_files().filter(reduces).map(|kernel| subject(&kernel, &one_shot));
    let [added, ..] = chained();
    let chained = of_files().filter(|kernel| kernel.name == "gemm_rs");
    let chained = chained.map(|kernel| subject(&kernel, &added));
    let each = of_files().zip(schedules).map(|(kernel, schedule)| subject(&kernel, &schedule));
    each.chain(reduced).chain(chained).collect()
}

/// Exchanges, sums over gathered rows and the protocols of the examples, each under one schedule.
#[allow(dead_code, reason = "the tool judges all")]
pub(crate) fn others() -> Vec<Subject> {
    let host = Schedule::host().tile(8, 8, 8);
    let schedules = [
        ("gemm_a2a", host.clone()),
        ("a2a_gemm", host.clone()),
        ("a2a_gemm", host.clone().transport(Transport::Put)),
        ("gemm_ag_tn", host.clone().chunk_rows(2)),
        ("ag_gemm_tn", host.clone()),
        ("ag_gemm_gathered", host.clone().tail(3, 2)),
        ("ag_gemm_gathered", host.clone().transport(Transport::Put)),
        ("ag_gemm_gathered", host.clone().all_gather(AllGather::Ring)),
    ];
    let kernels: Vec<Kernel> = of_files().collect();
    let named = |name: &str| kernels.iter().find(|kernel| kernel.name == name);
    let exchanges = schedules.iter().map(|(name, schedule)| {
        subject(named(name).unwrap_or_else(|| panic!("no file of {name}")), schedule)
    });
    exchanges.chain(protocols().iter().map(|kernel| subject(kernel, &host))).collect()
}

/// The protocols of the examples.
fn protocols() -> Vec<Kernel> {
    let kernels =
        ["examples/protocols.rs", "examples/low_latency.rs"].into_iter().flat_map(|file| {
            let found = flux_syntax::read_file(&read(file));
            let found = found.unwrap_or_else(|error| panic!("{file}: {error}"));
            found.into_iter().map(|found| {
                let path = found.path;
                found.kernel.unwrap_or_else(|error| panic!("{path}: {error}"))
            })
        });
    kernels.collect()
}

/// Every kernel with every schedule: those of the library with the schedules it compiles, those
/// of the file tests on host and device, in both forms of consumers, with and without chunks.
#[allow(dead_code, reason = "the test judges few")]
pub(crate) fn all() -> Vec<Subject> {
    let mut all = Vec::new();
    for kernel in of_files() {
        let sm_90a = Schedule::sm_90a().tile(128, 128, 64);
        let mut schedules = vec![
            Schedule::host().tile(8, 8, 8),
            sm_90a.clone(),
            Schedule::sm_90a().tile(64, 128, 64).consumers(Consumers::PingPong),
        ];
        if !gathers(&kernel) && scatters(&kernel) {
            let sent = Schedule::host().tile(8, 8, 8).transport(Transport::CopyEngine);
            schedules.push(sent.clone());
            schedules.push(sent.head(16, 2).tail(8, 2));
            schedules.extend(chained());
        }
        if reduces(&kernel) {
            let ways = [AllReduce::OneShot, AllReduce::Flagged];
            let others = ways.map(|way| schedules.iter().map(move |of| of.clone().all_reduce(way)));
            let others: Vec<_> = others.into_iter().flatten().collect();
            schedules.extend(others);
        }
        if gathers(&kernel) {
            schedules.push(Schedule::host().tile(8, 8, 8).chunk_rows(2));
            let tailed = Schedule::host().tile(8, 8, 8).tail(3, 2);
            if flux_ir::lower::lower(&kernel, &tailed).is_ok() {
                schedules.push(tailed);
            }
            schedules.push(Schedule::host().tile(8, 8, 8).transport(Transport::Put));
            schedules.push(Schedule::host().tile(8, 8, 8).transport(Transport::Tma));
            let nodes = Schedule::host().tile(8, 8, 8).transport(Transport::Put).node(2);
            if flux_ir::lower::lower(&kernel, &nodes).is_ok() {
                schedules.push(nodes);
            }
            schedules.push(sm_90a.chunk_rows(6));
        }
        schedules.extend(in_bulk(&kernel));
        all.extend(schedules.iter().map(|schedule| subject(&kernel, schedule)));
    }
    for kernel in protocols() {
        let host = Schedule::host().tile(8, 8, 8);
        let by = |transport| host.clone().transport(transport);
        let sm_90a = Schedule::sm_90a().tile(128, 128, 64);
        let schedules = [host.clone(), by(Transport::Put), by(Transport::Tma), sm_90a];
        all.extend(schedules.iter().map(|schedule| subject(&kernel, schedule)));
    }
    let library = flux_syntax::read_file(&read("src/kernels.rs"));
    for found in library.unwrap_or_else(|error| panic!("src/kernels.rs: {error}")) {
        let kernel = found.kernel.unwrap_or_else(|error| panic!("{}: {error}", found.path));
        let schedules = found.schedules.unwrap_or_else(|error| panic!("{}: {error}", found.path));
        all.extend(schedules.iter().map(|written| {
            let mut schedule = written.schedule.clone();
            // The rows of a tail are a number that code reads at the launch: one definition, whose
            // value is judged where it is small enough for the explored launches to reach it.
            schedule.tail = schedule.tail.map(|tail| Tail { rows: 6, ..tail });
            subject(&kernel, &schedule)
        }));
    }
    all
}
