//! Work of a stream, recorded once and enqueued again and again.

use crate::device::Device;
use crate::error::Error;
use crate::stream::Stream;
use cudarc::driver::sys;
use std::fmt;
use std::sync::Arc;

/// A CUDA graph, ready to be launched.
pub struct Graph {
    device: Arc<Device>,
    exec: sys::CUgraphExec,
}

// SAFETY: a handle of an executable graph may be used by any thread; launches of one graph are
// ordered by the driver.
unsafe impl Send for Graph {}
// SAFETY: as above; nothing here changes the graph.
unsafe impl Sync for Graph {}

impl Stream {
    /// Records what is enqueued from now on, by any thread, instead of running it, until
    /// [`Stream::end_capture`].
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], among them a stream that is captured already, and the default stream.
    pub fn begin_capture(&self) -> Result<(), Error> {
        self.device().bind()?;
        // Other threads and other streams go on allocating and waiting meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the handle is alive, since the value is borrowed.
        let result = unsafe { sys::cuStreamBeginCapture_v2(self.raw(), mode) };
        self.device().check("cuStreamBeginCapture", result)
    }

    /// Ends a capture and gives what was recorded.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], also where something was enqueued that no graph can hold: nothing is
    /// captured any more then.
    pub fn end_capture(&self) -> Result<Graph, Error> {
        let device = self.device();
        device.bind()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let result = unsafe { sys::cuStreamEndCapture(self.raw(), &mut graph) };
        device.check("cuStreamEndCapture", result)?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph was made by the call before; `drop` destroys what is made of it.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) };
        // SAFETY: the graph is used no more, and destroyed once.
        let destroyed = unsafe { sys::cuGraphDestroy(graph) };
        device.check("cuGraphInstantiateWithFlags", result)?;
        let made = Graph { device: Arc::clone(device), exec };
        device.check("cuGraphDestroy", destroyed)?;
        Ok(made)
    }

    /// Whether what is enqueued is recorded, whoever began it.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn is_capturing(&self) -> Result<bool, Error> {
        self.device().bind()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the pointer is to a live value.
        let result = unsafe { sys::cuStreamIsCapturing(self.raw(), &mut status) };
        self.device().check("cuStreamIsCapturing", result)?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

impl Graph {
    /// Enqueues all of it on `stream`, behind what is there.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`], [`Error::Driver`].
    ///
    /// # Safety
    ///
    /// Whatever the recorded work reads and writes is valid until this launch has finished, and
    /// nothing else uses it meanwhile but as that work allows.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), Error> {
        stream.device().require_same("the graph", &self.device)?;
        self.device.bind()?;
        // SAFETY: both handles are alive, since both values are borrowed; the rest is this
        // function's contract.
        let result = unsafe { sys::cuGraphLaunch(self.exec, stream.raw()) };
        self.device.check("cuGraphLaunch", result)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the graph was made by `end_capture` and is destroyed once; the driver keeps
            // what launches still need.
            let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("device", &self.device.ordinal())
            .field("exec", &self.exec)
            .finish()
    }
}
