//! Loads, stores and atomics (PTX ISA, "Data Movement and Conversion Instructions: ld, st",
//! "Parallel Synchronization and Communication Instructions: atom, red").

use crate::context::{Cx, Float, Int};
use flux_ir::Element;
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

/// `ld.global.v4.u32`.
pub(crate) fn ld_global_v4<'c>(cx: &Cx<'c>, access: Access, at: Int<'c>) -> [Int<'c>; 4] {
    let ty = cx.context.struct_type(&[cx.i32.into(); 4], false);
    let text = format!("{}.v4.u32 {{$0, $1, $2, $3}}, [$4];", access.load());
    let all = cx
        .asm(false, &text, "=r,=r,=r,=r,l,~{memory}", Some(ty.into()), &[at.into()])
        .expect("a result was asked for");
    [0, 1, 2, 3].map(|index| cx.member(all, index).into_int_value())
}

/// `ld.global.nc.v2.f32`: two numbers nobody writes during the kernel.
pub(crate) fn ld_global_nc_v2_f32<'c>(cx: &Cx<'c>, at: Int<'c>) -> [Float<'c>; 2] {
    let ty = cx.context.struct_type(&[cx.f32.into(); 2], false);
    let text = "ld.global.nc.v2.f32 {$0, $1}, [$2];";
    let both = cx
        .asm(true, text, "=f,=f,l", Some(ty.into()), &[at.into()])
        .expect("a result was asked for");
    [0, 1].map(|index| cx.member(both, index).into_float_value())
}

/// `ld.global.nc.u16`, zero-extended.
pub(crate) fn ld_global_nc_u16<'c>(cx: &Cx<'c>, at: Int<'c>) -> Int<'c> {
    let text = "{ .reg .b16 h; ld.global.nc.b16 h, [$1]; cvt.u32.u16 $0, h; }";
    int(cx, true, text, "=r,l", at)
}

/// `ld.global.nc.f32`.
pub(crate) fn ld_global_nc_f32<'c>(cx: &Cx<'c>, at: Int<'c>) -> Float<'c> {
    cx.asm(true, "ld.global.nc.f32 $0, [$1];", "=f,l", Some(cx.f32.into()), &[at.into()])
        .expect("a result was asked for")
        .into_float_value()
}

/// `ld.global.nc.u32`: a word nobody writes during the kernel.
pub(crate) fn ld_global_nc_u32<'c>(cx: &Cx<'c>, at: Int<'c>) -> Int<'c> {
    int(cx, true, "ld.global.nc.u32 $0, [$1];", "=r,l", at)
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

/// `st.global.u64`.
pub(crate) fn st_u64<'c>(cx: &Cx<'c>, at: Int<'c>, value: Int<'c>) {
    let text = "st.global.u64 [$0], $1;";
    cx.asm(false, text, "l,l,~{memory}", None, &[at.into(), value.into()]);
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

/// `st.release` of a word where `cond` is not 0.
pub(crate) fn st_release_if<'c>(
    cx: &Cx<'c>,
    scope: Scope,
    cond: Int<'c>,
    at: Int<'c>,
    value: Int<'c>,
) {
    let scope = scope.name();
    let text = format!(
        "{{ .reg .pred p; setp.ne.u32 p, $0, 0; @p st.release.{scope}.global.u32 [$1], $2; }}"
    );
    cx.asm(false, &text, "r,l,r,~{memory}", None, &[cond.into(), at.into(), value.into()]);
}

/// `st.relaxed.gpu` of a word where `cond` is not 0.
pub(crate) fn st_relaxed_gpu_if<'c>(cx: &Cx<'c>, cond: Int<'c>, at: Int<'c>, value: Int<'c>) {
    let text = "{ .reg .pred p; setp.ne.u32 p, $0, 0; @p st.relaxed.gpu.global.u32 [$1], $2; }";
    cx.asm(false, text, "r,l,r,~{memory}", None, &[cond.into(), at.into(), value.into()]);
}

/// `ld.global.v4.f32`.
pub(crate) fn ld_global_v4_f32<'c>(cx: &Cx<'c>, at: Int<'c>) -> [Float<'c>; 4] {
    let ty = cx.context.struct_type(&[cx.f32.into(); 4], false);
    let text = "ld.global.v4.f32 {$0, $1, $2, $3}, [$4];";
    let all = cx
        .asm(false, text, "=f,=f,=f,=f,l,~{memory}", Some(ty.into()), &[at.into()])
        .expect("a result was asked for");
    [0, 1, 2, 3].map(|index| cx.member(all, index).into_float_value())
}

