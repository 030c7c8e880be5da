//! What a launch takes on the host: the call alone, after the first of its shape, on two virtual
//! ranks of one GPU, both launching. `cargo bench --bench launch_overhead`.

use flux::kernels::{ag_gemm, gemm_bf16, gemm_rs};
use flux::prelude::*;
use flux::{Error, Schedule, Transport};
use std::time::{Duration, Instant};

/// Calls that are timed, and launches that are under way at most: a queue that is full blocks.
const CALLS: usize = 4000;
const AHEAD: usize = 100;

/// Small, so that the device keeps up.
const SHAPE: [usize; 3] = [256, 256, 128];

fn main() {
    // Test runners pass names of tests.
    let world = match World::virtual_ranks(0, 2) {
        Ok(world) => world,
        Err(reason) => return println!("skipped: no CUDA device ({reason})"),
    };
    println!("| launch | median µs | 90% | 99% |\n| --- | --- | --- | --- |");
    let run = world.run(|rank| {
        let rows = [
            plain(rank)?,
            gather(rank, None)?,
            gather(rank, Some(Transport::Put))?,
            scatter(rank)?,
        ];
        if rank.index() == 0 {
            rows.into_iter().flatten().for_each(|row| println!("{row}"));
        }
        Ok(())
    });
    run.expect("launches end");
}

fn plain(rank: &Rank) -> Result<Vec<String>, Error> {
    let [m, n, k] = SHAPE;
    let (a, b, mut c) = (rank.zeros(m, k)?, rank.zeros(n, k)?, rank.zeros(m, n)?);
    let kernel = gemm_bf16::load(rank)?;
    measured(rank, "gemm_bf16", || kernel.launch(&a, &b, &mut c))
}

fn scatter(rank: &Rank) -> Result<Vec<String>, Error> {
    let [m, n, k] = SHAPE;
    let (a, b, mut c) = (rank.zeros(m, k)?, rank.zeros(n, k)?, rank.zeros(rank.own_rows(m), n)?);
    let kernel = gemm_rs::load(rank)?;
    measured(rank, "gemm_rs", || kernel.launch(&a, &b, &mut c))
}

fn gather(rank: &Rank, transport: Option<Transport>) -> Result<Vec<String>, Error> {
    let [m, n, k] = SHAPE;
    let (a, b, mut c) = (rank.zeros(rank.own_rows(m), k)?, rank.zeros(n, k)?, rank.zeros(m, n)?);
    let schedules = (ag_gemm::definition().schedules)();
    let is_it = |schedule: &&Schedule| schedule.transport == transport && schedule.tail.is_none();
    let Some(schedule) = schedules.iter().find(is_it) else { return Ok(Vec::new()) };
    let kernel = ag_gemm::load_with(rank, schedule)?;
    let name = match transport {
        None => "ag_gemm, copy engine",
        Some(_) => "ag_gemm, put",
    };
    measured(rank, name, || kernel.launch(&a, &b, &mut c))
}

/// The rows of one kernel: launches one by one, and replays where it can be captured.
fn measured(
    rank: &Rank,
    name: &str,
    mut launch: impl FnMut() -> Result<(), Error>,
) -> Result<Vec<String>, Error> {
    for _ in 0..20 {
        launch()?;
    }
    rank.synchronize()?;
    let mut rows = vec![timed(rank, name, &mut launch)?];
    if let Ok(graph) = rank.capture(&mut launch) {
        rows.push(timed(rank, &format!("{name}, replayed"), || graph.launch())?);
    }
    Ok(rows)
}

fn timed(
    rank: &Rank,
    name: &str,
    mut launch: impl FnMut() -> Result<(), Error>,
) -> Result<String, Error> {
    let mut times = Vec::with_capacity(CALLS);
    for call in 0..CALLS {
        let start = Instant::now();
        launch()?;
        times.push(start.elapsed());
        if call % AHEAD == 0 {
            rank.synchronize()?;
        }
    }
    rank.synchronize()?;
    times.sort_unstable();
    let at = |part: f64| micros(times[(part * CALLS as f64) as usize]);
    Ok(format!("| {name} | {:.1} | {:.1} | {:.1} |", at(0.5), at(0.9), at(0.99)))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
