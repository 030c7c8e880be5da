//! Whether regions lie in their buffers, and fit each other.

use crate::arena::Handle;
use crate::diagnostic::Rule;
use crate::eval::{Extent, Loads, RankView, Region, TileRange};
use crate::program::{BufferId, Program, Transposed, ValueId, ValueOp};
use std::ops::Range;

/// The rule broken, and how.
pub(super) type Fault = (Rule, String);

/// How far the products of the tile at hand have got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reduction {
    /// The visit they belong to: [`crate::eval::Event::visit`].
    visit: u32,
    /// The columns of the left operand behind the last one reduced.
    upto: u32,
    /// How many have been reduced.
    done: u32,
    whole: bool,
}

/// What a value reads beside its tile's own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    /// An accumulator.
    Acc,
    Cols(BufferId),
    Rows(BufferId),
    Load(BufferId),
    /// What the enclosing sum gave.
    Sum,
    /// A tile in workspace.
    Loaded,
}

/// The extents of every buffer on every rank, and what each value reads.
#[derive(Debug)]
pub(super) struct Regions<'a, 'p> {
    views: &'a [RankView<'p>],
    program: &'p Program,
    /// By rank and buffer: extents, and the row and column of the whole tensor that memory begins
    /// with.
    extents: Vec<(Extent, [u32; 2])>,
    reads: Vec<Vec<Read>>,
}

