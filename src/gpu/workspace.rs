//! The workspace of one (kernel, shape): the same heap on every rank.

use super::outbox::Peers;
use super::{Gpu, Passive, SYNCHRONIZE_LIMIT};
use crate::error::Error;
use crate::meeting::Meeting;
use crate::source::{Member, Source, rejected};
use flux_ir::abi::not_yet;
use flux_ir::arena::Handle;
use flux_ir::eval::{Launch, RankView};
use flux_ir::program::{BufferId, BufferKind, Home, Program, SignalId};
use flux_runtime::{HeapMemory, Heaps, Layout, Rows, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Symmetric buffers and signals of all ranks.
#[derive(Debug)]
pub(crate) struct GpuWorkspace {
    pub(crate) heaps: Heaps,
    buffers: Vec<Option<SymmetricBuffer>>,
    signals: Vec<u64>,
    /// Where in its host heap a rank says that it gave up a launch and let its copies go, and which
    /// one: two words.
    abandoned: u64,
}

/// Where a symmetric buffer lies in every rank's heap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SymmetricBuffer {
    pub(crate) offset: u64,
    pub(crate) rows: u64,
    pub(crate) cols: u64,
    pub(crate) pitch_bytes: u64,
    pub(crate) plane_bytes: u64,
    planes: u64,
}

impl GpuWorkspace {
    pub(crate) fn buffer(&self, buffer: BufferId) -> Option<SymmetricBuffer> {
        self.buffers[buffer.index()]
    }

    /// The rest of a plane of `buffer` on `rank` from an element on, and the bytes from one of its
    /// rows to the next; `row` counts from the first that lies there, `column` is in bytes.
    pub(super) fn rows(
        &self,
        buffer: SymmetricBuffer,
        rank: u32,
        plane: u32,
        row: u64,
        column: u64,
    ) -> Result<Rows<'_>, Error> {
        let SymmetricBuffer { offset, pitch_bytes, plane_bytes, .. } = buffer;
        let within = row * pitch_bytes + column;
        let start = offset + u64::from(plane) * plane_bytes + within;
        let span = self.heaps.span(rank, start, plane_bytes - within)?;
        Ok(Rows { span, pitch_bytes })
    }

    /// Notes that `rank`, of this process, gave up launch `epoch`, before anything it sent wrongly can
    /// arrive. It is forgotten when the rank's heaps are zeroed.
    pub(super) fn abandon(&self, rank: u32, epoch: u32) {
        if let Some([has, which]) = self.abandon_words(rank)
            && has.load(Ordering::Relaxed) == 0
        {
            which.store(epoch, Ordering::Relaxed);
            has.store(1, Ordering::Release);
        }
    }

    /// Ranks that gave up, and the launch that each of them did.
    pub(super) fn abandoned(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..self.heaps.world()).filter_map(|rank| {
            let [has, which] = self.abandon_words(rank)?;
            (has.load(Ordering::Acquire) != 0).then(|| (rank, which.load(Ordering::Relaxed)))
        })
    }

    /// Says of all data on `rank` that carry their own flag that they have not been stored, and waits until that is
    /// done. Nobody uses them.
    pub(super) fn lower_flags(
        &self,
        program: &Program,
        rank: u32,
        stream: &Stream,
    ) -> Result<(), Error> {
        let flagged = program.buffers.iter().filter(|(id, _)| program.is_flagged(*id));
        let flagged: Vec<_> = flagged.collect();
        if flagged.is_empty() {
            return Ok(());
        }
        for (id, buffer) in flagged {
            let Some(SymmetricBuffer { offset, plane_bytes, planes, .. }) = self.buffer(id) else {
                continue;
            };
            let span = self.heaps.span(rank, offset, plane_bytes * planes)?;
            stream.fill_u32(span, not_yet(buffer.element))?;
        }
        Ok(stream.synchronize(SYNCHRONIZE_LIMIT)?)
    }

    fn abandon_words(&self, rank: u32) -> Option<&[AtomicU32; 2]> {
        let words = self.heaps.host(rank).ok()?.words();
        words.get(self.abandoned as usize / 4..)?.first_chunk()
    }

    /// Offset of a signal array in the heap of its home, in bytes.
    pub(crate) fn signal(&self, signal: SignalId) -> u64 {
        self.signals[signal.index()]
    }
}

