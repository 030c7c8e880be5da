//! Copies by the copy warps of a CTA, into memory of any rank.

use super::Kernel;
use crate::context::{Cx, Int, Is};
use crate::error::Error;
use crate::nvvm::memory::{self, Access, Leaves};
use flux_ir::Element;
use flux_ir::abi::{COPY_WARPS, Word};
use flux_ir::program::Place;

/// Vectors of 16 bytes that a lane has under way: registers hold no more.
const VECTORS: u32 = 4;

/// Vectors that a warp moves in a turn.
const TURN: u32 = 32 * VECTORS;

/// What becomes of what is read.
#[derive(Clone, Copy)]
pub(super) struct Moved {
    pub(super) leaves: Leaves,
    pub(super) kind: Element,
}

impl Moved {
    /// Bytes that are moved at once behind the last vector: two of any element that is copied, one
    /// element of those that are added.
    pub(super) fn unit(self) -> u32 {
        match self.leaves {
            Leaves::Stored | Leaves::Flagged => 2,
            Leaves::Added => self.kind.bytes(),
        }
    }

    /// `again` is not 0 where another lane or turn leaves the same vector: that does no harm to
    /// what is stored, but nothing may be added twice.
    fn leave_v4<'c>(self, cx: &Cx<'c>, again: Int<'c>, at: Int<'c>, values: [Int<'c>; 4]) {
        match self.leaves {
            Leaves::Stored | Leaves::Flagged => memory::st_global_v4(cx, at, values),
            Leaves::Added => memory::red_global_v4_unless(cx, self.kind, again, at, values),
        }
    }

    fn one<'c>(self, cx: &Cx<'c>, to: Int<'c>, from: Int<'c>) {
        match self.leaves {
            Leaves::Stored | Leaves::Flagged => memory::copy_b16(cx, to, from),
            Leaves::Added => memory::add_one(cx, self.kind, to, from),
        }
    }
}

/// One side of a copy.
#[derive(Clone, Copy)]
pub(super) struct Lines<'c> {
    /// The address of its first element.
    at: Int<'c>,
    /// Bytes from row to row.
    pub(super) pitch: Int<'c>,
}

impl<'c> Lines<'c> {
    /// The address of a row.
    pub(super) fn row(&self, cx: &Cx<'c>, row: Int<'c>) -> Int<'c> {
        cx.add(self.at, cx.mul(cx.widen(row), self.pitch))
    }

    /// Whether all rows of both sides begin at multiples of 16 bytes.
    pub(super) fn are_aligned_with(&self, cx: &Cx<'c>, other: &Lines<'c>) -> Int<'c> {
        let together = cx.or(cx.or(self.at, other.at), cx.or(self.pitch, other.pitch));
        cx.is(cx.and(cx.truncate(together), cx.int(15)), Is::Eq, cx.int(0))
    }
}

/// Who copies what is left of a row: this thread of so many.
#[derive(Clone, Copy)]
pub(super) struct Share<'c> {
    pub(super) thread: Int<'c>,
    pub(super) threads: u32,
}

