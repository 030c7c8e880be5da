//! Operators over ranks on several GPUs, all of them active, beside NCCL and cuBLASLt.
//!
//! Each GPU is a rank of this process. All ranks run the same rotation, each on a thread of its own;
//! a sample is the time of the slowest of them.

mod kind;
mod report;
mod together;
mod verify;
mod ways;

pub use kind::Kind;
pub use report::{CollectiveRow, collective_table};

use crate::device::fused::{Operator, rotation};
use crate::device::link::Link;
use crate::device::{Number, OverlapRow, Resting, conditions};
use crate::error::Error;
use crate::kernels::{Choice, Plain};
use crate::report::{Measured, Report};
use crate::rotation::{Contestant, Rounds, rotate};
use crate::shapes::Dims;
use crate::stage::stage;
use flux::{Rank, World};
use flux_runtime::Device;
use flux_runtime::blas::Blas;
use flux_runtime::nccl::{Nccl, NcclId};
use flux_runtime::numbers::Numbers;
use std::cell::RefCell;
use std::sync::Mutex;
use std::time::Duration;
use together::{Clock, Together};
use ways::{Site, Ways};

/// How long a kernel waits for its peers before it gives up.
const STALL: Duration = Duration::from_secs(5);

/// Work that takes less is timed several times in a row, so that a sample is no shorter.
const LEAST_MS: f64 = 0.3;

/// Runs of one sample, at most: what copy engines do in a launch is enqueued when peers are through
/// with the launch before the last one, so a third would wait for what a closed gate holds.
const MOST_LAUNCHES: f64 = 2.0;

/// What is measured, and how.
#[derive(Debug, Clone)]
pub struct RanksOptions {
    /// The command, for the report.
    pub command: String,
    /// The GPU of each rank, all different: NCCL wants it so.
    pub gpus: Vec<u32>,
    /// The operator.
    pub kind: Kind,
    /// The shapes: M of all ranks together, N and K of one.
    pub shapes: Vec<Dims>,
    /// How the fused kernel runs.
    pub choice: Choice,
    /// Further ways in which it runs, measured in the same rotation.
    pub plans: Vec<Choice>,
    /// Rounds.
    pub rounds: Rounds,
    /// How long the devices rest between shapes, at least.
    pub rest: Duration,
}

/// Measures every shape of a product with communication in the format `T`; `tell` hears of each row
/// as soon as it is there.
///
/// # Errors
/// A GPU, cuBLASLt or NCCL that is missing, a wrong result, a stalled kernel.
pub fn ranks<T: Number + Plain>(
    options: &RanksOptions,
    tell: impl FnMut(&Measured<OverlapRow>) + Send,
) -> Result<Report<Measured<OverlapRow>>, Error> {
    on_every_rank::<T, _>(options, tell, |ways, clock, options, shape| {
        let time = Samples::new(clock);
        let overlap = rotation(ways, options.rounds, &options.plans, |way, enqueue| {
            time.sample(way, enqueue)
        })?;
        Ok(OverlapRow { shape, overlap, largest_difference: ways.verify()? })
    })
}

/// Measures every shape of a collective.
///
/// # Errors
/// As [`ranks`].
pub fn collectives<T: Number + Plain>(
    options: &RanksOptions,
    tell: impl FnMut(&Measured<CollectiveRow>) + Send,
) -> Result<Report<Measured<CollectiveRow>>, Error> {
    on_every_rank::<T, _>(options, tell, |ways, clock, options, shape| {
        let time = Samples::new(clock);
        let ours = options.plans.len() + 1;
        let mut contestants =
            vec![Contestant::new("NCCL", |_| time.sample(0, &mut || ways.comm()))];
        for which in 0..ours {
            let (time, mut set) = (&time, which);
            contestants.push(Contestant::new(format!("ours {which}"), move |_| {
                time.sample(which + 1, &mut || {
                    set += 1;
                    ways.fused(which, set % ways.sets())
                })
            }));
        }
        let samples = rotate(options.rounds, &mut contestants)?;
        drop(contestants);
        ways.verify()?;
        CollectiveRow::new(options.kind, shape, &samples, &options.plans).ok_or(Error::NoSamples)
    })
}

