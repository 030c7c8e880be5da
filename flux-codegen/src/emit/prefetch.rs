//! What an epilogue reads of matrices is brought to the L2 cache while the tile is multiplied: at
//! the end of a launch nothing else hides the way from memory.

use super::Kernel;
use crate::context::Is;
use crate::error::Error;
use crate::nvvm::tma;
use flux_ir::abi::{WARPGROUP, Word};
use flux_ir::program::{At, BufferId, ValueOp};

impl<'c> Kernel<'c, '_> {
    /// Asks for the rows of the tile at hand, one a thread of those that share it.
    pub(super) fn prefetch_inputs(&self) -> Result<(), Error> {
        if self.plan.products.is_empty() {
            // The loads themselves come at once.
            return Ok(());
        }
        let mut asked: Vec<BufferId> = Vec::new();
        for entry in self.program.values.values() {
            if let ValueOp::Load(buffer) = entry.op
                && !asked.contains(&buffer)
            {
                asked.push(buffer);
                self.prefetch(buffer)?;
            }
        }
        Ok(())
    }

    fn prefetch(&self, id: BufferId) -> Result<(), Error> {
        let cx = &self.cx;
        let (buffer, product) = (&self.program.buffers[id], &self.plan.products[0]);
        let (rows, cols) = (product.left().0, product.right().0);
        let (first, end) = (self.expr(&rows.lo)?, self.expr(&rows.hi)?);
        let memory_first = self.first_row(id, &At::Own)?;
        let memory_end = cx.add(memory_first, self.expr(&buffer.rows)?);
        let (base, pitch) = (self.word(Word::Address(id)), self.word(Word::Pitch(id)));
        let bytes = buffer.element.bytes();
        let from = cx.mul(self.expr(&cols.lo)?, cx.uint(bytes));
        let length = cx.sub(cx.mul(self.expr(&cols.hi)?, cx.uint(bytes)), from);
        let length = cx.and(length, cx.uint(!15));
        let bits = cx.or(cx.truncate(cx.or(base, pitch)), from);
        let aligned = cx.is(cx.and(bits, cx.int(15)), Is::Eq, cx.int(0));
        let some = cx.and(aligned, cx.is(cx.int(0), Is::Lt, length));
        let threads = self.program.consumers.sharing() * WARPGROUP;
        for turn in (0..self.program.tile.m).step_by(threads as usize) {
            let row = cx.add(cx.add(first, cx.uint(turn)), self.sharer());
            let below = cx.is(row, Is::Lt, cx.min(end, memory_end));
            let inside = cx.and(below, cx.is(memory_first, Is::Le, row));
            let row = cx.mul(cx.widen(cx.sub(row, memory_first)), pitch);
            let at = cx.add(cx.add(base, row), cx.widen(from));
            tma::prefetch_if(cx, cx.bit(cx.and(inside, some)), at, length);
        }
        Ok(())
    }
}
