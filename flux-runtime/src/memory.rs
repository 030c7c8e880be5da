//! Memory of a device, ours or the caller's, and pieces of it.

use crate::device::Device;
use crate::error::Error;
use crate::heap::Heaps;
use crate::mapping::Mapping;
use bytemuck::{AnyBitPattern, NoUninit};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, sys};
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A piece of memory that the device can reach: an address and a number of bytes, borrowed from
/// what owns them.
///
/// There is no access through a span but that of the device, in the order of streams; so two spans
/// may overlap, and a shared borrow is enough to write.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    address: u64,
    bytes: u64,
    owner: PhantomData<&'a ()>,
}

impl<'a> Span<'a> {
    /// A span of `bytes` bytes at `address`.
    ///
    /// # Safety
    ///
    /// The memory is valid for the devices of the process during `'a` and until the work enqueued
    /// with it has finished.
    pub unsafe fn from_raw(address: u64, bytes: u64) -> Span<'a> {
        Span::new(address, bytes)
    }

    /// The memory of a cudarc slice.
    ///
    /// Work on it, and giving it back, is ordered by its own stream: use
    /// [`crate::Stream::from_cudarc`] with that stream, or order the other stream by an
    /// [`crate::Event`], before the slice is dropped too.
    pub fn from_cudarc<T>(slice: &'a CudaSlice<T>) -> Span<'a> {
        let (address, _read) = slice.device_ptr(slice.stream());
        Span::new(address, slice.num_bytes() as u64)
    }

    pub(crate) fn new(address: u64, bytes: u64) -> Span<'a> {
        Span { address, bytes, owner: PhantomData }
    }

    /// Its first byte, as the device sees it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// `length` bytes of it, from `offset`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`].
    pub fn part(&self, offset: u64, length: u64) -> Result<Span<'a>, Error> {
        within("a span", offset, length, self.bytes)?;
        Ok(Span::new(self.address + offset, length))
    }
}

/// Checks that bytes `offset..offset + length` lie within `bytes` bytes.
pub(crate) fn within(
    what: &'static str,
    offset: u64,
    length: u64,
    bytes: u64,
) -> Result<(), Error> {
    match offset.checked_add(length) {
        Some(end) if end <= bytes => Ok(()),
        Some(_) => Err(Error::OutOfBounds { what, offset, length, bytes }),
        // The sum in the message must not overflow either.
        None => Err(Error::OutOfBounds { what, offset, length: u64::MAX - offset, bytes }),
    }
}

/// Device memory. Zero bytes are fine: such a buffer has the address 0.
///
/// `Drop` frees memory that was allocated here; the driver first waits for the work that uses it
/// (CUDA driver API, "Memory management", `cuMemFree`).
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Arc<Device>,
    address: u64,
    bytes: u64,
    owner: Owner,
}

/// Who frees the memory.
pub(crate) enum Owner {
    Ours,
    Caller,
    /// Memory that processes share.
    Mapped(#[expect(dead_code, reason = "held so that the memory stays mapped")] Mapping),
    /// A part of heaps, freed with the last of these.
    Heaps(#[expect(dead_code, reason = "held so that the memory lives")] Arc<Heaps>),
    /// Something else that is dropped with the buffer.
    Shared(
        #[expect(dead_code, reason = "held so that the memory lives")] Arc<dyn Any + Send + Sync>,
    ),
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Owner::Ours => "ours",
            Owner::Caller => "caller",
            Owner::Mapped(_) => "mapped",
            Owner::Heaps(_) => "heaps",
            Owner::Shared(_) => "shared",
        })
    }
}

