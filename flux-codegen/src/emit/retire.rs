//! The end of a CTA, and of the grid.

use super::statement::Role;
use super::{END_BARRIER, Kernel};
use crate::context::Is;
use crate::error::Error;
use crate::nvvm::{memory, sync, tma};
use flux_ir::abi::{WARPGROUP, Word};
use flux_ir::program::{Completion, Scope, Sym};

impl Kernel<'_, '_> {
    /// Counts this CTA as finished; the last one runs the exit list and advances the epoch.
    /// A kernel that meets no peer has neither.
    pub(super) fn retire(&self) -> Result<(), Error> {
        let cx = &self.cx;
        if !self.program.communicates() && self.plan.exit.is_empty() {
            if self.stores_in_bulk() {
                // Shared memory outlives what still reads it.
                tma::wait_group(cx, Completion::Read, 0);
            }
            return Ok(());
        }
        if self.stores_in_bulk() {
            tma::wait_group(cx, Completion::Performed, 0);
        }
        sync::bar_sync(cx, END_BARRIER, self.program.consumers.warpgroups() * WARPGROUP);
        let one = cx.is(self.tid, Is::Eq, cx.uint(WARPGROUP));
        cx.when(one, || {
            let last = cx.sub(self.sym(Sym::Ctas), cx.int(1));
            // Acquire and release: what any CTA of the grid did comes before the exit list.
            let before = memory::atom_inc(cx, self.word(Word::Retired), last);
            cx.when(cx.is(before, Is::Eq, last), || {
                let others = memory::ld_relaxed_sys(cx, self.word(Word::Abort));
                cx.set(self.aborted, cx.or(cx.get(self.aborted), others));
                self.statements(self.plan.exit, Role::Exit)?;
                memory::st_release(cx, Scope::Sys, self.word(Word::Epoch), self.epoch);
                Ok(())
            })
        })
    }
}
