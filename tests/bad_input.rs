//! What a user can get wrong: each mistake is an error that says what was expected and found, on
//! every rank that it concerns, and nothing panics, hangs or returns wrong data.

#![expect(unreachable_pub, reason = "kernels stand as they would in a library")]

#[path = "support/data.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod data;

use data::{Draw, product};
use flux::kernels::{ag_gemm, ag_gemm_bias_gelu, gemm_bf16, gemm_rs};
use flux::prelude::*;
use flux::{Consumers, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[flux::module]
mod kernels {
    use flux::prelude::*;

    /// Every operand with the rows of the output is a shard.
    #[kernel]
    pub fn gather_and_scatter(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.add(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    pub fn scaled(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<f32>, alpha: f32) {
        for tile in c.tiles() {
            c.store(tile, alpha * gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    pub fn clamped(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<f32>) {
        for tile in c.tiles() {
            c.store(tile, relu(gemm(a, b.t(), tile)));
        }
    }
}

/// A kernel with the name of a shipped one.
#[flux::module]
mod namesake {
    use flux::prelude::*;

    #[kernel]
    pub fn gemm_bf16(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, -gemm(a, b.t(), tile));
        }
    }
}

const LIMIT: Duration = Duration::from_millis(300);

/// A world whose waits are short.
fn host(ranks: u32) -> World {
    World::host(ranks).expect("a world of a good size").with_limit(LIMIT)
}

/// What `program` gives on each rank, and how long the slowest took.
fn outcomes<T: Send>(
    world: &World,
    program: impl Fn(&Rank) -> Result<T, Error> + Sync,
) -> (Vec<Result<T, Error>>, Duration) {
    let start = Instant::now();
    let outcomes = world.run(|rank| Ok(program(rank))).expect("errors are values here");
    (outcomes, start.elapsed())
}

/// The error of each rank, where every rank has one.
fn errors<T: Send>(
    world: &World,
    program: impl Fn(&Rank) -> Result<T, Error> + Sync,
) -> Vec<Error> {
    let (outcomes, _) = outcomes(world, program);
    let errors = outcomes.into_iter().enumerate().map(|(rank, outcome)| match outcome {
        Ok(_) => panic!("expected an error of rank {rank}"),
        Err(error) => error,
    });
    errors.collect()
}

/// Asserts that every rank fails with this very sentence.
fn all_say<T: Send>(
    world: &World,
    sentence: &str,
    program: impl Fn(&Rank) -> Result<T, Error> + Sync,
) {
    for (rank, error) in errors(world, program).iter().enumerate() {
        assert_eq!(error.to_string(), sentence, "rank {rank}");
    }
}

/// What failed first, behind what is shared by all ranks.
fn cause(error: &Error) -> &Error {
    match error {
        Error::Together(shared) => cause(shared),
        other => other,
    }
}

/// `C = A · Bᵀ` of small integers on every rank, and what it has to be.
fn multiply(rank: &Rank, kernel: &gemm_bf16, [m, n, k]: [usize; 3]) -> Result<(), Error> {
    let (a, b) = (Draw::Integers.rows::<bf16>(1, 0..m, k), Draw::Integers.rows(2, 0..n, k));
    let mut c = rank.zeros(m, n)?;
    kernel.launch(&rank.tensor(m, k, &a)?, &rank.tensor(n, k, &b)?, &mut c)?;
    assert_eq!(as_f64(&c.to_vec()?), product(&a, &b, k, &(0..m).collect::<Vec<_>>()));
    Ok(())
}

fn as_f64(data: &[bf16]) -> Vec<f64> {
    data.iter().map(|x| x.to_f64()).collect()
}

/// Runs the shipped all-gather on tensors of zeros with these extents.
fn gather(rank: &Rank, kernel: &ag_gemm, [a, b, c]: [(usize, usize); 3]) -> Result<(), Error> {
    let (a, b) = (rank.zeros(a.0, a.1)?, rank.zeros(b.0, b.1)?);
    kernel.launch(&a, &b, &mut rank.zeros(c.0, c.1)?)
}

/// The same for the shipped reduce-scatter, with the extents of a whole problem.
fn scatter(rank: &Rank, kernel: &gemm_rs, [m, n, k]: [usize; 3]) -> Result<(), Error> {
    let (a, b) = (rank.zeros(m, k)?, rank.zeros(n, k)?);
    kernel.launch(&a, &b, &mut rank.zeros(rank.own_rows(m), n)?)
}

mod shapes {
    use super::*;

    #[test]
    fn two_parameters_that_disagree_are_named_with_both_numbers() {
        let launch = |a: (usize, usize), b: (usize, usize), c: (usize, usize), says: &str| {
            all_say(&host(1), says, |rank| {
                let (a, b) = (rank.zeros(a.0, a.1)?, rank.zeros(b.0, b.1)?);
                gemm_bf16::load(rank)?.launch(&a, &b, &mut rank.zeros(c.0, c.1)?)
            });
        };
        launch((2, 3), (4, 5), (2, 4), "`a` has k = 3 (rank 0), `b` has k = 5 (rank 0)");
        launch((2, 3), (4, 3), (9, 4), "`a` has m = 2 (rank 0), `c` has m = 9 (rank 0)");
        launch((2, 3), (4, 3), (2, 7), "`b` has n = 4 (rank 0), `c` has n = 7 (rank 0)");
        launch((2, 3), (3, 4), (2, 4), "`a` has k = 3 (rank 0), `b` has k = 4 (rank 0)");
        launch((0, 3), (4, 3), (1, 4), "`a` has m = 0 (rank 0), `c` has m = 1 (rank 0)");
    }

    #[test]
    fn ranks_that_disagree_are_named_with_both_numbers_on_every_rank() {
        let says = "`b` has n = 16 (rank 0), `b` has n = 24 (rank 2)";
        all_say(&host(4), says, |rank| {
            let n = if rank.index() == 2 { 24 } else { 16 };
            scatter(rank, &gemm_rs::load(rank)?, [8, n, 4])
        });
        let says = "`c` has m = 8 (rank 0), `c` has m = 9 (rank 1)";
        all_say(&host(2), says, |rank| {
            let m = 8 + rank.index() as usize;
            gather(rank, &ag_gemm::load(rank)?, [(4, 8), (16, 8), (m, 16)])
        });
    }

    #[test]
    fn a_shard_of_the_wrong_size_is_told_the_rows_that_its_rank_owns() {
        let says = "rank 1 of 2 owns 4 of 8 rows of `a`, found a tensor of 3";
        all_say(&host(2), says, |rank| {
            let rows = if rank.index() == 1 { 3 } else { 4 };
            gather(rank, &ag_gemm::load(rank)?, [(rows, 8), (16, 8), (8, 16)])
        });
        let says = "rank 2 of 3 owns 1 of 7 rows of `c`, found a tensor of 3";
        all_say(&host(3), says, |rank| {
            let (a, b) = (rank.zeros(7, 8)?, rank.zeros(16, 8)?);
            gemm_rs::load(rank)?.launch(&a, &b, &mut rank.zeros(3, 16)?)
        });
        let says = "rank 0 of 2 owns 3 of 5 rows of `a`, found a tensor of 2";
        all_say(&host(2), says, |rank| {
            let rows = 2 + rank.index() as usize;
            let (a, b) = (rank.zeros(rows, 8)?, rank.zeros(16, 8)?);
            let kernel = kernels::gather_and_scatter::load(rank)?;
            kernel.launch(&a, &b, &mut rank.zeros(rows, 16)?)
        });
    }

    #[test]
    fn a_matrix_is_no_vector_and_a_vector_has_a_length() {
        let launch = |bias: (usize, usize), says: &str| {
            all_say(&host(2), says, |rank| {
                let (a, b) = (rank.zeros(2, 8)?, rank.zeros(16, 8)?);
                let bias = rank.zeros(bias.0, bias.1)?;
                ag_gemm_bias_gelu::load(rank)?.launch(&a, &b, &bias, &mut rank.zeros(4, 16)?)
            });
        };
        launch((4, 4), "`bias` is read as a vector, found 4 x 4 on rank 0");
        launch((1, 15), "`b` has n = 16 (rank 0), `bias` has n = 15 (rank 0)");
        launch((17, 1), "`b` has n = 16 (rank 0), `bias` has n = 17 (rank 0)");
        launch((0, 16), "`b` has n = 16 (rank 0), `bias` has n = 0 (rank 0)");
    }

    #[test]
    fn a_vector_may_stand_or_lie() -> Result<(), Error> {
        host(2).run(|rank| {
            let kernel = ag_gemm_bias_gelu::load(rank)?;
            for (rows, cols) in [(16, 1), (1, 16)] {
                let (a, b) = (rank.zeros(2, 8)?, rank.zeros(16, 8)?);
                kernel.launch(&a, &b, &rank.zeros(rows, cols)?, &mut rank.zeros(4, 16)?)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    #[test]
    fn extents_over_31_bits_are_refused_by_name() {
        let says = "rows of `a` = 2147483648 is over the limit of 2147483647";
        all_say(&host(1), says, |rank| {
            let (a, b) = (rank.zeros(1 << 31, 0)?, rank.zeros(4, 0)?);
            gemm_bf16::load(rank)?.launch(&a, &b, &mut rank.zeros(0, 4)?)
        });
        let says = "columns of `c` = 9223372036854775808 is over the limit of 2147483647";
        all_say(&host(1), says, |rank| {
            let (a, b) = (rank.zeros(0, 8)?, rank.zeros(4, 8)?);
            gemm_bf16::load(rank)?.launch(&a, &b, &mut rank.zeros(0, 1 << 63)?)
        });
    }

    #[test]
    fn extents_over_31_bits_of_all_ranks_together_are_refused() {
        all_say(&host(2), "m = 2147483648 is over the limit of 2147483647", |rank| {
            let (a, b) = (rank.zeros(1 << 30, 0)?, rank.zeros(0, 0)?);
            let kernel = kernels::gather_and_scatter::load(rank)?;
            kernel.launch(&a, &b, &mut rank.zeros(1 << 30, 0)?)
        });
    }
}

mod data_and_places {
    use super::*;

    #[test]
    fn data_of_another_length_is_refused_and_changes_nothing() {
        all_say(&host(1), "a tensor of 3 x 5 holds 15 elements, found 14", |rank| {
            rank.tensor(3, 5, &[0.0_f32; 14])
        });
        all_say(&host(1), "a tensor of 2 x 2 holds 4 elements, found 5", |rank| {
            let mut tensor = rank.tensor(2, 2, &[7.0_f32; 4])?;
            let written = tensor.write(&[0.0; 5]);
            assert_eq!(tensor.to_vec()?, [7.0; 4]);
            written
        });
    }

    #[test]
    fn a_tensor_beyond_memory_is_an_error() {
        let says =
            "a tensor of 18446744073709551615 x 2 holds 36893488147419103230 elements, found 0";
        all_say(&host(1), says, |rank| rank.tensor::<f32>(usize::MAX, 2, &[]));
        for (rows, cols) in [(usize::MAX, 2), (usize::MAX / 2, 1), (1 << 40, 1 << 16)] {
            let says = format!(
                "no memory on the host for a tensor of {rows} x {cols} elements of 4 bytes"
            );
            all_say(&host(1), &says, |rank| rank.zeros::<f32>(rows, cols));
        }
    }

    #[test]
    fn rows_of_any_matrix_can_be_shared_out() -> Result<(), Error> {
        let parts = host(3).run(|rank| Ok([0, 1, 2, 7, usize::MAX].map(|m| rank.own_range(m))))?;
        for (index, m) in [0, 1, 2, 7, usize::MAX].into_iter().enumerate() {
            assert_eq!(parts.iter().map(|part| part[index].len()).sum::<usize>(), m);
            assert_eq!(parts[2][index].end, m);
        }
        Ok(())
    }

    #[test]
    fn a_rank_of_the_host_has_no_stream_and_no_device() -> Result<(), Error> {
        host(1).run(|rank| {
            assert!(rank.stream().is_none() && rank.device().is_none());
            assert!(rank.zeros::<f32>(1, 1)?.buffer().is_none());
            rank.synchronize()
        })?;
        Ok(())
    }

    #[test]
    fn not_a_number_passes_through_and_stays_in_its_rows() -> Result<(), Error> {
        let (m, n, k) = (5, 6, 7);
        host(1).run(|rank| {
            let mut a = vec![bf16::ONE; m * k];
            a[2 * k + 3] = bf16::NAN;
            a[4 * k] = bf16::INFINITY;
            let (a, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &vec![bf16::ONE; n * k])?);
            let mut c = rank.tensor(m, n, &vec![9.0; m * n])?;
            let plain = kernels::scaled::load(rank)?;
            plain.launch(&a, &b, &mut c, 1.0)?;
            check_rows(&c.to_vec()?, n, f32::is_nan);
            // The larger of a NaN and 0 is 0, as documented.
            kernels::clamped::load(rank)?.launch(&a, &b, &mut c)?;
            check_rows(&c.to_vec()?, n, |x| x == 0.0);
            plain.launch(&a, &b, &mut c, f32::NAN)?;
            assert!(c.to_vec()?.iter().all(|x| x.is_nan()), "a scalar that is not a number");
            Ok(())
        })?;
        Ok(())
    }

    /// Row 2 is as `special` says, row 4 infinite, all others are 7.
    fn check_rows(values: &[f32], cols: usize, special: impl Fn(f32) -> bool) {
        for (row, values) in values.chunks(cols).enumerate() {
            let fits = |x: f32| match row {
                2 => special(x),
                4 => x == f32::INFINITY,
                _ => x == 7.0,
            };
            assert!(values.iter().all(|&x| fits(x)), "row {row}: {values:?}");
        }
    }
}

mod empty_and_small {
    use super::*;

    #[test]
    fn an_output_without_elements_is_done_at_once() -> Result<(), Error> {
        host(3).run(|rank| {
            let (up, down) = (ag_gemm::load(rank)?, gemm_rs::load(rank)?);
            for _ in 0..2 {
                gather(rank, &up, [(0, 8), (16, 8), (0, 16)])?;
                gather(rank, &up, [(2, 8), (0, 8), (6, 0)])?;
                scatter(rank, &down, [0, 16, 8])?;
                scatter(rank, &down, [6, 0, 8])?;
                scatter(rank, &down, [0, 0, 0])?;
            }
            Ok(())
        })?;
        Ok(())
    }

    #[test]
    fn a_sum_over_nothing_is_refused_on_every_rank_and_costs_nothing() -> Result<(), Error> {
        host(2).run(|rank| {
            let kernel = gemm_rs::load(rank)?;
            let refused = scatter(rank, &kernel, [4, 8, 0]);
            assert!(matches!(refused, Err(Error::EmptyReduction)), "{refused:?}");
            scatter(rank, &kernel, [4, 8, 1])
        })?;
        all_say(&host(2), "k = 0: a gemm needs at least one element to sum over", |rank| {
            gather(rank, &ag_gemm::load(rank)?, [(2, 0), (16, 0), (4, 16)])
        });
        Ok(())
    }

    #[test]
    fn fewer_rows_than_ranks_are_right() -> Result<(), Error> {
        let (n, k) = (3, 5);
        for m in [1, 2, 3, 5] {
            let part = |rank: u32| -> (Vec<bf16>, Vec<bf16>) {
                let seed = u64::from(rank);
                (Draw::Integers.rows(seed, 0..m, k), Draw::Integers.rows(9 + seed, 0..n, k))
            };
            let a = part(0).0;
            let world = host(4);
            let results = world.run(|rank| {
                let (own_a, b) = part(rank.index());
                let rows = rank.own_range(m);
                let shard = rank.tensor(rows.len(), k, &a[rows.start * k..rows.end * k])?;
                let b = rank.tensor(n, k, &b)?;
                let mut gathered = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
                let mut scattered = rank.tensor(rows.len(), n, &vec![bf16::NAN; rows.len() * n])?;
                let (up, down) = (ag_gemm::load(rank)?, gemm_rs::load(rank)?);
                for _ in 0..3 {
                    up.launch(&shard, &b, &mut gathered)?;
                    down.launch(&rank.tensor(m, k, &own_a)?, &b, &mut scattered)?;
                }
                Ok((gathered.to_vec()?, scattered.to_vec()?))
            })?;
            let rows: Vec<usize> = (0..m).collect();
            let mut sum = vec![0.0; m * n];
            for (rank, (gathered, _)) in results.iter().enumerate() {
                let (own_a, b) = part(rank as u32);
                assert_eq!(as_f64(gathered), product(&a, &b, k, &rows), "m = {m}, rank {rank}");
                let own = product(&own_a, &b, k, &rows);
                sum.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
            }
            let scattered: Vec<bf16> = results.into_iter().flat_map(|(_, part)| part).collect();
            assert_eq!(as_f64(&scattered), sum, "m = {m}");
        }
        Ok(())
    }

    #[test]
    fn a_shape_that_differs_on_another_rank_alone_is_another_shape() -> Result<(), Error> {
        let (n, k) = (3, 4);
        // Rank 0 owns two rows of three as of four.
        for m in [4, 3, 4, 3] {
            host(2).run(|rank| {
                let kernel = kernels::gather_and_scatter::load(rank)?;
                for m in [m, 7 - m, m] {
                    let rows = rank.own_rows(m);
                    let a = rank.tensor(rows, k, &vec![bf16::ONE; rows * k])?;
                    let b = rank.tensor(n, k, &vec![bf16::ONE; n * k])?;
                    let mut c = rank.tensor(rows, n, &vec![bf16::NAN; rows * n])?;
                    kernel.launch(&a, &b, &mut c)?;
                    assert_eq!(as_f64(&c.to_vec()?), vec![8.0; rows * n]);
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

mod worlds {
    use super::*;

    #[test]
    fn a_world_has_1_to_64_ranks() {
        for ranks in [0, 65, u32::MAX] {
            let says = format!("a world has 1 to 64 ranks, found {ranks}");
            for world in [World::host(ranks), World::virtual_ranks(0, ranks)] {
                assert_eq!(world.expect_err("no such world").to_string(), says);
            }
        }
        let ranks = World::host(64).and_then(|world| world.run(|rank| Ok(rank.index())));
        assert_eq!(ranks.expect("the largest world"), (0..64).collect::<Vec<_>>());
    }

    #[test]
    fn a_name_that_is_no_world_is_quoted() {
        for name in [
            "",
            "host",
            "host:",
            ":4",
            "host:four",
            "host:-1",
            "tpu:4",
            "host:4:2",
            "4",
            "host: 4",
            "host:4294967296",
        ] {
            let error = name.parse::<World>().expect_err("no such world");
            let says = format!("expected a world such as `host:8` or `gpu:4`, found `{name}`");
            assert_eq!(error.to_string(), says);
        }
        for name in ["host:0", "gpu:0", "host:65", "gpu:65"] {
            let error = name.parse::<World>().expect_err("no such world");
            assert!(matches!(error, Error::WorldSize(0 | 65)), "{error}");
        }
        assert_eq!("host:8".parse::<World>().expect("a world").to_string(), "host:8");
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        // Without a driver it says so; with one, that there are not so many devices.
        let error = World::virtual_ranks(99, 1).expect_err("no machine has so many");
        let says = error.to_string();
        let expected = ["CUDA driver", "device 99 does not exist, the driver sees"];
        assert!(expected.iter().any(|part| says.contains(part)), "{says}");
        assert!(matches!(error, Error::Runtime(_)), "{error:?}");
    }

    #[test]
    fn a_limit_can_be_nothing_or_for_ever_and_is_set_at_any_time() -> Result<(), Error> {
        let world = World::host(2)?;
        let ranks = world.ranks();
        let (hasty, patient) =
            (world.clone().with_limit(Duration::ZERO), world.with_limit(Duration::MAX));
        drop(ranks);
        patient.run(|rank| scatter(rank, &gemm_rs::load(rank)?, [4, 8, 3]))?;
        // Whoever comes first waits for nobody: an error or, with luck, a result.
        let (ended, took) = outcomes(&hasty, |rank| {
            std::thread::sleep(Duration::from_millis(20 * u64::from(rank.index())));
            gemm_rs::load(rank)
        });
        assert!(ended.iter().any(Result::is_err) && took < Duration::from_secs(1), "{took:?}");
        Ok(())
    }
}

mod ranks_that_differ {
    use super::*;

    #[test]
    fn different_kernels_are_both_named_on_every_rank() {
        let (found, took) = outcomes(&host(3), |rank| match rank.index() {
            2 => ag_gemm::load(rank).map(drop),
            _ => gemm_rs::load(rank).map(drop),
        });
        let order =
            "all ranks must load the same kernels and launch the same shapes in the same order";
        let says = [
            format!("rank 0 is about to load `gemm_rs`, rank 2 to load `ag_gemm`: {order}"),
            format!("rank 1 is about to load `gemm_rs`, rank 2 to load `ag_gemm`: {order}"),
            format!("rank 2 is about to load `ag_gemm`, rank 0 to load `gemm_rs`: {order}"),
        ];
        for (outcome, says) in found.iter().zip(says) {
            assert_eq!(outcome.as_ref().expect_err("they differ").to_string(), says);
        }
        assert!(took < LIMIT, "found without waiting for the limit: {took:?}");
    }

    #[test]
    fn different_schedules_are_both_named() {
        let of = |rank: u32| Schedule::host().tile(16, 16, 16).stages(2 + rank);
        let found = errors(&host(2), |rank| gemm_rs::load_with(rank, &of(rank.index())));
        for (error, own) in found.iter().zip(0..) {
            let says = format!("rank {own} is about to load `gemm_rs` ({}), ", of(own));
            let other = format!("rank {} to load `gemm_rs` ({}): ", 1 - own, of(1 - own));
            assert!(error.to_string().starts_with(&(says + &other)), "{error}");
        }
        // The default is not the same as a schedule that happens to be equal to it.
        let found = errors(&host(2), |rank| match rank.index() {
            0 => gemm_rs::load(rank),
            _ => gemm_rs::load_with(rank, &Schedule::host()),
        });
        assert!(
            found.iter().all(|error| matches!(error, Error::RanksDisagree { .. })),
            "{found:?}"
        );
    }

    #[test]
    fn different_kernels_of_one_name_are_told_apart() {
        let found = errors(&host(2), |rank| match rank.index() {
            0 => gemm_bf16::load(rank).map(drop),
            _ => namesake::gemm_bf16::load(rank).map(drop),
        });
        let says = "rank 0 is about to load `gemm_bf16`, rank 1 to load `gemm_bf16`, but another one \
                    of that name: ";
        assert!(found[0].to_string().starts_with(says), "{}", found[0]);
        assert!(matches!(found[1], Error::RanksDisagree { own_rank: 1, rank: 0, .. }));
    }

    #[test]
    fn loading_in_another_order_is_named() {
        let found = errors(&host(2), |rank| {
            if rank.index() == 0 {
                ag_gemm::load(rank)?;
                gemm_rs::load(rank).map(drop)
            } else {
                gemm_rs::load(rank)?;
                ag_gemm::load(rank).map(drop)
            }
        });
        assert!(
            found.iter().all(|error| matches!(error, Error::RanksDisagree { .. })),
            "{found:?}"
        );
    }

    #[test]
    fn launching_in_another_order_is_named_at_once() {
        let (found, took) = outcomes(&host(2), |rank| {
            let (up, down) = (ag_gemm::load(rank)?, gemm_rs::load(rank)?);
            let up = || gather(rank, &up, [(2, 8), (16, 8), (4, 16)]);
            let down = || scatter(rank, &down, [4, 16, 8]);
            if rank.index() == 0 { up().and_then(|()| down()) } else { down().and_then(|()| up()) }
        });
        let says = "rank 1 is about to launch `gemm_rs`, rank 0 to launch `ag_gemm`: ";
        let error = found[1].as_ref().expect_err("they differ").to_string();
        assert!(error.starts_with(says), "{error}");
        assert!(matches!(found[0], Err(Error::RanksDisagree { .. })) && took < LIMIT);
    }

    #[test]
    fn one_kernel_loaded_twice_is_two() {
        let found = errors(&host(2), |rank| {
            let kernels = [gemm_rs::load(rank)?, gemm_rs::load(rank)?];
            scatter(rank, &kernels[rank.index() as usize], [4, 16, 8])
        });
        let says = "rank 0 is about to launch `gemm_rs`, rank 1 to launch `gemm_rs`, but another one \
                    of that name: ";
        assert!(found[0].to_string().starts_with(says), "{}", found[0]);
    }

    #[test]
    fn loading_while_others_launch_is_named() {
        let found = errors(&host(2), |rank| {
            let kernel = gemm_rs::load(rank)?;
            match rank.index() {
                0 => ag_gemm::load(rank).map(drop),
                _ => scatter(rank, &kernel, [4, 16, 8]),
            }
        });
        let says = "rank 0 is about to load `ag_gemm`, rank 1 to launch `gemm_rs`: ";
        assert!(found[0].to_string().starts_with(says), "{}", found[0]);
    }

    #[test]
    fn ranks_of_one_kernel_at_different_known_shapes_stall_and_say_so() {
        let (found, took) = outcomes(&host(2), |rank| {
            let kernel = gemm_rs::load(rank)?;
            scatter(rank, &kernel, [4, 16, 8])?;
            scatter(rank, &kernel, [6, 16, 8])?;
            let m = if rank.index() == 0 { 4 } else { 6 };
            // The first launch of a shape has no peer's shards to wait for but this one's.
            scatter(rank, &kernel, [m, 16, 8])
        });
        assert!(took < LIMIT + Duration::from_secs(1), "{took:?}");
        for (rank, outcome) in found.iter().enumerate() {
            match outcome {
                Err(Error::Stalled { rank: stalled, kernel, wanted, seen, .. }) => {
                    assert_eq!((*stalled as usize, kernel.as_str()), (rank, "gemm_rs"));
                    assert!(seen < wanted);
                }
                other => panic!("expected a stall of rank {rank}, found {other:?}"),
            }
        }
    }
}

mod ranks_that_are_missing {
    use super::*;

    /// What is left of the limit, when everybody has given up.
    const SLACK: Duration = Duration::from_secs(1);

    #[test]
    fn a_rank_that_never_loads_is_named_to_the_others() {
        let done = AtomicU32::new(0);
        let (found, took) = outcomes(&host(3), |rank| {
            if rank.index() == 1 {
                // Busy with something else for as long as the others are here.
                while done.load(Ordering::Acquire) < 2 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return Ok(());
            }
            let loaded = gemm_rs::load(rank).map(drop);
            done.fetch_add(1, Ordering::AcqRel);
            loaded
        });
        for rank in [0, 2] {
            let error = found[rank].as_ref().expect_err("rank 1 never came").to_string();
            assert_eq!(error, "ranks [1] did not come within 300ms");
        }
        assert!(took >= LIMIT && took < LIMIT + SLACK, "{took:?}");
    }

    #[test]
    fn a_rank_that_never_launches_is_named_to_the_others() {
        let done = AtomicU32::new(0);
        let (found, took) = outcomes(&host(3), |rank| {
            let kernel = ag_gemm::load(rank)?;
            if rank.index() == 1 {
                while done.load(Ordering::Acquire) < 2 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return Ok(());
            }
            let launched = gather(rank, &kernel, [(2, 8), (16, 8), (6, 16)]);
            done.fetch_add(1, Ordering::AcqRel);
            launched
        });
        for rank in [0, 2] {
            let error = found[rank].as_ref().expect_err("rank 1 never came").to_string();
            assert_eq!(error, "ranks [1] did not come within 300ms");
        }
        assert!(took < LIMIT + SLACK, "{took:?}");
    }

    /// Rank 1 leaves out the second launch; what rank 0 hears, and then from a third one.
    fn stall(shape: [usize; 3]) -> (Error, Error, Duration) {
        let world = host(2);
        let done = AtomicBool::new(false);
        let (found, took) = outcomes(&world, |rank| {
            let kernel = gemm_rs::load(rank)?;
            scatter(rank, &kernel, shape)?;
            if rank.index() == 1 {
                while !done.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return Ok(None);
            }
            let second = scatter(rank, &kernel, shape).expect_err("rank 1 does not launch");
            let third = scatter(rank, &kernel, shape).expect_err("the workspace is lost");
            done.store(true, Ordering::Release);
            Ok(Some((second, third)))
        });
        let errors = found.into_iter().next().expect("rank 0");
        let (second, third) = errors.expect("loaded").expect("rank 0 has both");
        (second, third, took)
    }

    #[test]
    fn a_launch_without_its_peer_stalls_and_says_where() {
        let (stalled, again, took) = stall([4, 8, 3]);
        let Error::Stalled { rank: 0, kernel, file, line, signal, seen, wanted, .. } = &stalled
        else {
            panic!("expected a stall of rank 0, found {stalled:?}");
        };
        assert_eq!((kernel.as_str(), file.as_str()), ("gemm_rs", "src/kernels.rs"));
        assert!(signal.contains("landed") && *line > 0 && seen < wanted, "{stalled}");
        assert!(took < LIMIT + SLACK, "{took:?}");
        let says = again.to_string();
        assert!(
            says.contains("an earlier launch on it failed") && says.contains("landed"),
            "{says}"
        );
    }

    #[test]
    fn a_kernel_whose_launch_failed_can_be_loaded_anew() -> Result<(), Error> {
        let results = host(2).run(|rank| {
            let kernel = gemm_rs::load(rank)?;
            scatter(rank, &kernel, [4, 8, 3])?;
            let stalled = match rank.index() {
                0 => scatter(rank, &kernel, [4, 8, 3]).is_err(),
                _ => {
                    std::thread::sleep(LIMIT + Duration::from_millis(50));
                    // Comes too late: the peer has given up.
                    scatter(rank, &kernel, [4, 8, 3]).is_err()
                }
            };
            let kernel = gemm_rs::load(rank)?;
            scatter(rank, &kernel, [4, 8, 3])?;
            Ok(stalled)
        })?;
        assert_eq!(results, [true, true]);
        Ok(())
    }

    #[test]
    fn a_launch_that_was_refused_does_not_count() -> Result<(), Error> {
        host(2).run(|rank| {
            let kernel = gemm_rs::load(rank)?;
            for _ in 0..3 {
                scatter(rank, &kernel, [4, 8, 3])?;
                let (a, b) = (rank.zeros(4, 3)?, rank.zeros(8, 5)?);
                let refused = kernel.launch(&a, &b, &mut rank.zeros(2, 8)?);
                assert!(matches!(refused, Err(Error::Extents { .. })), "{refused:?}");
            }
            let kernel = gemm_bf16::load(rank)?;
            multiply(rank, &kernel, [3, 4, 5])
        })?;
        Ok(())
    }

    #[test]
    fn a_rank_that_fails_ends_the_wait_of_the_others_at_once() {
        let world = World::host(3).expect("a world");
        let start = Instant::now();
        let failed = world.run(|rank| {
            let kernel = gemm_rs::load(rank)?;
            if rank.index() == 2 {
                rank.tensor(1, 1, &[0.0_f32; 2])?;
            }
            scatter(rank, &kernel, [6, 8, 3])
        });
        let error = failed.expect_err("rank 2 failed");
        assert!(matches!(error, Error::DataLength { .. }), "the first error, not: {error}");
        assert!(start.elapsed() < Duration::from_secs(5), "well within the limit of 10 s");
        let (found, _) = outcomes(&world, |rank| match rank.index() {
            2 => Err(Error::EmptyReduction),
            _ => gemm_rs::load(rank).map(drop),
        });
        let says = "rank 2 has given up: its program has ended";
        assert_eq!(found[0].as_ref().expect_err("rank 2 left").to_string(), says);
    }

    #[test]
    fn a_rank_that_panics_ends_the_wait_of_the_others_and_the_run() {
        let world = World::host(3).expect("a world");
        let start = Instant::now();
        let others = AtomicU32::new(0);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            world.run(|rank| {
                let kernel = ag_gemm::load(rank)?;
                assert!(rank.index() != 1, "a bug of the program");
                let launched = gather(rank, &kernel, [(2, 8), (16, 8), (6, 16)]);
                others.fetch_add(u32::from(launched.is_err()), Ordering::Relaxed);
                launched
            })
        }));
        let panic = panicked.expect_err("the panic is passed on");
        assert_eq!(panic.downcast_ref(), Some(&"a bug of the program"));
        assert_eq!(others.into_inner(), 2, "the others got an error");
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_rank_that_panics_in_the_middle_lets_the_others_stall() {
        let start = Instant::now();
        let world = host(2);
        let stalled = AtomicBool::new(false);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            world.run(|rank| {
                let kernel = gemm_rs::load(rank)?;
                scatter(rank, &kernel, [4, 8, 3])?;
                assert!(rank.index() != 1, "a bug of the program");
                let launched = scatter(rank, &kernel, [4, 8, 3]);
                stalled.store(matches!(launched, Err(Error::Stalled { .. })), Ordering::Relaxed);
                launched
            })
        }));
        assert!(panicked.is_err() && stalled.into_inner());
        assert!(start.elapsed() < LIMIT + SLACK, "{:?}", start.elapsed());
    }

    #[test]
    fn ranks_one_after_the_other_on_one_thread_are_told_so() {
        let ranks = host(2).ranks();
        let error = gemm_rs::load(&ranks[0]).expect_err("rank 1 cannot come");
        assert_eq!(error.to_string(), "ranks [1] did not come within 300ms");
        let error = gemm_rs::load(&ranks[1]).expect_err("rank 0 has gone");
        let says = "rank 1 came after the others had given up waiting for it (300ms)";
        assert_eq!(error.to_string(), says);
    }

    #[test]
    fn a_kernel_that_outlives_its_run_says_so() -> Result<(), Error> {
        let loaded = host(2).run(gemm_bf16::load)?;
        let kernel = &loaded[0];
        let ranks = host(1).ranks();
        let [a, b, mut c] = [ranks[0].zeros(2, 2)?, ranks[0].zeros(2, 2)?, ranks[0].zeros(2, 2)?];
        let error = kernel.launch(&a, &b, &mut c).expect_err("its ranks are gone");
        assert_eq!(error.to_string(), "rank 0 has given up: its program has ended");
        Ok(())
    }

    #[test]
    fn a_rank_launches_one_at_a_time() -> Result<(), Error> {
        // Both threads launch again and again; each launch gives the right result, or says that
        // the other one is running.
        let mut world = World::host(1)?.ranks();
        let rank = world.remove(0);
        let kernel = gemm_bf16::load(&rank)?;
        multiply(&rank, &kernel, [40, 40, 40])?;
        std::thread::scope(|scope| {
            let work = || {
                for _ in 0..20 {
                    if let Err(error) = multiply(&rank, &kernel, [40, 40, 40]) {
                        assert!(error.to_string().contains("is still running"), "{error}");
                    }
                }
            };
            let threads = [scope.spawn(work), scope.spawn(work)];
            threads.into_iter().for_each(|thread| assert!(thread.join().is_ok()));
        });
        multiply(&rank, &kernel, [40, 40, 40])
    }
}

mod schedules {
    use super::*;

    /// What loading the scattered product with `schedule` says, the same on every rank.
    fn refused(schedule: &Schedule) -> String {
        let errors = errors(&host(2), |rank| gemm_rs::load_with(rank, schedule));
        assert_eq!(errors[0].to_string(), errors[1].to_string(), "the same on both ranks");
        assert!(matches!(cause(&errors[0]), Error::Rejected(_)), "{:?}", errors[0]);
        errors[0].to_string()
    }

    #[test]
    fn a_schedule_that_does_not_fit_its_target_is_refused_with_both_numbers() {
        let says = refused(&Schedule::sm_90a().stages(6));
        // Six stages of operands take 294912 bytes; barriers and the epilogue take the rest.
        let (before, rest) = says.split_once("stages = 6 needs ").expect("the sentence");
        let (bytes, after) = rest.split_once(' ').expect("a number");
        assert_eq!(before, "error[resources]: ");
        assert!(bytes.parse::<u32>().is_ok_and(|bytes| (294_912..320_000).contains(&bytes)));
        assert!(after.starts_with("bytes of shared memory, sm_90a has 232448\n"), "{says}");
        // Threads of the host have no shared memory.
        let ranks = host(1).run(|rank| gemm_rs::load_with(rank, &Schedule::host().stages(6)));
        assert!(ranks.is_ok(), "{ranks:?}");
    }

    #[test]
    fn numbers_that_make_no_schedule_are_refused() {
        let host = Schedule::host;
        let cases = [
            host().tile(0, 16, 16),
            host().tile(16, 0, 16),
            host().tile(16, 16, 0),
            host().tile(u32::MAX, 16, 16),
            host().tile(16, u32::MAX, u32::MAX),
            host().chunk_rows(0),
            host().ctas(0),
            Schedule::sm_90a().stages(0),
            Schedule::sm_90a().stages(1),
            Schedule::sm_90a().stages(u32::MAX),
            Schedule::sm_90a().tile(16, 16, 16),
            Schedule::sm_90a().tile(128, 512, 64),
            Schedule::sm_90a().tile(128, 256, 60),
            Schedule::sm_90a().tile(256, 256, 64).consumers(Consumers::PingPong),
        ];
        for schedule in cases {
            println!("({schedule})\n    {}", refused(&schedule).replace('\n', "\n    "));
        }
    }

    #[test]
    fn more_ctas_than_tiles_are_not_started() -> Result<(), Error> {
        let schedule = Schedule::host().tile(16, 16, 16).ctas(u32::MAX);
        let world = World::host(1)?;
        world.run(|rank| multiply(rank, &gemm_bf16::load_with(rank, &schedule)?, [40, 40, 40]))?;
        Ok(())
    }

    #[test]
    fn an_order_that_is_no_permutation_is_refused() {
        let order = Order::custom("stuck", |_, _, _, _| TileCoord { m: 0, n: 0 });
        let says = refused(&Schedule::host().tile(16, 16, 16).order(order));
        let expected = "order `stuck` is no permutation: steps 0 and 1 both give tile (0, 0)";
        assert!(says.contains(expected), "{says}");
    }

    #[test]
    fn an_order_that_leaves_the_grid_is_refused() {
        let order = Order::custom("beyond", |step, _, _, _| TileCoord { m: step, n: 7 });
        let says = refused(&Schedule::host().tile(16, 16, 16).order(order));
        assert!(
            says.contains("order `beyond` leaves the grid: step 0 gives tile (0, 7)"),
            "{says}"
        );
        let order = Order::custom("far", |_, _, _, _| TileCoord { m: u32::MAX, n: u32::MAX });
        let says = refused(&Schedule::host().tile(16, 16, 16).order(order));
        assert!(says.contains("order `far` leaves the grid"), "{says}");
    }

    #[test]
    fn an_order_that_panics_is_refused() {
        let order = Order::custom("fragile", |step, grid, _, _| {
            // Underflows at the last step.
            let left = grid.tiles().checked_sub(step + 2).expect("a bug of the order");
            TileCoord { m: left / grid.cols, n: left % grid.cols }
        });
        let says = refused(&Schedule::host().tile(16, 16, 16).order(order));
        assert!(says.contains("order `fragile` panicked"), "{says}");
    }

    #[test]
    fn an_order_that_is_wrong_on_larger_grids_is_refused_when_it_meets_one() {
        for panics in [false, true] {
            let order = Order::custom("small only", move |step, grid, _, _| {
                assert!(!panics || grid.rows < 20, "too large");
                let step = if grid.rows < 20 { step } else { step / 2 };
                TileCoord { m: step / grid.cols, n: step % grid.cols }
            });
            let schedule = Schedule::host().tile(4, 4, 4).order(order);
            let errors = errors(&host(2), |rank| {
                let kernel = ag_gemm::load_with(rank, &schedule)?;
                gather(rank, &kernel, [(4, 4), (4, 4), (8, 4)])?;
                gather(rank, &kernel, [(50, 4), (4, 4), (100, 4)])
            });
            let expected = ["is no permutation", "panicked"][usize::from(panics)];
            for error in errors {
                assert!(error.to_string().contains(expected), "{error}");
                assert!(matches!(cause(&error), Error::Rejected(_)), "{error:?}");
            }
        }
    }

    #[test]
    fn an_order_that_changes_its_mind_gives_no_wrong_data() -> Result<(), Error> {
        // Another start at each call, so the table that was checked is not the one that runs.
        let calls = AtomicU32::new(0);
        let order = Order::custom("moody", move |step, grid, _, _| {
            if step == 0 {
                calls.fetch_add(1, Ordering::Relaxed);
            }
            let tile = (step + calls.load(Ordering::Relaxed)) % grid.tiles();
            TileCoord { m: tile / grid.cols, n: tile % grid.cols }
        });
        let schedule = Schedule::host().tile(16, 16, 16).order(order);
        host(1).run(|rank| {
            let kernel = gemm_bf16::load_with(rank, &schedule)?;
            (0..4).try_for_each(|_| multiply(rank, &kernel, [40, 40, 40]))
        })?;
        Ok(())
    }

    #[test]
    fn an_order_that_panics_late_is_an_error_of_that_launch() {
        let broken = Arc::new(AtomicBool::new(false));
        let breaks = Arc::clone(&broken);
        let order = Order::custom("late", move |step, grid, _, _| {
            assert!(!breaks.load(Ordering::Relaxed), "a bug of the order");
            TileCoord { m: step / grid.cols, n: step % grid.cols }
        });
        let schedule = Schedule::host().tile(16, 16, 16).order(order);
        all_say(&host(1), "order `late` panicked", |rank| {
            let kernel = gemm_bf16::load_with(rank, &schedule)?;
            multiply(rank, &kernel, [40, 40, 40])?;
            broken.store(true, Ordering::Relaxed);
            multiply(rank, &kernel, [40, 40, 40])
        });
    }

    #[test]
    fn an_order_that_can_deadlock_is_refused_when_it_is_loaded() {
        let says = refused(&Schedule::host().tile(16, 16, 16).order(Order::OwnShardFirst));
        println!("{says}");
        assert!(says.contains("error[deadlock]"), "{says}");
    }
}
