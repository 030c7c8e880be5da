//! An operator over ranks, fused and in every other way, in one rotation.

use super::gather::Gather;
use super::link::{Link, parts};
use super::operands::sets;
use super::scatter::Scatter;
use super::{LIMIT, Number, Timer, conditions};
use crate::error::Error;
use crate::kernels::{Choice, Fused, Plain};
use crate::overlap::{Overlap, OverlapSamples};
use crate::report::{Measured, Report};
use crate::rotation::{Contestant, Rounds, rotate};
use crate::shapes::Dims;
use crate::telemetry::Telemetry;
use flux::{Peers, Rank, World};
use flux_runtime::blas::{Blas, Gemm, GemmShape, Layout, Sums};
use flux_runtime::numbers::Numbers;
use flux_runtime::{Device, ElementKind, Span, Stream};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Chunks that overlapped baselines are cut into; the best count is told.
const CHUNKS: [u32; 5] = [2, 4, 8, 16, 32];

/// Runs of each algorithm when the library's best is looked for.
const TUNING_RUNS: u32 = 5;

/// How long a kernel waits for its peers before it gives up.
const STALL: Duration = Duration::from_secs(5);

/// Which operator is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// All-gather, then the product.
    Gather,
    /// The product, then the reduce-scatter.
    Scatter,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Gather => "AG-GEMM",
            Kind::Scatter => "GEMM-RS",
        })
    }
}

/// What is measured, and how.
#[derive(Debug, Clone)]
pub struct OverlapOptions {
    /// The command, for the report.
    pub command: String,
    /// The operator.
    pub kind: Kind,
    /// Ranks.
    pub world: u32,
    /// Where the memory of the passive peers lies.
    pub peers: Peers,
    /// The shapes.
    pub shapes: Vec<Dims>,
    /// How the fused kernel runs.
    pub choice: Choice,
    /// Further ways in which it runs, measured in the same rotation.
    pub plans: Vec<Choice>,
    /// Rounds.
    pub rounds: Rounds,
    /// How long the device rests between shapes, at least.
    pub rest: Duration,
}

/// One shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OverlapRow {
    /// The shape: all rows of M, one rank's N and K.
    pub shape: Dims,
    /// All times.
    #[serde(flatten)]
    pub overlap: Overlap,
    /// The largest difference to the reference on normal data; on integers there is none.
    pub largest_difference: f32,
}

/// Measures every shape in the format `T`; `tell` hears of each row as soon as it is there.
///
/// # Errors
/// No device, no cuBLASLt, a wrong result, a stalled kernel.
pub fn overlap<T: Number + Plain + Fused>(
    options: &OverlapOptions,
    mut tell: impl FnMut(&Measured<OverlapRow>),
) -> Result<Report<Measured<OverlapRow>>, Error> {
    let world = open(options)?;
    let ranks = world.ranks();
    let [rank] = ranks.as_slice() else { return Err(Error::NoDevice) };
    let context = Context::new::<T>(rank, options, &CHUNKS)?;
    let timer = Timer::new(Arc::clone(&context.link.main))?;
    let telemetry = Telemetry::open(context.device.ordinal());
    let cool = telemetry.as_ref().and_then(Telemetry::read).map_or(0, |now| now.celsius + 5);
    let mut rows = Vec::new();
    for &shape in &options.shapes {
        let row = row::<T>(&context, &timer, options, options.kind, shape)?;
        let row = Measured { row, reading: telemetry.as_ref().and_then(Telemetry::read) };
        tell(&row);
        rows.push(row);
        match &telemetry {
            Some(telemetry) => telemetry.cool_down(cool, options.rest, 4 * options.rest),
            None => std::thread::sleep(options.rest),
        }
    }
    let place = match options.peers {
        Peers::Host => "on the host",
        Peers::Device => "on the device",
        Peers::Resident => "on the device, what they send in place",
    };
    let title = format!("{}, {}, {} ranks, peers {place}", options.kind, T::NAME, options.world);
    let conditions = conditions(&context.device, &options.command, options.rounds);
    Ok(Report { title, conditions, rows })
}

/// The world that is measured.
pub(super) fn open(options: &OverlapOptions) -> Result<World, Error> {
    Ok(World::passive(0, options.world, options.peers)?.with_limit(STALL))
}

/// One shape.
pub(super) fn row<T: Number + Plain + Fused>(
    context: &Context<'_>,
    timer: &Timer,
    options: &OverlapOptions,
    kind: Kind,
    shape: Dims,
) -> Result<OverlapRow, Error> {
    let (overlap, largest_difference) = match kind {
        Kind::Gather => measure(&Gather::<T>::new(context, shape)?, context, timer, options),
        Kind::Scatter => measure(&Scatter::<T>::new(context, shape)?, context, timer, options),
    }?;
    Ok(OverlapRow { shape, overlap, largest_difference })
}

