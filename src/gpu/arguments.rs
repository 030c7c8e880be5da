//! From tensors to what a kernel takes: tensor maps and words, in the order of its ABI.

use super::instance::{GpuInstance, STATE_STRIDE, State};
use super::record::Record;
use super::workspace::SymmetricBuffer;
use crate::error::Error;
use crate::source::{Member, Source};
use crate::tensor::{Arg, Data, kind};
use flux_ir::Element;
use flux_ir::abi::{MapParam, Word};
use flux_ir::arena::Handle;
use flux_ir::kernel::ParamType;
use flux_ir::program::{BufferId, BufferKind, Program, Sym};
use flux_runtime::{Device, DeviceBuffer, Rows, Span, Stream, Tensor2d, TensorMap};
use std::time::Duration;

/// A tensor of this launch, as the device sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) buffer: BufferId,
    pub(super) span: Span<'a>,
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) pitch_bytes: u64,
}

impl GpuInstance {
    /// The tensors of a launch, in the order of the Program's first buffers.
    pub(super) fn operands<'a>(&self, source: &Source, args: &'a [Arg<'_>]) -> Vec<Operand<'a>> {
        let tensors = source.kernel.params.values().zip(args).filter_map(|(param, arg)| {
            match (param.ty, arg) {
                (ParamType::Tensor { .. }, Arg::Tensor(tensor)) => Some(tensor),
                (ParamType::Tensor { .. } | ParamType::Scalar, _) => None,
            }
        });
        tensors
            .enumerate()
            .filter_map(|(index, tensor)| {
                let (Data::Device(found) | Data::Target(found)) = &tensor.data else { return None };
                let buffer = found.buffer();
                let (rows, cols) = (tensor.rows as u64, tensor.cols as u64);
                let pitch_bytes = cols * u64::from(tensor.element.bytes());
                let buffer_id = BufferId::new(index);
                Some(Operand { buffer: buffer_id, span: buffer.span(), rows, cols, pitch_bytes })
            })
            .collect()
    }

    /// Copies operands that TMA cannot load where they lie into padded rows.
    pub(super) fn pad<'a>(
        &'a self,
        main: &Stream,
        given: &[Operand<'a>],
    ) -> Result<Vec<Operand<'a>>, Error> {
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
    pub(super) fn maps(
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
    /// element or has no elements here.
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
                let SymmetricBuffer { offset, rows, cols, pitch_bytes, .. } = symmetric;
                (heap + offset + plane, rows, cols, pitch_bytes)
            }
            None => {
                let operand = self.operand(operands, map.buffer)?;
                let by_element = buffer.kind == BufferKind::Output && !aligned(operand);
                if by_element || operand.rows == 0 || operand.cols == 0 {
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

    /// The words of a launch, in the order of the ABI.
    pub(super) fn words(&self, operands: &[Operand<'_>], args: &[Arg<'_>]) -> Vec<u64> {
        let scalars = scalars(args);
        let given = |id: BufferId| operands.iter().find(|operand| operand.buffer == id);
        let symmetric = |id: BufferId| self.workspace.buffer(id);
        let heaps = &self.workspace.heaps;
        let heap = heaps.device(self.rank).map_or(0, |heap| heap.address());
        let state = |word: State| self.state.address() + word as u64 * STATE_STRIDE;
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
            Word::DeviceHeaps => heaps.device_table(self.rank).unwrap_or(0),
            Word::HostHeaps => heaps.host_table(self.rank).unwrap_or(0),
            Word::Sym(sym) => self.sym(sym).into(),
            Word::Definition(var) => self.definitions[var.index()] as u32 as u64,
            Word::Firsts => self.firsts.as_ref().map_or(0, DeviceBuffer::address),
            Word::Table(id) => self.tables[id.index()].address(),
            Word::Scalar(index) => scalars.get(index as usize).map_or(0, |s| s.to_bits().into()),
            Word::Epoch => state(State::Epoch),
            Word::Parts => self.sharing.as_ref().map_or(0, |sharing| sharing.parts.address()),
            Word::Items => self.sharing.as_ref().map_or(0, |sharing| sharing.items.address()),
            Word::ItemsOfCta => self.sharing.as_ref().map_or(0, |sharing| sharing.items_of_cta),
            Word::Retired => state(State::Retired),
            Word::Abort => state(State::Abort),
            Word::Report => self.watch.address(),
            Word::LimitNs => limit_ns(self.watch.limit),
            // A kernel that asks for these is refused when its instance is made.
            Word::NetworkComm | Word::NetworkWindow | Word::NetworkSignal(_) => 0,
            Word::Record => self.record.as_ref().map_or(0, Record::address),
        };
        self.abi.words.iter().map(word).collect()
    }

    fn sym(&self, sym: Sym) -> u32 {
        match sym {
            Sym::M => self.launch.shape.m,
            Sym::N => self.launch.shape.n,
            Sym::K => self.launch.shape.k,
            Sym::Shard => self.shard,
            Sym::World => self.launch.world,
            Sym::Rank => self.rank,
            Sym::Ctas => self.launch.ctas,
            // The kernel reads these itself.
            Sym::Epoch | Sym::Cta => 0,
        }
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
