//! Stream-K: CTAs take parts of tiles, as [`flux_ir::stream`] deals them.
//!
//! Nothing of a Program without signals tells which CTA does a tile, or that one does all of it,
//! so this is a matter of the machine. Sums go through memory of the kernel's own, warp to warp
//! and register by register, each with a flag that the receiver takes down. The grid is resident
//! at once, as every grid of a rank, and what is waited for was begun before anything waited; the
//! wait has a limit all the same, as every wait for another CTA.

use super::Kernel;
use super::consumer::Fragment;
use crate::context::{Cell, Float, Int, Is};
use crate::error::Error;
use crate::nvvm::{memory, sync, tma};
use flux_ir::abi::{WARPGROUP, Word};
use flux_ir::program::{Completion, Scope, Sym};
use flux_ir::stream::ITEM_WORDS;

/// Bytes of one access.
const PIECE: u32 = 16;

/// Pieces under way at once.
const AT_ONCE: usize = 4;

/// A tile, or a part of it.
#[derive(Clone, Copy)]
pub(super) struct Item<'c> {
    pub(super) tile: Int<'c>,
    pub(super) first: Int<'c>,
    pub(super) steps: Int<'c>,
    /// What becomes of the sums, as [`flux_ir::stream::encode`] says it.
    part: Int<'c>,
    /// The tile's row of the tile table.
    row: [Int<'c>; 4],
}

