//! One rank's part of one (kernel, shape) on a GPU: tables, words, and the launch itself.

use super::Gpu;
use super::workspace::GpuWorkspace;
use crate::error::Error;
use crate::source::{Member, Source};
use crate::tensor::{Arg, Data};
use flux_ir::Element;
use flux_ir::abi::{Abi, MapParam, THREADS, Word};
use flux_ir::arena::Handle;
use flux_ir::eval::{Launch, RankView};
use flux_ir::kernel::ParamType;
use flux_ir::program::{BufferId, BufferKind, Engine, Program, SignalId, Sym};
use flux_runtime::{
    Device, DeviceBuffer, ElementKind, Event, Function, HostBuffer, Residency, Rows, Span,
    StallReport, Stream, Tensor2d, TensorMap, Timing,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// What one rank needs to launch one shape.
#[derive(Debug)]
pub(crate) struct GpuInstance {
    pub(super) launch: Launch,
    pub(super) rank: u32,
    pub(super) workspace: Arc<GpuWorkspace>,
    function: Function,
    shared_bytes: u32,
    abi: Abi,
    tables: Vec<DeviceBuffer>,
    /// Epoch, retired CTAs and abort: one word each, 256 bytes apart.
    state: DeviceBuffer,
    watch: Arc<Watch>,
    /// Launches so far.
    epoch: AtomicU32,
    /// Copies of operands whose rows TMA cannot load where they lie, by buffer.
    padded: Vec<Option<DeviceBuffer>>,
    fork: Event,
    join: Event,
    /// Whether a copy engine works for this kernel.
    copies: bool,
}

/// The report of a kernel's stall, and what is needed to make a sentence of it.
#[derive(Debug)]
pub(crate) struct Watch {
    report: HostBuffer,
    taken: AtomicBool,
    rank: u32,
    kernel: String,
    file: String,
    signals: Vec<String>,
    limit: Duration,
}

/// A tensor of this launch, as the device sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) buffer: BufferId,
    pub(super) span: Span<'a>,
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) pitch_bytes: u64,
}

/// Bytes between the state words, so that they share no cache line.
const STATE_STRIDE: u64 = 256;

impl Watch {
    fn new(
        device: &Arc<Device>,
        source: &Source,
        program: &Program,
        rank: u32,
        limit: Duration,
    ) -> Result<Watch, Error> {
        Ok(Watch {
            report: HostBuffer::alloc(device, flux_ir::abi::REPORT_BYTES.into())?,
            taken: AtomicBool::new(false),
            rank,
            kernel: source.definition.name.into(),
            file: source.definition.file.into(),
            signals: program.signals.values().map(|signal| signal.name.clone()).collect(),
            limit,
        })
    }

    fn stall(&self) -> Option<Error> {
        let report = StallReport::read(self.report.words())?;
        let signal = self.signals.get(report.signal as usize);
        Some(Error::Stalled {
            rank: self.rank,
            kernel: self.kernel.clone(),
            cta: report.cta,
            file: self.file.clone(),
            line: report.line,
            column: report.column,
            signal: signal.cloned().unwrap_or_else(|| format!("#{}", report.signal)),
            slot: report.slot,
            seen: report.seen,
            wanted: report.wanted,
            limit_ms: self.limit.as_millis() as u64,
        })
    }

    /// The stall, the first time it is asked for.
    pub(super) fn take_stall(&self) -> Option<Error> {
        let stall = self.stall()?;
        (!self.taken.swap(true, Ordering::Relaxed)).then_some(stall)
    }
}

impl Gpu {
    /// Makes what `rank` needs, once every rank has come and none is spinning.
    pub(crate) fn instance(
        &self,
        source: &Source,
        member: usize,
        launch: Launch,
        rank: u32,
        workspace: Arc<GpuWorkspace>,
        limit: Duration,
    ) -> Result<Arc<GpuInstance>, Error> {
        let member = &source.family[member];
        let program = member.verified.program();
        let image = member.image.expect("a member of a GPU family has an image");
        let abi = Abi::of(program);
        let device = self.device();
        let function = self.module(image)?.function(image.entry, image.shared_bytes)?;
        function.require_resident(self.ranks(), launch.ctas, THREADS, image.shared_bytes)?;
        let view = RankView::new(program, launch, rank).map_err(crate::source::rejected_order)?;
        let (tables, padded) = (tables(device, &view)?, padded(device, &view, &abi)?);
        let watch = Arc::new(Watch::new(device, source, program, rank, limit)?);
        self.lane(rank).watches().push(Arc::clone(&watch));
        let instance = Arc::new(GpuInstance {
            launch,
            rank,
            workspace,
            function,
            shared_bytes: image.shared_bytes,
            abi,
            tables,
            state: DeviceBuffer::alloc_zeroed(device, 3 * STATE_STRIDE)?,
            watch,
            epoch: AtomicU32::new(0),
            padded,
            fork: Event::new(device, Timing::Off)?,
            join: Event::new(device, Timing::Off)?,
            copies: program.agents.values().any(|agent| agent.engine == Engine::CopyEngine),
        });
        self.keep(Arc::clone(&instance));
        Ok(instance)
    }
}

