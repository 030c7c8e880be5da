//! Kernels without a product: what they leave is what they say, bit for bit, on every world, at odd
//! shapes, under every kind of schedule, in threads and in odd interleavings.

mod common;

use common::{Case, Matrix, Tensor, Tensors};
use flux_ir::kernel::Kernel;
use flux_ir::{Element, Order, Ranks, Schedule, Shape, Transport};
use flux_sim::adversary;

const WORLDS: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// Fewer rows than ranks, rows no multiple of anything, tiles that straddle shards, ragged edges.
const SHAPES: [(u32, u32); 6] = [(1, 1), (3, 9), (17, 20), (32, 16), (45, 7), (70, 33)];

/// Inputs of one rank by name, and what its output becomes.
type Means = fn(Ranks, (u32, u32), u64) -> (Vec<(&'static str, Matrix)>, Matrix);

/// Small integers that differ for every rank: any sum of them is exact.
fn integers((m, n): (u32, u32), seed: u64) -> Matrix {
    Matrix::integers(m as usize, n as usize, 3, seed)
}

fn of_rank(shape: (u32, u32), rank: u32, seed: u64) -> Matrix {
    integers(shape, seed ^ (u64::from(rank) + 1) << 9)
}

const ALL_GATHER: &str = "
kernel @all_gather(%x: &gathered<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %x
    %1 = load %0
    store %c, %1
  }
}";

fn all_gather(ranks: Ranks, shape: (u32, u32), seed: u64) -> (Vec<(&'static str, Matrix)>, Matrix) {
    let whole = integers(shape, seed);
    (vec![("x", whole.shard(ranks))], whole)
}

const REDUCE_SCATTER: &str = "
kernel @reduce_scatter(%x: &global<bf16>, %c: &mut scattered<bf16>) {
  for tile in %c {
    %0 = load %x
    %1 = reduce %c, %0
    store %c, %1
  }
}";

fn reduce_scatter(
    ranks: Ranks,
    shape: (u32, u32),
    seed: u64,
) -> (Vec<(&'static str, Matrix)>, Matrix) {
    let all = (0..ranks.world).map(|rank| of_rank(shape, rank, seed));
    let sum = all.reduce(|sum, x| sum.plus(&x)).expect("a rank");
    (vec![("x", of_rank(shape, ranks.rank, seed))], sum.shard(ranks))
}

const RELU: &str = "
kernel @relu(%x: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = load %x
    %1 = relu %0
    store %c, %1
  }
}";

fn relu(ranks: Ranks, shape: (u32, u32), seed: u64) -> (Vec<(&'static str, Matrix)>, Matrix) {
    let x = of_rank(shape, ranks.rank, seed);
    let y = Matrix::from_fn(x.rows, x.cols, |i, j| x.at(i, j).max(0.0));
    (vec![("x", x)], y)
}

/// What is gathered and what is scattered meet in one epilogue: every rank adds its own to what it
/// gathered, and keeps its rows of the sum of all that.
const GATHER_REDUCE: &str = "
kernel @gather_reduce(%x: &gathered<bf16>, %y: &global<bf16>, %c: &mut scattered<bf16>) {
  for tile in %c {
    %0 = wait %x
    %1 = load %0
    %2 = load %y
    %3 = add %1, %2
    %4 = reduce %c, %3
    store %c, %4
  }
}";

fn gather_reduce(
    ranks: Ranks,
    shape: (u32, u32),
    seed: u64,
) -> (Vec<(&'static str, Matrix)>, Matrix) {
    let x = integers(shape, seed ^ 0xabc);
    let all = (0..ranks.world).map(|rank| of_rank(shape, rank, seed).plus(&x));
    let sum = all.reduce(|sum, y| sum.plus(&y)).expect("a rank");
    let inputs = vec![("x", x.shard(ranks)), ("y", of_rank(shape, ranks.rank, seed))];
    (inputs, sum.shard(ranks))
}

const KERNELS: [(&str, Means); 4] = [
    (ALL_GATHER, all_gather),
    (REDUCE_SCATTER, reduce_scatter),
    (RELU, relu),
    (GATHER_REDUCE, gather_reduce),
];

/// Tiles, chunks, transports and orders that the kernel admits.
fn schedules(text: &str) -> Vec<Schedule> {
    let (small, wide) = (Schedule::host().tile(8, 8, 16), Schedule::host().tile(4, 32, 16));
    let mut all = vec![
        small.clone(),
        wide.clone(),
        small.clone().order(Order::RowMajor),
        small.clone().order(Order::Xor),
        wide.clone().order(Order::Grouped(2)),
        small.clone().order(Order::NextRankFirst),
    ];
    if text.contains("gathered") {
        all.push(small.clone().chunk_rows(3));
        all.push(small.clone().transport(Transport::Put));
        all.push(wide.clone().transport(Transport::Put).chunk_rows(2));
        if !text.contains("scattered") {
            all.push(small.clone().transport(Transport::CopyFirst));
        }
    } else if text.contains("scattered") {
        all.push(small.clone().transport(Transport::CopyEngine));
        all.push(small.transport(Transport::CopyEngine).head(10, 2).tail(16, 3));
    }
    all
}

fn tensors(
    means: Means,
    shape: (u32, u32),
    world: u32,
    seed: u64,
) -> (Vec<Tensors>, Vec<Vec<f64>>) {
    let each = (0..world).map(|rank| {
        let (inputs, output) = means(Ranks { rank, world }, shape, seed);
        let poison = vec![f64::NAN; output.data.len()];
        let tensors = Tensors {
            inputs: inputs
                .into_iter()
                .map(|(name, matrix)| (name, Tensor::new(Element::Bf16, &matrix.data)))
                .collect(),
            outputs: vec![("c", Tensor::new(Element::Bf16, &poison))],
            scalars: Vec::new(),
        };
        (tensors, output.data)
    });
    each.unzip()
}

fn case(text: &str, schedule: &Schedule, (m, n): (u32, u32), world: u32) -> Case {
    let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let ctas = 1 + (m + world) % 3;
    Case::new(&kernel, schedule, Shape { m, n, k: 1 }, world, ctas)
}

#[test]
fn kernels_without_a_product_are_exact() {
    for (number, (text, means)) in KERNELS.into_iter().enumerate() {
        let schedules = schedules(text);
        for world in WORLDS {
            for (index, shape) in SHAPES.into_iter().enumerate() {
                let which = (number + index + world as usize) % schedules.len();
                // Each shape meets each schedule in some world, two schedules here.
                for schedule in [&schedules[which], &schedules[(which + 3) % schedules.len()]] {
                    let case = case(text, schedule, shape, world);
                    let (mut launches, expected): (Vec<_>, Vec<_>) =
                        (1..=3).map(|epoch| tensors(means, shape, world, epoch * 1001)).unzip();
                    case.run(&mut launches);
                    for (epoch, (ranks, expected)) in launches.iter().zip(&expected).enumerate() {
                        for (rank, (tensors, expected)) in ranks.iter().zip(expected).enumerate() {
                            let found = tensors.outputs[0].1.values();
                            let about =
                                format!("{shape:?} over {world}, {schedule}, launch {epoch}");
                            assert_eq!(found, *expected, "{text}{about}, rank {rank}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn kernels_without_a_product_are_exact_in_odd_interleavings() {
    for (text, means) in KERNELS {
        for (index, schedule) in schedules(text).into_iter().enumerate() {
            for world in [2, 3, 5] {
                let shape = [(3, 9), (29, 17)][index % 2];
                let case = case(text, &schedule, shape, world);
                let (poisoned, expected): (Vec<_>, Vec<_>) =
                    (1..=3).map(|epoch| tensors(means, shape, world, epoch * 77)).unzip();
                for seed in 0..6 {
                    let mut launches = poisoned.clone();
                    let args = launches
                        .iter_mut()
                        .map(|ranks| ranks.iter_mut().map(|rank| case.args(rank)).collect())
                        .collect();
                    adversary::run(&case.verified, case.launch, args, seed)
                        .unwrap_or_else(|e| panic!("{text}{shape:?} over {world}, {seed}: {e}"));
                    for (ranks, expected) in launches.iter().zip(&expected) {
                        for (tensors, expected) in ranks.iter().zip(expected) {
                            let about = format!("{shape:?} over {world}, {schedule}, seed {seed}");
                            assert_eq!(tensors.outputs[0].1.values(), *expected, "{text}{about}");
                        }
                    }
                }
            }
        }
    }
}
