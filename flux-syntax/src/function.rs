//! A function whose body may be unfinished.
//!
//! While somebody types, the body does not parse. Its tokens are kept as they are, so that
//! attribute macros can pass them on and an editor still sees them.

use proc_macro2::{Group, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::{Attribute, Block, ItemFn, Signature, Stmt, Visibility};

/// A function: attributes, signature, and the body both as tokens and as statements.
#[derive(Debug, Clone)]
pub struct Function {
    /// Attributes and documentation.
    pub attrs: Vec<Attribute>,
    /// Visibility.
    pub vis: Visibility,
    /// Name, parameters, return type.
    pub sig: Signature,
    /// The body in its braces, token for token.
    pub body: Group,
    /// The body's statements, where it parses.
    pub statements: Result<Vec<Stmt>, syn::Error>,
}

impl Function {
    /// The function's name; `r#name` is `name`.
    pub fn name(&self) -> String {
        text_of_name(&self.sig.ident)
    }

    /// Whether an attribute of this name stands on it, with or without a path before the name.
    pub fn has_attribute(&self, name: &str) -> bool {
        self.attrs.iter().any(|attr| is_attribute(attr, name))
    }
}

/// A name as Rust compares names: `r#name` is `name`.
pub(crate) fn text_of_name(name: &syn::Ident) -> String {
    name.unraw().to_string()
}

/// Whether `attr` is `#[name]` or `#[path::name]`.
pub fn is_attribute(attr: &Attribute, name: &str) -> bool {
    attr.path().segments.last().is_some_and(|segment| segment.ident == name)
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let sig = input.parse()?;
        let body: Group = input.parse()?;
        if body.delimiter() != proc_macro2::Delimiter::Brace {
            return Err(syn::Error::new(body.span_open(), "expected a body in braces"));
        }
        let statements = Block::parse_within.parse2(body.stream());
        Ok(Function { attrs, vis, sig, body, statements })
    }
}

impl From<ItemFn> for Function {
    fn from(item: ItemFn) -> Self {
        let mut stream = TokenStream::new();
        for statement in &item.block.stmts {
            statement.to_tokens(&mut stream);
        }
        let mut body = Group::new(proc_macro2::Delimiter::Brace, stream);
        body.set_span(item.block.brace_token.span.join());
        Function {
            attrs: item.attrs,
            vis: item.vis,
            sig: item.sig,
            body,
            statements: Ok(item.block.stmts),
        }
    }
}

impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        for attr in &self.attrs {
            attr.to_tokens(tokens);
        }
        self.vis.to_tokens(tokens);
        self.sig.to_tokens(tokens);
        self.body.to_tokens(tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_body_keeps_its_tokens() {
        let function: Function =
            syn::parse_str("/// Docs.\npub fn f(a: u32) { let x = ; a. }").expect("a function");
        assert!(function.statements.is_err());
        assert_eq!(function.name(), "f");
        assert_eq!(function.body.to_string(), "{ let x = ; a . }");
        assert!(function.has_attribute("doc"));
    }

    #[test]
    fn tokens_come_back_as_they_were() {
        let text = "# [inline] pub fn f (a : u32) { let x = a + 1 ; g (x) ; }";
        let function: Function = syn::parse_str(text).expect("a function");
        assert_eq!(function.to_token_stream().to_string(), text);
    }
}
