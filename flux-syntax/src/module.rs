//! `#[flux::module]`: what the kernels of a module can see of it.

use crate::conditional::condition_on;
use crate::function::{Function, text_of_name};
use crate::position::at;
use flux_ir::Span;
use proc_macro2::{Group, TokenStream};
use quote::ToTokens;
use std::collections::BTreeMap;
use syn::parse::{Parse, ParseStream, Parser, discouraged::Speculative};
use syn::{Attribute, Ident, Item, ItemConst, ItemMod, Token, Visibility};

/// A module read item by item, so that one unfinished item leaves the others standing.
#[derive(Debug, Clone)]
pub struct Module {
    /// Attributes and documentation.
    pub attrs: Vec<Attribute>,
    /// Visibility.
    pub vis: Visibility,
    /// `mod`.
    pub mod_token: Token![mod],
    /// Its name.
    pub name: Ident,
    /// The braces.
    pub body: Group,
    /// Attributes and documentation written inside of them.
    pub inner: Vec<Attribute>,
    /// What stands in them.
    pub items: Vec<ModuleItem>,
}

/// An item of a [`Module`].
#[derive(Debug, Clone)]
pub enum ModuleItem {
    /// A function: a kernel, a helper or an order.
    Function(Box<Function>),
    /// Any other item.
    Other(Box<Item>),
    /// From here on nothing parses; rustc says why.
    Unfinished(TokenStream),
}

impl Parse for Module {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let mod_token = input.parse()?;
        let name = input.parse()?;
        let body: Group = input.parse()?;
        if body.delimiter() != proc_macro2::Delimiter::Brace {
            return Err(syn::Error::new(
                body.span_open(),
                "expected a module with its content in braces",
            ));
        }
        let (inner, items) = parse_items.parse2(body.stream())?;
        Ok(Module { attrs, vis, mod_token, name, body, inner, items })
    }
}

fn parse_items(input: ParseStream<'_>) -> syn::Result<(Vec<Attribute>, Vec<ModuleItem>)> {
    let inner = input.call(Attribute::parse_inner)?;
    let mut items = Vec::new();
    while !input.is_empty() {
        let fork = input.fork();
        if let Ok(function) = fork.parse() {
            input.advance_to(&fork);
            items.push(ModuleItem::Function(Box::new(function)));
            continue;
        }
        let fork = input.fork();
        match fork.parse() {
            Ok(item) => {
                input.advance_to(&fork);
                items.push(ModuleItem::Other(Box::new(item)));
            }
            Err(_) => items.push(ModuleItem::Unfinished(input.parse()?)),
        }
    }
    Ok((inner, items))
}

impl ToTokens for ModuleItem {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            ModuleItem::Function(function) => function.to_tokens(tokens),
            ModuleItem::Other(item) => item.to_tokens(tokens),
            ModuleItem::Unfinished(rest) => rest.to_tokens(tokens),
        }
    }
}

impl Module {
    /// The kernels of the module: functions marked `#[kernel]` or `#[flux::kernel]`.
    pub fn kernels(&self) -> impl Iterator<Item = &Function> {
        self.items.iter().filter_map(|item| match item {
            ModuleItem::Function(function) if function.has_attribute("kernel") => Some(&**function),
            ModuleItem::Function(_) | ModuleItem::Other(_) | ModuleItem::Unfinished(_) => None,
        })
    }

    /// What its kernels can see.
    pub fn scope(&self) -> ModuleScope {
        let mut scope = ModuleScope { in_module: true, ..ModuleScope::default() };
        for item in &self.items {
            match item {
                ModuleItem::Function(function) => scope.add_function((**function).clone()),
                ModuleItem::Other(item) => {
                    if let Item::Const(item) = &**item {
                        scope.add_constant(item.clone());
                    }
                }
                ModuleItem::Unfinished(_) => {}
            }
        }
        scope
    }
}

/// The items that a kernel can use: those of its `#[flux::module]`, or none.
#[derive(Debug, Clone, Default)]
pub struct ModuleScope {
    pub(crate) constants: BTreeMap<String, ItemConst>,
    pub(crate) functions: BTreeMap<String, Function>,
    pub(crate) kernels: Vec<String>,
    /// Names of constants and functions that may mean another item than the one known here.
    pub(crate) unclear: BTreeMap<String, Unclear>,
    /// Whether a module was seen, for the wording of what to do about an unknown name.
    pub(crate) in_module: bool,
}

/// Why a name of a module may mean another item.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unclear {
    /// There are two of the name; here is the second.
    Twice(Span),
    /// rustc decides by this attribute whether the item exists.
    Conditional(Span),
}

impl ModuleScope {
    /// The items of a module whose source parsed as a whole.
    pub fn of(item: &ItemMod) -> Self {
        let mut scope = ModuleScope { in_module: true, ..ModuleScope::default() };
        for item in item.content.iter().flat_map(|(_, items)| items) {
            match item {
                Item::Const(item) => scope.add_constant(item.clone()),
                Item::Fn(item) => scope.add_function(item.clone().into()),
                _ => {}
            }
        }
        scope
    }

    /// The helper function called `name`.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.get(name)
    }

    fn add_constant(&mut self, item: ItemConst) {
        let name = text_of_name(&item.ident);
        self.watch(&name, &item.ident, &item.attrs);
        self.constants.insert(name, item);
    }

    fn add_function(&mut self, function: Function) {
        let name = function.name();
        if function.has_attribute("kernel") {
            self.kernels.push(name);
        } else {
            self.watch(&name, &function.sig.ident, &function.attrs);
            self.functions.insert(name, function);
        }
    }

    /// Notes down what makes the item called `name` unclear.
    fn watch(&mut self, name: &str, ident: &Ident, attrs: &[Attribute]) {
        let condition = condition_on(attrs).map(Unclear::Conditional);
        let known = self.constants.contains_key(name) || self.functions.contains_key(name);
        let twice = known.then(|| Unclear::Twice(at(ident.span())));
        if let Some(unclear) = condition.or(twice) {
            self.unclear.entry(name.to_owned()).or_insert(unclear);
        }
    }
}