impl DeviceBuffer {
    /// Allocates `bytes` bytes with arbitrary content, aligned to 256.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::Driver`].
    pub fn alloc(device: &Arc<Device>, bytes: u64) -> Result<DeviceBuffer, Error> {
        let mut address = 0;
        if bytes > 0 {
            device.bind()?;
            // SAFETY: the pointer is to a live integer; `drop` frees the memory.
            let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) };
            device.check_allocation("cuMemAlloc", "device", bytes, result)?;
        }
        Ok(DeviceBuffer { device: device.clone(), address, bytes, owner: Owner::Ours })
    }

    /// Allocates `bytes` zero bytes.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::alloc`].
    pub fn alloc_zeroed(device: &Arc<Device>, bytes: u64) -> Result<DeviceBuffer, Error> {
        let buffer = DeviceBuffer::alloc(device, bytes)?;
        buffer.fill(0)?;
        Ok(buffer)
    }

    /// Adopts memory of the caller, which stays its owner.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignAddress`] where CUDA does not know the address (null, or pageable host
    /// memory); [`Error::OtherDevice`] where it is memory of another device.
    ///
    /// # Safety
    ///
    /// `bytes` bytes at `address` are valid until the buffer is dropped and the work enqueued with
    /// it has finished.
    pub unsafe fn from_raw(
        device: &Arc<Device>,
        address: u64,
        bytes: u64,
    ) -> Result<DeviceBuffer, Error> {
        if bytes > 0 {
            device.bind()?;
            require_known(device, address)?;
        }
        Ok(DeviceBuffer { device: device.clone(), address, bytes, owner: Owner::Caller })
    }

    /// Shares a slice of cudarc, on `device`'s primary context.
    ///
    /// Its own stream does not know of the work enqueued with this buffer: let
    /// [`crate::Stream::from_cudarc`] with that stream do the work, or order the streams by events.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`].
    pub fn from_cudarc<T: Send + Sync + 'static>(
        device: &Arc<Device>,
        slice: Arc<CudaSlice<T>>,
    ) -> Result<DeviceBuffer, Error> {
        require_home(device, slice.context().ordinal() as u32)?;
        let (address, bytes) = {
            let span = Span::from_cudarc(&slice);
            (span.address(), span.bytes())
        };
        let device = device.clone();
        Ok(DeviceBuffer { device, address, bytes, owner: Owner::Shared(slice) })
    }

    pub(crate) fn owned_by(
        device: Arc<Device>,
        address: u64,
        bytes: u64,
        owner: Owner,
    ) -> DeviceBuffer {
        DeviceBuffer { device, address, bytes, owner }
    }

    /// Its first byte, as the device sees it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The device it is on, or that it is mapped for.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Whether it is the caller's, who frees it and says when.
    pub fn is_lent(&self) -> bool {
        matches!(self.owner, Owner::Caller)
    }

    /// Whether dropping it lets go what it shares with somebody else, and frees nothing here.
    pub fn is_shared(&self) -> bool {
        matches!(self.owner, Owner::Shared(_))
    }

    /// All of it, as a slice of cudarc's on one of its streams, which has to be a stream of this device.
    /// Nothing is copied, and the slice frees nothing.
    ///
    /// cudarc orders what it does on that stream, and knows nothing of work that was enqueued with this
    /// buffer: let [`crate::Stream::from_cudarc`] with that stream do it, or order the streams by events.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`]; [`Error::OutOfRange`] where the memory does not begin at a multiple of
    /// the alignment of `T`.
    pub fn as_cudarc<T: AnyBitPattern>(
        &self,
        stream: &Arc<CudaStream>,
    ) -> Result<CudarcSlice<'_, T>, Error> {
        require_home(&self.device, stream.context().ordinal() as u32)?;
        let align = align_of::<T>() as u64;
        let found = self.address % align;
        if found != 0 {
            let what = "the rest of an address over its alignment";
            return Err(Error::OutOfRange { what, low: 0, high: 0, found });
        }
        let len = self.bytes as usize / size_of::<T>().max(1);
        // SAFETY: the buffer has so many bytes, any of which are a value of `T`, and outlives the slice,
        // which is leaked in the end.
        let slice = unsafe { stream.upgrade_device_ptr::<T>(self.address, len) };
        Ok(CudarcSlice { slice: ManuallyDrop::new(slice), memory: PhantomData })
    }

    /// All of it.
    pub fn span(&self) -> Span<'_> {
        Span::new(self.address, self.bytes)
    }

    /// Copies `data` to `offset` bytes from the start, and waits until that is done.
    ///
    /// Work on streams is not waited for: order it before by [`crate::Stream::synchronize`].
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`], [`Error::Driver`].
    pub fn copy_from<T: NoUninit>(&self, offset: u64, data: &[T]) -> Result<(), Error> {
        let data: &[u8] = bytemuck::cast_slice(data);
        within("a device buffer", offset, data.len() as u64, self.bytes)?;
        if data.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        let (to, from) = (self.address + offset, data.as_ptr().cast::<c_void>());
        // SAFETY: the bounds were checked on the device's side, a slice has them on the host's;
        // the call returns when the slice has been read.
        let result = unsafe { sys::cuMemcpyHtoD_v2(to, from, data.len()) };
        self.device.check("cuMemcpyHtoD", result)?;
        // From pageable memory the call may return when the data is staged, and non-blocking
        // streams do not wait for the rest ("API synchronization behavior").
        self.device.synchronize_default_stream()
    }

    /// Copies to `data` from `offset` bytes behind the start, and waits until that is done.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::copy_from`].
    pub fn copy_to<T: NoUninit + AnyBitPattern>(
        &self,
        offset: u64,
        data: &mut [T],
    ) -> Result<(), Error> {
        let data: &mut [u8] = bytemuck::cast_slice_mut(data);
        within("a device buffer", offset, data.len() as u64, self.bytes)?;
        if data.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        let (to, from) = (data.as_mut_ptr().cast::<c_void>(), self.address + offset);
        // SAFETY: the bounds were checked on the device's side, a slice has them on the host's;
        // any bit pattern is a value of `T`, and the call returns when all is written.
        let result = unsafe { sys::cuMemcpyDtoH_v2(to, from, data.len()) };
        self.device.check("cuMemcpyDtoH", result)
    }

    /// Sets every byte, and waits until that is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn fill(&self, byte: u8) -> Result<(), Error> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the buffer has that many bytes.
        let result = unsafe { sys::cuMemsetD8_v2(self.address, byte, self.bytes as usize) };
        self.device.check("cuMemsetD8", result)?;
        // A memset may return before it is done, and non-blocking streams do not wait for it.
        self.device.synchronize_default_stream()
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if matches!(self.owner, Owner::Ours) && self.bytes > 0 && self.device.bind().is_ok() {
            // SAFETY: the memory was allocated by `alloc` and is freed once.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Memory of a [`DeviceBuffer`] as cudarc sees it.
#[derive(Debug)]
pub struct CudarcSlice<'a, T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    memory: PhantomData<&'a DeviceBuffer>,
}

