//! The host executor against one call of the GEMM crate on the whole problem, on the same number
//! of threads, at 2048 × 2048 × 2048: f32, and bf16 whose operands are converted tile by tile.
//!
//! `cargo bench -p flux-sim --bench host_gemm -- [threads] [rounds]`

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Case, Form, LIMIT, Matrix, Tensor, Tensors};
use flux_ir::{Element, Schedule, Shape};
use std::time::{Duration, Instant};

const SIZE: u32 = 2048;

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = numbers.first().copied().unwrap_or(cores).max(1);
    let rounds = numbers.get(1).copied().unwrap_or(7).max(1);
    println!("{SIZE}^3, {threads} threads, medians of {rounds} interleaved rounds, GFLOP/s");
    println!("element  executor  one gemm call in f32  ratio");
    for element in [Element::F32, Element::Bf16] {
        let [executor, crate_call] = measure(element, threads, rounds);
        let ratio = executor / crate_call;
        println!("{:7}  {executor:8.1}  {crate_call:20.1}  {ratio:5.3}", element.name());
    }
}

/// Speed of the executor on operands of `element`, and of one call of the GEMM crate in f32.
fn measure(element: Element, threads: usize, rounds: usize) -> [f64; 2] {
    let shape = Shape { m: SIZE, n: SIZE, k: SIZE };
    let size = SIZE as usize;
    let kernel = Form::Plain.kernel(element, true);
    let case = Case::new(&kernel, &Schedule::host(), shape, 1, threads as u32);
    let [a, b] = [1, 2].map(|seed| Matrix::integers(size, size, 3, seed).data);
    let mut tensors = Tensors {
        inputs: vec![("a", Tensor::new(element, &a)), ("b", Tensor::new(element, &b))],
        outputs: vec![("c", Tensor::new(element, &vec![f64::NAN; size * size]))],
        scalars: Vec::new(),
    };
    let [a, b] = [a, b].map(|data| data.into_iter().map(|x| x as f32).collect::<Vec<_>>());
    let mut whole = vec![f32::NAN; size * size];

    let mut times: [Vec<Duration>; 2] = Default::default();
    for round in 0..=rounds {
        let start = Instant::now();
        case.rank(0, round as u32 + 1, &mut tensors, LIMIT).expect("a launch");
        let executor = start.elapsed();
        let start = Instant::now();
        assert!(flux_sim::baseline_product(&mut whole, &a, &b, size, threads));
        let crate_call = start.elapsed();
        // The first round warms caches and thread pools up.
        if round > 0 {
            times[0].push(executor);
            times[1].push(crate_call);
        }
    }
    let whole: Vec<f64> = whole.into_iter().map(f64::from).collect();
    let expected = Tensor::new(element, &whole);
    assert_eq!(tensors.outputs[0].1, expected, "integers are exact in any order");

    let flop = 2.0 * f64::from(SIZE).powi(3);
    times.map(|mut times| {
        times.sort();
        flop / times[times.len() / 2].as_secs_f64() / 1e9
    })
}
