//! Barriers, votes and register hand-over (PTX ISA, "Parallel Synchronization and Communication
//! Instructions", "Miscellaneous Instructions: setmaxnreg").

use crate::context::{Cx, Int};

/// `bar.sync`: waits until `threads` threads have arrived at named barrier `id`.
pub(crate) fn bar_sync(cx: &Cx, id: u32, threads: u32) {
    cx.asm(false, &format!("bar.sync {id}, {threads};"), "~{memory}", None, &[]);
}

/// [`bar_sync`] at a barrier known at run time.
pub(crate) fn bar_sync_at<'c>(cx: &Cx<'c>, id: Int<'c>, threads: u32) {
    cx.asm(false, &format!("bar.sync $0, {threads};"), "r,~{memory}", None, &[id.into()]);
}

/// `bar.arrive`: arrives at named barrier `id` without waiting.
pub(crate) fn bar_arrive(cx: &Cx, id: u32, threads: u32) {
    cx.asm(false, &format!("bar.arrive {id}, {threads};"), "~{memory}", None, &[]);
}

/// [`bar_arrive`] at a barrier known at run time.
pub(crate) fn bar_arrive_at<'c>(cx: &Cx<'c>, id: Int<'c>, threads: u32) {
    cx.asm(false, &format!("bar.arrive $0, {threads};"), "r,~{memory}", None, &[id.into()]);
}

/// `bar.warp.sync` of all lanes: execution and memory order inside a warp.
pub(crate) fn bar_warp_sync(cx: &Cx) {
    cx.asm(false, "bar.warp.sync 0xffffffff;", "~{memory}", None, &[]);
}

/// `setmaxnreg.inc`: takes registers up to `count` a thread.
pub(crate) fn setmaxnreg_inc(cx: &Cx, count: u32) {
    let text = format!("setmaxnreg.inc.sync.aligned.u32 {count};");
    cx.asm(false, &text, "~{memory}", None, &[]);
}

/// `setmaxnreg.dec`: gives registers up, down to `count` a thread.
pub(crate) fn setmaxnreg_dec(cx: &Cx, count: u32) {
    let text = format!("setmaxnreg.dec.sync.aligned.u32 {count};");
    cx.asm(false, &text, "~{memory}", None, &[]);
}

/// `shfl.sync.idx` from lane 0: tells the assembler that a value is the same in the whole warp.
pub(crate) fn broadcast<'c>(cx: &Cx<'c>, value: Int<'c>) -> Int<'c> {
    let text = "shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;";
    cx.asm(false, text, "=r,r", Some(cx.i32.into()), &[value.into()])
        .expect("a result was asked for")
        .into_int_value()
}

/// `vote.sync.any`: 1 in every lane where some lane's `value` is not 0.
pub(crate) fn any<'c>(cx: &Cx<'c>, value: Int<'c>) -> Int<'c> {
    let text = "{ .reg .pred p, q; setp.ne.u32 p, $1, 0; \
                vote.sync.any.pred q, p, 0xffffffff; selp.u32 $0, 1, 0, q; }";
    cx.asm(false, text, "=r,r,~{memory}", Some(cx.i32.into()), &[value.into()])
        .expect("a result was asked for")
        .into_int_value()
}
