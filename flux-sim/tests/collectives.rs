//! Kernels without a product and exchanges: what they leave is what they say, bit for bit, on every
//! world, at odd shapes, under every kind of schedule, in threads and in odd interleavings.

mod common;

use common::{Case, Matrix, Tensor, Tensors};
use flux_ir::kernel::Kernel;
use flux_ir::tile::{own_rows, shard_rows};
use flux_ir::{Element, Order, Ranks, Schedule, Shape, Transport};
use flux_sim::adversary;

const WORLDS: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// Fewer rows than ranks, rows no multiple of anything, tiles that straddle shards, ragged edges.
/// Columns of either operand are as odd: fewer than ranks, shards that end between k-steps.
const SHAPES: [Shape; 6] = [
    Shape { m: 1, n: 1, k: 1 },
    Shape { m: 3, n: 9, k: 5 },
    Shape { m: 17, n: 20, k: 33 },
    Shape { m: 32, n: 16, k: 64 },
    Shape { m: 45, n: 7, k: 19 },
    Shape { m: 70, n: 33, k: 8 },
];

/// Inputs of one rank by name, and what its output becomes.
type Meaning = (Vec<(&'static str, Matrix)>, Matrix);
type Means = fn(Ranks, Shape, u64) -> Meaning;
/// The same where each rank owns so many rows.
type MeansOf = fn(&[u32], Ranks, Shape, u64) -> Meaning;

/// Small integers that differ for every rank: any sum of them is exact.
fn matrix(rows: u32, cols: u32, seed: u64) -> Matrix {
    Matrix::integers(rows as usize, cols as usize, 2, seed)
}

fn integers(shape: Shape, seed: u64) -> Matrix {
    matrix(shape.m, shape.n, seed)
}

fn of_rank(shape: Shape, rank: u32, seed: u64) -> Matrix {
    integers(shape, seed ^ (u64::from(rank) + 1) << 9)
}

/// The weights of a rank: each has its own, as nothing says that they are the same.
fn weights(shape: Shape, rank: u32, seed: u64) -> Matrix {
    matrix(shape.n, shape.k, seed ^ (u64::from(rank) + 1) << 17)
}

/// The columns that a rank holds.
fn columns(whole: &Matrix, ranks: Ranks) -> Matrix {
    let first = (ranks.rank * shard_rows(whole.cols as u32, ranks.world)) as usize;
    let cols = own_rows(whole.cols as u32, ranks) as usize;
    Matrix::from_fn(whole.rows, cols, |i, j| whole.at(i, first + j))
}

/// Rows of each rank where shards are even.
fn even(m: u32, world: u32) -> Vec<u32> {
    (0..world).map(|rank| own_rows(m, Ranks { rank, world })).collect()
}

/// The rows that a rank owns.
fn own(whole: &Matrix, lengths: &[u32], rank: u32) -> Matrix {
    let first = lengths[..rank as usize].iter().sum::<u32>() as usize;
    let rows = lengths[rank as usize] as usize;
    Matrix::from_fn(rows, whole.cols, |i, j| whole.at(first + i, j))
}

/// The whole of what ranks make of their own rows.
fn stacked(world: u32, of: impl Fn(Ranks) -> Matrix) -> Matrix {
    let parts: Vec<Matrix> = (0..world).map(|rank| of(Ranks { rank, world })).collect();
    let (rows, cols) = (parts.iter().map(|part| part.rows).sum(), parts[0].cols);
    Matrix { rows, cols, data: parts.into_iter().flat_map(|part| part.data).collect() }
}

const ALL_GATHER: &str = "
kernel @all_gather(%x: &gathered<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %x
    %1 = load %0
    store %c, %1
  }
}";

fn all_gather(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
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

fn reduce_scatter(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
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

fn relu(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
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

fn gather_reduce(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    let x = integers(shape, seed ^ 0xabc);
    let all = (0..ranks.world).map(|rank| of_rank(shape, rank, seed).plus(&x));
    let sum = all.reduce(|sum, y| sum.plus(&y)).expect("a rank");
    let inputs = vec![("x", x.shard(ranks)), ("y", of_rank(shape, ranks.rank, seed))];
    (inputs, sum.shard(ranks))
}

/// From row shards to column shards.
const ALL_TO_ALL: &str = "
kernel @all_to_all(%x: &sharded<bf16>, %c: &mut exchanged<bf16>) {
  for tile in %c {
    %0 = load %x
    store %c, %0
  }
}";

fn all_to_all(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    all_to_all_of(&even(shape.m, ranks.world), ranks, shape, seed)
}

fn all_to_all_of(lengths: &[u32], ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    let whole = integers(shape, seed);
    (vec![("x", own(&whole, lengths, ranks.rank))], columns(&whole, ranks))
}

/// And back.
const ALL_TO_ALL_BACK: &str = "
kernel @all_to_all_back(%x: &exchanged<bf16>, %c: &mut sharded<bf16>) {
  for tile in %c {
    %0 = wait %x
    %1 = load %0
    store %c, %1
  }
}";

fn all_to_all_back(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    all_to_all_back_of(&even(shape.m, ranks.world), ranks, shape, seed)
}

fn all_to_all_back_of(lengths: &[u32], ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    let whole = integers(shape, seed);
    (vec![("x", columns(&whole, ranks))], own(&whole, lengths, ranks.rank))
}

const GEMM_A2A: &str = "
kernel @gemm_a2a(%a: &sharded<bf16>, %b: &global<bf16>, %c: &mut exchanged<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    store %c, %0
  }
}";

fn gemm_a2a(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    gemm_a2a_of(&even(shape.m, ranks.world), ranks, shape, seed)
}

fn gemm_a2a_of(lengths: &[u32], ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    let a = matrix(shape.m, shape.k, seed);
    let b = |rank| weights(shape, rank, seed);
    let c = stacked(ranks.world, |of| own(&a, lengths, of.rank).times(&b(of.rank), true));
    (vec![("a", own(&a, lengths, ranks.rank)), ("b", b(ranks.rank))], columns(&c, ranks))
}

const A2A_GEMM: &str = "
kernel @a2a_gemm(%a: &exchanged<bf16>, %b: &global<bf16>, %r: &sharded<bf16>, %c: &mut sharded<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    %2 = load %r
    %3 = add %1, %2
    store %c, %3
  }
}";

fn a2a_gemm(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    a2a_gemm_of(&even(shape.m, ranks.world), ranks, shape, seed)
}

fn a2a_gemm_of(lengths: &[u32], ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    let a = matrix(shape.m, shape.k, seed);
    let (b, r) =
        (weights(shape, ranks.rank, seed), own(&integers(shape, seed ^ 0x5a), lengths, ranks.rank));
    let c = own(&a, lengths, ranks.rank).times(&b, true).plus(&r);
    (vec![("a", columns(&a, ranks)), ("b", b), ("r", r)], c)
}

/// Both at once, with another exchanged tensor in the epilogue and a second output.
const A2A_GEMM_A2A: &str = "
kernel @a2a_gemm_a2a(%a: &exchanged<bf16>, %b: &global<bf16>, %x: &exchanged<bf16>, %c: &mut exchanged<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    %2 = wait %x
    %3 = load %2
    %4 = add %1, %3
    store %c, %4
  }
}";

fn a2a_gemm_a2a(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    a2a_gemm_a2a_of(&even(shape.m, ranks.world), ranks, shape, seed)
}

fn a2a_gemm_a2a_of(lengths: &[u32], ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    let (a, x) = (matrix(shape.m, shape.k, seed), integers(shape, seed ^ 0x77));
    let b = |rank| weights(shape, rank, seed);
    let c = stacked(ranks.world, |of| {
        own(&a, lengths, of.rank).times(&b(of.rank), true).plus(&own(&x, lengths, of.rank))
    });
    let inputs = vec![("a", columns(&a, ranks)), ("b", b(ranks.rank)), ("x", columns(&x, ranks))];
    (inputs, columns(&c, ranks))
}

/// The gradient of weights: what is summed over is gathered, as right operand, left one, or both.
const GRADIENT_RIGHT: &str = "
kernel @gemm_gradient_right(%a: &global<bf16>, %x: &gathered<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %x
    %1 = gemm %a.t, %x
    store %c, %1
  }
}";

