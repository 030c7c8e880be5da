//! Copies by bulk instructions, which one lane of one warp feeds to the TMA unit: from memory of any
//! rank into a slot of a ring in shared memory, and from there to memory of any rank.
//!
//! Loads run ahead of stores. A slot is stored once its mbarrier says that its load is over, and loaded
//! again once its store has read it; no thread touches it, so all of this goes by the async proxy. What
//! bulk instructions cannot move (PTX ISA, "cp.async.bulk": addresses and sizes are multiples of 16) the
//! lanes of the warp copy with ordinary loads and stores.

use super::Kernel;
use super::copy::{Lines, Moved, Share};
use crate::context::{Cell, Int, Is};
use crate::error::Error;
use crate::nvvm::memory::Leaves;
use crate::nvvm::{fence, mbarrier, sync, tma};
use flux_ir::abi::{RING_SLOT_BYTES, RING_SLOTS};
use flux_ir::program::{Completion, Place};

/// The warp that feeds the TMA unit: the one behind the loading thread's.
pub(super) const FEEDER: u32 = 1;

/// Loads that are under way while a slot is stored; the others of the ring are being read.
const AHEAD: u32 = 2;

/// Rows on both sides of a copy, all of whose addresses, and whose width, are multiples of 16.
struct Rows<'c> {
    from: Lines<'c>,
    to: Lines<'c>,
    count: Int<'c>,
    /// Bytes of each.
    width: Int<'c>,
}

/// How rows are cut: a slot takes `high` of them, or `wide` bytes of one.
struct Cut<'c> {
    high: Int<'c>,
    wide: Int<'c>,
}

/// The part of rows that goes through a slot next.
struct Cursor<'c> {
    row: Cell<'c>,
    /// In bytes.
    column: Cell<'c>,
}

impl<'c> Kernel<'c, '_> {
    /// Makes the ring's mbarriers. No other warp knows them.
    pub(super) fn begin_ring(&self) {
        let cx = &self.cx;
        let made = cx.when(cx.is(self.lane, Is::Eq, cx.int(0)), || {
            for slot in 0..RING_SLOTS {
                mbarrier::init(cx, self.ring_barrier(cx.uint(slot)), 1);
            }
            fence::proxy_async_shared(cx);
            Ok::<(), Error>(())
        });
        made.expect("nothing in it fails");
        sync::bar_warp_sync(cx);
    }

    /// Leaves no store behind that still reads shared memory.
    pub(super) fn end_ring(&self) {
        tma::wait_group(&self.cx, Completion::Performed, 0);
    }

    /// Copies a region, unless the launch was aborted.
    pub(super) fn copy_in_bulk(&self, from: &Place, to: &Place, adds: bool) -> Result<(), Error> {
        let cx = &self.cx;
        let live = cx.is(cx.get(self.aborted), Is::Eq, cx.int(0));
        cx.when(live, || {
            let kind = self.program.buffers[to.buffer].element;
            let element = kind.bytes();
            let moved = Moved { leaves: if adds { Leaves::Added } else { Leaves::Stored }, kind };
            let (from, target) = (self.lines(from, element)?, self.lines(to, element)?);
            let cols = cx.sub(self.expr(&to.cols.hi)?, self.expr(&to.cols.lo)?);
            let cols = cx.max(cols, cx.int(0));
            let rows = cx.sub(self.expr(&to.rows.hi)?, self.expr(&to.rows.lo)?);
            let bytes = cx.mul(cols, cx.uint(element));
            let aligned = from.are_aligned_with(cx, &target);
            let width = cx.select(aligned, cx.and(bytes, cx.int(!15)), cx.int(0));
            let some = cx.and(cx.is(cx.int(0), Is::Lt, width), cx.is(cx.int(0), Is::Lt, rows));
            let first = cx.is(self.lane, Is::Eq, cx.int(0));
            cx.when(cx.and(first, some), || {
                let rows = Rows { from, to: target, count: rows, width };
                self.through_ring(&rows.joined(self), moved)
            })?;
            // Whether a load gave up, for all lanes.
            cx.set(self.aborted, sync::any(cx, cx.get(self.aborted)));
            let rest =
                (cx.udiv(width, cx.uint(moved.unit())), cx.udiv(bytes, cx.uint(moved.unit())));
            cx.when(cx.is(rest.0, Is::Lt, rest.1), || {
                let row = cx.cell_of(cx.int(0));
                let share = Share { thread: self.lane, threads: 32 };
                cx.count(row, rows, cx.int(1), || {
                    let places = [&from, &target].map(|lines| lines.row(cx, cx.get(row)));
                    self.copy_rest(moved, places, (share, rest))
                })?;
                // Bulk copies that follow come behind this.
                fence::proxy_async(cx);
                Ok(())
            })
        })
    }

    /// Loads and stores part by part, some loads ahead.
    fn through_ring(&self, rows: &Rows<'c>, moved: Moved) -> Result<(), Error> {
        let cx = &self.cx;
        let slot = cx.uint(RING_SLOT_BYTES);
        let wide = cx.min(rows.width, slot);
        let cut = Cut { wide, high: cx.udiv(slot, wide) };
        let parts =
            |length: Int<'c>, part: Int<'c>| cx.udiv(cx.add(length, cx.sub(part, cx.int(1))), part);
        let count = cx.mul(parts(rows.count, cut.high), parts(rows.width, cut.wide));
        let cursor = || Cursor { row: cx.cell_of(cx.int(0)), column: cx.cell_of(cx.int(0)) };
        let (loads, stores) = (cursor(), cursor());
        let (turn, ahead) = (cx.cell_of(cx.int(0)), cx.uint(AHEAD));
        let ring = self.ring.expect("an agent on tma has a ring");
        let begin = cx.get(ring);
        cx.count(turn, cx.add(count, ahead), cx.int(1), || {
            let now = cx.get(turn);
            cx.when(cx.is(now, Is::Lt, count), || {
                let number = cx.add(begin, now);
                // The slot may be loaded once the store before last has read it.
                tma::wait_group(cx, Completion::Read, RING_SLOTS - AHEAD - 1);
                let (barrier, to) = (self.ring_barrier(slot_of(self, number)), self.slot(number));
                let (high, wide) = loads.part(self, rows, &cut);
                mbarrier::arrive_expect_tx(cx, barrier, cx.mul(high, wide));
                loads.each(self, (&rows.from, &cut), high, |at, within| {
                    tma::load(cx, cx.add(to, within), at, wide, barrier);
                })?;
                loads.advance(self, rows, &cut);
                Ok(())
            })?;
            cx.when(cx.is(ahead, Is::Le, now), || {
                let number = cx.sub(cx.add(begin, now), ahead);
                self.wait_for_slot(number)?;
                let from = self.slot(number);
                let (high, wide) = stores.part(self, rows, &cut);
                stores.each(self, (&rows.to, &cut), high, |at, within| match moved.leaves {
                    Leaves::Stored | Leaves::Flagged => {
                        tma::store(cx, at, cx.add(from, within), wide)
                    }
                    Leaves::Added => tma::add(cx, moved.kind, at, cx.add(from, within), wide),
                })?;
                tma::commit_group(cx);
                stores.advance(self, rows, &cut);
                Ok(())
            })
        })?;
        cx.set(ring, cx.add(begin, count));
        Ok(())
    }

    /// Waits until slot `number`, counted since the launch began, is loaded, unless this launch has
    /// given up.
    fn wait_for_slot(&self, number: Int<'c>) -> Result<(), Error> {
        let cx = &self.cx;
        let waiting = cx.is(cx.get(self.aborted), Is::Eq, cx.int(0));
        cx.when(waiting, || {
            let slot = slot_of(self, number);
            let parity = cx.and(cx.shr(number, RING_SLOTS.trailing_zeros()), cx.int(1));
            self.wait_for_load(self.ring_barrier(slot), parity, slot);
            Ok(())
        })
    }

    /// Where the slot of a number lies in shared memory.
    fn slot(&self, number: Int<'c>) -> Int<'c> {
        self.shared_at(self.plan.abi.shared.ring, slot_of(self, number), RING_SLOT_BYTES)
    }

    /// The mbarrier that says a slot is loaded.
    fn ring_barrier(&self, slot: Int<'c>) -> Int<'c> {
        self.shared_at(self.plan.abi.shared.ring_barriers, slot, 8)
    }
}

/// The slot that is taken as number so and so.
fn slot_of<'c>(kernel: &Kernel<'c, '_>, number: Int<'c>) -> Int<'c> {
    kernel.cx.and(number, kernel.cx.uint(RING_SLOTS - 1))
}

