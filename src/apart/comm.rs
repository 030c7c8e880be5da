//! Communicators of ranks whose memory is not mapped, and who ends them when a peer does not come.

use crate::error::Error;
use crate::meeting::Meeting;
use crate::session::Members;
use flux_runtime::nccl::{self, Nccl, NcclId};
use flux_runtime::{Device, HostBuffer, JOIN_LIMIT, Joined, Stream};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How often a communicator is looked at for launches that do not end.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Launches that are under way at most: a stream takes some thousand operations before a call waits.
const MOST_LAUNCHES: u32 = 64;

/// How often a launch looks whether there is room for it.
const ROOM_INTERVAL: Duration = Duration::from_micros(50);

/// What a call may take that connects to a peer, at least.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The communicators of a process.
#[derive(Debug)]
pub(crate) struct Comms {
    joined: Arc<Joined>,
    all: Mutex<Known>,
}

/// By members and the limit of their launches.
type Known = HashMap<(Vec<u32>, Duration), Arc<Comm>>;

impl Comms {
    pub(crate) fn new(joined: Arc<Joined>) -> Comms {
        Comms { joined, all: Mutex::default() }
    }

    /// That of `members`, who meet here. Its launches give up after `limit`.
    pub(super) fn of(
        &self,
        members: &Members,
        (meeting, device): (&Meeting, &Arc<Device>),
        limit: Duration,
    ) -> Result<Arc<Comm>, Error> {
        let key = (members.ranks().to_vec(), limit);
        if let Some(known) = self.all().get(&key) {
            return Ok(Arc::clone(known));
        }
        // Nobody begins to join before everybody can.
        let id = match meeting.rank() {
            0 => NcclId::new().map(|id| id.bytes().to_vec()),
            _ => nccl::version().map(|_| Vec::new()),
        };
        let id = meeting.together("NCCL", id.map_err(Error::from))?;
        let told = meeting.tell("the id of a communicator", id)?;
        let id = NcclId::from_bytes(&told[0])?;
        let place = (members.len(), meeting.rank());
        let comm = Nccl::join_within(device, id, place, JOIN_LIMIT).and_then(|nccl| {
            Ok((nccl.with_limit(limit.max(CONNECT_LIMIT)), HostBuffer::alloc(device, 8)?))
        });
        let (nccl, words) = meeting.together("a communicator", comm.map_err(Error::from))?;
        let comm = Arc::new(Comm {
            nccl: Mutex::new(Some(nccl)),
            words,
            begun: AtomicU32::new(0),
            kernel: Mutex::default(),
            failed: Mutex::default(),
            is_told: AtomicBool::new(false),
            rank: meeting.rank(),
            joined: Arc::clone(&self.joined),
            members: members.clone(),
            limit,
        });
        let watched = Arc::downgrade(&comm);
        let (name, rank) = ("flux-nccl".to_owned(), meeting.rank());
        let started = thread::Builder::new().name(name).spawn(move || watch(&watched));
        started.map_err(|error| Error::NoThread { rank, reason: error.to_string() })?;
        self.all().insert(key, Arc::clone(&comm));
        Ok(comm)
    }

    /// Why launches have no results, the first time it is asked for.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.all().values().find_map(|comm| {
            let failed = comm.failed().clone()?;
            (!comm.is_told.swap(true, Ordering::Relaxed)).then_some(failed)
        })
    }

    /// Ends what is under way among `members`, or among fewer of them.
    pub(crate) fn end(&self, members: &Members, reason: &Error) {
        let all = self.all();
        let ends = all.values().filter(|comm| comm.members.are_among(members) && !comm.is_idle());
        ends.for_each(|comm| comm.fail(reason.clone()));
    }

    /// Whether no communicator of `members`, or of fewer of them, was ended.
    pub(crate) fn are_sound(&self, members: &Members) -> bool {
        let all = self.all();
        let mut own = all.values().filter(|comm| comm.members.are_among(members));
        own.all(|comm| comm.failed().is_none())
    }

    fn all(&self) -> MutexGuard<'_, Known> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A communicator, and what is under way on it.
