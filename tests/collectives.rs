//! The shipped collectives and exchanges, with and without a product around them: exact on the host
//! and on virtual ranks of a device, launch after launch.

#[path = "support/data.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod data;
#[path = "support/placed.rs"]
mod placed;

use data::Draw;
use flux::kernels;
use flux::prelude::*;
use flux::{Error, Schedule, Transport};
use std::ops::Range;

/// Launches of one shape: the third is the first that overwrites what the first one left.
const LAUNCHES: usize = 4;

/// Fewer rows and columns than ranks; shards across tiles and k-steps; rows of no multiple of 16
/// bytes; whole tiles.
const SHAPES: [[usize; 3]; 5] =
    [[1, 3, 5], [130, 264, 72], [385, 333, 200], [700, 520, 141], [1024, 512, 128]];

/// A whole matrix of integers in -1..=1 whose every rank can make any part.
#[derive(Debug, Clone)]
struct Whole {
    rows: usize,
    cols: usize,
    data: Vec<bf16>,
}

impl Whole {
    fn new(seed: u64, rows: usize, cols: usize) -> Self {
        Whole { rows, cols, data: Draw::Integers.rows(seed, 0..rows, cols) }
    }

    fn at(&self, row: usize, col: usize) -> f32 {
        self.data[row * self.cols + col].to_f32()
    }

    fn part(&self, rows: Range<usize>, cols: Range<usize>) -> Vec<bf16> {
        let row = |row: usize| &self.data[row * self.cols + cols.start..row * self.cols + cols.end];
        rows.flat_map(row).copied().collect()
    }

    fn t(&self) -> Whole {
        let element = |i: usize| self.data[i % self.rows * self.cols + i / self.rows];
        let data = (0..self.data.len()).map(element).collect();
        Whole { rows: self.cols, cols: self.rows, data }
    }

    /// `self · bᵀ` or `self · b`, each element once: integers below 2⁸ are exact in bf16, and larger
    /// ones are rounded alike by everyone. Each `b` is for so many `rows`.
    fn times(&self, b: impl Fn(usize) -> Whole, rows: &[usize], transposed: bool) -> Whole {
        let mut data = Vec::new();
        let mut cols = 0;
        for (index, own) in ranges(rows).into_iter().enumerate() {
            let b = b(index);
            cols = if transposed { b.rows } else { b.cols };
            for (row, col) in own.flat_map(|row| (0..cols).map(move |col| (row, col))) {
                let term = |k: usize| {
                    self.at(row, k) * if transposed { b.at(col, k) } else { b.at(k, col) }
                };
                data.push(bf16::from_f32((0..self.cols).map(term).sum()));
            }
        }
        Whole { rows: self.rows, cols, data }
    }
}

/// The rows of each rank.
fn ranges(rows: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let own = |&rows: &usize| {
        end += rows;
        end - rows..end
    };
    rows.iter().map(own).collect()
}

/// Rows of ranks, as a case has them.
#[derive(Debug, Clone, Copy)]
enum Rows {
    Even,
    /// Each rank has another number of them, the last one none.
    Uneven,
}

impl Rows {
    fn of(self, rank: &Rank, m: usize) -> Vec<usize> {
        let ranks = ranks(rank);
        let part = m.div_ceil(ranks);
        let even = |rank: usize| (m.saturating_sub(rank * part)).min(part);
        match self {
            Rows::Uneven if ranks > 1 => {
                // The first has what the last one would have.
                let shifted = |rank: usize| [even(rank), 0][usize::from(rank + 1 == ranks)];
                let mut rows: Vec<_> = (0..ranks).map(shifted).collect();
                rows[0] += even(ranks - 1);
                rows
            }
            Rows::Even | Rows::Uneven => (0..ranks).map(even).collect(),
        }
    }
}

/// What one rank left in each launch, and what it should have.
type Checked = Result<Vec<(Vec<bf16>, Vec<bf16>)>, Error>;
type Case = fn(&Rank, [usize; 3], Option<&Schedule>) -> Checked;

/// Loads a kernel, under a schedule of one's own where one is given.
macro_rules! load {
    ($kernel:ident, $rank:expr, $schedule:expr) => {
        match $schedule {
            Some(schedule) => kernels::$kernel::load_with($rank, schedule)?,
            None => kernels::$kernel::load($rank)?,
        }
    };
}

/// Launches a kernel of own rows.
macro_rules! launch {
    ($kernel:ident, $of:ident, $rows:ident, $($arg:expr),+) => {
        match $of {
            Rows::Even => $kernel.launch($($arg),+)?,
            Rows::Uneven => $kernel.launch_with_rows(&$rows, $($arg),+)?,
        }
    };
}

fn ranks(rank: &Rank) -> usize {
    rank.world_size() as usize
}

