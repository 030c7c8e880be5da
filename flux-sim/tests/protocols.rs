//! The protocols of `examples/`, as they are written there: exact on every world, at odd shapes, under
//! every engine and in odd interleavings.

mod common;

use common::{Case, Form, Matrix, Tensor, Tensors, problem};
use flux_ir::check::{EPOCHS, verify};
use flux_ir::eval::Launch;
use flux_ir::kernel::Kernel;
use flux_ir::lower::lower;
use flux_ir::{AllGather, Consumers, Element, Order, Schedule, Shape, Transport};
use flux_sim::adversary;
use flux_sim::explore::{Limits, run};

const GATHERS: &str = include_str!("../../examples/protocols.rs");
const SUMS: &str = include_str!("../../examples/sum_ahead.rs");
const FLAGGED: &str = include_str!("../../examples/low_latency.rs");

const SHAPES: [Shape; 5] = [
    Shape { m: 1, n: 1, k: 1 },
    Shape { m: 3, n: 9, k: 5 },
    Shape { m: 17, n: 20, k: 70 },
    Shape { m: 45, n: 7, k: 19 },
    Shape { m: 70, n: 33, k: 130 },
];

/// A protocol and what it computes.
struct Protocol {
    name: String,
    kernel: Kernel,
    computes: Computes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Computes {
    /// A product of what is gathered.
    Product,
    /// A product of what is summed.
    ProductOfSum,
    /// A sum of products, and a bias.
    SumOfProducts,
}

fn protocols() -> Vec<Protocol> {
    let read = |text: &str, computes| {
        let found = flux_syntax::read_file(text).expect("a source text").into_iter();
        let each = found.map(move |found| {
            let kernel = found.kernel.expect("a kernel");
            Protocol { name: found.path, kernel, computes }
        });
        each.collect::<Vec<_>>()
    };
    let gathers = read(GATHERS, Computes::Product);
    assert_eq!(gathers.len(), 4, "ring, pulled, sliced, two_levels");
    let sums = read(SUMS, Computes::ProductOfSum);
    assert_eq!(sums.len(), 1, "sum_ahead");
    let flagged = read(FLAGGED, Computes::SumOfProducts);
    assert_eq!(flagged.len(), 1, "low_latency");
    gathers.into_iter().chain(sums).chain(flagged).collect()
}

impl Protocol {
    /// The schedules that its roles can run under: copy engines do not add, and where there are no roles
    /// nothing moves beside the tiles.
    fn schedules(&self) -> Vec<Schedule> {
        let fits = |schedule: &Schedule| match self.computes {
            Computes::Product => true,
            Computes::ProductOfSum => schedule.transport.is_some_and(Transport::is_in_kernel),
            Computes::SumOfProducts => schedule.transport.is_none(),
        };
        schedules().into_iter().filter(fits).collect()
    }

