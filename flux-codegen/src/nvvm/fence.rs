//! Fences (PTX ISA, "Parallel Synchronization and Communication Instructions: membar / fence").

use crate::context::Cx;

/// `fence.proxy.async`: orders generic accesses before asynchronous (bulk) ones, in every state
/// space.
pub(crate) fn proxy_async(cx: &Cx) {
    cx.asm(false, "fence.proxy.async;", "~{memory}", None, &[]);
}

/// `fence.acq_rel.sys`: what was done and seen before comes ahead of every strong write behind it.
pub(crate) fn acq_rel_sys(cx: &Cx) {
    cx.asm(false, "fence.acq_rel.sys;", "~{memory}", None, &[]);
}

/// `fence.mbarrier_init`: what other CTAs of the cluster do at a barrier comes behind its making.
pub(crate) fn mbarrier_init_cluster(cx: &Cx) {
    cx.asm(false, "fence.mbarrier_init.release.cluster;", "~{memory}", None, &[]);
}

/// `fence.proxy.async.shared::cta`: the same, of the CTA's shared memory alone.
pub(crate) fn proxy_async_shared(cx: &Cx) {
    cx.asm(false, "fence.proxy.async.shared::cta;", "~{memory}", None, &[]);
}
