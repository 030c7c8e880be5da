//! Ways out of the registers for one box:
//!
//! - an own 16-bit output whose tile is made of whole boxes: through shared memory by TMA, which
//!   cuts at the edges of the tensor;
//! - other 16-bit outputs (puts, tiles of other widths): through shared memory by 16-byte stores;
//! - rows that are not aligned, ragged edges: through shared memory element by element;
//! - f32: straight from the fragment.
//!
//! Which it is depends on alignment and edges, so it is decided at run time for each box.

use super::Kernel;
use super::epilogue::{Slab, Stored, is_peer};
use crate::context::{Float, Int, Is};
use crate::error::Error;
use crate::nvvm::memory::{Leaves, Pair};
use crate::nvvm::{convert, fence, memory, stmatrix, sync, tma};
use crate::plan::PANEL;
use flux_ir::abi::{BOX_ROWS, SWIZZLE_BYTES, Word};
use flux_ir::program::{BufferKind, Completion, ValueId};
use flux_ir::{Element, Span};

/// Bytes of a staging box.
const BOX_BYTES: u32 = BOX_ROWS * SWIZZLE_BYTES;

/// Rows that [`Kernel::leave_by_elements`] has under way.
const ROWS_AT_ONCE: u32 = 4;

/// Where a store goes.
pub(super) struct Output<'c> {
    pub(super) value: ValueId,
    pub(super) span: Span,
    leaves: Leaves,
    element: Element,
    /// Address of its plane.
    base: Int<'c>,
    /// Bytes from row to row.
    pitch: Int<'c>,
    /// The row of the whole tensor its memory begins with.
    first_row: Int<'c>,
    /// Behind its last row of the whole tensor, and its last column.
    end: [Int<'c>; 2],
    /// The column of the whole tensor its memory begins with, where that is not the first.
    first_col: Option<Int<'c>>,
    /// Not 0 where rows may be written by 16 bytes.
    aligned: Int<'c>,
    /// The tensor map, where whole boxes leave by TMA.
    map: Option<Int<'c>>,
}