/// The columns that a rank holds.
fn own_columns(rank: &Rank, cols: usize) -> Range<usize> {
    rank.own_range(cols)
}

fn seed(launch: usize, tensor: u64) -> u64 {
    launch as u64 * 100 + tensor
}

fn poisoned(rank: &Rank, rows: usize, cols: usize) -> Result<Tensor<bf16>, Error> {
    rank.tensor(rows, cols, &vec![bf16::NAN; rows * cols])
}

fn all_gather(rank: &Rank, [m, n, _]: [usize; 3], schedule: Option<&Schedule>) -> Checked {
    let kernel = load!(all_gather, rank, schedule);
    let own = rank.own_range(m);
    (0..LAUNCHES)
        .map(|launch| {
            let whole = Whole::new(seed(launch, 1), m, n);
            let x = rank.tensor(own.len(), n, &whole.part(own.clone(), 0..n))?;
            let mut c = poisoned(rank, m, n)?;
            kernel.launch(&x, &mut c)?;
            Ok((c.to_vec()?, whole.data))
        })
        .collect()
}

fn reduce_scatter(rank: &Rank, [m, n, _]: [usize; 3], schedule: Option<&Schedule>) -> Checked {
    let kernel = load!(reduce_scatter, rank, schedule);
    let own = rank.own_range(m);
    (0..LAUNCHES)
        .map(|launch| {
            let of = |rank: usize| Whole::new(seed(launch, rank as u64), m, n);
            let x = rank.tensor(m, n, &of(rank.index() as usize).data)?;
            let mut c = poisoned(rank, own.len(), n)?;
            kernel.launch(&x, &mut c)?;
            let all: Vec<Whole> = (0..ranks(rank)).map(of).collect();
            let sum = |(row, col): (usize, usize)| all.iter().map(|x| x.at(row, col)).sum();
            let elements = own.clone().flat_map(|row| (0..n).map(move |col| (row, col)));
            Ok((c.to_vec()?, elements.map(|at| bf16::from_f32(sum(at))).collect()))
        })
        .collect()
}

fn rows_to_columns(
    rank: &Rank,
    [m, n, _]: [usize; 3],
    schedule: Option<&Schedule>,
    of: Rows,
) -> Checked {
    let kernel = load!(rows_to_columns, rank, schedule);
    let rows = of.of(rank, m);
    let own = ranges(&rows)[rank.index() as usize].clone();
    let cols = own_columns(rank, n);
    (0..LAUNCHES)
        .map(|launch| {
            let whole = Whole::new(seed(launch, 1), m, n);
            let x = rank.tensor(own.len(), n, &whole.part(own.clone(), 0..n))?;
            let mut c = poisoned(rank, m, cols.len())?;
            launch!(kernel, of, rows, &x, &mut c);
            Ok((c.to_vec()?, whole.part(0..m, cols.clone())))
        })
        .collect()
}

fn columns_to_rows(
    rank: &Rank,
    [m, n, _]: [usize; 3],
    schedule: Option<&Schedule>,
    of: Rows,
) -> Checked {
    let kernel = load!(columns_to_rows, rank, schedule);
    let rows = of.of(rank, m);
    let own = ranges(&rows)[rank.index() as usize].clone();
    let cols = own_columns(rank, n);
    (0..LAUNCHES)
        .map(|launch| {
            let whole = Whole::new(seed(launch, 1), m, n);
            let x = rank.tensor(m, cols.len(), &whole.part(0..m, cols.clone()))?;
            let mut c = poisoned(rank, own.len(), n)?;
            launch!(kernel, of, rows, &x, &mut c);
            Ok((c.to_vec()?, whole.part(own.clone(), 0..n)))
        })
        .collect()
}

fn gemm_a2a(rank: &Rank, [m, n, k]: [usize; 3], schedule: Option<&Schedule>, of: Rows) -> Checked {
    let kernel = load!(gemm_a2a, rank, schedule);
    let rows = of.of(rank, m);
    let own = ranges(&rows)[rank.index() as usize].clone();
    let cols = own_columns(rank, n);
    (0..LAUNCHES)
        .map(|launch| {
            let a = Whole::new(seed(launch, 1), m, k);
            let b = |rank: usize| Whole::new(seed(launch, 2 + rank as u64), n, k);
            let x = rank.tensor(own.len(), k, &a.part(own.clone(), 0..k))?;
            let w = rank.tensor(n, k, &b(rank.index() as usize).data)?;
            let mut c = poisoned(rank, m, cols.len())?;
            launch!(kernel, of, rows, &x, &w, &mut c);
            Ok((c.to_vec()?, a.times(b, &rows, true).part(0..m, cols.clone())))
        })
        .collect()
}

