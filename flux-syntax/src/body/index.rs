//! Integers of a protocol: ranks, slots, rows. They are arithmetic on what every rank knows, and are
//! carried as index expressions of the Program.

use super::{Bound, Reader};
use crate::position::position;
use flux_ir::Span;
use flux_ir::kernel::Protocol;
use flux_ir::program::{Cond, Expr as Index, Range, Sym};
use syn::{BinOp, Expr, ExprBinary, ExprRange, RangeLimits};

/// `ceil(M / world)`: rows of a full shard.
pub(super) fn shard_rows() -> Index {
    Index::from(Sym::M).ceil_div(Sym::World)
}

/// The rows that `rank` owns.
pub(super) fn shard(rank: Index) -> Range {
    let first = rank * shard_rows();
    Range::new(first.clone().min(Sym::M), (first + shard_rows()).min(Sym::M))
}

/// The ranks that own `rows`, of which there is one at least.
pub(super) fn owners(rows: &Range) -> Range {
    let last = rows.hi.clone() - 1i64;
    Range::new(rows.lo.clone() / shard_rows(), last / shard_rows() + 1i64)
}

/// The rows of the tile at hand.
pub(super) fn tile_rows() -> Range {
    let [first, end, ..] = Protocol::TILE;
    Range::new(first, end)
}

impl<'a> Reader<'a> {
    /// An expression that must be an integer.
    pub(super) fn index(&mut self, expr: &'a Expr) -> Option<Index> {
        let span = position(expr);
        match self.expression(expr) {
            Bound::Index(index) => Some(index),
            Bound::Broken => None,
            _ => {
                let help = "ranks, slots and rows are integers: `rank()`, `world()`, `hop + 1`";
                self.mistyped(span, "expected an integer", help);
                None
            }
        }
    }

    /// Rows: a range of integers, or those of the tile.
    pub(super) fn rows_of(&mut self, expr: &'a Expr) -> Option<Range> {
        let span = position(expr);
        match self.expression(expr) {
            Bound::Range(range) => Some(range),
            Bound::TileRows => Some(tile_rows()),
            Bound::Broken => None,
            _ => {
                let help = "write `shard(source)`, `tile.rows()` or `from..to`";
                self.mistyped(span, "expected rows", help);
                None
            }
        }
    }

    /// One slot, or a range of them.
    pub(super) fn slots(&mut self, expr: &'a Expr) -> Option<Range> {
        let span = position(expr);
        match self.expression(expr) {
            Bound::Index(index) => Some(Range::one(index)),
            Bound::Range(range) => Some(range),
            Bound::Broken => None,
            _ => {
                let help = "a slot is an integer, and several are a range: `owners(tile.rows())`";
                self.mistyped(span, "expected slots", help);
                None
            }
        }
    }

    pub(super) fn range(&mut self, range: &'a ExprRange) -> Bound<'a> {
        let span = position(range);
        let (Some(lo), Some(hi)) = (&range.start, &range.end) else {
            return self.refuse(span, "a range has two ends in a kernel", "write `0..world()`");
        };
        let (lo, hi) = (self.index(lo), self.index(hi));
        let (Some(lo), Some(hi)) = (lo, hi) else { return Bound::Broken };
        Bound::Range(match range.limits {
            RangeLimits::HalfOpen(_) => Range { lo, hi },
            RangeLimits::Closed(_) => Range { lo, hi: hi + 1i64 },
        })
    }

    /// `a + b` of integers.
    pub(super) fn integers(&mut self, op: &BinOp, a: Index, b: Index, span: Span) -> Bound<'a> {
        Bound::Index(match op {
            BinOp::Add(_) => a + b,
            BinOp::Sub(_) => a - b,
            BinOp::Mul(_) => a * b,
            BinOp::Div(_) => a / b,
            BinOp::Rem(_) => a % b,
            _ => {
                let found = crate::signature::text_of(op);
                let help = "there are `+`, `-`, `*`, `/` and `%`; comparisons stand in `if`";
                return self.refuse(
                    span,
                    format!("integers have no operator `{found}` here"),
                    help,
                );
            }
        })
    }

    /// A comparison of integers, and its contrary.
    pub(super) fn condition(&mut self, expr: &'a Expr) -> Option<[Cond; 2]> {
        let Expr::Binary(ExprBinary { left, op, right, .. }) = super::expression::strip(expr)
        else {
            let help = "compare two integers: `if hop > 0 { … }`";
            self.refuse(position(expr), "expected a comparison", help);
            return None;
        };
        let (a, b) = (self.index(left), self.index(right));
        let (a, b) = (a?, b?);
        let less = |a: &Index, b: &Index| Cond::Lt(a.clone(), b.clone());
        // `a < b`, or else `b < a + 1`.
        let at_least = |a: &Index, b: &Index| Cond::Lt(b.clone(), a.clone() + 1i64);
        Some(match op {
            BinOp::Eq(_) => [Cond::Eq(a.clone(), b.clone()), Cond::Ne(a, b)],
            BinOp::Ne(_) => [Cond::Ne(a.clone(), b.clone()), Cond::Eq(a, b)],
            BinOp::Lt(_) => [less(&a, &b), at_least(&a, &b)],
            BinOp::Gt(_) => [less(&b, &a), at_least(&b, &a)],
            BinOp::Ge(_) => [at_least(&a, &b), less(&a, &b)],
            BinOp::Le(_) => [at_least(&b, &a), less(&b, &a)],
            _ => {
                let help =
                    "there are `==`, `!=`, `<`, `<=`, `>` and `>=`; `if` inside `if` is `and`";
                self.refuse(position(op), "expected a comparison", help);
                return None;
            }
        })
    }

    /// `x.min(y)` and the like, of an integer.
    pub(super) fn index_method(
        &mut self,
        x: Index,
        name: &str,
        span: Span,
        args: &[&'a Expr],
    ) -> Bound<'a> {
        let known = ["min", "max", "div_ceil"];
        if !known.contains(&name) {
            let help = crate::suggest::did_you_mean(name, &known);
            return self.mistyped(span, format!("an integer has no method `{name}` here"), help);
        }
        let [y] = args else {
            return self.wrong_arity(name, 1, args.len(), span, &format!("x.{name}(y)"));
        };
        let Some(y) = self.index(y) else { return Bound::Broken };
        Bound::Index(match name {
            "min" => x.min(y),
            "max" => x.max(y),
            _ => x.ceil_div(y),
        })
    }
}
