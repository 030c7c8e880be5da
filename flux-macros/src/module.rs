//! `#[flux::module]`: kernels that see the functions and constants beside them.

use crate::expand::{self, refuse_arguments};
use crate::model::Model;
use crate::report;
use flux_syntax::{Module, ModuleItem, SpanMap};
use proc_macro2::{Delimiter, Group, TokenStream};
use quote::{ToTokens, quote};

/// The module again, with its kernels expanded.
pub(crate) fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    if let Some(refused) = report::too_deep(&item) {
        return refused;
    }
    let spans = SpanMap::of(item.clone());
    let module: Module = match syn::parse2(item.clone()) {
        Ok(module) => module,
        Err(error) => {
            // An unfinished module has been reported by rustc; anything else is no module.
            let known: Result<syn::Item, _> = syn::parse2(item.clone());
            let report = known.is_ok().then(|| {
                let message = "`#[flux::module]` stands on a module with its content in braces";
                report::error(error.span(), message)
            });
            return quote!(#item #report);
        }
    };
    let scope = module.scope();
    let mut content = TokenStream::new();
    for item in &module.items {
        match item {
            ModuleItem::Function(function) if function.has_attribute("kernel") => {
                content.extend(expand::expand(Model::of((**function).clone(), &scope), &spans));
            }
            ModuleItem::Function(function) => content.extend(helper(function)),
            item => item.to_tokens(&mut content),
        }
    }
    content.extend(refuse_arguments(args, "module"));
    let Module { attrs, vis, mod_token, name, inner, body, .. } = &module;
    let mut braces = Group::new(Delimiter::Brace, quote!(#(#inner)* #content));
    braces.set_span(body.span());
    quote!(#(#attrs)* #vis #mod_token #name #braces)
}

/// A helper function is read by the kernels that call it; to rustc nobody calls it.
fn helper(function: &flux_syntax::Function) -> TokenStream {
    quote! {
        #[allow(dead_code, reason = "kernels call it, and they are read, never called")]
        #function
    }
}
