//! Every form of product, on every world, at odd shapes: equal to the plain product, bit for bit.

mod common;

use common::{Case, Form, Matrix, Tensor, Tensors, problem};
use flux_ir::{
    AllGather, AllReduce, Consumers, Departure, Element, Order, Schedule, Shape, Tail, Transport,
};
use proptest::prelude::*;

const WORLDS: [u32; 5] = [1, 2, 3, 4, 8];

/// Fewer rows than ranks, rows no multiple of anything, tiles that straddle shards, ragged edges.
const SHAPES: [Shape; 6] = [
    Shape { m: 1, n: 1, k: 1 },
    Shape { m: 3, n: 9, k: 5 },
    Shape { m: 17, n: 20, k: 33 },
    Shape { m: 32, n: 16, k: 16 },
    Shape { m: 45, n: 7, k: 19 },
    Shape { m: 70, n: 33, k: 8 },
];

fn check(
    form: Form,
    element: Element,
    transposed: bool,
    schedule: &Schedule,
    shape: Shape,
    world: u32,
) {
    let kernel = form.kernel(element, transposed);
    let ctas = 1 + (shape.m + world) % 3;
    let case = Case::new(&kernel, schedule, shape, world, ctas);
    let (mut tensors, expected): (Vec<_>, Vec<_>) =
        (1..=3).map(|epoch| problem(form, element, transposed, shape, world, epoch * 1001)).unzip();
    case.run(&mut tensors);
    for (epoch, (tensors, expected)) in tensors.iter().zip(&expected).enumerate() {
        for (rank, (tensors, expected)) in tensors.iter().zip(expected).enumerate() {
            let (_, c) = &tensors.outputs[0];
            assert_eq!(
                c.values(),
                *expected,
                "{form:?} of {element}, transposed {transposed}, {shape} over {world}, {ctas} CTAs, \
                 {schedule}, launch {}, rank {rank}",
                epoch + 1
            );
        }
    }
}

fn small() -> Schedule {
    Schedule::host().tile(8, 8, 16)
}

/// Shards that are fetched or handed on, by copy engines, copy warps or bulk copies, in chunks of any
/// number of rows.
#[test]
fn shards_come_whole_whoever_moves_them() {
    let schedules = |way| {
        let small = small().all_gather(way);
        let [put, bulk] = [Transport::Put, Transport::Tma].map(|by| small.clone().transport(by));
        [
            bulk.clone(),
            bulk.chunk_rows(4).order(Order::Xor),
            small.clone(),
            small.clone().chunk_rows(1).order(Order::Xor),
            small.clone().chunk_rows(3).transport(Transport::CopyEngine),
            small.consumers(Consumers::PingPong).tile(16, 24, 16).chunk_rows(7),
            put.clone().ctas(2),
            put.chunk_rows(5).order(Order::RowMajor),
        ]
    };
    for (number, way) in AllGather::ALL.into_iter().enumerate() {
        for (index, schedule) in schedules(way).iter().enumerate() {
            for world in 1..=8 {
                let turn = number + index + world as usize;
                let (shape, element) = (SHAPES[turn % SHAPES.len()], Element::ALL[turn % 3]);
                for form in [Form::Gather, Form::GatherScatter] {
                    // Copy engines gather, so tiles are put.
                    if form.scatters() && schedule.transport == Some(Transport::CopyEngine) {
                        continue;
                    }
                    check(form, element, turn.is_multiple_of(2), schedule, shape, world);
                }
            }
        }
    }
}

fn every_world_and_shape(form: Form) {
    for world in WORLDS {
        for (index, shape) in SHAPES.into_iter().enumerate() {
            let element = Element::ALL[(index + world as usize) % 3];
            check(
                form,
                element,
                (index + world as usize).is_multiple_of(2),
                &small(),
                shape,
                world,
            );
        }
    }
}

#[test]
fn a_plain_product_is_exact() {
    every_world_and_shape(Form::Plain);
}

#[test]
fn a_gathered_product_is_exact() {
    every_world_and_shape(Form::Gather);
}

#[test]
fn a_scattered_product_is_exact() {
    every_world_and_shape(Form::Scatter);
}

#[test]
fn contributions_that_copy_engines_send_are_exact() {
    let sent = small().transport(Transport::CopyEngine);
    let plans = [
        sent.clone(),
        sent.clone().head(10, 2).tail(16, 3),
        sent.clone().chunk_rows(9),
        sent.order(Order::Departure(Departure { rows: 8, shards: 2 })).chunk_rows(16).tail(8, 1),
    ];
    for world in WORLDS {
        for (index, shape) in SHAPES.into_iter().enumerate() {
            let schedule = &plans[(index + world as usize) % plans.len()];
            check(Form::Scatter, Element::Bf16, true, schedule, shape, world);
        }
    }
}

#[test]
fn shards_that_the_kernel_pushes_are_exact() {
    for transport in [Transport::Put, Transport::Tma] {
        let pushed = small().transport(transport);
        let plans = [pushed.clone(), pushed.clone().chunk_rows(3), pushed.chunk_rows(1)];
        for world in WORLDS {
            for (index, shape) in SHAPES.into_iter().enumerate() {
                let schedule = &plans[(index + world as usize) % plans.len()];
                let form = if index % 2 == 0 { Form::Gather } else { Form::GatherScatter };
                check(form, Element::F16, true, schedule, shape, world);
            }
        }
    }
}

#[test]
fn a_gathered_and_scattered_product_is_exact() {
    every_world_and_shape(Form::GatherScatter);
}

