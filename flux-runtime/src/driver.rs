//! Is there a driver? The one place that may find out.
//!
//! cudarc loads libcuda at its first call and panics where the library or a function is missing.
//! So [`probe`] looks for both before any other call is made; all that follows may rely on it.

use crate::environment;
use crate::error::Error;
use cudarc::driver::DriverError;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::c_int;
use std::fmt;
use std::sync::OnceLock;

/// The oldest driver that will do: PTX 8.3, which the kernels are written in, came with CUDA 12.3
/// (PTX ISA, "Release notes").
pub const OLDEST_DRIVER: DriverVersion = DriverVersion { major: 12, minor: 3 };

/// The CUDA version that a driver supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverVersion {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

impl DriverVersion {
    /// The version that the driver writes as 1000·major + 10·minor.
    fn from_code(code: c_int) -> DriverVersion {
        let code = code.unsigned_abs();
        DriverVersion { major: code / 1000, minor: code % 1000 / 10 }
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What [`probe`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverInfo {
    /// CUDA version of the driver.
    pub version: DriverVersion,
    /// Devices it sees; at least one.
    pub devices: u32,
    /// Hardware queues of a context: how many streams run without sharing one.
    pub connections: u32,
}

/// Looks for a driver and starts it; the answer is kept for the life of the process.
///
/// Unless the driver runs already, `CUDA_DEVICE_MAX_CONNECTIONS` is set to 32 and
/// `CUDA_MODULE_LOADING` to `EAGER` where the user has not set them. Programs in which foreign
/// threads read the environment should probe before they start those threads.
///
/// # Errors
///
/// [`Error::NoDriver`], [`Error::DriverIncomplete`], [`Error::DriverTooOld`],
/// [`Error::NoDevice`], and [`Error::DriverStart`] for all else. Never panics.
pub fn probe() -> Result<DriverInfo, Error> {
    static FOUND: OnceLock<Result<DriverInfo, Error>> = OnceLock::new();
    FOUND.get_or_init(start).clone()
}

/// Functions of libcuda that this crate calls. cudarc looks each up at its first use.
const SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuDeviceCanAccessPeer",
    "cuDeviceGetP2PAttribute",
    "cuCtxEnablePeerAccess",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemFreeHost",
    "cuMemHostGetDevicePointer_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyAsync",
    "cuMemcpy2DAsync_v2",
    "cuMemsetD8_v2",
    "cuMemsetD8Async",
    "cuMemsetD32Async",
    "cuPointerGetAttribute",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
    "cuStreamBatchMemOp_v2",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuStreamIsCapturing",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    ELAPSED_TIME,
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuLaunchKernelEx",
    "cuTensorMapEncodeTiled",
];

/// Copies that say how they want to be made; drivers before CUDA 13 lack it.
const COPY_BATCH: &str = "cuMemcpy3DBatchAsync_v2";

/// Whether copies within a device can be asked to leave its multiprocessors alone.
pub(crate) fn copies_beside() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| has(COPY_BATCH))
}

/// cudarc binds only the second version, which drivers before 12.8 lack.
const ELAPSED_TIME: &str = "cuEventElapsedTime";

fn start() -> Result<DriverInfo, Error> {
    // SAFETY: opening libcuda runs its initialisers, which have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver);
    }
    let symbols: Vec<_> = SYMBOLS.iter().copied().filter(|name| !has(name)).collect();
    if !symbols.is_empty() {
        // Old drivers lack functions too, and their age says more.
        let tells = has("cuDriverGetVersion") && has("cuGetErrorString");
        return Err(match tells.then(version).transpose()? {
            Some(found) if found < OLDEST_DRIVER => {
                Error::DriverTooOld { need: OLDEST_DRIVER, found }
            }
            Some(_) | None => Error::DriverIncomplete { symbols },
        });
    }
    let found = version()?;
    if found < OLDEST_DRIVER {
        return Err(Error::DriverTooOld { need: OLDEST_DRIVER, found });
    }
    // Somebody else may have started the driver; then it is too late to set anything.
    if device_count().is_err() {
        environment::prepare();
    }
    // SAFETY: zero is the only value that `cuInit` takes.
    started("cuInit", unsafe { sys::cuInit(0) })?;
    let devices = device_count()?;
    if devices == 0 {
        return Err(Error::NoDevice);
    }
    Ok(DriverInfo { version: found, devices, connections: environment::connections() })
}

