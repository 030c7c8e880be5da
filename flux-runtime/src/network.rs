//! The network between nodes: what kernels need that put data to ranks of other nodes, set up through NCCL.
//!
//! A [`Network`] is a rank's part of a communicator. It registers memory as a *window*, at the same offsets of which all
//! ranks reach each other, and makes the *device communicator* with the signals that a kernel waits for
//! (`ncclDevCommCreate`, NCCL's "Device API"). The library is loaded at the first use; where it is missing,
//! or too old for the device code that kernels are linked with, [`Nccl::open`] says so.
//!
//! All calls that ranks make together have a limit: communicators do not block, and are asked until they are ready.

use crate::device::Device;
use crate::error::Error;
use crate::memory::DeviceBuffer;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::mem::size_of;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The version whose structures stand here, as NCCL writes it: 2.32.3. Later libraries take them too.
pub const OLDEST_NCCL: i32 = 23203;

/// The variable that names the library, where the loader does not find `libnccl.so.2`.
pub const VARIABLE: &str = "FLUX_NCCL";

/// `NCCL_API_MAGIC`.
const MAGIC: u32 = 0xcafe_beef;

/// The version of `ncclConfig_t` that ends behind `blocking`: 2.14.
const CONFIG_VERSION: u32 = 21400;

/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

/// Bytes of an `ncclDevComm` of [`OLDEST_NCCL`].
const DEVICE_COMM_BYTES: usize = 248;

/// `ncclSuccess` and `ncclInProgress`.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;

/// `NCCL_WIN_COLL_SYMMETRIC`: at the same offsets on every rank.
const SYMMETRIC: c_int = 1;

/// `NCCL_GIN_CONNECTION_FULL`: every rank reaches every rank.
const CONNECTED: c_int = 1;

/// What ranks know a communicator by (`ncclUniqueId`): one makes it, all are given it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct NetworkId(pub [u8; 128]);

#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// `ncclDevCommRequirements_t`.
#[repr(C)]
struct Requirements {
    size: usize,
    magic: u32,
    version: u32,
    resources: *const c_void,
    teams: *const c_void,
    lsa_multimem: bool,
    barriers: [c_int; 3],
    all_to_all: [c_int; 2],
    gin_force_enable: bool,
    gin_contexts: c_int,
    gin_signals: c_int,
    gin_counters: c_int,
    gin_connection: c_int,
    gin_exclusive_contexts: bool,
    gin_queue_depth: c_int,
    gin_traffic_class: c_int,
    world_gin_barriers: c_int,
    gin_strong_signals: bool,
    gin_va_signals: bool,
    gin_custom_stride: c_int,
    gin_type: c_int,
    use_runtime_version: bool,
    cft: [c_int; 2],
}

/// `ncclCommProperties_t`.
#[repr(C)]
struct RawProperties {
    size: usize,
    magic: u32,
    version: u32,
    ranks: [c_int; 4],
    device_api: bool,
    multimem: bool,
    gin_type: c_int,
    lsa_teams: c_int,
    host_rma: bool,
    railed_gin_type: c_int,
    hash: u64,
    gin_stride: c_int,
    gin_connection: c_int,
    gin_support: [bool; 64],
    device_comm_bytes: usize,
    cft: [bool; 3],
}

const _: () = {
    assert!(size_of::<Requirements>() == 120 && size_of::<RawProperties>() == 152);
    assert!(std::mem::offset_of!(Requirements, gin_signals) == 64);
    assert!(std::mem::offset_of!(Requirements, gin_strong_signals) == 92);
    assert!(std::mem::offset_of!(Requirements, gin_type) == 100);
    assert!(std::mem::offset_of!(RawProperties, gin_type) == 36);
    assert!(std::mem::offset_of!(RawProperties, gin_support) == 72);
    assert!(std::mem::offset_of!(RawProperties, device_comm_bytes) == 136);
};

type Comm = *mut c_void;
type Window = *mut c_void;

/// The functions that are called here.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    unique_id: unsafe extern "C" fn(*mut NetworkId) -> c_int,
    init: unsafe extern "C" fn(*mut Comm, c_int, NetworkId, c_int, *mut Config) -> c_int,
    state: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    abort: unsafe extern "C" fn(Comm) -> c_int,
    properties: unsafe extern "C" fn(Comm, *mut RawProperties) -> c_int,
    alloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int,
    free: unsafe extern "C" fn(*mut c_void) -> c_int,
    register: unsafe extern "C" fn(Comm, *mut c_void, usize, *mut Window, c_int) -> c_int,
    deregister: unsafe extern "C" fn(Comm, Window) -> c_int,
    create: unsafe extern "C" fn(Comm, *const Requirements, *mut u8) -> c_int,
    destroy: unsafe extern "C" fn(Comm, *const u8) -> c_int,
    text: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: unsafe extern "C" fn(Comm) -> *const c_char,
}