fn a2a_gemm(rank: &Rank, [m, n, k]: [usize; 3], schedule: Option<&Schedule>, of: Rows) -> Checked {
    let kernel = load!(a2a_gemm, rank, schedule);
    let rows = of.of(rank, m);
    let own = ranges(&rows)[rank.index() as usize].clone();
    let cols = own_columns(rank, k);
    (0..LAUNCHES)
        .map(|launch| {
            let a = Whole::new(seed(launch, 1), m, k);
            let b = |rank: usize| Whole::new(seed(launch, 2 + rank as u64), n, k);
            let x = rank.tensor(m, cols.len(), &a.part(0..m, cols.clone()))?;
            let w = rank.tensor(n, k, &b(rank.index() as usize).data)?;
            let mut c = poisoned(rank, own.len(), n)?;
            launch!(kernel, of, rows, &x, &w, &mut c);
            Ok((c.to_vec()?, a.times(b, &rows, true).part(own.clone(), 0..n)))
        })
        .collect()
}

fn ag_gemm_nn(rank: &Rank, [m, n, k]: [usize; 3], schedule: Option<&Schedule>) -> Checked {
    let kernel = load!(ag_gemm_nn, rank, schedule);
    let own = rank.own_range(m);
    (0..LAUNCHES)
        .map(|launch| {
            let a = Whole::new(seed(launch, 1), m, k);
            let b = Whole::new(seed(launch, 2), k, n);
            let x = rank.tensor(own.len(), k, &a.part(own.clone(), 0..k))?;
            let w = rank.tensor(k, n, &b.data)?;
            let mut c = poisoned(rank, m, n)?;
            kernel.launch(&x, &w, &mut c)?;
            Ok((c.to_vec()?, a.times(|_| b.clone(), &[m], false).data))
        })
        .collect()
}

/// The gathered rows and the product, one behind the other.
fn ag_gemm_gathered(rank: &Rank, [m, n, k]: [usize; 3], schedule: Option<&Schedule>) -> Checked {
    let kernel = load!(ag_gemm_gathered, rank, schedule);
    let own = rank.own_range(m);
    (0..LAUNCHES)
        .map(|launch| {
            let a = Whole::new(seed(launch, 1), m, k);
            let b = Whole::new(seed(launch, 2), n, k);
            let shard = rank.tensor(own.len(), k, &a.part(own.clone(), 0..k))?;
            let w = rank.tensor(n, k, &b.data)?;
            let (mut x, mut c) = (poisoned(rank, m, k)?, poisoned(rank, m, n)?);
            kernel.launch(&shard, &w, &mut x, &mut c)?;
            let product = a.times(|_| b.clone(), &[m], true);
            Ok(([x.to_vec()?, c.to_vec()?].concat(), [a.data, product.data].concat()))
        })
        .collect()
}

fn gemm_rs_nn(rank: &Rank, [m, n, k]: [usize; 3], schedule: Option<&Schedule>) -> Checked {
    let kernel = load!(gemm_rs_nn, rank, schedule);
    let own = rank.own_range(m);
    (0..LAUNCHES)
        .map(|launch| {
            let a = |rank: usize| Whole::new(seed(launch, 2 * rank as u64), m, k);
            let b = |rank: usize| Whole::new(seed(launch, 2 * rank as u64 + 1), k, n);
            let index = rank.index() as usize;
            let x = rank.tensor(m, k, &a(index).data)?;
            let w = rank.tensor(k, n, &b(index).data)?;
            let mut c = poisoned(rank, own.len(), n)?;
            kernel.launch(&x, &w, &mut c)?;
            let products: Vec<Whole> =
                (0..ranks(rank)).map(|rank| a(rank).times(|_| b(rank), &[m], false)).collect();
            let sum = |at: usize| products.iter().map(|x| x.data[at].to_f32()).sum::<f32>();
            let all = own.start * n..own.end * n;
            Ok((c.to_vec()?, all.map(|at| bf16::from_f32(sum(at))).collect()))
        })
        .collect()
}

fn gemm_ag_tn(rank: &Rank, [m, n, k]: [usize; 3], schedule: Option<&Schedule>) -> Checked {
    let kernel = load!(gemm_ag_tn, rank, schedule);
    let own = rank.own_range(k);
    (0..LAUNCHES)
        .map(|launch| {
            let a = Whole::new(seed(launch, 2 + u64::from(rank.index())), k, m);
            let b = Whole::new(seed(launch, 1), k, n);
            let x = rank.tensor(k, m, &a.data)?;
            let w = rank.tensor(own.len(), n, &b.part(own.clone(), 0..n))?;
            let mut c = poisoned(rank, m, n)?;
            kernel.launch(&x, &w, &mut c)?;
            Ok((c.to_vec()?, a.t().times(|_| b.clone(), &[m], false).data))
        })
        .collect()
}

