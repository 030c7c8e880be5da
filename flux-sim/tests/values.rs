//! Every op of an epilogue against a scalar reference in f64.

mod common;

use common::{Builder, Case, Matrix, Tensor, Tensors};
use flux_ir::kernel::{Binary, Distribution, Lhs, Op, Unary, Value};
use flux_ir::{Element, Kernel, Schedule, Shape};

/// Numbers of every size and sign that f32 functions are used with.
fn numbers() -> Vec<f64> {
    let mut all: Vec<f64> = (-400..=400).map(|i| f64::from(i) * 0.0375).collect();
    for exponent in -30..=6 {
        let x = 1.37 * 2f64.powi(exponent);
        all.extend([x, -x]);
    }
    all.extend([0.0, 1.0, -1.0, 80.0, -80.0]);
    all.into_iter().map(|x| f64::from(x as f32)).collect()
}

/// A kernel that stores what `epilogue` makes of `x`, the product, and `y`, a matrix.
fn kernel(epilogue: impl Fn(&mut Builder, Value, Value) -> Value) -> Kernel {
    let mut k = Builder::new("elementwise");
    let [a, b] = ["a", "b"].map(|name| k.tensor(name, Distribution::Global, Element::F32));
    let r = k.tensor("r", Distribution::Global, Element::F32);
    let c = k.tensor("c", Distribution::Global, Element::F32);
    let x = k.op(Op::Gemm { a: Lhs::Param(a), b, transposed: true });
    let y = k.op(Op::Load { tensor: r });
    let x = epilogue(&mut k, x, y);
    k.op(Op::Store { output: c, x });
    k.finish(c)
}

/// Runs the kernel on all pairs of [`numbers`] and a few others: (x, y, result).
fn table(kernel: &Kernel) -> Vec<(f64, f64, f64)> {
    let xs = numbers();
    let ys: Vec<f64> = xs.iter().copied().step_by(41).collect();
    let (m, n) = (xs.len(), ys.len());
    let shape = Shape { m: m as u32, n: n as u32, k: 1 };
    let case = Case::new(kernel, &Schedule::host().tile(64, 8, 16), shape, 1, 2);
    let loaded = Matrix::from_fn(m, n, |_, j| ys[j]);
    let mut tensors = Tensors {
        inputs: vec![
            ("a", Tensor::new(Element::F32, &xs)),
            ("b", Tensor::new(Element::F32, &vec![1.0; n])),
            ("r", Tensor::new(Element::F32, &loaded.data)),
        ],
        outputs: vec![("c", Tensor::F32(vec![f32::NAN; m * n]))],
        scalars: Vec::new(),
    };
    case.rank(0, 1, &mut tensors, common::LIMIT).expect("a launch");
    let results = tensors.outputs[0].1.values();
    results.into_iter().enumerate().map(|(i, c)| (xs[i / n], ys[i % n], c)).collect()
}

#[test]
fn unary_functions_are_within_four_roundings_of_the_exact_value() {
    for op in Unary::ALL {
        let exact = |x: f64| match op {
            Unary::Neg => -x,
            Unary::Relu => x.max(0.0),
            Unary::Gelu => 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())),
            Unary::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Unary::Silu => x / (1.0 + (-x).exp()),
            Unary::Exp => x.exp(),
            Unary::Tanh => x.tanh(),
        };
        let table = table(&kernel(|k, x, y| {
            // The matrix takes part, so that it is an input with a use.
            let zero = k.op(Op::Const(0.0));
            let nothing = k.op(Op::Binary { op: Binary::Mul, x: y, y: zero });
            let value = k.op(Op::Unary { op, x });
            k.op(Op::Binary { op: Binary::Add, x: value, y: nothing })
        }));
        for (x, _, found) in table {
            let exact = exact(x);
            // `1 + erf` and `1 + tanh` lose what cancels: there the error is one of x, not of the
            // result. The argument of `exp` is rounded where it is large.
            let scale = match op {
                Unary::Gelu | Unary::GeluTanh => exact.abs().max(x.abs()),
                Unary::Silu | Unary::Exp => exact.abs() * x.abs().max(1.0),
                Unary::Neg | Unary::Relu | Unary::Tanh => exact.abs(),
            };
            let bound = 4.0 * f64::from(f32::EPSILON) * scale;
            assert!((found - exact).abs() <= bound, "{}({x}) = {exact}, found {found}", op.name());
        }
    }
}

