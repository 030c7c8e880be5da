//! Memory of the same size and layout on each rank.

use crate::device::Device;
use crate::error::Error;
use crate::host::HostBuffer;
use crate::memory::{DeviceBuffer, Owner, Span, within};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What offsets in a heap are multiples of: enough for TMA and for a cache line of its own.
pub const HEAP_ALIGNMENT: u64 = 256;

/// Places things in a heap, one behind the other.
///
/// ```
/// let mut layout = flux_runtime::Layout::default();
/// assert_eq!(layout.place(1000).unwrap(), 0);
/// assert_eq!(layout.place(4).unwrap(), 1024);
/// assert_eq!(layout.bytes(), 1280);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout {
    bytes: u64,
}

impl Layout {
    /// The offset of `bytes` more bytes, a multiple of [`HEAP_ALIGNMENT`]. No bytes take no room.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] where the heap becomes larger than any address.
    pub fn place(&mut self, bytes: u64) -> Result<u64, Error> {
        let offset = self.bytes;
        self.bytes = offset
            .checked_add(bytes)
            .and_then(|end| end.checked_next_multiple_of(HEAP_ALIGNMENT))
            .ok_or(Error::OutOfRange {
                what: "an object in a heap, in bytes",
                low: 0,
                high: u64::MAX - offset - HEAP_ALIGNMENT,
                found: bytes,
            })?;
        Ok(offset)
    }

    /// Bytes of a heap with all of it, a multiple of [`HEAP_ALIGNMENT`].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// What the device heap of a rank is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeapMemory {
    /// Device memory.
    Device,
    /// Pinned host memory that the device reaches over its link to the host: the heap of a rank
    /// that is nothing but memory there.
    Host,
}

/// One rank's heaps, as the process of another one has mapped them.
#[derive(Debug)]
pub struct HeapPart {
    /// Memory of its GPU.
    pub device: DeviceBuffer,
    /// Host memory that kernels see.
    pub host: HostBuffer,
    /// Whether its GPU is that of the rank whose process this is.
    pub is_near: bool,
}

/// The heaps of all ranks, zeroed: for each rank memory of its device, and host memory that kernels
/// see. Tables of their addresses lie in the memory of the device of each rank of this process, so
/// that a kernel finds any rank's heap by index; what it finds there it can reach where the devices
/// are peers ([`Device::enable_peer`]), or where the heaps were mapped for its device.
#[derive(Debug)]
pub struct Heaps {
    device: Vec<Heap>,
    host: Vec<HostBuffer>,
    /// For each rank of this process, on its device: addresses of the device heaps, then those of
    /// the host heaps.
    tables: Vec<Option<DeviceBuffer>>,
}

/// The memory of a device heap.
#[derive(Debug)]
enum Heap {
    Device(DeviceBuffer),
    /// Memory of another GPU that this one has mapped.
    Far(DeviceBuffer),
    Host(HostBuffer),
}

impl Heap {
    fn alloc(device: &Arc<Device>, memory: HeapMemory, bytes: u64) -> Result<Heap, Error> {
        Ok(match memory {
            HeapMemory::Device => Heap::Device(DeviceBuffer::alloc_zeroed(device, bytes)?),
            HeapMemory::Host => Heap::Host(HostBuffer::alloc(device, bytes)?),
        })
    }

    fn span(&self) -> Span<'_> {
        match self {
            Heap::Device(buffer) | Heap::Far(buffer) => buffer.span(),
            Heap::Host(buffer) => buffer.span(),
        }
    }
}

impl Heaps {
    /// Allocates the heaps of a world of `world` ranks, all in device memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`]; [`Error::OutOfRange`] for an empty world; [`Error::Driver`].
    pub fn allocate(
        device: &Arc<Device>,
        world: u32,
        device_bytes: u64,
        host_bytes: u64,
    ) -> Result<Heaps, Error> {
        let ranks = vec![(device.clone(), HeapMemory::Device); world as usize];
        Heaps::of(&ranks, device_bytes, host_bytes)
    }

