//! Literals, and the constants of a module.

use super::{Bound, Reader};
use crate::conditional::conditions;
use crate::function::text_of_name;
use crate::limits::deep_expression;
use crate::position::{at, position};
use flux_ir::Span;
use flux_ir::kernel::Op;
use quote::ToTokens;
use syn::visit::Visit;
use syn::{ItemConst, Lit, Type};

impl<'a> Reader<'a> {
    pub(super) fn literal(&mut self, literal: &Lit) -> Bound<'a> {
        let span = at(literal.span());
        match literal {
            Lit::Float(number) => match number.suffix() {
                "" | "f32" => match number.base10_parse() {
                    Ok(value) => Bound::Value(self.emit(Op::Const(value), span)),
                    Err(error) => self.refuse(span, error.to_string(), "write it as `1.5`"),
                },
                suffix => {
                    let help =
                        format!("write `{}`: arithmetic is done in f32", number.base10_digits());
                    self.refuse(span, format!("expected an f32, found an `{suffix}`"), help)
                }
            },
            Lit::Int(number) => match number.suffix() {
                "f32" => match number.base10_parse() {
                    Ok(value) => Bound::Value(self.emit(Op::Const(value), span)),
                    Err(error) => self.refuse(span, error.to_string(), "write it as `1.5`"),
                },
                "" | "u32" => match number.base10_parse::<u32>() {
                    Ok(value) => Bound::Index(value.into()),
                    Err(error) => self.refuse(span, error.to_string(), "write it as `1.5`"),
                },
                // `1 / 2` is 0 in Rust. Reading it as 0.5 here would be another meaning than
                // the one that rustc checks.
                _ => {
                    let help =
                        format!("write `{}.0`: arithmetic is done in f32", number.base10_digits());
                    self.refuse(span, "expected an f32, found an integer", help)
                }
            },
            Lit::Str(_) | Lit::ByteStr(_) | Lit::CStr(_) | Lit::Char(_) => {
                self.refuse(span, "a kernel has no text", "remove it")
            }
            _ => self.refuse(span, "expected an f32", "write a number such as `1.5`"),
        }
    }

    /// A constant of the module: its expression, evaluated where it is used.
    pub(super) fn constant(&mut self, item: &'a ItemConst, used: Span) -> Bound<'a> {
        let name = text_of_name(&item.ident);
        let is = |name| matches!(&*item.ty, Type::Path(path) if path.path.is_ident(name));
        if !is("f32") && !is("u32") {
            let found = crate::signature::text_of(&item.ty);
            let help = format!("write `const {name}: f32 = …;`, or `u32` for ranks and slots");
            return self.mistyped(
                used,
                format!("expected an f32 or a u32, found `{name}` of type `{found}`"),
                help,
            );
        }
        if self.inlining.contains(&name) {
            return self.refuse(
                position(&item.ident),
                format!("`{name}` is defined by itself"),
                "write a number",
            );
        }
        if let Some(deep) = deep_expression(|depth| depth.visit_expr(&item.expr)) {
            return self.report(deep);
        }
        for condition in conditions(item.expr.to_token_stream()) {
            self.report(condition);
        }
        // The names of the kernel are out of a constant's sight.
        let names = std::mem::take(&mut self.names);
        self.inlining.push(name);
        let bound = self.expression(&item.expr);
        self.inlining.pop();
        self.names = names;
        bound
    }
}