impl<'c> Rows<'c> {
    /// As one, where they follow each other in memory on both sides.
    fn joined(self, kernel: &Kernel<'c, '_>) -> Rows<'c> {
        let cx = &kernel.cx;
        let width = cx.widen(self.width);
        let apart = cx.or(cx.xor(self.from.pitch, width), cx.xor(self.to.pitch, width));
        let apart = cx.nonzero(apart);
        let all = cx.mul(self.width, self.count);
        Rows {
            count: cx.select(apart, self.count, cx.int(1)),
            width: cx.select(apart, self.width, all),
            ..self
        }
    }
}

impl<'c> Cursor<'c> {
    /// Rows of the part, and bytes of each.
    fn part(&self, kernel: &Kernel<'c, '_>, rows: &Rows<'c>, cut: &Cut<'c>) -> (Int<'c>, Int<'c>) {
        let cx = &kernel.cx;
        let high = cx.min(cut.high, cx.sub(rows.count, cx.get(self.row)));
        (high, cx.min(cut.wide, cx.sub(rows.width, cx.get(self.column))))
    }

    /// Does something with each of `high` rows: with its address, and its offset in the slot.
    fn each(
        &self,
        kernel: &Kernel<'c, '_>,
        (lines, cut): (&Lines<'c>, &Cut<'c>),
        high: Int<'c>,
        with: impl FnOnce(Int<'c>, Int<'c>),
    ) -> Result<(), Error> {
        let cx = &kernel.cx;
        let first = lines.row(cx, cx.get(self.row));
        let first = cx.add(first, cx.widen(cx.get(self.column)));
        let (at, within) = (cx.cell_of(first), cx.cell_of(cx.int(0)));
        let end = cx.mul(high, cut.wide);
        cx.count(within, end, cut.wide, || {
            with(cx.get(at), cx.get(within));
            cx.set(at, cx.add(cx.get(at), lines.pitch));
            Ok(())
        })
    }

    /// Goes on to the next part.
    fn advance(&self, kernel: &Kernel<'c, '_>, rows: &Rows<'c>, cut: &Cut<'c>) {
        let cx = &kernel.cx;
        let column = cx.add(cx.get(self.column), cut.wide);
        let ends = cx.is(rows.width, Is::Le, column);
        cx.set(self.column, cx.select(ends, cx.int(0), column));
        let row = cx.get(self.row);
        cx.set(self.row, cx.select(ends, cx.add(row, cut.high), row));
    }
}
