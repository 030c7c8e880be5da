//! Ranks whose memory is not mapped: a launch as collectives of NCCL around the kernel of one rank.
//!
//! Nothing overlaps here. What is gathered or exchanged comes first; then the kernel runs as that of a
//! world of one rank does, over all that has come; then what is summed or exchanged goes
//! (`docs/multi-process.md`).

mod comm;
mod plan;

pub(crate) use comm::Comms;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::kernel::Loaded;
use crate::meeting::Meeting;
use crate::session::Members;
use crate::source::Source;
use crate::tensor::{Arg, Data, OnDevice, TensorArg, kind};
use crate::world::Rank;
use crate::{Definition, Schedule};
use comm::Comm;
use flux_ir::Shape;
use flux_ir::arena::Handle;
use flux_ir::kernel::ParamId;
use flux_ir::lower::usage::{Dim, Dims};
use flux_ir::tile::{Ranks, own_rows};
use flux_runtime::nccl::Nccl;
use flux_runtime::{DeviceBuffer, Rows, Span, Stream};
use plan::Way;
use std::sync::Arc;
use std::time::Duration;

/// A kernel on a rank whose peers' memory is not mapped.
#[derive(Debug)]
pub(crate) struct Apart {
    ways: Vec<Way>,
    /// The kernel, on the only rank of a world of its own.
    solo: Loaded,
}

/// What one shape needs.
#[derive(Debug)]
pub(crate) struct Spread {
    comm: Arc<Comm>,
    pieces: Vec<Piece>,
}

/// A parameter in the hands of all ranks.
#[derive(Debug)]
struct Piece {
    way: Way,
    /// Rows that each rank owns, and columns.
    rows: Vec<u64>,
    cols: Vec<u64>,
    /// What the kernel of one rank takes in its place.
    whole: Option<OnDevice>,
    /// Rows and columns of that.
    extent: [usize; 2],
    /// What is exchanged, one rank's part behind the other.
    packed: Option<OnDevice>,
}

impl Apart {
    /// # Errors
    /// [`Error::Unsupported`] for a kernel that is more than collectives around a kernel of one rank.
    pub(crate) fn new(
        definition: &'static Definition,
        source: &Source,
        schedule: Option<&Schedule>,
        solo: &Rank,
    ) -> Result<Apart, Error> {
        let ways = plan::ways(&source.kernel, &source.usage).map_err(|problem| {
            let problem = format!(
                "ranks whose memory is not mapped move data by collectives alone: {problem}"
            );
            Error::Unsupported { kernel: definition.name.into(), problem }
        })?;
        Ok(Apart { ways, solo: Loaded::new(definition, solo, schedule)? })
    }

    /// Makes what a shape needs. All members meet here.
    pub(crate) fn spread(
        &self,
        source: &Source,
        (gpu, meeting, members): (&Gpu, &Meeting, &Members),
        (shape, lengths): (Shape, &[u32]),
        limit: Duration,
    ) -> Result<Spread, Error> {
        let comms = gpu.comms().expect("memory that is not mapped has communicators");
        let comm = comms.of(members, (meeting, gpu.device(meeting.rank())), limit)?;
        gpu.collect();
        let place = (meeting.rank(), members.len());
        let piece = |(&way, index): (&Way, usize)| {
            let param = ParamId::new(index);
            let dims = source.usage.dims(param);
            let element = source.kernel.tensor(param).map_or(0, |(_, element, _)| element.bytes());
            let (rows, cols) = dims.map_or((Vec::new(), Vec::new()), |dims| {
                parts(dims, source.usage.own_rows(), (shape, lengths), place.1)
            });
            Piece::new(way, (rows, cols), (gpu, place.0), u64::from(element))
        };
        let pieces = self.ways.iter().zip(0..).map(piece).collect::<Result<Vec<_>, Error>>();
        let pieces = meeting.together("room for collectives", pieces)?;
        Ok(Spread { comm, pieces })
    }

