//! NCCL's collectives: the live baseline that benches run beside ours where there are several GPUs.
//!
//! The library is loaded at the first use, by the names that a system installation has
//! (`libnccl.so`); where it is missing, [`NcclId::new`] says so.

use crate::device::Device;
use crate::error::Error;
use crate::memory::{Span, within};
use crate::stream::Stream;
use crate::tensor_map::ElementKind;
use cudarc::nccl::sys;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::sync::Arc;

/// Functions of NCCL that are called here. cudarc looks each up at its first use.
const SYMBOLS: &[&str] = &[
    "ncclGetVersion",
    "ncclGetUniqueId",
    "ncclCommInitRank",
    "ncclCommAbort",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclAllReduce",
    "ncclSend",
    "ncclRecv",
    "ncclGroupStart",
    "ncclGroupEnd",
];

/// What the ranks of one communicator have in common: made by one of them, given to all.
#[derive(Debug, Clone, Copy)]
pub struct NcclId(sys::ncclUniqueId);

impl NcclId {
    /// An id of a communicator that nobody has joined yet.
    ///
    /// # Errors
    ///
    /// [`Error::NoNccl`] where the library is not found or too old, [`Error::Nccl`].
    pub fn new() -> Result<NcclId, Error> {
        require_library()?;
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: the pointer is to a live value.
        let result = unsafe { sys::ncclGetUniqueId(&mut id) };
        check("ncclGetUniqueId", result)?;
        Ok(NcclId(id))
    }
}

/// The version of the library, as `(major, minor, patch)`.
///
/// # Errors
///
/// [`Error::NoNccl`], [`Error::Nccl`].
pub fn version() -> Result<(i32, i32, i32), Error> {
    require_library()?;
    let mut version = 0;
    // SAFETY: the pointer is to a live integer.
    let result = unsafe { sys::ncclGetVersion(&mut version) };
    check("ncclGetVersion", result)?;
    Ok((version / 10_000, version / 100 % 100, version % 100))
}

/// One rank of a communicator.
pub struct Nccl {
    device: Arc<Device>,
    comm: sys::ncclComm_t,
    world: u32,
}

// SAFETY: a communicator may be used by any thread, one at a time (NCCL user guide, "Thread
// safety"); every use below borrows the one value, which is not `Sync`.
unsafe impl Send for Nccl {}

/// What two numbers become when contributions are added.
const SUM: sys::ncclRedOp_t = sys::ncclRedOp_t::ncclSum;

impl Nccl {
    /// Joins as rank `rank` of `world`. Returns when all have joined, without a limit: let the ranks
    /// agree beforehand that each of them will.
    ///
    /// # Errors
    ///
    /// [`Error::Nccl`], for two ranks on one device too; [`Error::Driver`].
    pub fn join(device: &Arc<Device>, id: NcclId, world: u32, rank: u32) -> Result<Nccl, Error> {
        device.bind()?;
        let mut comm = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle; `drop` gives the communicator back.
        let result = unsafe { sys::ncclCommInitRank(&mut comm, world as i32, id.0, rank as i32) };
        check("ncclCommInitRank", result)?;
        Ok(Nccl { device: Arc::clone(device), comm, world })
    }

    /// Ranks of the communicator.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// Every rank's `from`, one behind the other, into each rank's `to`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] where `to` is shorter than that; [`Error::Nccl`].
    pub fn all_gather(&self, stream: &Stream, to: Span<'_>, from: Span<'_>) -> Result<(), Error> {
        within("the gathered rows", 0, from.bytes() * u64::from(self.world), to.bytes())?;
        self.bound(stream)?;
        let (count, kind) = (from.bytes() as usize, sys::ncclDataType_t::ncclUint8);
        let (to, from) = (pointer(to), pointer(from));
        // SAFETY: both spans are live memory of the device, as long as was checked, and stay so until
        // the stream has done the work.
        let result = unsafe { sys::ncclAllGather(from, to, count, kind, self.comm, raw(stream)) };
        check("ncclAllGather", result)
    }

    /// The sum over ranks of their `from`; each rank's `to` gets its own part of it.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] where `from` is shorter than all parts; [`Error::Nccl`].
    pub fn reduce_scatter(
        &self,
        stream: &Stream,
        to: Span<'_>,
        from: Span<'_>,
        element: ElementKind,
    ) -> Result<(), Error> {
        within("contributions", 0, to.bytes() * u64::from(self.world), from.bytes())?;
        self.bound(stream)?;
        let (count, kind) = elements(to, element);
        let (to, from) = (pointer(to), pointer(from));
        // SAFETY: as in `all_gather`.
        let result =
            unsafe { sys::ncclReduceScatter(from, to, count, kind, SUM, self.comm, raw(stream)) };
        check("ncclReduceScatter", result)
    }

