//! Expressions.

use super::protocol::Within;
use super::{Bound, Callable, Closure, Reader};
use super::{MOST_OPS, MOST_STEPS};
use crate::function::text_of_name;
use crate::limits::{EXPRESSIONS, nested_too_deep};
use crate::position::{at, position};
use flux_ir::Span;
use flux_ir::kernel::{Binary, Op, Unary, Value};
use std::rc::Rc;
use syn::{BinOp, Expr, ExprBinary, ExprUnary, Pat, UnOp};

/// What stands inside parentheses and references: both are transparent.
pub(super) fn strip(expr: &Expr) -> &Expr {
    match expr {
        Expr::Paren(inner) => strip(&inner.expr),
        Expr::Group(inner) => strip(&inner.expr),
        Expr::Reference(inner) => strip(&inner.expr),
        _ => expr,
    }
}

impl<'a> Reader<'a> {
    /// Evaluates an expression, as far as the kernel stays within what can be read.
    pub(super) fn expression(&mut self, expr: &'a Expr) -> Bound<'a> {
        if self.exhausted {
            return Bound::Broken;
        }
        self.steps += 1;
        if self.steps > MOST_STEPS || self.ops.len() > MOST_OPS {
            self.exhausted = true;
            let message = format!("the kernel has more than {MOST_OPS} operations");
            let help = "helpers are evaluated at each call: name what is used twice, `let x = …;`";
            return self.refuse(position(expr), message, help);
        }
        // Each helper and closure is within the limit by itself; their calls add up.
        if self.depth >= EXPRESSIONS {
            return self.report(nested_too_deep(position(expr)));
        }
        self.depth += 1;
        let bound = self.kind_of_expression(expr);
        self.depth -= 1;
        bound
    }

    fn kind_of_expression(&mut self, expr: &'a Expr) -> Bound<'a> {
        let span = position(expr);
        match expr {
            Expr::Paren(inner) => self.expression(&inner.expr),
            Expr::Group(inner) => self.expression(&inner.expr),
            Expr::Reference(inner) => self.expression(&inner.expr),
            Expr::Lit(literal) => self.literal(&literal.lit),
            Expr::Path(path) => self.path(path),
            Expr::Binary(binary) => self.binary(binary),
            Expr::Unary(unary) => self.unary(unary),
            Expr::Call(call) => self.call(call),
            Expr::MethodCall(call) => self.method_call(call),
            Expr::Block(block) => {
                if let Some(label) = &block.label {
                    return self.refuse(position(label), "blocks have no labels", "remove it");
                }
                self.block(&block.block)
            }
            Expr::Closure(closure) => {
                for (token, word) in [
                    (closure.asyncness.map(|t| t.span), "async"),
                    (closure.constness.map(|t| t.span), "const"),
                    (closure.movability.map(|t| t.span), "static"),
                ] {
                    if let Some(token) = token {
                        return self.refuse(
                            at(token),
                            format!("a closure is never `{word}`"),
                            "remove it",
                        );
                    }
                }
                let names = self.names.clone();
                Bound::Callable(Callable::Closure(Rc::new(Closure { closure, names })))
            }
            Expr::If(inner) if self.within == Within::Role => {
                self.role_condition(inner, at(inner.if_token.span))
            }
            Expr::If(inner) => {
                let help = "choose by arithmetic: `x.max(0.0)`, `x.min(1.0)`, `relu(x)`";
                self.refuse(at(inner.if_token.span), "a tile has no conditions", help)
            }
            Expr::Match(inner) => {
                let help = "choose by arithmetic: `x.max(0.0)`, `x.min(1.0)`, `relu(x)`";
                self.refuse(at(inner.match_token.span), "a tile has no conditions", help)
            }
            Expr::Let(inner) => self.refuse(
                at(inner.let_token.span),
                "a tile has no conditions",
                "write `let name = …;`",
            ),
            Expr::ForLoop(inner) => self.for_loop(inner),
            Expr::While(inner) => self.inner_loop(at(inner.while_token.span)),
            Expr::Loop(inner) => self.inner_loop(at(inner.loop_token.span)),
            Expr::Break(inner) => self.left_early(at(inner.break_token.span), "break"),
            Expr::Continue(inner) => self.left_early(at(inner.continue_token.span), "continue"),
            Expr::Return(inner) => {
                let help = if self.inlining.is_empty() {
                    "every tile is stored: write `c.store(tile, …);`"
                } else {
                    "write the value as the last line, without `return` and semicolon"
                };
                self.refuse(at(inner.return_token.span), "`return` is not part of a kernel", help)
            }
            Expr::Try(inner) => self.refuse(
                position(&inner.question_token),
                "nothing in a kernel fails, so there is no `?`",
                "remove it: `launch` returns the errors",
            ),
            Expr::Assign(inner) => self.assigned(position(&inner.eq_token)),
            Expr::Index(inner) => {
                let help = "read a tile: `x.load(tile)`, `x.cols(tile)` for a vector over the \
                    columns, `x.rows(tile)` for one over the rows";
                self.refuse(at(inner.bracket_token.span.open()), "tensors are not indexed", help)
            }
            Expr::Field(inner) => self.field(inner),
            Expr::Cast(inner) => {
                let to = crate::signature::text_of(&inner.ty);
                let help = match to.as_str() {
                    "bf16" | "f16" | "f32" => format!("write `.cast::<{to}>()`"),
                    _ => "values are f32: write `.cast::<bf16>()` to round to a type".to_owned(),
                };
                self.refuse(at(inner.as_token.span), "tiles are not converted by `as`", help)
            }
            Expr::Macro(call) => self.macro_call(position(&call.mac.path)),
            Expr::Array(_) | Expr::Repeat(_) | Expr::Tuple(_) | Expr::Struct(_) => {
                let help = "name each value: `let x = …;`";
                self.refuse(span, "a kernel has no tuples, arrays or structs", help)
            }
            Expr::Range(range) => self.range(range),
            Expr::Unsafe(inner) => {
                self.refuse(at(inner.unsafe_token.span), "a kernel is safe", "remove `unsafe`")
            }
            _ => self.refuse(
                span,
                "this is not part of the language of kernels",
                "a kernel consists of `let`, arithmetic, calls and `store`",
            ),
        }
    }

    /// `range.start` and `range.end`.
    fn field(&mut self, field: &'a syn::ExprField) -> Bound<'a> {
        let span = position(&field.dot_token);
        let syn::Member::Named(name) = &field.member else {
            return self.refuse(span, "nothing in a kernel has fields", "call a method");
        };
        match (self.expression(&field.base), text_of_name(name).as_str()) {
            (Bound::Range(range), "start") => Bound::Index(range.lo),
            (Bound::Range(range), "end") => Bound::Index(range.hi),
            (Bound::Broken, _) => Bound::Broken,
            _ => self.refuse(span, "nothing in a kernel has fields", "call a method"),
        }
    }

    pub(super) fn inner_loop(&mut self, span: Span) -> Bound<'a> {
        let help = "the loop over tiles is the only one; `gemm` contains the sum over k";
        self.refuse(span, "a tile is computed without loops", help)
    }

    fn left_early(&mut self, span: Span, word: &str) -> Bound<'a> {
        let help = "remove it: the schedule decides the order of the tiles";
        self.refuse(span, format!("every tile is computed, so there is no `{word}`"), help)
    }

    pub(super) fn assigned(&mut self, span: Span) -> Bound<'a> {
        let help = "write `let x = …;`: a name can be reused for a new value";
        self.refuse(span, "values are never assigned", help)
    }

