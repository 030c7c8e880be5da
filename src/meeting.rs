//! How the ranks of one kernel meet: to agree, to share what one of them made, to wait for all.

use crate::error::Error;
use crate::problem::Extents;
use flux_ir::fingerprint;
use flux_runtime::Rendezvous;
use std::sync::Arc;
use std::time::Duration;

/// The meetings of one kernel's ranks. Every rank calls the same ones in the same order.
#[derive(Debug)]
pub(crate) struct Meeting {
    rendezvous: Arc<Rendezvous>,
    rank: u32,
    /// The same on every rank: names this kernel among those that the ranks loaded.
    id: u64,
    limit: Duration,
}

impl Meeting {
    pub(crate) fn new(rendezvous: Arc<Rendezvous>, rank: u32, id: u64, limit: Duration) -> Meeting {
        Meeting { rendezvous, rank, id, limit }
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    fn key(&self, purpose: &str) -> u64 {
        fingerprint::of_bytes(purpose.bytes().chain(self.id.to_le_bytes()))
    }

    fn gather(&self, purpose: &str, payload: Vec<u8>) -> Result<Arc<[Vec<u8>]>, Error> {
        Ok(self.rendezvous.all_gather(self.rank, self.key(purpose), payload, self.limit)?)
    }

    /// Checks that every rank says the same.
    ///
    /// # Errors
    /// [`Error::RanksDisagree`] on every rank, naming the first that differs from it.
    pub(crate) fn agree(&self, purpose: &str, ours: String) -> Result<(), Error> {
        let all = self.gather(purpose, ours.clone().into_bytes())?;
        match all.iter().position(|theirs| *theirs != ours.as_bytes()) {
            None => Ok(()),
            Some(rank) => Err(Error::RanksDisagree {
                own_rank: self.rank,
                ours,
                rank: rank as u32,
                theirs: String::from_utf8_lossy(&all[rank]).into_owned(),
            }),
        }
    }

    /// Every rank's extents.
    pub(crate) fn gather_extents(&self, extents: &Extents) -> Result<Vec<Extents>, Error> {
        let payload = extents.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        let read = |payload: &Vec<u8>| {
            payload.chunks_exact(8).map(|pair| [word(&pair[..4]), word(&pair[4..])]).collect()
        };
        Ok(self.gather("extents", payload)?.iter().map(read).collect())
    }

    /// Waits until every rank has come here.
    pub(crate) fn barrier(&self, purpose: &str) -> Result<(), Error> {
        self.gather(purpose, Vec::new()).map(|_| ())
    }

    /// The value that the first rank to come makes for all; its error goes to all.
    pub(crate) fn share<T: Send + Sync + 'static>(
        &self,
        purpose: &str,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Arc<T>, Error> {
        type Shared<T> = Result<Arc<T>, Arc<Error>>;
        let build = || -> Result<Shared<T>, flux_runtime::Error> {
            Ok(make().map(Arc::new).map_err(Arc::new))
        };
        let key = self.key(purpose);
        let shared = self.rendezvous.get_or_create(self.rank, key, self.limit, build)?;
        (*shared).clone().map_err(Error::Together)
    }
}
