//! Ranks that come together outside of the rounds of keys: to make a meeting place for some of
//! them, or to begin anew when meetings have failed. Whoever gives up takes back that it came, so
//! a failed assembly leaves nothing that a later one could stumble over.

use super::{Local, State};
use crate::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a rank has come for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A meeting place of these ranks, in this order.
    Group(Vec<u32>),
    /// To forget all meetings.
    Recover,
}

/// What an assembly made: the meeting place of a group.
pub(super) type Made = Option<Arc<Local>>;

impl Purpose {
    /// Whether `rank` takes part.
    fn concerns(&self, rank: u32) -> bool {
        match self {
            Purpose::Group(members) => members.contains(&rank),
            Purpose::Recover => true,
        }
    }

    fn members(&self, world: u32) -> Vec<u32> {
        match self {
            Purpose::Group(members) => members.clone(),
            Purpose::Recover => (0..world).collect(),
        }
    }
}

impl Local {
    pub(crate) fn group(
        &self,
        rank: u32,
        members: &[u32],
        limit: Duration,
    ) -> Result<Arc<Local>, Error> {
        for (index, &member) in members.iter().enumerate() {
            self.require_rank(member)?;
            if members[..index].contains(&member) {
                return Err(Error::TwiceInGroup { rank: member, members: members.into() });
            }
        }
        if !members.contains(&rank) {
            return Err(Error::NotInGroup { rank, members: members.into() });
        }
        let made = self.assemble(rank, Purpose::Group(members.into()), limit)?;
        made.ok_or(Error::RankRecovers { rank })
    }

    pub(crate) fn recover(&self, rank: u32, limit: Duration) -> Result<(), Error> {
        self.assemble(rank, Purpose::Recover, limit).map(|_| ())
    }

    fn assemble(&self, rank: u32, purpose: Purpose, limit: Duration) -> Result<Made, Error> {
        let start = Instant::now();
        let mut state = self.enter(rank)?;
        if state.assembling[rank as usize].is_some() {
            return Err(Error::RankTwice { rank });
        }
        state.assembled[rank as usize] = None;
        state.assembling[rank as usize] = Some(purpose.clone());
        state.assemble(rank, &purpose, self.world);
        self.changed.notify_all();
        loop {
            if let Some(outcome) = state.assembled[rank as usize].take() {
                return outcome;
            }
            let missing = state.missing_from(&purpose, self.world);
            let failure = match state.first_abandoned(&missing) {
                Some(error) => error,
                None if start.elapsed() >= limit => {
                    let elsewhere = state.elsewhere(&missing);
                    Error::RankMissing { missing, elsewhere, waited: limit }
                }
                None => {
                    state = self.pause(state, rank, limit.saturating_sub(start.elapsed()));
                    continue;
                }
            };
            state.assembling[rank as usize] = None;
            return Err(failure);
        }
    }

    /// Forgets all rounds, of groups too.
    fn forget(&self) {
        self.lock().forget(self.world);
        self.changed.notify_all();
    }
}

impl State {
    /// Ends an assembly that `rank` has completed, or made impossible.
    fn assemble(&mut self, rank: u32, purpose: &Purpose, world: u32) {
        let members = purpose.members(world);
        for &other in &members {
            let theirs = self.assembling[other as usize].clone();
            let Some(theirs) = theirs.filter(|theirs| theirs != purpose && theirs.concerns(rank))
            else {
                continue;
            };
            match (purpose, &theirs) {
                (Purpose::Group(ours), Purpose::Group(theirs)) => {
                    let differ = |rank, ours: &[u32], other, theirs: &[u32]| Error::GroupsDiffer {
                        rank,
                        ours: ours.into(),
                        other,
                        theirs: theirs.into(),
                    };
                    self.end(rank, Err(differ(rank, ours, other, theirs)));
                    self.end(other, Err(differ(other, theirs, rank, ours)));
                    return;
                }
                (Purpose::Group(_), Purpose::Recover) => {
                    self.end(rank, Err(Error::RankRecovers { rank: other }));
                    return;
                }
                (Purpose::Recover, _) => self.end(other, Err(Error::RankRecovers { rank })),
            }
        }
        if !self.missing_from(purpose, world).is_empty() {
            return;
        }
        let made = match purpose {
            Purpose::Group(members) => {
                let place = Arc::new(Local::new(members.len() as u32));
                self.groups.retain(|(_, group)| group.strong_count() > 0);
                self.groups.push((members.clone(), Arc::downgrade(&place)));
                Some(place)
            }
            Purpose::Recover => {
                self.forget(world);
                None
            }
        };
        for member in members {
            self.end(member, Ok(made.clone()));
        }
    }

    fn end(&mut self, rank: u32, outcome: Result<Made, Error>) {
        self.assembling[rank as usize] = None;
        self.assembled[rank as usize] = Some(outcome);
    }

    /// Those who have not come for this.
    fn missing_from(&self, purpose: &Purpose, world: u32) -> Vec<u32> {
        let came = |rank: &u32| self.assembling[*rank as usize].as_ref() == Some(purpose);
        purpose.members(world).into_iter().filter(|rank| !came(rank)).collect()
    }

    /// The first of `ranks` that has come to begin anew.
    pub(super) fn first_recovering(&self, ranks: &[u32]) -> Option<Error> {
        let recovers = |rank: u32| self.assembling[rank as usize] == Some(Purpose::Recover);
        let rank = ranks.iter().copied().find(|&rank| recovers(rank))?;
        Some(Error::RankRecovers { rank })
    }

    fn forget(&mut self, world: u32) {
        self.gathers.clear();
        self.shared.clear();
        self.generation += 1;
        let most = self.numbers.iter().copied().max().unwrap_or(0);
        self.numbers = vec![most; world as usize];
        for (_, group) in &self.groups {
            if let Some(group) = group.upgrade() {
                group.forget();
            }
        }
    }
}
