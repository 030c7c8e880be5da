//! What agents do: statements, and the order they stand in.

use super::{At, Expr, Place, Range, SignalId, TableId, ValueId, VarId};
use crate::span::Span;

/// Who observes: the scope of a fence, a release or an acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Threads of one CTA.
    Cta,
    /// Threads of one GPU.
    Gpu,
    /// Peers, copy engines and the host.
    Sys,
}

impl Scope {
    /// Every scope, narrowest first.
    pub const ALL: [Scope; 3] = [Scope::Cta, Scope::Gpu, Scope::Sys];

    /// The name in the text form, as in PTX.
    pub const fn name(self) -> &'static str {
        match self {
            Scope::Cta => "cta",
            Scope::Gpu => "gpu",
            Scope::Sys => "sys",
        }
    }
}

/// When a put or a copy counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Completion {
    /// The source may be reused; the data may still be in flight.
    Read,
    /// The data has been written where it belongs.
    Performed,
    /// The signal travels over the network behind all that this agent put to that rank before: whoever sees
    /// it there finds the data written. The agent itself learns nothing, neither of the data nor of their source.
    Delivered,
}

impl Completion {
    /// Every completion.
    pub const ALL: [Completion; 3] =
        [Completion::Read, Completion::Performed, Completion::Delivered];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Completion::Read => "read",
            Completion::Performed => "performed",
            Completion::Delivered => "delivered",
        }
    }
}

/// How a signal changes. Both forms only let it grow.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// Adds; for signals that several actors raise.
    Add(Expr),
    /// Becomes; for signals that one actor raises, once per epoch.
    Set(Expr),
}

/// One product of the mainloop: an accumulator `a · b`, each operand as it lies or transposed.
#[derive(Debug, Clone, PartialEq)]
pub struct Product {
    /// `[rows, k]`, or `[k, rows]` where it is transposed.
    pub a: Place,
    /// `[k, cols]`, or `[cols, k]` where it is transposed.
    pub b: Place,
    /// Which of them are transposed.
    pub transposed: Transposed,
}

/// Which operands of a product are transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Transposed {
    /// The left one: `aᵀ · …`.
    pub a: bool,
    /// The right one: `… · bᵀ`.
    pub b: bool,
}

impl Transposed {
    /// Of a left operand's rows and columns: those that are the tile's rows, then those that are
    /// summed over. It is its own inverse.
    pub fn left<T>(self, rows: T, cols: T) -> (T, T) {
        if self.a { (cols, rows) } else { (rows, cols) }
    }

    /// Of a right operand's rows and columns: those that are the tile's columns, then those that
    /// are summed over. It is its own inverse where the arguments come in the same order.
    pub fn right<T>(self, rows: T, cols: T) -> (T, T) {
        if self.b { (rows, cols) } else { (cols, rows) }
    }
}

impl Product {
    /// The tile's rows, and what is summed over.
    pub fn left(&self) -> (&Range, &Range) {
        self.transposed.left(&self.a.rows, &self.a.cols)
    }

    /// The tile's columns, and what is summed over.
    pub fn right(&self) -> (&Range, &Range) {
        self.transposed.right(&self.b.rows, &self.b.cols)
    }
}

/// A comparison of two index expressions.
#[derive(Debug, Clone, PartialEq)]
pub enum Cond {
    /// Equal.
    Eq(Expr, Expr),
    /// Not equal.
    Ne(Expr, Expr),
    /// Less.
    Lt(Expr, Expr),
}

