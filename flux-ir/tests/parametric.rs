//! Proofs for all launches against counts of single ones.

#[path = "parametric/count.rs"]
mod count;
#[path = "parametric/mutate.rs"]
mod mutate;
#[path = "parametric/programs.rs"]
mod programs;

use flux_ir::eval::Launch;
use flux_ir::parametric::{self, Verdict};
use flux_ir::{Consumers, Kernel, Order, Program, Schedule, Shape, lower};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// Shipped kernels whose ranks meet.
const KERNELS: [&str; 3] = ["ag_gemm_gelu", "gemm_rs", "ag_gemm_rs_gated"];

fn lowered(name: &str, schedule: &Schedule) -> Program {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/filetests/kernel/{name}.flux"));
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{name}: {e}"));
    lower::lower(&kernel, schedule).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Tiles of 2 × 2 elements, so that small shapes have many tiles and ragged edges.
fn small(chunk_rows: Option<u32>) -> Schedule {
    Schedule { chunk_rows, ..Schedule::host().tile(2, 2, 2) }
}

/// The chunks under which `name` is tried: a shard whole, and rows that divide it or not.
fn chunks(name: &str) -> &'static [Option<u32>] {
    let gathers = name.starts_with("ag_");
    if gathers { &[None, Some(1), Some(3)] } else { &[None] }
}

fn launch(m: u32, n: u32, world: u32, ctas: u32) -> Launch {
    Launch { shape: Shape { m, n, k: 1 }, world, ctas }
}

fn all_proved(verdicts: &[Verdict<'_>]) {
    for verdict in verdicts {
        assert!(verdict.outcome.is_ok(), "{verdict}");
    }
}

#[test]
fn every_wait_of_a_shipped_kernel_is_proved_under_every_schedule() {
    let mut waits = 0;
    for name in KERNELS {
        for consumers in Consumers::ALL {
            for schedule in [Schedule::sm_90a(), small(None), Schedule::host().tile(5, 3, 1)] {
                for &chunk_rows in chunks(name) {
                    for order in [Order::OwnShardFirst, Order::Xor] {
                        let schedule = Schedule { chunk_rows, ..schedule.clone() };
                        let program = lowered(name, &schedule.consumers(consumers).order(order));
                        let verdicts = parametric::prove(&program);
                        all_proved(&verdicts);
                        waits += verdicts.len();
                    }
                }
            }
        }
    }
    assert_eq!(waits, 18 * (3 * 2 + 2 + 3 * 4), "every wait has a verdict");
}

/// Walks every shape of up to 6 × 6 tiles, ragged ones included, on every world of up to 8 ranks,
/// for every kernel and chunking, and compares every wait with its proof. `pick` gives the orders
/// (by their index) and CTAs of the launches of a shape and a world; its last argument numbers
/// kernels and chunkings.
fn agree(pick: impl Fn(u32, u32, u32, u32) -> Vec<(usize, u32)>) -> (u64, u64) {
    let started = Instant::now();
    let (mut shapes, mut launches, mut waits, mut turn) = (0, 0, 0, 0);
    for name in KERNELS {
        for &chunk_rows in chunks(name) {
            let programs = ORDERS.map(|order| lowered(name, &small(chunk_rows).order(order)));
            let verdicts = programs.each_ref().map(parametric::prove);
            verdicts.iter().for_each(|verdicts| all_proved(verdicts));
            shapes = 0;
            turn += 1;
            for (m, n, world) in every_shape() {
                for (order, ctas) in pick(m, n, world, turn) {
                    let walked = count::walk(&programs[order], launch(m, n, world, ctas), u64::MAX)
                        .expect("a launch of a lowered kernel ends");
                    walked.compare(&verdicts[order]).unwrap_or_else(|e| panic!("{name}: {e}"));
                    launches += 1;
                    waits += walked.waits();
                }
                shapes += 1;
            }
        }
    }
    println!(
        "{shapes} pairs of shape and world, {launches} launches three times in a row, {waits} \
         waited slots: {:?}",
        started.elapsed()
    );
    (shapes, launches)
}

const ORDERS: [Order; 10] = Order::BUILT_IN;

/// Orders and 1 to 3 CTAs take turns: each pair of shape and world meets each number of CTAs and
/// nearly each order under some kernel and chunking, and each kernel meets all of them.
#[test]
fn counts_of_single_launches_agree_with_the_proofs() {
    let cases = agree(|m, n, world, turn| {
        let order = (m + n + world + turn) as usize % ORDERS.len();
        vec![(order, 1 + (m + n / 2 + world / 3 + turn) % 3)]
    });
    assert_eq!(cases, (12 * 12 * 8, 12 * 12 * 8 * 7));
}

/// `cargo test -p flux-ir --test parametric -- --ignored --nocapture` takes some minutes.
#[test]
#[ignore = "takes minutes"]
fn counts_of_all_launches_agree_with_the_proofs() {
    let all = |ctas| (0..ORDERS.len()).map(move |order| (order, ctas));
    let cases = agree(|_, _, _, _| (1..=3).flat_map(all).collect());
    assert_eq!(cases, (12 * 12 * 8, 12 * 12 * 8 * 7 * ORDERS.len() as u64 * 3));
}

/// Shapes of 1 × 1 to 12 × 12 elements, that is of up to 6 × 6 tiles, and worlds of 1 to 8.
fn every_shape() -> impl Iterator<Item = (u32, u32, u32)> {
    (1..=12).flat_map(|m| (1..=12).flat_map(move |n| (1..=8).map(move |world| (m, n, world))))
}

/// Launches that tell a wrong count from a right one: every kind of edge.
const LAUNCHES: [(u32, u32, u32, u32); 14] = [
    (1, 1, 1, 1),
    (1, 3, 2, 2),
    (2, 2, 2, 1),
    (5, 3, 2, 3),
    (5, 1, 3, 1),
    (9, 3, 3, 2),
    (7, 5, 4, 3),
    (12, 2, 5, 2),
    (3, 3, 5, 1),
    (12, 4, 3, 1),
    (16, 2, 2, 3),
    (2, 9, 8, 2),
    (20, 1, 4, 1),
    (11, 7, 1, 5),
];

/// What became of mutants.
#[derive(Debug, Default)]
struct Tally {
    mutants: usize,
    proofs: usize,
    unproved: usize,
}

impl Tally {
    /// Proves what it can of `mutant`, and walks launches to see whether that is so.
    fn add(&mut self, mutant: &Program) {
        let verdicts = parametric::prove(mutant);
        self.mutants += 1;
        self.proofs += verdicts.iter().filter(|verdict| verdict.outcome.is_ok()).count();
        self.unproved += verdicts.iter().filter(|verdict| verdict.outcome.is_err()).count();
        for (m, n, world, ctas) in LAUNCHES {
            if let Some(walked) = count::walk(mutant, launch(m, n, world, ctas), 40_000) {
                walked.compare(&verdicts).unwrap_or_else(|e| panic!("{e}\n{mutant}"));
            }
        }
    }

    /// Mutants by all `programs`, shared among threads.
    fn of(programs: &[(Program, Vec<Vec<usize>>)]) -> Tally {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let work = |thread: usize| {
            let mut tally = Tally::default();
            for (program, changes) in programs {
                for changes in changes.iter().skip(thread).step_by(threads) {
                    let mutant = changes.iter().fold(program.clone(), |mutant, &change| {
                        let changes = mutate::count(&mutant);
                        mutate::mutant(&mutant, change % changes)
                    });
                    tally.add(&mutant);
                }
            }
            tally
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|at| scope.spawn(move || work(at))).collect();
            threads.into_iter().fold(Tally::default(), |sum, thread| {
                let tally = thread.join().expect("no proof is wrong");
                Tally {
                    mutants: sum.mutants + tally.mutants,
                    proofs: sum.proofs + tally.proofs,
                    unproved: sum.unproved + tally.unproved,
                }
            })
        })
    }
}