/// Has libcuda a function of this name?
fn has(name: &str) -> bool {
    // SAFETY: the caller has seen that the library can be loaded.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbol is only looked for, never called as this type.
    unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok()
}

fn version() -> Result<DriverVersion, Error> {
    let mut code: c_int = 0;
    // SAFETY: the pointer is to a live integer.
    started("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut code) })?;
    Ok(DriverVersion::from_code(code))
}

fn device_count() -> Result<u32, Error> {
    let mut count: c_int = 0;
    // SAFETY: the pointer is to a live integer.
    started("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    Ok(count.unsigned_abs())
}

/// The result of a call before there is a device.
fn started(call: &'static str, result: CUresult) -> Result<(), Error> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_STUB_LIBRARY => Err(Error::NoDriver),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(Error::NoDevice),
        other => Err(Error::DriverStart { call, name: name_of(other), text: text_of(other) }),
    }
}

/// The driver's name of a result.
pub(crate) fn name_of(result: CUresult) -> String {
    format!("{result:?}")
}

/// The driver's explanation of a result.
pub(crate) fn text_of(result: CUresult) -> String {
    match DriverError(result).error_string() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => "no explanation".into(),
    }
}

/// Calls `cuEventElapsedTime`.
///
/// # Safety
///
/// Both events are alive.
pub(crate) unsafe fn elapsed_ms(from: sys::CUevent, to: sys::CUevent) -> Result<f32, CUresult> {
    type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;
    // SAFETY: events exist only after `probe` has loaded the library.
    let library = unsafe { sys::culib() };
    // SAFETY: this is the function's type (CUDA driver API, "Event management").
    let function = unsafe { library.get::<ElapsedTime>(ELAPSED_TIME.as_bytes()) }
        .map_err(|_| CUresult::CUDA_ERROR_NOT_FOUND)?;
    let mut milliseconds = 0.0;
    // SAFETY: the pointer is to a live float, the events are alive by this function's contract.
    match unsafe { function(&mut milliseconds, from, to) } {
        CUresult::CUDA_SUCCESS => Ok(milliseconds),
        other => Err(other),
    }
}

/// Sizes of a function's parameters, where the driver can tell (CUDA 12.4 and later).
///
/// # Safety
///
/// `function` belongs to a loaded module.
pub(crate) unsafe fn parameter_sizes(function: sys::CUfunction) -> Option<Vec<u64>> {
    type ParamInfo =
        unsafe extern "C" fn(sys::CUfunction, usize, *mut usize, *mut usize) -> CUresult;
    // SAFETY: functions exist only after `probe` has loaded the library.
    let library = unsafe { sys::culib() };
    // SAFETY: this is the function's type (CUDA driver API, "Execution control").
    let info = unsafe { library.get::<ParamInfo>(b"cuFuncGetParamInfo") }.ok()?;
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut size) = (0usize, 0usize);
        // SAFETY: both pointers are to live integers; an index beyond the last parameter is
        // answered by an error.
        match unsafe { info(function, sizes.len(), &mut offset, &mut size) } {
            CUresult::CUDA_SUCCESS => sizes.push(size as u64),
            CUresult::CUDA_ERROR_INVALID_VALUE => return Some(sizes),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DriverVersion;

    #[test]
    fn versions_are_read_and_ordered() {
        let version = DriverVersion::from_code(12_080);
        assert_eq!(version, DriverVersion { major: 12, minor: 8 });
        assert_eq!(version.to_string(), "12.8");
        assert!(version > super::OLDEST_DRIVER);
        assert!(DriverVersion::from_code(12_020) < super::OLDEST_DRIVER);
    }
}