/// `st.global.v4.f32`.
pub(crate) fn st_global_v4_f32<'c>(cx: &Cx<'c>, at: Int<'c>, values: [Float<'c>; 4]) {
    let [x, y, z, w] = values;
    let args = [at.into(), x.into(), y.into(), z.into(), w.into()];
    cx.asm(false, "st.global.v4.f32 [$0], {$1, $2, $3, $4};", "l,f,f,f,f,~{memory}", None, &args);
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

/// `st.shared.v4.u32`, where `cond`, if there is one, is not 0.
pub(crate) fn st_shared_v4<'c>(
    cx: &Cx<'c>,
    cond: Option<Int<'c>>,
    at: Int<'c>,
    values: [Int<'c>; 4],
) {
    let [x, y, z, w] = values;
    let mut args: Vec<_> = [at, x, y, z, w].map(Into::into).into();
    let Some(cond) = cond else {
        let text = "st.shared.v4.u32 [$0], {$1, $2, $3, $4};";
        cx.asm(false, text, "r,r,r,r,r,~{memory}", None, &args);
        return;
    };
    args.push(cond.into());
    let text =
        "{ .reg .pred p; setp.ne.u32 p, $5, 0; @p st.shared.v4.u32 [$0], {$1, $2, $3, $4}; }";
    cx.asm(false, text, "r,r,r,r,r,r,~{memory}", None, &args);
}

/// `ld.shared.u32`.
pub(crate) fn ld_shared_u32<'c>(cx: &Cx<'c>, at: Int<'c>) -> Int<'c> {
    int(cx, false, "ld.shared.u32 $0, [$1];", "=r,r,~{memory}", at)
}

/// `st.global.v4.u32`.
pub(crate) fn st_global_v4<'c>(cx: &Cx<'c>, at: Int<'c>, values: [Int<'c>; 4]) {
    let [x, y, z, w] = values;
    let args = [at.into(), x.into(), y.into(), z.into(), w.into()];
    cx.asm(false, "st.global.v4.u32 [$0], {$1, $2, $3, $4};", "l,r,r,r,r,~{memory}", None, &args);
}

/// `ld.global` and `st.global` of two bytes.
pub(crate) fn copy_b16<'c>(cx: &Cx<'c>, to: Int<'c>, from: Int<'c>) {
    let text = "{ .reg .b16 h; ld.global.b16 h, [$1]; st.global.b16 [$0], h; }";
    cx.asm(false, text, "l,l,~{memory}", None, &[to.into(), from.into()]);
}

/// How what a thread holds gets into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// `st.global`.
    Stored,
    /// `red.relaxed.sys.global.add`, to memory of any GPU (PTX ISA, "red"): one access adds each
    /// element by itself.
    Added,
    /// `st.relaxed.sys.global`: each element is seen whole, once, by who polls for it.
    Flagged,
}

impl Leaves {
    /// The instruction for one element, two or more. Sums of 16-bit elements keep subnormals
    /// (`noftz`), as `red` demands.
    fn instruction(self, element: Element, count: u32) -> String {
        let vector = |count: u32| match count {
            1 => String::new(),
            count => format!(".v{count}"),
        };
        let name = element.name();
        let store = match self {
            Leaves::Flagged => "st.relaxed.sys.global",
            Leaves::Stored | Leaves::Added => "st.global",
        };
        match (self, element) {
            (Leaves::Stored | Leaves::Flagged, Element::F32) => {
                format!("{store}{}.f32", vector(count))
            }
            (Leaves::Stored | Leaves::Flagged, _) if count > 2 => {
                format!("{store}{}.u32", vector(count / 2))
            }
            (Leaves::Stored | Leaves::Flagged, _) => format!("{store}.b{}", 16 * count),
            (Leaves::Added, Element::F32) => {
                format!("red.relaxed.sys.global.add{}.f32", vector(count))
            }
            (Leaves::Added, _) if count == 1 => {
                format!("red.relaxed.sys.global.add.noftz.{name}")
            }
            (Leaves::Added, _) => {
                let pairs = vector(count / 2);
                format!("red.relaxed.sys.global.add.noftz{pairs}.{name}x2")
            }
        }
    }
}

/// Four registers, 16 bytes, where `cond` is not 0: 8 elements of 16 bits.
pub(crate) fn leave_v4_if<'c>(
    cx: &Cx<'c>,
    (leaves, element): (Leaves, Element),
    cond: Int<'c>,
    at: Int<'c>,
    values: [Int<'c>; 4],
) {
    let [x, y, z, w] = values;
    let args = [cond.into(), at.into(), x.into(), y.into(), z.into(), w.into()];
    let leave = leaves.instruction(element, 8);
    let text =
        format!("{{ .reg .pred p; setp.ne.u32 p, $0, 0; @p {leave} [$1], {{$2, $3, $4, $5}}; }}");
    cx.asm(false, &text, "r,l,r,r,r,r,~{memory}", None, &args);
}

