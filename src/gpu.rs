//! Ranks on GPUs, each on its own or several on one: streams, shares of the multiprocessors, loaded
//! code.
//!
//! The kernels of all ranks must be resident at once, as they wait for each other. So each rank
//! has its own streams on its own hardware queues, and a grid no larger than its share of its GPU:
//! all of it, where it shares it with no other rank. A copy within the device may itself need a
//! multiprocessor, so some are kept back where copies between ranks of one GPU feed kernels. Copies
//! to another GPU need none.
//!
//! Or the one rank of a process, whose peers are other processes: their heaps are mapped here, and ranks
//! that share a GPU have their shares of it all the same, as whoever shares it may let them run at once.
//!
//! Or one active rank among passive peers, which are memory and nothing else: what they would send
//! is played by copy engines.

mod anew;
mod arguments;
mod arrival;
mod capture;
mod card;
mod choose;
mod departure;
mod feed;
mod gone;
mod inbound;
mod instance;
mod lane;
mod link;
#[cfg(test)]
mod measured;
mod outbox;
mod ready;
mod record;
mod reduction;
mod script;
mod site;
mod watch;
mod workspace;

pub(crate) use capture::Captured;
pub(crate) use instance::GpuInstance;
pub(crate) use lane::LaunchId;
pub use outbox::{Outbox, Peers};
pub(crate) use site::{Site, alike};

use crate::apart::Comms;
use crate::error::Error;
use crate::session::{Members, Session};
use crate::tensor::{Element, Memory};
use card::{Card, cards};
use flux_runtime::topology::{Topology, Way};
use flux_runtime::{Device, DeviceBuffer, Event, Joined, Stream, Timing};
use lane::{COPIERS, Copier, Lane};
use site::{Others, Shares, shares, shares_of, sites, weakest};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// Multiprocessors kept back for copies within the device.
const COPY_SMS: u32 = 4;

/// How often a rank that waits looks for launches that have given up.
const RESCUE_INTERVAL: Duration = Duration::from_millis(200);

/// No queue of finite work lasts this long: every wait in a kernel has its own, shorter limit.
const SYNCHRONIZE_LIMIT: Duration = Duration::from_secs(3600);

/// GPUs and ranks on them: all, or the members of a group.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    inner: Arc<Inner>,
    members: Members,
    session: Arc<Session>,
    /// What kernels are launched on instead of each rank's stream.
    stream: Option<Arc<Stream>>,
}

#[derive(Debug)]
struct Inner {
    cards: Vec<Card>,
    /// Of the ranks of this process.
    lanes: Vec<Lane>,
    /// The first of them.
    first: u32,
    /// All GPUs of the world, and how ranks share them.
    shares: Vec<Shares>,
    /// The weakest way between any two of them, where all are known.
    way: Option<Way>,
    others: Option<Others>,
    passive: Option<Passive>,
    /// Where peers are processes whose memory is not mapped.
    apart: Option<Solo>,
    /// Memory of dropped tensors: freeing waits for the whole device, so it is freed when no rank
    /// can be spinning.
    dropped: Mutex<Vec<Dropped>>,
    /// Everything prepared, for the same reason: a rank that is through with a kernel must not
    /// free what it rests on while its peers still wait for each other.
    instances: Mutex<Vec<Arc<GpuInstance>>>,
    /// Shared by those who enqueue work.
    enqueuing: RwLock<()>,
}

/// Memory of a dropped tensor, and the rank that used it, as the world numbers it.
#[derive(Debug)]
struct Dropped {
    rank: u32,
    memory: Arc<Memory>,
}

/// The peers of a world with one active rank.
#[derive(Debug)]
pub(crate) struct Passive {
    /// Where their memory lies.
    peers: Peers,
    /// What they copy and signal: a pair of streams for each agent that waits for CTAs.
    senders: [(Stream, Stream); COPIERS],
}

impl Inner {
    /// Ranks of this process alone.
    fn new(cards: Vec<Card>, lanes: Vec<Lane>, shares: Vec<Shares>) -> Inner {
        Inner {
            cards,
            lanes,
            first: 0,
            shares,
            way: None,
            others: None,
            passive: None,
            apart: None,
            dropped: Mutex::default(),
            instances: Mutex::default(),
            enqueuing: RwLock::default(),
        }
    }
}

/// What stands in for peers whose memory is not mapped.
#[derive(Debug)]
struct Solo {
    comms: Comms,
    /// The same GPU, with one rank.
    gpu: Gpu,
}

/// The GPU of a process that is not a rank yet.
#[derive(Debug)]
pub(crate) struct Alone {
    cards: Vec<Card>,
    pub(crate) site: Site,
}