/// What a rank measures of one shape.
type Measure<T, R> = fn(&Ways<'_, T>, &Clock<'_>, &RanksOptions, Dims) -> Result<R, Error>;

/// Runs `measure` for every shape on every rank, and keeps what rank 0 makes of it: samples are the
/// same on all.
fn on_every_rank<T: Number + Plain, R: Send>(
    options: &RanksOptions,
    tell: impl FnMut(&Measured<R>) + Send,
    measure: Measure<T, R>,
) -> Result<Report<Measured<R>>, Error> {
    let devices = options.gpus.iter().map(|&gpu| Device::open(gpu));
    let devices = devices.collect::<Result<Vec<_>, _>>()?;
    // Before anything is enqueued: whether there is NCCL at all.
    let id = NcclId::new()?;
    let world = World::devices(&options.gpus)?.with_limit(STALL);
    let (together, tell) = (Together::new(&devices)?, Mutex::new(tell));
    let outcomes = world.run(|rank| Ok(of_rank(rank, id, &together, options, &tell, measure)))?;
    let mut rows = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    let title = format!("{}, {}, {world}", options.kind, T::NAME);
    let conditions = conditions(&devices[0], &options.command, options.rounds);
    Ok(Report { title, conditions, rows: rows.swap_remove(0) })
}

fn of_rank<T: Number + Plain, R>(
    rank: &Rank,
    id: NcclId,
    together: &Together,
    options: &RanksOptions,
    tell: &Mutex<impl FnMut(&Measured<R>)>,
    measure: Measure<T, R>,
) -> Result<Vec<Measured<R>>, Error> {
    let device = rank.device().ok_or(Error::NoDevice)?;
    stage("NCCL");
    let site = Site {
        rank,
        nccl: Nccl::join(&device, id, rank.world_size(), rank.index())?,
        blas: Blas::new(&device)?,
        numbers: Numbers::load(&device, T::ELEMENT)?,
        link: Link::new(rank.stream().ok_or(Error::NoDevice)?)?,
        choices: std::iter::once(&options.choice).chain(&options.plans).cloned().collect(),
    };
    let clock = Clock::new(together, rank)?;
    let resting = Resting::open(&device, options.rest);
    let mut rows = Vec::new();
    for &shape in &options.shapes {
        let ways = Ways::<T>::new(&site, options.kind, shape)?;
        let row = measure(&ways, &clock, options, shape)?;
        let row = Measured { row, reading: resting.reading() };
        if let (0, Ok(mut tell)) = (rank.index(), tell.lock()) {
            tell(&row);
        }
        rows.push(row);
        resting.rest();
    }
    Ok(rows)
}

/// Samples that are long enough, whatever is timed.
struct Samples<'c> {
    clock: &'c Clock<'c>,
    /// How often each way runs in one sample, once it has been timed.
    launches: RefCell<Vec<Option<u32>>>,
}

impl<'c> Samples<'c> {
    fn new(clock: &'c Clock<'c>) -> Samples<'c> {
        Samples { clock, launches: RefCell::new(Vec::new()) }
    }

    /// Milliseconds of one run of way `way`; the first sample of each tells how many runs the next
    /// ones have, on all ranks the same number.
    fn sample(
        &self,
        way: usize,
        enqueue: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<f64, Error> {
        let known = self.launches.borrow().get(way).copied().flatten();
        let launches = known.unwrap_or(1);
        let ms = self.clock.time(|| (0..launches).try_for_each(|_| enqueue()))?;
        if known.is_none() {
            let mut all = self.launches.borrow_mut();
            let length = all.len().max(way + 1);
            all.resize(length, None);
            all[way] = Some((LEAST_MS / ms.max(1e-3)).ceil().clamp(1.0, MOST_LAUNCHES) as u32);
        }
        Ok(ms / f64::from(launches))
    }
}
