//! Gathered tensors that a kernel gives back: every rank's output has all rows, bit for bit, however
//! they travel, and the product beside it is what it is alone.

mod common;

use common::{Case, Matrix, Tensor, Tensors};
use flux_ir::check::{EPOCHS, verify};
use flux_ir::eval::Launch;
use flux_ir::kernel::Kernel;
use flux_ir::lower::lower;
use flux_ir::{
    AllGather, AllReduce, Element, Ranks, ReduceScatter, Rule, Schedule, Shape, Transport,
};
use flux_sim::adversary;
use flux_sim::explore::{Limits, run};

const WORLDS: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// Fewer rows than ranks, ragged shards and tiles, columns of either output as odd.
const SHAPES: [Shape; 5] = [
    Shape { m: 1, n: 1, k: 1 },
    Shape { m: 3, n: 9, k: 5 },
    Shape { m: 17, n: 20, k: 33 },
    Shape { m: 45, n: 7, k: 19 },
    Shape { m: 70, n: 33, k: 64 },
];

/// What stands in each kernel: `%x` keeps what is gathered of `%a`, `%c` is computed.
const PRODUCT: &str = "
kernel @product(%a: &gathered<bf16>, %b: &global<bf16>, %x: &mut global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    store %c, %1
    keep %x, %0
  }
}";

const SCATTERED: &str = "
kernel @scattered(%a: &gathered<bf16>, %b: &global<bf16>, %x: &mut global<bf16>, %c: &mut scattered<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    %2 = reduce %c, %1
    store %c, %2
    keep %x, %0
  }
}";

const REDUCED: &str = "
kernel @reduced(%a: &gathered<bf16>, %b: &global<bf16>, %x: &mut global<bf16>, %c: &mut reduced<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    %2 = reduce %c, %1
    store %c, %2
    keep %x, %0
  }
}";

/// What is summed over is kept: `[k, m]`.
const SUMMED: &str = "
kernel @summed(%a: &gathered<bf16>, %b: &global<bf16>, %x: &mut global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a
    keep %x, %0
    %2 = gemm %a.t, %b
    store %c, %2
  }
}";

/// Two tensors are gathered, the second for the epilogue: `[m, n]`.
const BOTH: &str = "
kernel @both(%a: &gathered<bf16>, %r: &gathered<bf16>, %b: &global<bf16>, %x: &mut global<bf16>, %y: &mut global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    %2 = wait %r
    %3 = load %2
    %4 = add %1, %3
    store %c, %4
    keep %y, %2
    keep %x, %0
  }
}";

