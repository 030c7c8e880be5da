//! How the ranks of one kernel meet: to agree, to share what one of them made, to wait for all.

use crate::error::Error;
use crate::problem::Extents;
use crate::session::Members;
use flux_ir::fingerprint;
use flux_runtime::{Device, Heaps, Joined, Rendezvous, Segment};
use std::sync::Arc;
use std::time::Duration;

/// How long ranks wait for one of them to check a Program or to lay out memory, at least.
const BUILD_LIMIT: Duration = Duration::from_secs(120);

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

    fn gather(&self, key: u64, payload: Vec<u8>) -> Result<Arc<[Vec<u8>]>, Error> {
        Ok(self.rendezvous.all_gather(self.rank, key, payload, self.limit)?)
    }

    /// Memory of each rank, mapped by all: rank r's has `words[r]` words.
    pub(crate) fn segments(
        &self,
        joined: &Joined,
        members: &Members,
        words: &[u64],
    ) -> Result<Vec<Segment>, Error> {
        let own = (self.rank, members.ranks());
        Ok(joined.share(&self.rendezvous, own, self.key("segments"), words, self.limit)?)
    }

    /// Heaps of each rank, mapped by all, where ranks are processes with a GPU each: `on` is this
    /// one's, and says which ranks are on it too. `bytes` are those of the device and of the host.
    pub(crate) fn heaps(
        &self,
        joined: &Joined,
        members: &Members,
        on: (&Arc<Device>, &[bool]),
        bytes: (u64, u64),
    ) -> Result<Heaps, Error> {
        let (own, key) = ((self.rank, members.ranks()), self.key("heaps"));
        let limit = self.limit.max(BUILD_LIMIT);
        Ok(joined.share_heaps(&self.rendezvous, own, key, on, bytes, limit)?)
    }

    /// Whether each rank is a process of its own, and does for itself what ranks of one process do
    /// once for all.
    pub(crate) fn spans_processes(&self) -> bool {
        self.rendezvous.spans_processes()
    }

    /// Checks that every rank says the same of `what`.
    ///
    /// # Errors
    /// [`flux_runtime::Error::RanksDisagree`] on every rank.
    pub(crate) fn same(&self, what: &str, said: Vec<u8>) -> Result<(), Error> {
        let (key, limit) = (self.key(what), self.limit.max(BUILD_LIMIT));
        Ok(self.rendezvous.agree(self.rank, key, what, said, limit)?)
    }

    /// Checks that every rank is about to do the same thing, to the same kernel, and gives every
    /// rank's extents. All steps of all kernels meet here, so ranks that are about to do different
    /// things meet too, and hear of it at once.
    ///
    /// # Errors
    /// [`Error::RanksDisagree`] on every rank, naming the first that differs from it.
    pub(crate) fn step(&self, step: &Step, extents: &Extents) -> Result<Vec<Extents>, Error> {
        let head = step.encode(self.id);
        let numbers = extents.iter().flatten().flat_map(|value| value.to_le_bytes());
        let payload = head.iter().copied().chain(numbers).collect();
        let all = self.gather(fingerprint::of_bytes(*b"step"), payload)?;
        if let Some(rank) = all.iter().position(|theirs| !theirs.starts_with(&head)) {
            return Err(Error::RanksDisagree {
                own_rank: self.rank,
                ours: step.text.clone(),
                rank: rank as u32,
                theirs: match Step::decode_text(&all[rank]) {
                    text if text == step.text => format!("{text}, but another one of that name"),
                    text => text,
                },
            });
        }
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        let read = |payload: &Vec<u8>| {
            let pairs = payload[head.len()..].chunks_exact(8);
            pairs.map(|pair| [word(&pair[..4]), word(&pair[4..])]).collect()
        };
        Ok(all.iter().map(read).collect())
    }

    /// Waits until every rank has come here.
    pub(crate) fn barrier(&self, purpose: &str) -> Result<(), Error> {
        self.gather(self.key(purpose), Vec::new()).map(|_| ())
    }

    /// Gives `said` to every rank, and what each of them said, by rank.
    pub(crate) fn tell(&self, purpose: &str, said: Vec<u8>) -> Result<Arc<[Vec<u8>]>, Error> {
        self.gather(self.key(purpose), said)
    }

    /// The value that the first rank to come makes for all; its error goes to all. The others wait
    /// for work that ends, not for a peer that may be lost, so their limit is a generous one.
    pub(crate) fn share<T: Send + Sync + 'static>(
        &self,
        purpose: &str,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Arc<T>, Error> {
        type Shared<T> = Result<Arc<T>, Arc<Error>>;
        let build = || -> Result<Shared<T>, flux_runtime::Error> {
            Ok(make().map(Arc::new).map_err(Arc::new))
        };
        let limit = self.limit.max(BUILD_LIMIT);
        let shared = self.rendezvous.get_or_create(self.rank, self.key(purpose), limit, build)?;
        let made = (*shared).clone().map_err(Error::Together);
        if self.rendezvous.spans_processes() { self.together(purpose, made) } else { made }
    }

    /// What every rank has made for itself: where one could not, none has it.
    pub(crate) fn together<T>(&self, purpose: &str, made: Result<T, Error>) -> Result<T, Error> {
        let said = made.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let (key, limit) = (self.key(purpose), self.limit.max(BUILD_LIMIT));
        let all = self.rendezvous.all_gather(self.rank, key, said.into_bytes(), limit)?;
        let value = made?;
        let failed = all.iter().position(|said| !said.is_empty());
        failed.map_or(Ok(value), |rank| {
            let reason = String::from_utf8_lossy(&all[rank]).into_owned();
            Err(flux_runtime::Error::OnRank { rank: rank as u32, reason }.into())
        })
    }
}

/// What a rank is about to do.
#[derive(Debug)]
pub(crate) struct Step {
    /// For messages: "load `gemm`".
    text: String,
    /// Tells apart what reads the same.
    fingerprint: u64,
}

impl Step {
    /// `text` says what is about to be done, `to` is what it is done to.
    pub(crate) fn new(text: String, to: &[&str]) -> Step {
        let bytes = to.iter().flat_map(|part| part.bytes().chain([0]));
        Step { text, fingerprint: fingerprint::of_bytes(bytes) }
    }

    /// The number of the kernel and the fingerprint, the length of the text, the text.
    fn encode(&self, id: u64) -> Vec<u8> {
        let numbers = [id, self.fingerprint, self.text.len() as u64];
        let numbers = numbers.into_iter().flat_map(u64::to_le_bytes);
        numbers.chain(self.text.bytes()).collect()
    }

    fn decode_text(encoded: &[u8]) -> String {
        let (numbers, rest) = encoded.split_at(24);
        let length = numbers[16..].iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte));
        String::from_utf8_lossy(&rest[..length]).into_owned()
    }
}
