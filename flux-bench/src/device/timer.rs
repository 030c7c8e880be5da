//! The time of work on a stream, without that of the host which enqueues it.

use super::LIMIT;
use crate::error::Error;
use flux_runtime::{Event, HostBuffer, Stream, Timing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// The host is through with enqueueing long before, unless the driver makes it wait.
const LONGEST_HOLD: Duration = Duration::from_millis(500);

/// Times work on one stream.
///
/// The stream waits at a gate until everything is enqueued, so the host is ahead of the device
/// however long the enqueueing takes; and it is awaited after every sample, so each one meets a
/// device that is idle.
#[derive(Debug)]
pub struct Timer {
    stream: Arc<Stream>,
    gate: HostBuffer,
    turn: AtomicU32,
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
        Ok(Timer { gate, turn: AtomicU32::new(0), start, end, stream })
    }

    /// The stream whose work is timed.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Milliseconds that the device takes for what `enqueue` puts on the stream. Nothing in it may
    /// wait on the host for work that the stream has yet to do.
    ///
    /// # Errors
    /// Those of `enqueue`; [`Error::Held`]; work that does not end.
    pub fn time(&self, enqueue: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.stream.wait_u32(self.gate.span(), turn)?;
        let outcome = behind_gate(
            || self.open(turn),
            || {
                self.stream.record(&self.start)?;
                enqueue()?;
                Ok(self.stream.record(&self.end)?)
            },
        );
        // Opened whatever happened: a closed gate would hold the stream for ever.
        self.open(turn);
        outcome?;
        self.end.synchronize(LIMIT)?;
        Ok(self.end.ms_since(&self.start)?.into())
    }

    /// Milliseconds of one of `launches` launches, one behind the other. Each takes the next of
    /// `sets` sets of operands; the first of round 0 takes the one numbered `offset`.
    pub(super) fn rotated(
        &self,
        launch: &dyn Fn(usize) -> Result<(), Error>,
        launches: u32,
        sets: usize,
        round: u32,
        offset: usize,
    ) -> Result<f64, Error> {
        let first = round as usize * launches as usize + offset;
        let ms = self.time(|| {
            (first..first + launches as usize).try_for_each(|index| launch(index % sets))
        })?;
        Ok(ms / f64::from(launches))
    }

    fn open(&self, turn: u32) {
        self.gate.words()[0].store(turn, Ordering::Release);
    }
}

/// Enqueues work for a stream that stands at a gate, which `open` opens: here as soon as the driver makes
/// the host wait, since it takes so much work for a stream that stands still and no more.
///
/// # Errors
/// Those of `enqueue`; [`Error::Held`] where the gate had to be opened.
pub(crate) fn behind_gate(
    open: impl Fn() + Send,
    enqueue: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let (done, enqueued) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let held = enqueued.recv_timeout(LONGEST_HOLD) == Err(RecvTimeoutError::Timeout);
            if held {
                open();
            }
            held
        });
        let outcome = enqueue();
        drop(done);
        let held = watch.join().unwrap_or(true);
        if held { outcome.and(Err(Error::Held)) } else { outcome }
    })
}
