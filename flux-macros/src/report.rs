//! Findings to errors of rustc.

use flux_ir::{Diagnostic, Diagnostics, Rule};
use flux_syntax::SpanMap;
use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;

/// One `compile_error!` for each finding, at the user's token; `otherwise` where a finding has no
/// place of its own.
pub(crate) fn errors(found: &Diagnostics, spans: &SpanMap, otherwise: Span) -> TokenStream {
    let error = |diagnostic: &Diagnostic| {
        let span = spans.resolve(diagnostic.span).unwrap_or(otherwise);
        error(span, &text_of(diagnostic))
    };
    found.0.iter().map(error).collect()
}

/// What an item becomes that is nested too deep to be parsed.
pub(crate) fn too_deep(item: &TokenStream) -> Option<TokenStream> {
    let token = flux_syntax::too_deep(item.clone())?;
    Some(error(token, "this is nested too deep to be read\nhelp: name the parts: `let x = …;`"))
}

/// An error of rustc at `span`.
pub(crate) fn error(span: Span, message: &str) -> TokenStream {
    quote_spanned!(span=> ::core::compile_error! { #message })
}

/// The finding with its notes; rustc indents the lines that follow the first.
fn text_of(diagnostic: &Diagnostic) -> String {
    let mut text = diagnostic.message.clone();
    for (span, note) in &diagnostic.notes {
        text.push_str(&format!("\nnote: {note}"));
        if span.is_known() {
            text.push_str(&format!(" (line {})", span.line));
        }
    }
    if let Some(help) = &diagnostic.help {
        text.push_str(&format!("\nhelp: {help}"));
    }
    match diagnostic.rule {
        // These speak for themselves.
        Rule::Language | Rule::Types | Rule::Syntax => {}
        rule => text.push_str(&format!("\nrule: {rule}")),
    }
    text
}
