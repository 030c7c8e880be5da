//! A process that is one rank: it joins its world, and shares memory with it.

use crate::device::Device;
use crate::error::Error;
use crate::handover::{Handover, Ticket};
use crate::heap::{HeapPart, Heaps};
use crate::host::HostBuffer;
use crate::job::{Job, Meet};
use crate::memory::DeviceBuffer;
use crate::rendezvous::coordinator::Coordinator;
use crate::rendezvous::remote::{Connection, Lost, Needs};
use crate::rendezvous::{Rendezvous, Token};
use crate::segment::Segment;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long ranks wait for each other to start, where nothing else is said.
pub const JOIN_LIMIT: Duration = Duration::from_secs(120);

/// What rank 0 waits for the others to hear why nobody joins.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A rank that has met all others of its world, each in a process of its own.
///
/// It lives as long as anything of it does. When it is dropped, or its process ends in whatever
/// way, its peers are told.
#[derive(Debug)]
pub struct Joined {
    rank: u32,
    /// Whether rank 0's process is the coordinator.
    is_at_rank0: bool,
    // Closed before the coordinator is, which may be this process's own.
    connection: Arc<Connection>,
    peers: Vec<Peer>,
    handover: Handover,
    coordinator: Option<Coordinator>,
}

/// A rank's process, as it introduced itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The version of flux that it was built with.
    pub version: String,
    /// The name of its machine.
    pub host: String,
    /// What tells machines apart, whatever their names are.
    pub machine: String,
    /// What its caller had to say: [`Joined::new`].
    pub introduction: Vec<u8>,
    /// Where it hands out descriptors.
    handover: String,
}

impl Joined {
    /// Joins the world of `job` and gives `introduction` to all its ranks. Returns when all have
    /// come, within `limit`.
    ///
    /// # Errors
    ///
    /// [`Error::CannotListen`], [`Error::NoCoordinator`], [`Error::NotCoordinator`],
    /// [`Error::TokenRejected`], [`Error::OtherVersion`], [`Error::OtherWorld`],
    /// [`Error::RankTaken`]; [`Error::RankMissing`] naming those that did not come;
    /// [`Error::RankAbandoned`] for one that came and may not stay; [`Error::RanksDisagree`] for
    /// versions of flux that differ; [`Error::NoSuchRank`].
    pub fn new(job: &Job, introduction: Vec<u8>, limit: Duration) -> Result<Joined, Error> {
        let deadline = Instant::now() + limit;
        let (rank, world) = (job.rank, job.world);
        if rank >= world {
            return Err(Error::NoSuchRank { rank, world });
        }
        let token = job.token.clone().map(Token::new).unwrap_or_default();
        let (coordinator, address) = match &job.meet {
            Meet::AtRank0(address) if rank == 0 => {
                let coordinator = Coordinator::open(address, world, token.clone())?;
                let address = coordinator.address().to_string();
                (Some(coordinator), address)
            }
            Meet::AtRank0(address) | Meet::At(address) => (None, address.clone()),
        };
        let handover = Handover::open()?;
        let own = Peer {
            version: env!("CARGO_PKG_VERSION").into(),
            host: read("/proc/sys/kernel/hostname"),
            machine: read("/proc/sys/kernel/random/boot_id"),
            introduction,
            handover: handover.name().into(),
        };
        let connection = Connection::open(&address, (rank, world), &token, deadline)?;
        let place = Rendezvous::there(connection.begin(Needs::Everybody));
        let rest = deadline.saturating_duration_since(Instant::now());
        let met = place
            .all_gather(rank, 0, encode(&own)?, rest)
            .and_then(|all| all.iter().map(|said| decode(said)).collect::<Result<Vec<_>, _>>())
            .and_then(agreed);
        drop(place);
        match met {
            Ok(peers) => {
                if let Some(coordinator) = &coordinator {
                    // What they said may be the end of it: then all have to have heard it.
                    coordinator.wait_behind(rank, LAST_WORDS);
                }
                let is_at_rank0 = matches!(job.meet, Meet::AtRank0(_));
                Ok(Joined { rank, is_at_rank0, connection, peers, handover, coordinator })
            }
            Err(error) => {
                // The others hear it from this process.
                drop(connection);
                if let Some(coordinator) = &coordinator {
                    coordinator.wait_gone(LAST_WORDS);
                }
                Err(error)
            }
        }
    }

