//! Operators in a storm: launches one behind the other, of numbers of rows drawn by chance, with other
//! operands each time, while ranks and their threads pause by chance (`jitter`). Whatever is left of a
//! launch before would be seen: its operands were others, and lay elsewhere.

#![allow(unreachable_pub, reason = "kernels stand as they would in a library")]

#[path = "support/data.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod data;
#[path = "support/placed.rs"]
mod placed;
#[path = "support/random.rs"]
mod random;

use data::Draw;
use flux::prelude::*;
use flux::{Error, Schedule};
use random::Random;
use std::ops::Range;

#[flux::module]
mod kernels {
    use flux::prelude::*;

    #[kernel]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, chunk_rows = 48, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, transport = put, chunk_rows = 24, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, transport = tma, chunk_rows = 24, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, all_gather = ring, transport = tma, chunk_rows = 48, jitter = 20)]
    pub fn ag_gemm(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, jitter = 20)]
    #[schedule(sm_90a, tile = (64, 64, 64), stages = 6, consumers = ping_pong, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, transport = copy_engine, chunk_rows = 48, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, reduce_scatter = ring, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, reduce_scatter = add, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, reduce_scatter = pull, transport = tma, jitter = 20)]
    pub fn gemm_rs(a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>) {
        for tile in c.tiles() {
            c.add(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, jitter = 20)]
    #[schedule(sm_90a, tile = (64, 64, 64), stages = 6, consumers = ping_pong, all_reduce = one_shot, jitter = 20)]
    #[schedule(sm_90a, tile = (16, 64, 64), stages = 8, consumers = single, all_reduce = flagged, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 88, 64), stages = 6, all_reduce = flagged, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, transport = tma, jitter = 20)]
    pub fn gemm_ar(a: &Global<bf16>, b: &Global<bf16>, c: &mut Reduced<bf16>) {
        for tile in c.tiles() {
            c.add(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, jitter = 20)]
    pub fn gemm_a2a(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Exchanged<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, transport = put, jitter = 20)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 6, transport = tma, jitter = 20)]
    pub fn a2a_gemm(a: &Exchanged<bf16>, b: &Global<bf16>, c: &mut Sharded<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gemm(a, b.t(), tile));
        }
    }
}

/// The most rows of a launch: several tiles, and more than the ranks.
const ROWS: usize = 300;
/// Columns: tiles that end between.
const COLS: usize = 136;
/// The reduction: several steps, each rank's part of it ends between.
const DEPTH: usize = 200;
/// Operands take turns. Odd, so that a launch and the one before the last, which had the same buffers,
/// never have the same.
const TURNS: usize = 5;

/// One storm: rounds of one number of rows each, launches whose outputs are compared, and those
/// between them.
#[derive(Debug, Clone, Copy)]
struct Storm {
    rounds: usize,
    verified: usize,
    unverified: usize,
}

/// What one rank holds of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Rows,
    Cols,
}

impl Part {
    fn of(self, rank: &Rank, rows: usize, cols: usize) -> [Range<usize>; 2] {
        match self {
            Part::All => [0..rows, 0..cols],
            Part::Rows => [rank.own_range(rows), 0..cols],
            Part::Cols => [0..rows, rank.own_range(cols)],
        }
    }
}

/// An operator by what each rank brings to C = A · Bᵀ and takes of it.
struct Operator {
    name: &'static str,
    schedules: fn() -> Vec<Schedule>,
    load: fn(&Rank, Option<&Schedule>) -> Result<Launch, Error>,
    a: Part,
    b: Part,
    c: Part,
}

type Launch = Box<dyn Fn(&Tensor<bf16>, &Tensor<bf16>, &mut Tensor<bf16>) -> Result<(), Error>>;

macro_rules! operator {
    ($kernel:ident: $a:ident, $b:ident -> $c:ident) => {
        Operator {
            name: stringify!($kernel),
            schedules: || (kernels::$kernel::definition().schedules)(),
            load: |rank, schedule| {
                let kernel = match schedule {
                    Some(schedule) => kernels::$kernel::load_with(rank, schedule)?,
                    None => kernels::$kernel::load(rank)?,
                };
                Ok(Box::new(move |a, b, c| kernel.launch(a, b, c)))
            },
            a: Part::$a,
            b: Part::$b,
            c: Part::$c,
        }
    };
}

const OPERATORS: [Operator; 5] = [
    operator!(ag_gemm: Rows, All -> All),
    operator!(gemm_rs: Cols, Cols -> Rows),
    operator!(gemm_ar: Cols, Cols -> All),
    operator!(gemm_a2a: Rows, All -> Cols),
    operator!(a2a_gemm: Cols, All -> Rows),
];

/// Whole operands of one turn, and their product.
struct Whole {
    a: Vec<bf16>,
    b: Vec<bf16>,
    c: Vec<bf16>,
}

impl Whole {
    fn of(turn: usize) -> Self {
        let seed = 2 * turn as u64;
        let a: Vec<bf16> = Draw::Integers.rows(seed, 0..ROWS, DEPTH);
        let b: Vec<bf16> = Draw::Integers.rows(seed + 1, 0..COLS, DEPTH);
        let rows: Vec<usize> = (0..ROWS).collect();
        let c = data::product(&a, &b, DEPTH, &rows);
        // Whole numbers below 2⁸, in bf16 as they are; so is the sum of any ranks' parts.
        assert!(c.iter().all(|value| value.abs() < 256.0), "turn {turn} is not exact");
        Whole { a, b, c: c.into_iter().map(bf16::from_f64).collect() }
    }
}