    pub(super) fn macro_call(&mut self, span: Span) -> Bound<'a> {
        let help = "write the call out, or make it a function in the same `#[flux::module] mod`";
        self.refuse(span, "macros are not expanded in a kernel", help)
    }

    fn binary(&mut self, binary: &'a ExprBinary) -> Bound<'a> {
        let span = position(&binary.op);
        let op = match binary.op {
            BinOp::Add(_) => Binary::Add,
            BinOp::Sub(_) => Binary::Sub,
            BinOp::Mul(_) => Binary::Mul,
            BinOp::Div(_) => Binary::Div,
            BinOp::AddAssign(_) => return self.accumulate(&binary.left, &binary.right, span),
            BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_) => return self.assigned(span),
            BinOp::Eq(_)
            | BinOp::Ne(_)
            | BinOp::Lt(_)
            | BinOp::Le(_)
            | BinOp::Gt(_)
            | BinOp::Ge(_)
            | BinOp::And(_)
            | BinOp::Or(_) => {
                let help = "choose by arithmetic: `x.max(0.0)`, `x.min(1.0)`, `relu(x)`";
                return self.refuse(span, "a tile has no conditions", help);
            }
            BinOp::Rem(_) => {
                return match (self.expression(&binary.left), self.expression(&binary.right)) {
                    (Bound::Index(x), Bound::Index(y)) => self.integers(&binary.op, x, y, span),
                    (Bound::Broken, _) | (_, Bound::Broken) => Bound::Broken,
                    _ => {
                        let help = "there are `+`, `-`, `*` and `/`";
                        self.refuse(span, "tiles have no operator `%`", help)
                    }
                };
            }
            _ => {
                let help = "there are `+`, `-`, `*` and `/`";
                let found = crate::signature::text_of(&binary.op);
                return self.refuse(span, format!("tiles have no operator `{found}`"), help);
            }
        };
        // Operands are evaluated in their order, ops included that a scalar becomes.
        let left = match self.expression(&binary.left) {
            Bound::Index(x) => match self.expression(&binary.right) {
                Bound::Index(y) => return self.integers(&binary.op, x, y, span),
                right => {
                    self.as_value(Bound::Index(x), position(&*binary.left));
                    self.as_value(right, position(&*binary.right));
                    return Bound::Broken;
                }
            },
            left => left,
        };
        let x = self.as_value(left, position(&*binary.left));
        let y = self.value(&binary.right);
        match (x, y) {
            (Some(x), Some(y)) => Bound::Value(self.emit(Op::Binary { op, x, y }, span)),
            _ => Bound::Broken,
        }
    }

    fn unary(&mut self, unary: &'a ExprUnary) -> Bound<'a> {
        let span = position(&unary.op);
        match unary.op {
            UnOp::Deref(_) => self.expression(&unary.expr),
            UnOp::Neg(_) => match self.value(&unary.expr) {
                Some(x) => Bound::Value(self.emit(Op::Unary { op: Unary::Neg, x }, span)),
                None => Bound::Broken,
            },
            _ => self.refuse(span, "tiles have no operator `!`", "there are `+`, `-`, `*` and `/`"),
        }
    }

    /// An expression that must be a tile or a number.
    pub(super) fn value(&mut self, expr: &'a Expr) -> Option<Value> {
        let bound = self.expression(expr);
        self.as_value(bound, position(expr))
    }

    pub(super) fn as_value(&mut self, bound: Bound<'a>, span: Span) -> Option<Value> {
        let (found, help) = match bound {
            Bound::Value(value) => return Some(value),
            Bound::Scalar(param) => return Some(self.emit(Op::Scalar { param }, span)),
            Bound::Broken => return None,
            Bound::Tensor(param) => {
                let name = self.name_of(param);
                (
                    format!("the whole tensor `{name}`"),
                    format!(
                        "write `{name}.load(tile)`, `{name}.cols(tile)` for a vector over the \
                            columns, or `{name}.rows(tile)` for one over the rows"
                    ),
                )
            }
            Bound::Transposed(param) => {
                let name = self.name_of(param);
                (format!("the whole tensor `{name}`"), format!("write `gemm(a, {name}.t(), tile)`"))
            }
            Bound::Ready(_) => (
                "rows of a gathered tensor".to_owned(),
                "multiply them: `gemm(a, b.t(), tile)`".to_owned(),
            ),
            Bound::Tile => ("the position of a tile".to_owned(), "write `x.load(tile)`".to_owned()),
            Bound::TileReduction => {
                ("what a tile sums over".to_owned(), "write `x.wait(tile.reduction())`".to_owned())
            }
            Bound::Summed(param, _) | Bound::SummedTransposed(param, _) => (
                format!("gathered rows of `{}`", self.name_of(param)),
                "multiply with them: `gemm(a.t(), x, tile)`".to_owned(),
            ),
            Bound::TileRows => {
                ("rows of the tile".to_owned(), "write `a.wait(tile.rows())`".to_owned())
            }
            Bound::Index(flux_ir::program::Expr::Int(value)) => {
                // `1 / 2` is 0 in Rust. Reading it as 0.5 here would be another meaning than the one
                // that rustc checks.
                let help = format!("write `{value}.0`: arithmetic is done in f32");
                self.refuse(span, "expected an f32, found an integer", help);
                return None;
            }
            Bound::Index(_) => (
                "an integer".to_owned(),
                "ranks, slots and rows are no elements: write a number as `2.0`".to_owned(),
            ),
            Bound::Zeros => (
                "a sum without products".to_owned(),
                "add one to it: `for k in tile.k_slices(4) { acc += gemm(a, b.t(), k); }`"
                    .to_owned(),
            ),
            Bound::Flagged(_) => (
                "the workspace".to_owned(),
                "take the total of what was put there: `parts.sum(tile, x)`".to_owned(),
            ),
            Bound::Workspace(_)
            | Bound::Signals(_)
            | Bound::Extent(_)
            | Bound::Range(_)
            | Bound::Arrived(_)
            | Bound::Own(..)
            | Bound::Part(_)
            | Bound::Sent
            | Bound::Slices(_)
            | Bound::Slice
            | Bound::Role => (
                "a part of the protocol".to_owned(),
                "multiply rows that are ready: `gemm(all.ready(tile.rows(), …), b.t(), tile)`"
                    .to_owned(),
            ),
            Bound::Callable(_) => ("a function".to_owned(), "call it: `f(x)`".to_owned()),
            Bound::Unit => (
                "nothing".to_owned(),
                "`store` and `add` yield no value; a block yields its last line without semicolon"
                    .to_owned(),
            ),
        };
        self.mistyped(span, format!("expected a tile or an f32, found {found}"), help);
        None
    }

    /// Checks that an argument is the loop's tile.
    pub(super) fn tile(&mut self, expr: &'a Expr) -> Option<()> {
        match self.expression(expr) {
            Bound::Tile => Some(()),
            Bound::Broken => None,
            _ => {
                let help = "pass the `tile` of `for tile in c.tiles()`";
                self.mistyped(position(expr), "expected the tile of the loop", help);
                None
            }
        }
    }

    /// Checks that an argument is the slice of the loop.
    pub(super) fn slice(&mut self, expr: &'a Expr) -> Option<()> {
        match self.expression(expr) {
            Bound::Slice => Some(()),
            Bound::Broken => None,
            _ => {
                let help = "pass the `k` of `for k in tile.k_slices(…)`";
                self.mistyped(position(expr), "expected the slice of the loop", help);
                None
            }
        }
    }

    /// The name of a closure's or function's parameter; `None` is `_`.
    pub(super) fn parameter_name(&mut self, pattern: &'a Pat) -> Option<String> {
        match pattern {
            Pat::Type(typed) => self.parameter_name(&typed.pat),
            Pat::Paren(inner) => self.parameter_name(&inner.pat),
            Pat::Reference(inner) => self.parameter_name(&inner.pat),
            Pat::Wild(_) => None,
            Pat::Ident(pattern) => {
                if let Some(token) = &pattern.mutability {
                    self.assigned(at(token.span));
                }
                Some(text_of_name(&pattern.ident))
            }
            pattern => {
                let help = "give each parameter a name";
                self.refuse(position(pattern), "expected a name, found a pattern", help);
                None
            }
        }
    }
}
