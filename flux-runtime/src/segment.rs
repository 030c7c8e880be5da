//! Memory that the processes of one machine share.

use crate::error::Error;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    memfd_create,
};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU32;

/// What a peer's memory must promise: it stays as long as it is, so that no access leaves it.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Memory of one rank that the processes of its machine may have mapped: 32-bit words, zero at
/// first. It has no name in any folder, and lives as long as some process has it mapped or holds
/// its descriptor.
pub struct Segment {
    map: MmapRaw,
    words: usize,
}

impl Segment {
    /// Memory of `words` words, all of it there at once, and the descriptor that a peer needs to
    /// map it as well.
    ///
    /// # Errors
    ///
    /// [`Error::SharedMemory`] where the system has not so much, or no descriptor.
    pub fn create(words: u64) -> Result<(Segment, OwnedFd), Error> {
        let bytes = bytes(words)?;
        let failed = |what| move |error: rustix::io::Errno| refusal(what, bytes, error);
        // Asked for more than there is, the system would end processes to find it.
        if available().is_some_and(|available| bytes > available) {
            return Err(refusal("no memory", bytes, "the machine has not so much left"));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("flux", flags).map_err(failed("no descriptor"))?;
        // What is only promised would end the process when it is first touched.
        fallocate(&fd, FallocateFlags::empty(), 0, bytes).map_err(failed("no memory"))?;
        fcntl_add_seals(&fd, SEALS).map_err(failed("no seals"))?;
        Ok((Segment::map(&fd, words, bytes)?, fd))
    }

    /// Memory of `words` words that a peer has made.
    ///
    /// # Errors
    ///
    /// [`Error::SharedMemory`] for a descriptor of something else, and where the system does not map
    /// it.
    pub fn open(fd: impl AsFd, words: u64) -> Result<Segment, Error> {
        let bytes = bytes(words)?;
        let failed = |what| move |error: rustix::io::Errno| refusal(what, bytes, error);
        let seals = fcntl_get_seals(&fd).map_err(failed("a peer's descriptor that is none"))?;
        let size = fstat(&fd).map_err(failed("a peer's descriptor that is none"))?.st_size;
        if !seals.contains(SEALS) || u64::try_from(size) != Ok(bytes) {
            let reason = format!("it has {size} bytes, sealed by {seals:?}");
            return Err(refusal("a peer's descriptor of something else", bytes, reason));
        }
        Segment::map(&fd, words, bytes)
    }

    fn map(fd: &impl AsFd, words: u64, bytes: u64) -> Result<Segment, Error> {
        use std::os::fd::AsRawFd;
        let mapped = MmapOptions::new().len(bytes as usize).map_raw(fd.as_fd().as_raw_fd());
        let map = mapped.map_err(|error| refusal("no addresses", bytes, error))?;
        Ok(Segment { map, words: words as usize })
    }

    /// The words. Every process sees what another stores, in the order that atomics give.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: the mapping begins at a page, so words are aligned, and has room for so many
        // (`bytes`, and the file is sealed against shrinking). It stays until `self` is dropped. No
        // process gets references to anything but atomics from it.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast::<AtomicU32>(), self.words) }
    }
}

/// Bytes of memory that the machine has left, where it says so.
fn available() -> Option<u64> {
    let said = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = said.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of a mapping for `words`: one word at least, as there are no empty mappings.
fn bytes(words: u64) -> Result<u64, Error> {
    let bytes = words.max(1).checked_mul(4).filter(|bytes| i64::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| refusal("no addresses", u64::MAX, "more words than can be counted"))
}

fn refusal(what: &'static str, bytes: u64, reason: impl ToString) -> Error {
    Error::SharedMemory { what, bytes, reason: reason.to_string() }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("words", &self.words).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_one_mapping_stores_the_other_reads() {
        let (own, fd) = Segment::create(3).unwrap();
        let theirs = Segment::open(&fd, 3).unwrap();
        drop(fd);
        assert!(theirs.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        own.words()[2].store(7, Ordering::Release);
        drop(own);
        assert_eq!(theirs.words().len(), 3);
        assert_eq!(theirs.words()[2].load(Ordering::Acquire), 7);
    }

    #[test]
    fn no_words_are_no_error() {
        let (own, fd) = Segment::create(0).unwrap();
        assert!(own.words().is_empty());
        assert!(Segment::open(fd, 0).unwrap().words().is_empty());
    }

    #[test]
    fn a_descriptor_of_something_else_is_not_mapped() {
        let (_own, fd) = Segment::create(3).unwrap();
        assert!(Segment::open(&fd, 4).unwrap_err().to_string().contains("it has 12 bytes"));
        let null = File::open("/dev/null").unwrap();
        assert!(matches!(Segment::open(null, 1), Err(Error::SharedMemory { .. })));
        let unsealed = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 12).unwrap();
        assert!(Segment::open(unsealed, 3).is_err());
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        assert!(matches!(Segment::create(u64::MAX), Err(Error::SharedMemory { .. })));
        assert!(available().is_some_and(|bytes| bytes < 1 << 50));
        assert!(matches!(Segment::create(1 << 58), Err(Error::SharedMemory { .. })));
    }
}
