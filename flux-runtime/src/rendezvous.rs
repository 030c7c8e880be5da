//! How ranks find each other: threads of one process, or processes.
//!
//! A meeting has a key, and for each key there are rounds: the n-th call of each rank with a key
//! belongs to round n. A round is decided once, for all: either everybody gets the same answer, or
//! everybody gets an error. So a rank that is late hears that the others have gone, and nobody is
//! left alone in the middle of something.
//!
//! Besides, ranks assemble: some of them to have a meeting place of their own, all of them to begin
//! anew.
//!
//! There is one meeting place in one process ([`local`]). Ranks of other processes call it through
//! a connection ([`remote`]), and whoever has the place answers them ([`coordinator`]): so a world
//! of processes meets by the very rules that a world of threads does.

pub(crate) mod coordinator;
mod local;
pub(crate) mod remote;
mod secret;
mod wire;

use crate::error::Error;
use local::Local;
use remote::Remote;
pub(crate) use secret::{Token, random};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// A meeting place for a fixed number of ranks, each a thread or several of this process, or of a
/// process of its own ([`crate::Joined`]).
///
/// No call panics or poisons anything; each wait has a limit.
///
/// ```
/// use flux_runtime::Rendezvous;
/// use std::time::Duration;
///
/// let place = Rendezvous::new(2);
/// std::thread::scope(|scope| {
///     for rank in 0..2u8 {
///         let place = &place;
///         scope.spawn(move || {
///             let limit = Duration::from_secs(10);
///             let all = place.all_gather(rank.into(), 7, vec![rank], limit).unwrap();
///             assert_eq!(all[..], [vec![0], vec![1]]);
///         });
///     }
/// });
/// ```
#[derive(Debug)]
pub struct Rendezvous {
    place: Place,
}

/// Where the meeting place is.
#[derive(Debug)]
enum Place {
    Here(Arc<Local>),
    /// Behind a connection, which serves one rank.
    There(Remote),
}

impl Rendezvous {
    /// A meeting place for ranks `0..world` of this process.
    pub fn new(world: u32) -> Rendezvous {
        Rendezvous::here(Arc::new(Local::new(world)))
    }

    fn here(place: Arc<Local>) -> Rendezvous {
        Rendezvous { place: Place::Here(place) }
    }

    pub(crate) fn there(place: Remote) -> Rendezvous {
        Rendezvous { place: Place::There(place) }
    }

    /// Number of ranks.
    pub fn world(&self) -> u32 {
        match &self.place {
            Place::Here(place) => place.world(),
            Place::There(place) => place.world(),
        }
    }

    /// Whether each rank is a process of its own, so that nothing but bytes can be shared.
    pub fn spans_processes(&self) -> bool {
        matches!(self.place, Place::There(_))
    }