/// What ranks on `cards` may have of [`share`]: ranks are alike, wherever they are.
fn streams(cards: &[Card]) -> (usize, bool) {
    let of = |card: &Card| share(card.here, |n| card.device.require_connections(n).is_ok());
    cards.iter().map(of).min().unwrap_or((1, false))
}

/// A lane for each rank, given the index of its card. Each has so many streams that copy, and as many
/// for signals where these stand `apart`.
fn lanes(
    cards: &[Card],
    of_ranks: &[usize],
    (copiers, apart): (usize, bool),
) -> Result<Vec<Lane>, Error> {
    let lane = |&card: &usize| {
        let Card { device, ranks, .. } = &cards[card];
        Lane::new(device, (card, *ranks), copiers, apart)
    };
    of_ranks.iter().map(lane).collect()
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

/// Gives a stream of the caller's its hardware queue before a kernel waits for what is launched on it. One
/// that is captured runs nothing now.
fn give_queue(stream: &Stream) -> Result<(), Error> {
    if !stream.is_capturing()? {
        stream.take_queue()?;
    }
    Ok(())
}

impl Gpu {
    /// The same GPUs, for some of the ranks, in a session.
    pub(crate) fn of(&self, members: &Members, session: &Arc<Session>) -> Gpu {
        let (members, session) = (members.clone(), Arc::clone(session));
        Gpu { inner: Arc::clone(&self.inner), members, session, stream: self.stream.clone() }
    }

    /// The same ranks; what is launched by way of them goes to `stream`, of `rank`'s device.
    pub(crate) fn on(&self, rank: u32, stream: Stream) -> Result<Gpu, Error> {
        self.require_own(rank, &stream)?;
        if self.comms().is_some() {
            let problem = "the memory of peers is not mapped (`FLUX_PEERS`): their collectives have one order, \
                           that of the rank's one stream (`use_stream`)";
            return Err(Error::Unsupported { kernel: "on".into(), problem: problem.into() });
        }
        give_queue(&stream)?;
        self.lane(rank).use_several();
        Ok(Gpu { stream: Some(Arc::new(stream)), ..self.clone() })
    }

    /// Launches `rank` on `stream` from now on.
    pub(crate) fn set_stream(&self, rank: u32, stream: Arc<Stream>) -> Result<(), Error> {
        self.require_own(rank, &stream)?;
        self.lane(rank).require_free("another stream")?;
        give_queue(&stream)?;
        if self.comms().is_some() {
            // What kernels share with collectives is ordered by the stream alone.
            let behind = Event::new(stream.device(), Timing::Off)?;
            self.lane(rank).main().record(&behind)?;
            stream.wait(&behind)?;
        }
        self.lane(rank).set_main(stream);
        Ok(())
    }

    fn require_own(&self, rank: u32, stream: &Stream) -> Result<(), Error> {
        let (own, theirs) = (self.device(rank).ordinal(), stream.device().ordinal());
        if own == theirs {
            return Ok(());
        }
        let problem = format!("expected a stream of device {own}, found one of device {theirs}");
        Err(Error::Unsupported { kernel: "a stream".into(), problem })
    }

    /// What `rank` launches on.
    pub(crate) fn stream(&self, rank: u32) -> Arc<Stream> {
        self.stream.clone().unwrap_or_else(|| self.lane(rank).main())
    }

    /// A rank for each of these numbers, on the GPU of that number.
    pub(crate) fn open(ordinals: &[u32]) -> Result<Gpu, Error> {
        let (cards, of_ranks) = cards(ordinals)?;
        for card in &cards {
            card.device.require_connections(2 * card.here + 1)?;
        }
        let (shares, way) = (shares(&cards), weakest(&sites(&cards)));
        let lanes = lanes(&cards, &of_ranks, streams(&cards))?;
        let inner = Inner { way, ..Inner::new(cards, lanes, shares) };
        Ok(Gpu::over(inner, of_ranks.len() as u32))
    }

    /// The GPU of a process that is to be a rank: number `local_rank`, counted on from 0 where there are
    /// fewer.
    pub(crate) fn alone(local_rank: u32) -> Result<Alone, Error> {
        let devices = flux_runtime::probe()?.devices;
        let (cards, _) = cards(&[local_rank % devices.max(1)])?;
        let site = Site::of(&cards[0].device, &Topology::of_this_machine());
        Ok(Alone { cards, site })
    }

    /// The rank of this process, whose peers are at `sites`, by rank.
    pub(crate) fn join(alone: Alone, joined: Arc<Joined>, sites: Vec<Site>) -> Result<Gpu, Error> {
        let Alone { mut cards, site } = alone;
        for card in &mut cards {
            card.ranks = sites.iter().filter(|other| other.uuid == site.uuid).count() as u32;
            card.device.require_connections(2 * card.here + 1)?;
            sites.iter().try_for_each(|other| card.device.require_reach(other.uuid))?;
        }
        Gpu::joined((cards, None), joined, sites)
    }

    /// As [`Gpu::join`], of peers whose memory is not mapped: NCCL moves their data.
    pub(crate) fn join_apart(
        alone: Alone,
        joined: Arc<Joined>,
        sites: Vec<Site>,
    ) -> Result<Gpu, Error> {
        let Alone { cards, .. } = alone;
        flux_runtime::nccl::version()?;
        // The rank's streams and those of the one that stands in for it.
        cards.iter().try_for_each(|card| card.device.require_connections(12))?;
        let lone = cards.iter().map(|card| Card::over(&card.device));
        let lone = lone.collect::<Result<Vec<_>, Error>>()?;
        let lanes = lanes(&lone, &[0], streams(&lone))?;
        let shares = shares(&lone);
        let gpu = Gpu::over(Inner::new(lone, lanes, shares), 1);
        let apart = Solo { comms: Comms::new(Arc::clone(&joined)), gpu };
        Gpu::joined((cards, Some(apart)), joined, sites)
    }

    fn joined(
        (cards, apart): (Vec<Card>, Option<Solo>),
        joined: Arc<Joined>,
        sites: Vec<Site>,
    ) -> Result<Gpu, Error> {
        let lanes = lanes(&cards, &[0], streams(&cards))?;
        let (first, world, shares) = (joined.rank(), joined.world(), shares_of(&sites));
        let way = weakest(&sites);
        let others = Some(Others { joined, sites });
        let inner = Inner { first, way, others, apart, ..Inner::new(cards, lanes, shares) };
        Ok(Gpu::over(inner, world))
    }

    /// The communicators of peers whose memory is not mapped.
    pub(crate) fn comms(&self) -> Option<&Comms> {
        self.inner.apart.as_ref().map(|apart| &apart.comms)
    }

    /// The same GPU as a world of one rank, where peers' memory is not mapped.
    pub(crate) fn solo(&self) -> Option<&Gpu> {
        self.inner.apart.as_ref().map(|apart| &apart.gpu)
    }

    /// Launches `rank` on `stream` from now on, if it does not already.
    pub(crate) fn follow(&self, rank: u32, stream: &Arc<Stream>) {
        if !Arc::ptr_eq(&self.lane(rank).main(), stream) {
            self.lane(rank).set_main(Arc::clone(stream));
        }
    }

    /// Notes that what `rank` has launched has no results.
    pub(crate) fn spoil(&self, rank: u32, reason: Error) {
        self.lane(rank).spoil(reason);
    }

    /// One active rank among peers that are nothing but memory.
    pub(crate) fn open_passive(ordinal: u32, peers: Peers) -> Result<Gpu, Error> {
        let (cards, of_ranks) = cards(&[ordinal])?;
        let device = &cards[0].device;
        // The rank's streams and the peers'.
        device.require_connections(10)?;
        let sender = || Ok::<_, Error>((Stream::new(device)?, Stream::new(device)?));
        let senders = [sender()?, sender()?];
        let (shares, passive) = (shares(&cards), Some(Passive { peers, senders }));
        let lanes = lanes(&cards, &of_ranks, (COPIERS, true))?;
        Ok(Gpu::over(Inner { passive, ..Inner::new(cards, lanes, shares) }, 1))
    }

    fn over(inner: Inner, ranks: u32) -> Gpu {
        let (members, session) = (Members::new(0..ranks), Arc::new(Session::new(ranks)));
        Gpu { inner: Arc::new(inner), members, session, stream: None }
    }

    /// What the first rank of this process runs on, in words.
    pub(crate) fn name(&self) -> &str {
        &self.inner.cards[0].device.properties().name
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
        let lanes = self.inner.lanes.iter();
        let ordinals = || lanes.map(|lane| self.inner.cards[lane.card].device.ordinal()).collect();
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
        &self.inner.lanes[(self.members.in_world(rank) - self.inner.first) as usize]
    }

    /// Ranks that compute.
    pub(crate) fn ranks(&self) -> u32 {
        self.members.len().min(self.inner.lanes.len() as u32)
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

    /// Keeps the memory of a dropped tensor of `rank`'s until it can be freed.
    pub(crate) fn bury(&self, rank: u32, memory: Arc<Memory>) {
        let rank = self.members.in_world(rank);
        self.dropped().push(Dropped { rank, memory });
    }

    fn dropped(&self) -> MutexGuard<'_, Vec<Dropped>> {
        self.inner.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What others lent `rank` for tensors that are gone. It is given back, by being dropped, once what
    /// the rank has launched so far has ended: a kernel ends when its peers are through with what is its
    /// rank's. Nothing of it is freed here, so nothing waits.
    fn lent(&self, rank: u32) -> Vec<Dropped> {
        let rank = self.members.in_world(rank);
        let is_lent =
            |dropped: &mut Dropped| dropped.rank == rank && dropped.memory.buffer().is_shared();
        self.dropped().extract_if(.., is_lent).collect()
    }

    /// Frees the memory of dropped tensors and of dropped kernels, unless a rank may be spinning:
    /// freeing waits for the device.
    pub(crate) fn collect(&self) {
        // Nothing is enqueued meanwhile.
        let Ok(_quiet) = self.inner.enqueuing.try_write() else { return };
        if self.inner.lanes.iter().all(|lane| lane.is_idle().unwrap_or(false)) {
            self.instances().retain(|instance| Arc::strong_count(instance) > 1);
            let dropped = std::mem::take(&mut *self.dropped());
            drop(dropped);
        }
    }

    /// Held while something is enqueued.
    fn enqueuing(&self) -> RwLockReadGuard<'_, ()> {
        self.inner.enqueuing.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an instance until the next collection, however soon its kernel is dropped.
    fn keep(&self, instance: Arc<GpuInstance>) {
        self.instances().push(instance);
    }

    /// What is prepared for a rank, in this session, by this world and groups alike.
    fn own_instances(&self, rank: u32) -> Vec<Arc<GpuInstance>> {
        let in_world = self.members.in_world(rank);
        let is_own = |instance: &&Arc<GpuInstance>| {
            instance.members.in_world(instance.rank) == in_world
                && Arc::ptr_eq(&instance.session, &self.session)
        };
        self.instances().iter().filter(is_own).cloned().collect()
    }

    /// Waits for everything `rank` enqueued, then says whether one of its launches stalled, or
    /// rests on one of a peer's that did.
    pub(crate) fn synchronize(&self, rank: u32) -> Result<(), Error> {
        let lane = self.lane(rank);
        lane.require_free("a wait for what was launched")?;
        let launched = lane.launched();
        let mut lent = self.lent(rank);
        if let Err(error) = self.await_rescued(rank) {
            self.dropped().append(&mut lent);
            return Err(error);
        }
        drop(lent);
        if let Some(failed) = self.failure(rank) {
            // It is told now, and again to whoever reads what was written meanwhile.
            lane.spoil(failed.clone());
            return Err(failed);
        }
        lane.verify(launched);
        Ok(())
    }

    /// Counts a launch of `rank`.
    pub(crate) fn count_launch(&self, rank: u32) -> LaunchId {
        LaunchId::new(self.members.in_world(rank), self.lane(rank).launch())
    }

    /// Why what a launch wrote is no result.
    pub(crate) fn why_spoiled(&self, launch: LaunchId) -> Option<Error> {
        let (rank, launch) = launch.parts();
        let lane = rank.checked_sub(self.inner.first as usize)?;
        self.inner.lanes.get(lane)?.reason(launch)
    }

    /// Why launches of `rank` that have ended have no results, the first time it is asked for.
    fn failure(&self, rank: u32) -> Option<Error> {
        if let Some(failed) = self.comms().and_then(Comms::take_failure) {
            return Some(failed);
        }
        let own = self.own_instances(rank);
        // Of what was told to end, rather what had something to do.
        let unsettled = own.iter().filter(|instance| instance.is_unsettled());
        let gone = unsettled.chain(&own).find_map(|instance| instance.take_gone());
        let stalled = gone.or_else(|| own.iter().find_map(|instance| instance.take_stall()));
        let failed = stalled.or_else(|| own.iter().find_map(|instance| instance.take_abandoned()));
        if failed.is_none() {
            own.iter().for_each(|instance| instance.settle());
        }
        failed
    }

    /// Waits for the rank's streams. They may wait for streams that in turn wait for a launch which
    /// has given up; they cannot give up themselves.
    fn await_rescued(&self, rank: u32) -> Result<(), Error> {
        loop {
            match self.await_streams(rank, RESCUE_INTERVAL) {
                Err(Error::Runtime(flux_runtime::Error::Timeout { .. })) => {}
                ended => return ended,
            }
            self.end_for_gone(rank)?;
            let own = self.own_instances(rank);
            for instance in own.iter().filter(|instance| instance.has_stalled()) {
                instance.release(&self.card(rank).rescue)?;
            }
        }
    }

    /// Waits for the rank's streams, so long.
    fn await_streams(&self, rank: u32, limit: Duration) -> Result<(), Error> {
        let lane = self.lane(rank);
        for stream in lane.streams() {
            stream.synchronize(limit)?;
        }
        for copier in &lane.copiers {
            copier.signals()?.synchronize(SYNCHRONIZE_LIMIT)?;
        }
        Ok(())
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