/// What an agent does.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Names a number.
    Let {
        /// The name.
        var: VarId,
        /// The number.
        value: Expr,
    },
    /// Reads a row of a table.
    Row {
        /// The table.
        table: TableId,
        /// Which row.
        index: Expr,
        /// Names for m, n and the two fields.
        vars: [VarId; 4],
    },
    /// Runs `body` for `var` in `from..to` by `step`.
    For {
        /// The loop variable.
        var: VarId,
        /// First value.
        from: Expr,
        /// End, exclusive.
        to: Expr,
        /// Increment, at least 1.
        step: Expr,
        /// The body.
        body: Vec<Stmt>,
    },
    /// Runs `body` where the condition holds.
    If {
        /// The condition.
        cond: Cond,
        /// The body.
        body: Vec<Stmt>,
    },
    /// Blocks until every own signal of a range of slots has reached a target (acquire).
    Wait {
        /// The array.
        signal: SignalId,
        /// The slots.
        slots: Range,
        /// The least value that ends the wait.
        target: Expr,
        /// Who may have signalled.
        scope: Scope,
    },
    /// Orders this agent's acquires and generic writes before its bulk (TMA) accesses that follow.
    FenceProxyAsync,
    /// Computes the accumulators of one tile.
    Mainloop {
        /// One accumulator each.
        products: Vec<Product>,
    },
    /// Writes a part of the tile at hand: a store, or a put where `to` is on a peer.
    Store {
        /// Where: rows and columns of the tile.
        to: Place,
        /// What; rounded to the buffer's element type.
        value: ValueId,
        /// Whether it is added to what lies there, of symmetric memory: a reduction in place, whose
        /// sum is rounded to the buffer's element type. It reads what it adds to, so it comes behind
        /// what wrote that.
        adds: bool,
    },
    /// Sums the ranks' contributions to a part of a tile, in the order of ranks and in f32: the same
    /// bits on every rank that sums them. Yields [`ValueOp::Sum`](super::ValueOp::Sum).
    Sum {
        /// Runs over the ranks, this one left out.
        var: VarId,
        /// This rank's own contribution, added in its place among the others, rounded to the
        /// element type of `from` as if it had traveled.
        own: ValueId,
        /// Where the contribution of rank `var` lies.
        from: Place,
    },
    /// Names what [`ValueOp::Loaded`](super::ValueOp::Loaded) reads from here on: a part of the tile
    /// at hand that lies in workspace. It is read by each store and sum that needs it, in the
    /// elements that they are of.
    Load {
        /// The value's number, below [`LOADS`].
        index: u32,
        /// Where it lies.
        from: Place,
    },
    /// Raises a signal (release), after everything this agent did before has reached `after`.
    Signal {
        /// On which rank.
        at: At,
        /// The array.
        signal: SignalId,
        /// Which one.
        slot: Expr,
        /// By how much.
        update: Update,
        /// Who may wait.
        scope: Scope,
        /// What the preceding puts and copies must have reached.
        after: Completion,
    },
    /// Copies a region.
    Copy {
        /// Source.
        from: Place,
        /// Destination: the same rows and columns of the whole tensor.
        to: Place,
        /// Whether it is added to what lies there, in workspace; on copy warps alone.
        adds: bool,
    },
}

/// How many tiles in workspace an epilogue reads, at most.
pub const LOADS: u32 = 8;

/// An op with the user's token it was made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Stmt {
    /// What it does.
    pub op: Op,
    /// The user's token.
    pub span: Span,
}

impl Op {
    /// The statements a loop or a condition holds.
    pub fn body(&self) -> &[Stmt] {
        match self {
            Op::For { body, .. } | Op::If { body, .. } => body,
            Op::Let { .. }
            | Op::Row { .. }
            | Op::Wait { .. }
            | Op::FenceProxyAsync
            | Op::Mainloop { .. }
            | Op::Store { .. }
            | Op::Sum { .. }
            | Op::Load { .. }
            | Op::Signal { .. }
            | Op::Copy { .. } => &[],
        }
    }
}

/// The statements of a body in the order of the text, nested ones behind those that hold them.
#[derive(Debug, Clone)]
pub struct Statements<'p> {
    /// What is left of each body, the innermost last.
    bodies: Vec<std::slice::Iter<'p, Stmt>>,
}

impl<'p> Statements<'p> {
    /// Those of `body`.
    pub fn of(body: &'p [Stmt]) -> Self {
        Statements { bodies: vec![body.iter()] }
    }
}

impl<'p> Iterator for Statements<'p> {
    type Item = &'p Stmt;

    fn next(&mut self) -> Option<&'p Stmt> {
        loop {
            match self.bodies.last_mut()?.next() {
                Some(stmt) => {
                    self.bodies.push(stmt.op.body().iter());
                    return Some(stmt);
                }
                None => {
                    self.bodies.pop();
                }
            }
        }
    }
}
