//! The meeting place itself: rounds by key, values that ranks share, and who has given up.

mod assembly;

use crate::error::Error;
use assembly::{Made, Purpose};
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Keys and rounds that some rank has still to come to.
const MOST_MEETINGS: usize = 1 << 14;

/// A meeting place in this process. What its functions do and return, [`super::Rendezvous`] says.
#[derive(Debug)]
pub(crate) struct Local {
    world: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    gathers: HashMap<u64, Meeting<Gather>>,
    shared: HashMap<u64, Meeting<Shared>>,
    /// Which ranks will not come any more, and why: the first to go first, as the others may have
    /// gone because of it.
    abandoned: Vec<(u32, String)>,
    /// Waits in progress, by rank.
    waiting: Vec<u32>,
    /// How often all has been forgotten: rounds of before are over.
    generation: u64,
    /// Numbers given out so far, by rank.
    numbers: Vec<u64>,
    /// What each rank has come for, and what came of it.
    assembling: Vec<Option<Purpose>>,
    assembled: Vec<Option<Result<Made, Error>>>,
    /// Meeting places of some of the ranks, and who meets there.
    groups: Vec<(Vec<u32>, Weak<Local>)>,
}

/// The rounds of one key.
#[derive(Debug)]
struct Meeting<R> {
    /// The round that each rank's next call belongs to.
    next: Vec<u64>,
    /// Rounds that some rank has still to leave, with the number of those that have left.
    rounds: BTreeMap<u64, (R, u32)>,
}

#[derive(Debug)]
struct Gather {
    payloads: Vec<Option<Vec<u8>>>,
    outcome: Option<Result<Arc<[Vec<u8>]>, Error>>,
}

#[derive(Debug)]
enum Shared {
    /// The rank that came first is building the value.
    Building(u32),
    Built(Result<Arc<dyn Any + Send + Sync>, Error>),
}

impl<R> Meeting<R> {
    fn new(world: u32) -> Meeting<R> {
        Meeting { next: vec![0; world as usize], rounds: BTreeMap::new() }
    }

    /// The round that this call of `rank` belongs to.
    fn enter(&mut self, rank: u32) -> u64 {
        let next = &mut self.next[rank as usize];
        *next += 1;
        *next - 1
    }

    fn round(&mut self, round: u64, fresh: impl FnOnce() -> R) -> &mut R {
        &mut self.rounds.entry(round).or_insert_with(|| (fresh(), 0)).0
    }

    /// Counts a rank that has its answer; the last one out forgets the round.
    fn leave(&mut self, round: u64) {
        let world = self.next.len() as u32;
        if let Some((_, left)) = self.rounds.get_mut(&round) {
            *left += 1;
            if *left == world {
                self.rounds.remove(&round);
            }
        }
    }

    /// Is there nothing to remember?
    fn is_over(&self) -> bool {
        self.rounds.is_empty() && self.next.iter().all(|round| *round == self.next[0])
    }
}

