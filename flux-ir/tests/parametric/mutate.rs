//! Mutants of a Program: one change of its numbers, conditions or statements at a time.

use flux_ir::arena::Arena;
use flux_ir::program::{
    At, BinOp, Cond, Expr, Op, Program, Range, Stmt, Sym, Table, Update, VarId,
};

/// The number of single changes.
pub(crate) fn count(program: &Program) -> usize {
    let mut changes = Changes { wanted: usize::MAX, next: 0, vars: vars(program) };
    changes.program(&mut program.clone());
    changes.next
}

/// The mutant by the change of number `index`.
pub(crate) fn mutant(program: &Program, index: usize) -> Program {
    let mut mutant = program.clone();
    Changes { wanted: index, next: 0, vars: vars(program) }.program(&mut mutant);
    mutant
}

fn vars(program: &Program) -> Vec<VarId> {
    program.vars.handles().collect()
}

/// Counts places where a change is possible, and makes the wanted one.
struct Changes {
    wanted: usize,
    next: usize,
    vars: Vec<VarId>,
}

impl Changes {
    /// Whether this is the wanted change.
    fn now(&mut self) -> bool {
        self.next += 1;
        self.next - 1 == self.wanted
    }

    fn program(&mut self, program: &mut Program) {
        for (_, value) in &mut program.lets {
            self.expr(value);
        }
        let mut tables: Vec<Table> = program.tables.values().cloned().collect();
        for table in &mut tables {
            table.fields.iter_mut().for_each(|field| self.expr(field));
            if self.now() {
                table.fields.swap(0, 1);
            }
        }
        program.tables = tables.into_iter().collect();
        let mut agents: Vec<_> = program.agents.values().cloned().collect();
        for agent in &mut agents {
            self.body(&mut agent.body);
            self.body(&mut agent.exit);
            if self.now() {
                std::mem::swap(&mut agent.body, &mut agent.exit);
            }
        }
        program.agents = agents.into_iter().collect::<Arena<_, _>>();
    }

    fn body(&mut self, body: &mut Vec<Stmt>) {
        for at in 0..body.len() {
            if self.now() {
                body.remove(at);
                return;
            }
            if self.now() {
                body.insert(at, body[at].clone());
                return;
            }
            if at > 0 && self.now() {
                body.swap(at - 1, at);
                return;
            }
            if !body[at].op.body().is_empty() && self.now() {
                let inner = body[at].op.body().to_vec();
                body.splice(at..=at, inner);
                return;
            }
            self.op(&mut body[at].op);
        }
    }

    fn op(&mut self, op: &mut Op) {
        match op {
            Op::Let { value, .. } => self.expr(value),
            Op::Row { index, vars, .. } => {
                self.expr(index);
                if self.now() {
                    vars.swap(0, 1);
                }
                if self.now() {
                    vars.swap(2, 3);
                }
            }
            Op::For { from, to, step, body, .. } => {
                [from, to, step].into_iter().for_each(|expr| self.expr(expr));
                self.body(body);
            }
            Op::If { cond, body } => {
                self.cond(cond);
                self.body(body);
            }
            Op::Wait { slots: Range { lo, hi }, target, .. } => {
                [lo, hi, target].into_iter().for_each(|expr| self.expr(expr));
            }
            Op::Signal { at, slot, update, .. } => {
                match at {
                    At::Own => {
                        if self.now() {
                            *at = At::Peer(0i64.into());
                        }
                    }
                    At::Peer(rank) | At::Remote(rank) => {
                        self.expr(rank);
                        if self.now() {
                            *at = At::Own;
                        }
                    }
                }
                self.expr(slot);
                let (Update::Add(value) | Update::Set(value)) = update;
                self.expr(value);
                if self.now() {
                    *update = match update.clone() {
                        Update::Add(value) => Update::Set(value),
                        Update::Set(value) => Update::Add(value),
                    };
                }
            }
            Op::FenceProxyAsync
            | Op::Mainloop { .. }
            | Op::Store { .. }
            | Op::Sum { .. }
            | Op::Load { .. }
            | Op::Copy { .. } => {}
        }
    }

    fn cond(&mut self, cond: &mut Cond) {
        let (Cond::Eq(a, b) | Cond::Ne(a, b) | Cond::Lt(a, b)) = cond;
        self.expr(a);
        self.expr(b);
        let (a, b) = (a.clone(), b.clone());
        let others = [
            Cond::Eq(a.clone(), b.clone()),
            Cond::Ne(a.clone(), b.clone()),
            Cond::Lt(a.clone(), b.clone()),
            Cond::Lt(b, a),
        ];
        for other in others {
            if other != *cond && self.now() {
                *cond = other;
                return;
            }
        }
    }

    fn expr(&mut self, expr: &mut Expr) {
        for by in [-1i64, 1] {
            if self.now() {
                *expr = expr.clone() + by;
                return;
            }
        }
        match expr {
            Expr::Int(value) => {
                let value = *value;
                for other in [0, 2 * value, value + 2] {
                    if other != value && self.now() {
                        *expr = Expr::Int(other);
                        return;
                    }
                }
            }
            Expr::Sym(_) | Expr::Var(_) => self.leaf(expr),
            Expr::First(rank) => self.expr(rank),
            Expr::Bin(op, a, b) => {
                const OPS: [BinOp; 8] = [
                    BinOp::Add,
                    BinOp::Sub,
                    BinOp::Mul,
                    BinOp::Div,
                    BinOp::CeilDiv,
                    BinOp::Rem,
                    BinOp::Min,
                    BinOp::Max,
                ];
                for other in OPS {
                    if other != *op && self.now() {
                        *op = other;
                        return;
                    }
                }
                self.expr(a);
                self.expr(b);
                for side in [a.clone(), b.clone()] {
                    if self.now() {
                        *expr = *side;
                        return;
                    }
                }
            }
        }
    }

    /// A symbol or a variable becomes another one.
    fn leaf(&mut self, expr: &mut Expr) {
        let syms = Sym::ALL.into_iter().map(Expr::from);
        let vars: Vec<_> = self.vars.iter().copied().map(Expr::from).collect();
        for other in syms.chain(vars) {
            if other != *expr && self.now() {
                *expr = other;
                return;
            }
        }
    }
}
