//! One rank of each class predicts what all ranks together do.

use crate::kernels::{cooperative, kernel, launch, library, ping_pong, program};
use flux_ir::eval::Launch;
use flux_ir::kernel::{Distribution, Lhs, Op};
use flux_ir::lower::lower;
use flux_ir::{AllReduce, Arrival, Kernel, Order, Program, ReduceScatter};
use flux_sim::time::{Error, Fold, Machine, Options, Symmetry, simulate};

/// Simulates folded and in full; gives the classes.
fn same(name: &str, program: &Program, launch: Launch, machine: &Machine) -> u32 {
    let with = |symmetry, launches| {
        let options = Options { symmetry, launches, ..Options::default() };
        simulate(program, launch, machine, options)
    };
    let mut classes = 0;
    for launches in [1, 3] {
        let (folded, all) = (with(Symmetry::Fold, launches), with(Symmetry::All, launches));
        let about = format!("{name} {launch:?}");
        let (Ok(folded), Ok(all)) = (&folded, &all) else {
            // Some orders end in a deadlock, either way.
            assert!(matches!(folded, Err(Error::Deadlock { .. })), "{about}: {folded:?}");
            assert!(matches!(all, Err(Error::Deadlock { .. })), "{about}: {all:?}");
            return 0;
        };
        classes = folded.timeline.classes;
        assert_eq!(folded.total, all.total, "{about}, {classes} classes");
        assert_eq!((folded.gemm, folded.comm), (all.gemm, all.comm), "{about}");
        assert_eq!(folded.sent_bytes, all.sent_bytes, "{about}");
        assert_eq!(folded.waited, all.waited, "{about}");
    }
    classes
}

#[test]
fn one_rank_stands_for_all_of_every_kernel_and_schedule_of_the_library() {
    for machine in Machine::names() {
        let machine = Machine::find(machine).expect("a machine");
        for (kernel, schedule) in library() {
            let program = lower(&kernel, &schedule).expect("it lowers");
            let tile = schedule.tile;
            for world in [1, 2, 3, 4, 5, 8] {
                // Shards of two tiles, of one, and of half a tile: then two ranks differ.
                for rows in [2 * tile.m, tile.m, tile.m / 2] {
                    let shape = launch(rows * world, 2 * tile.n + 8, 512, world, 5);
                    let classes = same(&kernel.name, &program, shape, &machine);
                    let whole = rows * world % tile.m == 0;
                    let least = if rows < tile.m && program.communicates() { 2 } else { 1 };
                    // Ranks that come to tiles in one order are no images of each other.
                    let in_one_order = [Some(AllReduce::OneShot), Some(AllReduce::Flagged)];
                    let differ = in_one_order.contains(&schedule.all_reduce)
                        // Nor are they where each has a shard of columns that no tiles fill.
                        || exchanges(&kernel)
                        // Nor where each comes to the rows of all from its own on.
                        || turns(&kernel)
                        // Nor where two owners pull their rows out of one tile.
                        || (schedule.reduce_scatter == Some(ReduceScatter::Pull) && rows < tile.m);
                    let shifts = !differ;
                    let folds = shifts && whole && world % least == 0;
                    let expected = if folds { least } else { world };
                    let alone = world == 1 || !program.communicates();
                    let expected = if alone { 1 } else { expected };
                    assert_eq!(classes, expected.min(world), "{} {shape:?}", kernel.name);
                }
            }
        }
    }
}

fn turns(kernel: &Kernel) -> bool {
    let turned = |op: &Op| matches!(op, Op::Gemm { a: Lhs::Transposed(_), .. });
    kernel.ops.values().any(|entry| turned(&entry.op))
}

fn exchanges(kernel: &Kernel) -> bool {
    kernel.params.handles().any(|param| {
        kernel.tensor(param).is_some_and(|(found, ..)| found == Distribution::Exchanged)
    })
}