impl<'c> Kernel<'c, '_> {
    /// Copies this warp's share of a region, unless the launch was aborted: vectors of each row in
    /// turns, and single elements where rows do not begin at multiples of 16 bytes or end between.
    pub(super) fn copy(&self, from: &Place, to: &Place, adds: bool) -> Result<(), Error> {
        let cx = &self.cx;
        let live = cx.is(cx.get(self.aborted), Is::Eq, cx.int(0));
        cx.when(live, || {
            let kind = self.program.buffers[to.buffer].element;
            let element = kind.bytes();
            let moved = Moved { leaves: if adds { Leaves::Added } else { Leaves::Stored }, kind };
            let (source, target) = (self.lines(from, element)?, self.lines(to, element)?);
            let cols = cx.sub(self.expr(&to.cols.hi)?, self.expr(&to.cols.lo)?);
            let bytes = cx.mul(cols, cx.uint(element));
            let aligned = source.are_aligned_with(cx, &target);
            let vectors = cx.select(aligned, cx.shr(bytes, 4), cx.int(0));
            let rows = cx.sub(self.expr(&to.rows.hi)?, self.expr(&to.rows.lo)?);
            let some = cx.is(cx.int(0), Is::Lt, vectors);
            let narrow = cx.and(some, cx.is(vectors, Is::Le, cx.int(32)));
            let (first, last) = (
                cx.mul(vectors, cx.uint(16 / moved.unit())),
                cx.udiv(bytes, cx.uint(moved.unit())),
            );
            let wide = || {
                let row = cx.cell_of(cx.int(0));
                cx.count(row, rows, cx.int(1), || {
                    let places = [&source, &target].map(|lines| lines.row(cx, cx.get(row)));
                    self.copy_vectors(moved, places, vectors)?;
                    self.copy_rest(moved, places, (self.share(), (first, last)))
                })
            };
            cx.either(
                narrow,
                || self.copy_narrow(moved, [&source, &target], rows, (vectors, last)),
                wide,
            )
        })
    }

    /// This warp's share of rows of at most a vector for each lane: some rows at once, so that a warp
    /// has as much under way as of wide ones. Lanes and rows beyond the last take the last again.
    fn copy_narrow(
        &self,
        moved: Moved,
        [source, target]: [&Lines<'c>; 2],
        rows: Int<'c>,
        (vectors, last): (Int<'c>, Int<'c>),
    ) -> Result<(), Error> {
        let cx = &self.cx;
        let below = |index: Int<'c>, end: Int<'c>| cx.min(index, cx.sub(end, cx.int(1)));
        let column = cx.shl(cx.widen(below(self.lane, vectors)), 4);
        let first = cx.cell_of(cx.mul(self.copy_warp(), cx.uint(VECTORS)));
        cx.count(first, rows, cx.uint(COPY_WARPS * VECTORS), || {
            let each =
                [0, 1, 2, 3].map(|index: u32| below(cx.add(cx.get(first), cx.uint(index)), rows));
            let loaded = each.map(|row| {
                memory::ld_global_v4(cx, Access::Plain, cx.add(source.row(cx, row), column))
            });
            for ((index, row), values) in (0u32..).zip(each).zip(loaded) {
                let beyond = cx.or(
                    cx.is(vectors, Is::Le, self.lane),
                    cx.is(rows, Is::Le, cx.add(cx.get(first), cx.uint(index))),
                );
                let again = cx.select(beyond, cx.int(1), cx.int(0));
                moved.leave_v4(cx, again, cx.add(target.row(cx, row), column), values);
            }
            Ok(())
        })?;
        let whole = cx.mul(vectors, cx.uint(16 / moved.unit()));
        cx.when(cx.is(whole, Is::Lt, last), || {
            let row = cx.cell_of(cx.int(0));
            cx.count(row, rows, cx.int(1), || {
                let row = cx.get(row);
                let places = [source, target].map(|lines| lines.row(cx, row));
                self.copy_rest(moved, places, (self.share(), (whole, last)))
            })
        })
    }

    pub(super) fn lines(&self, place: &Place, element: u32) -> Result<Lines<'c>, Error> {
        let cx = &self.cx;
        let row = self.memory_row(place, self.expr(&place.rows.lo)?)?;
        let pitch = self.word(Word::Pitch(place.buffer));
        let column = match self.has_all_columns(place.buffer) {
            true => self.expr(&place.cols.lo)?,
            false => {
                let first = self.first_col(place.buffer, &place.at)?;
                cx.sub(self.expr(&place.cols.lo)?, first)
            }
        };
        let column = cx.mul(cx.widen(column), cx.long(element.into()));
        let above = cx.mul(cx.widen(row), pitch);
        Ok(Lines { at: cx.add(self.plane_address(place)?, cx.add(above, column)), pitch })
    }

    /// The number of this warp among those that copy.
    fn copy_warp(&self) -> Int<'c> {
        self.cx.sub(self.warp, self.cx.int(1))
    }

    /// This warp's share of the first `vectors` vectors of a row.
    fn copy_vectors(
        &self,
        moved: Moved,
        [from, to]: [Int<'c>; 2],
        vectors: Int<'c>,
    ) -> Result<(), Error> {
        let cx = &self.cx;
        let turn = cx.cell_of(cx.mul(self.copy_warp(), cx.uint(TURN)));
        cx.count(turn, vectors, cx.uint(COPY_WARPS * TURN), || {
            let first = cx.add(cx.get(turn), self.lane);
            let offset = |vector: Int<'c>| cx.shl(cx.widen(vector), 4);
            let load = |at| memory::ld_global_v4(cx, Access::Plain, cx.add(from, at));
            let store = |at, values| moved.leave_v4(cx, cx.int(0), cx.add(to, at), values);
            let whole = cx.is(cx.add(cx.get(turn), cx.uint(TURN)), Is::Le, vectors);
            let all = || {
                // All loads first: they wait for memory together.
                let each =
                    [0, 1, 2, 3].map(|index: u32| offset(cx.add(first, cx.uint(32 * index))));
                let loaded = each.map(load);
                each.into_iter().zip(loaded).for_each(|(at, values)| store(at, values));
                Ok(())
            };
            let some = || {
                let vector = cx.cell_of(first);
                cx.count(vector, vectors, cx.int(32), || {
                    let at = offset(cx.get(vector));
                    store(at, load(at));
                    Ok(())
                })
            };
            cx.either(whole, all, some)
        })
    }

    /// The lanes of all warps that copy.
    fn share(&self) -> Share<'c> {
        let thread = self.cx.add(self.cx.shl(self.copy_warp(), 5), self.lane);
        Share { thread, threads: 32 * COPY_WARPS }
    }

    /// A share of a row's units from the first up to the last.
    pub(super) fn copy_rest(
        &self,
        moved: Moved,
        [from, to]: [Int<'c>; 2],
        (share, (first, last)): (Share<'c>, (Int<'c>, Int<'c>)),
    ) -> Result<(), Error> {
        let cx = &self.cx;
        let element = cx.cell_of(cx.add(first, share.thread));
        cx.count(element, last, cx.uint(share.threads), || {
            let offset = cx.mul(cx.widen(cx.get(element)), cx.long(moved.unit().into()));
            moved.one(cx, cx.add(to, offset), cx.add(from, offset));
            Ok(())
        })
    }
}
