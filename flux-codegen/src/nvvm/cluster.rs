//! What CTAs of a cluster do to each other (PTX ISA, "Parallel Synchronization and Communication
//! Instructions: barrier.cluster", "Data Movement and Conversion Instructions: mapa, st.async").

use crate::context::{Cx, Float, Int};

/// `barrier.cluster.arrive.relaxed`.
pub(crate) fn arrive_relaxed(cx: &Cx) {
    cx.asm(false, "barrier.cluster.arrive.relaxed.aligned;", "~{memory}", None, &[]);
}

/// `barrier.cluster.wait.acquire`: until every thread of the cluster has arrived or exited.
pub(crate) fn wait_acquire(cx: &Cx) {
    cx.asm(false, "barrier.cluster.wait.acquire.aligned;", "~{memory}", None, &[]);
}

/// `mapa`: the address in the cluster's window of what lies at `at` in CTA `of`.
pub(crate) fn mapa<'c>(cx: &Cx<'c>, at: Int<'c>, of: Int<'c>) -> Int<'c> {
    let text = "mapa.shared::cluster.u32 $0, $1, $2;";
    cx.asm(true, text, "=r,r,r", Some(cx.i32.into()), &[at.into(), of.into()])
        .expect("a result was asked for")
        .into_int_value()
}

/// `st.async` of four f32 to another CTA; its bytes count towards `barrier` there.
pub(crate) fn st_async_v4<'c>(cx: &Cx<'c>, to: Int<'c>, values: [Float<'c>; 4], barrier: Int<'c>) {
    let text = "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 \
                [$0], {$1, $2, $3, $4}, [$5];";
    let [x, y, z, w] = values;
    let args = [to.into(), x.into(), y.into(), z.into(), w.into(), barrier.into()];
    cx.asm(false, text, "r,f,f,f,f,r,~{memory}", None, &args);
}

/// `mbarrier.arrive` (release at cluster scope) at a barrier of another CTA, where `cond` is not 0.
pub(crate) fn arrive_if<'c>(cx: &Cx<'c>, barrier: Int<'c>, cond: Int<'c>) {
    let text = "{ .reg .pred p; setp.ne.u32 p, $1, 0; \
                @p mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$0]; }";
    cx.asm(false, text, "r,r,~{memory}", None, &[barrier.into(), cond.into()]);
}

/// `mbarrier.arrive` at a barrier of a CTA of the cluster, where `cond` is not 0, by who has read
/// what the barrier guards. With release at cluster scope a fence of the whole GPU would stand
/// before it; reads by `wgmma` are over once it was waited for.
pub(crate) fn arrive_read_if<'c>(cx: &Cx<'c>, barrier: Int<'c>, cond: Int<'c>) {
    let text = "{ .reg .pred p; setp.ne.u32 p, $1, 0; \
                @p mbarrier.arrive.shared::cluster.b64 _, [$0]; }";
    cx.asm(false, text, "r,r,~{memory}", None, &[barrier.into(), cond.into()]);
}

/// [`crate::nvvm::mbarrier::wait_parity`] with acquire at cluster scope: for what another CTA
/// sent.
pub(crate) fn wait_parity<'c>(cx: &Cx<'c>, barrier: Int<'c>, parity: Int<'c>) {
    let text = "{ .reg .pred p; \
                L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [$0], $1; \
                @!p bra L; }";
    cx.asm(false, text, "r,r,~{memory}", None, &[barrier.into(), parity.into()]);
}