/// The library.
pub struct Nccl {
    functions: Functions,
    version: i32,
    /// What the functions are of; it stays loaded as long as they are called.
    _library: Library,
}

impl Nccl {
    /// Loads the library: the file that [`VARIABLE`] names, or `libnccl.so.2`.
    ///
    /// # Errors
    ///
    /// [`Error::NoNetworkLibrary`] where it is not found, lacks functions, or is older than [`OLDEST_NCCL`].
    pub fn open() -> Result<Arc<Nccl>, Error> {
        let name = std::env::var_os(VARIABLE).unwrap_or_else(|| "libnccl.so.2".into());
        let missing = |problem: String| Error::NoNetworkLibrary { problem };
        // SAFETY: NCCL's initializers have no preconditions.
        let library = unsafe { Library::new(&name) }.map_err(|error| missing(error.to_string()))?;
        let functions = Functions::of(&library).map_err(|error| missing(error.to_string()))?;
        let mut version = 0;
        // SAFETY: the function writes a number.
        let outcome = unsafe { (functions.version)(&mut version) };
        if outcome != SUCCESS || version < OLDEST_NCCL {
            let problem = format!("it is of version {version}, expected {OLDEST_NCCL} or later");
            return Err(missing(problem));
        }
        Ok(Arc::new(Nccl { functions, version, _library: library }))
    }

    /// Its version, as NCCL writes it: 23203 is 2.32.3.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Makes what a communicator is known by; one rank does, and gives it to all.
    ///
    /// # Errors
    ///
    /// [`Error::Network`].
    pub fn new_id(&self) -> Result<NetworkId, Error> {
        let mut id = NetworkId([0; 128]);
        // SAFETY: the function writes 128 bytes.
        let outcome = unsafe { (self.functions.unique_id)(&mut id) };
        self.check("ncclGetUniqueId", outcome, null_mut())?;
        Ok(id)
    }

    fn check(&self, call: &'static str, outcome: c_int, comm: Comm) -> Result<(), Error> {
        if outcome == SUCCESS {
            return Ok(());
        }
        // SAFETY: both functions yield text that lives as long as the library, or nothing.
        let (name, detail) = unsafe {
            (text((self.functions.text)(outcome)), text((self.functions.last_error)(comm)))
        };
        Err(Error::Network { call, status: format!("{name}; {detail}") })
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Text of the library; empty where there is none.
///
/// # Safety
/// `text` is null or ends in a zero.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller says so.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}

impl Functions {
    fn of(library: &Library) -> Result<Functions, libloading::Error> {
        /// Looks a function up.
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the types are those of nccl.h and nccl_device/host.h.
                unsafe { *library.get(concat!($name, "\0").as_bytes())? }
            };
        }
        Ok(Functions {
            version: function!("ncclGetVersion"),
            unique_id: function!("ncclGetUniqueId"),
            init: function!("ncclCommInitRankConfig"),
            state: function!("ncclCommGetAsyncError"),
            abort: function!("ncclCommAbort"),
            properties: function!("ncclCommQueryProperties"),
            alloc: function!("ncclMemAlloc"),
            free: function!("ncclMemFree"),
            register: function!("ncclCommWindowRegister"),
            deregister: function!("ncclCommWindowDeregister"),
            create: function!("ncclDevCommCreate"),
            destroy: function!("ncclDevCommDestroy"),
            text: function!("ncclGetErrorString"),
            last_error: function!("ncclGetLastError"),
        })
    }
}

/// What a communicator can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkProperties {
    /// Whether kernels may use it at all.
    pub device_api: bool,
    /// Whether kernels may put over the network: some back end of GIN is there that connects all ranks.
    pub puts: bool,
    /// The back end, as NCCL numbers it: 2 proxy, 3 GDAKI, 4 GPI, 5 EFA; 0 none.
    pub back_end: i32,
    /// Groups of ranks that have each other's memory mapped: nodes, as NCCL sees them.
    pub nodes: i32,
}

/// A rank's part of a communicator.
pub struct Network {
    nccl: Arc<Nccl>,
    device: Arc<Device>,
    comm: Comm,
    limit: Duration,
}