/// The ways of computing one operator for one shape. Each enqueues its work behind the main stream
/// and lets that stream go on when all of it is done.
pub(crate) trait Operator {
    /// Sets of operands that rotate.
    fn sets(&self) -> usize;
    /// The counts of chunks that the shape can be cut into.
    fn chunk_counts(&self) -> Vec<u32>;
    /// cuBLASLt's product alone.
    fn blas(&self, set: usize) -> Result<(), Error>;
    /// Our product alone.
    fn ours(&self, set: usize) -> Result<(), Error>;
    /// Communication alone, in both directions, in as few copies as there are pairs of ranks.
    fn comm(&self) -> Result<(), Error>;
    /// One after the other.
    fn none(&self, set: usize) -> Result<(), Error>;
    /// Cut into chunks, on two streams for products and one for each direction.
    fn chunked(&self, chunks: u32, set: usize) -> Result<(), Error>;
    /// The fused kernel, or where `which` is not 0 that of [`OverlapOptions::plans`]' `which - 1`.
    fn fused(&self, which: usize, set: usize) -> Result<(), Error>;
    /// Computes it in every way and compares all elements; overwrites the operands. Gives the
    /// largest difference on normal data.
    fn verify(&self) -> Result<f32, Error>;
}

/// What all shapes of a run share.
#[derive(Debug)]
pub(crate) struct Context<'r> {
    pub(crate) rank: &'r Rank,
    pub(crate) device: Arc<Device>,
    pub(crate) peers: Peers,
    pub(crate) numbers: Numbers,
    pub(crate) blas: Arc<Blas>,
    pub(crate) link: Link,
    /// Chunks that baselines are cut into.
    chunks: &'static [u32],
    /// How fused kernels run.
    pub(crate) choice: &'r Choice,
    pub(crate) plans: &'r [Choice],
}

impl<'r> Context<'r> {
    pub(super) fn new<T: Number>(
        rank: &'r Rank,
        options: &'r OverlapOptions,
        chunks: &'static [u32],
    ) -> Result<Self, Error> {
        let OverlapOptions { peers, choice, plans, .. } = options;
        let peers = *peers;
        let device = rank.device().ok_or(Error::NoDevice)?;
        let numbers = Numbers::load(&device, T::ELEMENT)?;
        let link = Link::new(rank.stream().ok_or(Error::NoDevice)?)?;
        let blas = Blas::new(&device)?;
        Ok(Context { rank, peers, numbers, blas, link, device, chunks, choice, plans })
    }

    /// Rows of a shard. Baselines take equal ones.
    pub(crate) fn shard(&self, shape: Dims) -> Result<usize, Error> {
        let world = self.rank.world_size();
        if !shape.m.is_multiple_of(world as usize) {
            return Err(Error::Shards { shape, world });
        }
        Ok(shape.m / world as usize)
    }

    /// cuBLASLt's products of `shape`, whole and in chunks.
    pub(crate) fn products(&self, shape: Dims, element: ElementKind) -> Result<Products, Error> {
        Products::new(&self.blas, self.chunks, Layout::Nt, shape, element)
    }

    pub(crate) fn sets(&self, bytes: usize) -> usize {
        sets(bytes as u64, self.device.properties().l2_bytes)
    }
}

/// cuBLASLt's products of all rows and of each chunk's, two of a kind for two streams.
#[derive(Debug)]
pub(crate) struct Products {
    rows: usize,
    plans: RefCell<Vec<(u32, [Gemm; 2])>>,
    /// Sums in f32 from first to last: what results are compared with.
    reference: Gemm,
}

impl Products {
    /// Of operands that lie as `layout` says, all rows and as many as each of `chunks` parts has.
    pub(crate) fn new(
        blas: &Arc<Blas>,
        chunks: &[u32],
        layout: Layout,
        shape: Dims,
        element: ElementKind,
    ) -> Result<Self, Error> {
        let Dims { m, n, k } = shape;
        let plan = |rows: usize| GemmShape {
            m: rows as u64,
            n: n as u64,
            k: k as u64,
            element,
            alignment: if n.is_multiple_of(8) && k.is_multiple_of(8) { 16 } else { 2 },
        };
        let mut plans = Vec::new();
        for chunks in std::iter::once(1).chain(chunks.iter().copied()) {
            let Some(parts) = parts(m, chunks) else { continue };
            let gemm = || blas.gemm_of(plan(parts[0].len()), layout, Sums::AsItLikes);
            plans.push((chunks, [gemm()?, gemm()?]));
        }
        let reference = blas.gemm_of(plan(m), layout, Sums::InF32)?;
        Ok(Products { rows: m, plans: RefCell::new(plans), reference })
    }

