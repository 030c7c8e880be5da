//! Statements and blocks.

use super::{Bound, Reader};
use crate::function::text_of_name;
use crate::position::{at, position};
use syn::{Block, Expr, Local, Pat, Stmt};

impl<'a> Reader<'a> {
    /// A block; yields what its last expression yields.
    pub(super) fn block(&mut self, block: &'a Block) -> Bound<'a> {
        self.statements(&block.stmts)
    }

    pub(super) fn statements(&mut self, statements: &'a [Stmt]) -> Bound<'a> {
        let depth = self.names.len();
        let mut last = Bound::Unit;
        for statement in statements {
            last = self.statement(statement);
        }
        self.names.truncate(depth);
        last
    }

    /// One statement; yields the value of an expression without a semicolon.
    pub(super) fn statement(&mut self, statement: &'a Stmt) -> Bound<'a> {
        match statement {
            Stmt::Local(local) => {
                self.local(local);
                Bound::Unit
            }
            Stmt::Expr(expr, None) => self.expression(expr),
            Stmt::Expr(expr, Some(_)) => {
                let bound = self.expression(expr);
                self.discard(expr, &bound);
                Bound::Unit
            }
            Stmt::Item(item) => {
                let help = "put kernel and item in one `#[flux::module] mod`";
                self.refuse(position(item), "a kernel contains no items", help)
            }
            Stmt::Macro(call) => {
                let span = position(&call.mac.path);
                self.macro_call(span)
            }
        }
    }

    /// `x;` does nothing, so it is hardly what was meant.
    fn discard(&mut self, expr: &'a Expr, bound: &Bound<'a>) {
        let help = match bound {
            Bound::Unit | Bound::Broken => return,
            // Reported as a wait that is never used.
            Bound::Ready(_) | Bound::Role => return,
            Bound::Arrived(None) => return,
            Bound::Sent => {
                let help = "name it and tell of it: `arrived.signal(to, slot, sent);`";
                let message = "nobody is told of what is put here";
                self.refuse(position(expr), message, help);
                return;
            }
            Bound::Value(_) => "store it, `c.store(tile, …);`, or name it, `let x = …;`",
            Bound::Tensor(_)
            | Bound::Scalar(_)
            | Bound::Transposed(_)
            | Bound::Tile
            | Bound::TileRows
            | Bound::TileReduction
            | Bound::Summed(..)
            | Bound::SummedTransposed(..)
            | Bound::Callable(_)
            | Bound::Index(_)
            | Bound::Range(_)
            | Bound::Extent(_)
            | Bound::Workspace(_)
            | Bound::Flagged(_)
            | Bound::Signals(_)
            | Bound::Arrived(Some(_))
            | Bound::Own(..)
            | Bound::Part(_)
            | Bound::Slices(_)
            | Bound::Slice
            | Bound::Zeros => "remove it",
        };
        self.refuse(position(expr), "this statement does nothing", help);
    }

    fn local(&mut self, local: &'a Local) {
        let name = match &local.pat {
            Pat::Type(typed) => &*typed.pat,
            pattern => pattern,
        };
        let name = match name {
            Pat::Ident(pattern) if pattern.subpat.is_none() && pattern.by_ref.is_none() => {
                if let Some(token) = &pattern.mutability
                    && !is_zeros(local)
                {
                    let help = format!(
                        "write `let {0} = …;` again for a new value: names can be reused",
                        pattern.ident
                    );
                    self.refuse(at(token.span), "values are never assigned", help);
                }
                Some(text_of_name(&pattern.ident))
            }
            Pat::Wild(_) => None,
            pattern => {
                let help = "write `let name = …;`, one value each";
                self.refuse(position(pattern), "expected a name, found a pattern", help);
                None
            }
        };
        let bound = match &local.init {
            Some(init) => {
                if let Some((token, _)) = &init.diverge {
                    let help = "write `let name = …;`: a tile has no conditions";
                    self.refuse(at(token.span), "`let … else` is not part of a kernel", help);
                }
                let before = std::mem::replace(&mut self.binding, name.clone());
                let bound = self.expression(&init.expr);
                self.binding = before;
                match &name {
                    Some(name) => self.named(name, bound, position(&init.expr)),
                    None => bound,
                }
            }
            None => {
                let help = "write `let name = …;`";
                self.refuse(position(&local.pat), "expected a value, found none", help)
            }
        };
        if matches!(bound, Bound::Unit) {
            let span =
                local.init.as_ref().map_or_else(|| position(local), |init| position(&init.expr));
            self.mistyped(
                span,
                "expected a value, found nothing",
                "`store` and `add` yield no value",
            );
        }
        if let Some(name) = name {
            self.names.push((name, bound));
        }
    }
}

/// Whether it is `let mut acc = zeros();`, the one name whose value changes.
fn is_zeros(local: &Local) -> bool {
    let Some(init) = &local.init else { return false };
    let Expr::Call(call) = &*init.expr else { return false };
    let Expr::Path(path) = &*call.func else { return false };
    path.path.segments.last().is_some_and(|last| last.ident == "zeros")
}
