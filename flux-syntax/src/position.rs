//! Between the positions that both IRs carry and the tokens of the compiler.

use flux_ir::Span;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::HashMap;
use syn::spanned::Spanned;

/// Where `tokens` begin, as line and column from 1.
pub fn position(tokens: &impl Spanned) -> Span {
    at(tokens.span())
}

pub(crate) fn at(span: proc_macro2::Span) -> Span {
    let start = span.start();
    let line = u32::try_from(start.line).unwrap_or(0);
    let column = u32::try_from(start.column + 1).unwrap_or(0);
    if line == 0 { Span::UNKNOWN } else { Span::new(line, column) }
}

/// Leads from a position back to the token that stands there, so that a rule found broken on
/// either IR is reported at the user's own token.
#[derive(Debug, Default)]
pub struct SpanMap(HashMap<Span, proc_macro2::Span>);

impl SpanMap {
    /// The positions of every token of `tokens`.
    pub fn of(tokens: TokenStream) -> Self {
        let mut map = SpanMap::default();
        map.add(tokens);
        map
    }

    /// Adds the positions of every token of `tokens`.
    pub fn add(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => {
                    // The delimiter wins over what it contains where the two coincide, as they
                    // do for the invisible groups of `macro_rules`.
                    self.insert(group.span_open());
                    self.add(group.stream());
                    self.insert(group.span_close());
                }
                token => self.insert(token.span()),
            }
        }
    }

    fn insert(&mut self, span: proc_macro2::Span) {
        self.0.entry(at(span)).or_insert(span);
    }

    /// The token at `span`, where one is known.
    pub fn resolve(&self, span: Span) -> Option<proc_macro2::Span> {
        if span.is_known() { self.0.get(&span).copied() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_found_at_its_position() {
        let tokens: TokenStream = "fn f(a: &T) {\n    a.b(c + 1);\n}".parse().expect("tokens");
        let map = SpanMap::of(tokens);
        let plus = map.resolve(Span::new(2, 11)).expect("the operator");
        assert_eq!(plus.source_text().as_deref(), Some("+"));
        assert_eq!(map.resolve(Span::new(2, 12)).map(|s| s.source_text()), None);
        assert!(map.resolve(Span::UNKNOWN).is_none());
    }
}
