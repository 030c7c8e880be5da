//! The streams of a rank, and which of its launches have results.

use super::capture::Used;
use crate::error::Error;
use flux_runtime::{Device, Event, SmBudget, Stream, Timing};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Streams of a rank that copy: each agent that waits for CTAs has one of its own.
pub(super) const COPIERS: usize = 2;

/// The streams of one rank, and what reports its stalls.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Index of the rank's GPU.
    pub(super) card: usize,
    /// Kernels, and everything the caller orders behind them; the caller's own where given.
    main: Mutex<Arc<Stream>>,
    /// Copies to peers. One where ranks are so many that two each would share queues: programs
    /// that need both are refused then.
    pub(super) copiers: Vec<Copier>,
    /// Launches so far, whatever their kernel.
    launched: AtomicU64,
    spoiled: Mutex<Spoiled>,
    /// What launches use that are recorded, while they are.
    pub(super) capture: Mutex<Option<Used>>,
    flights: Flights,
}

/// Streams of a rank that kernels may run on at once.
#[derive(Debug)]
struct Flights {
    /// Whether there has ever been more than one.
    several: AtomicBool,
    on: Mutex<Vec<Flight>>,
    /// A recorded point is taken when a wait for it is enqueued.
    tick: Event,
    /// CTAs that this rank's part of the device holds at once.
    share: u32,
}

/// A stream with work.
#[derive(Debug)]
struct Flight {
    stream: Arc<Stream>,
    /// The most that one of its kernels has.
    ctas: u32,
}

/// A launch of a rank: the rank's number in the world in the upper byte, then its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaunchId(pub(crate) u64);

impl LaunchId {
    /// None.
    pub(crate) const NONE: LaunchId = LaunchId(0);

    pub(super) fn new(rank: u32, launch: u64) -> LaunchId {
        LaunchId(u64::from(rank) << 56 | launch)
    }

    pub(super) fn parts(self) -> (usize, u64) {
        ((self.0 >> 56) as usize, self.0 & ((1 << 56) - 1))
    }
}

/// Launches without results.
#[derive(Debug, Default)]
struct Spoiled {
    /// Launches up to this one have been judged.
    judged: u64,
    /// The first and the last of launches of which one failed, with the reason. All that were under
    /// way together count, as one may have read what another wrote.
    failed: Vec<(u64, u64, Error)>,
}

/// Whether a stream has nothing to do. Asking one that is captured would end its capture.
fn is_idle(stream: &Stream) -> Result<bool, Error> {
    Ok(!stream.is_capturing()? && stream.is_idle()?)
}

/// What runs one copy engine's agent.
#[derive(Debug)]
pub(crate) struct Copier {
    pub(super) copies: Stream,
    /// Signals that follow copies. On a stream of their own the link does not stand still while a
    /// word is written; `None` where ranks are so many that they would share queues, and signals
    /// go between the copies.
    words: Option<Stream>,
    /// A recorded point is taken when a wait for it is enqueued, so one event serves all.
    tick: Event,
}

impl Copier {
    pub(super) fn new(device: &Arc<Device>, apart: bool) -> Result<Copier, Error> {
        let copies = Stream::new(device)?;
        let words = apart.then(|| Stream::new(device)).transpose()?;
        Ok(Copier { copies, words, tick: Event::new(device, Timing::Off)? })
    }

    /// The stream of signals.
    pub(super) fn words(&self) -> &Stream {
        self.words.as_ref().unwrap_or(&self.copies)
    }

    /// The stream of a signal that follows all copies enqueued so far.
    pub(super) fn signals(&self) -> Result<&Stream, Error> {
        let Some(words) = &self.words else { return Ok(&self.copies) };
        self.copies.record(&self.tick)?;
        words.wait(&self.tick)?;
        Ok(words)
    }
}

impl Lane {
    pub(super) fn new(
        device: &Arc<Device>,
        (card, ranks): (usize, u32),
        copiers: usize,
        apart: bool,
    ) -> Result<Lane, Error> {
        let main = Mutex::new(Arc::new(Stream::new(device)?));
        let copiers = (0..copiers).map(|_| Copier::new(device, apart));
        let copiers = copiers.collect::<Result<_, Error>>()?;
        let flights = Flights {
            several: AtomicBool::new(false),
            on: Mutex::default(),
            tick: Event::new(device, Timing::Off)?,
            share: SmBudget::split(device.properties().sms, ranks, 0)?.ctas,
        };
        let (launched, spoiled) = (AtomicU64::new(0), Mutex::default());
        Ok(Lane { card, main, copiers, launched, spoiled, capture: Mutex::default(), flights })
    }