// SAFETY: a communicator may be used by any thread, by one at a time (NCCL, "Thread safety"); no method takes `&self` twice
// at once, as the type is not `Sync`.
unsafe impl Send for Network {}

impl Network {
    /// Joins the communicator `id` as `rank` of `world`, each of which does so within `limit`.
    ///
    /// # Errors
    ///
    /// [`Error::Network`]: ranks that did not come, and whatever NCCL says.
    pub fn join(
        nccl: &Arc<Nccl>,
        device: &Arc<Device>,
        id: NetworkId,
        (rank, world): (u32, u32),
        limit: Duration,
    ) -> Result<Network, Error> {
        device.bind()?;
        let size = size_of::<Config>();
        let mut config = Config { size, magic: MAGIC, version: CONFIG_VERSION, blocking: 0 };
        let mut comm = null_mut();
        let (ranks, rank) = (world as c_int, rank as c_int);
        // SAFETY: the device is current, and both structures live through the call, which does not block.
        let outcome = unsafe { (nccl.functions.init)(&mut comm, ranks, id, rank, &mut config) };
        let network = Network { nccl: nccl.clone(), device: device.clone(), comm, limit };
        network.settle("ncclCommInitRankConfig", outcome)?;
        Ok(network)
    }

    /// Waits until what was begun together is over. A call may say that it has succeeded and still go on
    /// (`ncclDevCommCreate` of 2.32), so the communicator is asked in any case.
    fn settle(&self, call: &'static str, outcome: c_int) -> Result<(), Error> {
        if outcome != IN_PROGRESS {
            self.nccl.check(call, outcome, self.comm)?;
        }
        let begin = Instant::now();
        loop {
            let mut state = SUCCESS;
            // SAFETY: the communicator is this rank's own.
            let asked = unsafe { (self.nccl.functions.state)(self.comm, &mut state) };
            self.nccl.check("ncclCommGetAsyncError", asked, self.comm)?;
            if state != IN_PROGRESS {
                return self.nccl.check(call, state, self.comm);
            }
            if begin.elapsed() > self.limit {
                let status = format!("not over after {:?}: some rank did not come", self.limit);
                return Err(Error::Network { call, status });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// As [`Network::settle`], of a call that goes on to use what `held` owns: where it is not over, that
    /// is never freed.
    fn settle_holding<T>(
        &self,
        call: &'static str,
        outcome: c_int,
        held: Box<T>,
    ) -> Result<Box<T>, Error> {
        match self.settle(call, outcome) {
            Ok(()) => Ok(held),
            Err(error) => {
                Box::leak(held);
                Err(error)
            }
        }
    }

    /// What it can do.
    ///
    /// # Errors
    ///
    /// [`Error::Network`].
    pub fn properties(&self) -> Result<NetworkProperties, Error> {
        let mut raw = RawProperties {
            size: size_of::<RawProperties>(),
            magic: MAGIC,
            version: OLDEST_NCCL as u32,
            ranks: [0; 4],
            device_api: false,
            multimem: false,
            gin_type: 0,
            lsa_teams: 0,
            host_rma: false,
            railed_gin_type: 0,
            hash: 0,
            gin_stride: 0,
            gin_connection: 0,
            gin_support: [false; 64],
            device_comm_bytes: 0,
            cft: [false; 3],
        };
        // SAFETY: the structure says its size and version.
        let outcome = unsafe { (self.nccl.functions.properties)(self.comm, &mut raw) };
        self.settle("ncclCommQueryProperties", outcome)?;
        Ok(NetworkProperties {
            device_api: raw.device_api,
            puts: raw.gin_type != 0,
            back_end: raw.gin_type,
            nodes: raw.lsa_teams,
        })
    }

    /// Memory that the network can read and write, zeroed: of all ranks at once, and of one size.
    ///
    /// # Errors
    ///
    /// [`Error::Network`].
    pub fn memory(&self, bytes: u64) -> Result<NetworkMemory<'_>, Error> {
        self.device.bind()?;
        let functions = &self.nccl.functions;
        let mut memory =
            NetworkMemory { network: self, address: null_mut(), window: null_mut(), bytes };
        // SAFETY: the device is current.
        let outcome = unsafe { (functions.alloc)(&mut memory.address, bytes as usize) };
        self.nccl.check("ncclMemAlloc", outcome, self.comm)?;
        let mut window = Box::new(null_mut());
        // SAFETY: the memory was just made, and lives as long as the window; where that goes lives until the
        // call is over.
        let outcome = unsafe {
            let (at, size) = (memory.address, bytes as usize);
            (functions.register)(self.comm, at, size, &mut *window, SYMMETRIC)
        };
        match self.settle_holding("ncclCommWindowRegister", outcome, window) {
            Ok(window) => {
                memory.window = *window;
                Ok(memory)
            }
            Err(error) => {
                // What is registered may still be worked on.
                std::mem::forget(memory);
                Err(error)
            }
        }
    }

    /// The device communicator, with so many signals, in device memory: what a kernel is given. All ranks make theirs at
    /// once. Where `puts` is not asked for, it does without a network.
    ///
    /// # Errors
    ///
    /// [`Error::Network`]; [`Error::OutOfMemory`].
    pub fn device_comm(&self, signals: u32, puts: bool) -> Result<DeviceComm<'_>, Error> {
        self.device.bind()?;
        let requirements = Requirements {
            size: size_of::<Requirements>(),
            magic: MAGIC,
            version: OLDEST_NCCL as u32,
            resources: null(),
            teams: null(),
            lsa_multimem: false,
            barriers: [0; 3],
            all_to_all: [0; 2],
            gin_force_enable: false,
            gin_contexts: 1,
            gin_signals: if puts { signals as c_int } else { 0 },
            gin_counters: 0,
            gin_connection: if puts { CONNECTED } else { 0 },
            gin_exclusive_contexts: false,
            gin_queue_depth: 0,
            gin_traffic_class: UNDEFINED,
            world_gin_barriers: 0,
            gin_strong_signals: puts,
            gin_va_signals: false,
            gin_custom_stride: 1,
            gin_type: 0,
            use_runtime_version: false,
            cft: [0; 2],
        };
        let memory = DeviceBuffer::alloc_zeroed(&self.device, DEVICE_COMM_BYTES as u64)?;
        let mut given = Box::new((requirements, [0u64; DEVICE_COMM_BYTES / 8]));
        // SAFETY: what is written is an ncclDevComm of the version that the requirements name; both live
        // until the call is over.
        let outcome = unsafe {
            let (requirements, words) = (&raw const given.0, given.1.as_mut_ptr());
            (self.nccl.functions.create)(self.comm, requirements, words.cast())
        };
        let (_, words) = *self.settle_holding("ncclDevCommCreate", outcome, given)?;
        let made = DeviceComm { network: self, words, memory };
        made.memory.copy_from(0, &made.words)?;
        Ok(made)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if !self.comm.is_null() && self.device.bind().is_ok() {
            // SAFETY: windows and device communicators borrow this, so they are gone. Abort waits for no peer.
            unsafe { (self.nccl.functions.abort)(self.comm) };
        }
    }
}

/// Memory of this rank that is a window.
pub struct NetworkMemory<'n> {
    network: &'n Network,
    address: *mut c_void,
    window: Window,
    bytes: u64,
}