    /// Gives `payload` to all ranks and gets those of all, by rank.
    ///
    /// # Errors
    ///
    /// [`Error::RankMissing`] when some rank has not come within `limit` of this rank's call or of
    /// another's; [`Error::RankLate`] when the others have given up on this rank;
    /// [`Error::RankAbandoned`]; [`Error::RankRecovers`]; [`Error::NoSuchRank`]. Between processes
    /// also [`Error::PayloadTooLarge`], [`Error::CoordinatorLost`], and [`Error::OtherRank`] for a
    /// rank that is not this process's, here and below.
    pub fn all_gather(
        &self,
        rank: u32,
        key: u64,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<Arc<[Vec<u8>]>, Error> {
        match &self.place {
            Place::Here(place) => place.all_gather(rank, key, payload, limit),
            Place::There(place) => place.all_gather(rank, key, payload, limit),
        }
    }

    /// Checks that all ranks say the same `payload`; uses the keys of [`Rendezvous::all_gather`].
    /// `what` is what they might disagree on, for the message.
    ///
    /// # Errors
    ///
    /// [`Error::RanksDisagree`], and those of [`Rendezvous::all_gather`].
    pub fn agree(
        &self,
        rank: u32,
        key: u64,
        what: &str,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<(), Error> {
        let all = self.all_gather(rank, key, payload, limit)?;
        let differ = |(rank, said): (usize, &Vec<u8>)| (*said != all[0]).then_some(rank as u32);
        let ranks: Vec<u32> = all.iter().enumerate().filter_map(differ).collect();
        if ranks.is_empty() {
            return Ok(());
        }
        Err(Error::RanksDisagree { what: what.into(), ranks })
    }

    /// A value that the ranks share: the first to come builds it, the others get it, or its error.
    /// Its keys are apart from those of [`Rendezvous::all_gather`]. Each round builds anew, and
    /// keeps the value until every rank has it.
    ///
    /// Between processes every rank builds its own, and hears nothing of the others': where one
    /// may fail alone, [`Rendezvous::all_gather`] tells.
    ///
    /// To share errors of another type, share a `Result`.
    ///
    /// # Errors
    ///
    /// The error of `build`, to every rank; [`Error::Shared`] where `build` panicked or ranks
    /// want different types; [`Error::Timeout`] where another rank builds for longer than `limit`;
    /// [`Error::RankAbandoned`] where the rank that builds has given up; [`Error::NoSuchRank`].
    pub fn get_or_create<T: Any + Send + Sync>(
        &self,
        rank: u32,
        key: u64,
        limit: Duration,
        build: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Arc<T>, Error> {
        match &self.place {
            Place::Here(place) => place.get_or_create(rank, key, limit, build),
            Place::There(place) => place.require_own(rank).and_then(|()| build()).map(Arc::new),
        }
    }

    /// Says that `rank` will not come any more: whoever waits for it, now or later, gets `reason`
    /// instead of waiting for its limit. A process that ends says so by ending.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`].
    pub fn abandon(&self, rank: u32, reason: impl Into<String>) -> Result<(), Error> {
        match &self.place {
            Place::Here(place) => place.abandon(rank, reason),
            Place::There(place) => place.abandon(rank, reason.into()),
        }
    }

    /// How often `rank` has called this: the same number on every rank that makes the same calls.
    /// [`Rendezvous::recover`] makes ranks alike again.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`].
    pub fn next_number(&self, rank: u32) -> Result<u64, Error> {
        match &self.place {
            Place::Here(place) => place.next_number(rank),
            Place::There(place) => place.next_number(rank),
        }
    }

    /// A meeting place for `members` alone, where the first of them is rank 0. Each of them calls
    /// this with the same list; nobody else does, or waits.
    ///
    /// # Errors
    ///
    /// [`Error::NotInGroup`], [`Error::TwiceInGroup`], [`Error::NoSuchRank`] for a list that is none;
    /// [`Error::GroupsDiffer`] to both where a member wants another group with this rank;
    /// [`Error::RankRecovers`]; [`Error::RankMissing`] when some member has not come within `limit`;
    /// [`Error::RankAbandoned`].
    pub fn group(
        &self,
        rank: u32,
        members: &[u32],
        limit: Duration,
    ) -> Result<Arc<Rendezvous>, Error> {
        let group = match &self.place {
            Place::Here(place) => Rendezvous::here(place.group(rank, members, limit)?),
            Place::There(place) => Rendezvous::there(place.group(rank, members, limit)?),
        };
        Ok(Arc::new(group))
    }

    /// Forgets all rounds of all keys, those of groups included, so that ranks whose meetings failed
    /// meet again. Every rank calls this; none may be in a meeting.
    ///
    /// # Errors
    ///
    /// [`Error::RankMissing`] when some rank has not come within `limit`;
    /// [`Error::RankAbandoned`], [`Error::NoSuchRank`].
    pub fn recover(&self, rank: u32, limit: Duration) -> Result<(), Error> {
        match &self.place {
            Place::Here(place) => place.recover(rank, limit),
            Place::There(place) => place.recover(rank, limit),
        }
    }
}
