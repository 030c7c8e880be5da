//! Epilogues that read vectors, matrices and scalars, write several outputs, or join two products.

mod common;

use common::{Builder, Case, Matrix, Tensor, Tensors};
use flux_ir::kernel::{Binary, Distribution, Lhs, Op, Unary, Value};
use flux_ir::{AllReduce, Element, Ranks, Schedule, Shape};

const SHAPES: [Shape; 3] =
    [Shape { m: 2, n: 5, k: 3 }, Shape { m: 21, n: 18, k: 7 }, Shape { m: 40, n: 9, k: 16 }];

fn binary(k: &mut Builder, op: Binary, x: Value, y: Value) -> Value {
    k.op(Op::Binary { op, x, y })
}

/// `c = s · sum(a · bᵀ) + bias + scale + r` and `c2 = max(sum, t)`, in a rank's own rows.
#[test]
fn a_scattered_sum_reads_shards_vectors_and_scalars() {
    let mut k = Builder::new("scatter");
    let a = k.tensor("a", Distribution::Global, Element::Bf16);
    let b = k.tensor("b", Distribution::Global, Element::Bf16);
    let bias = k.tensor("bias", Distribution::Global, Element::F32);
    let scale = k.tensor("scale", Distribution::Sharded, Element::F16);
    let r = k.tensor("r", Distribution::Sharded, Element::Bf16);
    let s = k.scalar("s");
    let t = k.scalar("t");
    let c = k.tensor("c", Distribution::Scattered, Element::F32);
    let c2 = k.tensor("c2", Distribution::Scattered, Element::F32);
    let x = k.op(Op::Gemm { a: Lhs::Param(a), b, transposed: true });
    let sum = k.op(Op::Reduce { output: c, x });
    let s = k.op(Op::Scalar { param: s });
    let y = binary(&mut k, Binary::Mul, sum, s);
    let bias = k.op(Op::Cols { tensor: bias });
    let y = binary(&mut k, Binary::Add, y, bias);
    let scale = k.op(Op::Rows { tensor: scale });
    let y = binary(&mut k, Binary::Add, y, scale);
    let r = k.op(Op::Load { tensor: r });
    let y = binary(&mut k, Binary::Add, y, r);
    k.op(Op::Store { output: c, x: y });
    let t = k.op(Op::Scalar { param: t });
    let z = binary(&mut k, Binary::Max, sum, t);
    k.op(Op::Store { output: c2, x: z });
    let kernel = k.finish(c);

    for world in [1, 2, 3, 4, 8] {
        for shape in SHAPES {
            let schedule = Schedule::host().tile(8, 8, 16);
            let case = Case::new(&kernel, &schedule, shape, world, 2);
            let [m, n, k] = [shape.m, shape.n, shape.k].map(|extent| extent as usize);
            let a = |rank: u32| Matrix::integers(m, k, 2, u64::from(rank) + 10);
            let b = |rank: u32| Matrix::integers(n, k, 2, u64::from(rank) + 90);
            let sum = (0..world)
                .map(|rank| a(rank).times(&b(rank), true))
                .reduce(|sum, product| sum.plus(&product))
                .expect("at least one rank");
            let bias = Matrix::integers(1, n, 9, 4);
            let scale = Matrix::integers(m, 1, 9, 5);
            let r = Matrix::integers(m, n, 9, 6);
            let (s, t) = (-3.0, 2.0);
            let c = Matrix::from_fn(m, n, |i, j| {
                s * sum.at(i, j) + bias.at(0, j) + scale.at(i, 0) + r.at(i, j)
            });
            let c2 = Matrix::from_fn(m, n, |i, j| sum.at(i, j).max(t));
            let tensors = |rank| {
                let ranks = Ranks { rank, world };
                let poison = vec![f32::NAN; c.shard(ranks).data.len()];
                Tensors {
                    inputs: vec![
                        ("a", Tensor::new(Element::Bf16, &a(rank).data)),
                        ("b", Tensor::new(Element::Bf16, &b(rank).data)),
                        ("bias", Tensor::new(Element::F32, &bias.data)),
                        ("scale", Tensor::new(Element::F16, &scale.shard(ranks).data)),
                        ("r", Tensor::new(Element::Bf16, &r.shard(ranks).data)),
                    ],
                    outputs: vec![("c", Tensor::F32(poison.clone())), ("c2", Tensor::F32(poison))],
                    scalars: vec![s as f32, t as f32],
                }
            };
            let mut launches: Vec<Vec<_>> =
                (0..3).map(|_| (0..world).map(tensors).collect()).collect();
            case.run(&mut launches);
            for ranks in &launches {
                for (rank, tensors) in (0..).zip(ranks) {
                    let ranks = Ranks { rank, world };
                    let [first, second] = [0, 1].map(|i| tensors.outputs[i].1.values());
                    assert_eq!(first, c.shard(ranks).data, "c at {shape}, {ranks:?}");
                    assert_eq!(second, c2.shard(ranks).data, "c2 at {shape}, {ranks:?}");
                }
            }
        }
    }
}

