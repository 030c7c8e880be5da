//! Whether regions lie in their buffers, and fit each other.

use crate::arena::Handle;
use crate::diagnostic::Rule;
use crate::eval::{Extent, RankView, Region, TileRange};
use crate::program::{BufferId, Program, ValueId, ValueOp};
use std::ops::Range;

/// The rule broken, and how.
pub(super) type Fault = (Rule, String);

/// How the epilogue reads a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    Cols(BufferId),
    Rows(BufferId),
    Load(BufferId),
    /// What the enclosing sum gave.
    Sum,
}

/// The extents of every buffer on every rank, and what each value reads.
#[derive(Debug)]
pub(super) struct Regions<'a, 'p> {
    views: &'a [RankView<'p>],
    program: &'p Program,
    /// By rank and buffer: extents, and the row of the whole tensor that memory begins with.
    extents: Vec<(Extent, u32)>,
    reads: Vec<Vec<Read>>,
}

impl<'a, 'p> Regions<'a, 'p> {
    pub(super) fn new(views: &'a [RankView<'p>]) -> Self {
        let program = views[0].program;
        let mut extents = Vec::new();
        for view in views {
            let buffers = program.buffers.handles();
            extents.extend(buffers.map(|id| (view.extent(id), view.first_row(id, view.rank))));
        }
        let mut reads: Vec<Vec<Read>> = Vec::new();
        for entry in program.values.values() {
            let of = |id: &ValueId| reads[id.index()].clone();
            let mut all = match &entry.op {
                ValueOp::Acc(_) | ValueOp::Const(_) | ValueOp::Scalar(_) => vec![],
                ValueOp::Sum => vec![Read::Sum],
                ValueOp::Cols(buffer) => vec![Read::Cols(*buffer)],
                ValueOp::Rows(buffer) => vec![Read::Rows(*buffer)],
                ValueOp::Load(buffer) => vec![Read::Load(*buffer)],
                ValueOp::Unary(_, x) | ValueOp::Cast(x, _) => of(x),
                ValueOp::Binary(_, x, y) => [of(x), of(y)].concat(),
            };
            all.dedup();
            reads.push(all);
        }
        Regions { views, program, extents, reads }
    }

    pub(super) fn view(&self, rank: u32) -> &'a RankView<'p> {
        &self.views[rank as usize]
    }

    fn extent(&self, rank: u32, buffer: BufferId) -> (Extent, u32) {
        self.extents[rank as usize * self.program.buffers.len() + buffer.index()]
    }

    /// Rows in memory of a region that lies in its buffer.
    pub(super) fn memory_rows(&self, region: &Region) -> Range<u32> {
        let (_, first) = self.extent(region.rank, region.buffer);
        region.rows.start - first..region.rows.end - first
    }

    /// Whether a region that holds an element lies in its buffer.
    pub(super) fn inside(&self, region: &Region) -> Result<(), Fault> {
        if region.is_empty() {
            return Ok(());
        }
        let name = &self.program.buffers[region.buffer].name;
        if region.rank as usize >= self.views.len() {
            let fault = format!("reaches for `%{name}` on rank {}", region.rank);
            return Err((Rule::Bounds, fault));
        }
        let (extent, first) = self.extent(region.rank, region.buffer);
        let rows = u64::from(first)..u64::from(first) + extent.rows;
        let inside = u64::from(region.plane) < extent.planes
            && rows.start <= region.rows.start.into()
            && rows.end >= region.rows.end.into()
            && extent.cols >= region.cols.end.into();
        if inside {
            return Ok(());
        }
        let plane =
            if extent.planes == 1 { String::new() } else { format!("{{{}}}", region.plane) };
        let fault = format!(
            "reaches for rows {:?}, columns {:?} of `%{name}{plane}`, which has rows {rows:?}, columns 0..{}",
            region.rows, region.cols, extent.cols
        );
        Err((Rule::Bounds, fault))
    }

    /// Operands of a tile: its rows, its columns, and the whole reduction.
    pub(super) fn mainloop(
        &self,
        tile: &TileRange,
        products: &[(Region, Region, bool)],
    ) -> Result<(), Fault> {
        for (a, b, transposed) in products {
            self.inside(a)?;
            self.inside(b)?;
            let (cols, depth) = if *transposed { (&b.rows, &b.cols) } else { (&b.cols, &b.rows) };
            // An empty region may be of no rank at all.
            let of = a.rank.min(self.views.len() as u32 - 1);
            let all = 0..self.extent(of, a.buffer).0.cols as u32;
            if (&a.rows, cols) != (&tile.rows, &tile.cols) {
                let fault = format!(
                    "multiplies rows {:?} by columns {cols:?} for the tile of rows {:?}, columns {:?}",
                    a.rows, tile.rows, tile.cols
                );
                return Err((Rule::Dimensions, fault));
            }
            if (&a.cols, depth) != (&all, &all) {
                let fault = format!(
                    "reduces {:?} of the left and {depth:?} of the right operand, expected {all:?}",
                    a.cols
                );
                return Err((Rule::Dimensions, fault));
            }
        }
        Ok(())
    }

    /// A store of a part of the tile at hand.
    pub(super) fn store(&self, tile: &TileRange, to: &Region) -> Result<(), Fault> {
        let within =
            |part: &Range<u32>, all: &Range<u32>| all.start <= part.start && part.end <= all.end;
        if to.is_empty() || within(&to.rows, &tile.rows) && within(&to.cols, &tile.cols) {
            return self.inside(to);
        }
        let fault = format!(
            "stores rows {:?}, columns {:?} of the tile of rows {:?}, columns {:?}",
            to.rows, to.cols, tile.rows, tile.cols
        );
        Err((Rule::Dimensions, fault))
    }

    /// What `value` reads of the tensors of `rank` for the elements of `of`.
    pub(super) fn operands(&self, rank: u32, value: ValueId, of: &Region) -> Result<(), Fault> {
        if of.is_empty() {
            return Ok(());
        }
        for read in &self.reads[value.index()] {
            let (buffer, rows, cols) = match read {
                Read::Cols(buffer) => (*buffer, 0..1, of.cols.clone()),
                Read::Rows(buffer) => (*buffer, of.rows.clone(), 0..1),
                Read::Load(buffer) => (*buffer, of.rows.clone(), of.cols.clone()),
                Read::Sum => continue,
            };
            self.inside(&Region { rank, buffer, plane: 0, rows, cols })?;
        }
        Ok(())
    }

    /// A store of what depends on the last sum, within the elements that were summed.
    pub(super) fn store_of_sum(
        &self,
        value: ValueId,
        to: &Region,
        summed: Option<&Region>,
    ) -> Result<(), Fault> {
        let Some(sum) = summed.filter(|_| self.reads[value.index()].contains(&Read::Sum)) else {
            return Ok(());
        };
        let within = |part: &Range<u32>, all: &Range<u32>| {
            part.is_empty() || (all.start <= part.start && part.end <= all.end)
        };
        if within(&to.rows, &sum.rows) && within(&to.cols, &sum.cols) {
            return Ok(());
        }
        let fault = format!(
            "stores rows {:?}, columns {:?} of a sum of rows {:?}, columns {:?}",
            to.rows, to.cols, sum.rows, sum.cols
        );
        Err((Rule::Dimensions, fault))
    }

    /// Contributions to a sum, all of the same elements.
    pub(super) fn sum(&self, rank: u32, own: ValueId, from: &[Region]) -> Result<(), Fault> {
        for region in from {
            self.inside(region)?;
            if (&region.rows, &region.cols) != (&from[0].rows, &from[0].cols) {
                let fault = "sums contributions of different elements".into();
                return Err((Rule::Dimensions, fault));
            }
        }
        from.first().map_or(Ok(()), |region| self.operands(rank, own, region))
    }

    /// A copy between regions of the same elements: rows and columns of the whole tensor.
    pub(super) fn copy(&self, from: &Region, to: &Region) -> Result<(), Fault> {
        self.inside(from)?;
        self.inside(to)?;
        if from.is_empty() && to.is_empty() || (&from.rows, &from.cols) == (&to.rows, &to.cols) {
            return Ok(());
        }
        let fault = format!(
            "copies rows {:?}, columns {:?} to rows {:?}, columns {:?}: expected the same elements",
            from.rows, from.cols, to.rows, to.cols
        );
        Err((Rule::Dimensions, fault))
    }
}
