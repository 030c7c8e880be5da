//! Loads, stores and atomics (PTX ISA, "Data Movement and Conversion Instructions: ld, st",
//! "Parallel Synchronization and Communication Instructions: atom, red").

use crate::context::{Cx, Float, Int};
use flux_ir::program::Scope;

fn int<'c>(cx: &Cx<'c>, pure: bool, text: &str, constraints: &str, at: Int<'c>) -> Int<'c> {
    cx.asm(pure, text, constraints, Some(cx.i32.into()), &[at.into()])
        .expect("a result was asked for")
        .into_int_value()
}

/// `ld.global.nc.v4.u32`: 16 bytes nobody writes during the kernel.
pub(crate) fn ld_global_nc_v4<'c>(cx: &Cx<'c>, at: Int<'c>) -> [Int<'c>; 4] {
    let ty = cx.context.struct_type(&[cx.i32.into(); 4], false);
    let text = "ld.global.nc.v4.u32 {$0, $1, $2, $3}, [$4];";
    let all = cx
        .asm(true, text, "=r,=r,=r,=r,l", Some(ty.into()), &[at.into()])
        .expect("a result was asked for");
    [0, 1, 2, 3].map(|index| cx.member(all, index).into_int_value())
}

/// `ld.global.nc.u16`, zero-extended.
pub(crate) fn ld_global_nc_u16<'c>(cx: &Cx<'c>, at: Int<'c>) -> Int<'c> {
    let text = "{ .reg .b16 h; ld.global.nc.b16 h, [$1]; cvt.u32.u16 $0, h; }";
    int(cx, true, text, "=r,l", at)
}

/// `ld.global.nc.u32`.
pub(crate) fn ld_global_nc_u32<'c>(cx: &Cx<'c>, at: Int<'c>) -> Int<'c> {
    int(cx, true, "ld.global.nc.u32 $0, [$1];", "=r,l", at)
}

/// `ld.global.nc.f32`.
pub(crate) fn ld_global_nc_f32<'c>(cx: &Cx<'c>, at: Int<'c>) -> Float<'c> {
    cx.asm(true, "ld.global.nc.f32 $0, [$1];", "=f,l", Some(cx.f32.into()), &[at.into()])
        .expect("a result was asked for")
        .into_float_value()
}

/// `ld.global.u16`, zero-extended: what another thread may have written before.
pub(crate) fn ld_global_u16<'c>(cx: &Cx<'c>, at: Int<'c>) -> Int<'c> {
    let text = "{ .reg .b16 h; ld.global.b16 h, [$1]; cvt.u32.u16 $0, h; }";
    int(cx, false, text, "=r,l,~{memory}", at)
}

/// `ld.global.u32`.
pub(crate) fn ld_global_u32<'c>(cx: &Cx<'c>, at: Int<'c>) -> Int<'c> {
    int(cx, false, "ld.global.u32 $0, [$1];", "=r,l,~{memory}", at)
}

/// `ld.global.f32`.
pub(crate) fn ld_global_f32<'c>(cx: &Cx<'c>, at: Int<'c>) -> Float<'c> {
    let text = "ld.global.f32 $0, [$1];";
    cx.asm(false, text, "=f,l,~{memory}", Some(cx.f32.into()), &[at.into()])
        .expect("a result was asked for")
        .into_float_value()
}

/// `ld.global.nc.u64`: a word nobody writes during the kernel.
pub(crate) fn ld_global_nc_u64<'c>(cx: &Cx<'c>, at: Int<'c>) -> Int<'c> {
    cx.asm(true, "ld.global.nc.u64 $0, [$1];", "=l,l", Some(cx.i64.into()), &[at.into()])
        .expect("a result was asked for")
        .into_int_value()
}

/// `ld.acquire` of a word.
pub(crate) fn ld_acquire<'c>(cx: &Cx<'c>, scope: Scope, at: Int<'c>) -> Int<'c> {
    let text = format!("ld.acquire.{}.global.u32 $0, [$1];", scope.name());
    int(cx, false, &text, "=r,l,~{memory}", at)
}

/// `ld.relaxed.sys` of a word.
pub(crate) fn ld_relaxed_sys<'c>(cx: &Cx<'c>, at: Int<'c>) -> Int<'c> {
    int(cx, false, "ld.relaxed.sys.global.u32 $0, [$1];", "=r,l,~{memory}", at)
}

