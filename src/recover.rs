//! After a failed launch: all ranks begin anew.

use crate::error::Error;
use crate::meeting::Meeting;
use crate::world::{Backend, Rank};
use std::sync::Arc;
use std::time::Duration;

/// What a peer needs beyond the limit until it comes: its launch may have begun to wait just now.
const GRACE: Duration = Duration::from_secs(1);

impl Rank {
    /// Makes this world usable again after launches, or meetings, have failed. Every rank calls it;
    /// each waits for what it launched, then signals, counters and workspaces of every kernel loaded
    /// on these ranks, and on groups of them, are as if nothing had been launched. Kernels, tensors
    /// and groups stay as they are; outputs of failed launches stay unusable until they are written.
    ///
    /// ```
    /// use flux::prelude::*;
    /// use std::time::Duration;
    ///
    /// World::host(2)?.with_limit(Duration::from_millis(200)).run(|rank| {
    ///     let kernel = flux::kernels::gemm_rs::load(rank)?;
    ///     let (a, b) = (rank.zeros(4, 8)?, rank.zeros(16, 8)?);
    ///     let mut c = rank.zeros(2, 16)?;
    ///     kernel.launch(&a, &b, &mut c)?;
    ///     if rank.index() == 0 {
    ///         kernel.launch(&a, &b, &mut c).expect_err("rank 1 does not launch");
    ///     }
    ///     rank.recover()?;
    ///     kernel.launch(&a, &b, &mut c)
    /// })?;
    /// # Ok::<(), flux::Error>(())
    /// ```
    ///
    /// # Errors
    /// A rank that does not come within the limit and a second, or that has left;
    /// [`Error::NotRecovered`] on every rank where one of them cannot. Then nothing has changed for
    /// the ranks that failed, and recovering may be tried again.
    pub fn recover(&self) -> Result<(), Error> {
        self.recover_at(0)
    }

    /// As [`Rank::recover`], but kernels go on as if each had been launched so many times: for tests
    /// of counters that wrap.
    #[doc(hidden)]
    pub fn recover_at(&self, launches: u32) -> Result<(), Error> {
        let shared = &self.shared;
        let closed = shared.session.close(&shared.members, self.index)?;
        let limit = shared.limit + GRACE;
        self.rendezvous.recover(self.index, limit)?;
        // Nobody launches any more, here or on a peer.
        self.together("at rest", closed.wait(limit).and_then(|()| self.rest()))?;
        let begun = self.begin_anew(launches);
        // Whoever leaves the last meeting finds every rank open, as each opens ahead of it.
        drop(closed);
        self.together("anew", begun)
    }

    /// Waits for what this rank has launched.
    fn rest(&self) -> Result<(), String> {
        match &self.shared.backend {
            Backend::Host { .. } => Ok(()),
            Backend::Gpu(gpu) => gpu.rest(self.index).map_err(|error| error.to_string()),
        }
    }

    /// Sets everything of this rank's to where it is after so many launches. All ranks are at rest.
    fn begin_anew(&self, launches: u32) -> Result<(), String> {
        match &self.shared.backend {
            Backend::Host { .. } => {
                let workspaces = self.shared.session.workspaces_of(&self.shared.members);
                let mut workspaces = workspaces.iter();
                let begun = if self.shared.joined.is_some() {
                    // Each process does it for its own rank.
                    let rank = self.shared.members.in_world(self.index);
                    workspaces.try_for_each(|(members, workspace)| {
                        let rank = members.position(rank);
                        rank.map_or(Ok(()), |rank| workspace.restart_rank(rank, launches))
                    })
                } else {
                    // One rank does it for all.
                    let mut all = workspaces.filter(|_| self.index == 0);
                    all.try_for_each(|(_, workspace)| workspace.restart(launches))
                };
                begun.map_err(|error| error.to_string())
            }
            Backend::Gpu(gpu) => {
                gpu.begin_anew(self.index, launches).map_err(|error| error.to_string())
            }
        }
    }

    /// Meets the other ranks; what failed on one of them is told to all.
    fn together(&self, purpose: &str, outcome: Result<(), String>) -> Result<(), Error> {
        let said = outcome.err().unwrap_or_default();
        let (place, limit) = (Arc::clone(&self.rendezvous), self.shared.limit + GRACE);
        // No kernel has this number.
        let meeting = Meeting::new(place, self.index, u64::MAX, limit);
        let all = meeting.tell(purpose, said.into_bytes())?;
        let failed = all.iter().position(|said| !said.is_empty());
        failed.map_or(Ok(()), |rank| {
            let reason = String::from_utf8_lossy(&all[rank]).into_owned();
            Err(Error::NotRecovered { rank: rank as u32, reason })
        })
    }
}
