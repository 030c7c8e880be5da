//! How deep a source may be nested. Parsers and readers call themselves for each level, and a
//! stack that overflows takes the compiler with it: no error, no place.

use crate::position::{at, position};
use flux_ir::{Diagnostic, Rule, Span};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::Expr;
use syn::visit::{self, Visit};

/// Prefix operators inside each other, as in `---x`. Parentheses, brackets and braces count for
/// [`GROUP`] of them: that many a parser's stack frames take, and threads of 2 MiB run parsers.
const LEVELS: usize = 256;

/// What a pair of parentheses, brackets or braces counts for.
const GROUP: usize = 4;

/// Operators between two commas, semicolons or braces: each can be a level of the syntax tree.
const OPERATORS: usize = 2000;

/// Expressions of a kernel inside each other.
pub(crate) const EXPRESSIONS: usize = 200;

/// The first token beyond the limits. It calls itself for nothing, so that any source is safe to
/// give to it; what it finds nothing in is safe to parse.
pub fn too_deep(tokens: TokenStream) -> Option<proc_macro2::Span> {
    // Each level of groups: its tokens, how deep it lies, operators in it, operators in a row.
    let mut levels = vec![(tokens.into_iter(), 0, 0, 0)];
    while let Some((level, depth, operators, in_a_row)) = levels.last_mut() {
        let Some(token) = level.next() else {
            levels.pop();
            continue;
        };
        match token {
            TokenTree::Group(group) => {
                let depth = *depth + *in_a_row + GROUP;
                if depth > LEVELS {
                    return Some(group.span_open());
                }
                *in_a_row = 0;
                if group.delimiter() == Delimiter::Brace {
                    *operators = 0;
                }
                levels.push((group.stream().into_iter(), depth, 0, 0));
            }
            TokenTree::Punct(punct) if matches!(punct.as_char(), ',' | ';') => {
                (*operators, *in_a_row) = (0, 0);
            }
            TokenTree::Punct(punct) => {
                *operators += 1;
                *in_a_row += 1;
                if *operators > OPERATORS || *depth + *in_a_row > LEVELS {
                    return Some(punct.span());
                }
            }
            TokenTree::Ident(_) | TokenTree::Literal(_) => *in_a_row = 0,
        }
    }
    None
}

/// What is said about a token that [`too_deep`] found.
pub(crate) fn nested_too_deep(span: Span) -> Diagnostic {
    let message = "this is nested too deep to be read";
    Diagnostic::new(Rule::Language, span, message).help("name the parts: `let x = …;`")
}

/// Where the expressions of `visit` first lie deeper than [`EXPRESSIONS`].
pub(crate) fn deep_expression(visit: impl FnOnce(&mut Depth)) -> Option<Diagnostic> {
    let mut depth = Depth { level: 0, found: None };
    visit(&mut depth);
    depth.found.map(nested_too_deep)
}

/// Counts expressions inside expressions, and stops at the limit.
pub(crate) struct Depth {
    level: usize,
    found: Option<Span>,
}

impl<'ast> Visit<'ast> for Depth {
    fn visit_expr(&mut self, expr: &'ast Expr) {
        if self.found.is_some() {
            return;
        }
        if self.level == EXPRESSIONS {
            self.found = Some(own_token(expr));
            return;
        }
        self.level += 1;
        visit::visit_expr(self, expr);
        self.level -= 1;
    }
}

/// A token of the expression itself, for what lies in it may be deep.
fn own_token(expr: &Expr) -> Span {
    match expr {
        Expr::Binary(inner) => position(&inner.op),
        Expr::Unary(inner) => position(&inner.op),
        Expr::MethodCall(inner) => at(inner.method.span()),
        Expr::Call(inner) => at(inner.paren_token.span.open()),
        Expr::Paren(inner) => at(inner.paren_token.span.open()),
        Expr::Reference(inner) => at(inner.and_token.span),
        Expr::Block(inner) => at(inner.block.brace_token.span.open()),
        other => other.to_token_stream().into_iter().next().map_or(Span::UNKNOWN, |t| at(t.span())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beyond(text: String) -> bool {
        too_deep(text.parse().expect("tokens")).is_some()
    }

    #[test]
    fn nested_tokens_are_counted() {
        let nested = |n| format!("{}{}", "(".repeat(n), ")".repeat(n));
        assert!(!beyond(nested(LEVELS / GROUP)));
        assert!(beyond(nested(LEVELS / GROUP + 1)));
        assert!(beyond(nested(100_000)));
    }

    #[test]
    fn operators_are_counted() {
        assert!(!beyond(format!("{}x", "-".repeat(LEVELS))));
        assert!(beyond(format!("{}x", "-".repeat(LEVELS + 1))));
        assert!(!beyond(format!("x{}", "+1".repeat(OPERATORS))));
        assert!(beyond(format!("x{}", "+1".repeat(OPERATORS + 1))));
        assert!(!beyond("x + 1;".repeat(10 * OPERATORS)));
    }
}
