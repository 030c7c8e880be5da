//! Warpgroup matrix instructions (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").

use crate::context::{Cx, Float, Int};
use flux_ir::Element;
use inkwell::values::BasicMetadataValueEnum;

/// How an operand lies in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Major {
    /// `[m, k]` of a left operand, `[n, k]` of a right one.
    K,
    /// `[k, m]` of a left operand, `[k, n]` of a right one.
    Mn,
}

/// `wgmma.fence`: before the first of a batch, and after registers were written otherwise.
pub(crate) fn fence(cx: &Cx) {
    cx.asm(false, "wgmma.fence.sync.aligned;", "~{memory}", None, &[]);
}

/// `wgmma.commit_group`.
pub(crate) fn commit_group(cx: &Cx) {
    cx.asm(false, "wgmma.commit_group.sync.aligned;", "~{memory}", None, &[]);
}

/// `wgmma.wait_group`: until at most `pending` groups are in flight.
pub(crate) fn wait_group(cx: &Cx, pending: u32) {
    let text = format!("wgmma.wait_group.sync.aligned {pending};");
    cx.asm(false, &text, "~{memory}", None, &[]);
}

/// `wgmma.mma_async` m64nNk16: `acc + a·b` where `accumulate` is not 0, else `a·b`. `acc` holds
/// the N/2 registers of one thread; operands are shared-memory matrix descriptors.
pub(crate) fn mma_async<'c>(
    cx: &Cx<'c>,
    element: Element,
    acc: &[Float<'c>],
    [a, b]: [Int<'c>; 2],
    accumulate: Int<'c>,
    majors: [Major; 2],
) -> Vec<Float<'c>> {
    let count = acc.len();
    let n = 2 * count;
    let registers: Vec<String> = (0..count).map(|index| format!("${index}")).collect();
    let [transpose_a, transpose_b] = majors.map(|major| match major {
        Major::K => 0,
        Major::Mn => 1,
    });
    let name = element.name();
    let text = format!(
        "{{ .reg .pred p; setp.ne.b32 p, ${scale}, 0; \
         wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{name}.{name} {{{list}}}, ${da}, ${db}, \
         p, 1, 1, {transpose_a}, {transpose_b}; }}",
        list = registers.join(", "),
        da = 2 * count,
        db = 2 * count + 1,
        scale = 2 * count + 2,
    );
    let constraints = format!("{},l,l,r,~{{memory}}", tied(count));
    let operands = [a, b, accumulate].map(BasicMetadataValueEnum::from);
    let args: Vec<_> = acc.iter().map(|&register| register.into()).chain(operands).collect();
    through(cx, &text, &constraints, count, &args)
}

/// Ties registers to this point: whatever reads them later is not moved ahead of a wait that
/// stands before.
pub(crate) fn settle<'c>(cx: &Cx<'c>, acc: &[Float<'c>]) -> Vec<Float<'c>> {
    let constraints = format!("{},~{{memory}}", tied(acc.len()));
    let args: Vec<_> = acc.iter().map(|&register| register.into()).collect();
    through(cx, "", &constraints, acc.len(), &args)
}

/// `count` results, each tied to the operand of the same position.
fn tied(count: usize) -> String {
    let results = vec!["=f"; count].join(",");
    let operands: Vec<String> = (0..count).map(|index| index.to_string()).collect();
    format!("{results},{}", operands.join(","))
}

fn through<'c>(
    cx: &Cx<'c>,
    text: &str,
    constraints: &str,
    count: usize,
    args: &[BasicMetadataValueEnum<'c>],
) -> Vec<Float<'c>> {
    let ty = cx.context.struct_type(&vec![cx.f32.into(); count], false);
    let all =
        cx.asm(false, text, constraints, Some(ty.into()), args).expect("a result was asked for");
    (0..count as u32).map(|index| cx.member(all, index).into_float_value()).collect()
}