/// The tables of a rank, on its device.
fn tables(device: &Arc<Device>, view: &RankView<'_>) -> Result<Vec<DeviceBuffer>, Error> {
    let tables = view.program.tables.handles().map(|table| {
        let rows = view.table(table);
        let buffer = DeviceBuffer::alloc(device, (16 * rows.len()) as u64)?;
        buffer.copy_from(0, rows.as_flattened())?;
        Ok(buffer)
    });
    tables.collect()
}

/// Memory for copies of the inputs that a mainloop loads and whose rows do not begin at multiples
/// of 16 bytes, by buffer.
fn padded(
    device: &Arc<Device>,
    view: &RankView<'_>,
    abi: &Abi,
) -> Result<Vec<Option<DeviceBuffer>>, Error> {
    let padded = view.program.buffers.iter().map(|(id, buffer)| {
        let extent = view.extent(id);
        let row_bytes = extent.cols * u64::from(buffer.element.bytes());
        let needed = buffer.kind == BufferKind::Input && abi.map(id, 0).is_some();
        let pitch = row_bytes.next_multiple_of(16);
        (needed && pitch != row_bytes)
            .then(|| DeviceBuffer::alloc_zeroed(device, pitch * extent.rows))
            .transpose()
            .map_err(Error::from)
    });
    padded.collect()
}