    /// This process's rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    pub fn world(&self) -> u32 {
        self.peers.len() as u32
    }

    /// How each rank introduced itself.
    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// A new meeting place of the whole world: the n-th of each rank is the same. Where the
    /// coordinator is gone, each call of it says so.
    pub fn meet(&self) -> Rendezvous {
        Rendezvous::there(self.connection.begin(Needs::Calls))
    }

    /// A rank whose process has ended in the middle of something, and why. Quick to ask while all
    /// are well.
    pub fn lost(&self) -> Option<(u32, String)> {
        match self.connection.lost()? {
            (Lost::Rank(rank), reason) => Some((rank, reason)),
            (Lost::Coordinator, reason) => self.is_at_rank0.then_some((0, reason)),
        }
    }

    /// Where this process has the meeting place, waits until no other rank needs those places of it
    /// that this one has met at: all have left them, or have ended. Waits `limit` at most.
    pub fn wait_idle(&self, limit: Duration) {
        if let Some(coordinator) = &self.coordinator {
            coordinator.wait_behind(self.rank, limit);
        }
    }

    /// Memory of each rank of a meeting place, mapped by all of them: rank r has `words[r]` 32-bit
    /// words, zero at first. `members` are the ranks of the place, as the world numbers them; `rank`
    /// is this process's number among them. All get everything, or each an error.
    ///
    /// # Errors
    ///
    /// [`Error::OnRank`] for what failed on one of them, as where its memory or its descriptors ran
    /// out; those of [`Rendezvous::all_gather`].
    pub fn share(
        &self,
        place: &Rendezvous,
        (rank, members): (u32, &[u32]),
        key: u64,
        words: &[u64],
        limit: Duration,
    ) -> Result<Vec<Segment>, Error> {
        let trade = Trade { joined: self, place, rank, members, key, limit };
        let own = words.get(rank as usize).copied().unwrap_or(0);
        trade.all(words, Segment::create(own), Segment::open)
    }

    /// The heaps of all ranks of a meeting place, mapped by all of them, zero at first: `bytes` of each
    /// rank's GPU, and of pinned memory of the host. `near` says which ranks are on this one's GPU.
    /// All get everything, or each an error.
    ///
    /// # Errors
    ///
    /// As [`Joined::share`].
    pub fn share_heaps(
        &self,
        place: &Rendezvous,
        (rank, members): (u32, &[u32]),
        key: u64,
        (device, near): (&Arc<Device>, &[bool]),
        bytes: (u64, u64),
        limit: Duration,
    ) -> Result<Heaps, Error> {
        let trade = Trade { joined: self, place, rank, members, key, limit };
        let of_all = |bytes: u64| vec![bytes; members.len()];
        let made = DeviceBuffer::alloc_shared(device, bytes.0);
        let open = |fd, bytes| DeviceBuffer::open_shared(device, fd, bytes);
        let of_device = trade.all(&of_all(bytes.0), made, open)?;
        let words = bytes.1.div_ceil(4);
        let of_host = trade.all(&of_all(words), Segment::create(words), Segment::open)?;
        let parts = of_device.into_iter().zip(of_host).zip(near);
        let parts = parts.map(|((device_heap, segment), &is_near)| {
            let host = HostBuffer::register(device, segment)?;
            Ok(HeapPart { device: device_heap, host, is_near })
        });
        // What fails here alone is told to all, too.
        let heaps = parts.collect::<Result<_, Error>>();
        let heaps = heaps.and_then(|parts| Heaps::of_processes(rank, parts));
        trade.together(heaps)
    }

    /// What this rank has prepared for the whole world: where one could not, none has it. Every rank
    /// calls it.
    ///
    /// # Errors
    ///
    /// Its own error, or [`Error::OnRank`].
    pub fn settle<T, E: From<Error> + Display>(
        &self,
        prepared: Result<T, E>,
        limit: Duration,
    ) -> Result<T, E> {
        let said = prepared.as_ref().map(|_| ()).map_err(ToString::to_string);
        let told: Result<Vec<()>, Error> = together(&self.meet(), self.rank, 0, said, limit);
        // The own error says more than what is told of it.
        let value = prepared?;
        Ok(told.map(|_| value)?)
    }
}