/// Every `step`th single change of each kernel.
fn single_changes(steps: [usize; 3]) -> Vec<(Program, Vec<Vec<usize>>)> {
    let programs = KERNELS.into_iter().zip(steps).map(|(name, step)| {
        let chunk_rows = chunks(name).last().copied().flatten();
        let program = lowered(name, &small(chunk_rows));
        let changes = (0..mutate::count(&program)).step_by(step).map(|change| vec![change]);
        let changes = changes.collect();
        (program, changes)
    });
    programs.collect()
}

/// Pairs of changes, by a fixed sequence of numbers.
fn double_changes(pairs: [usize; 3]) -> Vec<(Program, Vec<Vec<usize>>)> {
    let mut state = 1u64;
    let mut number = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let programs = KERNELS.into_iter().zip(pairs).map(|(name, pairs)| {
        let changes = (0..pairs).map(|_| vec![number(), number()]).collect();
        (lowered(name, &small(None)), changes)
    });
    programs.collect()
}

fn report(what: &str, tally: &Tally, started: Instant) {
    println!("{what}: {tally:?} in {:?}", started.elapsed());
    assert!(tally.proofs > 0 && tally.unproved > 0, "{tally:?}");
}

#[test]
fn no_proof_about_a_mutant_is_wrong() {
    let started = Instant::now();
    let tally = Tally::of(&single_changes([30, 3, 80]));
    report("single changes", &tally, started);
    let started = Instant::now();
    let tally = Tally::of(&double_changes([100, 1000, 60]));
    report("pairs of changes", &tally, started);
}

/// All single changes, and more pairs.
#[test]
#[ignore = "takes minutes"]
fn no_proof_about_any_mutant_is_wrong() {
    let started = Instant::now();
    report("all single changes", &Tally::of(&single_changes([1, 1, 1])), started);
    let started = Instant::now();
    let tally = Tally::of(&double_changes([5000, 10_000, 5000]));
    report("pairs of changes", &tally, started);
}
