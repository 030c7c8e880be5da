//! What a user can get wrong: each mistake is an error that says what was expected and found, on
//! every rank that it concerns, and nothing panics, hangs or returns wrong data.

#![expect(unreachable_pub, reason = "kernels stand as they would in a library")]

#[path = "support/data.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod data;
#[path = "bad_input/data_and_places.rs"]
mod data_and_places;
#[path = "bad_input/empty_and_small.rs"]
mod empty_and_small;
#[path = "bad_input/ranks_that_are_missing.rs"]
mod ranks_that_are_missing;
#[path = "bad_input/ranks_that_differ.rs"]
mod ranks_that_differ;
#[path = "bad_input/schedules.rs"]
mod schedules;
#[path = "bad_input/shapes.rs"]
mod shapes;
#[path = "bad_input/worlds.rs"]
mod worlds;

use data::{Draw, product};
use flux::kernels::{
    ag_gemm, ag_gemm_bias_gelu, ag_gemm_gathered, gemm_bf16, gemm_rs, rows_to_columns,
};
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

/// A world of threads with the usual limit, which no test here may come near to.
fn host(ranks: u32) -> World {
    World::host(ranks).expect("a world of a good size")
}

/// The limit where a test waits for it to pass.
const LIMIT: Duration = Duration::from_secs(1);

/// What may pass until everybody has given up, beyond the limit.
const SLACK: Duration = Duration::from_secs(1);

/// A world that does not wait long.
fn hasty(ranks: u32) -> World {
    host(ranks).with_limit(LIMIT)
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
