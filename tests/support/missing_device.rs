//! A rank that prepares a launch and never makes it: the others say so within their limit.

use super::{Gpus, Launch, Load, kernels, load, sent, world};
use flux::Error;
use flux::prelude::*;
use libtest_mimic::Failed;
use std::time::{Duration, Instant};

/// Of 512 rows of the whole: those of `a` and of `c` that a rank holds.
type Held = fn(&Rank, usize) -> [usize; 2];

/// Rank 1 makes one launch and no second; every other rank stalls, and launches no more. Their stalls,
/// by rank.
pub(crate) fn missing_rank(
    gpus: Gpus,
    held: Held,
    load: impl Fn(&Rank) -> Result<Launch<bf16>, Error> + Sync,
) -> Result<Vec<Error>, Failed> {
    let limit = Duration::from_secs(1);
    let (m, n, k) = (512, 256, 128);
    let outcomes = world(gpus)?.with_limit(limit).run(|rank| {
        let launch = load(rank)?;
        let [a_rows, c_rows] = held(rank, m);
        let (a, b) = (rank.zeros::<bf16>(a_rows, k)?, rank.zeros::<bf16>(n, k)?);
        let bias = rank.zeros::<f32>(1, n)?;
        let mut c = rank.zeros::<bf16>(c_rows, n)?;
        launch(&a, &b, &bias, &mut c)?;
        rank.synchronize()?;
        if rank.index() == 1 {
            std::thread::sleep(3 * limit);
            return Ok(None);
        }
        let start = Instant::now();
        launch(&a, &b, &bias, &mut c)?;
        let stalled = rank.synchronize();
        let waited = start.elapsed();
        Ok(Some((stalled, waited, launch(&a, &b, &bias, &mut c))))
    })?;
    let mut stalls = Vec::new();
    for (rank, outcome) in outcomes.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        match outcome {
            Some((Err(stall @ Error::Stalled { .. }), waited, Err(Error::Poisoned { .. }))) => {
                println!("  {stall}");
                if waited > limit + Duration::from_secs(1) {
                    return Err(format!("the stall of rank {rank} took {waited:?}").into());
                }
                stalls.push(stall);
            }
            other => {
                let message = format!("expected rank {rank} to stall and stay so, found {other:?}");
                return Err(message.into());
            }
        }
    }
    Ok(stalls)
}

/// A peer is missing from a gather. An arrival's signal grows by the same in each launch.
pub(crate) fn missing_from_gather(gpus: Gpus, load: Load<bf16>) -> Result<(), Failed> {
    let stalls = missing_rank(gpus, |rank, m| [rank.own_rows(m), m], load)?;
    match &stalls[..] {
        [Error::Stalled { rank: 0, wanted, seen, .. }] if *seen > 0 && *wanted == 2 * seen => {
            Ok(())
        }
        other => {
            Err(format!("expected a stall of rank 0 for twice as much, found {other:?}").into())
        }
    }
}

/// Rank 1 owns no row and so waits for no contribution: in its third launch it finds that rank 0
/// never launched at all, gives up, and leaves its copy stream waiting for tiles.
pub(crate) fn abandoned_copies(gpus: Gpus) -> Result<(), Failed> {
    let world = world(gpus)?.with_limit(Duration::from_millis(300));
    let (m, n, k) = (1, 264, 128);
    let begun = Instant::now();
    let ends = world.run(|rank| {
        let (a, b) = (rank.zeros::<f16>(m, k)?, rank.zeros::<f16>(n, k)?);
        let bias = rank.zeros::<f32>(1, n)?;
        let mut c = rank.zeros::<f16>(rank.own_rows(m), n)?;
        let launch = load!(rs_f16, sent) as Load<f16>;
        let launch = launch(rank)?;
        // All ranks prepare the shape together; then rank 0 stands still.
        let launches = if rank.index() == 0 { 1 } else { 4 };
        for _ in 0..launches {
            launch(&a, &b, &bias, &mut c)?;
        }
        Ok(rank.synchronize().map_err(|error| error.to_string()))
    })?;
    let took = begun.elapsed();
    let [first, second] = ends.as_slice() else { return Err("two ranks end".into()) };
    let stalled = second.as_ref().expect_err("rank 1 waits in vain");
    if !stalled.contains("signal free[0]") {
        return Err(format!("expected a wait for `free[0]`, found: {stalled}").into());
    }
    if took > Duration::from_secs(5) {
        return Err(format!("the copies were let go after {took:?}").into());
    }
    // Rank 0's one launch had ended; whether it is told depends on whether it looked before.
    if let Err(error) = first {
        return Err(format!("rank 0 took no part: {error}").into());
    }
    Ok(())
}