    /// Enqueues a launch with arguments in the order of the kernel's parameters.
    pub(crate) fn launch(
        &self,
        spread: &Spread,
        (gpu, rank): (&Gpu, u32),
        name: &str,
        args: &mut [Arg<'_>],
    ) -> Result<(), Error> {
        let stream = gpu.stream(rank);
        if gpu.is_capturing(rank) || stream.is_capturing()? {
            let problem =
                "collectives between ranks whose memory is not mapped are not recorded".into();
            return Err(Error::Unsupported { kernel: name.into(), problem });
        }
        let pieces = &spread.pieces;
        let mut own: Vec<Arg<'_>> =
            pieces.iter().zip(&*args).map(|(piece, arg)| piece.stand_in(arg)).collect();
        self.solo.follow(&stream);
        // Whatever is refused, or waits for the stream, comes ahead of the first collective.
        self.solo.ready(&own).inspect_err(|refused| {
            // The next launch of this rank must not be paired with this one of its peers.
            spread.comm.fail(refused.clone());
        })?;
        let number = gpu.count_launch(rank);
        let launched = spread.comm.launch(name, &stream, |nccl| {
            for (piece, arg) in pieces.iter().zip(&*args) {
                piece.bring(nccl, &stream, arg, rank)?;
            }
            self.solo.launch(&mut own)?;
            for (piece, arg) in pieces.iter().zip(&*args) {
                piece.send(nccl, &stream, arg, rank)?;
            }
            Ok(())
        });
        // The kernel of one rank has marked what it wrote as its own.
        for arg in &*args {
            if let Arg::Tensor(TensorArg { data: Data::Target(target), .. }) = arg {
                target.memory().mark(number);
            }
        }
        if let Err(error) = &launched {
            spread.comm.fail(error.clone());
            gpu.spoil(rank, error.clone());
        }
        launched
    }
}

/// Rows and columns of a parameter, of each of `world` ranks: shards, or all of them.
fn parts(
    dims: Dims,
    own_rows_alone: bool,
    (shape, lengths): (Shape, &[u32]),
    world: u32,
) -> (Vec<u64>, Vec<u64>) {
    let even = |extent: u32| -> Vec<u64> {
        (0..world).map(|rank| own_rows(extent, Ranks { rank, world }).into()).collect()
    };
    let of = |dim| match dim {
        Dim::M if !lengths.is_empty() => lengths.iter().copied().map(u64::from).collect(),
        Dim::M => even(shape.m),
        Dim::N => even(shape.n),
        Dim::K => even(shape.k),
        Dim::One => vec![1; world as usize],
    };
    // Whole columns are one part, which every rank has.
    let whole = |dim| of(dim).iter().sum();
    let cols = match own_rows_alone {
        true => of(dims.cols),
        false => vec![whole(dims.cols)],
    };
    (of(dims.rows), cols)
}

impl Piece {
    fn new(
        way: Way,
        (rows, cols): (Vec<u64>, Vec<u64>),
        (gpu, rank): (&Gpu, u32),
        element: u64,
    ) -> Result<Piece, Error> {
        let sum = |of: &[u64]| of.iter().sum::<u64>();
        let extent = match way {
            Way::Own | Way::Reduced => [0, 0],
            Way::Gathered | Way::Scattered => [sum(&rows), sum(&cols)],
            Way::Received | Way::Sent => [rows[rank as usize], sum(&cols)],
        };
        let bytes = extent[0] * extent[1] * element;
        let room = || {
            let buffer = DeviceBuffer::alloc(gpu.device(rank), bytes)?;
            Ok::<_, Error>(OnDevice::new(buffer, gpu, rank))
        };
        let whole = match way {
            Way::Own | Way::Reduced => None,
            _ => Some(room()?),
        };
        let packed = match way {
            Way::Received | Way::Sent => Some(room()?),
            _ => None,
        };
        let extent = extent.map(|extent| extent as usize);
        Ok(Piece { way, rows, cols, whole, extent, packed })
    }

