//! Odd interleavings with writes delivered late: the same bits as the threads give.

mod common;

use common::{Case, Form, problem};
use flux_ir::{AllGather, AllReduce, Element, ReduceScatter, Schedule, Shape, Transport};
use flux_sim::adversary;

#[test]
fn every_interleaving_gives_the_bits_that_threads_give() {
    let shapes = [Shape { m: 3, n: 9, k: 5 }, Shape { m: 29, n: 17, k: 12 }];
    for form in Form::ALL.into_iter().chain([Form::Reduce, Form::GatherReduce]) {
        for world in [1, 2, 3, 4] {
            for shape in shapes {
                let element = Element::ALL[(world % 3) as usize];
                let kernel = form.kernel(element, true);
                let mut schedule = Schedule::host().tile(8, 8, 16).chunk_rows(3);
                if form.reduces() {
                    schedule = schedule.all_reduce(AllReduce::ALL[usize::from(shape.m < 8)]);
                }
                if form == Form::Reduce && shape.m > 8 {
                    schedule = schedule.all_reduce(AllReduce::ALL[world as usize % 2]);
                }
                if form == Form::GatherScatter {
                    // Beside what is gathered a sum may pass from rank to rank as well.
                    let turn = (world + shape.m) as usize % ReduceScatter::ALL.len();
                    schedule = schedule.reduce_scatter(ReduceScatter::ALL[turn]);
                }
                if form == Form::Scatter && shape.m > 8 {
                    // Copy engines send what is not put.
                    schedule = schedule.transport(Transport::CopyEngine).tail(4, 2);
                }
                if form == Form::Gather {
                    // Shards are pushed, fetched or handed on, by copy warps, in bulk or by copy
                    // engines.
                    let turn = (world + shape.m) as usize % AllGather::ALL.len();
                    schedule = schedule.all_gather(AllGather::ALL[turn]);
                    if shape.m < 8 {
                        let by = [Transport::Put, Transport::Tma][world as usize % 2];
                        schedule = schedule.transport(by);
                    }
                }
                let case = Case::new(&kernel, &schedule, shape, world, 2);
                let problem = |epoch: u64| problem(form, element, true, shape, world, epoch * 77);
                let (poisoned, expected): (Vec<_>, Vec<_>) = (1..=3).map(problem).unzip();
                let mut threads = poisoned.clone();
                case.run(&mut threads);
                for seed in 0..12 {
                    let mut tensors = poisoned.clone();
                    let args = tensors
                        .iter_mut()
                        .map(|ranks| ranks.iter_mut().map(|rank| case.args(rank)).collect())
                        .collect();
                    adversary::run(&case.verified, case.launch, args, seed)
                        .unwrap_or_else(|e| panic!("{form:?}, {shape} over {world}, {seed}: {e}"));
                    for epoch in 0..3 {
                        for rank in 0..world as usize {
                            let here = &tensors[epoch][rank].outputs[0].1;
                            let about = format!("{form:?}, {shape} over {world}, seed {seed}");
                            assert_eq!(here.values(), expected[epoch][rank], "{about}");
                            assert_eq!(*here, threads[epoch][rank].outputs[0].1, "{about}");
                        }
                    }
                }
            }
        }
    }
}