/// `c = sum(a · bᵀ) · s + bias + scale + r` and `c2 = max(sum, t)`, whole on every rank.
#[test]
fn a_reduced_sum_reads_matrices_vectors_and_scalars_that_ranks_share() {
    let mut k = Builder::new("reduce");
    let [a, b] = ["a", "b"].map(|name| k.tensor(name, Distribution::Global, Element::Bf16));
    let bias = k.tensor("bias", Distribution::Global, Element::F32);
    let scale = k.tensor("scale", Distribution::Global, Element::F16);
    let r = k.tensor("r", Distribution::Global, Element::Bf16);
    let [s, t] = ["s", "t"].map(|name| k.scalar(name));
    let [c, c2] = ["c", "c2"].map(|name| k.tensor(name, Distribution::Reduced, Element::F32));
    let x = k.op(Op::Gemm { a: Lhs::Param(a), b, transposed: true });
    let sum = k.op(Op::Reduce { output: c, x });
    let s = k.op(Op::Scalar { param: s });
    let y = binary(&mut k, Binary::Mul, sum, s);
    let bias = k.op(Op::Cols { tensor: bias });
    let y = binary(&mut k, Binary::Add, y, bias);
    let scale = k.op(Op::Rows { tensor: scale });
    let y = binary(&mut k, Binary::Add, y, scale);
    let r = k.op(Op::Load { tensor: r });
    let y = binary(&mut k, Binary::Add, y, r);
    k.op(Op::Store { output: c, x: y });
    let t = k.op(Op::Scalar { param: t });
    let z = binary(&mut k, Binary::Max, sum, t);
    k.op(Op::Store { output: c2, x: z });
    let kernel = k.finish(c);
    for (world, algorithm) in
        [1, 2, 3, 4, 8].into_iter().flat_map(|w| AllReduce::ALL.map(|a| (w, a)))
    {
        for shape in SHAPES {
            let schedule = Schedule::host().tile(8, 8, 16).all_reduce(algorithm);
            let case = Case::new(&kernel, &schedule, shape, world, 2);
            let [m, n, k] = [shape.m, shape.n, shape.k].map(|extent| extent as usize);
            let a = |rank: u32| Matrix::integers(m, k, 2, u64::from(rank) + 10);
            let b = |rank: u32| Matrix::integers(n, k, 2, u64::from(rank) + 90);
            let products = (0..world).map(|rank| a(rank).times(&b(rank), true));
            let sum = products.reduce(|sum, product| sum.plus(&product)).expect("a rank");
            let bias = Matrix::integers(1, n, 9, 4);
            let scale = Matrix::integers(m, 1, 9, 5);
            let r = Matrix::integers(m, n, 9, 6);
            let (s, t) = (-3.0, 2.0);
            let c = Matrix::from_fn(m, n, |i, j| {
                s * sum.at(i, j) + bias.at(0, j) + scale.at(i, 0) + r.at(i, j)
            });
            let c2 = Matrix::from_fn(m, n, |i, j| sum.at(i, j).max(t));
            let poison = || Tensor::F32(vec![f32::NAN; m * n]);
            let tensors = |rank| Tensors {
                inputs: vec![
                    ("a", Tensor::new(Element::Bf16, &a(rank).data)),
                    ("b", Tensor::new(Element::Bf16, &b(rank).data)),
                    ("bias", Tensor::new(Element::F32, &bias.data)),
                    ("scale", Tensor::new(Element::F16, &scale.data)),
                    ("r", Tensor::new(Element::Bf16, &r.data)),
                ],
                outputs: vec![("c", poison()), ("c2", poison())],
                scalars: vec![s as f32, t as f32],
            };
            let mut launches: Vec<Vec<_>> =
                (0..3).map(|_| (0..world).map(tensors).collect()).collect();
            case.run(&mut launches);
            for (rank, tensors) in launches.iter().flat_map(|ranks| ranks.iter().enumerate()) {
                let [first, second] = [0, 1].map(|i| tensors.outputs[i].1.values());
                assert_eq!(first, c.data, "c at {shape}, {algorithm:?}, rank {rank} of {world}");
                assert_eq!(second, c2.data, "c2 at {shape}, {algorithm:?}, rank {rank} of {world}");
            }
        }
    }
}