    pub(crate) fn main(&self) -> Arc<Stream> {
        Arc::clone(&self.main.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_main(&self, stream: Arc<Stream>) {
        self.use_several();
        *self.main.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }

    /// From now on launches look for each other on several streams: those enqueued so far as well.
    pub(super) fn use_several(&self) {
        let (main, mut flights) = (self.main(), self.flights());
        if !flights.iter().any(|flight| Arc::ptr_eq(&flight.stream, &main)) {
            flights.push(Flight { stream: main, ctas: self.flights.share });
        }
        self.flights.several.store(true, Ordering::Release);
    }

    /// Lets a kernel of so many CTAs on `stream` wait for those of this rank's other streams, unless
    /// all fit at once. Kernels that wait for peers and for room that others hold would never end.
    pub(super) fn make_room(&self, stream: &Arc<Stream>, ctas: u32) -> Result<(), Error> {
        if !self.flights.several.load(Ordering::Acquire) {
            return Ok(());
        }
        let Flights { tick, share, .. } = &self.flights;
        let mut flights = self.flights();
        let is_own = |flight: &Flight| Arc::ptr_eq(&flight.stream, stream);
        flights.retain(|flight| is_own(flight) || !is_idle(&flight.stream).unwrap_or(false));
        let others = flights.iter().filter(|flight| !is_own(flight));
        let together = others.fold(ctas, |sum, flight| sum.saturating_add(flight.ctas));
        if together > *share {
            for flight in flights.iter_mut().filter(|flight| !is_own(flight)) {
                flight.stream.record(tick)?;
                stream.wait(tick)?;
                flight.ctas = 0;
            }
        }
        match flights.iter_mut().find(|flight| is_own(flight)) {
            Some(flight) => flight.ctas = flight.ctas.max(ctas),
            None => flights.push(Flight { stream: Arc::clone(stream), ctas }),
        }
        Ok(())
    }

    /// All streams on which kernels of this rank may run.
    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
        let main = self.main();
        let flights = self.flights();
        let others = flights.iter().map(|flight| &flight.stream);
        let others = others.filter(|stream| !Arc::ptr_eq(stream, &main)).cloned();
        [Arc::clone(&main)].into_iter().chain(others).collect()
    }

    fn flights(&self) -> MutexGuard<'_, Vec<Flight>> {
        self.flights.on.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> Result<bool, Error> {
        let mut idle = true;
        for stream in self.streams() {
            idle &= is_idle(&stream)?;
        }
        for copier in &self.copiers {
            idle &= copier.copies.is_idle()? && copier.words().is_idle()?;
        }
        Ok(idle)
    }

    /// Counts a launch, whose number what it writes is marked with.
    pub(super) fn launch(&self) -> u64 {
        self.launched.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn launched(&self) -> u64 {
        self.launched.load(Ordering::Relaxed)
    }

    /// Notes that launches up to `launch` have ended well.
    pub(super) fn verify(&self, launch: u64) {
        let mut spoiled = self.spoiled();
        spoiled.judged = spoiled.judged.max(launch);
    }

    /// Notes that of the launches that nobody has judged one has failed.
    pub(super) fn spoil(&self, reason: Error) {
        let mut spoiled = self.spoiled();
        let (first, last) = (spoiled.judged + 1, self.launched());
        if first <= last {
            spoiled.failed.push((first, last, reason));
            spoiled.judged = last;
        }
    }

    /// Why what launch `launch` wrote is no result.
    pub(super) fn reason(&self, launch: u64) -> Option<Error> {
        let spoiled = self.spoiled();
        let of = |(first, last, _): &&(u64, u64, Error)| (*first..=*last).contains(&launch);
        spoiled.failed.iter().find(of).map(|(.., reason)| reason.clone())
    }

    fn spoiled(&self) -> MutexGuard<'_, Spoiled> {
        self.spoiled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
