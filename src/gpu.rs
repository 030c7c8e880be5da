//! Ranks on GPUs, each on its own or several on one: streams, shares of the multiprocessors, loaded
//! code.
//!
//! The kernels of all ranks must be resident at once, as they wait for each other. So each rank
//! has its own streams on its own hardware queues, and a grid no larger than its share of its GPU:
//! all of it, where it shares it with no other rank. A copy within the device may itself need a
//! multiprocessor, so some are kept back where copies between ranks of one GPU feed kernels. Copies
//! to another GPU need none.
//!
//! Or one active rank among passive peers, which are memory and nothing else: what they would send
//! is played by copy engines.

mod arguments;
mod arrival;
mod card;
mod choose;
mod departure;
mod feed;
mod inbound;
mod instance;
mod outbox;
mod record;
mod script;
mod watch;
mod workspace;

pub(crate) use instance::GpuInstance;
pub use outbox::{Outbox, Peers};

use crate::error::Error;
use crate::tensor::Element;
use card::{Card, cards};
use flux_runtime::{Device, DeviceBuffer, Event, Stream, Timing};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use watch::Watch;

/// Multiprocessors kept back for copies within the device.
const COPY_SMS: u32 = 4;

/// How often a rank that waits looks for launches that have given up.
const RESCUE_INTERVAL: Duration = Duration::from_millis(200);

/// No queue of finite work lasts this long: every wait in a kernel has its own, shorter limit.
const SYNCHRONIZE_LIMIT: Duration = Duration::from_secs(3600);

/// GPUs and the ranks on them.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cards: Vec<Card>,
    lanes: Vec<Lane>,
    passive: Option<Passive>,
    /// Memory of dropped tensors: freeing waits for the whole device, so it is freed when no rank
    /// can be spinning.
    dropped: Mutex<Vec<DeviceBuffer>>,
    /// Everything prepared, for the same reason: a rank that is through with a kernel must not
    /// free what it rests on while its peers still wait for each other.
    instances: Mutex<Vec<Arc<GpuInstance>>>,
}

/// The peers of a world with one active rank.
#[derive(Debug)]
pub(crate) struct Passive {
    /// Where their memory lies.
    peers: Peers,
    /// What they copy and signal: a pair of streams for each agent that waits for CTAs.
    senders: [(Stream, Stream); COPIERS],
}

/// Streams of a rank that copy: each agent that waits for CTAs has one of its own.
const COPIERS: usize = 2;

/// The streams of one rank, and what reports its stalls.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Index of the rank's GPU.
    card: usize,
    /// Kernels, and everything the caller orders behind them; the caller's own where given.
    main: Mutex<Arc<Stream>>,
    /// Copies to peers. One where ranks are so many that two each would share queues: programs
    /// that need both are refused then.
    copiers: Vec<Copier>,
    watches: Mutex<Vec<Arc<Watch>>>,
}

/// What runs one copy engine's agent.
#[derive(Debug)]
pub(crate) struct Copier {
    copies: Stream,
    /// Signals that follow copies. On a stream of their own the link does not stand still while a
    /// word is written; `None` where ranks are so many that they would share queues, and signals
    /// go between the copies.
    words: Option<Stream>,
    /// A recorded point is taken when a wait for it is enqueued, so one event serves all.
    tick: Event,
}

impl Copier {
    fn new(device: &Arc<Device>, apart: bool) -> Result<Copier, Error> {
        let copies = Stream::new(device)?;
        let words = apart.then(|| Stream::new(device)).transpose()?;
        Ok(Copier { copies, words, tick: Event::new(device, Timing::Off)? })
    }

    /// The stream of signals.
    fn words(&self) -> &Stream {
        self.words.as_ref().unwrap_or(&self.copies)
    }

    /// The stream of a signal that follows all copies enqueued so far.
    fn signals(&self) -> Result<&Stream, Error> {
        let Some(words) = &self.words else { return Ok(&self.copies) };
        self.copies.record(&self.tick)?;
        words.wait(&self.tick)?;
        Ok(words)
    }
}

