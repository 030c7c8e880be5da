//! The times of an instrumented kernel. Nothing of this is emitted into any other.

use super::Kernel;
use crate::context::{Int, Is};
use crate::error::Error;
use crate::nvvm::{memory, special};
use crate::plan::index;
use flux_ir::Balance;
use flux_ir::abi::{RECORD_BYTES, Stamp, WARPGROUP, Word};
use flux_ir::program::{Expr, VarId};

impl<'c> Kernel<'c, '_> {
    /// Notes when the CTA began: from here on, [`Kernel::stamp`] writes.
    pub(super) fn begin_record(&mut self) -> Result<(), Error> {
        if self.program.balance != Balance::Tiles {
            let message = "tiles that CTAs share have no times of their own";
            return Err(self.unsupported(message, "record it with `balance = tiles`"));
        }
        self.started = Some(special::globaltimer(&self.cx));
        Ok(())
    }

    /// Writes the time at which this thread is here, for the tile at hand.
    pub(super) fn stamp(&self, stamp: Stamp) {
        if self.started.is_some() {
            self.write_stamp(stamp, special::globaltimer(&self.cx));
        }
    }

    /// As [`Kernel::stamp`], by one thread of a consumer warpgroup; where a step is given, only at
    /// the first.
    pub(super) fn stamp_once(&self, stamp: Stamp, step: Option<Int<'c>>) {
        if self.started.is_none() {
            return;
        }
        let cx = &self.cx;
        let thread = cx.and(self.tid, cx.uint(WARPGROUP - 1));
        let is_first = cx.is(cx.or(thread, step.unwrap_or(cx.int(0))), Is::Eq, cx.int(0));
        let emitted = cx.when(is_first, || {
            self.stamp(stamp);
            Ok::<(), Error>(())
        });
        emitted.expect("stores of times are no statement that can be refused");
    }

    /// Writes who does the tile at hand, and since when.
    pub(super) fn stamp_cta(&self) {
        if let Some(started) = self.started {
            self.write_stamp(Stamp::Started, started);
            self.write_stamp(Stamp::Cta, self.cx.widen(special::ctaid(&self.cx)));
        }
    }

    /// Writes when the first slice of the tile at hand was there.
    pub(super) fn stamp_first_slice(&self, var: VarId, from: &Expr) -> Result<(), Error> {
        if self.started.is_none() {
            return Ok(());
        }
        let (cx, first) = (&self.cx, self.expr(from)?);
        cx.when(cx.is(cx.get(self.vars[index(var)]), Is::Eq, first), || {
            self.stamp(Stamp::Arrived);
            Ok(())
        })
    }

    fn write_stamp(&self, stamp: Stamp, value: Int<'c>) {
        let cx = &self.cx;
        let tile = cx.get(self.vars[index(self.plan.tiles.var)]);
        let offset = cx.add(cx.mul(tile, cx.uint(RECORD_BYTES)), cx.uint(8 * stamp as u32));
        memory::st_u64(cx, cx.add(self.word(Word::Record), cx.widen(offset)), value);
    }
}
