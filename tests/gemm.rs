//! Every schedule of the shipped GEMMs on a real GPU: small integers, equal to the last bit.
//!
//! Without a device every case is counted as ignored and the reason is printed.

#[path = "support/data.rs"]
#[allow(dead_code, reason = "another test binary uses the rest")]
mod data;

use data::{Draw, Number, product};
use flux::prelude::*;
use flux::{Error, Schedule};
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::sync::LazyLock;

#[expect(unreachable_pub, reason = "kernels stand as they would in a library")]
#[flux::module]
mod kernels {
    use flux::prelude::*;

    #[kernel]
    #[schedule(sm_90a, tile = (256, 128, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (64, 64, 64), stages = 8, consumers = single, split_k = 2)]
    pub fn tn_f16(a: &Global<f16>, b: &Global<f16>, c: &mut Global<f16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a.t(), b, tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong, balance = stream_k)]
    pub fn tt_bf16(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a.t(), b.t(), tile));
        }
    }
}

/// Rows, columns and reduction of the output.
type Dims = [usize; 3];

/// Smaller than any tile, ragged in each dimension, one k-step and fewer, rows of no multiple of
/// 16 bytes, several tiles a CTA.
const SHAPES: [Dims; 15] = [
    [1, 8, 8],
    [1, 264, 72],
    [16, 520, 1000],
    [64, 256, 64],
    [65, 130, 136],
    [100, 1208, 520],
    [128, 2056, 192],
    [129, 257, 264],
    [200, 520, 1000],
    [256, 768, 512],
    [300, 333, 77],
    [512, 1032, 320],
    [700, 1200, 2000],
    [1000, 264, 1000],
    [1023, 2000, 200],
];

/// Grids smaller than a device, so that each CTA has several tiles.
const CTAS: [Option<u32>; 3] = [None, Some(3), Some(7)];

type Launch<T> = Box<dyn Fn(&Tensor<T>, &Tensor<T>, &mut Tensor<T>) -> Result<(), Error>>;
type Load<T> = fn(&Rank, &Schedule) -> Result<Launch<T>, Error>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let missing = World::virtual_ranks(0, 1).err();
    if let Some(reason) = &missing {
        println!("skipped: no CUDA device ({reason})");
    }
    let mut trials = Vec::new();
    macro_rules! each_schedule {
        ($kernel:path, $type:ty, $problems:ident, $transposed:expr) => {{
            use $kernel as kernel;
            for schedule in (kernel::definition().schedules)() {
                let name = format!("{} ({schedule})", stringify!($kernel));
                let load: Load<$type> = |rank, schedule| {
                    let kernel = kernel::load_with(rank, schedule)?;
                    Ok(Box::new(move |a, b, c| kernel.launch(a, b, c)))
                };
                let test = move || exact(&$problems, &schedule, load, $transposed);
                trials.push(Trial::test(name, test).with_ignored_flag(missing.is_some()));
            }
        }};
    }
    each_schedule!(flux::kernels::gemm_bf16, bf16, BF16, [false, true]);
    each_schedule!(flux::kernels::gemm_f16, f16, F16, [false, true]);
    each_schedule!(flux::kernels::gemm_nn_bf16, bf16, BF16, [false, false]);
    each_schedule!(flux::kernels::gemm_tn_bf16, bf16, BF16, [true, false]);
    each_schedule!(kernels::tn_f16, f16, F16, [true, false]);
    each_schedule!(kernels::tt_bf16, bf16, BF16, [true, true]);
    // Every case wants the whole device.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Operands of small integers, both with k as their columns, and their product.
struct Problem<T> {
    dims: Dims,
    a: Vec<T>,
    b: Vec<T>,
    expected: Vec<f64>,
}

/// One for each shape. They are made once: on the host that takes longer than all launches.
fn problems<T: Number>() -> Vec<Problem<T>> {
    let problem = |dims: Dims| {
        let [m, n, k] = dims;
        let (a, b) = (Draw::Integers.rows(1, 0..m, k), Draw::Integers.rows(2, 0..n, k));
        let expected = product::<T>(&a, &b, k, &(0..m).collect::<Vec<_>>());
        Problem { dims, a, b, expected }
    };
    SHAPES.map(problem).into()
}

static BF16: LazyLock<Vec<Problem<bf16>>> = LazyLock::new(problems);
static F16: LazyLock<Vec<Problem<f16>>> = LazyLock::new(problems);

/// `transposed`: whether the kernel takes `a` as `[k, m]`, and `b` as `[n, k]`.
fn exact<T: Number>(
    problems: &[Problem<T>],
    schedule: &Schedule,
    load: Load<T>,
    transposed: [bool; 2],
) -> Result<(), Failed> {
    let world = World::virtual_ranks(0, 1)?;
    let rank = &world.ranks()[0];
    for ctas in CTAS {
        let schedule = Schedule { ctas, ..schedule.clone() };
        let kernel = load(rank, &schedule)?;
        for Problem { dims: [m, n, k], a, b, expected } in problems {
            let [m, n, k] = [*m, *n, *k];
            let turned = |x: &[T], rows: usize| -> Result<Tensor<T>, Error> {
                let turned: Vec<T> = (0..k * rows).map(|at| x[at % rows * k + at / rows]).collect();
                rank.tensor(k, rows, &turned)
            };
            let a = if transposed[0] { turned(a, m)? } else { rank.tensor(m, k, a)? };
            let b = if transposed[1] { rank.tensor(n, k, b)? } else { turned(b, n)? };
            let poison = vec![T::from_f32(f32::NAN); m * n];
            let mut c = rank.tensor(m, n, &poison)?;
            // Twice: nothing is left over from the launch before.
            for _ in 0..2 {
                c.write(&poison)?;
                kernel(&a, &b, &mut c)?;
                let found = c.to_vec()?;
                let wrong = found.iter().zip(expected).position(|(found, &expected)| {
                    found.to_f32() != T::from_f32(expected as f32).to_f32()
                });
                if let Some(at) = wrong {
                    let (row, col) = (at / n, at % n);
                    let (found, expected) = (found[at].to_f32(), expected[at]);
                    return Err(format!(
                        "{m}x{n}x{k}, ctas {ctas:?}: ({row}, {col}) is {found}, expected {expected}"
                    )
                    .into());
                }
            }
        }
    }
    Ok(())
}