    /// What the kernel of one rank takes in the place of `arg`.
    fn stand_in<'a>(&'a self, arg: &'a Arg<'_>) -> Arg<'a> {
        match arg {
            Arg::Scalar(value) => Arg::Scalar(*value),
            Arg::Tensor(tensor) => {
                let element = tensor.element;
                let is_written = matches!(tensor.data, Data::Target(_));
                let ([rows, cols], memory) = match (&self.whole, memory(arg)) {
                    (Some(whole), _) => (self.extent, whole),
                    (None, Some(own)) => ([tensor.rows, tensor.cols], own),
                    (None, None) => unreachable!("tensors lie where their rank computes"),
                };
                let data = if is_written { Data::Target(memory) } else { Data::Device(memory) };
                Arg::Tensor(TensorArg { element, rows, cols, data })
            }
        }
    }

    /// Enqueues what has to come ahead of the kernel.
    fn bring(&self, nccl: &Nccl, stream: &Stream, arg: &Arg<'_>, rank: u32) -> Result<(), Error> {
        let (Some(whole), Some((own, element))) = (&self.whole, span(arg)?) else { return Ok(()) };
        let (whole, own_cols) = (whole.buffer().span(), self.cols.get(rank as usize));
        match (self.way, own_cols, &self.packed) {
            (Way::Gathered, ..) => {
                let lengths = self.bytes_of_rows(self.extent[1] as u64 * element);
                Ok(nccl.gather_parts(stream, (whole, own), &lengths)?)
            }
            (Way::Received, Some(cols), Some(packed)) => {
                let from = cut(own, &self.bytes_of_rows(cols * element))?;
                let to = self.packed_parts(packed, rank, element)?;
                nccl.exchange(stream, &to, &from)?;
                self.repack(stream, (whole, &to), element, rank, false)
            }
            _ => Ok(()),
        }
    }

    /// Enqueues what has to go behind the kernel.
    fn send(&self, nccl: &Nccl, stream: &Stream, arg: &Arg<'_>, rank: u32) -> Result<(), Error> {
        let Some((own, element)) = span(arg)? else { return Ok(()) };
        let Arg::Tensor(tensor) = arg else { return Ok(()) };
        let (kind, own_cols) = (kind(tensor.element), self.cols.get(rank as usize));
        match (self.way, &self.whole, &self.packed, own_cols) {
            (Way::Reduced, ..) => Ok(nccl.all_reduce(stream, own, own, kind)?),
            (Way::Scattered, Some(whole), ..) => {
                let lengths = self.bytes_of_rows(self.extent[1] as u64 * element);
                Ok(nccl.sum_parts(stream, (own, whole.buffer().span()), &lengths, kind)?)
            }
            (Way::Sent, Some(whole), Some(packed), Some(cols)) => {
                let from = self.packed_parts(packed, rank, element)?;
                self.repack(stream, (whole.buffer().span(), &from), element, rank, true)?;
                let to = cut(own, &self.bytes_of_rows(cols * element))?;
                Ok(nccl.exchange(stream, &to, &from)?)
            }
            _ => Ok(()),
        }
    }

    /// Bytes of the rows that each rank owns, where a row has so many.
    fn bytes_of_rows(&self, row: u64) -> Vec<u64> {
        self.rows.iter().map(|rows| rows * row).collect()
    }

    /// The own rows of each rank's columns, one behind the other.
    fn packed_parts<'p>(
        &self,
        packed: &'p OnDevice,
        rank: u32,
        element: u64,
    ) -> Result<Vec<Span<'p>>, Error> {
        let own = self.rows[rank as usize];
        let lengths: Vec<u64> = self.cols.iter().map(|cols| own * cols * element).collect();
        cut(packed.buffer().span(), &lengths)
    }

    /// Copies between whole rows and the parts of them that ranks have columns of.
    fn repack(
        &self,
        stream: &Stream,
        (whole, parts): (Span<'_>, &[Span<'_>]),
        element: u64,
        rank: u32,
        to_parts: bool,
    ) -> Result<(), Error> {
        let (rows, pitch_bytes) = (self.rows[rank as usize], self.extent[1] as u64 * element);
        let mut offset = 0;
        for (&part, cols) in parts.iter().zip(&self.cols) {
            let row = cols * element;
            if rows * row > 0 {
                let span = whole.part(offset, whole.bytes() - offset)?;
                let (wide, narrow) =
                    (Rows { span, pitch_bytes }, Rows { span: part, pitch_bytes: row });
                let (to, from) = if to_parts { (narrow, wide) } else { (wide, narrow) };
                stream.copy_2d(to, from, row, rows)?;
            }
            offset += row;
        }
        Ok(())
    }
}

/// Consecutive parts of these lengths.
fn cut<'s>(whole: Span<'s>, lengths: &[u64]) -> Result<Vec<Span<'s>>, Error> {
    let mut offset = 0;
    let part = |&length: &u64| {
        let part = whole.part(offset, length)?;
        offset += length;
        Ok(part)
    };
    lengths.iter().map(part).collect()
}

fn memory<'a>(arg: &'a Arg<'_>) -> Option<&'a OnDevice> {
    match arg {
        Arg::Tensor(TensorArg { data: Data::Device(own) | Data::Target(own), .. }) => Some(own),
        Arg::Tensor(_) | Arg::Scalar(_) => None,
    }
}

/// The memory of a tensor, and the bytes of an element of it. A caller's buffer may go on behind the tensor.
fn span<'a>(arg: &'a Arg<'_>) -> Result<Option<(Span<'a>, u64)>, Error> {
    let (Arg::Tensor(tensor), Some(memory)) = (arg, memory(arg)) else { return Ok(None) };
    let element = u64::from(tensor.element.bytes());
    let bytes = tensor.rows as u64 * tensor.cols as u64 * element;
    Ok(Some((memory.buffer().span().part(0, bytes)?, element)))
}