    /// Allocates the heaps of a world with one rank for each entry of `ranks`, which says on which
    /// device it is and what its device heap is made of.
    ///
    /// # Errors
    ///
    /// As [`Heaps::allocate`].
    pub fn of(
        ranks: &[(Arc<Device>, HeapMemory)],
        device_bytes: u64,
        host_bytes: u64,
    ) -> Result<Heaps, Error> {
        if ranks.is_empty() {
            let (what, high) = ("ranks of a world", u32::MAX.into());
            return Err(Error::OutOfRange { what, low: 1, high, found: 0 });
        }
        let of_device: Vec<_> = ranks
            .iter()
            .map(|(device, memory)| Heap::alloc(device, *memory, device_bytes))
            .collect::<Result<_, _>>()?;
        // Pinned memory has one address for all devices.
        let of_host: Vec<_> = ranks
            .iter()
            .map(|(device, _)| HostBuffer::alloc(device, host_bytes))
            .collect::<Result<_, _>>()?;
        let own = ranks.iter().map(|(device, _)| Some(device)).collect();
        Heaps::with_tables(of_device, of_host, own)
    }

    /// The heaps of a world whose ranks are processes: this one is rank `own`, and has mapped the
    /// parts of all.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`]; [`Error::OutOfMemory`]; [`Error::Driver`].
    pub fn of_processes(own: u32, parts: Vec<HeapPart>) -> Result<Heaps, Error> {
        let world = parts.len() as u32;
        let device = parts.get(own as usize).map(|part| part.device.device().clone());
        let device = device.ok_or(Error::NoSuchRank { rank: own, world })?;
        let (mut of_device, mut of_host) = (Vec::new(), Vec::new());
        for HeapPart { device, host, is_near } in parts {
            of_device.push(if is_near { Heap::Device(device) } else { Heap::Far(device) });
            of_host.push(host);
        }
        let tables = (0..world).map(|rank| (rank == own).then_some(&device)).collect();
        Heaps::with_tables(of_device, of_host, tables)
    }

    /// Makes a table on each of these devices.
    fn with_tables(
        device: Vec<Heap>,
        host: Vec<HostBuffer>,
        on: Vec<Option<&Arc<Device>>>,
    ) -> Result<Heaps, Error> {
        let of_device = device.iter().map(|heap| heap.span().address());
        let addresses: Vec<u64> = of_device.chain(host.iter().map(HostBuffer::address)).collect();
        let table = |device: &Arc<Device>| {
            let table = DeviceBuffer::alloc(device, 8 * addresses.len() as u64)?;
            table.copy_from(0, &addresses)?;
            Ok(table)
        };
        let tables = on.into_iter().map(|device| device.map(table).transpose());
        let tables = tables.collect::<Result<_, Error>>()?;
        Ok(Heaps { device, host, tables })
    }

    /// Ranks of the world.
    pub fn world(&self) -> u32 {
        self.device.len() as u32
    }

    /// Address of the table of the device heaps' addresses, one word for each rank, on the device
    /// of `rank`, which is one of this process.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`].
    pub fn device_table(&self, rank: u32) -> Result<u64, Error> {
        let table = self.tables.get(rank as usize).and_then(Option::as_ref);
        table.map(DeviceBuffer::address).ok_or(Error::NoSuchRank { rank, world: self.world() })
    }

    /// Address of the table of the host heaps' addresses, as devices see them, on the device of
    /// `rank`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`].
    pub fn host_table(&self, rank: u32) -> Result<u64, Error> {
        Ok(self.device_table(rank)? + 8 * u64::from(self.world()))
    }