fn part(of: &[bf16], pitch: usize, [rows, cols]: [Range<usize>; 2]) -> Vec<bf16> {
    rows.flat_map(|row| &of[row * pitch..][cols.clone()]).copied().collect()
}

fn tensor(
    rank: &Rank,
    of: &[bf16],
    pitch: usize,
    ranges: [Range<usize>; 2],
) -> Result<Tensor<bf16>, Error> {
    let [rows, cols] = [&ranges[0], &ranges[1]].map(ExactSizeIterator::len);
    rank.tensor(rows, cols, &part(of, pitch, ranges))
}

/// Runs a storm on one rank; says what launch was wrong first.
fn storm(
    rank: &Rank,
    operator: &Operator,
    schedule: Option<&Schedule>,
    turns: &[Whole],
    storm: Storm,
) -> Result<Option<String>, Error> {
    let launch = (operator.load)(rank, schedule)?;
    // What all ranks draw alike, and what each draws for itself.
    let mut shared = Random::new(1);
    let mut own = Random::new(2 + u64::from(rank.index()));
    let weights: Vec<_> = turns
        .iter()
        .map(|whole| tensor(rank, &whole.b, DEPTH, operator.b.of(rank, COLS, DEPTH)))
        .collect::<Result<_, _>>()?;
    for round in 0..storm.rounds {
        let rows = 1 + shared.below(ROWS as u64) as usize;
        let inputs: Vec<_> = turns
            .iter()
            .map(|whole| tensor(rank, &whole.a, DEPTH, operator.a.of(rank, rows, DEPTH)))
            .collect::<Result<_, _>>()?;
        let [own_rows, own_cols] = operator.c.of(rank, rows, COLS);
        let mut unseen = rank.zeros(own_rows.len(), own_cols.len())?;
        let launches = storm.verified + storm.unverified;
        for number in 0..launches {
            let turn = (round * launches + number) % TURNS;
            own.skew();
            // Those that are looked at stand evenly among the others.
            let every = launches / storm.verified;
            if number % every != every - 1 {
                launch(&inputs[turn], &weights[turn], &mut unseen)?;
                continue;
            }
            let poison = vec![bf16::NAN; own_rows.len() * own_cols.len()];
            let mut c = rank.tensor(own_rows.len(), own_cols.len(), &poison)?;
            launch(&inputs[turn], &weights[turn], &mut c)?;
            let expected = part(&turns[turn].c, COLS, [own_rows.clone(), own_cols.clone()]);
            let found = c.to_vec()?;
            if let Some(at) = found.iter().zip(&expected).position(|(a, b)| a != b) {
                let [found, expected] = [found[at], expected[at]];
                return Ok(Some(format!(
                    "round {round} of {rows} rows, launch {number}: element {at} is {found}, not {expected}"
                )));
            }
        }
    }
    rank.synchronize()?;
    Ok(None)
}

/// Every operator under each of its schedules (the host runs the first alone).
fn operators(world: &World, all_schedules: bool, of: Storm) {
    let turns: Vec<Whole> = (0..TURNS).map(Whole::of).collect();
    for operator in &OPERATORS {
        let schedules: Vec<Option<Schedule>> = match all_schedules {
            true => (operator.schedules)().into_iter().map(Some).collect(),
            false => vec![None],
        };
        for schedule in schedules {
            let start = std::time::Instant::now();
            let run = world.run(|rank| storm(rank, operator, schedule.as_ref(), &turns, of));
            let shown = schedule.map_or(String::new(), |schedule| format!(" ({schedule})"));
            let case = format!("{} over {}{shown}", operator.name, world.size());
            let wrong = run.unwrap_or_else(|error| panic!("{case}: {error}"));
            for (rank, wrong) in wrong.into_iter().enumerate() {
                assert!(wrong.is_none(), "{case}, rank {rank}: {}", wrong.unwrap_or_default());
            }
            println!("{case}: {:.1} s", start.elapsed().as_secs_f64());
        }
    }
}

fn on_virtual_ranks(ranks: u32) {
    match placed::world(ranks) {
        Ok(world) => operators(&world, true, Storm { rounds: 100, verified: 10, unverified: 40 }),
        Err(error) => println!("skipped: no CUDA device ({error})"),
    }
}

#[test]
fn operators_are_exact_in_a_storm_on_the_host() {
    let world = World::host(4).expect("a world of threads");
    operators(&world, false, Storm { rounds: 3, verified: 2, unverified: 2 });
}

#[test]
fn operators_are_exact_in_a_storm_on_2_virtual_ranks() {
    on_virtual_ranks(2);
}

#[test]
fn operators_are_exact_in_a_storm_on_4_virtual_ranks() {
    on_virtual_ranks(4);
}

#[test]
fn operators_are_exact_in_a_storm_on_8_virtual_ranks() {
    on_virtual_ranks(8);
}
