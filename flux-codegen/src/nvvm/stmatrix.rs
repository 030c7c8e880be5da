//! `stmatrix` (PTX ISA, "Warp Level Matrix Store Instruction: stmatrix").

use crate::context::{Cx, Int};

/// Stores one 8×8 matrix of 16-bit elements per register; lane `8q + i` gives the address of row
/// `i` of matrix `q`. One, two or four matrices.
pub(crate) fn store<'c>(cx: &Cx<'c>, to: Int<'c>, matrices: &[Int<'c>]) {
    let count = matrices.len();
    let registers: Vec<String> = (1..=count).map(|index| format!("${index}")).collect();
    let text = format!(
        "stmatrix.sync.aligned.m8n8.x{count}.shared::cta.b16 [$0], {{{}}};",
        registers.join(", ")
    );
    let constraints = format!("r{},~{{memory}}", ",r".repeat(count));
    let args: Vec<_> =
        std::iter::once(&to).chain(matrices).map(|&register| register.into()).collect();
    cx.asm(false, &text, &constraints, None, &args);
}