impl Local {
    pub(crate) fn new(world: u32) -> Local {
        let state = State {
            gathers: HashMap::new(),
            shared: HashMap::new(),
            abandoned: Vec::new(),
            waiting: vec![0; world as usize],
            generation: 0,
            numbers: vec![0; world as usize],
            assembling: vec![None; world as usize],
            assembled: vec![None; world as usize],
            groups: Vec::new(),
        };
        Local { world, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn world(&self) -> u32 {
        self.world
    }

    pub(crate) fn all_gather(
        &self,
        rank: u32,
        key: u64,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<Arc<[Vec<u8>]>, Error> {
        let start = Instant::now();
        let mut state = self.enter(rank)?;
        state.require_room()?;
        let meeting = state.gathers.entry(key).or_insert_with(|| Meeting::new(self.world));
        let round = meeting.enter(rank);
        let gather = meeting.round(round, || Gather::new(self.world));
        if gather.outcome.is_none() {
            gather.payloads[rank as usize] = Some(payload);
            gather.finish_if_complete();
            self.changed.notify_all();
        }
        let generation = state.generation;
        let answer = loop {
            if state.generation != generation {
                return Err(Error::RankRecovers { rank });
            }
            let missing = state.gather(key, round, self.world).missing();
            let gone = state.first_abandoned(&missing);
            let gone = gone.or_else(|| state.first_recovering(&missing));
            let elsewhere = state.elsewhere(&missing);
            let gather = state.gather(key, round, self.world);
            if let Some(outcome) = &gather.outcome {
                break outcome.clone();
            }
            let failure = match gone {
                Some(error) => error,
                None if start.elapsed() >= limit => {
                    Error::RankMissing { missing, elsewhere, waited: limit }
                }
                None => {
                    state = self.pause(state, rank, limit.saturating_sub(start.elapsed()));
                    continue;
                }
            };
            gather.fail(failure);
            self.changed.notify_all();
        };
        state.leave_gather(key, round);
        match answer {
            Err(Error::RankMissing { missing, waited, .. }) if missing.contains(&rank) => {
                Err(Error::RankLate { rank, waited })
            }
            answer => answer,
        }
    }

    pub(crate) fn get_or_create<T: Any + Send + Sync>(
        &self,
        rank: u32,
        key: u64,
        limit: Duration,
        build: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Arc<T>, Error> {
        let start = Instant::now();
        let mut state = self.enter(rank)?;
        let meeting = state.shared.entry(key).or_insert_with(|| Meeting::new(self.world));
        let round = meeting.enter(rank);
        let generation = state.generation;
        let meeting = state.shared.entry(key).or_insert_with(|| Meeting::new(self.world));
        if !meeting.rounds.contains_key(&round) {
            meeting.round(round, || Shared::Building(rank));
            drop(state);
            let unfinished = Unfinished { place: self, key, round, rank };
            unfinished.finish(build().map(|value| Arc::new(value) as Arc<dyn Any + Send + Sync>));
            state = self.lock();
        }
        let answer = loop {
            if state.generation != generation {
                return Err(Error::RankRecovers { rank });
            }
            let failure = match state.shared(key, round) {
                None => Error::Shared { reason: "it has been dropped".into() },
                Some(Shared::Built(built)) => break built.clone(),
                Some(&Shared::Building(by)) => match state.first_abandoned(&[by]) {
                    Some(error) => error,
                    None if start.elapsed() >= limit => {
                        Error::Timeout { what: "a value that another rank builds", limit }
                    }
                    None => {
                        state = self.pause(state, rank, limit.saturating_sub(start.elapsed()));
                        continue;
                    }
                },
            };
            break Err(failure);
        };
        state.leave_shared(key, round);
        answer?.downcast::<T>().map_err(|_| Error::Shared {
            reason: format!("rank {rank} wants it to be of another type than it is"),
        })
    }

    pub(crate) fn abandon(&self, rank: u32, reason: impl Into<String>) -> Result<(), Error> {
        self.require_rank(rank)?;
        let reason = reason.into();
        let mut state = self.lock();
        if state.abandoned.iter().all(|(gone, _)| *gone != rank) {
            state.abandoned.push((rank, reason.clone()));
        }
        for (members, group) in &state.groups {
            let index = members.iter().position(|&member| member == rank);
            if let (Some(index), Some(group)) = (index, group.upgrade()) {
                group.abandon(index as u32, &*reason)?;
            }
        }
        self.changed.notify_all();
        Ok(())
    }

    pub(crate) fn next_number(&self, rank: u32) -> Result<u64, Error> {
        self.require_rank(rank)?;
        let number = &mut self.lock().numbers[rank as usize];
        *number += 1;
        Ok(*number - 1)
    }

    /// The state, for a rank that exists and has not given up.
    fn enter(&self, rank: u32) -> Result<MutexGuard<'_, State>, Error> {
        self.require_rank(rank)?;
        let state = self.lock();
        match state.first_abandoned(&[rank]) {
            Some(error) => Err(error),
            None => Ok(state),
        }
    }

    fn require_rank(&self, rank: u32) -> Result<(), Error> {
        if rank < self.world {
            return Ok(());
        }
        Err(Error::NoSuchRank { rank, world: self.world })
    }

    /// No code of a user runs under this lock, so what a panicking thread leaves behind is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, `limit` at most.
    fn pause<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        rank: u32,
        limit: Duration,
    ) -> MutexGuard<'s, State> {
        state.waiting[rank as usize] += 1;
        let waited = self.changed.wait_timeout(state, limit);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting[rank as usize] -= 1;
        state
    }
}

impl State {
    /// Refuses more meetings than are kept: one rank alone cannot fill the memory of all.
    fn require_room(&self) -> Result<(), Error> {
        let rounds: usize = self.gathers.values().map(|meeting| 1 + meeting.rounds.len()).sum();
        if rounds < MOST_MEETINGS {
            return Ok(());
        }
        Err(Error::TooManyMeetings { most: MOST_MEETINGS as u64 })
    }