impl NetworkMemory<'_> {
    /// Its address.
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The window, as a kernel is given it.
    pub fn window(&self) -> u64 {
        self.window as u64
    }
}

impl Drop for NetworkMemory<'_> {
    fn drop(&mut self) {
        let functions = &self.network.nccl.functions;
        if self.network.device.bind().is_err() {
            return;
        }
        // SAFETY: both are this one's own; kernels that use them are over, as `DeviceBuffer` demands of its users too.
        unsafe {
            if !self.window.is_null() {
                (functions.deregister)(self.network.comm, self.window);
            }
            if !self.address.is_null() {
                (functions.free)(self.address);
            }
        }
    }
}

/// A device communicator, and where kernels find it.
pub struct DeviceComm<'n> {
    network: &'n Network,
    words: [u64; DEVICE_COMM_BYTES / 8],
    memory: DeviceBuffer,
}

impl DeviceComm<'_> {
    /// Where it lies in device memory.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// This rank and the number of ranks, as kernels read them.
    pub fn place(&self) -> (u32, u32) {
        // Behind magic and version (`ncclDevComm` in nccl_device/impl/comm__types.h).
        (self.words[1] as u32, (self.words[1] >> 32) as u32)
    }
}

impl Drop for DeviceComm<'_> {
    fn drop(&mut self) {
        if self.network.device.bind().is_ok() {
            let functions = &self.network.nccl.functions;
            // SAFETY: it was made by this communicator, and kernels that use it are over.
            unsafe { (functions.destroy)(self.network.comm, self.words.as_ptr().cast()) };
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("device", &self.device.ordinal()).finish_non_exhaustive()
    }
}

impl fmt::Debug for NetworkMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkMemory")
            .field("address", &self.address)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for DeviceComm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceComm").field("place", &self.place()).finish_non_exhaustive()
    }
}