/// `red.relaxed.sys.global.add` of 16 bytes of elements, where `cond` is 0.
pub(crate) fn red_global_v4_unless<'c>(
    cx: &Cx<'c>,
    element: Element,
    cond: Int<'c>,
    at: Int<'c>,
    values: [Int<'c>; 4],
) {
    let [x, y, z, w] = values;
    let args = [cond.into(), at.into(), x.into(), y.into(), z.into(), w.into()];
    let add = Leaves::Added.instruction(element, 16 / element.bytes());
    let text =
        format!("{{ .reg .pred p; setp.eq.u32 p, $0, 0; @p {add} [$1], {{$2, $3, $4, $5}}; }}");
    cx.asm(false, &text, "r,l,r,r,r,r,~{memory}", None, &args);
}

/// Adds one element at `from` to the one at `to`.
pub(crate) fn add_one<'c>(cx: &Cx<'c>, element: Element, to: Int<'c>, from: Int<'c>) {
    let bits = 8 * element.bytes();
    let add = Leaves::Added.instruction(element, 1);
    let text = format!("{{ .reg .b{bits} e; ld.global.b{bits} e, [$1]; {add} [$0], e; }}");
    cx.asm(false, &text, "l,l,~{memory}", None, &[to.into(), from.into()]);
}

/// Two neighboring columns of a row: `at` is the address of the first, `offset` bytes are added
/// to it, and columns from `end` on are not touched.
#[derive(Clone, Copy)]
pub(crate) struct Pair<'c> {
    pub(crate) at: Int<'c>,
    pub(crate) column: Int<'c>,
    pub(crate) end: Int<'c>,
    /// Not 0 where both columns may be moved by one access.
    pub(crate) aligned: Int<'c>,
}

/// Scratch registers of a pair: predicates of the two columns and of one access for both, and a
/// column.
const SCRATCH: &str = ".reg .pred p, q, w; .reg .b32 c;";

/// Takes the single accesses out where one did both.
const APART: &str = "@w setp.ne.u32 p, 0, 0; @w setp.ne.u32 q, 0, 0;";

impl<'c> Pair<'c> {
    fn operands(self) -> [Int<'c>; 4] {
        [self.at, self.column, self.end, self.aligned]
    }
}

/// What is known of what is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// `ld.global.nc`: nobody writes it during the kernel.
    Constant,
    /// `ld.global`: another thread may have written it before.
    Plain,
    /// The same, in workspace, whose rows are aligned and padded: a pair is always one access.
    Workspace,
    /// `ld.relaxed.sys.global` in workspace: a peer may be storing it.
    Flagged,
}

impl Access {
    const fn load(self) -> &'static str {
        match self {
            Access::Constant => "ld.global.nc",
            Access::Plain | Access::Workspace => "ld.global",
            Access::Flagged => "ld.relaxed.sys.global",
        }
    }

    /// Whether rows are aligned and padded.
    const fn is_in_workspace(self) -> bool {
        match self {
            Access::Workspace | Access::Flagged => true,
            Access::Constant | Access::Plain => false,
        }
    }
}

/// `ld.global` of two 16-bit elements, the second in the high half; 0 for what is not touched.
/// They lie `step` columns behind the pair's.
pub(crate) fn ld_pair_b16<'c>(cx: &Cx<'c>, access: Access, pair: Pair<'c>, step: u32) -> Int<'c> {
    let (ld, offset) = (access.load(), 2 * step);
    if access.is_in_workspace() {
        let text = format!(
            "{{ .reg .pred p; .reg .b32 c; add.s32 c, $2, {step}; setp.lt.s32 p, c, $3; \
             mov.b32 $0, 0; @p {ld}.b32 $0, [$1+{offset}]; }}"
        );
        let args = [pair.at, pair.column, pair.end].map(Into::into);
        return cx
            .asm(false, &text, "=&r,l,r,r,~{memory}", Some(cx.i32.into()), &args)
            .expect("a result was asked for")
            .into_int_value();
    }
    let text = format!(
        "{{ {SCRATCH} .reg .b16 l, h; \
         add.s32 c, $2, {step}; setp.lt.s32 p, c, $3; \
         add.s32 c, c, 1; setp.lt.s32 q, c, $3; \
         setp.ne.and.u32 w, $4, 0, q; mov.b32 $0, 0; mov.b16 l, 0; mov.b16 h, 0; \
         @w {ld}.b32 $0, [$1+{offset}]; {APART} \
         @p {ld}.b16 l, [$1+{offset}]; @q {ld}.b16 h, [$1+{offset}+2]; \
         @!w mov.b32 $0, {{l, h}}; }}"
    );
    let args = pair.operands().map(Into::into);
    cx.asm(false, &text, "=&r,l,r,r,r,~{memory}", Some(cx.i32.into()), &args)
        .expect("a result was asked for")
        .into_int_value()
}