fn kernel(text: &str) -> Kernel {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// The inputs of every rank, poisoned outputs, and what they become.
fn problem(text: &str, shape: Shape, world: u32, seed: u64) -> (Vec<Tensors>, Vec<Vec<Vec<f64>>>) {
    let [m, n, k] = [shape.m, shape.n, shape.k].map(|extent| extent as usize);
    let summed = text == SUMMED;
    let whole = match summed {
        true => Matrix::integers(k, m, 1, seed),
        false => Matrix::integers(m, k, 1, seed),
    };
    let weights = |rank: u32| {
        let (rows, cols) = if summed { (k, n) } else { (n, k) };
        Matrix::integers(rows, cols, 1, seed ^ (u64::from(rank) + 1) << 16)
    };
    let left = match summed {
        true => Matrix::from_fn(m, k, |i, j| whole.at(j, i)),
        false => whole.clone(),
    };
    let residual = Matrix::integers(m, n, 2, seed ^ 0x77);
    let product = |rank: u32| left.times(&weights(rank), !summed);
    let sum = || (0..world).map(product).reduce(|sum, x| sum.plus(&x)).expect("a rank");
    let of = |values: &Matrix| Tensor::new(Element::Bf16, &values.data);
    let poison = |like: &Matrix| Tensor::new(Element::Bf16, &vec![f64::NAN; like.data.len()]);
    let (mut tensors, mut expected) = (Vec::new(), Vec::new());
    for rank in 0..world {
        let ranks = Ranks { rank, world };
        let c = match text {
            _ if text == SCATTERED => sum().shard(ranks),
            _ if text == REDUCED => sum(),
            _ if text == BOTH => product(rank).plus(&residual),
            _ => product(rank),
        };
        let mut inputs = vec![("a", of(&whole.shard(ranks))), ("b", of(&weights(rank)))];
        let mut outputs = vec![("x", poison(&whole)), ("c", poison(&c))];
        let mut all = vec![of(&whole).values(), of(&c).values()];
        if text == BOTH {
            inputs.push(("r", of(&residual.shard(ranks))));
            outputs.push(("y", poison(&residual)));
            all.push(of(&residual).values());
        }
        tensors.push(Tensors { inputs, outputs, scalars: Vec::new() });
        expected.push(all);
    }
    (tensors, expected)
}

/// Every way to move what is gathered that `text` admits.
fn schedules(text: &str) -> Vec<Schedule> {
    let host = Schedule::host().tile(8, 8, 16);
    let put = host.clone().transport(Transport::Put);
    let mut all = vec![host.clone(), host.clone().chunk_rows(3), host.clone().chunk_rows(1)];
    if text != BOTH {
        all.extend([put.clone(), put.clone().chunk_rows(3)]);
    }
    if text == SCATTERED {
        all.extend(ReduceScatter::ALL.map(|way| host.clone().reduce_scatter(way)));
        all.extend(
            [ReduceScatter::Add, ReduceScatter::Ring].map(|way| put.clone().reduce_scatter(way)),
        );
    } else if text == REDUCED {
        all.retain(|schedule| schedule.transport.is_none());
        all.extend(AllReduce::ALL.map(|way| host.clone().all_reduce(way)));
        all.push(put.all_reduce(AllReduce::OneShot));
    } else {
        all.push(host.clone().transport(Transport::CopyFirst));
    }
    if text == PRODUCT {
        all.extend([
            host.clone().tail(3, 2),
            host.clone().chunk_rows(2).tail(5, 3),
            host.clone().tail(100, 1),
        ]);
        for way in AllGather::ALL {
            let host = host.clone().all_gather(way);
            all.extend([host.clone(), host.clone().chunk_rows(3)]);
            all.push(host.transport(Transport::Put).chunk_rows(4));
        }
    }
    all
}

fn exact(text: &str, schedule: &Schedule, shape: Shape, world: u32) {
    let about = format!("{schedule}, {shape} over {world}");
    for ctas in [1, 3] {
        let case = Case::new(&kernel(text), schedule, shape, world, ctas);
        let problem = |epoch: u64| problem(text, shape, world, epoch * 91);
        let (mut tensors, expected): (Vec<_>, Vec<_>) = (1..=5).map(problem).unzip();
        case.run(&mut tensors);
        for (launch, expected) in tensors.iter().zip(expected) {
            for (rank, expected) in launch.iter().zip(expected) {
                for ((name, found), expected) in rank.outputs.iter().zip(expected) {
                    assert_eq!(found.values(), expected, "`{name}`: {about}, {ctas} ctas");
                }
            }
        }
    }
}

fn every_schedule(text: &str) {
    let schedules = schedules(text);
    for world in WORLDS {
        for (index, shape) in SHAPES.into_iter().enumerate() {
            // Each world meets every schedule, at one shape or another.
            for (turn, schedule) in schedules.iter().enumerate() {
                if turn % SHAPES.len() == (index + world as usize) % SHAPES.len() {
                    exact(text, schedule, shape, world);
                }
            }
        }
    }
}

#[test]
fn a_product_and_what_it_gathered_are_exact() {
    every_schedule(PRODUCT);
}

#[test]
fn what_a_scattered_product_gathered_is_exact() {
    every_schedule(SCATTERED);
}

#[test]
fn what_a_reduced_product_gathered_is_exact() {
    every_schedule(REDUCED);
}

#[test]
fn what_a_product_sums_over_is_kept_exactly() {
    every_schedule(SUMMED);
}

#[test]
fn two_tensors_are_kept_exactly() {
    every_schedule(BOTH);
}

#[test]
fn odd_interleavings_keep_the_same_bits() {
    let shape = Shape { m: 13, n: 9, k: 12 };
    for text in [PRODUCT, SUMMED, SCATTERED, REDUCED, BOTH] {
        for (turn, schedule) in schedules(text).into_iter().enumerate() {
            let world = 1 + turn as u32 % 3;
            let case = Case::new(&kernel(text), &schedule, shape, world, 2);
            let problem = |epoch: u64| problem(text, shape, world, epoch * 77);
            let (poisoned, expected): (Vec<_>, Vec<_>) = (1..=3).map(problem).unzip();
            for seed in 0..6 {
                let mut tensors = poisoned.clone();
                let args = tensors.iter_mut();
                let args = args.map(|ranks| ranks.iter_mut().map(|rank| case.args(rank)).collect());
                adversary::run(&case.verified, case.launch, args.collect(), seed)
                    .unwrap_or_else(|e| panic!("{schedule}, {world} ranks, seed {seed}: {e}"));
                for (launch, expected) in tensors.iter().zip(&expected) {
                    for (rank, expected) in launch.iter().zip(expected) {
                        for ((name, found), expected) in rank.outputs.iter().zip(expected) {
                            assert_eq!(found.values(), *expected, "`{name}`: {schedule}, {seed}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_interleaving_is_sound() {
    let small = Schedule::host().tile(2, 2, 1);
    let device = Schedule::sm_90a().tile(128, 96, 64);
    let mut all = vec![
        small.clone(),
        small.clone().tail(1, 2),
        small.clone().transport(Transport::Put),
        device.clone(),
        device.tail(64, 2),
    ];
    all.extend([AllGather::Pull, AllGather::Ring].map(|way| small.clone().all_gather(way)));
    for schedule in all {
        let program = lower(&kernel(PRODUCT), &schedule).expect("a Program");
        let tile = schedule.tile;
        for (world, rows, ctas) in [(1, 2, 1), (2, 1, 1), (2, 2, 1), (2, 4, 1), (3, 3, 1)] {
            let shape = Shape { m: rows * tile.m / 2, n: 2, k: 2 };
            let launch = Launch { shape, world, ctas };
            let outcome = run(&program, launch, EPOCHS, &Limits::default());
            let outcome = outcome.unwrap_or_else(|e| panic!("{schedule} {launch:?}: {e}"));
            assert!(outcome.is_sound(), "{schedule} {launch:?}: {outcome:?}");
            assert_eq!(outcome.last, 1, "{schedule} {launch:?}");
        }
    }
}

/// What lowering writes is needed: without the wait, without the exit's, with a piece too few or twice.
#[test]
fn weaker_copies_are_rejected() {
    let program = |edit: &dyn Fn(&str) -> String| {
        let schedule = Schedule::host().tile(8, 8, 16);
        let text = lower(&kernel(PRODUCT), &schedule).expect("a Program").to_string();
        let edited = edit(&text);
        assert_ne!(edited, text);
        verify(edited.parse().unwrap_or_else(|e| panic!("{e}\n{edited}")))
    };
    let without = |line: &'static str| {
        move |text: &str| {
            let kept = text.split("agent keep").nth(1).expect("copy warps");
            let at = kept.find(line).unwrap_or_else(|| panic!("{line} in{kept}"));
            let end = at + kept[at..].find('\n').expect("a line");
            text.replacen(kept, &format!("{}{}", &kept[..at], &kept[end..]), 1)
        }
    };
    let breaks = |edit: &dyn Fn(&str) -> String, rule: Rule| {
        let found = program(edit).expect_err("a fault");
        assert!(found.0.iter().any(|found| found.rule == rule), "{found}");
    };
    breaks(&without("wait %a_arrived["), Rule::ReadBeforeArrival);
    breaks(&without("copy %x["), Rule::NeverWritten);
    breaks(&without("wait %kept["), Rule::OverwriteBeforeRead);
    breaks(
        &|text| text.replace("step ctas {\n      let %src", "step 1 {\n      let %src"),
        Rule::WrittenTwice,
    );
}
