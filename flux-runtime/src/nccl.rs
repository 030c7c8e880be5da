//! NCCL's collectives: the live baseline that benches run beside ours where there are several GPUs, and
//! what moves the data of ranks whose memory is not mapped.
//!
//! The library is loaded at the first use, by the names that a system installation has
//! (`libnccl.so`); where it is missing, [`NcclId::new`] says so.

use crate::device::Device;
use crate::error::Error;
use crate::memory::{Span, within};
use crate::stream::Stream;
use crate::tensor_map::ElementKind;
use cudarc::nccl::sys;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod parts;

/// Functions of NCCL that are called here. cudarc looks each up at its first use.
const SYMBOLS: &[&str] = &[
    "ncclGetVersion",
    "ncclGetUniqueId",
    "ncclCommInitRank",
    "ncclCommInitRankConfig",
    "ncclCommGetAsyncError",
    "ncclCommAbort",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclAllReduce",
    "ncclBroadcast",
    "ncclReduce",
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

    /// What another process makes the same id of.
    pub fn bytes(&self) -> [u8; 128] {
        self.0.internal.map(|byte| byte as u8)
    }

    /// The id that another process told.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for another number of bytes than an id has.
    pub fn from_bytes(bytes: &[u8]) -> Result<NcclId, Error> {
        let (what, found) = ("bytes of an id of a communicator", bytes.len() as u64);
        let bytes: [u8; 128] =
            bytes.try_into().map_err(|_| Error::OutOfRange { what, low: 128, high: 128, found })?;
        Ok(NcclId(sys::ncclUniqueId { internal: bytes.map(|byte| byte as c_char) }))
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

/// The first fields of `ncclConfig_t`: all that version 2.14 of it has. The library reads as many bytes as
/// `size` says, and takes its defaults for the rest.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

const CONFIG: Config =
    Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21_400, blocking: 0 };

/// How often a call that goes on by itself is asked whether it has ended.
const POLL: Duration = Duration::from_micros(50);

/// One rank of a communicator.
pub struct Nccl {
    device: Arc<Device>,
    comm: sys::ncclComm_t,
    rank: u32,
    world: u32,
    /// Within what each call has to have enqueued its work; `None` where a call returns when it has.
    limit: Option<Duration>,
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
        Ok(Nccl { device: Arc::clone(device), comm, rank, world, limit: None })
    }

    /// As [`Nccl::join`], within `limit`; so is every later call that enqueues work. What is enqueued has no
    /// limit: dropping the value ends it.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] where ranks are missing; [`Error::Nccl`], [`Error::Driver`].
    pub fn join_within(
        device: &Arc<Device>,
        id: NcclId,
        (world, rank): (u32, u32),
        limit: Duration,
    ) -> Result<Nccl, Error> {
        device.bind()?;
        let mut comm = std::ptr::null_mut();
        let mut config = MaybeUninit::<sys::ncclConfig_t>::zeroed();
        // SAFETY: the whole begins with these fields, and is longer and no less aligned.
        unsafe { config.as_mut_ptr().cast::<Config>().write(CONFIG) };
        let (ranks, own) = (world as i32, rank as i32);
        // SAFETY: both pointers are to live memory, of which the library reads as much as `CONFIG` says;
        // `drop` gives the communicator back.
        let result = unsafe {
            sys::ncclCommInitRankConfig(&mut comm, ranks, id.0, own, config.as_mut_ptr())
        };
        check("ncclCommInitRankConfig", result)?;
        let nccl = Nccl { device: Arc::clone(device), comm, rank, world, limit: Some(limit) };
        nccl.settle()?;
        Ok(nccl)
    }

    /// The same, with another limit within what calls have to have enqueued their work.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Nccl {
        self.limit = self.limit.map(|_| limit);
        self
    }

    /// Waits until the call before has enqueued all its work.
    fn settle(&self) -> Result<(), Error> {
        let Some(limit) = self.limit else { return Ok(()) };
        let begun = Instant::now();
        loop {
            let mut state = sys::ncclResult_t::ncclSuccess;
            // SAFETY: the communicator is alive, the pointer is to a live value.
            let asked = unsafe { sys::ncclCommGetAsyncError(self.comm, &mut state) };
            check("ncclCommGetAsyncError", asked)?;
            if state != sys::ncclResult_t::ncclInProgress {
                return check("a call of NCCL", state);
            }
            if begun.elapsed() >= limit {
                return Err(Error::Timeout { what: "a call of NCCL", limit });
            }
            std::thread::sleep(POLL);
        }
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
        self.enqueued("ncclAllGather", result)
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
        self.enqueued("ncclReduceScatter", result)
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
        self.enqueued("ncclAllReduce", result)
    }

    /// Part `p` of `from` to rank `p`, whose part `q` of `to` comes from rank `q`; all parts are of
    /// one length.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] where `to` is shorter than `from`; [`Error::Nccl`].
    pub fn all_to_all(&self, stream: &Stream, to: Span<'_>, from: Span<'_>) -> Result<(), Error> {
        within("received parts", 0, from.bytes(), to.bytes())?;
        let to = to.part(0, from.bytes())?;
        self.exchange(stream, &self.even_parts(to)?, &self.even_parts(from)?)
    }

    fn even_parts<'s>(&self, whole: Span<'s>) -> Result<Vec<Span<'s>>, Error> {
        let bytes = whole.bytes() / u64::from(self.world);
        (0..u64::from(self.world)).map(|peer| whole.part(peer * bytes, bytes)).collect()
    }

    /// What a call that enqueues work came to.
    fn enqueued(&self, call: &'static str, result: sys::ncclResult_t) -> Result<(), Error> {
        check(call, result)?;
        self.settle()
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
        let Nccl { device, comm, rank, world, limit } = self;
        f.debug_struct("Nccl")
            .field("device", &device.ordinal())
            .field("comm", comm)
            .field("rank", rank)
            .field("world", world)
            .field("limit", limit)
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
