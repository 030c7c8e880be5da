//! Waits with a time limit.
//!
//! The first thread of a launch whose wait runs out of time claims the abort word, writes the
//! report, and goes on. Every other wait sees the abort word and goes on as well, so that all
//! pipelines drain and the kernel returns: a trap would lose the CUDA context.

use super::Kernel;
use crate::context::{Block, Cell, Int, Is};
use crate::error::Error;
use crate::nvvm::{fence, mbarrier, memory, special, sync, tma};
use flux_ir::Consumers;
use flux_ir::abi::{BULK_COPY, Report, SHARED_SUMS, Word};
use flux_ir::arena::Handle;
use flux_ir::program::{At, Completion, Engine, Expr, Range, Scope, SignalId};

/// Polls between two looks at the clock and the abort word: a poll takes about a microsecond.
const POLLS: u32 = 16;

/// What a wait waits for.
pub(super) struct Awaited<'e> {
    pub(super) signal: SignalId,
    pub(super) slots: &'e Range,
    pub(super) target: &'e Expr,
    pub(super) scope: Scope,
}

/// Slots that one thread looks at together: a look takes as long as a poll, whatever their number.
const TOGETHER: u32 = 8;

/// Looks before a thread waits for each slot in turn, with its limit: some milliseconds.
const LOOKS: u32 = 4096;

