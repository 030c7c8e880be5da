//! The protocols of `examples/` on virtual ranks of a GPU: every element that of the plain
//! product, by copy engines, by copy warps and in bulk.

use super::data::{Draw, product};
use crate::{low_latency, protocols, sum_ahead};
use flux::Error;
use flux::prelude::*;
use libtest_mimic::{Failed, Trial};
use std::time::{Duration, Instant};

#[flux::module]
mod kernels {
    use flux::prelude::*;

    /// Shards are fetched, or handed on, by roles that the schedule makes.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, all_gather = pull)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, all_gather = ring, chunk_rows = 100)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, all_gather = pull, transport = put, chunk_rows = 37)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, all_gather = ring, transport = put)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, all_gather = pull, transport = tma, chunk_rows = 37)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 5, all_gather = ring, transport = tma)]
    pub fn gathered(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    /// What is gathered is an output as well, however it travels.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, chunk_rows = 50)]
    #[schedule(sm_90a, tile = (128, 112, 64), stages = 6, consumers = ping_pong, tail = (70, 3))]
    #[schedule(sm_90a, tile = (64, 48, 64), stages = 14, consumers = single, transport = put)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, all_gather = pull)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, all_gather = ring, chunk_rows = 100)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, all_gather = pull, transport = put, chunk_rows = 37)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, all_gather = ring, transport = put)]
    pub fn kept(a: &Gathered<bf16>, b: &Global<bf16>, x: &mut Global<bf16>, c: &mut Global<bf16>) {
        a.all_gather_into(x);
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    /// What is gathered, by every way, ahead of a sum of one's own whose data tell by themselves.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single, chunk_rows = 50)]
    #[schedule(sm_90a, tile = (16, 64, 64), stages = 16, consumers = single, transport = put)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 7, consumers = single, transport = tma, chunk_rows = 37)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single, all_gather = pull)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single, all_gather = pull, transport = put, chunk_rows = 37)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 7, consumers = single, all_gather = pull, transport = tma)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single, all_gather = ring, chunk_rows = 100)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single, all_gather = ring, transport = put)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 7, consumers = single, all_gather = ring, transport = tma, chunk_rows = 37)]
    pub fn gathered_sum(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        let parts = flagged::<f32>(Extent::M, Extent::N);
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            let part = gemm(a, b.t(), tile);
            for hop in 1..world() {
                parts.put((rank() + hop) % world(), tile, part);
            }
            c.store(tile, parts.sum(tile, part));
        }
    }

    /// Beside a sum that copy warps bring from its owners.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, all_reduce = two_shot)]
    pub fn kept_and_reduced(
        a: &Gathered<bf16>,
        b: &Global<bf16>,
        x: &mut Global<bf16>,
        c: &mut Reduced<bf16>,
    ) {
        a.all_gather_into(x);
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.add(tile, gemm(a, b.t(), tile));
        }
    }
}

/// Smaller than a tile and than the world; ragged; tiles that straddle shards; several waves.
const SHAPES: [[usize; 3]; 4] = [[1, 8, 8], [5, 130, 72], [301, 264, 200], [700, 520, 328]];

/// The same for sums of few rows.
const FEW_ROWS: [[usize; 3]; 4] = [[1, 8, 8], [5, 130, 72], [37, 264, 200], [130, 520, 72]];

/// Launches: both parities of the epoch, and the first again.
const LAUNCHES: usize = 3;

