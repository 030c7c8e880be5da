//! Index arithmetic of one rank of a launch, on intervals.
//!
//! The device computes in 32 bits what the host computes in 64. Every intermediate value is
//! bounded by interval arithmetic over the variables' ranges, once per statement and not once
//! per tile; a launch is refused unless all of them stay in 31 bits and a sign. The same walk
//! bounds how many steps the run of the launch can take.

use super::Findings;
use super::epochs::EPOCH_LIMIT;
use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Rule};
use crate::eval::Launch;
use crate::program::{
    At, BinOp, Cond, Expr, LOADS, Op, Place, Program, Range, Stmt, Sym, TableId, Update,
    ValueEntry, ValueOp, VarId,
};
use crate::span::Span;
use crate::text::show_expr;

/// The least and the greatest value.
type Interval = (i64, i64);

const LEAST: i64 = i32::MIN as i64;
const GREATEST: i64 = i32::MAX as i64;

/// Upper bounds of what one rank takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Steps of all its agents in one launch.
    pub(super) steps: u64,
    /// Steps that a trace keeps: waits, raises, fences, reads and writes.
    pub(super) events: u64,
    /// Its signals.
    pub(super) signals: u64,
}

/// Checks the arithmetic of `rank`.
pub(super) fn check(program: &Program, launch: Launch, rank: u32, found: &mut Findings) -> Size {
    let mut arithmetic = Arithmetic {
        program,
        launch,
        rank,
        vars: vec![(0, 0); program.vars.len()],
        fields: Vec::new(),
        at: None,
        found,
    };
    let signals = arithmetic.declarations();
    let mut all = Count::default();
    for agent in program.agents.values() {
        let copies = u64::from(agent.engine.bodies(launch.ctas));
        let body = arithmetic.body(&agent.body).times(copies);
        all = all.plus(body).plus(arithmetic.body(&agent.exit));
    }
    Size { steps: all.steps, events: all.events, signals }
}

/// How many steps, and how many of them a trace keeps.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    steps: u64,
    events: u64,
}

impl Count {
    /// Steps of index arithmetic and control.
    const fn steps(steps: u64) -> Self {
        Count { steps, events: 0 }
    }

    /// Steps that a trace keeps.
    const fn events(events: u64) -> Self {
        Count { steps: events, events }
    }

    const fn plus(self, other: Count) -> Self {
        Count {
            steps: self.steps.saturating_add(other.steps),
            events: self.events.saturating_add(other.events),
        }
    }

    const fn times(self, turns: u64) -> Self {
        Count { steps: self.steps.saturating_mul(turns), events: self.events.saturating_mul(turns) }
    }
}

struct Arithmetic<'a, 'p> {
    program: &'p Program,
    launch: Launch,
    rank: u32,
    vars: Vec<Interval>,
    /// Of each table: m, n and the two fields.
    fields: Vec<[Interval; 4]>,
    /// The statement at hand, if it is one.
    at: Option<&'p Stmt>,
    found: &'a mut Findings,
}

