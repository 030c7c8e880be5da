//! Points in streams.

use crate::device::Device;
use crate::driver::elapsed_ms;
use crate::error::Error;
use crate::stream::until;
use cudarc::driver::sys::{self, CUresult};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Whether an event keeps the time; one that does not costs less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timing {
    /// It does.
    On,
    /// It does not.
    Off,
}

/// A point in a stream, recorded by [`crate::Stream::record`].
pub struct Event {
    device: Arc<Device>,
    raw: sys::CUevent,
    timing: Timing,
}

// SAFETY: an event handle may be used by any thread; the driver orders concurrent calls.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Makes an event that has recorded nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn new(device: &Arc<Device>, timing: Timing) -> Result<Event, Error> {
        device.bind()?;
        let flags = match timing {
            Timing::On => sys::CUevent_flags::CU_EVENT_DEFAULT,
            Timing::Off => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle; `drop` destroys the event.
        let result = unsafe { sys::cuEventCreate(&mut raw, flags as u32) };
        device.check("cuEventCreate", result)?;
        Ok(Event { device: device.clone(), raw, timing })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn raw(&self) -> sys::CUevent {
        self.raw
    }

    /// Has the work it recorded finished? True of an event that has recorded nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn is_done(&self) -> Result<bool, Error> {
        self.device.bind()?;
        // SAFETY: the handle is alive, since the value is borrowed.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => self.device.check("cuEventQuery", result).map(|()| true),
        }
    }

    /// Waits until the work it recorded has finished.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when that takes longer than `limit`; [`Error::Driver`].
    pub fn synchronize(&self, limit: Duration) -> Result<(), Error> {
        until("the work before an event", limit, || self.is_done())
    }

    /// Milliseconds from `earlier` to this event, both done.
    ///
    /// # Errors
    ///
    /// [`Error::Untimed`]; [`Error::Driver`] where one of the two is not done.
    pub fn ms_since(&self, earlier: &Event) -> Result<f32, Error> {
        if self.timing == Timing::Off || earlier.timing == Timing::Off {
            return Err(Error::Untimed);
        }
        self.device.bind()?;
        // SAFETY: both handles are alive, since both values are borrowed.
        unsafe { elapsed_ms(earlier.raw, self.raw) }.or_else(|result| {
            self.device.check("cuEventElapsedTime", result)?;
            Ok(0.0)
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the event was made by `new` and is destroyed once; the driver keeps what
            // streams still need of it.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("device", &self.device.ordinal())
            .field("raw", &self.raw)
            .field("timing", &self.timing)
            .finish()
    }
}