impl GpuInstance {
    /// Enqueues one launch: copies first (the signaller goes before the waiter), then the kernel.
    /// The rank's stream goes on when both are done.
    pub(crate) fn launch(
        &self,
        gpu: &Gpu,
        source: &Source,
        member: &Member,
        args: &[Arg<'_>],
    ) -> Result<(), Error> {
        if let Some(stall) = self.watch.take_stall() {
            return Err(stall);
        }
        if self.watch.taken.load(Ordering::Relaxed) {
            return Err(Error::Poisoned { kernel: source.definition.name.into() });
        }
        // Whatever refuses the arguments comes first: no peer has been told of this launch yet.
        let main = gpu.lane(self.rank).main();
        let given = self.operands(source, args);
        let loaded = self.pad(&main, &given)?;
        let maps = self.maps(gpu.device(), source, member, &loaded)?;
        let words = self.words(&loaded, &scalars(args));
        // The kernel counts its launches itself; the host counts along for the copies it feeds.
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let launched = self.enqueue(gpu, source, member, epoch, (&given, &maps, &words));
        if launched.is_err() {
            self.watch.taken.store(true, Ordering::Relaxed);
        }
        launched
    }

    /// Enqueues launch `epoch`, given its tensors where they lie, its tensor maps and its words.
    fn enqueue(
        &self,
        gpu: &Gpu,
        source: &Source,
        member: &Member,
        epoch: u32,
        (given, maps, words): (&[Operand<'_>], &[TensorMap], &[u64]),
    ) -> Result<(), Error> {
        let lane = gpu.lane(self.rank);
        let main = lane.main();
        if self.copies {
            main.record(&self.fork)?;
            lane.copy.wait(&self.fork)?;
            self.feed(source, member, lane, epoch, given)?;
            lane.copy.record(&self.join)?;
        }
        let launch = flux_runtime::Launch {
            function: &self.function,
            ctas: self.launch.ctas,
            threads: THREADS,
            shared_bytes: self.shared_bytes,
            residency: Residency::Independent,
            maps,
            words,
        };
        // SAFETY: the code was compiled from this very Program (its fingerprint was compared),
        // the Program was verified for this launch, and maps and words are those its ABI names,
        // over memory that the tensors and this instance keep alive until the stream has passed.
        unsafe { launch.enqueue(&main) }?;
        if self.copies {
            main.wait(&self.join)?;
        }
        Ok(())
    }

    /// The tensors of a launch, in the order of the Program's first buffers.
    fn operands<'a>(&self, source: &Source, args: &'a [Arg<'_>]) -> Vec<Operand<'a>> {
        let tensors = source.kernel.params.values().zip(args).filter_map(|(param, arg)| {
            match (param.ty, arg) {
                (ParamType::Tensor { .. }, Arg::Tensor(tensor)) => Some(tensor),
                (ParamType::Tensor { .. } | ParamType::Scalar, _) => None,
            }
        });
        tensors
            .enumerate()
            .filter_map(|(index, tensor)| {
                let Data::Device(buffer) = &tensor.data else { return None };
                let (rows, cols) = (tensor.rows as u64, tensor.cols as u64);
                let pitch_bytes = cols * u64::from(tensor.element.bytes());
                let buffer_id = BufferId::new(index);
                Some(Operand { buffer: buffer_id, span: buffer.span(), rows, cols, pitch_bytes })
            })
            .collect()
    }

    /// Copies operands that TMA cannot load where they lie into padded rows.
    fn pad<'a>(&'a self, main: &Stream, given: &[Operand<'a>]) -> Result<Vec<Operand<'a>>, Error> {
        let mut loaded = given.to_vec();
        for operand in &mut loaded {
            let Some(padded) = &self.padded[operand.buffer.index()] else { continue };
            let pitch_bytes = operand.pitch_bytes.next_multiple_of(16);
            let to = Rows { span: padded.span(), pitch_bytes };
            let from = Rows { span: operand.span, pitch_bytes: operand.pitch_bytes };
            main.copy_2d(to, from, operand.pitch_bytes, operand.rows)?;
            (operand.span, operand.pitch_bytes) = (padded.span(), pitch_bytes);
        }
        Ok(loaded)
    }

    pub(super) fn operand<'o, 'a>(
        &self,
        operands: &'o [Operand<'a>],
        buffer: BufferId,
    ) -> Result<&'o Operand<'a>, Error> {
        let found = operands.iter().find(|operand| operand.buffer == buffer);
        found.ok_or_else(|| self.unsupported("a buffer of the Program has no tensor"))
    }

    /// The tensor maps of a launch, in the order of the ABI.
    fn maps(
        &self,
        device: &Device,
        source: &Source,
        member: &Member,
        operands: &[Operand<'_>],
    ) -> Result<Vec<TensorMap>, Error> {
        let program = member.verified.program();
        let map = |map: &MapParam| {
            let buffer = &program.buffers[map.buffer];
            let Some(tensor) = self.mapped(program, map, operands)? else {
                return self.unused_map(device, buffer.element, map);
            };
            TensorMap::encode_2d(device, &tensor).map_err(|problem| Error::Unaligned {
                param: buffer.name.clone(),
                problem: format!("{problem} (launching `{}`)", source.definition.name),
            })
        };
        self.abi.maps.iter().map(map).collect()
    }

    /// What a map describes; `None` where the kernel does not use it, as it stores element by
    /// element or has no rows here.
    fn mapped(
        &self,
        program: &Program,
        map: &MapParam,
        operands: &[Operand<'_>],
    ) -> Result<Option<Tensor2d>, Error> {
        let buffer = &program.buffers[map.buffer];
        let (address, rows, cols, pitch_bytes) = match self.workspace.buffer(map.buffer) {
            Some(symmetric) => {
                let heap = self.workspace.heaps.device(self.rank)?.address();
                let plane = u64::from(map.plane) * symmetric.plane_bytes;
                let view = RankView::definitions(program, self.launch, self.rank);
                let cols = view.extent(map.buffer).cols;
                (heap + symmetric.offset + plane, symmetric.rows, cols, symmetric.pitch_bytes)
            }
            None => {
                let operand = self.operand(operands, map.buffer)?;
                let by_element = buffer.kind == BufferKind::Output && !aligned(operand);
                if by_element || operand.rows == 0 {
                    return Ok(None);
                }
                (operand.span.address(), operand.rows, operand.cols, operand.pitch_bytes)
            }
        };
        let (box_rows, box_cols) = (map.box_rows, map.box_cols);
        let element = kind(buffer.element);
        Ok(Some(Tensor2d { element, address, rows, cols, pitch_bytes, box_rows, box_cols }))
    }

    /// A valid map over memory of this instance, for a parameter that is not used.
    fn unused_map(
        &self,
        device: &Device,
        element: Element,
        map: &MapParam,
    ) -> Result<TensorMap, Error> {
        let tensor = Tensor2d {
            element: kind(element),
            address: self.state.address(),
            rows: 1,
            cols: 8,
            pitch_bytes: 64,
            box_rows: map.box_rows,
            box_cols: map.box_cols,
        };
        Ok(TensorMap::encode_2d(device, &tensor)?)
    }

    fn words(&self, operands: &[Operand<'_>], scalars: &[f32]) -> Vec<u64> {
        let given = |id: BufferId| operands.iter().find(|operand| operand.buffer == id);
        let symmetric = |id: BufferId| self.workspace.buffer(id);
        let heap = self.workspace.heaps.device(self.rank).map_or(0, DeviceBuffer::address);
        let state = |index: u64| self.state.address() + index * STATE_STRIDE;
        let word = |word: &Word| match *word {
            Word::Address(id) => match symmetric(id) {
                Some(buffer) => heap + buffer.offset,
                None => given(id).map_or(0, |operand| operand.span.address()),
            },
            Word::Pitch(id) => match symmetric(id) {
                Some(buffer) => buffer.pitch_bytes,
                None => given(id).map_or(0, |operand| operand.pitch_bytes),
            },
            Word::PlaneBytes(id) => symmetric(id).map_or(0, |buffer| buffer.plane_bytes),
            Word::BufferOffset(id) => symmetric(id).map_or(0, |buffer| buffer.offset),
            Word::SignalOffset(id) => self.workspace.signal(id),
            Word::Aligned(id) => match symmetric(id) {
                Some(_) => 1,
                None => given(id).is_some_and(aligned).into(),
            },
            Word::DeviceHeaps => self.workspace.heaps.device_table(),
            Word::HostHeaps => self.workspace.heaps.host_table(),
            Word::Sym(sym) => self.sym(sym).into(),
            Word::Table(id) => self.tables[id.index()].address(),
            Word::Scalar(index) => scalars.get(index as usize).map_or(0, |s| s.to_bits().into()),
            Word::Epoch => state(0),
            Word::Retired => state(1),
            Word::Abort => state(2),
            Word::Report => self.watch.report.address(),
            Word::LimitNs => limit_ns(self.watch.limit),
        };
        self.abi.words.iter().map(word).collect()
    }

    fn sym(&self, sym: Sym) -> u32 {
        match sym {
            Sym::M => self.launch.shape.m,
            Sym::N => self.launch.shape.n,
            Sym::K => self.launch.shape.k,
            Sym::World => self.launch.world,
            Sym::Rank => self.rank,
            Sym::Ctas => self.launch.ctas,
            // The kernel reads these itself.
            Sym::Epoch | Sym::Cta => 0,
        }
    }

    /// Waits on the host until a peer has raised a signal of this rank's.
    pub(super) fn wait_on_host(
        &self,
        source: &Source,
        signal: SignalId,
        slot: u32,
        target: i64,
    ) -> Result<(), Error> {
        let Ok(wanted) = u32::try_from(target) else { return Ok(()) };
        let index = self.workspace.signal(signal) / 4 + u64::from(slot);
        let stop = || self.watch.stall().is_some();
        let host = self.workspace.heaps.host(self.rank)?;
        match host.wait_at_least(index, wanted, self.watch.limit, stop) {
            Ok(_) => Ok(()),
            Err(flux_runtime::Error::WordTimeout { seen, .. }) => {
                Err(self.watch.take_stall().unwrap_or(Error::PeerBehind {
                    rank: self.rank,
                    kernel: source.definition.name.into(),
                    peer: slot,
                    wanted,
                    seen,
                    limit_ms: self.watch.limit.as_millis() as u64,
                }))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn unsupported(&self, problem: &str) -> Error {
        Error::Unsupported { kernel: self.watch.kernel.clone(), problem: problem.into() }
    }
}

/// Whether rows of a tensor begin at multiples of 16 bytes.
fn aligned(operand: &Operand<'_>) -> bool {
    operand.span.address().is_multiple_of(16) && operand.pitch_bytes.is_multiple_of(16)
}

/// A limit for a kernel's clock: no longer than can be added to it.
fn limit_ns(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).min(i64::MAX as u64)
}

fn scalars(args: &[Arg<'_>]) -> Vec<f32> {
    args.iter()
        .filter_map(|arg| match arg {
            Arg::Scalar(value) => Some(*value),
            Arg::Tensor(_) => None,
        })
        .collect()
}

fn kind(element: Element) -> ElementKind {
    match element {
        Element::Bf16 => ElementKind::Bf16,
        Element::F16 => ElementKind::F16,
        Element::F32 => ElementKind::F32,
    }
}