    fn gather(&mut self, key: u64, round: u64, world: u32) -> &mut Gather {
        let meeting = self.gathers.entry(key).or_insert_with(|| Meeting::new(world));
        meeting.round(round, || Gather::new(world))
    }

    fn shared(&self, key: u64, round: u64) -> Option<&Shared> {
        self.shared.get(&key)?.rounds.get(&round).map(|(shared, _)| shared)
    }

    fn leave_gather(&mut self, key: u64, round: u64) {
        leave(&mut self.gathers, key, round);
    }

    fn leave_shared(&mut self, key: u64, round: u64) {
        leave(&mut self.shared, key, round);
    }

    /// The error for that of `ranks` that has given up first.
    fn first_abandoned(&self, ranks: &[u32]) -> Option<Error> {
        let (rank, reason) = self.abandoned.iter().find(|(rank, _)| ranks.contains(rank))?.clone();
        Some(Error::RankAbandoned { rank, reason })
    }

    /// Those of `ranks` that wait somewhere.
    fn elsewhere(&self, ranks: &[u32]) -> Vec<u32> {
        ranks.iter().copied().filter(|&rank| self.waiting[rank as usize] > 0).collect()
    }
}

fn leave<R>(meetings: &mut HashMap<u64, Meeting<R>>, key: u64, round: u64) {
    if let Some(meeting) = meetings.get_mut(&key) {
        meeting.leave(round);
        if meeting.is_over() {
            meetings.remove(&key);
        }
    }
}

impl Gather {
    fn new(world: u32) -> Gather {
        Gather { payloads: vec![None; world as usize], outcome: None }
    }

    /// Ranks that have not come.
    fn missing(&self) -> Vec<u32> {
        let ranks = self.payloads.iter().zip(0..);
        ranks.filter_map(|(payload, rank)| payload.is_none().then_some(rank)).collect()
    }

    fn finish_if_complete(&mut self) {
        if self.payloads.iter().all(Option::is_some) {
            let all: Vec<_> = self.payloads.iter().flatten().cloned().collect();
            self.outcome = Some(Ok(all.into()));
        }
    }

    fn fail(&mut self, error: Error) {
        self.outcome = Some(Err(error));
        // Nobody will read them, and a rank that never comes keeps the round alive.
        self.payloads.iter_mut().flatten().for_each(|payload| *payload = Vec::new());
    }
}

/// A value being built. Dropped unfinished, by a panic, it leaves an error for the others.
struct Unfinished<'a> {
    place: &'a Local,
    key: u64,
    round: u64,
    rank: u32,
}

impl Unfinished<'_> {
    fn finish(self, built: Result<Arc<dyn Any + Send + Sync>, Error>) {
        self.settle(built);
    }

    /// Sets the answer, unless there is one.
    fn settle(&self, built: Result<Arc<dyn Any + Send + Sync>, Error>) {
        let mut state = self.place.lock();
        let meeting = state.shared.get_mut(&self.key);
        if let Some((shared @ Shared::Building(_), _)) =
            meeting.and_then(|meeting| meeting.rounds.get_mut(&self.round))
        {
            *shared = Shared::Built(built);
        }
        drop(state);
        self.place.changed.notify_all();
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = format!("rank {} panicked", self.rank);
            self.settle(Err(Error::Shared { reason }));
            self.place.lock().leave_shared(self.key, self.round);
        }
    }
}