impl<'c> Kernel<'c, '_> {
    /// One thread waits for every slot.
    pub(super) fn wait_thread(&self, awaited: &Awaited<'_>) -> Result<(), Error> {
        let cx = &self.cx;
        let (first, end) = (self.expr(&awaited.slots.lo)?, self.expr(&awaited.slots.hi)?);
        let wait = || self.wait_slots(awaited, first, cx.int(1));
        // Tiles of few rows hold many shards. Others wait for one or two, and their loading threads
        // have no registers for looks.
        let is_one = *awaited.slots == Range::one(awaited.slots.lo.clone());
        let remote = self.program.is_raised_remotely(awaited.signal);
        if is_one || remote || self.program.consumers != Consumers::Single {
            return wait();
        }
        let left = cx.cell_of(cx.int(1));
        let several = cx.is(cx.add(first, cx.int(1)), Is::Lt, end);
        let few = cx.is(end, Is::Le, cx.add(first, cx.uint(TOGETHER)));
        // A launch that has given up waits for nothing.
        let waiting = cx.is(cx.get(self.aborted), Is::Eq, cx.int(0));
        let together = cx.and(cx.and(several, few), waiting);
        cx.when(together, || self.look(awaited, (first, end), left))?;
        cx.when(cx.nonzero(cx.get(left)), wait)
    }

    /// Looks at slots `first..end` together until all are there, and leaves 0 in `left`: one after the
    /// other, they would take a poll each once the last has come. One fence then acquires what all of
    /// them released (PTX ISA, "Release and Acquire Patterns"). Gives up early.
    fn look(
        &self,
        awaited: &Awaited<'_>,
        (first, end): (Int<'c>, Int<'c>),
        left: Cell<'c>,
    ) -> Result<(), Error> {
        let cx = &self.cx;
        let target = self.expr(awaited.target)?;
        let array = self.signal_address(&At::Own, awaited.signal, cx.int(0))?;
        let last = cx.sub(end, cx.int(1));
        let each: Vec<Int> = (0..TOGETHER)
            .map(|index| cx.min(cx.add(first, cx.uint(index)), last))
            .map(|slot| cx.add(array, cx.shl(cx.widen(slot), 2)))
            .collect();
        let (looks, most) = (cx.cell_of(cx.int(0)), cx.uint(LOOKS));
        cx.count(looks, most, cx.int(1), || {
            let seen: Vec<Int> = each.iter().map(|&at| memory::ld_relaxed_sys(cx, at)).collect();
            // Wrap-safe, as in a wait: negative where one is behind.
            let behind = seen.into_iter().map(|seen| cx.sub(seen, target));
            let least = behind.reduce(|a, b| cx.or(a, b)).expect("there are several");
            cx.when(cx.is(least, Is::Ge, cx.int(0)), || {
                fence::acq_rel_sys(cx);
                cx.set(left, cx.int(0));
                cx.set(looks, most);
                Ok(())
            })
        })
    }

    /// A warp waits, its lanes sharing the slots.
    pub(super) fn wait_warp(&self, awaited: &Awaited<'_>) -> Result<(), Error> {
        let cx = &self.cx;
        let first = cx.add(self.expr(&awaited.slots.lo)?, self.lane);
        self.wait_slots(awaited, first, cx.int(32))?;
        // Hands what one lane acquired, and whether it gave up, to the others.
        sync::bar_warp_sync(cx);
        cx.set(self.aborted, sync::any(cx, cx.get(self.aborted)));
        Ok(())
    }

    fn wait_slots(
        &self,
        awaited: &Awaited<'_>,
        first: Int<'c>,
        step: Int<'c>,
    ) -> Result<(), Error> {
        let cx = &self.cx;
        let slot = cx.cell_of(first);
        let end = self.expr(&awaited.slots.hi)?;
        let target = self.expr(awaited.target)?;
        cx.count(slot, end, step, || {
            let waiting = cx.is(cx.get(self.aborted), Is::Eq, cx.int(0));
            cx.when(waiting, || self.wait_slot(awaited, cx.get(slot), target))
        })
    }

    fn wait_slot(
        &self,
        awaited: &Awaited<'_>,
        slot: Int<'c>,
        target: Int<'c>,
    ) -> Result<(), Error> {
        let at = self.signal_address(&At::Own, awaited.signal, slot)?;
        let signal = awaited.signal.index() as u32;
        let report = |seen| self.report(signal, slot, seen, target);
        if self.program.is_raised_remotely(awaited.signal) {
            // Ranks of the own node raise the word, others the network's signal: each only grows, so what both
            // have come to is a counter as well.
            let poll = || {
                let seen = memory::ld_acquire(&self.cx, awaited.scope, at);
                let seen = self.cx.add(seen, self.seen_of_network(awaited.signal, slot));
                (self.cx.is(self.cx.sub(seen, target), Is::Ge, self.cx.int(0)), seen)
            };
            self.poll(poll, report);
        } else {
            self.wait_word(awaited.scope, at, target, report);
        }
        Ok(())
    }

    /// A warp waits for the sums of a slot; `flag` is its flag.
    pub(super) fn wait_for_sums(&self, flag: Int<'c>, slot: Int<'c>) -> Result<(), Error> {
        let cx = &self.cx;
        let first = cx.is(self.lane, Is::Eq, cx.int(0));
        let waiting = cx.is(cx.get(self.aborted), Is::Eq, cx.int(0));
        let wanted = cx.int(1);
        cx.when(cx.and(first, waiting), || {
            self.span.set(self.plan.span);
            let report = |seen| self.report(SHARED_SUMS, slot, seen, wanted);
            self.wait_word(Scope::Gpu, flag, wanted, report);
            Ok::<(), Error>(())
        })?;
        sync::bar_warp_sync(cx);
        cx.set(self.aborted, sync::any(cx, cx.get(self.aborted)));
        Ok(())
    }

    /// Polls the word at `at` until it has reached `target`, or until this launch gives up.
    fn wait_word(&self, scope: Scope, at: Int<'c>, target: Int<'c>, report: impl FnOnce(Int<'c>)) {
        let cx = &self.cx;
        let poll = || {
            let seen = memory::ld_acquire(cx, scope, at);
            // Wrap-safe: counters may pass 2³².
            (cx.is(cx.sub(seen, target), Is::Ge, cx.int(0)), seen)
        };
        self.poll(poll, report);
    }

    /// Polls until `look` says that what is waited for is there, or until this launch gives up; the first
    /// whose limit has passed makes its `report` of what it saw last.
    pub(super) fn poll<T>(&self, look: impl FnOnce() -> (Int<'c>, T), report: impl FnOnce(T)) {
        let cx = &self.cx;
        let others = || cx.nonzero(memory::ld_relaxed_sys(cx, self.word(Word::Abort)));
        self.wait_until(look, Some(&others), report);
    }

    /// One thread waits until a bulk load of its own is over, whose barrier that of `slot` is. It
    /// does not leave when other waits give up: the load is under way, and writes to shared memory.
    pub(super) fn wait_for_load(&self, barrier: Int<'c>, parity: Int<'c>, slot: Int<'c>) {
        let cx = &self.cx;
        let poll = || {
            let over = mbarrier::try_wait_parity(cx, barrier, parity);
            (cx.nonzero(over), over)
        };
        self.wait_until(poll, None, |seen| self.report(BULK_COPY, slot, seen, cx.int(1)));
    }

    /// Polls until it is so, or until this launch gives up: others have, where that is asked, or the
    /// limit has passed. The first whose limit has makes its `report` of what it saw last.
    fn wait_until<T>(
        &self,
        poll_once: impl FnOnce() -> (Int<'c>, T),
        others: Option<&dyn Fn() -> Int<'c>>,
        report: impl FnOnce(T),
    ) {
        let cx = &self.cx;
        let polls = cx.cell_of(cx.int(0));
        let start = cx.cell_of(cx.long(0));
        let (poll, look, clock) = (cx.block("poll"), cx.block("look"), cx.block("clock"));
        let (late, told, done) = (cx.block("late"), cx.block("report"), cx.block("done"));
        let (gave_up, not_yet) = (cx.block("gave_up"), cx.block("not_yet"));
        cx.jump(poll);

        cx.at(poll);
        let (reached, seen) = poll_once();
        cx.branch(reached, done, not_yet);

        cx.at(not_yet);
        let count = cx.add(cx.get(polls), cx.int(1));
        cx.set(polls, count);
        let due = cx.is(cx.and(count, cx.uint(POLLS - 1)), Is::Eq, cx.int(0));
        cx.branch(due, look, poll);

        cx.at(look);
        match others {
            Some(others) => cx.branch(others(), gave_up, clock),
            None => cx.jump(clock),
        }

        cx.at(clock);
        let now = special::globaltimer(cx);
        let fresh = cx.is(cx.get(start), Is::Eq, cx.long(0));
        let began = cx.select(fresh, now, cx.get(start));
        cx.set(start, began);
        let limit = self.word(Word::LimitNs);
        cx.branch(cx.is(cx.sub(now, began), Is::Below, limit), poll, late);

        cx.at(late);
        self.claim(told, gave_up);

        cx.at(told);
        report(seen);
        cx.jump(gave_up);

        cx.at(gave_up);
        cx.set(self.aborted, cx.int(1));
        cx.jump(done);

        cx.at(done);
    }

    /// Goes to `told` where no other wait of this launch has given up, else to `gave_up`.
    fn claim(&self, told: Block<'c>, gave_up: Block<'c>) {
        let cx = &self.cx;
        let earlier = memory::atom_claim(cx, self.word(Word::Abort));
        cx.branch(cx.nonzero(earlier), gave_up, told);
    }

    /// Gives this launch up; the first who does makes its `report`.
    pub(super) fn give_up(&self, report: impl FnOnce()) {
        let cx = &self.cx;
        let (told, gave_up) = (cx.block("report"), cx.block("gave_up"));
        self.claim(told, gave_up);
        cx.at(told);
        report();
        cx.jump(gave_up);
        cx.at(gave_up);
        cx.set(self.aborted, cx.int(1));
    }

    pub(super) fn report(&self, signal: u32, slot: Int<'c>, seen: Int<'c>, wanted: Int<'c>) {
        let cx = &self.cx;
        let base = self.word(Word::Report);
        let at = |word: Report| cx.add(base, cx.long(4 * word as i64));
        let span = self.span.get();
        for (word, value) in [
            (Report::Cta, special::ctaid(cx)),
            (Report::Signal, cx.uint(signal)),
            (Report::Slot, slot),
            (Report::Seen, seen),
            (Report::Wanted, wanted),
            (Report::Line, cx.uint(span.line)),
            (Report::Column, cx.uint(span.column)),
        ] {
            memory::st_relaxed_sys(cx, at(word), value);
        }
        if self.stores_in_bulk() || self.copier() == Engine::Tma {
            // Whoever reads the report finds everything stored that this thread stored before.
            tma::wait_group(cx, Completion::Performed, 0);
        }
        memory::st_release(cx, Scope::Sys, at(Report::State), cx.int(1));
    }
}