impl<T> Deref for CudarcSlice<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> DerefMut for CudarcSlice<'_, T> {
    fn deref_mut(&mut self) -> &mut CudaSlice<T> {
        &mut self.slice
    }
}

impl<T> Drop for CudarcSlice<'_, T> {
    fn drop(&mut self) {
        // SAFETY: it is taken once, here.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // The memory is not its own.
        let _ = slice.leak();
    }
}

/// Checks that the driver knows an address, and that it is none of another device's memory.
fn require_known(device: &Device, address: u64) -> Result<(), Error> {
    use sys::CUpointer_attribute::{
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    };
    let ask = |attribute| {
        let mut value = 0u32;
        let data = (&raw mut value).cast::<c_void>();
        // SAFETY: both attributes are written as integers of 32 bits; any address may be asked
        // about.
        match unsafe { sys::cuPointerGetAttribute(data, attribute, address) } {
            sys::CUresult::CUDA_SUCCESS => Ok(value),
            _ => Err(Error::ForeignAddress { address }),
        }
    };
    // Memory of the host is as near to every device.
    if ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)? != sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 {
        return Ok(());
    }
    require_home(device, ask(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?)
}

/// Checks that memory of the device numbered `found` is `device`'s.
fn require_home(device: &Device, found: u32) -> Result<(), Error> {
    let need = device.ordinal();
    if need == found {
        return Ok(());
    }
    Err(Error::OtherDevice { what: "the memory", need, found })
}

#[cfg(test)]
mod tests {
    use super::{Span, within};
    use crate::Error;

    #[test]
    fn bounds_hold_at_the_edges_and_beyond_all_numbers() {
        assert_eq!(within("it", 0, 16, 16), Ok(()));
        assert_eq!(within("it", 16, 0, 16), Ok(()));
        let beyond = within("it", 8, 9, 16).unwrap_err();
        assert_eq!(beyond.to_string(), "bytes 8..17 are outside of it, which has 16 bytes");
        let overflow = within("it", u64::MAX, 2, 16).unwrap_err();
        assert!(matches!(overflow, Error::OutOfBounds { offset: u64::MAX, .. }));
        assert!(overflow.to_string().contains(&u64::MAX.to_string()));
    }

    #[test]
    fn a_part_stays_within_its_span() {
        let span = Span::new(0x1000, 64);
        let part = span.part(16, 32).unwrap();
        assert_eq!((part.address(), part.bytes()), (0x1010, 32));
        assert!(part.part(16, 17).is_err());
    }
}