impl<'c> Kernel<'c, '_> {
    /// Runs `each` for every item of this CTA, with the number of its turn.
    pub(super) fn items(
        &self,
        each: impl FnOnce(Int<'c>, Item<'c>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let cx = &self.cx;
        let turn = cx.cell_of(cx.int(0));
        let (next, take, done) = (cx.block("next_item"), cx.block("item"), cx.block("no_item"));
        cx.jump(next);
        cx.at(next);
        let item = self.item(cx.get(turn));
        cx.branch(cx.nonzero(item.steps), take, done);
        cx.at(take);
        *self.item_row.borrow_mut() = Some(item.row);
        let taken = each(cx.get(turn), item);
        *self.item_row.borrow_mut() = None;
        taken?;
        cx.set(turn, cx.add(cx.get(turn), cx.int(1)));
        cx.jump(next);
        cx.at(done);
        Ok(())
    }

    fn item(&self, turn: Int<'c>) -> Item<'c> {
        let cx = &self.cx;
        let width = cx.truncate(self.word(Word::ItemsOfCta));
        let index = cx.add(cx.mul(self.sym(Sym::Cta), width), turn);
        let bytes = cx.mul(cx.widen(index), cx.long(4 * ITEM_WORDS as i64));
        let at = cx.add(self.word(Word::Items), bytes);
        let [tile, first, steps, part] = memory::ld_global_nc_v4(cx, at);
        let row = memory::ld_global_nc_v4(cx, cx.add(at, cx.long(16)));
        Item { tile, first, steps, part, row }
    }

    /// Whether the sums of an item go to another CTA.
    pub(super) fn is_sent(&self, item: &Item<'c>) -> Int<'c> {
        self.cx.nonzero(self.cx.and(item.part, self.cx.int(1)))
    }

    /// Hands the sums of a part to the CTA that has the tile's end.
    pub(super) fn send(&self, item: &Item<'c>, fragment: &Fragment<'c>) {
        let cx = &self.cx;
        let slot = cx.shr(item.part, 16);
        let at = self.sums_at(slot);
        let all: Vec<Float> = fragment.concat();
        for (piece, values) in all.chunks_exact(4).enumerate() {
            let values = [values[0], values[1], values[2], values[3]];
            memory::st_global_v4_f32(cx, self.piece(at, piece), values);
        }
        if self.stores_in_bulk() {
            // Nothing is under way: a part is sent before anything is stored.
            tma::wait_group(cx, Completion::Performed, 0);
        }
        sync::bar_warp_sync(cx);
        let first = cx.is(self.lane, Is::Eq, cx.int(0));
        memory::st_release_if(cx, Scope::Gpu, cx.bit(first), self.flag_at(slot), cx.int(1));
    }

    /// The sums of a whole tile: those that others sent are added in their order.
    pub(super) fn add_parts(
        &self,
        item: &Item<'c>,
        fragment: &Fragment<'c>,
    ) -> Result<Fragment<'c>, Error> {
        let cx = &self.cx;
        let cells: Vec<Vec<Cell>> =
            fragment.iter().map(|list| list.iter().map(|_| cx.cell(cx.f32)).collect()).collect();
        let flat: Vec<Cell> = cells.concat();
        for (&cell, &value) in flat.iter().zip(fragment.iter().flatten()) {
            cx.set_f(cell, value);
        }
        let first = cx.shr(item.part, 16);
        let count = cx.and(cx.shr(item.part, 1), cx.uint(0x7fff));
        let slot = cx.cell_of(first);
        cx.count(slot, cx.add(first, count), cx.int(1), || {
            let flag = self.flag_at(cx.get(slot));
            self.wait_for_sums(flag, cx.get(slot))?;
            let at = self.sums_at(cx.get(slot));
            let pieces: Vec<_> = flat.chunks_exact(4).enumerate().collect();
            for some in pieces.chunks(AT_ONCE) {
                let load =
                    |&(piece, _): &(usize, _)| memory::ld_global_v4_f32(cx, self.piece(at, piece));
                let loaded: Vec<_> = some.iter().map(load).collect();
                for ((_, cells), values) in some.iter().zip(loaded) {
                    for (&cell, value) in cells.iter().zip(values) {
                        cx.set_f(cell, cx.fadd(cx.get_f(cell), value));
                    }
                }
            }
            // For the next launch, which begins when this one has ended.
            sync::bar_warp_sync(cx);
            let first = cx.is(self.lane, Is::Eq, cx.int(0));
            memory::st_relaxed_gpu_if(cx, cx.bit(first), flag, cx.int(0));
            Ok(())
        })?;
        Ok(cells.iter().map(|list| list.iter().map(|&cell| cx.get_f(cell)).collect()).collect())
    }

    /// This thread's place in the sums of a slot.
    fn sums_at(&self, slot: Int<'c>) -> Int<'c> {
        let cx = &self.cx;
        let bytes = cx.long(self.plan.abi.part_bytes.into());
        let base = cx.add(self.word(Word::Parts), cx.mul(cx.widen(slot), bytes));
        cx.add(base, cx.widen(cx.mul(self.sharer(), cx.uint(PIECE))))
    }

    fn piece(&self, at: Int<'c>, piece: usize) -> Int<'c> {
        let threads = self.program.consumers.sharing() * WARPGROUP;
        self.cx.add(at, self.cx.long(i64::from(piece as u32 * threads * PIECE)))
    }

    /// This warp's flag of a slot: flags lie behind the sums of all.
    fn flag_at(&self, slot: Int<'c>) -> Int<'c> {
        let cx = &self.cx;
        let bytes = cx.long(self.plan.abi.part_bytes.into());
        let sums = cx.mul(cx.widen(self.sym(Sym::Ctas)), bytes);
        let warps = self.program.consumers.sharing() * WARPGROUP / 32;
        let warp = cx.add(cx.mul(slot, cx.uint(warps)), cx.shr(self.sharer(), 5));
        cx.add(cx.add(self.word(Word::Parts), sums), cx.shl(cx.widen(warp), 2))
    }

    /// This thread among those that share a tile.
    pub(super) fn sharer(&self) -> Int<'c> {
        let cx = &self.cx;
        let threads = self.program.consumers.sharing() * WARPGROUP;
        let thread = cx.sub(self.tid, cx.uint(WARPGROUP));
        cx.and(thread, cx.uint(threads - 1))
    }
}