impl Gpu {
    /// Lays out and allocates the workspace of `launch`. Symmetric buffers have the same extents
    /// on every rank, so rank 0's are everyone's. Where ranks are processes, all of them meet.
    pub(crate) fn workspace(
        &self,
        source: &Source,
        member: &Member,
        launch: Launch,
        meeting: &Meeting,
    ) -> Result<GpuWorkspace, Error> {
        let verified = &member.verified;
        verified.check_launch(launch).map_err(rejected(source.definition))?;
        let program = verified.program();
        let view = RankView::definitions(program, launch, 0);
        let (mut device, mut host) = (Layout::default(), Layout::default());
        let mut buffers = Vec::new();
        for (id, buffer) in program.buffers.iter() {
            buffers.push(match buffer.kind {
                BufferKind::Input | BufferKind::Exposed | BufferKind::Output => None,
                BufferKind::Symmetric => {
                    let extent = view.extent(id);
                    // Rows begin where a TMA box may begin, and where a store fills whole sectors.
                    let row_bytes = extent.cols * u64::from(buffer.element.bytes());
                    let pitch_bytes = row_bytes.next_multiple_of(128);
                    let plane_bytes = pitch_bytes * extent.rows;
                    let offset = device.place(plane_bytes * extent.planes)?;
                    let (rows, cols) = (extent.rows, extent.cols);
                    let planes = extent.planes;
                    Some(SymmetricBuffer { offset, rows, cols, pitch_bytes, plane_bytes, planes })
                }
            });
        }
        let mut signals = Vec::new();
        for (id, signal) in program.signals.iter() {
            let heap = match signal.home {
                Home::Device => &mut device,
                Home::Host => &mut host,
            };
            signals.push(heap.place(4 * u64::from(view.signal_len(id)))?);
        }
        let abandoned = host.place(8)?;
        let (device, host) = (device.bytes(), host.bytes());
        if self.inner.others.is_some() {
            let offsets = buffers.iter().map(|buffer| buffer.map_or(0, |buffer| buffer.offset));
            let layout = offsets.chain(signals.iter().copied()).chain([device, host]);
            meeting.same(
                &format!("where the workspace of `{}` has what", source.definition.name),
                layout.flat_map(u64::to_le_bytes).collect(),
            )?;
        }
        let heaps = self.heaps(meeting, launch.world, (device, host))?;
        Ok(GpuWorkspace { heaps, buffers, signals, abandoned })
    }

    /// Heaps of so many bytes, of the device and of the host, for each rank. Where ranks are processes,
    /// all of them meet.
    fn heaps(
        &self,
        meeting: &Meeting,
        world: u32,
        (device, host): (u64, u64),
    ) -> Result<Heaps, Error> {
        if let Some(others) = &self.inner.others {
            let near = others.near(&self.members);
            let on = (self.device(meeting.rank()), &near[..]);
            return meeting.heaps(&others.joined, &self.members, on, (device, host));
        }
        let peers = match self.passive() {
            Some(Passive { peers: Peers::Host, .. }) => HeapMemory::Host,
            Some(Passive { peers: Peers::Device | Peers::Resident, .. }) | None => {
                HeapMemory::Device
            }
        };
        // Passive peers are memory that the one active rank's device reaches.
        let last = self.ranks() - 1;
        let heap = |rank: u32| match rank {
            0 => (Arc::clone(self.device(0)), HeapMemory::Device),
            _ => (Arc::clone(self.device(rank.min(last))), peers),
        };
        let ranks: Vec<_> = (0..world).map(heap).collect();
        Ok(Heaps::of(&ranks, device, host)?)
    }

    /// Memory of so many bytes on every rank, which all of them make together. Nobody may spin
    /// meanwhile, as allocating can wait for the device.
    pub(crate) fn symmetric(
        &self,
        meeting: &Meeting,
        world: u32,
        bytes: u64,
    ) -> Result<Arc<Heaps>, Error> {
        if self.comms().is_some() {
            let problem = "the memory of peers is not mapped (`FLUX_PEERS`): what all ranks reach cannot be \
                           made";
            return Err(Error::Unsupported { kernel: "symmetric".into(), problem: problem.into() });
        }
        self.synchronize(meeting.rank())?;
        meeting.barrier("at rest")?;
        meeting.share("heaps", || {
            self.collect();
            self.heaps(meeting, world, (bytes, 0))
        })
    }
}