fn gradient_right(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    let a = matrix(shape.k, shape.m, seed ^ (u64::from(ranks.rank) + 1) << 9);
    let x = matrix(shape.k, shape.n, seed ^ 0x33);
    let c = transposed(&a).times(&x, false);
    (vec![("a", a), ("x", x.shard(ranks))], c)
}

const GRADIENT_LEFT: &str = "
kernel @gemm_gradient_left(%a: &gathered<bf16>, %x: &global<bf16>, %c: &mut scattered<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %a.t, %x
    %2 = reduce %c, %1
    store %c, %2
  }
}";

fn gradient_left(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    let a = matrix(shape.k, shape.m, seed);
    let x = |rank: u32| matrix(shape.k, shape.n, seed ^ (u64::from(rank) + 1) << 9);
    let all = (0..ranks.world).map(|rank| transposed(&a).times(&x(rank), false));
    let sum = all.reduce(|sum, y| sum.plus(&y)).expect("a rank");
    (vec![("a", a.shard(ranks)), ("x", x(ranks.rank))], sum.shard(ranks))
}

const GRADIENT_BOTH: &str = "
kernel @gemm_gradient_both(%a: &gathered<bf16>, %x: &gathered<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = wait %x
    %2 = gemm %a.t, %x
    store %c, %2
  }
}";