    /// Tensors of one launch, and what must become of its outputs.
    fn problem(&self, shape: Shape, world: u32, seed: u64) -> (Vec<Tensors>, Vec<Vec<f64>>) {
        if self.computes == Computes::Product {
            return problem(Form::Gather, Element::Bf16, true, shape, world, seed);
        }
        let [m, n, k] = [shape.m, shape.n, shape.k].map(|extent| extent as usize);
        let of = |rank: u32, rows, tensor: u64| {
            Matrix::integers(rows, k, 1, seed ^ ((u64::from(rank) + 1) << 8) ^ tensor)
        };
        let a: Vec<_> = (0..world).map(|rank| of(rank, m, 1)).collect();
        let sum = a[1..].iter().fold(a[0].clone(), |sum, a| sum.plus(a));
        let products = (0..world).zip(&a).map(|(rank, a)| a.times(&of(rank, n, 2), true));
        let total = products.reduce(|sum, product| sum.plus(&product)).expect("at least one rank");
        let bias = Matrix::integers(1, n, 3, seed);
        let tensors = |(rank, a): (u32, &Matrix)| {
            let b = of(rank, n, 2);
            let inputs = [("a", a), ("b", &b)];
            let mut inputs: Vec<_> =
                inputs.map(|(name, x)| (name, Tensor::new(Element::Bf16, &x.data))).into();
            let expected = if self.computes == Computes::ProductOfSum {
                sum.times(&b, true).data
            } else {
                inputs.push(("bias", Tensor::new(Element::F32, &bias.data)));
                (0..m * n).map(|at| total.data[at] + bias.data[at % n]).collect()
            };
            let expected = Tensor::new(Element::Bf16, &expected).values();
            let c = Tensor::new(Element::Bf16, &vec![f64::NAN; m * n]);
            let tensors = Tensors { inputs, outputs: vec![("c", c)], scalars: Vec::new() };
            (tensors, expected)
        };
        (0..).zip(&a).map(tensors).unzip()
    }
}

fn schedules() -> Vec<Schedule> {
    let small = Schedule::host().tile(8, 8, 16);
    let [put, bulk] = [Transport::Put, Transport::Tma].map(|by| small.clone().transport(by));
    vec![
        small.clone(),
        small.clone().order(Order::Grouped(2)),
        small.tile(16, 8, 32).consumers(Consumers::PingPong),
        put.clone(),
        put.clone().order(Order::Grouped(1)),
        put.tile(16, 24, 16).consumers(Consumers::Single),
        bulk.clone(),
        bulk.tile(16, 24, 16).order(Order::Grouped(1)),
    ]
}

#[test]
fn every_protocol_is_exact_on_every_world() {
    for protocol in protocols() {
        let Protocol { name, kernel, .. } = &protocol;
        for (index, schedule) in protocol.schedules().iter().enumerate() {
            for world in 1..=8 {
                let shape = SHAPES[(index + world as usize) % SHAPES.len()];
                let case = Case::new(kernel, schedule, shape, world, 1 + world % 3);
                let problem = |epoch: u64| protocol.problem(shape, world, epoch * 1001);
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

/// Tiles of what is gathered, put to every rank and summed there.
const GATHERED: &str = "
#[flux::kernel]
fn gathered(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    let parts = flagged::<bf16>(Extent::M, Extent::N);
    for tile in c.tiles() {
        let a = a.wait(tile.rows());
        let part = gemm(a, b.t(), tile);
        for hop in 1..world() {
            parts.put((rank() + hop) % world(), tile, part);
        }
        c.store(tile, parts.sum(tile, part));
    }
}";

#[test]
fn sums_of_what_is_gathered_are_exact_by_whatever_way_it_comes() {
    let found = flux_syntax::read_file(GATHERED).expect("a source text");
    let kernel = found.into_iter().next().expect("a kernel").kernel.expect("a kernel");
    let small = Schedule::host().tile(8, 8, 16);
    let transports =
        [None, Some(Transport::CopyEngine), Some(Transport::Put), Some(Transport::Tma)];
    for (index, transport) in transports.into_iter().enumerate() {
        for way in [AllGather::Push, AllGather::Pull, AllGather::Ring] {
            for chunk_rows in [None, Some(3)] {
                let all_gather = Some(way);
                let schedule = Schedule { transport, chunk_rows, all_gather, ..small.clone() };
                for world in [1, 2, 3, 5] {
                    let shape = SHAPES[(index + world as usize) % SHAPES.len()];
                    let case = Case::new(&kernel, &schedule, shape, world, 2);
                    let form = Form::GatherReduce;
                    let of = |seed| problem(form, Element::Bf16, true, shape, world, seed);
                    let (mut tensors, expected): (Vec<_>, Vec<_>) = (1..=3).map(of).unzip();
                    case.run(&mut tensors);
                    for (tensors, expected) in tensors.iter().zip(&expected) {
                        for (tensors, expected) in tensors.iter().zip(expected) {
                            let found = tensors.outputs[0].1.values();
                            assert_eq!(found, *expected, "{schedule}, {shape} over {world}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_protocol_is_exact_in_odd_interleavings() {
    let shape = Shape { m: 29, n: 17, k: 70 };
    for protocol in protocols() {
        let Protocol { name, kernel, .. } = &protocol;
        for schedule in protocol.schedules().iter().step_by(3) {
            for world in [2, 3, 4] {
                let case = Case::new(kernel, schedule, shape, world, 2);
                let problem = |epoch: u64| protocol.problem(shape, world, epoch * 77);
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
    for protocol in protocols() {
        let Protocol { name, kernel, .. } = &protocol;
        let mut transports: Vec<_> =
            protocol.schedules().iter().map(|schedule| schedule.transport).collect();
        transports.dedup();
        for transport in transports {
            let mut schedule = Schedule::host().tile(8, 8, 8);
            schedule.transport = transport;
            let verified = verify(lower(kernel, &schedule).expect("a Program"));
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