#[test]
fn every_order_and_chunk_predicts_the_same_folded_and_in_full() {
    let machine = Machine::find("h200-pcie").expect("a machine");
    for name in ["ag_gemm_gelu", "gemm_rs"] {
        for order in Order::BUILT_IN {
            for (consumers, chunk) in [(cooperative(256), None), (ping_pong(128), Some(48))] {
                let mut schedule = consumers.order(order.clone());
                if let Some(rows) = chunk.filter(|_| name == "ag_gemm_gelu") {
                    schedule = schedule.chunk_rows(rows);
                }
                let program = program(name, &schedule);
                for world in [2, 4, 8] {
                    for m in [128 * world, 64 * world, 100 * world, 128 * world - 3] {
                        same(name, &program, launch(m, 600, 256, world, 3), &machine);
                    }
                }
            }
        }
    }
}

#[test]
fn sliced_tails_predict_the_same_folded_and_in_full() {
    let machine = Machine::find("h200-pcie").expect("a machine");
    for (rows, slices, chunk) in [(128, 4, None), (64, 2, Some(64)), (1000, 3, Some(100))] {
        let mut schedule = ping_pong(128).tail(rows, slices).order(Order::Arrival(Arrival {
            chunk: 0,
            tail: rows,
            pace: 0,
        }));
        if let Some(rows) = chunk {
            schedule = schedule.chunk_rows(rows);
        }
        let program = program("ag_gemm_gelu", &schedule);
        for world in [2, 4, 8] {
            for m in [256 * world, 64 * world, 128 * world - 3] {
                let classes = same("tail", &program, launch(m, 600, 512, world, 3), &machine);
                let folds = m.is_multiple_of(world);
                let least = if m == 64 * world { 2 } else { 1 };
                assert_eq!(classes, if folds { least.min(world) } else { world }, "{rows} {m}");
            }
        }
    }
}

#[test]
fn ranks_that_differ_are_all_simulated() {
    let ragged = program("ag_gemm_gelu", &cooperative(256));
    let classes = |program: &Program, launch| Fold::of(program, launch).map(|fold| fold.classes());
    assert_eq!(classes(&ragged, launch(1000, 512, 64, 3, 4)), Ok(3), "the last shard is short");
    let rows = program("ag_gemm_gelu", &cooperative(256).order(Order::RowMajor));
    assert_eq!(classes(&rows, launch(1024, 512, 64, 4, 4)), Ok(4), "all begin with rank 0's rows");
    let xor = program("gemm_rs", &cooperative(256).order(Order::Xor));
    assert_eq!(classes(&xor, launch(1024, 512, 64, 4, 4)), Ok(4), "pairs are no ring");
    let own = program("gemm_rs", &cooperative(256));
    assert_eq!(classes(&own, launch(1024, 512, 64, 4, 4)), Ok(1));
}

#[test]
fn a_rank_that_differs_in_one_tile_is_found() {
    let first = Order::custom("odd", |step, grid, rank, world| {
        let own = grid.rows / world * rank;
        let (m, n) = (step / grid.cols, step % grid.cols);
        // Rank 3 swaps its last two tiles.
        let last = grid.tiles() - 1;
        let swapped = if rank == 3 && step >= last - 1 { 2 * last - 1 - step } else { step };
        let (m, n) =
            if swapped == step { (m, n) } else { (swapped / grid.cols, swapped % grid.cols) };
        flux_ir::TileCoord { m: (m + own) % grid.rows, n }
    });
    let program = lower(&kernel("ag_gemm_gelu"), &cooperative(256).order(first)).expect("lowers");
    let fold = Fold::of(&program, launch(1024, 512, 64, 4, 4)).expect("an order");
    assert_eq!(fold.classes(), 4);
}

#[test]
fn hundreds_of_ranks_are_a_few_classes() {
    let program = program("gemm_rs", &cooperative(256));
    // Shards of 16 rows: eight owners to a tile.
    let fold = Fold::of(&program, launch(2048, 512, 64, 128, 4)).expect("an order");
    assert_eq!((fold.classes(), fold.world()), (8, 128));
}
