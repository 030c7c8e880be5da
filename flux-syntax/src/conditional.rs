//! `#[cfg]` where it cannot be known.
//!
//! rustc evaluates the `cfg`s inside of an item after the macro on the item has run. So what the
//! macro reads may be gone in what rustc checks, and the kernel would compute something else.

use crate::position::at;
use flux_ir::{Diagnostic, Rule, Span};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::Attribute;

/// `cfg` or `cfg_attr`.
fn is_condition(name: &syn::Ident) -> bool {
    name == "cfg" || name == "cfg_attr"
}

/// The attribute of `attrs` on which it depends whether their item exists.
pub(crate) fn condition_on(attrs: &[Attribute]) -> Option<Span> {
    let name =
        |attr: &Attribute| attr.path().get_ident().filter(|name| is_condition(name)).cloned();
    attrs.iter().find_map(name).map(|name| at(name.span()))
}

/// Every `#[cfg]` and `#[cfg_attr]` among `tokens`, at its name.
pub(crate) fn conditions(tokens: TokenStream) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut after_hash = false;
    for token in tokens {
        let hash = match &token {
            TokenTree::Punct(punct) => {
                punct.as_char() == '#' || after_hash && punct.as_char() == '!'
            }
            _ => false,
        };
        if let TokenTree::Group(group) = token {
            match group.stream().into_iter().next() {
                Some(TokenTree::Ident(name))
                    if after_hash
                        && group.delimiter() == Delimiter::Bracket
                        && is_condition(&name) =>
                {
                    found.push(condition(at(name.span())));
                }
                _ => found.extend(conditions(group.stream())),
            }
        }
        after_hash = hash;
    }
    found
}

fn condition(span: Span) -> Diagnostic {
    let message = "rustc decides whether this exists after the macro has read it";
    Diagnostic::new(Rule::Language, span, message)
        .help("put the `cfg` on the whole kernel: write two kernels, one for each case")
}