fn gradient_both(ranks: Ranks, shape: Shape, seed: u64) -> Meaning {
    let (a, x) = (matrix(shape.k, shape.m, seed), matrix(shape.k, shape.n, seed ^ 0x33));
    let c = transposed(&a).times(&x, false);
    (vec![("a", a.shard(ranks)), ("x", x.shard(ranks))], c)
}

fn transposed(a: &Matrix) -> Matrix {
    Matrix::from_fn(a.cols, a.rows, |i, j| a.at(j, i))
}

const KERNELS: [(&str, Means); 12] = [
    (ALL_GATHER, all_gather),
    (REDUCE_SCATTER, reduce_scatter),
    (RELU, relu),
    (GATHER_REDUCE, gather_reduce),
    (ALL_TO_ALL, all_to_all),
    (ALL_TO_ALL_BACK, all_to_all_back),
    (GEMM_A2A, gemm_a2a),
    (A2A_GEMM, a2a_gemm),
    (A2A_GEMM_A2A, a2a_gemm_a2a),
    (GRADIENT_RIGHT, gradient_right),
    (GRADIENT_LEFT, gradient_left),
    (GRADIENT_BOTH, gradient_both),
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
        if !text.contains("gradient_both") {
            all.push(small.clone().transport(Transport::Put));
            all.push(wide.clone().transport(Transport::Put).chunk_rows(2));
        }
        if !text.contains("scattered") {
            all.push(small.clone().transport(Transport::CopyFirst));
        }
    } else if text.contains("&exchanged") {
        all.push(small.clone().chunk_rows(3));
        all.push(small.clone().transport(Transport::CopyFirst));
        if !text.contains("&mut exchanged") {
            all.push(small.clone().transport(Transport::Put));
            all.push(wide.transport(Transport::Put).chunk_rows(2));
        }
    } else if text.contains("scattered") {
        all.push(small.clone().transport(Transport::CopyEngine));
        all.push(small.transport(Transport::CopyEngine).head(10, 2).tail(16, 3));
    }
    all
}

fn tensors(means: Means, shape: Shape, world: u32, seed: u64) -> (Vec<Tensors>, Vec<Vec<f64>>) {
    tensors_of(&|ranks| means(ranks, shape, seed), world)
}

fn tensors_of(means: &dyn Fn(Ranks) -> Meaning, world: u32) -> (Vec<Tensors>, Vec<Vec<f64>>) {
    let each = (0..world).map(|rank| {
        let (inputs, output) = means(Ranks { rank, world });
        let poison = vec![f64::NAN; output.data.len()];
        let tensors = Tensors {
            inputs: inputs
                .into_iter()
                .map(|(name, matrix)| (name, Tensor::new(Element::Bf16, &matrix.data)))
                .collect(),
            outputs: vec![("c", Tensor::new(Element::Bf16, &poison))],
            scalars: Vec::new(),
        };
        (tensors, Tensor::new(Element::Bf16, &output.data).values())
    });
    each.unzip()
}

fn case(text: &str, schedule: &Schedule, shape: Shape, world: u32) -> Case {
    let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let ctas = 1 + (shape.m + world) % 3;
    let k = if text.contains("gemm") { shape.k } else { 1 };
    Case::new(&kernel, schedule, Shape { k, ..shape }, world, ctas)
}

