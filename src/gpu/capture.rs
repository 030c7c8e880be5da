//! Launches of a rank as a CUDA graph.
//!
//! A graph holds what its stream does, with all numbers as they were. Kernels read the number of
//! their launch from memory and advance it there, so a replay is a launch like any other. Copies that
//! the host feeds are not: ahead of each it waits until the peer has room, and behind each it
//! writes the number of the launch. A graph has neither.

use super::instance::GpuInstance;
use super::{Gpu, Lane};
use crate::error::Error;
use crate::tensor::{Arg, Data, Memory, TensorArg};
use flux_runtime::{Graph, Stream};
use std::sync::{Arc, MutexGuard, PoisonError};

/// What a graph launches, and what it rests on.
#[derive(Debug)]
pub(crate) struct Captured {
    /// Destroyed first.
    graph: Option<Graph>,
    used: Used,
}

/// What launches that are captured use.
#[derive(Debug, Default)]
pub(super) struct Used {
    /// What is captured.
    stream: Option<Arc<Stream>>,
    instances: Vec<Arc<GpuInstance>>,
    read: Vec<Arc<Memory>>,
    written: Vec<Arc<Memory>>,
}

impl Used {
    fn is_of(&self, stream: &Arc<Stream>) -> bool {
        self.stream.as_ref().is_some_and(|captured| Arc::ptr_eq(captured, stream))
    }

    fn add(&mut self, instance: &Arc<GpuInstance>, args: &[Arg<'_>]) {
        if !self.instances.iter().any(|known| Arc::ptr_eq(known, instance)) {
            self.instances.push(Arc::clone(instance));
        }
        for arg in args {
            let Arg::Tensor(TensorArg { data, .. }) = arg else { continue };
            let (to, tensor) = match data {
                Data::Device(tensor) => (&mut self.read, tensor),
                Data::Target(tensor) => (&mut self.written, tensor),
                Data::Read(_) | Data::Write(_) => continue,
            };
            if !to.iter().any(|known| Arc::ptr_eq(known, tensor.memory())) {
                to.push(Arc::clone(tensor.memory()));
            }
        }
    }
}

/// A capture in progress; dropped before its end, it is undone.
struct Capturing<'g> {
    lane: &'g Lane,
    stream: Arc<Stream>,
    ended: bool,
}

impl Capturing<'_> {
    fn end(mut self) -> Result<Captured, Error> {
        self.ended = true;
        let used = self.lane.captured().take().unwrap_or_default();
        let graph = Some(self.stream.end_capture()?);
        Ok(Captured { graph, used })
    }
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // What it was to hold is of no use; the stream has to be as before.
            self.lane.captured().take();
            drop(self.stream.end_capture());
        }
    }
}

impl Lane {
    /// What the capture in progress uses.
    fn captured(&self) -> MutexGuard<'_, Option<Used>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses what a stream that is captured cannot do.
    pub(super) fn require_free(&self, what: &str) -> Result<(), Error> {
        if self.captured().is_none() {
            return Ok(());
        }
        let problem =
            format!("{what}: a stream that is captured runs nothing that could be waited for");
        Err(Error::Unsupported { kernel: "capture".into(), problem })
    }
}

impl Gpu {
    /// Records what `program` launches on `rank`.
    pub(crate) fn capture(
        &self,
        rank: u32,
        program: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Captured, Error> {
        let lane = self.lane(rank);
        lane.require_free("another capture")?;
        let stream = self.stream(rank);
        stream.begin_capture()?;
        *lane.captured() = Some(Used { stream: Some(Arc::clone(&stream)), ..Used::default() });
        let capturing = Capturing { lane, stream, ended: false };
        program()?;
        capturing.end()
    }

    /// Whether launches of `rank` are recorded.
    pub(crate) fn is_capturing(&self, rank: u32) -> bool {
        self.lane(rank).captured().as_ref().is_some_and(|used| used.is_of(&self.stream(rank)))
    }

    /// Launches a graph of `rank`.
    pub(crate) fn replay(&self, rank: u32, captured: &Captured) -> Result<(), Error> {
        let (lane, rescue) = (self.lane(rank), &self.card(rank).rescue);
        lane.require_free("a graph in a graph")?;
        let Used { instances, written, .. } = &captured.used;
        for instance in instances {
            // A group's kernel may be among them: its ranks recover alone.
            let GpuInstance { session, members, rank, watch, .. } = &**instance;
            session.launch(members, *rank, &watch.kernel)?;
            instance.require_sound(lane, rescue)?;
        }
        let Some(graph) = &captured.graph else { return Ok(()) };
        let (_enqueuing, stream) = (self.enqueuing(), self.stream(rank));
        for instance in instances {
            instance.queue(lane, &stream)?;
        }
        let number = self.count_launch(rank);
        written.iter().for_each(|memory| memory.mark(number));
        // SAFETY: the graph holds launches of this rank's alone, each of which was enqueued as its
        // Program demands, over memory that `captured` keeps alive until the streams are idle.
        Ok(unsafe { graph.launch(&stream) }?)
    }

    /// Keeps what a graph rests on until no launch can use it any more.
    pub(crate) fn bury_all(&self, rank: u32, captured: &mut Captured) {
        captured.graph = None;
        let Used { read, written, .. } = std::mem::take(&mut captured.used);
        read.into_iter().chain(written).for_each(|memory| self.bury(rank, memory));
    }
}

impl GpuInstance {
    /// Refuses launches of a kernel of which one has failed, or of which a rank is gone.
    pub(super) fn require_sound(&self, lane: &Lane, rescue: &Stream) -> Result<(), Error> {
        if let Some(gone) = self.gone() {
            self.end_for_gone(lane, rescue)?;
            return Err(gone);
        }
        if let Some(stall) = self.take_stall() {
            lane.spoil(stall.clone());
            return Err(stall);
        }
        if self.watch.is_poisoned() {
            return Err(Error::Poisoned { kernel: self.watch.kernel.clone() });
        }
        Ok(())
    }

    /// Takes a launch into the graph that is captured, if one is; whether that is so.
    pub(super) fn note_capture(
        self: &Arc<Self>,
        lane: &Lane,
        stream: &Arc<Stream>,
        args: &[Arg<'_>],
    ) -> Result<bool, Error> {
        let mut captured = lane.captured();
        let captured = captured.as_mut().filter(|used| used.is_of(stream));
        let by_host = self.copiers > 0 || self.inbound.is_some();
        if by_host && (captured.is_some() || stream.is_capturing()?) {
            return Err(self.unsupported(
                "no graph holds its copies, ahead of which the host waits for peers: load it under \
                 `transport = put`, where kernels copy",
            ));
        }
        let is_captured = captured.is_some();
        if let Some(used) = captured {
            used.add(self, args);
        }
        Ok(is_captured)
    }

    /// Queues what comes on `stream` behind the launches of this instance on other streams, and
    /// behind kernels beside which it has no room.
    pub(super) fn queue(&self, lane: &Lane, stream: &Arc<Stream>) -> Result<(), Error> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| !Arc::ptr_eq(last, stream)) {
            last.record(&self.join)?;
            stream.wait(&self.join)?;
        }
        if last.is_none() || !last.as_ref().is_some_and(|last| Arc::ptr_eq(last, stream)) {
            *last = Some(Arc::clone(stream));
        }
        lane.make_room(stream, self.ctas)
    }
}
