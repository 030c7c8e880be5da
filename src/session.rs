//! Who launches and who recovers, among the ranks that [`World::ranks`](crate::World::ranks) made
//! together.

use crate::error::Error;
use flux_sim::Workspace;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What ranks made together share, their groups included. Ranks are numbered as in the world.
#[derive(Debug)]
pub(crate) struct Session {
    /// A bit for each rank that recovers.
    recovering: AtomicU64,
    /// Launches under way, by rank.
    launching: Vec<AtomicU32>,
    /// Workspaces on the host, and who uses them.
    workspaces: Mutex<Vec<(Members, Weak<Workspace>)>>,
}

/// Ranks of the world that make a world of their own: rank 0 of it first.
#[derive(Debug, Clone)]
pub(crate) struct Members {
    ranks: Arc<[u32]>,
    mask: u64,
}

impl Members {
    pub(crate) fn new(ranks: impl IntoIterator<Item = u32>) -> Members {
        let ranks: Arc<[u32]> = ranks.into_iter().collect();
        let mask = ranks.iter().fold(0, |mask, rank| mask | bit(*rank));
        Members { ranks, mask }
    }

    /// The number in the world of rank `index` of these.
    pub(crate) fn in_world(&self, index: u32) -> u32 {
        self.ranks[index as usize]
    }

    /// The numbers in the world, by index.
    pub(crate) fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// The index of a rank of the world among these.
    pub(crate) fn position(&self, rank: u32) -> Option<u32> {
        self.ranks.iter().zip(0..).find_map(|(&member, index)| (member == rank).then_some(index))
    }

    pub(crate) fn len(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The members of a group of these.
    pub(crate) fn group(&self, indices: &[u32]) -> Members {
        Members::new(indices.iter().map(|&index| self.in_world(index)))
    }

    /// Whether all of these are among `others`.
    pub(crate) fn are_among(&self, others: &Members) -> bool {
        self.mask & !others.mask == 0
    }
}

/// Worlds have no more than 64 ranks.
const fn bit(rank: u32) -> u64 {
    1 << rank
}

impl Session {
    pub(crate) fn new(ranks: u32) -> Session {
        Session {
            recovering: AtomicU64::new(0),
            launching: (0..ranks).map(|_| AtomicU32::new(0)).collect(),
            workspaces: Mutex::default(),
        }
    }

    /// Lets rank `index` of `members` launch, unless one of them recovers.
    pub(crate) fn launch(
        &self,
        members: &Members,
        index: u32,
        kernel: &str,
    ) -> Result<Launching<'_>, Error> {
        let count = &self.launching[members.in_world(index) as usize];
        // Either the recovering rank sees this launch under way, or this launch sees it recover.
        count.fetch_add(1, Ordering::SeqCst);
        let launching = Launching { count };
        let recovering = self.recovering.load(Ordering::SeqCst) & members.mask;
        if recovering == 0 {
            return Ok(launching);
        }
        let found = members.ranks.iter().position(|&rank| recovering & bit(rank) != 0);
        let peer = found.unwrap_or(0) as u32;
        Err(Error::Recovering { rank: index, kernel: kernel.into(), peer })
    }

    /// Closes rank `index` of `members` to launches until the guard is dropped.
    ///
    /// # Errors
    /// A rank that another thread has closed.
    pub(crate) fn close(&self, members: &Members, index: u32) -> Result<Closed<'_>, Error> {
        let rank = members.in_world(index);
        match self.recovering.fetch_or(bit(rank), Ordering::SeqCst) & bit(rank) {
            0 => Ok(Closed { session: self, rank }),
            _ => Err(flux_runtime::Error::RankTwice { rank: index }.into()),
        }
    }

    pub(crate) fn add(&self, members: &Members, workspace: &Arc<Workspace>) {
        let mut workspaces = self.workspaces();
        workspaces.retain(|(_, workspace)| workspace.strong_count() > 0);
        workspaces.push((members.clone(), Arc::downgrade(workspace)));
    }

    /// The workspaces that concern nobody but `members`, each once, and whom they do.
    pub(crate) fn workspaces_of(&self, members: &Members) -> Vec<(Members, Arc<Workspace>)> {
        let workspaces = self.workspaces();
        let own = workspaces.iter().filter(|(users, _)| users.are_among(members));
        own.filter_map(|(users, workspace)| Some((users.clone(), workspace.upgrade()?))).collect()
    }

    fn workspaces(&self) -> MutexGuard<'_, Vec<(Members, Weak<Workspace>)>> {
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A launch under way.
#[derive(Debug)]
pub(crate) struct Launching<'s> {
    count: &'s AtomicU32,
}

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A rank that recovers.
#[derive(Debug)]
pub(crate) struct Closed<'s> {
    session: &'s Session,
    rank: u32,
}

impl Closed<'_> {
    /// Waits for the launches of this rank that had begun, on other threads.
    pub(crate) fn wait(&self, limit: Duration) -> Result<(), String> {
        let start = Instant::now();
        while self.session.launching[self.rank as usize].load(Ordering::SeqCst) > 0 {
            if start.elapsed() >= limit {
                return Err(format!("a launch of another thread did not end within {limit:?}"));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.session.recovering.fetch_and(!bit(self.rank), Ordering::SeqCst);
    }
}
