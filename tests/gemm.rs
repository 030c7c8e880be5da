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
        ($kernel:ident, $type:ty, $transposed:expr) => {
            for schedule in (flux::kernels::$kernel::definition().schedules)() {
                let name = format!("{} ({schedule})", stringify!($kernel));
                let load: Load<$type> = |rank, schedule| {
                    let kernel = flux::kernels::$kernel::load_with(rank, schedule)?;
                    Ok(Box::new(move |a, b, c| kernel.launch(a, b, c)))
                };
                let test = move || exact(&schedule, load, $transposed);
                trials.push(Trial::test(name, test).with_ignored_flag(missing.is_some()));
            }
        };
    }
    each_schedule!(gemm_bf16, bf16, true);
    each_schedule!(gemm_f16, f16, true);
    each_schedule!(gemm_nn_bf16, bf16, false);
    // Every case wants the whole device.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// `transposed`: whether the kernel takes `b` as `[n, k]`.
fn exact<T: Number>(schedule: &Schedule, load: Load<T>, transposed: bool) -> Result<(), Failed> {
    let world = World::virtual_ranks(0, 1)?;
    let rank = &world.ranks()[0];
    for ctas in CTAS {
        let schedule = Schedule { ctas, ..schedule.clone() };
        let kernel = load(rank, &schedule)?;
        for [m, n, k] in SHAPES {
            let (a, b) = (Draw::Integers.rows(1, 0..m, k), Draw::Integers.rows(2, 0..n, k));
            let expected = product::<T>(&a, &b, k, &(0..m).collect::<Vec<_>>());
            let a = rank.tensor(m, k, &a)?;
            let b = match transposed {
                true => rank.tensor(n, k, &b)?,
                false => {
                    let turned: Vec<T> = (0..k * n).map(|at| b[at % n * k + at / n]).collect();
                    rank.tensor(k, n, &turned)?
                }
            };
            let poison = vec![T::from_f32(f32::NAN); m * n];
            let mut c = rank.tensor(m, n, &poison)?;
            // Twice: nothing is left over from the launch before.
            for _ in 0..2 {
                c.write(&poison)?;
                kernel(&a, &b, &mut c)?;
                let found = c.to_vec()?;
                let wrong = found.iter().zip(&expected).position(|(found, &expected)| {
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
