//! What both writers share: names, numbers, lines with spans.

use super::lex::is_bare;
use crate::span::Span;
use std::fmt;

/// A name, in quotes where it is no identifier.
pub(super) fn name(text: &str) -> String {
    if is_bare(text) {
        return text.into();
    }
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

/// A number that reads back as the same bits.
pub(super) fn float(value: f32) -> String {
    if value.to_bits() == f32::NAN.to_bits() {
        "nan".into()
    } else if value.is_nan() {
        format!("nan({})", value.to_bits())
    } else {
        format!("{value:?}")
    }
}

/// The column spans are aligned to.
const SPAN_COLUMN: usize = 40;

/// A line at nesting `depth`, with the span where it is known.
pub(super) fn line(f: &mut impl fmt::Write, depth: usize, text: &str, span: Span) -> fmt::Result {
    let indent = 2 * depth;
    if span.is_known() {
        let width = SPAN_COLUMN.saturating_sub(indent);
        writeln!(f, "{:indent$}{text:<width$} @{span}", "")
    } else {
        writeln!(f, "{:indent$}{text}", "")
    }
}
