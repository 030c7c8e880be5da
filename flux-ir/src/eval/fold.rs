//! Statements of an agent with everything that is fixed for one rank of a launch folded in.
//!
//! A tile takes a few dozen expressions, a launch some hundred thousand tiles: what depends on
//! neither the CTA, the launch's number nor a variable is evaluated once.

use super::Launch;
use crate::arena::Handle;
use crate::program::{
    At, BinOp, BufferId, Completion, Cond, Expr, Op, Place, Program, Range, Scope, SignalId, Stmt,
    Sym, TableId, Transposed, Update, ValueId, VarId,
};
use std::sync::Arc;

/// An expression of the CTA, the launch's number and variables.
#[derive(Debug, Clone)]
pub(super) enum Folded {
    Int(i64),
    Var(usize),
    Epoch,
    Cta,
    /// A variable and a number: most of what a tile takes.
    With(BinOp, usize, i64),
    /// The first rows of all ranks, and whose.
    First(Arc<[i64]>, Box<Folded>),
    Bin(BinOp, Box<[Folded; 2]>),
}

/// What a folded expression is evaluated on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) vars: &'a [i64],
    pub(super) cta: u32,
    pub(super) epoch: u32,
}

impl Folded {
    pub(super) fn eval(&self, inputs: Inputs<'_>) -> i64 {
        match self {
            Folded::Int(value) => *value,
            Folded::Var(var) => inputs.vars[*var],
            Folded::Epoch => inputs.epoch.into(),
            Folded::Cta => inputs.cta.into(),
            Folded::With(op, var, value) => apply(*op, inputs.vars[*var], *value),
            Folded::First(rows, rank) => first(rows, rank.eval(inputs)),
            Folded::Bin(op, operands) => {
                let [a, b] = &**operands;
                apply(*op, a.operand(inputs), b.operand(inputs))
            }
        }
    }

    /// Whether the expression depends on a variable.
    pub(super) fn mentions(&self, wanted: usize) -> bool {
        match self {
            Folded::Var(var) | Folded::With(_, var, _) => *var == wanted,
            Folded::First(_, rank) => rank.mentions(wanted),
            Folded::Int(_) | Folded::Epoch | Folded::Cta => false,
            Folded::Bin(_, operands) => operands.iter().any(|operand| operand.mentions(wanted)),
        }
    }

    /// [`Folded::eval`], without a call where the operand is a leaf.
    #[inline(always)]
    fn operand(&self, inputs: Inputs<'_>) -> i64 {
        match self {
            Folded::Int(value) => *value,
            Folded::Var(var) => inputs.vars[*var],
            Folded::With(op, var, value) => apply(*op, inputs.vars[*var], *value),
            Folded::Epoch | Folded::Cta | Folded::First(..) | Folded::Bin(..) => self.eval(inputs),
        }
    }
}

/// The first row of a rank, of those of all ranks and the end.
fn first(rows: &[i64], rank: i64) -> i64 {
    let last = rows.len() as i64 - 1;
    rows.get(rank.clamp(0, last.max(0)) as usize).copied().unwrap_or(0)
}

/// Index arithmetic: total, and saturating in 64 bits.
#[inline]
pub(super) fn apply(op: BinOp, a: i64, b: i64) -> i64 {
    match op {
        // Division of 32-bit words takes a fraction of the time.
        BinOp::Div if (a | b) >> 32 == 0 && b != 0 => (a as u32 / b as u32).into(),
        BinOp::Rem if (a | b) >> 32 == 0 && b != 0 => (a as u32 % b as u32).into(),
        BinOp::Add => a.saturating_add(b),
        BinOp::Sub => a.saturating_sub(b),
        BinOp::Mul => a.saturating_mul(b),
        BinOp::Div => a.checked_div_euclid(b).unwrap_or(0),
        BinOp::CeilDiv => a.saturating_add(b.saturating_sub(1)).checked_div_euclid(b).unwrap_or(0),
        BinOp::Rem => a.checked_rem_euclid(b).unwrap_or(0),
        BinOp::Min => a.min(b),
        BinOp::Max => a.max(b),
    }
}

/// A statement with its number among [`Program::statements`].
#[derive(Debug, Clone)]
pub(super) struct Code<'p> {
    pub(super) stmt: &'p Stmt,
    pub(super) number: u32,
    pub(super) op: CodeOp<'p>,
}