    /// The counts of chunks above one.
    pub(crate) fn chunk_counts(&self) -> Vec<u32> {
        let plans = self.plans.borrow();
        plans.iter().map(|(chunks, _)| *chunks).filter(|&chunks| chunks > 1).collect()
    }

    /// Finds the fastest algorithm of each, on the operands that `operands` gives for some rows.
    pub(crate) fn tune<'s>(
        &self,
        stream: &Stream,
        operands: impl Fn(&Range<usize>) -> Result<(Span<'s>, Span<'s>, Span<'s>), Error>,
    ) -> Result<(), Error> {
        for (chunks, plans) in self.plans.borrow_mut().iter_mut() {
            let Some(parts) = parts(self.rows, *chunks) else { continue };
            let (a, b, c) = operands(&parts[0])?;
            for plan in plans {
                plan.tune(stream, a, b, c, TUNING_RUNS, LIMIT)?;
            }
        }
        Ok(())
    }

    /// The product of chunk `index` of `chunks`.
    pub(crate) fn run(
        &self,
        chunks: u32,
        index: usize,
        stream: &Stream,
        a: Span<'_>,
        b: Span<'_>,
        c: Span<'_>,
    ) -> Result<(), Error> {
        let plans = self.plans.borrow();
        for (found, plans) in plans.iter() {
            if *found == chunks {
                plans[index % 2].run(stream, a, b, c)?;
            }
        }
        Ok(())
    }

    /// The product of all rows, for comparisons.
    pub(crate) fn reference(
        &self,
        stream: &Stream,
        a: Span<'_>,
        b: Span<'_>,
        c: Span<'_>,
    ) -> Result<(), Error> {
        Ok(self.reference.run(stream, a, b, c)?)
    }
}

/// One shape: the rotation, then the results.
fn measure(
    operator: &dyn Operator,
    context: &Context<'_>,
    timer: &Timer,
    options: &OverlapOptions,
) -> Result<(Overlap, f32), Error> {
    let overlap = rotation(operator, options.rounds, &options.plans, |_, enqueue| {
        let timed = timer.time(enqueue);
        // Whatever stands still is released, and says why.
        timed.or_else(|error| context.rank.synchronize().map_err(Error::from).and(Err(error)))
    })?;
    context.rank.synchronize()?;
    Ok((overlap, operator.verify()?))
}

/// All ways of one operator in turn; `time` gives the milliseconds of what it is to enqueue, and
/// hears which of the ways that is.
pub(crate) fn rotation(
    operator: &dyn Operator,
    rounds: Rounds,
    plans: &[Choice],
    time: impl Fn(usize, &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error>,
) -> Result<Overlap, Error> {
    let sets = operator.sets();
    type Way<'o> = Box<dyn Fn(usize) -> Result<(), Error> + 'o>;
    let mut ways: Vec<(String, Way<'_>)> = vec![
        ("cuBLASLt".into(), Box::new(|set| operator.blas(set))),
        ("ours".into(), Box::new(|set| operator.ours(set))),
        ("communication".into(), Box::new(|_| operator.comm())),
        ("no overlap".into(), Box::new(|set| operator.none(set))),
        ("fused".into(), Box::new(|set| operator.fused(0, set))),
    ];
    let counts = operator.chunk_counts();
    for &chunks in &counts {
        let way = move |set| operator.chunked(chunks, set);
        ways.push((format!("{chunks} chunks"), Box::new(way)));
    }
    for (index, plan) in plans.iter().enumerate() {
        ways.push((plan.to_string(), Box::new(move |set| operator.fused(index + 1, set))));
    }
    let contestants = ways.into_iter().enumerate().map(|(offset, (name, way))| {
        let time = &time;
        let mut next = offset;
        Contestant::new(name, move |_| {
            time(offset, &mut || {
                next += 1;
                way(next % sets)
            })
        })
    });
    let mut contestants: Vec<Contestant<'_, Error>> = contestants.collect();
    let mut samples = rotate(rounds, &mut contestants)?.into_iter();
    drop(contestants);
    let mut next = || samples.next().unwrap_or_default();
    let samples = OverlapSamples {
        blas: next(),
        ours: next(),
        comm: next(),
        none: next(),
        fused: next(),
        chunked: counts.into_iter().map(|chunks| (chunks, next())).collect(),
        plans: plans.iter().map(|plan| (plan.to_string(), next())).collect(),
    };
    samples.summary().ok_or(Error::NoSamples)
}
