//! Whether launches stay alike for ever: after the 32 bits of the epoch wrap, and before.
//!
//! The epoch is a 32-bit word. What is computed from it in 32 bits keeps its meaning over the wrap
//! where it is linear in the epoch (a target, a value of a signal: both sides wrap alike) or a
//! remainder by a power of two (whose period divides 2³²). So launch `e + P` does what launch
//! `e` did, with targets and values that have grown; `P` is the largest such power of two.

use super::Findings;
use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Rule};
use crate::program::{At, BinOp, Cond, Expr, Op, Place, Program, Range, Stmt, Sym, Update};
use crate::text::show_expr;

/// How an expression depends on the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Free,
    Periodic,
    Linear,
    Other,
}

/// The longest period: as many buffers in turn as anyone needs.
const PERIOD_LIMIT: i64 = 8;

/// Checks every expression of every agent.
pub(super) fn check(program: &Program, found: &mut Findings) {
    let mut kinds = Kinds::new(program);
    for stmt in program.statements() {
        kinds.stmt(stmt, found);
    }
}

/// The number of launches after which control flow, regions and slots repeat.
pub(super) fn period(program: &Program) -> u32 {
    let mut period = 1;
    for stmt in program.statements() {
        each_expr(&stmt.op, &mut |expr, _| period = period.max(modulus(expr)));
    }
    period as u32
}

/// The largest power of two that the epoch is taken modulo of in an expression.
fn modulus(expr: &Expr) -> i64 {
    match expr {
        Expr::Int(_) | Expr::Sym(_) | Expr::Var(_) => 1,
        Expr::First(rank) => modulus(rank),
        Expr::Bin(op, a, b) => {
            let inner = modulus(a).max(modulus(b));
            match **b {
                Expr::Int(p) if *op == BinOp::Rem && (1..=PERIOD_LIMIT).contains(&p) => {
                    inner.max(p)
                }
                _ => inner,
            }
        }
    }
}

struct Kinds<'p> {
    program: &'p Program,
    vars: Vec<Kind>,
}

impl<'p> Kinds<'p> {
    fn new(program: &'p Program) -> Self {
        Kinds { program, vars: vec![Kind::Free; program.vars.len()] }
    }

    fn stmt(&mut self, stmt: &'p Stmt, found: &mut Findings) {
        if let Op::Let { var, value } = &stmt.op {
            self.vars[var.index()] = self.kind(value);
        }
        let mut wrong = None;
        each_expr(&stmt.op, &mut |expr, may_grow| {
            let most = if may_grow { Kind::Linear } else { Kind::Periodic };
            if self.kind(expr) > most && wrong.is_none() {
                wrong = Some((expr.clone(), may_grow));
            }
        });
        let Some((expr, may_grow)) = wrong else { return };
        let message = format!(
            "`{}` means something else once the 32 bits of the epoch have wrapped",
            show_expr(self.program, &expr)
        );
        let help = if may_grow {
            "let targets and values grow by the same number in each launch, as `epoch * 8` does"
        } else {
            "take the epoch modulo 2, 4 or 8 here"
        };
        found.once(Rule::CounterWrap, stmt, || {
            Diagnostic::new(Rule::CounterWrap, stmt.span, message).help(help)
        });
    }

    fn kind(&self, expr: &Expr) -> Kind {
        let (op, a, b) = match expr {
            Expr::Int(_) => return Kind::Free,
            Expr::Sym(Sym::Epoch) => return Kind::Linear,
            Expr::Sym(_) => return Kind::Free,
            Expr::Var(var) => return self.vars[var.index()],
            Expr::First(rank) => {
                return match self.kind(rank) {
                    Kind::Free => Kind::Free,
                    Kind::Periodic => Kind::Periodic,
                    Kind::Linear | Kind::Other => Kind::Other,
                };
            }
            Expr::Bin(op, a, b) => (op, a, b),
        };
        let (left, right) = (self.kind(a), self.kind(b));
        let most = left.max(right);
        match op {
            _ if most <= Kind::Periodic || most == Kind::Other => most,
            BinOp::Add | BinOp::Sub => Kind::Linear,
            BinOp::Mul if left.min(right) == Kind::Free => Kind::Linear,
            BinOp::Rem if left == Kind::Linear => match **b {
                Expr::Int(p @ 1..=PERIOD_LIMIT) if p & (p - 1) == 0 => Kind::Periodic,
                _ => Kind::Other,
            },
            BinOp::Mul | BinOp::Rem | BinOp::Div | BinOp::CeilDiv | BinOp::Min | BinOp::Max => {
                Kind::Other
            }
        }
    }
}

/// Calls `visit` with each expression of an op, and whether that is one that may grow.
fn each_expr(op: &Op, visit: &mut dyn FnMut(&Expr, bool)) {
    let place = |place: &Place, visit: &mut dyn FnMut(&Expr, bool)| {
        if let At::Peer(rank) | At::Remote(rank) = &place.at {
            visit(rank, false);
        }
        let Range { lo: top, hi: bottom } = &place.rows;
        let Range { lo: left, hi: right } = &place.cols;
        for expr in place.planes.iter().chain([top, bottom, left, right]) {
            visit(expr, false);
        }
    };
    match op {
        // A name may stand for a target: what it is used for is asked where it is used.
        Op::Let { .. } | Op::FenceProxyAsync => {}
        Op::Row { table: _, index, vars: _ } => visit(index, false),
        Op::For { var: _, from, to, step, body: _ } => {
            [from, to, step].into_iter().for_each(|expr| visit(expr, false));
        }
        Op::If { cond: Cond::Eq(a, b) | Cond::Ne(a, b) | Cond::Lt(a, b), body: _ } => {
            [a, b].into_iter().for_each(|expr| visit(expr, false));
        }
        Op::Wait { signal: _, slots, target, scope: _ } => {
            [&slots.lo, &slots.hi].into_iter().for_each(|expr| visit(expr, false));
            visit(target, true);
        }
        Op::Mainloop { products } => {
            for product in products {
                place(&product.a, visit);
                place(&product.b, visit);
            }
        }
        Op::Store { to, value: _, adds: _ } => place(to, visit),
        Op::Sum { var: _, own: _, from } | Op::Load { index: _, from } => place(from, visit),
        Op::Signal { at, signal: _, slot, update, scope: _, after: _ } => {
            if let At::Peer(rank) | At::Remote(rank) = at {
                visit(rank, false);
            }
            visit(slot, false);
            match update {
                // What is added to a counter has to stay the same number.
                Update::Add(value) => visit(value, false),
                Update::Set(value) => visit(value, true),
            }
        }
        Op::Copy { from, to, adds: _ } => {
            place(from, visit);
            place(to, visit);
        }
    }
}
