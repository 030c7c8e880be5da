//! Index arithmetic: 32-bit signed, total as in [`flux_ir::eval`] (a quotient or remainder by
//! zero is 0).

use super::Kernel;
use crate::context::{Int, Is};
use crate::error::Error;
use crate::nvvm::memory;
use crate::plan::index;
use flux_ir::abi::Word;
use flux_ir::program::{BinOp, Cond, Expr, Sym, VarId};

impl<'c> Kernel<'c, '_> {
    pub(super) fn expr(&self, expr: &Expr) -> Result<Int<'c>, Error> {
        let cx = &self.cx;
        Ok(match expr {
            Expr::Int(value) => match i32::try_from(*value) {
                Ok(value) => cx.int(value),
                Err(_) => {
                    let message = format!("index {value} does not fit 32 bits");
                    return Err(self.unsupported(message, "use smaller numbers"));
                }
            },
            Expr::Sym(sym) => self.sym(*sym),
            Expr::Var(var) => cx.get(self.vars[index(*var)]),
            Expr::First(rank) => {
                let rank = cx.max(self.expr(rank)?, cx.int(0));
                let rank = cx.widen(cx.min(rank, self.sym(Sym::World)));
                let at = cx.add(self.word(Word::Firsts), cx.shl(rank, 2));
                memory::ld_global_nc_u32(cx, at)
            }
            Expr::Bin(op, a, b) => {
                let literal = matches!(**b, Expr::Int(1..));
                let (a, b) = (self.expr(a)?, self.expr(b)?);
                match op {
                    BinOp::Add => cx.add(a, b),
                    BinOp::Sub => cx.sub(a, b),
                    BinOp::Mul => cx.mul(a, b),
                    BinOp::Div => self.total(b, literal, |b| cx.udiv(a, b)),
                    BinOp::CeilDiv => {
                        let up = cx.add(a, cx.sub(b, cx.int(1)));
                        self.total(b, literal, |b| cx.udiv(up, b))
                    }
                    BinOp::Rem => self.total(b, literal, |b| cx.urem(a, b)),
                    BinOp::Min => cx.min(a, b),
                    BinOp::Max => cx.max(a, b),
                }
            }
        })
    }

    /// `by(divisor)`, or 0 where the divisor is 0.
    fn total(&self, divisor: Int<'c>, literal: bool, by: impl Fn(Int<'c>) -> Int<'c>) -> Int<'c> {
        if literal {
            return by(divisor);
        }
        let cx = &self.cx;
        let zero = cx.is(divisor, Is::Eq, cx.int(0));
        let result = by(cx.select(zero, cx.int(1), divisor));
        cx.select(zero, cx.int(0), result)
    }

    pub(super) fn cond(&self, cond: &Cond) -> Result<Int<'c>, Error> {
        let (a, how, b) = match cond {
            Cond::Eq(a, b) => (a, Is::Eq, b),
            Cond::Ne(a, b) => (a, Is::Ne, b),
            Cond::Lt(a, b) => (a, Is::Lt, b),
        };
        Ok(self.cx.is(self.expr(a)?, how, self.expr(b)?))
    }

    pub(super) fn define(&self, var: VarId, value: Int<'c>) {
        self.cx.set(self.vars[index(var)], value);
    }
}
