//! `ldmatrix` (PTX ISA, "Warp Level Matrix Load Instruction: ldmatrix").

use crate::context::{Cx, Int};

/// Loads `count` 8×8 matrices of 16-bit elements, one register each: the inverse of
/// [`crate::nvvm::stmatrix::store`].
pub(crate) fn load<'c>(cx: &Cx<'c>, from: Int<'c>, count: usize) -> Vec<Int<'c>> {
    let registers: Vec<String> = (0..count).map(|index| format!("${index}")).collect();
    let text = format!(
        "ldmatrix.sync.aligned.m8n8.x{count}.shared::cta.b16 {{{}}}, [${count}];",
        registers.join(", ")
    );
    let constraints = format!("{}r,~{{memory}}", "=r,".repeat(count));
    let result = match count {
        1 => cx.i32.into(),
        _ => cx.context.struct_type(&vec![cx.i32.into(); count], false).into(),
    };
    let all = cx
        .asm(false, &text, &constraints, Some(result), &[from.into()])
        .expect("a result was asked for");
    match count {
        1 => vec![all.into_int_value()],
        _ => (0..count as u32).map(|index| cx.member(all, index).into_int_value()).collect(),
    }
}