/// `ld.global` of two f32; 0 for what is not touched. They lie `step` columns behind the pair's.
pub(crate) fn ld_pair_f32<'c>(
    cx: &Cx<'c>,
    access: Access,
    pair: Pair<'c>,
    step: u32,
) -> [Float<'c>; 2] {
    let (ld, offset) = (access.load(), 4 * step);
    let text = format!(
        "{{ {SCRATCH} \
         add.s32 c, $3, {step}; setp.lt.s32 p, c, $4; \
         add.s32 c, c, 1; setp.lt.s32 q, c, $4; \
         setp.ne.and.u32 w, $5, 0, q; mov.f32 $0, 0f00000000; mov.f32 $1, 0f00000000; \
         @w {ld}.v2.f32 {{$0, $1}}, [$2+{offset}]; {APART} \
         @p {ld}.f32 $0, [$2+{offset}]; @q {ld}.f32 $1, [$2+{offset}+4]; }}"
    );
    let args = pair.operands().map(Into::into);
    let ty = cx.context.struct_type(&[cx.f32.into(); 2], false);
    let both = cx
        .asm(false, &text, "=&f,=&f,l,r,r,r,~{memory}", Some(ty.into()), &args)
        .expect("a result was asked for");
    [0, 1].map(|index| cx.member(both, index).into_float_value())
}

/// Two 16-bit elements, the second in the high half, where `row` is not 0.
/// Columns below `begin` are not touched.
pub(crate) fn leave_pair_b16<'c>(
    cx: &Cx<'c>,
    (leaves, element): (Leaves, Element),
    pair: Pair<'c>,
    [row, begin]: [Int<'c>; 2],
    value: Int<'c>,
) {
    let [one, both] = [1, 2].map(|count| leaves.instruction(element, count));
    let text = format!(
        "{{ {SCRATCH} .reg .b16 l, h; mov.b32 {{l, h}}, $6; \
         mov.b32 c, $1; setp.ne.u32 w, $4, 0; \
         setp.lt.and.s32 p, c, $2, w; setp.ge.and.s32 p, c, $5, p; \
         add.s32 c, c, 1; \
         setp.lt.and.s32 q, c, $2, w; setp.ge.and.s32 q, c, $5, q; \
         and.pred w, p, q; setp.ne.and.u32 w, $3, 0, w; \
         @w {both} [$0], $6; {APART} \
         @p {one} [$0], l; @q {one} [$0+2], h; }}"
    );
    let [at, column, end, aligned] = pair.operands();
    let args = [at, column, end, aligned, row, begin, value].map(Into::into);
    cx.asm(false, &text, "l,r,r,r,r,r,r,~{memory}", None, &args);
}

/// `st.global` of two f32, where `row` is not 0. They go `step` columns behind the pair's;
/// columns below `begin` are not touched.
pub(crate) fn leave_pair_f32<'c>(
    cx: &Cx<'c>,
    leaves: Leaves,
    (pair, step): (Pair<'c>, u32),
    [row, begin]: [Int<'c>; 2],
    [low, high]: [Float<'c>; 2],
) {
    let offset = 4 * step;
    let [one, both] = [1, 2].map(|count| leaves.instruction(Element::F32, count));
    let text = format!(
        "{{ {SCRATCH} \
         add.s32 c, $1, {step}; setp.ne.u32 w, $4, 0; \
         setp.lt.and.s32 p, c, $2, w; setp.ge.and.s32 p, c, $5, p; \
         add.s32 c, c, 1; \
         setp.lt.and.s32 q, c, $2, w; setp.ge.and.s32 q, c, $5, q; \
         and.pred w, p, q; setp.ne.and.u32 w, $3, 0, w; \
         @w {both} [$0+{offset}], {{$6, $7}}; {APART} \
         @p {one} [$0+{offset}], $6; @q {one} [$0+{offset}+4], $7; }}"
    );
    let [at, column, end, aligned] = pair.operands();
    let args = [
        at.into(),
        column.into(),
        end.into(),
        aligned.into(),
        row.into(),
        begin.into(),
        low.into(),
        high.into(),
    ];
    cx.asm(false, &text, "l,r,r,r,r,r,f,f,~{memory}", None, &args);
}
