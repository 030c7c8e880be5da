//! Device memory that processes share: one makes it, all map it.
//!
//! It is physical memory behind addresses that each process reserves for itself (CUDA driver API,
//! "Virtual Memory Management"). A descriptor stands for it between processes. The memory stays as
//! long as some process has it mapped or holds its descriptor, so a process that is killed takes
//! nothing away from the others.

use crate::device::Device;
use crate::error::Error;
use crate::memory::{DeviceBuffer, Owner};
use cudarc::driver::sys;
use rustix::io::{FdFlags, fcntl_setfd};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// How such memory is handed over.
const HANDLE: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Addresses with shared memory behind them.
#[derive(Debug)]
pub(crate) struct Mapping {
    device: Arc<Device>,
    address: u64,
    /// A multiple of the device's granularity.
    bytes: usize,
    is_mapped: bool,
}

/// A handle of physical memory.
struct Physical(sys::CUmemGenericAllocationHandle);

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: the handle was made or imported once, and is given back once; mappings keep the
        // memory.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

/// What kind of memory it is.
fn kind(device: &Device) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: HANDLE,
        location: device.location(),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// `bytes`, rounded up to what the device maps.
fn rounded(device: &Device, bytes: u64) -> Result<usize, Error> {
    let mut unit = 0usize;
    let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: both pointers are to live values.
    let asked = unsafe { sys::cuMemGetAllocationGranularity(&mut unit, &kind(device), least) };
    device.check("cuMemGetAllocationGranularity", asked)?;
    let rounded = bytes.max(1).checked_next_multiple_of(unit.max(1) as u64);
    let (what, high) = ("shared memory, in bytes", i64::MAX as u64);
    let fits = rounded.filter(|&bytes| bytes <= high);
    let fits = fits.ok_or(Error::OutOfRange { what, low: 0, high, found: bytes })?;
    Ok(fits as usize)
}

impl Mapping {
    /// Maps `bytes` bytes of `physical`, for this device to read and write.
    fn new(device: &Arc<Device>, physical: &Physical, bytes: usize) -> Result<Mapping, Error> {
        let mut address = 0;
        // SAFETY: the pointer is to a live integer; `drop` gives the addresses back.
        let reserved = unsafe { sys::cuMemAddressReserve(&mut address, bytes, 0, 0, 0) };
        device.check("cuMemAddressReserve", reserved)?;
        let mut mapping = Mapping { device: device.clone(), address, bytes, is_mapped: false };
        // SAFETY: the addresses were reserved just now and are mapped once.
        let mapped = unsafe { sys::cuMemMap(address, bytes, 0, physical.0, 0) };
        device.check("cuMemMap", mapped)?;
        mapping.is_mapped = true;
        let access = sys::CUmemAccessDesc {
            location: device.location(),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the addresses are mapped, the pointer is to one live description.
        let allowed = unsafe { sys::cuMemSetAccess(address, bytes, &access, 1) };
        device.check("cuMemSetAccess", allowed)?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.device.bind().is_err() {
            return;
        }
        if self.is_mapped {
            // Unmapping waits for nothing by itself. Waits of kernels have limits, so this ends.
            self.device.drain();
            // SAFETY: no work of this process uses the addresses any more.
            let _ = unsafe { sys::cuMemUnmap(self.address, self.bytes) };
        }
        // SAFETY: the addresses were reserved by `new`, and nothing is mapped there.
        let _ = unsafe { sys::cuMemAddressFree(self.address, self.bytes) };
    }
}

impl DeviceBuffer {
    /// Allocates `bytes` zero bytes that other processes can map, and the descriptor that they need
    /// for it ([`DeviceBuffer::open_shared`]).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`]; [`Error::Driver`], also where no descriptor is left.
    pub fn alloc_shared(
        device: &Arc<Device>,
        bytes: u64,
    ) -> Result<(DeviceBuffer, OwnedFd), Error> {
        device.bind()?;
        let whole = rounded(device, bytes)?;
        let mut handle = 0;
        // SAFETY: both pointers are to live values; `Physical` gives the handle back.
        let made = unsafe { sys::cuMemCreate(&mut handle, whole, &kind(device), 0) };
        device.check_allocation("cuMemCreate", "device", whole as u64, made)?;
        let physical = Physical(handle);
        let mut descriptor: c_int = -1;
        let into = (&raw mut descriptor).cast::<c_void>();
        // SAFETY: for this type the driver writes a descriptor, an integer of C.
        let exported = unsafe { sys::cuMemExportToShareableHandle(into, handle, HANDLE, 0) };
        device.check("cuMemExportToShareableHandle", exported)?;
        // SAFETY: the driver has opened it for the caller, who closes it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // Programs that this process starts would keep the memory.
        fcntl_setfd(&descriptor, FdFlags::CLOEXEC).map_err(|error| {
            let what = "a descriptor of device memory that does not close";
            Error::Handover { what, reason: error.to_string() }
        })?;
        let mapping = Mapping::new(device, &physical, whole)?;
        let buffer = DeviceBuffer::over(mapping, bytes);
        buffer.fill(0)?;
        Ok((buffer, descriptor))
    }

    /// Maps `bytes` bytes that another process has made ([`DeviceBuffer::alloc_shared`]), on this
    /// device or on one that it reaches ([`Device::require_reach`]), for `device` to use.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] for a descriptor of something else, or of fewer bytes, and for memory of a
    /// GPU that this one does not reach.
    pub fn open_shared(
        device: &Arc<Device>,
        descriptor: OwnedFd,
        bytes: u64,
    ) -> Result<DeviceBuffer, Error> {
        device.bind()?;
        let whole = rounded(device, bytes)?;
        let mut handle = 0;
        // For this type the descriptor itself stands in the place of a pointer.
        let given = descriptor.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the pointer is to a live integer, the descriptor is open; the driver keeps none
        // of both.
        let opened = unsafe { sys::cuMemImportFromShareableHandle(&mut handle, given, HANDLE) };
        device.check("cuMemImportFromShareableHandle", opened)?;
        let physical = Physical(handle);
        Ok(DeviceBuffer::over(Mapping::new(device, &physical, whole)?, bytes))
    }

    fn over(mapping: Mapping, bytes: u64) -> DeviceBuffer {
        let (device, address) = (mapping.device.clone(), mapping.address);
        DeviceBuffer::owned_by(device, address, bytes, Owner::Mapped(mapping))
    }
}
