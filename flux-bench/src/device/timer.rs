//! The time of work on a stream, without that of the host which enqueues it.

use super::LIMIT;
use crate::error::Error;
use flux_runtime::{Event, HostBuffer, Stream, Timing};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Times work on one stream.
///
/// The stream waits at a gate until everything is enqueued, so the host is ahead of the device
/// however long the enqueueing takes; and it is awaited after every sample, so each one meets a
/// device that is idle.
#[derive(Debug)]
pub struct Timer {
    stream: Arc<Stream>,
    gate: HostBuffer,
    turn: Cell<u32>,
    start: Event,
    end: Event,
}

impl Timer {
    /// A timer for `stream`.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(stream: Arc<Stream>) -> Result<Timer, Error> {
        let device = stream.device();
        let gate = HostBuffer::alloc(device, 4)?;
        let (start, end) = (Event::new(device, Timing::On)?, Event::new(device, Timing::On)?);
        Ok(Timer { gate, turn: Cell::new(0), start, end, stream })
    }

    /// The stream whose work is timed.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Milliseconds that the device takes for what `enqueue` puts on the stream. Nothing in it may
    /// wait on the host for work that the stream has yet to do.
    ///
    /// # Errors
    /// Those of `enqueue`; work that does not end.
    pub fn time(&self, enqueue: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
        let turn = self.turn.get().wrapping_add(1);
        self.turn.set(turn);
        self.stream.wait_u32(self.gate.span(), turn)?;
        let enqueued = (|| {
            self.stream.record(&self.start)?;
            enqueue()?;
            self.stream.record(&self.end)?;
            Ok::<(), Error>(())
        })();
        // Opened whatever happened: a closed gate would hold the stream for ever.
        self.gate.words()[0].store(turn, Ordering::Release);
        enqueued?;
        self.end.synchronize(LIMIT)?;
        Ok(self.end.ms_since(&self.start)?.into())
    }
}