    /// The sum over ranks of their `from`, into each rank's `to`, which may be the same memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] where `to` is shorter; [`Error::Nccl`].
    pub fn all_reduce(
        &self,
        stream: &Stream,
        to: Span<'_>,
        from: Span<'_>,
        element: ElementKind,
    ) -> Result<(), Error> {
        within("the sum", 0, from.bytes(), to.bytes())?;
        self.bound(stream)?;
        let (count, kind) = elements(from, element);
        let (to, from) = (pointer(to), pointer(from));
        // SAFETY: as in `all_gather`.
        let result =
            unsafe { sys::ncclAllReduce(from, to, count, kind, SUM, self.comm, raw(stream)) };
        check("ncclAllReduce", result)
    }

    /// Part `p` of `from` to rank `p`, whose part `q` of `to` comes from rank `q`; all parts are of
    /// one length.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] where `to` is shorter than `from`; [`Error::Nccl`].
    pub fn all_to_all(&self, stream: &Stream, to: Span<'_>, from: Span<'_>) -> Result<(), Error> {
        within("received parts", 0, from.bytes(), to.bytes())?;
        self.bound(stream)?;
        let bytes = from.bytes() / u64::from(self.world);
        let kind = sys::ncclDataType_t::ncclUint8;
        // SAFETY: no preconditions.
        check("ncclGroupStart", unsafe { sys::ncclGroupStart() })?;
        let enqueued = (0..self.world).try_for_each(|peer| {
            let offset = u64::from(peer) * bytes;
            let (send, receive) = (from.part(offset, bytes)?, to.part(offset, bytes)?);
            let (send, receive) = (pointer(send), pointer(receive));
            let (peer, count) = (peer as i32, bytes as usize);
            // SAFETY: as in `all_gather`; parts lie within their spans.
            let sent = unsafe { sys::ncclSend(send, count, kind, peer, self.comm, raw(stream)) };
            check("ncclSend", sent)?;
            // SAFETY: as above.
            let received =
                unsafe { sys::ncclRecv(receive, count, kind, peer, self.comm, raw(stream)) };
            check("ncclRecv", received)
        });
        // A group that was begun is ended, whatever happened.
        // SAFETY: no preconditions.
        let ended = check("ncclGroupEnd", unsafe { sys::ncclGroupEnd() });
        enqueued.and(ended)
    }

    fn bound(&self, stream: &Stream) -> Result<(), Error> {
        let (need, found) = (self.device.ordinal(), stream.device().ordinal());
        if need != found {
            return Err(Error::OtherDevice { what: "the stream of a collective", need, found });
        }
        self.device.bind()
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the communicator was made by `join` and is given back once. Unlike
            // `ncclCommDestroy` this waits for no peer.
            let _ = unsafe { sys::ncclCommAbort(self.comm) };
        }
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Nccl { device, comm, world } = self;
        f.debug_struct("Nccl")
            .field("device", &device.ordinal())
            .field("comm", comm)
            .field("world", world)
            .finish()
    }
}

fn raw(stream: &Stream) -> sys::cudaStream_t {
    stream.raw().cast()
}

fn pointer(span: Span<'_>) -> *mut c_void {
    span.address() as *mut c_void
}

fn elements(span: Span<'_>, element: ElementKind) -> (usize, sys::ncclDataType_t) {
    let kind = match element {
        ElementKind::Bf16 => sys::ncclDataType_t::ncclBfloat16,
        ElementKind::F16 => sys::ncclDataType_t::ncclFloat16,
        ElementKind::F32 => sys::ncclDataType_t::ncclFloat32,
    };
    ((span.bytes() / u64::from(element.bytes())) as usize, kind)
}

/// cudarc panics where the library or a function is missing, so both are looked for first.
fn require_library() -> Result<(), Error> {
    // SAFETY: opening the library runs its initialisers, which have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoNccl { symbol: SYMBOLS[0] });
    }
    for &symbol in SYMBOLS {
        // SAFETY: the library has just been found.
        let library = unsafe { sys::culib() };
        // SAFETY: the symbol is only looked for, never called as this type.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) };
        if found.is_err() {
            return Err(Error::NoNccl { symbol });
        }
    }
    Ok(())
}

fn check(call: &'static str, result: sys::ncclResult_t) -> Result<(), Error> {
    if matches!(result, sys::ncclResult_t::ncclSuccess | sys::ncclResult_t::ncclInProgress) {
        return Ok(());
    }
    // SAFETY: the function gives a text that is never freed, whatever the status.
    let status = unsafe { text(sys::ncclGetErrorString(result)) };
    // SAFETY: as above; without a communicator it tells of the last error of this thread.
    let reason = unsafe { text(sys::ncclGetLastError(std::ptr::null_mut())) };
    let status = if reason.is_empty() { status } else { format!("{status}: {reason}") };
    Err(Error::Nccl { call, status })
}

/// # Safety
///
/// Null, or a text that ends with a zero.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{NcclId, require_library};
    use crate::Error;

    #[test]
    fn without_the_library_there_is_an_error_and_no_panic() {
        match (require_library(), NcclId::new()) {
            (Ok(()), _) => {}
            (Err(Error::NoNccl { .. }), Err(error @ Error::NoNccl { .. })) => {
                assert!(error.to_string().contains("libnccl.so"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}
