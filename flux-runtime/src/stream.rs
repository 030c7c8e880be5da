//! Queues of work for a device.

use crate::device::Device;
use crate::error::Error;
use crate::event::Event;
use crate::host::pause;
use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUresult};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A queue of work: what is enqueued runs in that order.
///
/// Streams that wait for each other need a hardware queue each
/// ([`Device::require_connections`]), and the signaller should be enqueued before the waiter.
pub struct Stream {
    device: Arc<Device>,
    raw: sys::CUstream,
    owner: Owner,
}

/// Who destroys the stream.
enum Owner {
    Ours,
    Caller,
    Cudarc(#[expect(dead_code, reason = "held so that the stream lives")] Arc<CudaStream>),
}

// SAFETY: a stream handle may be used by any thread; the driver orders concurrent calls.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Makes a stream that does not wait for the default stream, with a hardware queue
    /// ([`Stream::take_queue`]).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::Driver`].
    pub fn new(device: &Arc<Device>) -> Result<Stream, Error> {
        device.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer is to a live handle; `drop` destroys the stream.
        device.check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        let stream = Stream { device: device.clone(), raw, owner: Owner::Ours };
        stream.take_queue()?;
        Ok(stream)
    }

    /// Lets the stream have its hardware queue now: writes a word that nobody reads.
    ///
    /// The driver gives a stream its queue with the first work that is enqueued on it. Streams whose first
    /// works were kernels, enqueued by several threads at once, were seen to share queues however many
    /// there were, and a kernel that spins then keeps those of its peers from starting
    /// (`docs/decisions/0034-queues-of-streams.md`). A stream of the caller's own is used before peers wait for what is
    /// launched on it, or this is called; not while it is captured.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::Driver`].
    pub fn take_queue(&self) -> Result<(), Error> {
        // One stream after the other.
        let word = self.device.first_word()?;
        self.device.bind()?;
        // SAFETY: the word is device memory as long as the device is open, which streams hold.
        let result = unsafe { sys::cuMemsetD32Async(*word, 0, 1, self.raw) };
        self.device.check("cuMemsetD32Async", result)
    }

    /// Adopts a stream of the caller, who goes on owning it. Null is the default stream.
    ///
    /// # Safety
    ///
    /// `raw` is a stream of this device's primary context, and is not destroyed before this value.
    pub unsafe fn from_raw(device: &Arc<Device>, raw: sys::CUstream) -> Stream {
        Stream { device: device.clone(), raw, owner: Owner::Caller }
    }

    /// Uses a stream of cudarc.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`].
    pub fn from_cudarc(device: &Arc<Device>, stream: Arc<CudaStream>) -> Result<Stream, Error> {
        let (need, found) = (device.ordinal(), stream.context().ordinal() as u32);
        if need != found {
            return Err(Error::OtherDevice { what: "the stream", need, found });
        }
        let raw = stream.cu_stream();
        Ok(Stream { device: device.clone(), raw, owner: Owner::Cudarc(stream) })
    }

    /// The device it feeds.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The driver's handle, for work that is enqueued elsewhere.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Records `event` behind all that is enqueued.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`], [`Error::Driver`].
    pub fn record(&self, event: &Event) -> Result<(), Error> {
        self.device.require_same("the event", event.device())?;
        self.device.bind()?;
        // SAFETY: both handles are alive, since both values are borrowed.
        let result = unsafe { sys::cuEventRecord(event.raw(), self.raw) };
        self.device.check("cuEventRecord", result)
    }

    /// Lets all that is enqueued later wait for what `event` has recorded; an event that has
    /// recorded nothing is no wait.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        self.device.bind()?;
        // SAFETY: both handles are alive, since both values are borrowed; the driver keeps what
        // it needs of the event when it is destroyed.
        let result = unsafe { sys::cuStreamWaitEvent(self.raw, event.raw(), 0) };
        self.device.check("cuStreamWaitEvent", result)
    }

    /// Has all that is enqueued finished?
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], among them the failure of an earlier kernel.
    pub fn is_idle(&self) -> Result<bool, Error> {
        self.device.bind()?;
        // SAFETY: the handle is alive, since the value is borrowed.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => self.device.check("cuStreamQuery", result).map(|()| true),
        }
    }

    /// Waits until all that is enqueued has finished.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when that takes longer than `limit`; [`Error::Driver`], among them the
    /// failure of an earlier kernel.
    pub fn synchronize(&self, limit: Duration) -> Result<(), Error> {
        until("the work of a stream", limit, || self.is_idle())
    }
}

/// Polls `done` until it is true.
pub(crate) fn until(
    what: &'static str,
    limit: Duration,
    done: impl Fn() -> Result<bool, Error>,
) -> Result<(), Error> {
    let start = Instant::now();
    let mut rounds = 0;
    while !done()? {
        if start.elapsed() >= limit {
            return Err(Error::Timeout { what, limit });
        }
        pause(&mut rounds);
    }
    Ok(())
}

impl Drop for Stream {
    fn drop(&mut self) {
        if matches!(self.owner, Owner::Ours) && self.device.bind().is_ok() {
            // SAFETY: the stream was made by `new` and is destroyed once; the driver finishes the
            // work in it first, without blocking here.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match &self.owner {
            Owner::Ours => "ours",
            Owner::Caller => "caller",
            Owner::Cudarc(_) => "cudarc",
        };
        f.debug_struct("Stream")
            .field("device", &self.device.ordinal())
            .field("raw", &self.raw)
            .field("owner", &owner)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::until;
    use crate::Error;
    use std::time::Duration;

    #[test]
    fn polling_ends_by_success_by_failure_or_by_its_limit() {
        let limit = Duration::from_millis(5);
        assert_eq!(until("it", limit, || Ok(true)), Ok(()));
        assert_eq!(until("it", limit, || Ok(false)), Err(Error::Timeout { what: "it", limit }));
        assert_eq!(until("it", limit, || Err(Error::NoDevice)), Err(Error::NoDevice));
    }
}