/// [`Op`], folded.
#[derive(Debug, Clone)]
pub(super) enum CodeOp<'p> {
    Let {
        var: usize,
        value: Folded,
    },
    Row {
        table: TableId,
        index: Folded,
        vars: [usize; 4],
    },
    For {
        var: usize,
        from: Folded,
        to: Folded,
        step: Folded,
        body: Vec<Code<'p>>,
    },
    If {
        cond: FoldedCond,
        body: Vec<Code<'p>>,
    },
    Wait {
        signal: SignalId,
        slots: [Folded; 2],
        target: Folded,
        scope: Scope,
    },
    FenceProxyAsync,
    Mainloop {
        products: Vec<(FoldedPlace, FoldedPlace, Transposed)>,
    },
    Store {
        to: FoldedPlace,
        value: ValueId,
        adds: bool,
    },
    Sum {
        var: usize,
        own: ValueId,
        from: FoldedPlace,
    },
    Load {
        index: usize,
        from: FoldedPlace,
    },
    Signal {
        at: Option<Folded>,
        signal: SignalId,
        slot: Folded,
        sets: bool,
        value: Folded,
        scope: Scope,
        after: Completion,
    },
    Copy {
        from: FoldedPlace,
        to: FoldedPlace,
        adds: bool,
    },
}

#[derive(Debug, Clone)]
pub(super) enum FoldedCond {
    Eq(Folded, Folded),
    Ne(Folded, Folded),
    Lt(Folded, Folded),
}

impl FoldedCond {
    pub(super) fn holds(&self, inputs: Inputs<'_>) -> bool {
        match self {
            FoldedCond::Eq(a, b) => a.eval(inputs) == b.eval(inputs),
            FoldedCond::Ne(a, b) => a.eval(inputs) != b.eval(inputs),
            FoldedCond::Lt(a, b) => a.eval(inputs) < b.eval(inputs),
        }
    }
}

/// A region: on the own rank where `at` is absent; an extent and an index for each plane.
#[derive(Debug, Clone)]
pub(super) struct FoldedPlace {
    pub(super) at: Option<Folded>,
    pub(super) buffer: BufferId,
    pub(super) planes: Vec<(i64, Folded)>,
    pub(super) rows: [Folded; 2],
    pub(super) cols: [Folded; 2],
}

/// Folds for one rank of a launch.
#[derive(Debug)]
pub(super) struct Folder<'p> {
    program: &'p Program,
    launch: Launch,
    rank: u32,
    /// Values of the Program's definitions, by variable.
    definitions: Vec<Option<i64>>,
    /// The first row of every rank, and the end.
    firsts: Arc<[i64]>,
    /// Statements numbered so far.
    numbered: u32,
}

impl<'p> Folder<'p> {
    /// Evaluates the Program's definitions.
    pub(super) fn new(program: &'p Program, launch: Launch, rank: u32) -> Self {
        let definitions = vec![None; program.vars.len()];
        let Launch { shape, world, .. } = launch;
        let firsts = (0..=world).map(|rank| program.first_row(shape.m, world, rank.into()));
        let firsts = firsts.collect();
        let mut folder = Folder { program, launch, rank, definitions, firsts, numbered: 0 };
        for (var, value) in &program.lets {
            folder.definitions[var.index()] = Some(folder.constant(value));
        }
        folder
    }

    /// Values by variable; 0 for those that are no definitions.
    pub(super) fn values(&self) -> Vec<i64> {
        self.definitions.iter().map(|value| value.unwrap_or(0)).collect()
    }

    /// The body and the exit of every agent.
    pub(super) fn agents(mut self) -> Vec<[Vec<Code<'p>>; 2]> {
        let program = self.program;
        program.agents.values().map(|a| [self.body(&a.body), self.body(&a.exit)]).collect()
    }

    /// An expression of symbols and definitions alone.
    fn constant(&self, expr: &Expr) -> i64 {
        match self.expr(expr) {
            Folded::Int(value) => value,
            // Declarations depend on nothing else; a Program that breaks this is refused.
            _ => 0,
        }
    }