fn ag_gemm_tn(rank: &Rank, [m, n, k]: [usize; 3], schedule: Option<&Schedule>) -> Checked {
    let kernel = load!(ag_gemm_tn, rank, schedule);
    let own = rank.own_range(k);
    (0..LAUNCHES)
        .map(|launch| {
            let a = Whole::new(seed(launch, 1), k, m);
            let b = Whole::new(seed(launch, 2 + u64::from(rank.index())), k, n);
            let x = rank.tensor(own.len(), m, &a.part(own.clone(), 0..m))?;
            let w = rank.tensor(k, n, &b.data)?;
            let mut c = poisoned(rank, m, n)?;
            kernel.launch(&x, &w, &mut c)?;
            Ok((c.to_vec()?, a.t().times(|_| b.clone(), &[m], false).data))
        })
        .collect()
}

const PUT: Option<Transport> = Some(Transport::Put);

const CASES: [(&str, Case, &[Option<Transport>]); 15] = [
    ("all_gather", all_gather, &[None, PUT]),
    ("reduce_scatter", reduce_scatter, &[None]),
    ("rows_to_columns", |r, of, s| rows_to_columns(r, of, s, Rows::Even), &[None]),
    ("columns_to_rows", |r, of, s| columns_to_rows(r, of, s, Rows::Even), &[None, PUT]),
    ("gemm_a2a", |r, of, s| gemm_a2a(r, of, s, Rows::Even), &[None]),
    ("a2a_gemm", |r, of, s| a2a_gemm(r, of, s, Rows::Even), &[None, PUT]),
    ("uneven rows_to_columns", |r, of, s| rows_to_columns(r, of, s, Rows::Uneven), &[None]),
    ("uneven columns_to_rows", |r, of, s| columns_to_rows(r, of, s, Rows::Uneven), &[None, PUT]),
    ("uneven gemm_a2a", |r, of, s| gemm_a2a(r, of, s, Rows::Uneven), &[None]),
    ("uneven a2a_gemm", |r, of, s| a2a_gemm(r, of, s, Rows::Uneven), &[None, PUT]),
    ("ag_gemm_nn", ag_gemm_nn, &[None]),
    ("ag_gemm_gathered", ag_gemm_gathered, &[None, PUT, Some(Transport::CopyFirst)]),
    ("gemm_rs_nn", gemm_rs_nn, &[None]),
    ("gemm_ag_tn", gemm_ag_tn, &[None, PUT]),
    ("ag_gemm_tn", ag_gemm_tn, &[None, PUT]),
];

/// Runs every case on `world`; says what differs.
fn are_exact(world: &World, shapes: &[[usize; 3]], on_device: bool) {
    for (name, case, transports) in CASES {
        for transport in transports {
            let schedule = transport.map(|transport| {
                let (cols, stages) = if name.contains("gemm") { (256, 4) } else { (64, 2) };
                Schedule::sm_90a().tile(128, cols, 64).stages(stages).transport(transport)
            });
            // The host runs the first schedule of a kernel.
            if schedule.is_some() && !on_device {
                continue;
            }
            for &shape in shapes {
                let found = world.run(|rank| case(rank, shape, schedule.as_ref()));
                let found = found.unwrap_or_else(|e| panic!("{name} {shape:?}: {e}"));
                for (rank, launches) in found.into_iter().enumerate() {
                    for (launch, (found, expected)) in launches.into_iter().enumerate() {
                        let same = |(a, b): (&bf16, &bf16)| a.to_f32() == b.to_f32();
                        let wrong = found.iter().zip(&expected).position(|pair| !same(pair));
                        assert!(
                            found.len() == expected.len() && wrong.is_none(),
                            "{name}, {shape:?}, {transport:?}, rank {rank} of {}, launch {launch}: element {wrong:?}",
                            world.size()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn collectives_are_exact_on_the_host() {
    for ranks in [1, 2, 3, 5] {
        are_exact(&World::host(ranks).expect("a world of threads"), &SHAPES[..2], false);
    }
}

#[test]
fn collectives_are_exact_on_virtual_ranks() {
    for ranks in [1, 2, 4, 8] {
        let world = match placed::world(ranks) {
            Ok(world) => world,
            Err(error) => return println!("skipped: no CUDA device ({error})"),
        };
        are_exact(&world, &SHAPES, true);
    }
}

/// Small enough for `compute-sanitizer`.
#[test]
fn small_collectives_are_exact_on_two_virtual_ranks() {
    match placed::world(2) {
        Ok(world) => are_exact(&world, &SHAPES[1..2], true),
        Err(error) => println!("skipped: no CUDA device ({error})"),
    }
}