/// Schedules of reduced outputs: both algorithms, tiles, consumers and orders.
fn reducing() -> Vec<Schedule> {
    let [one, two, flagged] = AllReduce::ALL.map(|algorithm| small().all_reduce(algorithm));
    let ping_pong = Consumers::PingPong;
    vec![
        one.clone(),
        two.clone(),
        one.clone().order(Order::RowMajor).tile(5, 3, 16),
        two.clone().order(Order::Xor).consumers(ping_pong),
        one.order(Order::ColumnMajor).consumers(ping_pong),
        flagged.clone(),
        flagged.tile(5, 3, 16).consumers(ping_pong),
        two.clone().order(Order::RowMajor),
        two.tile(16, 24, 16).order(Order::Departure(Departure { rows: 8, shards: 2 })),
    ]
}

#[test]
fn a_reduced_product_is_exact() {
    for world in 1..=8 {
        for (index, shape) in SHAPES.into_iter().enumerate() {
            let element = Element::ALL[(index + world as usize) % 3];
            // Each world and each shape meets every schedule.
            let schedules = reducing();
            for turn in [0, 3] {
                let schedule = &schedules[(index + world as usize + turn) % schedules.len()];
                check(Form::Reduce, element, index % 2 == 0, schedule, shape, world);
            }
        }
    }
}

#[test]
fn a_gathered_and_reduced_product_is_exact() {
    for world in WORLDS {
        for (index, shape) in SHAPES.into_iter().enumerate() {
            for schedule in &reducing()[..2] {
                let schedule = schedule.clone().chunk_rows(1 + index as u32 * 3);
                check(Form::GatherReduce, Element::Bf16, true, &schedule, shape, world);
            }
        }
    }
}

#[test]
fn every_element_type_and_either_transposition_is_exact() {
    let shape = Shape { m: 21, n: 19, k: 30 };
    for form in Form::ALL {
        for element in Element::ALL {
            for transposed in [false, true] {
                check(form, element, transposed, &small(), shape, 2);
            }
        }
    }
}

#[test]
fn a_transposed_left_operand_is_exact() {
    let text = |b| {
        format!(
            "kernel @tn(%a: &global<bf16>, %b: &global<bf16>, %c: &mut global<f32>) {{
               for tile in %c {{
                 %0 = gemm %a.t, %b{b}
                 store %c, %0
               }}
             }}"
        )
    };
    for shape in SHAPES {
        for transposed in [false, true] {
            let kernel = text(if transposed { ".t" } else { "" }).parse().expect("a kernel");
            let case = Case::new(&kernel, &small(), shape, 1, 2);
            let [m, n, k] = [shape.m, shape.n, shape.k].map(|extent| extent as usize);
            let a = Matrix::integers(k, m, 2, 1);
            let b = if transposed { [n, k] } else { [k, n] };
            let b = Matrix::integers(b[0], b[1], 2, 2);
            let mut tensors = Tensors {
                inputs: vec![
                    ("a", Tensor::new(Element::Bf16, &a.data)),
                    ("b", Tensor::new(Element::Bf16, &b.data)),
                ],
                outputs: vec![("c", Tensor::F32(vec![f32::NAN; m * n]))],
                scalars: Vec::new(),
            };
            case.rank(0, 1, &mut tensors, common::LIMIT).expect("a launch");
            let rows = Matrix::from_fn(m, k, |i, l| a.at(l, i));
            let expected = rows.times(&b, transposed).data;
            assert_eq!(tensors.outputs[0].1.values(), expected, "{shape}, b.t() {transposed}");
        }
    }
}

/// A rank that begins with its own tiles of a scattered output waits for peers that do the same; and so do
/// ranks that begin with columns of their own.
fn fits(form: Form, order: &Order) -> bool {
    let own_first = [Order::OwnShardFirst, Order::NextColumnsFirst].contains(order);
    !form.scatters() || !(own_first || matches!(order, Order::Arrival(_)))
}

#[test]
fn orders_chunks_and_tiles_change_no_bit() {
    let shape = Shape { m: 45, n: 30, k: 12 };
    for form in Form::ALL {
        for order in Order::BUILT_IN.into_iter().filter(|order| fits(form, order)) {
            check(form, Element::Bf16, true, &small().order(order), shape, 3);
        }
        for rows in [1, 4, 7, 100] {
            check(form, Element::F16, true, &small().chunk_rows(rows), shape, 4);
        }
        for (rows, slices) in [(1, 1), (4, 2), (8, 5), (100, 3)] {
            let schedule = small().tail(rows, slices);
            check(form, Element::Bf16, true, &schedule, shape, 4);
            check(form, Element::F32, false, &schedule.chunk_rows(5), shape, 1);
        }
        for (m, n) in [(1, 1), (5, 3), (64, 64)] {
            check(form, Element::F32, false, &Schedule::host().tile(m, n, 16), shape, 3);
        }
    }
}

#[test]
fn the_default_schedule_is_exact() {
    let shape = Shape { m: 300, n: 520, k: 72 };
    for form in Form::ALL {
        check(form, Element::Bf16, true, &Schedule::host(), shape, 4);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_product_is_exact(
        form in prop::sample::select(Form::ALL.to_vec()),
        element in prop::sample::select(Element::ALL.to_vec()),
        transposed: bool,
        (m, n, k) in (1..40_u32, 1..40_u32, 1..40_u32),
        (tile_m, tile_n) in (1..20_u32, 1..20_u32),
        chunk_rows in 1..10_u32,
        tail in prop::option::of((1..12_u32, 1..4_u32)),
        world in 1..=6_u32,
    ) {
        let mut schedule = Schedule::host().tile(tile_m, tile_n, 8).chunk_rows(chunk_rows);
        schedule.tail = tail.map(|(rows, slices)| Tail { rows, slices });
        check(form, element, transposed, &schedule, Shape { m, n, k }, world);
    }
}
