//! Pauses by chance, which a schedule asks for to shake a protocol.

use super::Kernel;
use crate::context::{Int, Is};
use crate::error::Error;
use crate::nvvm::special;
use flux_ir::abi::Word;
use flux_ir::program::{Op, Sym};

/// One of so many statements is paused ahead of: 2 to this power.
const ONE_OF: u32 = 3;

impl<'c> Kernel<'c, '_> {
    /// Begins the draws of this warp: others in each launch, on each rank, in each CTA and warp, and
    /// the same whenever that launch is repeated.
    pub(super) fn draw_pauses(&mut self) {
        if self.program.jitter == 0 {
            return;
        }
        let rank = match self.plan.abi.word(Word::Sym(Sym::Rank)) {
            Some(_) => self.sym(Sym::Rank),
            None => self.cx.int(0),
        };
        let all = [self.epoch, rank, special::ctaid(&self.cx), self.warp];
        let seed = all.into_iter().fold(self.cx.int(0), |seed, next| {
            let cx = &self.cx;
            // An odd factor, and high bits brought down: each number moves all bits of the seed.
            let mixed = cx.mul(cx.xor(seed, next), cx.uint(0x9E37_79B1));
            cx.xor(mixed, cx.shr(mixed, 15))
        });
        self.chance = Some(self.cx.cell_of(seed));
    }

    /// A pause ahead of what others may see, once in a while.
    pub(super) fn pause_ahead_of(&self, op: &Op) -> Result<(), Error> {
        let visible =
            matches!(op, Op::Wait { .. } | Op::Copy { .. } | Op::Store { .. } | Op::Signal { .. });
        match self.chance {
            Some(chance) if visible => {
                let cx = &self.cx;
                let drawn = self.draw(cx.get(chance));
                cx.set(chance, drawn);
                let due = cx.is(cx.shr(drawn, 32 - ONE_OF), Is::Eq, cx.int(0));
                cx.when(due, || {
                    let most = cx.uint(1000 * self.program.jitter);
                    let any = cx.shr(drawn, 4);
                    let whole = cx.mul(cx.udiv(any, most), most);
                    special::nanosleep(cx, cx.sub(any, whole));
                    Ok(())
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The number behind `last` (Knuth, "The Art of Computer Programming" 3.3.4, table 1, line 16);
    /// its high bits are the random ones.
    fn draw(&self, last: Int<'c>) -> Int<'c> {
        let cx = &self.cx;
        cx.add(cx.mul(last, cx.uint(1_664_525)), cx.uint(1_013_904_223))
    }
}