/// The streams that each of `ranks` virtual ranks may have, of so many hardware queues: how many
/// that copy, and whether signals have streams of their own. One queue is the rescue's.
fn share(ranks: u32, has: impl Fn(u32) -> bool) -> (usize, bool) {
    if has(5 * ranks + 1) {
        (COPIERS, true)
    } else if has(3 * ranks + 1) {
        (COPIERS, false)
    } else {
        (1, false)
    }
}

impl Lane {
    pub(crate) fn main(&self) -> Arc<Stream> {
        Arc::clone(&self.main.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_main(&self, stream: Arc<Stream>) {
        *self.main.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }

    fn watches(&self) -> MutexGuard<'_, Vec<Arc<Watch>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gpu {
    /// A rank for each of these numbers, on the GPU of that number.
    pub(crate) fn open(ordinals: &[u32]) -> Result<Gpu, Error> {
        let (cards, of_ranks) = cards(ordinals)?;
        for card in &cards {
            card.device.require_connections(2 * card.ranks + 1)?;
        }
        let streams = cards.iter().map(|card| {
            share(card.ranks, |queues| card.device.require_connections(queues).is_ok())
        });
        // Ranks are alike, wherever they are.
        let streams = streams.min().unwrap_or((1, false));
        Gpu::new(cards, &of_ranks, streams, None)
    }

    /// One active rank among peers that are nothing but memory.
    pub(crate) fn open_passive(ordinal: u32, peers: Peers) -> Result<Gpu, Error> {
        let (cards, of_ranks) = cards(&[ordinal])?;
        let device = &cards[0].device;
        // The rank's streams and the peers'.
        device.require_connections(10)?;
        let sender = || Ok::<_, Error>((Stream::new(device)?, Stream::new(device)?));
        let senders = [sender()?, sender()?];
        Gpu::new(cards, &of_ranks, (COPIERS, true), Some(Passive { peers, senders }))
    }

    /// Each rank has so many streams that copy, and as many for signals where these stand `apart`.
    fn new(
        cards: Vec<Card>,
        of_ranks: &[usize],
        (copiers, apart): (usize, bool),
        passive: Option<Passive>,
    ) -> Result<Gpu, Error> {
        let lanes = of_ranks
            .iter()
            .map(|&card| {
                let device = &cards[card].device;
                let main = Mutex::new(Arc::new(Stream::new(device)?));
                let copiers = (0..copiers).map(|_| Copier::new(device, apart));
                let copiers = copiers.collect::<Result<_, Error>>()?;
                Ok(Lane { card, main, copiers, watches: Mutex::default() })
            })
            .collect::<Result<_, Error>>()?;
        let inner =
            Inner { cards, lanes, passive, dropped: Mutex::default(), instances: Mutex::default() };
        Ok(Gpu { inner: Arc::new(inner) })
    }

    /// What rank 0 runs on, in words.
    pub(crate) fn name(&self) -> &str {
        &self.device(0).properties().name
    }

    /// The GPU of a rank.
    fn card(&self, rank: u32) -> &Card {
        &self.inner.cards[self.lane(rank).card]
    }

    pub(crate) fn device(&self, rank: u32) -> &Arc<Device> {
        &self.card(rank).device
    }

    /// The number of each rank's GPU, where they are not all the same one.
    pub(crate) fn ordinals(&self) -> Option<Vec<u32>> {
        let ordinals = || (0..self.ranks()).map(|rank| self.device(rank).ordinal()).collect();
        (self.inner.cards.len() > 1).then(ordinals)
    }

    /// The passive peers, where all but rank 0 are.
    pub(crate) fn passive(&self) -> Option<&Passive> {
        self.inner.passive.as_ref()
    }

    /// What passive peers send in the kernel and shape prepared last.
    pub(crate) fn outboxes(&self) -> Vec<Outbox> {
        let instances = self.instances();
        let Some(instance) = instances.last() else { return Vec::new() };
        let indices = 0..instance.stocks().len();
        indices.map(|index| Outbox::new(Arc::clone(instance), index)).collect()
    }

    fn instances(&self) -> MutexGuard<'_, Vec<Arc<GpuInstance>>> {
        self.inner.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lane(&self, rank: u32) -> &Lane {
        &self.inner.lanes[rank as usize]
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.inner.lanes.len() as u32
    }

    pub(crate) fn zeros<T: Element>(
        &self,
        rank: u32,
        elements: usize,
    ) -> Result<DeviceBuffer, Error> {
        let bytes = (elements * size_of::<T>()) as u64;
        Ok(DeviceBuffer::alloc_zeroed(self.device(rank), bytes)?)
    }

    pub(crate) fn upload<T: Element>(&self, rank: u32, data: &[T]) -> Result<DeviceBuffer, Error> {
        let buffer = DeviceBuffer::alloc(self.device(rank), size_of_val(data) as u64)?;
        buffer.copy_from(0, data)?;
        Ok(buffer)
    }

    /// Keeps the memory of a dropped tensor until it can be freed.
    pub(crate) fn bury(&self, buffer: DeviceBuffer) {
        self.inner.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    /// Frees the memory of dropped tensors and of dropped kernels. No rank may be spinning.
    pub(crate) fn collect(&self) {
        self.instances().retain(|instance| Arc::strong_count(instance) > 1);
        let mut dropped = self.inner.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.clear();
    }

    /// Keeps an instance until the next collection, however soon its kernel is dropped.
    fn keep(&self, instance: Arc<GpuInstance>) {
        self.instances().push(instance);
    }

    /// Waits for everything `rank` enqueued, then says whether one of its launches stalled, or
    /// rests on one of a peer's that did.
    pub(crate) fn synchronize(&self, rank: u32) -> Result<(), Error> {
        let lane = self.lane(rank);
        self.await_main(rank)?;
        for copier in &lane.copiers {
            copier.signals()?.synchronize(SYNCHRONIZE_LIMIT)?;
        }
        if let Some(stalled) = lane.watches().iter().find_map(|watch| watch.take_stall()) {
            return Err(stalled);
        }
        let instances = self.instances();
        let own = || instances.iter().filter(|instance| instance.rank == rank);
        if let Some(abandoned) = own().find_map(|instance| instance.take_abandoned()) {
            return Err(abandoned);
        }
        own().for_each(|instance| instance.settle());
        Ok(())
    }

    /// Waits for the rank's stream. It may wait for streams that in turn wait for a launch which
    /// has given up; they cannot give up themselves.
    fn await_main(&self, rank: u32) -> Result<(), Error> {
        loop {
            match self.lane(rank).main().synchronize(RESCUE_INTERVAL) {
                Err(flux_runtime::Error::Timeout { .. }) => {}
                ended => return Ok(ended?),
            }
            let instances = self.instances();
            let own = instances.iter().filter(|instance| instance.rank == rank);
            for instance in own.filter(|instance| instance.has_stalled()) {
                instance.release(&self.card(rank).rescue)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{COPIERS, share};

    #[test]
    fn streams_of_all_ranks_have_a_queue_each() {
        let of = |ranks, queues| share(ranks, |wanted| wanted <= queues);
        assert_eq!(of(1, 32), (COPIERS, true));
        assert_eq!(of(6, 32), (COPIERS, true));
        assert_eq!(of(8, 32), (COPIERS, false));
        assert_eq!((of(11, 32), of(3, 8)), ((1, false), (1, false)));
        for ranks in 1..16 {
            let (copiers, apart) = of(ranks, 32);
            let copies = copiers * if apart { 2 } else { 1 };
            assert!((1 + copies) * (ranks as usize) < 32, "{ranks} ranks");
        }
    }
}
