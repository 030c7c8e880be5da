//! What passive peers send: memory that the copies of their part begin in.

use super::instance::GpuInstance;
use crate::error::Error;
use flux_ir::Element;
use flux_ir::program::BufferId;
use flux_runtime::{DeviceBuffer, HostBuffer, Rows, Span};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the memory of passive peers lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peers {
    /// In pinned memory of the host: ranks are linked by what links the device to its host.
    Host,
    /// In the memory of the active rank's own device: ranks are linked by that memory.
    Device,
    /// As [`Peers::Device`], and what peers send lies where it belongs: of a launch their signals
    /// alone are played. Links between GPUs fill memory without the receiver's multiprocessors,
    /// which copies within a device cannot.
    Resident,
}

/// What one passive peer sends to the active rank in every launch of a kernel and a shape: a part
/// of a gathered tensor, or its contribution to a sum. Zeros at first; whoever measures fills it,
/// and knows from it what the result has to be.
#[derive(Debug)]
pub struct Outbox {
    instance: Arc<GpuInstance>,
    index: usize,
}

/// The memory behind an [`Outbox`].
#[derive(Debug)]
pub(super) struct Stock {
    pub(super) peer: u32,
    pub(super) buffer: BufferId,
    pub(super) name: String,
    pub(super) element: Element,
    /// Planes of the buffer that one launch fills.
    pub(super) planes: u32,
    /// Rows of the whole tensor.
    pub(super) rows: Range<u32>,
    pub(super) cols: Range<u32>,
    pub(super) pitch_bytes: u64,
    pub(super) memory: Memory,
}

#[derive(Debug)]
pub(super) enum Memory {
    Host(HostBuffer),
    Device(DeviceBuffer),
}

impl Memory {
    fn span(&self) -> Span<'_> {
        match self {
            Memory::Host(buffer) => buffer.span(),
            Memory::Device(buffer) => buffer.span(),
        }
    }
}

impl Stock {
    fn plane_bytes(&self) -> u64 {
        self.pitch_bytes * u64::from(self.rows.end - self.rows.start)
    }

    /// The rest of plane `plane` from an element of the whole tensor on.
    pub(super) fn rows(&self, plane: u32, row: u32, col: u32) -> Result<Rows<'_>, Error> {
        let (down, right) = (u64::from(row - self.rows.start), u64::from(col - self.cols.start));
        let within = down * self.pitch_bytes + right * u64::from(self.element.bytes());
        let start = u64::from(plane) * self.plane_bytes() + within;
        let span = self.memory.span().part(start, self.plane_bytes() - within)?;
        Ok(Rows { span, pitch_bytes: self.pitch_bytes })
    }

    /// Bytes of all planes.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.planes) * self.plane_bytes()
    }
}

impl Outbox {
    pub(super) fn new(instance: Arc<GpuInstance>, index: usize) -> Outbox {
        Outbox { instance, index }
    }

    fn inner(&self) -> &Stock {
        &self.instance.stocks()[self.index]
    }

    /// The peer that sends it.
    pub fn peer(&self) -> u32 {
        self.inner().peer
    }

    /// The workspace of the active rank that it goes to, as `flux show --program` names it.
    pub fn buffer(&self) -> &str {
        &self.inner().name
    }

    /// Its rows, in the numbers of the whole tensor.
    pub fn rows(&self) -> Range<usize> {
        let rows = &self.inner().rows;
        rows.start as usize..rows.end as usize
    }

    /// Its columns.
    pub fn cols(&self) -> Range<usize> {
        let cols = &self.inner().cols;
        cols.start as usize..cols.end as usize
    }

    /// Bytes from one row to the next.
    pub fn pitch_bytes(&self) -> u64 {
        self.inner().pitch_bytes
    }

    /// Fills it: `data` are all its rows and columns, row by row. No launch that sends it may be
    /// running.
    ///
    /// # Errors
    /// [`Error::DataLength`] for another number of elements; [`Error::Unsupported`] for elements
    /// of another format; a failed copy.
    pub fn write<T: crate::Element>(&self, data: &[T]) -> Result<(), Error> {
        let stock = self.inner();
        if T::KIND != stock.element {
            let problem = format!("{} holds {}, found {}", stock.name, stock.element, T::KIND);
            return Err(self.instance.unsupported(&problem));
        }
        let (rows, cols) = (stock.planes as usize * self.rows().len(), self.cols().len());
        if data.len() != rows * cols {
            return Err(Error::DataLength { rows, cols, found: data.len() });
        }
        let (pitch, row_bytes) = (stock.pitch_bytes as usize, cols * size_of::<T>());
        let mut bytes = vec![0u8; rows * pitch];
        let from: &[u8] = bytemuck::cast_slice(data);
        for (to, from) in bytes.chunks_exact_mut(pitch).zip(from.chunks_exact(row_bytes)) {
            to[..row_bytes].copy_from_slice(from);
        }
        match &stock.memory {
            Memory::Device(buffer) => buffer.copy_from(0, &bytes)?,
            Memory::Host(buffer) => {
                for (word, bytes) in buffer.words().iter().zip(bytes.chunks_exact(4)) {
                    let value = [bytes[0], bytes[1], bytes[2], bytes[3]];
                    word.store(u32::from_ne_bytes(value), Ordering::Release);
                }
            }
        }
        self.changed();
        Ok(())
    }

    /// Says that its memory was filled by other means than [`Outbox::write`]: peers whose data lies
    /// where it belongs ([`Peers::Resident`]) send it again in the next two launches.
    pub fn changed(&self) {
        self.instance.send_anew();
    }

    /// Its memory, gaps between rows included: the device reaches it wherever it lies. Whoever fills
    /// it says so by [`Outbox::changed`].
    pub fn span(&self) -> Span<'_> {
        self.inner().memory.span()
    }
}