impl<'p> Arithmetic<'_, 'p> {
    /// Definitions, extents and tables; returns the number of signals.
    fn declarations(&mut self) -> u64 {
        let program = self.program;
        for (var, value) in &program.lets {
            self.vars[var.index()] = self.eval(value);
        }
        for buffer in program.buffers.values() {
            buffer.planes.iter().for_each(|extent| _ = self.eval(extent));
            for expr in [&buffer.rows, &buffer.first_row, &buffer.cols, &buffer.first_col] {
                self.eval(expr);
            }
        }
        let signals = program.signals.values().map(|signal| self.eval(&signal.len).1.max(0));
        let signals = signals.fold(0, |all: u64, len| all.saturating_add(len as u64));
        let (shape, tile) = (self.launch.shape, program.tile);
        for table in program.tables.values() {
            for expr in [&table.len, &table.tiled.lo, &table.tiled.hi] {
                self.eval(expr);
            }
            let last = |extent: u32, tile: u32| (0, i64::from(extent.div_ceil(tile)) - 1);
            let (m, n) = (last(shape.m, tile.m), last(shape.n, tile.n));
            self.vars[table.m.index()] = m;
            self.vars[table.n.index()] = n;
            let [first, second] = &table.fields;
            let fields = [m, n, self.eval(first), self.eval(second)];
            if let Some(field) = table.fields.iter().zip(&fields[2..]).find(|(_, f)| f.0 < 0) {
                self.error(field.0, format!("may be negative, {}", field.1.0));
            }
            self.fields.push(fields);
        }
        signals
    }

    fn error(&mut self, expr: &Expr, what: String) {
        let span = self.at.map_or(Span::UNKNOWN, |stmt| stmt.span);
        let (program, launch) = (self.program, self.launch);
        let diagnostic = || {
            let message = format!("index arithmetic: `{}` {what}", show_expr(program, expr));
            Diagnostic::new(Rule::Bounds, span, message)
                .note(Span::UNKNOWN, super::launch::describe(launch))
        };
        match self.at {
            Some(stmt) => self.found.once(Rule::Bounds, stmt, diagnostic),
            None => self.found.once(Rule::Bounds, self.program, diagnostic),
        }
    }

    fn eval(&mut self, expr: &Expr) -> Interval {
        let (op, a, b) = match expr {
            Expr::Int(value) => return self.fits(expr, (*value, *value)),
            Expr::Var(var) => return self.vars[var.index()],
            Expr::Sym(sym) => return self.symbol(*sym),
            Expr::First(rank) => {
                // First rows grow with the rank.
                let (shape, world) = (self.launch.shape, self.launch.world);
                let (lo, hi) = self.eval(rank);
                return [lo, hi].map(|rank| self.program.first_row(shape.m, world, rank)).into();
            }
            Expr::Bin(op, a, b) => (op, self.eval(a), self.eval(b)),
        };
        let corners = |f: fn(i64, i64) -> i64| {
            let all = [f(a.0, b.0), f(a.0, b.1), f(a.1, b.0), f(a.1, b.1)];
            (all.into_iter().fold(i64::MAX, i64::min), all.into_iter().fold(i64::MIN, i64::max))
        };
        if matches!(op, BinOp::Div | BinOp::CeilDiv | BinOp::Rem) && (a.0 < 0 || b.0 < 1) {
            let what = format!("divides {}..={} by {}..={}", a.0, a.1, b.0, b.1);
            self.error(expr, what);
            return (0, a.1.max(0));
        }
        let value = match op {
            BinOp::Add => (a.0.saturating_add(b.0), a.1.saturating_add(b.1)),
            BinOp::Sub => (a.0.saturating_sub(b.1), a.1.saturating_sub(b.0)),
            BinOp::Mul => corners(i64::saturating_mul),
            BinOp::Div => (a.0 / b.1, a.1 / b.0),
            BinOp::CeilDiv => {
                let ceil = |a: i64, b: i64| a / b + i64::from(a % b != 0);
                (ceil(a.0, b.1), ceil(a.1, b.0))
            }
            BinOp::Rem if b.0 == b.1 && a.0 / b.0 == a.1 / b.0 => (a.0 % b.0, a.1 % b.0),
            BinOp::Rem => (0, a.1.min(b.1 - 1)),
            BinOp::Min => (a.0.min(b.0), a.1.min(b.1)),
            BinOp::Max => (a.0.max(b.0), a.1.max(b.1)),
        };
        self.fits(expr, value)
    }

    fn fits(&mut self, expr: &Expr, value: Interval) -> Interval {
        if value.0 >= LEAST && value.1 <= GREATEST {
            return value;
        }
        let reached = if value.1 > GREATEST { value.1 } else { value.0 };
        self.error(expr, format!("reaches {reached}, beyond 31 bits"));
        (value.0.clamp(LEAST, GREATEST), value.1.clamp(LEAST, GREATEST))
    }

    fn symbol(&self, sym: Sym) -> Interval {
        let (shape, Launch { world, ctas, .. }) = (self.launch.shape, self.launch);
        let exactly = |value: u32| (i64::from(value), i64::from(value));
        match sym {
            Sym::M => exactly(shape.m),
            Sym::N => exactly(shape.n),
            Sym::K => exactly(shape.k),
            Sym::Shard => exactly(self.program.longest_shard(shape.m, world)),
            Sym::World => exactly(world),
            Sym::Rank => exactly(self.rank),
            Sym::Epoch => (1, i64::from(EPOCH_LIMIT)),
            Sym::Cta => (0, i64::from(ctas) - 1),
            Sym::Ctas => exactly(ctas),
        }
    }

    /// Steps a body takes at most.
    fn body(&mut self, body: &'p [Stmt]) -> Count {
        body.iter().fold(Count::default(), |all, stmt| {
            self.at = Some(stmt);
            let taken = self.stmt(&stmt.op);
            self.at = None;
            all.plus(taken)
        })
    }

    fn stmt(&mut self, op: &'p Op) -> Count {
        match op {
            Op::Let { var, value } => {
                self.vars[var.index()] = self.eval(value);
                Count::steps(1)
            }
            Op::Row { table, index, vars } => {
                self.eval(index);
                self.row(*table, vars);
                Count::steps(1)
            }
            Op::For { var, from, to, step, body } => {
                let [from, to, step] = [from, to, step].map(|expr| self.eval(expr));
                let last = to.1.saturating_sub(1);
                if from.0 > last {
                    return Count::steps(1);
                }
                self.vars[var.index()] = (from.0, last);
                let turns = (last - from.0) / step.0.max(1) + 1;
                self.body(body).plus(Count::steps(1)).times(turns as u64)
            }
            Op::If { cond, body } => {
                let possible = match cond {
                    Cond::Eq(a, b) => {
                        let (a, b) = (self.eval(a), self.eval(b));
                        a.0 <= b.1 && b.0 <= a.1
                    }
                    Cond::Ne(a, b) => {
                        let (a, b) = (self.eval(a), self.eval(b));
                        a.0 != a.1 || b.0 != b.1 || a.0 != b.0
                    }
                    Cond::Lt(a, b) => self.eval(a).0 < self.eval(b).1,
                };
                let body = if possible { self.body(body) } else { Count::default() };
                body.plus(Count::steps(1))
            }
            Op::Wait { signal: _, slots, target, scope: _ } => {
                self.eval(target);
                Count::steps(self.range(slots)).plus(Count::events(1))
            }
            Op::FenceProxyAsync => Count::events(1),
            Op::Mainloop { products } => {
                for product in products {
                    self.place(&product.a);
                    self.place(&product.b);
                }
                Count::events(2 * products.len() as u64)
            }
            // A value reads up to so many tiles of workspace.
            Op::Store { to, value: _, adds } => {
                let read = u64::from(*adds) * self.place(to);
                Count::events(self.place(to) + read + self.loads())
            }
            Op::Sum { var, own: _, from } => {
                self.vars[var.index()] = (0, i64::from(self.launch.world) - 1);
                self.place(from);
                Count::events(u64::from(self.launch.world) + self.loads())
            }
            Op::Load { index: _, from } => {
                self.place(from);
                Count::steps(1)
            }
            Op::Signal { at, signal: _, slot, update, scope: _, after: _ } => {
                self.at(at);
                self.eval(slot);
                match update {
                    Update::Add(value) | Update::Set(value) => self.eval(value),
                };
                Count::events(1)
            }
            Op::Copy { from, to, adds } => {
                let so_far = u64::from(*adds) * self.place(to);
                Count::events(self.place(from) + self.place(to) + so_far)
            }
        }
    }

    /// How many tiles of workspace a value reads, at most.
    fn loads(&self) -> u64 {
        let is_loaded = |entry: &&ValueEntry| matches!(entry.op, ValueOp::Loaded(_));
        let loaded = self.program.values.values().filter(is_loaded).count();
        loaded.min(LOADS as usize) as u64
    }

    fn row(&mut self, table: TableId, vars: &[VarId; 4]) {
        for (var, field) in vars.iter().zip(self.fields[table.index()]) {
            self.vars[var.index()] = field;
        }
    }

    fn at(&mut self, at: &'p At) {
        match at {
            At::Own => {}
            At::Peer(rank) | At::Remote(rank) => _ = self.eval(rank),
        }
    }

    fn place(&mut self, place: &'p Place) -> u64 {
        self.at(&place.at);
        place.planes.iter().for_each(|index| _ = self.eval(index));
        self.range(&place.rows);
        self.range(&place.cols);
        1
    }

    /// The largest number of entries of a range.
    fn range(&mut self, range: &'p Range) -> u64 {
        let (lo, hi) = (self.eval(&range.lo), self.eval(&range.hi));
        if let Expr::Bin(BinOp::Add, start, width) = &range.hi
            && **start == range.lo
        {
            return self.eval(width).1.max(1) as u64;
        }
        hi.1.saturating_sub(lo.0).max(1) as u64
    }
}