    pub(super) fn expr(&self, expr: &Expr) -> Folded {
        let int = |value: u32| Folded::Int(value.into());
        match expr {
            Expr::Int(value) => Folded::Int(*value),
            Expr::Var(var) => match self.definitions[var.index()] {
                Some(value) => Folded::Int(value),
                None => Folded::Var(var.index()),
            },
            Expr::Sym(sym) => match sym {
                Sym::M => int(self.launch.shape.m),
                Sym::N => int(self.launch.shape.n),
                Sym::K => int(self.launch.shape.k),
                Sym::Shard => {
                    int(self.program.longest_shard(self.launch.shape.m, self.launch.world))
                }
                Sym::World => int(self.launch.world),
                Sym::Rank => int(self.rank),
                Sym::Ctas => int(self.launch.ctas),
                Sym::Epoch => Folded::Epoch,
                Sym::Cta => Folded::Cta,
            },
            Expr::First(rank) => match self.expr(rank) {
                Folded::Int(rank) => Folded::Int(first(&self.firsts, rank)),
                rank => Folded::First(self.firsts.clone(), Box::new(rank)),
            },
            Expr::Bin(op, a, b) => match (self.expr(a), self.expr(b)) {
                (Folded::Int(a), Folded::Int(b)) => Folded::Int(apply(*op, a, b)),
                (a, Folded::Int(0)) if matches!(op, BinOp::Add | BinOp::Sub) => a,
                (Folded::Int(0), b) if *op == BinOp::Add => b,
                (a, Folded::Int(1)) if matches!(op, BinOp::Mul | BinOp::Div) => a,
                (Folded::Var(var), Folded::Int(value)) => Folded::With(*op, var, value),
                (a, b) => Folded::Bin(*op, Box::new([a, b])),
            },
        }
    }

    fn body(&mut self, body: &'p [Stmt]) -> Vec<Code<'p>> {
        body.iter().map(|stmt| self.stmt(stmt)).collect()
    }

    fn stmt(&mut self, stmt: &'p Stmt) -> Code<'p> {
        let number = self.numbered;
        self.numbered += 1;
        let op = match &stmt.op {
            Op::Let { var, value } => CodeOp::Let { var: var.index(), value: self.expr(value) },
            Op::Row { table, index, vars } => CodeOp::Row {
                table: *table,
                index: self.expr(index),
                vars: vars.map(|var: VarId| var.index()),
            },
            Op::For { var, from, to, step, body } => CodeOp::For {
                var: var.index(),
                from: self.expr(from),
                to: self.expr(to),
                step: self.expr(step),
                body: self.body(body),
            },
            Op::If { cond, body } => CodeOp::If { cond: self.cond(cond), body: self.body(body) },
            Op::Wait { signal, slots, target, scope } => CodeOp::Wait {
                signal: *signal,
                slots: self.range(slots),
                target: self.expr(target),
                scope: *scope,
            },
            Op::FenceProxyAsync => CodeOp::FenceProxyAsync,
            Op::Mainloop { products } => CodeOp::Mainloop {
                products: products
                    .iter()
                    .map(|p| (self.place(&p.a), self.place(&p.b), p.transposed))
                    .collect(),
            },
            Op::Store { to, value, adds } => {
                CodeOp::Store { to: self.place(to), value: *value, adds: *adds }
            }
            Op::Sum { var, own, from } => {
                CodeOp::Sum { var: var.index(), own: *own, from: self.place(from) }
            }
            Op::Load { index, from } => {
                CodeOp::Load { index: *index as usize, from: self.place(from) }
            }
            Op::Signal { at, signal, slot, update, scope, after } => {
                let (sets, value) = match update {
                    Update::Add(count) => (false, count),
                    Update::Set(value) => (true, value),
                };
                CodeOp::Signal {
                    at: self.at(at),
                    signal: *signal,
                    slot: self.expr(slot),
                    sets,
                    value: self.expr(value),
                    scope: *scope,
                    after: *after,
                }
            }
            Op::Copy { from, to, adds } => {
                CodeOp::Copy { from: self.place(from), to: self.place(to), adds: *adds }
            }
        };
        Code { stmt, number, op }
    }

    fn cond(&self, cond: &Cond) -> FoldedCond {
        match cond {
            Cond::Eq(a, b) => FoldedCond::Eq(self.expr(a), self.expr(b)),
            Cond::Ne(a, b) => FoldedCond::Ne(self.expr(a), self.expr(b)),
            Cond::Lt(a, b) => FoldedCond::Lt(self.expr(a), self.expr(b)),
        }
    }

    fn range(&self, range: &Range) -> [Folded; 2] {
        [self.expr(&range.lo), self.expr(&range.hi)]
    }

    fn at(&self, at: &At) -> Option<Folded> {
        match at {
            At::Own => None,
            At::Peer(rank) | At::Remote(rank) => Some(self.expr(rank)),
        }
    }

    fn place(&self, place: &Place) -> FoldedPlace {
        let extents = &self.program.buffers[place.buffer].planes;
        let planes = place.planes.iter().zip(extents);
        FoldedPlace {
            at: self.at(&place.at),
            buffer: place.buffer,
            planes: planes.map(|(i, extent)| (self.constant(extent), self.expr(i))).collect(),
            rows: self.range(&place.rows),
            cols: self.range(&place.cols),
        }
    }
}