impl<'c> Kernel<'c, '_> {
    pub(super) fn output(&self, store: Stored<'_>) -> Result<Output<'c>, Error> {
        let cx = &self.cx;
        let Stored { stmt, to: place, value, adds } = store;
        self.span.set(stmt.span);
        let buffer = &self.program.buffers[place.buffer];
        if buffer.kind == BufferKind::Input {
            let message = format!("`{}` is read, and stored to", buffer.name);
            return Err(self.unsupported(message, "store to an output"));
        }
        let leaves = match self.program.is_flagged(place.buffer) {
            true => Leaves::Flagged,
            false if adds => Leaves::Added,
            false => Leaves::Stored,
        };
        let whole = self.plan.columns.is_multiple_of(PANEL) && buffer.element != Element::F32;
        let map = match whole && !is_peer(place) && leaves == Leaves::Stored {
            true => Some(self.map_at(place, BOX_ROWS, SWIZZLE_BYTES / buffer.element.bytes())?),
            false => None,
        };
        let first_row = self.first_row(place.buffer, &place.at)?;
        let bytes = buffer.element.bytes();
        let (mut base, mut aligned) =
            (self.plane_address(place)?, self.word(Word::Aligned(place.buffer)));
        let (mut first_col, mut end_col) = (None, self.expr(&buffer.cols)?);
        if !self.has_all_columns(place.buffer) {
            // Columns count in the whole tensor: the first lies so far ahead of memory.
            let first = self.first_col(place.buffer, &place.at)?;
            let ahead = cx.mul(cx.widen(first), cx.long(bytes.into()));
            let fits = cx.is(cx.and(cx.truncate(ahead), cx.int(15)), Is::Eq, cx.int(0));
            base = cx.sub(base, ahead);
            aligned = cx.select(fits, aligned, cx.long(0));
            end_col = cx.add(first, end_col);
            first_col = Some(first);
        }
        Ok(Output {
            value,
            span: stmt.span,
            leaves,
            element: buffer.element,
            base,
            pitch: self.word(Word::Pitch(place.buffer)),
            first_row,
            end: [cx.add(first_row, self.expr(&buffer.rows)?), end_col],
            first_col,
            aligned: cx.truncate(aligned),
            map,
        })
    }

    pub(super) fn write(
        &self,
        output: &Output<'c>,
        slab: &Slab<'c>,
        values: &[Float<'c>],
    ) -> Result<(), Error> {
        let cx = &self.cx;
        match output.element {
            Element::F32 if output.leaves == Leaves::Flagged => {
                let values: Vec<_> = values.iter().map(|&x| cx.fadd(x, cx.float(0.0))).collect();
                self.write_f32(output, slab, &values);
                Ok(())
            }
            Element::F32 => {
                self.write_f32(output, slab, values);
                Ok(())
            }
            Element::Bf16 | Element::F16 => {
                let pairs: Vec<Int> = values
                    .chunks_exact(2)
                    .map(|pair| convert::cvt_rn_x2(cx, output.element, pair[0], pair[1]))
                    .map(|pair| match output.leaves {
                        Leaves::Flagged => convert::add_zero_x2(cx, output.element, pair),
                        Leaves::Stored | Leaves::Added => pair,
                    })
                    .collect();
                let from = self.stage(&pairs);
                let elements = || self.leave_by_elements(output, slab, from);
                match output.map {
                    Some(map) => cx.either(
                        self.leaves_by_tma(output, slab),
                        || self.leave_by_tma(output, slab, map, from),
                        elements,
                    )?,
                    None => cx.either(
                        self.leaves_by_vectors(output, slab),
                        || self.leave_by_vectors(output, slab, from),
                        elements,
                    )?,
                }
                self.staged();
                Ok(())
            }
        }
    }

    /// Whether everything of the box that lies in the tensor also lies in the window, and the box
    /// begins in the tensor: a bulk store to a negative row ends in an illegal instruction (seen
    /// on an H200), unlike one beyond the last row, which is cut.
    fn leaves_by_tma(&self, output: &Output<'c>, slab: &Slab<'c>) -> Int<'c> {
        let (cx, window) = (&self.cx, slab.window);
        let end = |from, length| cx.add(from, cx.uint(length));
        let top = cx.is(cx.max(window.row_lo, output.first_row), Is::Le, slab.row);
        let bottom = cx.is(cx.min(end(slab.row, BOX_ROWS), output.end[0]), Is::Le, window.row_hi);
        let mut first = window.col_lo;
        if let Some(col) = output.first_col {
            first = cx.max(first, col);
        }
        let left = cx.is(first, Is::Le, slab.column);
        let right =
            cx.is(cx.min(end(slab.column, slab.width), output.end[1]), Is::Le, window.col_hi);
        let fits = cx.and(cx.and(top, bottom), cx.and(left, right));
        cx.and(fits, cx.nonzero(output.aligned))
    }

    /// Whether the window cuts the box between groups of 8 columns only.
    fn leaves_by_vectors(&self, output: &Output<'c>, slab: &Slab<'c>) -> Int<'c> {
        let (cx, window) = (&self.cx, slab.window);
        let left = cx.is(window.col_lo, Is::Le, slab.column);
        let end = cx.min(window.col_hi, cx.add(slab.column, cx.uint(slab.width)));
        let eights = cx.and(cx.or(slab.column, end), cx.int(7));
        let whole = cx.is(eights, Is::Eq, cx.int(0));
        cx.and(cx.and(left, whole), cx.nonzero(output.aligned))
    }

    /// The warp's own staging box that is used next, once it may be written. Yields its address.
    pub(super) fn next_box(&self) -> Int<'c> {
        let cx = &self.cx;
        let shared = &self.plan.abi.shared;
        let own = cx.mul(cx.and(self.warp, cx.int(3)), cx.uint(shared.staging * BOX_BYTES));
        let group = cx.sub(cx.shr(self.warp, 2), cx.int(1));
        let group = cx.mul(group, cx.uint(4 * shared.staging * BOX_BYTES));
        let base = cx.add(self.shared, cx.uint(shared.c));
        let base = cx.add(cx.add(base, cx.add(own, group)), cx.get(self.staging));
        if self.stores_in_bulk() {
            // The box may be written once the bulk store before last has read it. Lanes that
            // store nothing in bulk do not wait here, and it takes no branch.
            tma::wait_group(cx, Completion::Read, shared.staging - 1);
        }
        sync::bar_warp_sync(cx);
        base
    }

    /// Where this lane's rows of the 8×8 matrices of a box of `width` columns lie, up to four
    /// matrices at once: swizzled as TMA wants it, the 16-byte column index XOR the row, modulo 8.
    pub(super) fn box_places(&self, base: Int<'c>, width: u32) -> Vec<(Int<'c>, usize)> {
        let cx = &self.cx;
        let row = cx.and(self.lane, cx.int(7));
        // Lanes 0–7 name rows 0–7 of the left 8 columns, 8–15 rows 8–15, 16–31 the right ones.
        let lower = cx.and(self.lane, cx.int(8));
        let at_row = cx.add(base, cx.mul(cx.add(row, lower), cx.uint(SWIZZLE_BYTES)));
        let right = cx.and(cx.shr(self.lane, 4), cx.int(1));
        // Two matrices lie below each other in every 8 columns.
        let matrices = width / 4;
        let at = |first: u32| {
            let column = cx.add(cx.uint(first / 2), right);
            let at = cx.add(at_row, cx.shl(cx.xor(column, row), 4));
            (at, (matrices - first).min(4) as usize)
        };
        (0..matrices).step_by(4).map(at).collect()
    }

    /// Puts a box into the warp's own staging memory. Yields its address.
    fn stage(&self, pairs: &[Int<'c>]) -> Int<'c> {
        let cx = &self.cx;
        let base = self.next_box();
        let width = 4 * pairs.len() as u32;
        for ((at, _), matrices) in self.box_places(base, width).into_iter().zip(pairs.chunks(4)) {
            stmatrix::store(cx, at, matrices);
        }
        if self.stores_in_bulk() {
            fence::proxy_async_shared(cx);
        }
        sync::bar_warp_sync(cx);
        base
    }

    /// Hands the staging memory over to the next box.
    fn staged(&self) {
        let cx = &self.cx;
        if self.stores_in_bulk() {
            tma::commit_group(cx);
        }
        if self.plan.abi.shared.staging > 1 {
            cx.set(self.staging, cx.xor(cx.get(self.staging), cx.uint(BOX_BYTES)));
        }
    }

    fn leave_by_tma(
        &self,
        output: &Output<'c>,
        slab: &Slab<'c>,
        map: Int<'c>,
        from: Int<'c>,
    ) -> Result<(), Error> {
        let cx = &self.cx;
        let row = cx.sub(slab.row, output.first_row);
        cx.when(cx.is(self.lane, Is::Eq, cx.int(0)), || {
            let column = output.first_col.map_or(slab.column, |first| cx.sub(slab.column, first));
            tma::store_2d(cx, map, [column, row], from);
            Ok(())
        })
    }

    fn leave_by_vectors(
        &self,
        output: &Output<'c>,
        slab: &Slab<'c>,
        from: Int<'c>,
    ) -> Result<(), Error> {
        let (cx, window) = (&self.cx, slab.window);
        let (pieces, lanes) = (slab.width / 8, slab.lanes());
        let piece = cx.and(self.lane, cx.uint(lanes - 1));
        let column = cx.add(slab.column, cx.shl(piece, 3));
        let inside = cx.is(column, Is::Lt, window.col_hi);
        let inside = cx.and(inside, cx.is(piece, Is::Lt, cx.uint(pieces)));
        let rows_at_once = 32 / lanes;
        let mut read = Vec::new();
        for first in (0..BOX_ROWS).step_by(rows_at_once as usize) {
            let row = cx.add(cx.shr(self.lane, lanes.trailing_zeros()), cx.uint(first));
            let swizzled = cx.shl(cx.xor(piece, cx.and(row, cx.int(7))), 4);
            let at = cx.add(cx.add(from, cx.mul(row, cx.uint(SWIZZLE_BYTES))), swizzled);
            read.push((row, memory::ld_shared_v4(cx, at)));
        }
        for (row, values) in read {
            let row = cx.add(slab.row, row);
            let at = cx.add(self.row_address(output, row), cx.shl(cx.widen(column), 1));
            let wanted = cx.and(inside, self.in_rows(slab, row));
            memory::leave_v4_if(cx, (output.leaves, output.element), cx.bit(wanted), at, values);
        }
        Ok(())
    }

    /// Row by row, two columns a lane. A loop at run time: this is for edges and for rows that
    /// are not aligned, and would be most of the text if it were unrolled.
    fn leave_by_elements(
        &self,
        output: &Output<'c>,
        slab: &Slab<'c>,
        from: Int<'c>,
    ) -> Result<(), Error> {
        let (cx, window) = (&self.cx, slab.window);
        let column = cx.add(slab.column, cx.shl(self.lane, 1));
        let end = cx.min(window.col_hi, cx.add(slab.column, cx.uint(slab.width)));
        let aligned = self.pairs_aligned(output, slab);
        let piece = cx.shr(self.lane, 2);
        let within = cx.add(from, cx.shl(cx.and(self.lane, cx.int(3)), 2));
        let first = cx.cell_of(cx.int(0));
        cx.count(first, cx.uint(BOX_ROWS), cx.uint(ROWS_AT_ONCE), || {
            for row in 0..ROWS_AT_ONCE {
                let row = cx.add(cx.get(first), cx.uint(row));
                let swizzled = cx.shl(cx.xor(piece, cx.and(row, cx.int(7))), 4);
                let at = cx.add(cx.add(within, cx.mul(row, cx.uint(SWIZZLE_BYTES))), swizzled);
                let value = memory::ld_shared_u32(cx, at);
                let row = cx.add(slab.row, row);
                let at = cx.add(self.row_address(output, row), cx.shl(cx.widen(column), 1));
                let pair = Pair { at, column, end, aligned };
                let wanted = [cx.bit(self.in_rows(slab, row)), window.col_lo];
                memory::leave_pair_b16(cx, (output.leaves, output.element), pair, wanted, value);
            }
            Ok(())
        })
    }

    /// Not 0 where two columns may be written at once.
    fn pairs_aligned(&self, output: &Output<'c>, slab: &Slab<'c>) -> Int<'c> {
        let cx = &self.cx;
        let even = cx.is(cx.and(slab.column, cx.int(1)), Is::Eq, cx.int(0));
        cx.and(cx.bit(even), output.aligned)
    }

    fn row_address(&self, output: &Output<'c>, row: Int<'c>) -> Int<'c> {
        let cx = &self.cx;
        let row = cx.widen(cx.sub(row, output.first_row));
        cx.add(output.base, cx.mul(row, output.pitch))
    }

    pub(super) fn in_rows(&self, slab: &Slab<'c>, row: Int<'c>) -> Int<'c> {
        let (cx, window) = (&self.cx, slab.window);
        cx.and(cx.is(window.row_lo, Is::Le, row), cx.is(row, Is::Lt, window.row_hi))
    }

    /// Straight from the fragment: two columns of two rows at a time.
    fn write_f32(&self, output: &Output<'c>, slab: &Slab<'c>, values: &[Float<'c>]) {
        let cx = &self.cx;
        let column = self.lane_column(slab);
        let offset = cx.shl(cx.widen(column), 2);
        let (end, aligned) = (slab.window.col_hi, self.pairs_aligned(output, slab));
        let rows = self.lane_rows(slab).map(|row| {
            let at = cx.add(self.row_address(output, row), offset);
            let wanted = [cx.bit(self.in_rows(slab, row)), slab.window.col_lo];
            (Pair { at, column, end, aligned }, wanted)
        });
        for (step, values) in (0..).step_by(8).zip(values.chunks_exact(4)) {
            for (&(pair, wanted), both) in rows.iter().zip(values.chunks_exact(2)) {
                memory::leave_pair_f32(cx, output.leaves, (pair, step), wanted, [both[0], both[1]]);
            }
        }
    }
}