fn are_exact(kernels: &[(&str, Means)]) {
    for (number, &(text, means)) in kernels.iter().enumerate() {
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
                            let about = format!("{shape} over {world}, {schedule}, launch {epoch}");
                            assert_eq!(found, *expected, "{text}{about}, rank {rank}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn kernels_without_a_product_are_exact() {
    are_exact(&KERNELS[..4]);
}

#[test]
fn plain_exchanges_are_exact() {
    are_exact(&KERNELS[4..6]);
}

#[test]
fn exchanges_around_a_product_are_exact() {
    are_exact(&KERNELS[6..9]);
}

#[test]
fn gradients_of_weights_are_exact() {
    are_exact(&KERNELS[9..]);
}

#[test]
fn collectives_are_exact_in_odd_interleavings() {
    for (text, means) in KERNELS {
        for (index, schedule) in schedules(text).into_iter().enumerate() {
            for world in [2, 3, 5] {
                let shape = [Shape { m: 3, n: 9, k: 21 }, Shape { m: 29, n: 17, k: 5 }][index % 2];
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
                        .unwrap_or_else(|e| panic!("{text}{shape} over {world}, {seed}: {e}"));
                    for (ranks, expected) in launches.iter().zip(&expected) {
                        for (tensors, expected) in ranks.iter().zip(expected) {
                            let about = format!("{shape} over {world}, {schedule}, seed {seed}");
                            assert_eq!(tensors.outputs[0].1.values(), *expected, "{text}{about}");
                        }
                    }
                }
            }
        }
    }
}

/// Rows of each rank: none on some, one on some, a tile and more on others.
const LENGTHS: [&[u32]; 8] = [
    &[5],
    &[3, 14],
    &[0, 9],
    &[17, 0, 1],
    &[8, 16, 8],
    &[1, 30, 0, 6],
    &[0, 0, 13, 0, 2],
    &[4, 9, 1, 16, 0, 7, 8, 25],
];

const UNEVEN: [(&str, MeansOf); 5] = [
    (ALL_TO_ALL, all_to_all_of),
    (ALL_TO_ALL_BACK, all_to_all_back_of),
    (GEMM_A2A, gemm_a2a_of),
    (A2A_GEMM, a2a_gemm_of),
    (A2A_GEMM_A2A, a2a_gemm_a2a_of),
];

fn case_of(text: &str, schedule: &Schedule, shape: Shape, lengths: &[u32]) -> Case {
    let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let world = lengths.len() as u32;
    let k = if text.contains("gemm") { shape.k } else { 1 };
    let shape = Shape { k, ..shape };
    Case::of_lengths(&kernel, schedule, shape, lengths, 1 + world % 3)
}

#[test]
fn exchanges_of_uneven_rows_are_exact() {
    for (number, &(text, means)) in UNEVEN.iter().enumerate() {
        for (index, schedule) in schedules(text).iter().enumerate() {
            for (turn, lengths) in LENGTHS.into_iter().enumerate() {
                let [n, k] = [[9, 5], [20, 33], [7, 19]][(number + index + turn) % 3];
                let (m, world) = (lengths.iter().sum(), lengths.len() as u32);
                let shape = Shape { m, n, k };
                let case = case_of(text, schedule, shape, lengths);
                let made = |epoch: u64| {
                    tensors_of(&|ranks| means(lengths, ranks, shape, epoch * 1001), world)
                };
                let (mut launches, expected): (Vec<_>, Vec<_>) = (1..=3).map(made).unzip();
                case.run(&mut launches);
                for (ranks, expected) in launches.iter().zip(&expected) {
                    for (tensors, expected) in ranks.iter().zip(expected) {
                        let about = format!("{shape} of {lengths:?}, {schedule}");
                        assert_eq!(tensors.outputs[0].1.values(), *expected, "{text}{about}");
                    }
                }
            }
        }
    }
}

#[test]
fn exchanges_of_uneven_rows_are_exact_in_odd_interleavings() {
    for (text, means) in UNEVEN {
        for (index, schedule) in schedules(text).iter().enumerate() {
            let lengths = LENGTHS[1 + index % 6];
            let world = lengths.len() as u32;
            let shape = Shape { m: lengths.iter().sum(), n: 17, k: 5 };
            let case = case_of(text, schedule, shape, lengths);
            let made =
                |epoch: u64| tensors_of(&|ranks| means(lengths, ranks, shape, epoch * 77), world);
            let (poisoned, expected): (Vec<_>, Vec<_>) = (1..=3).map(made).unzip();
            for seed in 0..6 {
                let mut launches = poisoned.clone();
                let args = launches
                    .iter_mut()
                    .map(|ranks| ranks.iter_mut().map(|rank| case.args(rank)).collect())
                    .collect();
                adversary::run(&case.verified, case.launch, args, seed)
                    .unwrap_or_else(|e| panic!("{text}{shape} of {lengths:?}, {seed}: {e}"));
                for (ranks, expected) in launches.iter().zip(&expected) {
                    for (tensors, expected) in ranks.iter().zip(expected) {
                        let about = format!("{shape} of {lengths:?}, {schedule}, seed {seed}");
                        assert_eq!(tensors.outputs[0].1.values(), *expected, "{text}{about}");
                    }
                }
            }
        }
    }
}
