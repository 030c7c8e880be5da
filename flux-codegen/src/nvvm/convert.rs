//! Conversions (PTX ISA, "Data Movement and Conversion Instructions: cvt").

use crate::context::{Cx, Float, Int};
use flux_ir::Element;

/// `add.rn.bf16x2`, `add.rn.f16x2` of zeros: two values, of which negative zeros become positive ones.
pub(crate) fn add_zero_x2<'c>(cx: &Cx<'c>, element: Element, pair: Int<'c>) -> Int<'c> {
    let name = match element {
        Element::Bf16 => "bf16x2",
        Element::F16 | Element::F32 => "f16x2",
    };
    let text = format!("{{ .reg .b32 z; mov.b32 z, 0; add.rn.{name} $0, $1, z; }}");
    cx.asm(true, &text, "=r,r", Some(cx.i32.into()), &[pair.into()])
        .expect("a result was asked for")
        .into_int_value()
}

/// `cvt.rn.bf16x2.f32`, `cvt.rn.f16x2.f32`: two values rounded to nearest even, `low` in the low
/// half.
pub(crate) fn cvt_rn_x2<'c>(
    cx: &Cx<'c>,
    element: Element,
    low: Float<'c>,
    high: Float<'c>,
) -> Int<'c> {
    let name = match element {
        Element::Bf16 => "bf16x2",
        Element::F16 | Element::F32 => "f16x2",
    };
    let text = format!("cvt.rn.{name}.f32 $0, $1, $2;");
    cx.asm(true, &text, "=r,f,f", Some(cx.i32.into()), &[high.into(), low.into()])
        .expect("a result was asked for")
        .into_int_value()
}