#[test]
fn binary_functions_are_rounded_once() {
    for op in Binary::ALL {
        for (x, y, found) in table(&kernel(|k, x, y| k.op(Op::Binary { op, x, y }))) {
            let exact = match op {
                Binary::Add => x + y,
                Binary::Sub => x - y,
                Binary::Mul => x * y,
                Binary::Div => x / y,
                Binary::Max => x.max(y),
                Binary::Min => x.min(y),
            };
            let same = found == f64::from(exact as f32) || (found.is_nan() && exact.is_nan());
            assert!(same, "{}({x}, {y}) = {exact}, found {found}", op.name());
        }
    }
}

#[test]
fn maximum_and_minimum_pass_over_a_nan() {
    for op in [Binary::Max, Binary::Min] {
        let table = table(&kernel(|k, x, y| {
            let zero = k.op(Op::Const(0.0));
            let nan = k.op(Op::Binary { op: Binary::Div, x: zero, y: zero });
            let nothing = k.op(Op::Binary { op: Binary::Mul, x: y, y: zero });
            let x = k.op(Op::Binary { op: Binary::Add, x, y: nothing });
            k.op(Op::Binary { op, x: nan, y: x })
        }));
        assert!(table.into_iter().all(|(x, _, found)| x == found), "{}", op.name());
    }
}

/// `x` with `digits` significant binary digits, to nearest even, down to `2^least`.
fn rounded(x: f64, digits: i32, least: i32) -> f64 {
    if x == 0.0 {
        return x;
    }
    let exponent = (x.abs().log2().floor() as i32).max(least);
    let unit = 2f64.powi(exponent - digits + 1);
    (x / unit).round_ties_even() * unit
}

#[test]
fn casts_and_stores_round_to_nearest_even() {
    for (element, digits, least) in [(Element::Bf16, 8, -126), (Element::F16, 11, -14)] {
        for (x, y, found) in table(&kernel(|k, x, y| {
            // Products of such numbers have digits to lose.
            let x = k.op(Op::Binary { op: Binary::Mul, x, y });
            k.op(Op::Cast { x, to: element })
        })) {
            let product = f64::from((x * y) as f32);
            assert_eq!(found, rounded(product, digits, least), "{element} of {product}");
        }
    }
    // Halfway cases: down to even, up to even.
    assert_eq!(rounded(1.0 + 2f64.powi(-8), 8, -126), 1.0);
    assert_eq!(rounded(1.0 + 3.0 * 2f64.powi(-8), 8, -126), 1.0 + 2f64.powi(-6));
    let mut k = Builder::new("rounds");
    let [a, b] = ["a", "b"].map(|name| k.tensor(name, Distribution::Global, Element::F32));
    let c = k.tensor("c", Distribution::Global, Element::Bf16);
    let x = k.op(Op::Gemm { a: Lhs::Param(a), b, transposed: true });
    k.op(Op::Store { output: c, x });
    let kernel = k.finish(c);
    let xs: Vec<f64> = (0..64).map(|i| 1.0 + f64::from(i) * 2f64.powi(-9)).collect();
    let shape = Shape { m: 64, n: 1, k: 1 };
    let case = Case::new(&kernel, &Schedule::host(), shape, 1, 1);
    let mut tensors = Tensors {
        inputs: vec![("a", Tensor::new(Element::F32, &xs)), ("b", Tensor::F32(vec![1.0]))],
        outputs: vec![("c", Tensor::new(Element::Bf16, &[f64::NAN; 64]))],
        scalars: Vec::new(),
    };
    case.rank(0, 1, &mut tensors, common::LIMIT).expect("a launch");
    let expected: Vec<_> = xs.iter().map(|&x| rounded(x, 8, -126)).collect();
    assert_eq!(tensors.outputs[0].1.values(), expected);
}
