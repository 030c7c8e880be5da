//! Bulk copies and bulk tensor copies (PTX ISA, "Data Movement and Conversion Instructions: Bulk Copy,
//! Tensor Copy"). Both are asynchronous and go by the async proxy; whoever sees them completed sees what
//! they wrote by the generic one as well ("Asynchronous copy: Async Proxy").

use crate::context::{Cx, Int};
use flux_ir::Element;
use flux_ir::program::Completion;

/// `cp.async.bulk` from global to shared memory: `bytes`, a multiple of 16, between addresses that are,
/// and which count towards `barrier`.
pub(crate) fn load<'c>(cx: &Cx<'c>, to: Int<'c>, from: Int<'c>, bytes: Int<'c>, barrier: Int<'c>) {
    let text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes \
                [$0], [$1], $2, [$3];";
    let args = [to, from, bytes, barrier].map(Into::into);
    cx.asm(false, text, "r,l,r,r,~{memory}", None, &args);
}

/// `cp.async.bulk` from shared to global memory, in the current bulk group: as [`load`].
pub(crate) fn store<'c>(cx: &Cx<'c>, to: Int<'c>, from: Int<'c>, bytes: Int<'c>) {
    let text = "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;";
    cx.asm(false, text, "l,r,r,~{memory}", None, &[to.into(), from.into(), bytes.into()]);
}

/// `cp.reduce.async.bulk` with `.add`: as [`store`], but adds each element to what lies there (relaxed,
/// at GPU scope, each by itself). Sums of 16-bit elements keep subnormals (`noftz`), as it demands.
pub(crate) fn add<'c>(cx: &Cx<'c>, element: Element, to: Int<'c>, from: Int<'c>, bytes: Int<'c>) {
    let kind = match element {
        Element::F32 => "f32",
        Element::Bf16 => "noftz.bf16",
        Element::F16 => "noftz.f16",
    };
    let text =
        format!("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{kind} [$0], [$1], $2;");
    cx.asm(false, &text, "l,r,r,~{memory}", None, &[to.into(), from.into(), bytes.into()]);
}

/// `cp.async.bulk.tensor.2d` from global to shared memory; its bytes count towards `barrier`.
/// `map` is the generic address of the tensor map; coordinates are column, row.
pub(crate) fn load_2d<'c>(
    cx: &Cx<'c>,
    to: Int<'c>,
    map: Int<'c>,
    [column, row]: [Int<'c>; 2],
    barrier: Int<'c>,
) {
    let text = "cp.async.bulk.tensor.2d.shared::cluster.global.tile\
                .mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], [$4];";
    let args = [to.into(), map.into(), column.into(), row.into(), barrier.into()];
    cx.asm(false, text, "r,l,r,r,r,~{memory}", None, &args);
}

/// The policy of `createpolicy.fractional.L2::evict_first` for all of what is loaded, as compilers
/// encode it: it is opaque to the PTX ISA.
const EVICT_FIRST: i64 = 0x12F0_0000_0000_0000;

/// [`load_2d`] of what is read once: it leaves the L2 cache first.
pub(crate) fn load_2d_evict_first<'c>(
    cx: &Cx<'c>,
    to: Int<'c>,
    map: Int<'c>,
    [column, row]: [Int<'c>; 2],
    barrier: Int<'c>,
) {
    let text = "cp.async.bulk.tensor.2d.shared::cluster.global.tile\
                .mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1, {$2, $3}], [$4], $5;";
    let policy = cx.long(EVICT_FIRST);
    let args = [to, map, column, row, barrier, policy].map(Into::into);
    cx.asm(false, text, "r,l,r,r,r,l,~{memory}", None, &args);
}

/// [`load_2d`] to the same place in both CTAs of a cluster; its bytes count towards the barrier that
/// lies where `barrier` does in each.
pub(crate) fn load_2d_both<'c>(
    cx: &Cx<'c>,
    to: Int<'c>,
    map: Int<'c>,
    [column, row]: [Int<'c>; 2],
    barrier: Int<'c>,
) {
    let text = "{ .reg .b16 all; mov.b16 all, 3; cp.async.bulk.tensor.2d.shared::cluster.global\
                .tile.mbarrier::complete_tx::bytes.multicast::cluster \
                [$0], [$1, {$2, $3}], [$4], all; }";
    let args = [to.into(), map.into(), column.into(), row.into(), barrier.into()];
    cx.asm(false, text, "r,l,r,r,r,~{memory}", None, &args);
}

/// `cp.async.bulk.tensor.2d` from shared to global memory, in the current bulk group.
pub(crate) fn store_2d<'c>(cx: &Cx<'c>, map: Int<'c>, [column, row]: [Int<'c>; 2], from: Int<'c>) {
    let text = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group \
                [$0, {$1, $2}], [$3];";
    let args = [map.into(), column.into(), row.into(), from.into()];
    cx.asm(false, text, "l,r,r,r,~{memory}", None, &args);
}

/// `cp.async.bulk.commit_group`.
pub(crate) fn commit_group(cx: &Cx) {
    cx.asm(false, "cp.async.bulk.commit_group;", "~{memory}", None, &[]);
}

/// `cp.async.bulk.wait_group`: until at most `pending` groups are left whose sources are still
/// read (`.read`), or whose writes are not yet performed.
pub(crate) fn wait_group(cx: &Cx, completion: Completion, pending: u32) {
    let read = match completion {
        Completion::Read => ".read",
        Completion::Performed | Completion::Delivered => "",
    };
    let text = format!("cp.async.bulk.wait_group{read} {pending};");
    cx.asm(false, &text, "~{memory}", None, &[]);
}

/// `cp.async.bulk.prefetch.L2` where `cond` is not 0: `bytes` from `at`, multiples of 16.
pub(crate) fn prefetch_if<'c>(cx: &Cx<'c>, cond: Int<'c>, at: Int<'c>, bytes: Int<'c>) {
    let text = "{ .reg .pred p; setp.ne.u32 p, $0, 0; \
                @p cp.async.bulk.prefetch.L2.global [$1], $2; }";
    cx.asm(false, text, "r,l,r,~{memory}", None, &[cond.into(), at.into(), bytes.into()]);
}

/// `prefetch.tensormap`.
pub(crate) fn prefetch_map<'c>(cx: &Cx<'c>, map: Int<'c>) {
    cx.asm(false, "prefetch.tensormap [$0];", "l,~{memory}", None, &[map.into()]);
}