impl<'a, 'p> Regions<'a, 'p> {
    pub(super) fn new(views: &'a [RankView<'p>]) -> Self {
        let program = views[0].program;
        let mut extents = Vec::new();
        for view in views {
            let buffers = program.buffers.handles();
            let first = |id| [view.first_row(id, view.rank), view.first_col(id, view.rank)];
            extents.extend(buffers.map(|id| (view.extent(id), first(id))));
        }
        let mut reads: Vec<Vec<Read>> = Vec::new();
        for entry in program.values.values() {
            let of = |id: &ValueId| reads[id.index()].clone();
            let mut all = match &entry.op {
                ValueOp::Const(_) | ValueOp::Scalar(_) => vec![],
                ValueOp::Acc(_) => vec![Read::Acc],
                ValueOp::Sum => vec![Read::Sum],
                ValueOp::Cols(buffer) => vec![Read::Cols(*buffer)],
                ValueOp::Rows(buffer) => vec![Read::Rows(*buffer)],
                ValueOp::Load(buffer) => vec![Read::Load(*buffer)],
                ValueOp::Loaded(_) => vec![Read::Loaded],
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

    fn extent(&self, rank: u32, buffer: BufferId) -> (Extent, [u32; 2]) {
        self.extents[rank as usize * self.program.buffers.len() + buffer.index()]
    }

    /// Rows and columns in memory of a region that lies in its buffer.
    pub(super) fn in_memory(&self, region: &Region) -> [Range<u32>; 2] {
        let (_, [row, col]) = self.extent(region.rank, region.buffer);
        let (rows, cols) = (&region.rows, &region.cols);
        [rows.start - row..rows.end - row, cols.start - col..cols.end - col]
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
        let (extent, [row, col]) = self.extent(region.rank, region.buffer);
        let rows = u64::from(row)..u64::from(row) + extent.rows;
        let cols = u64::from(col)..u64::from(col) + extent.cols;
        let inside = u64::from(region.plane) < extent.planes
            && rows.start <= region.rows.start.into()
            && rows.end >= region.rows.end.into()
            && cols.start <= region.cols.start.into()
            && cols.end >= region.cols.end.into();
        if inside {
            return Ok(());
        }
        let plane =
            if extent.planes == 1 { String::new() } else { format!("{{{}}}", region.plane) };
        let fault = format!(
            "reaches for rows {:?}, columns {:?} of `%{name}{plane}`, which has rows {rows:?}, columns {cols:?}",
            region.rows, region.cols
        );
        Err((Rule::Bounds, fault))
    }

    /// Operands of a tile: its rows, its columns, and the reduction: whole, or a slice that
    /// begins where the last one of this tile ended.
    pub(super) fn mainloop(
        &self,
        event: (&TileRange, u32),
        products: &[(Region, Region, Transposed)],
        reduction: &mut Reduction,
    ) -> Result<(), Fault> {
        let (tile, visit) = event;
        if reduction.visit != visit {
            *reduction = Reduction { visit, ..Reduction::default() };
        }
        let mut slice = None;
        for (a, b, transposed) in products {
            self.inside(a)?;
            self.inside(b)?;
            let (rows, reduced) = transposed.left(&a.rows, &a.cols);
            let (cols, depth) = transposed.right(&b.rows, &b.cols);
            // An empty region may be of no rank at all.
            let of = a.rank.min(self.views.len() as u32 - 1);
            let extent = self.extent(of, a.buffer).0;
            let all = transposed.left(extent.rows, extent.cols).1 as u32;
            if (rows, cols) != (&tile.rows, &tile.cols) {
                let fault = format!(
                    "multiplies rows {rows:?} by columns {cols:?} for the tile of rows {:?}, columns {:?}",
                    tile.rows, tile.cols
                );
                return Err((Rule::Dimensions, fault));
            }
            if reduced != depth || *slice.get_or_insert((reduced, all)) != (reduced, all) {
                let fault = format!(
                    "reduces {reduced:?} of a left and {depth:?} of a right operand, expected the same of all"
                );
                return Err((Rule::Dimensions, fault));
            }
        }
        slice.map_or(Ok(()), |(slice, all)| self.slice(slice, all, reduction))
    }

    /// Slices of a reduction follow each other, the first column behind the last, once around: cut
    /// between k-steps, so tensor cores do the same steps as for the whole.
    fn slice(&self, slice: &Range<u32>, all: u32, reduction: &mut Reduction) -> Result<(), Fault> {
        let k = self.program.tile.k;
        let ends_well = |end: u32| end == all || end.is_multiple_of(k);
        // Behind a whole one another may begin.
        let before = if reduction.whole { 0 } else { reduction.done };
        let next = if reduction.upto == all { 0 } else { reduction.upto };
        let follows = if before == 0 { ends_well(slice.start) } else { slice.start == next };
        let done = before.saturating_add(slice.len() as u32);
        if slice.is_empty() {
            // A sum over nothing is whole from the beginning.
            reduction.whole |= all == 0;
            return Ok(());
        }
        if follows && slice.end <= all && ends_well(slice.end) && done <= all {
            *reduction = Reduction { upto: slice.end, done, whole: done == all, ..*reduction };
            return Ok(());
        }
        let fault = format!(
            "reduces columns {slice:?} of {all} behind {} that end at {}, expected slices that follow each other, once around, and end at a multiple of {k} or at {all}",
            reduction.done, reduction.upto
        );
        Err((Rule::Dimensions, fault))
    }

    /// A value of the accumulators is there when the tile at hand has been reduced whole.
    pub(super) fn reduced(
        &self,
        value: ValueId,
        visit: u32,
        reduction: &Reduction,
    ) -> Result<(), Fault> {
        if reduction.visit == visit && reduction.whole
            || !self.reads[value.index()].contains(&Read::Acc)
        {
            return Ok(());
        }
        let done = if reduction.visit == visit { reduction.done } else { 0 };
        let fault = format!("uses the products of a tile of which {done} columns were reduced");
        Err((Rule::Dimensions, fault))
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
                Read::Sum | Read::Acc | Read::Loaded => continue,
            };
            self.inside(&Region { rank, buffer, plane: 0, rows, cols })?;
        }
        Ok(())
    }

    /// What of workspace is read for the elements of `of`: all of them, each.
    pub(super) fn loads(&self, loads: &Loads, of: &Region) -> Result<(), Fault> {
        if of.is_empty() {
            return Ok(());
        }
        for (_, region) in loads {
            if (&region.rows, &region.cols) != (&of.rows, &of.cols) {
                let fault = format!(
                    "uses rows {:?}, columns {:?} of a tile that was loaded in rows {:?}, columns {:?} of them",
                    of.rows, of.cols, region.rows, region.cols
                );
                return Err((Rule::Dimensions, fault));
            }
            self.inside(region)?;
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