/// Two products that share a gathered operand, joined, and written twice: as they are in f32,
/// and through relu in bf16.
#[test]
fn two_products_share_a_gathered_operand() {
    let mut k = Builder::new("gated");
    let x = k.tensor("x", Distribution::Gathered, Element::F16);
    let w1 = k.tensor("w1", Distribution::Global, Element::F16);
    let w3 = k.tensor("w3", Distribution::Global, Element::F16);
    let gate = k.tensor("gate", Distribution::Global, Element::F32);
    let c = k.tensor("c", Distribution::Global, Element::F32);
    let c2 = k.tensor("c2", Distribution::Global, Element::Bf16);
    let ready = k.op(Op::Wait { tensor: x });
    let first = k.op(Op::Gemm { a: Lhs::Ready(ready), b: w1, transposed: true });
    let second = k.op(Op::Gemm { a: Lhs::Ready(ready), b: w3, transposed: true });
    let joined = binary(&mut k, Binary::Mul, first, second);
    let gate = k.op(Op::Rows { tensor: gate });
    let value = binary(&mut k, Binary::Sub, joined, gate);
    k.op(Op::Store { output: c, x: value });
    let positive = k.op(Op::Unary { op: Unary::Relu, x: first });
    k.op(Op::Store { output: c2, x: positive });
    let kernel = k.finish(c);

    for world in [1, 2, 3, 4, 8] {
        for shape in SHAPES {
            let schedule = Schedule::host().tile(8, 8, 16).chunk_rows(3);
            let case = Case::new(&kernel, &schedule, shape, world, 3);
            let [m, n, k] = [shape.m, shape.n, shape.k].map(|extent| extent as usize);
            let x = Matrix::integers(m, k, 2, 1);
            let gate = Matrix::integers(m, 1, 9, 2);
            let weight =
                |which: u64, rank: u32| Matrix::integers(n, k, 2, which << 8 | u64::from(rank));
            let tensors = |rank| Tensors {
                inputs: vec![
                    ("x", Tensor::new(Element::F16, &x.shard(Ranks { rank, world }).data)),
                    ("w1", Tensor::new(Element::F16, &weight(1, rank).data)),
                    ("w3", Tensor::new(Element::F16, &weight(3, rank).data)),
                    ("gate", Tensor::new(Element::F32, &gate.data)),
                ],
                outputs: vec![
                    ("c", Tensor::F32(vec![f32::NAN; m * n])),
                    ("c2", Tensor::new(Element::Bf16, &vec![f64::NAN; m * n])),
                ],
                scalars: Vec::new(),
            };
            let mut launches: Vec<Vec<_>> =
                (0..3).map(|_| (0..world).map(tensors).collect()).collect();
            case.run(&mut launches);
            for ranks in &launches {
                for (rank, tensors) in (0..).zip(ranks) {
                    let first = x.times(&weight(1, rank), true);
                    let second = x.times(&weight(3, rank), true);
                    let value = |i, j| first.at(i, j) * second.at(i, j) - gate.at(i, 0);
                    let expected = Matrix::from_fn(m, n, value);
                    let positive = Matrix::from_fn(m, n, |i, j| first.at(i, j).max(0.0));
                    assert_eq!(tensors.outputs[0].1.values(), expected.data, "{shape} {world}");
                    assert_eq!(tensors.outputs[1].1.values(), positive.data, "{shape} {world}");
                }
            }
        }
    }
}

/// `c = gelu_tanh(silu(a · b) / (1 + exp(-tanh(a · b))) + r)`, to 1e-5 of values below 4.
#[test]
fn functions_nest() {
    let mut k = Builder::new("nested");
    let [a, b, r] = ["a", "b", "r"].map(|name| k.tensor(name, Distribution::Global, Element::F32));
    let c = k.tensor("c", Distribution::Global, Element::F32);
    let x = k.op(Op::Gemm { a: Lhs::Param(a), b, transposed: false });
    let tanh = k.op(Op::Unary { op: Unary::Tanh, x });
    let minus = k.op(Op::Unary { op: Unary::Neg, x: tanh });
    let exp = k.op(Op::Unary { op: Unary::Exp, x: minus });
    let one = k.op(Op::Const(1.0));
    let below = binary(&mut k, Binary::Add, one, exp);
    let silu = k.op(Op::Unary { op: Unary::Silu, x });
    let quotient = binary(&mut k, Binary::Div, silu, below);
    let r = k.op(Op::Load { tensor: r });
    let sum = binary(&mut k, Binary::Add, quotient, r);
    let value = k.op(Op::Unary { op: Unary::GeluTanh, x: sum });
    k.op(Op::Store { output: c, x: value });
    let kernel = k.finish(c);

    let shape = Shape { m: 19, n: 23, k: 11 };
    let case = Case::new(&kernel, &Schedule::host().tile(8, 16, 16), shape, 1, 3);
    let a = Matrix::integers(19, 11, 1, 1);
    let b = Matrix::integers(11, 23, 1, 2);
    let r = Matrix::integers(19, 23, 2, 3);
    let mut tensors = Tensors {
        inputs: vec![
            ("a", Tensor::new(Element::F32, &a.data)),
            ("b", Tensor::new(Element::F32, &b.data)),
            ("r", Tensor::new(Element::F32, &r.data)),
        ],
        outputs: vec![("c", Tensor::F32(vec![f32::NAN; 19 * 23]))],
        scalars: Vec::new(),
    };
    case.rank(0, 1, &mut tensors, common::LIMIT).expect("a launch");
    let product = a.times(&b, false);
    for (index, found) in tensors.outputs[0].1.values().into_iter().enumerate() {
        let x = product.data[index];
        let below = 1.0 + (-x.tanh()).exp();
        let x = x / (1.0 + (-x).exp()) / below + r.data[index];
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        let exact = 0.5 * x * (1.0 + inner.tanh());
        assert!((found - exact).abs() < 1e-5, "element {index}: {exact}, found {found}");
    }
}
