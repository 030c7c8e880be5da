//! Host memory that kernels see: signals with a host home, and reports.

use crate::device::Device;
use crate::error::Error;
use crate::memory::Span;
use crate::segment::Segment;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Pinned host memory, mapped into the device, zeroed; words of 32 bits for the host, an address
/// for the device.
pub struct HostBuffer {
    device: Arc<Device>,
    host: NonNull<AtomicU32>,
    words: usize,
    address: u64,
    /// What it lies in, where processes share it.
    segment: Option<Segment>,
}

// SAFETY: the memory is reached through atomics alone, and freed by the one owner.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates `bytes` zero bytes, rounded up to whole words; aligned to a page.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::Driver`].
    pub fn alloc(device: &Arc<Device>, bytes: u64) -> Result<HostBuffer, Error> {
        let words = bytes.div_ceil(4) as usize;
        let (mut host, mut address) = (NonNull::<AtomicU32>::dangling(), 0);
        if words > 0 {
            device.bind()?;
            host = pinned(device, words)?;
            // SAFETY: the memory was allocated as mapped.
            address = unsafe { seen_by(device, host) }.inspect_err(|_| {
                // SAFETY: nobody else has seen the memory, it is freed once.
                let _ = unsafe { sys::cuMemFreeHost(host.as_ptr().cast::<c_void>()) };
            })?;
        }
        Ok(HostBuffer { device: device.clone(), host, words, address, segment: None })
    }

    /// Pins memory that processes share, and maps it into this device too. Each process does so for
    /// its own.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::Driver`].
    pub fn register(device: &Arc<Device>, segment: Segment) -> Result<HostBuffer, Error> {
        let words = segment.words();
        let (host, words) = (NonNull::from(words).cast::<AtomicU32>(), words.len());
        let mut address = 0;
        if words > 0 {
            device.bind()?;
            let (memory, bytes) = (host.as_ptr().cast::<c_void>(), 4 * words);
            let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
            // SAFETY: the segment has so many bytes, from the beginning of a page on, and stays
            // mapped until `drop` has unregistered it.
            let result = unsafe { sys::cuMemHostRegister_v2(memory, bytes, flags) };
            device.check_allocation("cuMemHostRegister", "pinned host", bytes as u64, result)?;
            // SAFETY: the memory was registered as mapped.
            address = unsafe { seen_by(device, host) }.inspect_err(|_| {
                // SAFETY: it was registered just now.
                let _ = unsafe { sys::cuMemHostUnregister(memory) };
            })?;
        }
        Ok(HostBuffer { device: device.clone(), host, words, address, segment: Some(segment) })
    }

    /// The device that it is mapped for.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its first byte, as the device sees it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its number of bytes.
    pub fn bytes(&self) -> u64 {
        4 * self.words as u64
    }

    /// All of it, for the device.
    pub fn span(&self) -> Span<'_> {
        Span::new(self.address, self.bytes())
    }

    /// All of it, for the host. A kernel writes these words at any moment.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: the words were allocated, or mapped, together, and live as long as the buffer;
        // whoever else writes them writes whole words.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.words) }
    }

    /// Waits until word `index` has reached `wanted`, which is also true of values after it:
    /// counters wrap, and their difference is compared. Acquires what was released with it.
    /// `stop` is asked now and then; when it is true, the wait is over without success.
    ///
    /// # Errors
    ///
    /// [`Error::WordTimeout`] with the value seen, [`Error::OutOfBounds`].
    pub fn wait_at_least(
        &self,
        index: u64,
        wanted: u32,
        limit: Duration,
        stop: impl Fn() -> bool,
    ) -> Result<u32, Error> {
        crate::memory::within("a host buffer", index.saturating_mul(4), 4, self.bytes())?;
        let word = &self.words()[index as usize];
        wait_at_least(word, wanted, limit, stop).map_err(|seen| Error::WordTimeout {
            index,
            wanted,
            seen,
            limit,
        })
    }
}

