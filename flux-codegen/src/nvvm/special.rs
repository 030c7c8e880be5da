//! Special registers and approximate functions (PTX ISA, "Special Registers", "Floating Point
//! Instructions: ex2, rcp").

use crate::context::{Cx, Float, Int};

/// `%tid.x`.
pub(crate) fn tid<'c>(cx: &Cx<'c>) -> Int<'c> {
    cx.register("llvm.nvvm.read.ptx.sreg.tid.x")
}

/// `%ctaid.x`.
pub(crate) fn ctaid<'c>(cx: &Cx<'c>) -> Int<'c> {
    cx.register("llvm.nvvm.read.ptx.sreg.ctaid.x")
}

/// `%globaltimer`: nanoseconds.
pub(crate) fn globaltimer<'c>(cx: &Cx<'c>) -> Int<'c> {
    let text = "mov.u64 $0, %globaltimer;";
    cx.asm(false, text, "=l,~{memory}", Some(cx.i64.into()), &[])
        .expect("a result was asked for")
        .into_int_value()
}

/// `nanosleep.u32`: about so many nanoseconds, at most 1 000 000 (PTX ISA, "nanosleep").
pub(crate) fn nanosleep<'c>(cx: &Cx<'c>, ns: Int<'c>) {
    cx.asm(false, "nanosleep.u32 $0;", "r,~{memory}", None, &[ns.into()]);
}

/// `ex2.approx.ftz.f32`: 2ˣ within 2 ulp, subnormals as zero.
pub(crate) fn ex2_approx_ftz<'c>(cx: &Cx<'c>, x: Float<'c>) -> Float<'c> {
    unary(cx, "ex2.approx.ftz.f32 $0, $1;", x)
}

/// `ex2.approx.f32`: 2ˣ within 2 ulp.
pub(crate) fn ex2_approx<'c>(cx: &Cx<'c>, x: Float<'c>) -> Float<'c> {
    unary(cx, "ex2.approx.f32 $0, $1;", x)
}

/// `rcp.approx.ftz.f32`: 1/x within 1 ulp; of an infinity, zero.
pub(crate) fn rcp_approx_ftz<'c>(cx: &Cx<'c>, x: Float<'c>) -> Float<'c> {
    unary(cx, "rcp.approx.ftz.f32 $0, $1;", x)
}

fn unary<'c>(cx: &Cx<'c>, text: &str, x: Float<'c>) -> Float<'c> {
    cx.asm(true, text, "=f,f", Some(cx.f32.into()), &[x.into()])
        .expect("a result was asked for")
        .into_float_value()
}