pub(crate) fn trials(ignored: bool) -> Vec<Trial> {
    let engines = [(0, "copy_engine"), (1, "put"), (2, "tma")];
    let worlds = [1, 2, 4, 8].into_iter().flat_map(|ranks| engines.map(|engine| (ranks, engine)));
    let trials = worlds.map(|(ranks, (schedule, engine))| {
        let run = move || exact(ranks, schedule, protocols::count_wrong);
        Trial::test(format!("protocols_{engine}_{ranks}"), run).with_ignored_flag(ignored)
    });
    let members = [1, 2, 4, 8].into_iter().flat_map(|ranks| (0..3).map(move |of| (ranks, of)));
    let sums = members.map(|(ranks, schedule)| {
        let run = move || exact(ranks, schedule, sum_ahead::count_wrong);
        Trial::test(format!("sum_ahead_{schedule}_{ranks}"), run).with_ignored_flag(ignored)
    });
    let members = [1, 2, 4, 8].into_iter().flat_map(|ranks| [(ranks, 0), (ranks, 1)]);
    let flagged = members.map(|(ranks, schedule)| {
        let run = move || exact_of(FEW_ROWS, ranks, schedule, low_latency::count_wrong);
        Trial::test(format!("low_latency_{schedule}_{ranks}"), run).with_ignored_flag(ignored)
    });
    let ways = [1, 2, 4, 8].into_iter().flat_map(|ranks| (0..6).map(move |way| (ranks, way)));
    let gathers = ways.map(|(ranks, schedule)| {
        let run = move || exact(ranks, schedule, wrong_of_gathered);
        Trial::test(format!("gathered_{schedule}_{ranks}"), run).with_ignored_flag(ignored)
    });
    let ways = [1, 2, 4, 8].into_iter().flat_map(|ranks| (0..8).map(move |way| (ranks, way)));
    let kept = ways.map(|(ranks, schedule)| {
        let run = move || exact(ranks, schedule, wrong_of_kept);
        Trial::test(format!("kept_{schedule}_{ranks}"), run).with_ignored_flag(ignored)
    });
    let ways = [1, 2, 4, 8].into_iter().flat_map(|ranks| (0..10).map(move |way| (ranks, way)));
    let summed = ways.map(|(ranks, schedule)| {
        let run = move || exact_of(FEW_ROWS, ranks, schedule, wrong_of_gathered_sum);
        Trial::test(format!("gathered_sum_{schedule}_{ranks}"), run).with_ignored_flag(ignored)
    });
    let times = Trial::test("kept_times", times_of_kept).with_ignored_flag(ignored);
    trials
        .chain(sums)
        .chain(flagged)
        .chain(gathers)
        .chain(kept)
        .chain(summed)
        .chain([times])
        .collect()
}

/// Launches on a rank, of rows, columns and reduction, under a schedule by number: wrong elements.
type CountWrong = fn(&Rank, [usize; 3], usize, Option<usize>) -> Result<usize, Error>;

fn exact(ranks: u32, schedule: usize, count_wrong: CountWrong) -> Result<(), Failed> {
    exact_of(SHAPES, ranks, schedule, count_wrong)
}

fn exact_of(
    shapes: [[usize; 3]; 4],
    ranks: u32,
    schedule: usize,
    count_wrong: CountWrong,
) -> Result<(), Failed> {
    for shape in shapes {
        let world = super::placed::world(ranks)?;
        let wrong = world.run(|rank| count_wrong(rank, shape, LAUNCHES, Some(schedule)))?;
        assert_eq!(wrong, vec![0; ranks as usize], "{shape:?} over {ranks}");
    }
    Ok(())
}

/// Launches of a kernel whose schedule says how shards come: wrong elements on this rank.
fn wrong_of_gathered(
    rank: &Rank,
    [m, n, k]: [usize; 3],
    launches: usize,
    schedule: Option<usize>,
) -> Result<usize, Error> {
    let schedules = (kernels::gathered::definition().schedules)();
    let kernel = kernels::gathered::load_with(rank, &schedules[schedule.unwrap_or(0)])?;
    let mut wrong = 0;
    for launch in 0..launches as u64 {
        let a = Draw::Integers.rows::<bf16>(2 * launch, 0..m, k);
        let b = Draw::Integers.rows::<bf16>(2 * launch + 1, 0..n, k);
        let own = rank.own_range(m);
        let shard = rank.tensor(own.len(), k, &a[own.start * k..own.end * k])?;
        let mut c = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
        kernel.launch(&shard, &rank.tensor(n, k, &b)?, &mut c)?;
        let expected = product(&a, &b, k, &(0..m).collect::<Vec<_>>());
        let rounded = expected.iter().map(|&x| bf16::from_f64(x));
        wrong += c.to_vec()?.iter().zip(rounded).filter(|(found, x)| **found != *x).count();
    }
    Ok(wrong)
}

/// Launches of a kernel that sums over what it gathers, with a matrix of each rank's own: wrong elements on
/// this rank.
fn wrong_of_gathered_sum(
    rank: &Rank,
    [m, n, k]: [usize; 3],
    launches: usize,
    schedule: Option<usize>,
) -> Result<usize, Error> {
    let schedules = (kernels::gathered_sum::definition().schedules)();
    let kernel = kernels::gathered_sum::load_with(rank, &schedules[schedule.unwrap_or(0)])?;
    let rows: Vec<usize> = (0..m).collect();
    let mut wrong = 0;
    for launch in 0..launches as u64 {
        let a = Draw::Integers.rows::<bf16>(100 * launch, 0..m, k);
        let b_of = |of: u32| Draw::Integers.rows::<bf16>(100 * launch + 1 + u64::from(of), 0..n, k);
        let own = rank.own_range(m);
        let shard = rank.tensor(own.len(), k, &a[own.start * k..own.end * k])?;
        let mut c = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
        kernel.launch(&shard, &rank.tensor(n, k, &b_of(rank.index()))?, &mut c)?;
        let mut expected = vec![0.0; m * n];
        for of in 0..rank.world_size() {
            let products = product(&a, &b_of(of), k, &rows);
            expected.iter_mut().zip(products).for_each(|(sum, x)| *sum += x);
        }
        let rounded = expected.iter().map(|&x| bf16::from_f64(x));
        wrong += c.to_vec()?.iter().zip(rounded).filter(|(found, x)| **found != *x).count();
    }
    Ok(wrong)
}