/// [`HostBuffer::wait_at_least`] on one word; fails with the value last seen.
fn wait_at_least(
    word: &AtomicU32,
    wanted: u32,
    limit: Duration,
    stop: impl Fn() -> bool,
) -> Result<u32, u32> {
    let start = Instant::now();
    let mut rounds = 0u32;
    loop {
        let seen = word.load(Ordering::Acquire);
        if seen.wrapping_sub(wanted) as i32 >= 0 {
            return Ok(seen);
        }
        if start.elapsed() >= limit || stop() {
            return Err(seen);
        }
        pause(&mut rounds);
    }
}

/// Waits a little: spinning at first, since a transfer's word is often a few microseconds away,
/// then leaving the core to others.
pub(crate) fn pause(rounds: &mut u32) {
    *rounds = rounds.saturating_add(1);
    match *rounds {
        0..256 => std::hint::spin_loop(),
        256..1024 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(50)),
    }
}

/// The address of pinned memory, as the device sees it.
///
/// # Safety
///
/// The memory was allocated, or registered, as mapped.
unsafe fn seen_by(device: &Device, host: NonNull<AtomicU32>) -> Result<u64, Error> {
    let mut address = 0;
    let memory = host.as_ptr().cast::<c_void>();
    // SAFETY: the pointer is to a live integer; the rest is this function's contract.
    let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, memory, 0) };
    device.check("cuMemHostGetDevicePointer", result).map(|()| address)
}

/// Allocates zeroed words.
fn pinned(device: &Device, words: usize) -> Result<NonNull<AtomicU32>, Error> {
    let mut memory = std::ptr::null_mut();
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: the pointer is to a live pointer; the buffer's `drop` frees the memory.
    let result = unsafe { sys::cuMemHostAlloc(&mut memory, 4 * words, flags) };
    device.check_allocation("cuMemHostAlloc", "pinned host", 4 * words as u64, result)?;
    let Some(host) = NonNull::new(memory.cast::<AtomicU32>()) else {
        let (device, free) = (device.ordinal(), 0);
        return Err(Error::OutOfMemory {
            kind: "pinned host",
            device,
            bytes: 4 * words as u64,
            free,
        });
    };
    // SAFETY: the memory has that many words, and nobody else has seen it.
    unsafe { host.write_bytes(0, words) };
    Ok(host)
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.words == 0 || self.device.bind().is_err() {
            return;
        }
        // Host memory goes back to the process: no copy or kernel may still write it. Waits of
        // kernels have limits, so this ends.
        self.device.drain();
        let memory = self.host.as_ptr().cast::<c_void>();
        let _ = match &self.segment {
            // SAFETY: the memory was allocated by `alloc`, its work is done, it is freed once.
            None => unsafe { sys::cuMemFreeHost(memory) },
            // SAFETY: the memory was registered by `register`, its work is done, it is still mapped.
            Some(_) => unsafe { sys::cuMemHostUnregister(memory) },
        };
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuffer")
            .field("address", &self.address)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::wait_at_least;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn a_counter_that_wraps_is_still_later() {
        let word = AtomicU32::new(3);
        let limit = Duration::from_millis(5);
        assert_eq!(wait_at_least(&word, u32::MAX - 1, limit, || false), Ok(3));
        assert_eq!(wait_at_least(&word, 3, limit, || false), Ok(3));
        assert_eq!(wait_at_least(&word, 4, limit, || false), Err(3));
    }

    #[test]
    fn a_wait_ends_when_the_word_comes_or_is_told_to_stop() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                word.store(7, Ordering::Release);
            });
            assert_eq!(wait_at_least(&word, 7, Duration::from_secs(30), || false), Ok(7));
        });
        let start = Instant::now();
        assert_eq!(wait_at_least(&word, 8, Duration::from_secs(30), || true), Err(7));
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
