//! The part of a Program that decides who waits for whom: waits, signals, and the control and
//! numbers they depend on. What agents read and write is checked apart, so the three launches of
//! a run walk only this.

use crate::arena::Handle;
use crate::program::{
    Agent, At, BinOp, Cond, Expr, Op, Place, Program, Range, Stmt, Sym, Update, VarId,
};

/// `program` without what neither waits nor signals.
pub(super) fn of(program: &Program) -> Program {
    let mut skeleton = program.clone();
    let bare = program.agents.values().map(|agent| Agent {
        body: Live::new(program).body(&agent.body),
        exit: Live::new(program).body(&agent.exit),
        ..agent.clone()
    });
    skeleton.agents = bare.collect();
    skeleton
}

/// Variables that are read below the statement at hand.
struct Live {
    vars: Vec<bool>,
}

impl Live {
    fn new(program: &Program) -> Self {
        Live { vars: vec![false; program.vars.len()] }
    }

    /// A body has no value from an earlier turn (names are bound before use), so one pass from
    /// its end sees every use before the definition.
    fn body(&mut self, body: &[Stmt]) -> Vec<Stmt> {
        let mut kept: Vec<Stmt> = body.iter().rev().filter_map(|stmt| self.stmt(stmt)).collect();
        kept.reverse();
        kept
    }

    fn stmt(&mut self, stmt: &Stmt) -> Option<Stmt> {
        match &stmt.op {
            Op::Let { var, value } => {
                if !self.vars[var.index()] {
                    return None;
                }
                self.read(value);
                Some(stmt.clone())
            }
            Op::Row { table: _, index, vars } => {
                if !vars.iter().any(|var| self.vars[var.index()]) {
                    return None;
                }
                self.read(index);
                Some(stmt.clone())
            }
            Op::For { var, from, to, step, body } => {
                let body = self.body(body);
                if body.is_empty() {
                    return None;
                }
                [from, to, step].into_iter().for_each(|expr| self.read(expr));
                let (var, from, to, step) = (*var, from.clone(), to.clone(), step.clone());
                Some(Stmt { op: Op::For { var, from, to, step, body }, span: stmt.span })
            }
            Op::If { cond, body } => {
                let body = self.body(body);
                if body.is_empty() {
                    return None;
                }
                match cond {
                    Cond::Eq(a, b) | Cond::Ne(a, b) | Cond::Lt(a, b) => {
                        self.read(a);
                        self.read(b);
                    }
                }
                Some(Stmt { op: Op::If { cond: cond.clone(), body }, span: stmt.span })
            }
            Op::Wait { signal: _, slots, target, scope: _ } => {
                [&slots.lo, &slots.hi, target].into_iter().for_each(|expr| self.read(expr));
                Some(stmt.clone())
            }
            Op::Signal { at, signal: _, slot, update, scope: _, after: _ } => {
                if let At::Peer(rank) = at {
                    self.read(rank);
                }
                match update {
                    Update::Add(value) | Update::Set(value) => self.read(value),
                }
                self.read(slot);
                Some(stmt.clone())
            }
            Op::FenceProxyAsync
            | Op::Mainloop { .. }
            | Op::Store { .. }
            | Op::Sum { .. }
            | Op::Copy { .. } => None,
        }
    }

    fn read(&mut self, expr: &Expr) {
        match expr {
            Expr::Int(_) | Expr::Sym(_) => {}
            Expr::Var(var) => self.vars[var.index()] = true,
            Expr::Bin(_, a, b) => {
                self.read(a);
                self.read(b);
            }
        }
    }
}

/// Whether agents may touch other elements in one launch than in the next. Planes chosen by
/// `epoch % n` of at least `n` do not count: they hold for every epoch.
pub(super) fn varies_by_epoch(program: &Program) -> bool {
    let mut varies = Varies { program, vars: vec![false; program.vars.len()] };
    let agents = program.agents.values();
    agents.flat_map(|agent| [&agent.body, &agent.exit]).any(|body| varies.body(body))
}

struct Varies<'p> {
    program: &'p Program,
    /// Variables that depend on the epoch.
    vars: Vec<bool>,
}

impl Varies<'_> {
    fn body(&mut self, body: &[Stmt]) -> bool {
        body.iter().any(|stmt| self.stmt(&stmt.op))
    }

    fn stmt(&mut self, op: &Op) -> bool {
        match op {
            Op::Let { var, value } => {
                self.vars[var.index()] = self.expr(value);
                false
            }
            Op::Row { table: _, index, vars: _ } => self.expr(index),
            Op::For { var: _, from, to, step, body } => {
                self.expr(from) || self.expr(to) || self.expr(step) || self.body(body)
            }
            Op::If { cond: Cond::Eq(a, b) | Cond::Ne(a, b) | Cond::Lt(a, b), body } => {
                self.expr(a) || self.expr(b) || self.body(body)
            }
            Op::Wait { .. } | Op::Signal { .. } | Op::FenceProxyAsync => false,
            Op::Mainloop { products } => {
                products.iter().any(|product| self.place(&product.a) || self.place(&product.b))
            }
            Op::Store { to, value: _ } => self.place(to),
            Op::Sum { var: _, own: _, from } => self.place(from),
            Op::Copy { from, to } => self.place(from) || self.place(to),
        }
    }

    fn place(&self, place: &Place) -> bool {
        let planes = &self.program.buffers[place.buffer].planes;
        let by_plane =
            place.planes.iter().zip(planes).any(|(index, extent)| match (index, extent) {
                (Expr::Bin(BinOp::Rem, epoch, n), Expr::Int(planes)) => {
                    let fits = matches!(**n, Expr::Int(n) if (1..=*planes).contains(&n));
                    !(fits && **epoch == Expr::Sym(Sym::Epoch)) && self.expr(index)
                }
                (_, _) => self.expr(index),
            });
        let at = matches!(&place.at, At::Peer(rank) if self.expr(rank));
        at || by_plane || self.range(&place.rows) || self.range(&place.cols)
    }

    fn range(&self, range: &Range) -> bool {
        self.expr(&range.lo) || self.expr(&range.hi)
    }

    fn expr(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Int(_) => false,
            Expr::Sym(sym) => *sym == Sym::Epoch,
            Expr::Var(var) => self.var(*var),
            Expr::Bin(_, a, b) => self.expr(a) || self.expr(b),
        }
    }

    fn var(&self, var: VarId) -> bool {
        self.vars[var.index()]
    }
}