/// Launches of a kernel that gives back what it gathers, the last of `schedule` that which sums as well: wrong
/// elements of both outputs on this rank.
fn wrong_of_kept(
    rank: &Rank,
    [m, n, k]: [usize; 3],
    launches: usize,
    schedule: Option<usize>,
) -> Result<usize, Error> {
    let schedules = (kernels::kept::definition().schedules)();
    let kept = schedules.get(schedule.unwrap_or(0));
    let kept = kept.map(|schedule| kernels::kept::load_with(rank, schedule)).transpose()?;
    let reduced = match kept {
        Some(_) => None,
        None => Some(kernels::kept_and_reduced::load(rank)?),
    };
    let ranks = f64::from(rank.world_size());
    let mut wrong = 0;
    for launch in 0..launches as u64 {
        let a = Draw::Integers.rows::<bf16>(2 * launch, 0..m, k);
        let b = rank.tensor(n, k, &Draw::Integers.rows::<bf16>(2 * launch + 1, 0..n, k))?;
        let own = rank.own_range(m);
        let shard = rank.tensor(own.len(), k, &a[own.start * k..own.end * k])?;
        let mut x = rank.tensor(m, k, &vec![bf16::NAN; m * k])?;
        let mut c = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
        let times = match (&kept, &reduced) {
            (Some(kept), _) => {
                kept.launch(&shard, &b, &mut x, &mut c)?;
                1.0
            }
            (None, Some(reduced)) => {
                reduced.launch(&shard, &b, &mut x, &mut c)?;
                ranks
            }
            (None, None) => 0.0,
        };
        let expected = product(&a, &b.to_vec()?, k, &(0..m).collect::<Vec<_>>());
        // Contributions are rounded, and so is their sum.
        let rounded = expected.iter().map(|&x| {
            let sum = bf16::from_f64(x).to_f64() * times;
            bf16::from_f64(sum)
        });
        wrong += c.to_vec()?.iter().zip(rounded).filter(|(found, x)| **found != *x).count();
        wrong += x.to_vec()?.iter().zip(&a).filter(|(found, x)| found != x).count();
    }
    Ok(wrong)
}

/// Prints what the shipped all-gather + GEMM takes without and with the gathered rows as an output, under the
/// same schedule, in turn.
fn times_of_kept() -> Result<(), Failed> {
    let ([n, k], launches) = ([4096, 4096], 20);
    let rows = super::placed::world(2)?.run(|rank| {
        let b = rank.tensor(n, k, &Draw::Uniform.rows::<bf16>(1, 0..n, k))?;
        let mut rows = Vec::new();
        for m in [512, 2048, 8192] {
            let a = rank.tensor(m / 2, k, &Draw::Uniform.rows::<bf16>(2, 0..m / 2, k))?;
            let (mut x, mut c) = (rank.zeros::<bf16>(m, k)?, rank.zeros::<bf16>(m, n)?);
            for schedule in &(flux::kernels::ag_gemm_gathered::definition().schedules)() {
                let plain = flux::kernels::ag_gemm::load_with(rank, schedule)?;
                let kept = flux::kernels::ag_gemm_gathered::load_with(rank, schedule)?;
                let mut best = [Duration::MAX; 2];
                for _ in 0..4 {
                    for (way, best) in best.iter_mut().enumerate() {
                        rank.synchronize()?;
                        let begun = Instant::now();
                        for _ in 0..launches {
                            match way {
                                0 => plain.launch(&a, &b, &mut c)?,
                                _ => kept.launch(&a, &b, &mut x, &mut c)?,
                            }
                        }
                        rank.synchronize()?;
                        *best = (*best).min(begun.elapsed() / launches);
                    }
                }
                rows.push((m, schedule.to_string(), best));
            }
        }
        Ok(rows)
    })?;
    for (m, what, best) in &rows[0] {
        let [plain, kept] = best.map(|best| best.as_secs_f64() * 1e6);
        println!("  {m} rows: {plain:.1} us, kept {kept:.1} us ({:.3}), {what}", kept / plain);
    }
    Ok(())
}