/// `st.relaxed.sys` of a word.
pub(crate) fn st_relaxed_sys<'c>(cx: &Cx<'c>, at: Int<'c>, value: Int<'c>) {
    let text = "st.relaxed.sys.global.u32 [$0], $1;";
    cx.asm(false, text, "l,r,~{memory}", None, &[at.into(), value.into()]);
}

/// `st.release` of a word.
pub(crate) fn st_release<'c>(cx: &Cx<'c>, scope: Scope, at: Int<'c>, value: Int<'c>) {
    let text = format!("st.release.{}.global.u32 [$0], $1;", scope.name());
    cx.asm(false, &text, "l,r,~{memory}", None, &[at.into(), value.into()]);
}

/// `red.release.add` to a word.
pub(crate) fn red_release_add<'c>(cx: &Cx<'c>, scope: Scope, at: Int<'c>, value: Int<'c>) {
    let text = format!("red.release.{}.global.add.u32 [$0], $1;", scope.name());
    cx.asm(false, &text, "l,r,~{memory}", None, &[at.into(), value.into()]);
}

/// `atom.acq_rel.gpu.inc`: adds 1 and wraps behind `last` to 0; yields the old value.
pub(crate) fn atom_inc<'c>(cx: &Cx<'c>, at: Int<'c>, last: Int<'c>) -> Int<'c> {
    let text = "atom.acq_rel.gpu.global.inc.u32 $0, [$1], $2;";
    let args = [at.into(), last.into()];
    cx.asm(false, text, "=r,l,r,~{memory}", Some(cx.i32.into()), &args)
        .expect("a result was asked for")
        .into_int_value()
}

/// `atom.relaxed.sys.cas` from 0 to 1; yields the old value.
pub(crate) fn atom_claim<'c>(cx: &Cx<'c>, at: Int<'c>) -> Int<'c> {
    int(cx, false, "atom.relaxed.sys.global.cas.b32 $0, [$1], 0, 1;", "=r,l,~{memory}", at)
}

/// `ld.shared.v4.u32`.
pub(crate) fn ld_shared_v4<'c>(cx: &Cx<'c>, at: Int<'c>) -> [Int<'c>; 4] {
    let ty = cx.context.struct_type(&[cx.i32.into(); 4], false);
    let text = "ld.shared.v4.u32 {$0, $1, $2, $3}, [$4];";
    let all = cx
        .asm(false, text, "=r,=r,=r,=r,r,~{memory}", Some(ty.into()), &[at.into()])
        .expect("a result was asked for");
    [0, 1, 2, 3].map(|index| cx.member(all, index).into_int_value())
}

/// `st.global.v4.u32` where `cond` is not 0.
pub(crate) fn st_global_v4_if<'c>(cx: &Cx<'c>, cond: Int<'c>, at: Int<'c>, values: [Int<'c>; 4]) {
    let [x, y, z, w] = values;
    let args = [cond.into(), at.into(), x.into(), y.into(), z.into(), w.into()];
    let text = "{ .reg .pred p; setp.ne.u32 p, $0, 0; \
                @p st.global.v4.u32 [$1], {$2, $3, $4, $5}; }";
    cx.asm(false, text, "r,l,r,r,r,r,~{memory}", None, &args);
}

/// `st.global.b16` of the low half of `value` where `cond` is not 0.
pub(crate) fn st_global_b16_if<'c>(cx: &Cx<'c>, cond: Int<'c>, at: Int<'c>, value: Int<'c>) {
    let text = "{ .reg .pred p; .reg .b16 h; setp.ne.u32 p, $0, 0; cvt.u16.u32 h, $2; \
                @p st.global.b16 [$1], h; }";
    cx.asm(false, text, "r,l,r,~{memory}", None, &[cond.into(), at.into(), value.into()]);
}

/// `st.global.f32` where `cond` is not 0.
pub(crate) fn st_global_f32_if<'c>(cx: &Cx<'c>, cond: Int<'c>, at: Int<'c>, value: Float<'c>) {
    let text = "{ .reg .pred p; setp.ne.u32 p, $0, 0; @p st.global.f32 [$1], $2; }";
    cx.asm(false, text, "r,l,f,~{memory}", None, &[cond.into(), at.into(), value.into()]);
}
