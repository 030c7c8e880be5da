//! mbarriers in shared memory (PTX ISA, "Parallel Synchronization and Communication
//! Instructions: mbarrier").

use crate::context::{Cx, Int};

/// `mbarrier.init`: `count` arrivals complete a phase.
pub(crate) fn init<'c>(cx: &Cx<'c>, barrier: Int<'c>, count: u32) {
    let args = [barrier.into(), cx.uint(count).into()];
    cx.asm(false, "mbarrier.init.shared::cta.b64 [$0], $1;", "r,r,~{memory}", None, &args);
}

/// `mbarrier.arrive.expect_tx` (release at CTA scope): arrives, and adds `bytes` to what the
/// phase waits for.
pub(crate) fn arrive_expect_tx<'c>(cx: &Cx<'c>, barrier: Int<'c>, bytes: Int<'c>) {
    let text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;";
    cx.asm(false, text, "r,r,~{memory}", None, &[barrier.into(), bytes.into()]);
}

/// [`arrive_expect_tx`] where `cond` is not 0.
pub(crate) fn arrive_expect_tx_if<'c>(cx: &Cx<'c>, barrier: Int<'c>, bytes: u32, cond: Int<'c>) {
    let text = "{ .reg .pred p; setp.ne.u32 p, $2, 0; \
                @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1; }";
    let args = [barrier.into(), cx.uint(bytes).into(), cond.into()];
    cx.asm(false, text, "r,r,r,~{memory}", None, &args);
}

/// `mbarrier.arrive` (release at CTA scope) where `cond` is not 0.
pub(crate) fn arrive_if<'c>(cx: &Cx<'c>, barrier: Int<'c>, cond: Int<'c>) {
    let text = "{ .reg .pred p; setp.ne.u32 p, $1, 0; \
                @p mbarrier.arrive.shared::cta.b64 _, [$0]; }";
    cx.asm(false, text, "r,r,~{memory}", None, &[barrier.into(), cond.into()]);
}

/// `mbarrier.try_wait.parity` once (acquire at CTA scope): not 0 where the phase of that parity is
/// complete.
pub(crate) fn try_wait_parity<'c>(cx: &Cx<'c>, barrier: Int<'c>, parity: Int<'c>) -> Int<'c> {
    let text = "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [$1], $2; \
                selp.u32 $0, 1, 0, p; }";
    let args = [barrier.into(), parity.into()];
    cx.asm(false, text, "=r,r,r,~{memory}", Some(cx.i32.into()), &args)
        .expect("a result was asked for")
        .into_int_value()
}

/// `mbarrier.try_wait.parity` until it succeeds (acquire at CTA scope).
///
/// It needs no time limit: who completes the phase is a thread of the same CTA or cluster, whose
/// other waits are limited.
pub(crate) fn wait_parity<'c>(cx: &Cx<'c>, barrier: Int<'c>, parity: Int<'c>) {
    let text = "{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; \
                @!p bra L; }";
    cx.asm(false, text, "r,r,~{memory}", None, &[barrier.into(), parity.into()]);
}
