//! The protocols of `examples/protocols.rs`, as they are written there: exact on every world, at odd
//! shapes, under every engine and in odd interleavings.

mod common;

use common::{Case, Form, problem};
use flux_ir::check::{EPOCHS, verify};
use flux_ir::eval::Launch;
use flux_ir::kernel::Kernel;
use flux_ir::lower::lower;
use flux_ir::{Consumers, Element, Order, Schedule, Shape, Transport};
use flux_sim::adversary;
use flux_sim::explore::{Limits, run};

const SOURCE: &str = include_str!("../../examples/protocols.rs");

const SHAPES: [Shape; 5] = [
    Shape { m: 1, n: 1, k: 1 },
    Shape { m: 3, n: 9, k: 5 },
    Shape { m: 17, n: 20, k: 70 },
    Shape { m: 45, n: 7, k: 19 },
    Shape { m: 70, n: 33, k: 130 },
];

fn kernels() -> Vec<(String, Kernel)> {
    let found = flux_syntax::read_file(SOURCE).expect("a source text");
    let kernels: Vec<_> =
        found.into_iter().map(|found| (found.path, found.kernel.expect("a kernel"))).collect();
    assert_eq!(kernels.len(), 4, "ring, pulled, sliced, two_levels");
    kernels
}

fn schedules() -> Vec<Schedule> {
    let small = Schedule::host().tile(8, 8, 16);
    let put = small.clone().transport(Transport::Put);
    vec![
        small.clone(),
        small.clone().order(Order::Grouped(2)),
        small.tile(16, 8, 32).consumers(Consumers::PingPong),
        put.clone(),
        put.clone().order(Order::Grouped(1)),
        put.tile(16, 24, 16).consumers(Consumers::Single),
    ]
}

#[test]
fn every_protocol_is_exact_on_every_world() {
    for (name, kernel) in kernels() {
        for (index, schedule) in schedules().iter().enumerate() {
            for world in 1..=8 {
                let shape = SHAPES[(index + world as usize) % SHAPES.len()];
                let case = Case::new(&kernel, schedule, shape, world, 1 + world % 3);
                let problem = |epoch: u64| {
                    problem(Form::Gather, Element::Bf16, true, shape, world, epoch * 1001)
                };
                let (mut tensors, expected): (Vec<_>, Vec<_>) = (1..=3).map(problem).unzip();
                case.run(&mut tensors);
                for (epoch, (tensors, expected)) in tensors.iter().zip(&expected).enumerate() {
                    for (rank, (tensors, expected)) in tensors.iter().zip(expected).enumerate() {
                        let found = tensors.outputs[0].1.values();
                        let about = format!("{name}, {schedule}, {shape} over {world}");
                        assert_eq!(found, *expected, "{about}, launch {epoch}, rank {rank}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_protocol_is_exact_in_odd_interleavings() {
    let shape = Shape { m: 29, n: 17, k: 70 };
    for (name, kernel) in kernels() {
        for schedule in [&schedules()[0], &schedules()[3]] {
            for world in [2, 3, 4] {
                let case = Case::new(&kernel, schedule, shape, world, 2);
                let problem = |epoch: u64| {
                    problem(Form::Gather, Element::Bf16, true, shape, world, epoch * 77)
                };
                let (poisoned, expected): (Vec<_>, Vec<_>) = (1..=3).map(problem).unzip();
                for seed in 0..8 {
                    let mut tensors = poisoned.clone();
                    let args = tensors
                        .iter_mut()
                        .map(|ranks| ranks.iter_mut().map(|rank| case.args(rank)).collect())
                        .collect();
                    adversary::run(&case.verified, case.launch, args, seed)
                        .unwrap_or_else(|e| panic!("{name}, {schedule}, {world}, {seed}: {e}"));
                    for (tensors, expected) in
                        tensors.iter().flatten().zip(expected.iter().flatten())
                    {
                        let found = tensors.outputs[0].1.values();
                        assert_eq!(found, *expected, "{name}, {schedule}, {world}, {seed}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_protocol_is_sound_in_every_interleaving() {
    for (name, kernel) in kernels() {
        for transport in [Transport::CopyEngine, Transport::Put] {
            let schedule = Schedule::host().tile(8, 8, 8).transport(transport);
            let verified = verify(lower(&kernel, &schedule).expect("a Program"));
            let verified = verified.expect("a sound Program");
            for (world, m) in [(1, 9), (2, 1), (2, 9)] {
                let launch = Launch { shape: Shape { m, n: 9, k: 8 }, world, ctas: 1 };
                let outcome = run(verified.program(), launch, EPOCHS, &Limits::default());
                let outcome = outcome.unwrap_or_else(|e| panic!("{name} {launch:?}: {e}"));
                assert!(outcome.is_sound(), "{name} {launch:?}: {outcome:?}");
            }
        }
    }
}