    /// The device heap of a rank.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`].
    pub fn device(&self, rank: u32) -> Result<Span<'_>, Error> {
        let heap = self.device.get(rank as usize);
        heap.map(Heap::span).ok_or(Error::NoSuchRank { rank, world: self.world() })
    }

    /// Whether the device heap of a rank lies in memory of `device`.
    pub fn is_on(&self, rank: u32, device: &Device) -> bool {
        let heap = self.device.get(rank as usize);
        matches!(heap, Some(Heap::Device(buffer)) if buffer.device().ordinal() == device.ordinal())
    }

    /// The host heap of a rank.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`].
    pub fn host(&self, rank: u32) -> Result<&HostBuffer, Error> {
        self.host.get(rank as usize).ok_or(Error::NoSuchRank { rank, world: self.world() })
    }

    /// Zeros both heaps of a rank, and waits until that is done. Nobody uses them.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`], [`Error::Driver`].
    pub fn fill_zero(&self, rank: u32) -> Result<(), Error> {
        let host = self.host(rank)?.words();
        host.iter().for_each(|word| word.store(0, Ordering::Release));
        match &self.device[rank as usize] {
            Heap::Device(buffer) | Heap::Far(buffer) => buffer.fill(0)?,
            Heap::Host(buffer) => {
                buffer.words().iter().for_each(|word| word.store(0, Ordering::Release));
            }
        }
        Ok(())
    }

    /// Writes words `offset` bytes into a rank's device heap, and waits until that is done.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`], [`Error::OutOfBounds`], [`Error::Driver`].
    pub fn write_words(&self, rank: u32, offset: u64, words: &[u32]) -> Result<(), Error> {
        self.span(rank, offset, size_of_val(words) as u64)?;
        match &self.device[rank as usize] {
            Heap::Device(buffer) | Heap::Far(buffer) => buffer.copy_from(offset, words)?,
            Heap::Host(buffer) => {
                let to = buffer.words().iter().skip(offset as usize / 4);
                to.zip(words).for_each(|(to, word)| to.store(*word, Ordering::Release));
            }
        }
        Ok(())
    }

    /// The first `bytes` bytes of a rank's device heap, which live as long as the buffer does.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`], [`Error::OutOfBounds`].
    pub fn buffer(self: &Arc<Self>, rank: u32, bytes: u64) -> Result<DeviceBuffer, Error> {
        let address = self.span(rank, 0, bytes)?.address();
        let device = match &self.device[rank as usize] {
            Heap::Device(buffer) | Heap::Far(buffer) => buffer.device(),
            Heap::Host(buffer) => buffer.device(),
        };
        let owner = Owner::Heaps(Arc::clone(self));
        Ok(DeviceBuffer::owned_by(Arc::clone(device), address, bytes, owner))
    }

    /// `length` bytes of a rank's device heap.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`], [`Error::OutOfBounds`].
    pub fn span(&self, rank: u32, offset: u64, length: u64) -> Result<Span<'_>, Error> {
        let heap = self.device(rank)?;
        within("a device heap", offset, length, heap.bytes())?;
        heap.part(offset, length)
    }
}

impl Drop for Heaps {
    fn drop(&mut self) {
        // Freeing memory waits for its own device, and peers may still store to it. Waits of
        // kernels have limits, so this ends.
        let mut drained = Vec::new();
        for device in self.tables.iter().flatten().map(DeviceBuffer::device) {
            if !drained.contains(&device.ordinal()) && device.bind().is_ok() {
                device.drain();
                drained.push(device.ordinal());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HEAP_ALIGNMENT, Layout};

    #[test]
    fn objects_do_not_overlap_and_are_aligned() {
        let mut layout = Layout::default();
        let mut end = 0;
        for bytes in [1, 255, 256, 257, 0, 4096, 3] {
            let offset = layout.place(bytes).unwrap();
            assert!(offset.is_multiple_of(HEAP_ALIGNMENT));
            assert!(offset >= end);
            end = offset + bytes;
            assert!(layout.bytes() >= end && layout.bytes() < end + HEAP_ALIGNMENT);
        }
    }

    #[test]
    fn a_heap_beyond_all_addresses_is_refused_and_changes_nothing() {
        let mut layout = Layout::default();
        layout.place(512).unwrap();
        let before = layout;
        assert!(layout.place(u64::MAX - 600).is_err());
        assert!(layout.place(u64::MAX).is_err());
        assert_eq!(layout, before);
    }
}