/// Ranks of a meeting place that give each other descriptors.
#[derive(Debug, Clone, Copy)]
struct Trade<'t> {
    joined: &'t Joined,
    place: &'t Rendezvous,
    /// This process's number among the members.
    rank: u32,
    /// The ranks of the place, as the world numbers them.
    members: &'t [u32],
    key: u64,
    limit: Duration,
}

impl Trade<'_> {
    /// What every rank has made, by rank: the own, and what `open` makes of the descriptors of the
    /// others. `sizes` are what this rank takes those of all to be.
    fn all<T>(
        &self,
        sizes: &[u64],
        made: Result<(T, OwnedFd), Error>,
        open: impl Fn(OwnedFd, u64) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let Trade { joined, rank, limit, .. } = *self;
        let made = made.and_then(|(own, fd)| Ok((own, joined.handover.offer(fd)?)));
        let size = sizes.get(rank as usize).copied().unwrap_or(0);
        let said = made.as_ref().map(|(_, offer)| (offer.ticket, size));
        let said = said.map_err(ToString::to_string);
        let tickets: Vec<(Ticket, u64)> = together(self.place, rank, self.key, said, limit)?;
        let (own, _offer) = made?;
        let mut own = Some(own);
        let all = tickets.iter().zip(sizes).zip(self.members).zip(0..);
        let opened = all.map(|((((ticket, found), &size), member), index)| {
            if let Some(own) = own.take_if(|_| index == rank) {
                return Ok(own);
            }
            if *found != size {
                let reason = format!("it has shared {found}: all ranks must launch the same");
                let (what, bytes) = ("a peer's memory, another one than expected,", size);
                return Err(Error::SharedMemory { what, bytes, reason });
            }
            let peer = joined.peers.get(*member as usize);
            let name = peer.map_or("", |peer| &peer.handover);
            open(Handover::fetch(name, ticket, limit)?, size)
        });
        self.together(opened.collect())
    }

    /// Tells all what became of this rank's part: everybody's was good, or the error is everybody's.
    fn together<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        let said = outcome.as_ref().map(|_| ()).map_err(ToString::to_string);
        let told: Result<Vec<()>, Error> =
            together(self.place, self.rank, self.key, said, self.limit);
        // The own error says more than what is told of it.
        let value = outcome?;
        told.map(|_| value)
    }
}

/// Gives every rank's outcome to all: everybody's values, or the first error.
fn together<T: Serialize + DeserializeOwned>(
    place: &Rendezvous,
    rank: u32,
    key: u64,
    outcome: Result<T, String>,
    limit: Duration,
) -> Result<Vec<T>, Error> {
    let all = place.all_gather(rank, key, encode(&outcome)?, limit)?;
    let each = all.iter().zip(0..).map(|(said, rank)| {
        let outcome: Result<T, String> = decode(said)?;
        outcome.map_err(|reason| Error::OnRank { rank, reason })
    });
    each.collect()
}

/// Peers of one version.
fn agreed(peers: Vec<Peer>) -> Result<Vec<Peer>, Error> {
    let differ = |(peer, rank): (&Peer, u32)| (peer.version != peers[0].version).then_some(rank);
    let ranks: Vec<u32> = peers.iter().zip(0..).filter_map(differ).collect();
    if ranks.is_empty() {
        return Ok(peers);
    }
    Err(Error::RanksDisagree { what: "the version of flux".into(), ranks })
}

fn encode(message: &impl Serialize) -> Result<Vec<u8>, Error> {
    let refused = |error: postcard::Error| Error::Refused { reason: error.to_string() };
    postcard::to_stdvec(message).map_err(refused)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let refused =
        |error| Error::Refused { reason: format!("a rank said what nobody understands: {error}") };
    postcard::from_bytes(bytes).map_err(refused)
}

/// A line that the system tells; empty where it does not.
fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().into()).unwrap_or_default()
}