#[derive(Debug)]
pub(super) struct Comm {
    /// `None` once it was ended.
    nccl: Mutex<Option<Nccl>>,
    /// The launch that has ended last, and the one that has begun to run: a word each.
    words: HostBuffer,
    /// The launch that was enqueued last.
    begun: AtomicU32,
    /// What was launched last.
    kernel: Mutex<String>,
    failed: Mutex<Option<Error>>,
    /// Whether somebody has heard of that.
    is_told: AtomicBool,
    rank: u32,
    joined: Arc<Joined>,
    members: Members,
    limit: Duration,
}

impl Comm {
    /// Enqueues a launch of `kernel` on `stream`, by way of `make`.
    pub(super) fn launch(
        &self,
        kernel: &str,
        stream: &Stream,
        make: impl FnOnce(&Nccl) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // With the communicator locked nobody could end what a full stream waits for.
        while self.begun.load(Ordering::Acquire).wrapping_sub(self.count()) >= MOST_LAUNCHES
            && self.failed().is_none()
        {
            thread::sleep(ROOM_INTERVAL);
        }
        let nccl = self.nccl.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(nccl) = nccl.as_ref() else {
            return Err(Error::Poisoned { kernel: kernel.into() });
        };
        kernel.clone_into(&mut self.kernel.lock().unwrap_or_else(PoisonError::into_inner));
        let number = self.begun.load(Ordering::Relaxed).wrapping_add(1);
        let words = self.words.span();
        stream.write_u32(words.part(4, 4)?, number)?;
        let made = make(nccl).and_then(|()| Ok(stream.write_u32(words.part(0, 4)?, number)?));
        match made {
            Ok(()) => {
                // From now on somebody looks whether it ends.
                self.begun.store(number, Ordering::Release);
                Ok(())
            }
            Err(Error::Runtime(flux_runtime::Error::Timeout { .. })) => {
                Err(self.gone().unwrap_or_else(|| self.late()))
            }
            Err(other) => Err(other),
        }
    }

    /// Why nothing can be launched any more.
    pub(super) fn failed(&self) -> MutexGuard<'_, Option<Error>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all that is under way, once.
    pub(super) fn fail(&self, reason: Error) {
        {
            let mut failed = self.failed();
            if failed.is_some() {
                return;
            }
            *failed = Some(reason);
        }
        // Dropped, it lets go what waits for peers.
        drop(self.nccl.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn is_idle(&self) -> bool {
        self.count() == self.begun.load(Ordering::Acquire)
    }

    /// The latest launch that has ended.
    fn count(&self) -> u32 {
        self.words.words()[0].load(Ordering::Acquire)
    }

    /// Whether a launch runs, or waits for peers: what is ahead of it on its stream has ended.
    fn is_running(&self) -> bool {
        self.words.words()[1].load(Ordering::Acquire) != self.count()
    }

    fn kernel(&self) -> String {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why what is under way will never end: a member is gone.
    fn gone(&self) -> Option<Error> {
        let (rank, reason) = self.joined.lost()?;
        let peer = self.members.position(rank)?;
        Some(Error::PeerGone { rank: self.rank, kernel: self.kernel(), peer, reason })
    }

    fn late(&self) -> Error {
        let limit_ms = self.limit.as_millis() as u64;
        Error::CollectiveLate { rank: self.rank, kernel: self.kernel(), limit_ms }
    }
}

/// Ends a communicator whose launches have come to nothing for its limit, or one of whose members is
/// gone, until nobody has it any more.
fn watch(comm: &Weak<Comm>) {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        thread::sleep(WATCH_INTERVAL);
        let Some(comm) = comm.upgrade() else { return };
        let count = comm.count();
        if count != last || !comm.is_running() {
            (last, since) = (count, Instant::now());
        }
        let gone = if comm.is_idle() { None } else { comm.gone() };
        let late = || (since.elapsed() > comm.limit).then(|| comm.late());
        if let Some(reason) = gone.or_else(late) {
            comm.fail(reason);
            return;
        }
    }
}
