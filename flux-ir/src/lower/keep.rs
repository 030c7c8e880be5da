//! Gathered tensors that a kernel gives back: copy warps wait for rows as tiles do, and copy them from
//! workspace into an output, piece by piece, in the order in which shards arrive.
//!
//! The exit waits for the copy warps of every CTA before it says that the workspace is free: copies of
//! theirs are no part of what the last CTA knows.

use super::build::{Builder, copying, own, stmt};
use super::gather::{Chunks, Gather, Gathers, TailCut, at_least, parity};
use super::gemm::arrival;
use super::protocol::Placed;
use super::put::{Pieces, times};
use super::tensors::{Tensors, extent};
use super::usage::Dims;
use crate::kernel::{Op as KernelOp, ParamId, Protocol, Value};
use crate::program::{
    At, BufferId, Completion, Cond, Expr, Home, Op, Place, Range, Scope, SignalId, Stmt, Sym,
    Update, VarId,
};
use crate::span::Span;

/// What copy warps raise when they are through, once in each CTA.
pub(super) struct Kept {
    kept: SignalId,
    /// How often a CTA raises it.
    raisers: u32,
    span: Span,
}

impl Kept {
    /// Waits until the copy warps of this rank have copied everything.
    pub(super) fn wait(&self) -> Stmt {
        let wait = Op::Wait {
            signal: self.kept,
            slots: Range::one(0i64),
            target: times(Expr::from(Sym::Epoch) * Sym::Ctas, self.raisers),
            scope: Scope::Sys,
        };
        stmt(self.span, wait)
    }
}

/// Where rows arrive, and what says so.
#[derive(Clone, Copy)]
enum Arriving<'a> {
    /// Pushed by their owners.
    Pushed(&'a Gathers, &'a Gather, Chunks),
    /// Brought by roles: what a tile waits for.
    Roles(&'a Placed, BufferId, (SignalId, &'a Range, &'a Expr)),
}

pub(super) fn place(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    gathers: &Gathers,
    protocol: Option<&Placed>,
) -> Option<Kept> {
    let kernel = b.kernel;
    let mut body = Vec::new();
    let mut first = None;
    for entry in kernel.ops.values() {
        let KernelOp::Keep { output, rows } = entry.op else { continue };
        first.get_or_insert(entry.span);
        if let Some(from) = arriving(b, gathers, protocol, rows) {
            let keep = Keep::new(b, tensors, (output, from), entry.span);
            body.push(keep.whole(b));
            body.extend(keep.tail(b));
        }
    }
    let span = first?;
    let raisers = b.copier().raisers();
    let kept = b.signal("kept", 1i64, Home::Device);
    let through = Op::Signal {
        at: At::Own,
        signal: kept,
        slot: 0i64.into(),
        update: Update::Add(raisers.into()),
        scope: Scope::Sys,
        after: Completion::Performed,
    };
    body.push(stmt(span, through));
    let agent = copying("keep", b.copier(), body);
    b.beside(agent);
    Some(Kept { kept, raisers, span })
}

fn arriving<'a>(
    b: &Builder<'a>,
    gathers: &'a Gathers,
    protocol: Option<&'a Placed>,
    rows: Value,
) -> Option<Arriving<'a>> {
    let kernel = b.kernel;
    match kernel.ops.get(rows)?.op {
        KernelOp::Wait { tensor } => {
            let gather = gathers.each.iter().find(|gather| gather.param == tensor)?;
            Some(Arriving::Pushed(gathers, gather, gathers.chunks?))
        }
        KernelOp::Ready { buffer, after } => match &kernel.ops.get(after)?.op {
            KernelOp::Await { signal, slots, times } => {
                Some(Arriving::Roles(protocol?, buffer, (*signal, slots, times)))
            }
            _ => None,
        },
        _ => None,
    }
}

/// A tensor that is kept.
struct Keep<'a> {
    from: Arriving<'a>,
    /// Where rows arrive.
    all: BufferId,
    output: BufferId,
    /// Rows of a full shard, and of all.
    shard: VarId,
    rows: Expr,
    cols: Expr,
    pieces: Pieces,
    span: Span,
}

/// The rows of a piece, and its columns.
type Part = (Range, Range);

impl<'a> Keep<'a> {
    fn new(
        b: &mut Builder<'_>,
        tensors: &Tensors,
        (output, from): (ParamId, Arriving<'a>),
        span: Span,
    ) -> Self {
        let dims = b.usage.dims(output).expect("usage inference gives every tensor dimensions");
        let Dims { rows, cols } = dims;
        let (all, shard) = match from {
            Arriving::Pushed(_, gather, _) => (gather.all, gather.shards.full),
            Arriving::Roles(placed, buffer, _) => (placed.buffer(buffer), tensors.shard),
        };
        let (rows, cols) = (extent(rows), extent(cols));
        let pieces = Pieces::of(b, shard, shard, &cols);
        Keep { from, all, output: tensors.buffer(output), shard, rows, cols, pieces, span }
    }

    /// Where pieces under a tail lie.
    fn cut(&self) -> Option<(TailCut, SignalId)> {
        match self.from {
            Arriving::Pushed(_, gather, chunks) => chunks.tail.zip(gather.sliced),
            Arriving::Roles(..) => None,
        }
    }

    /// Whose shard arrives at some hop, the own one first.
    fn source(&self, hop: Expr) -> Expr {
        match self.from {
            Arriving::Pushed(_, gather, _) if !gather.shards.summed => {
                (Expr::from(Sym::Rank) + Sym::World - hop) % Sym::World
            }
            Arriving::Pushed(..) | Arriving::Roles(..) => {
                (Expr::from(Sym::Rank) + hop) % Sym::World
            }
        }
    }

    /// Waits for the chunks of some rows, of which there is one at least.
    fn wait(&self, b: &Builder<'_>, rows: &Range) -> Op {
        // Said for intervals, which do not know that.
        let end = rows.hi.clone().max(1i64);
        match self.from {
            Arriving::Pushed(gathers, gather, chunks) => {
                let chunk = |row: &Expr| gather.shards.chunk_of(chunks, row);
                let last = chunk(&(end - 1i64));
                let slots = Range::new(chunk(&rows.lo), last + 1i64);
                arrival(gather.arrived, slots, gathers.arrival())
            }
            Arriving::Roles(placed, _, awaited) => {
                let step = b.schedule.tile.k;
                placed.wait(awaited, |expr| {
                    expr.replace(&|var| match Protocol::TILE.iter().position(|of| *of == var) {
                        Some(0) => rows.lo.clone(),
                        Some(1) => end.clone(),
                        Some(2) => 0i64.into(),
                        Some(_) => Sym::N.into(),
                        None if var == Protocol::K_STEP => step.into(),
                        None => var.into(),
                    })
                })
            }
        }
    }

    /// Copies a piece behind `wait`, where it holds something.
    fn copy(&self, (rows, cols): Part, wait: Op) -> Stmt {
        let to = own(self.output, rows.clone(), cols);
        let from = Place { buffer: self.all, planes: vec![parity()], ..to.clone() };
        let body = [wait, Op::Copy { from, to, adds: false }].map(|op| stmt(self.span, op));
        let some = Cond::Lt(rows.lo, rows.hi);
        stmt(self.span, Op::If { cond: some, body: body.into() })
    }

    /// Pieces of every shard, as they arrive; under a tail without the rows that arrive in slices.
    fn whole(&self, b: &mut Builder<'_>) -> Stmt {
        let [piece, source, within] = ["q", "src", "i"].map(|name| b.var(name));
        let [row, held, from, to, left] = ["r", "rows", "from", "to", "k0"].map(|name| b.var(name));
        let Pieces { rows: high, cols: wide, across, count, engine: _ } = self.pieces;
        let hop = || Expr::from(piece) / count;
        let first = || Expr::from(source) * self.shard;
        let of_source = (self.rows.clone() - first()).min(self.shard).max(0i64);
        let of_source = match self.cut() {
            None => of_source,
            Some((tail, _)) => {
                let is_last = at_least(&hop(), Expr::from(Sym::World) - 1i64);
                let cut = is_last * Expr::from(tail.rows()).min(of_source.clone());
                // Never less than none: said for intervals.
                (of_source - cut).max(0i64)
            }
        };
        let lets = [
            (source, self.source(hop())),
            (within, Expr::from(piece) % count),
            (row, Expr::from(within) / across * high),
            (held, of_source),
            (from, first() + Expr::from(row).min(held)),
            (to, first() + (Expr::from(row) + high).min(held)),
            (left, Expr::from(within) % across * wide),
        ];
        let mut body: Vec<_> =
            lets.map(|(var, value)| stmt(self.span, Op::Let { var, value })).into();
        let rows = Range::new(from, to);
        let cols = Range::new(left, (Expr::from(left) + wide).min(self.cols.clone()));
        let wait = self.wait(b, &rows);
        body.push(self.copy((rows, cols), wait));
        self.pieces_of(piece, Expr::from(Sym::World) * count, body)
    }

    /// Pieces of what arrives last, slice by slice.
    fn tail(&self, b: &mut Builder<'_>) -> Option<Stmt> {
        let (tail, sliced) = self.cut()?;
        let [piece, slice, from, to, left] = ["q", "s", "from", "to", "k0"].map(|name| b.var(name));
        let high = self.pieces.rows;
        let of_slice = || (Expr::from(tail.end) - tail.first).ceil_div(high).max(1i64);
        let lets = [
            (slice, Expr::from(piece) / of_slice()),
            (from, Expr::from(tail.first) + Expr::from(piece) % of_slice() * high),
            (to, (Expr::from(from) + high).min(tail.end)),
            (left, (Expr::from(slice) * tail.cols).min(self.cols.clone())),
        ];
        let mut body: Vec<_> =
            lets.map(|(var, value)| stmt(self.span, Op::Let { var, value })).into();
        let cols = Range::new(left, (Expr::from(left) + tail.cols).min(self.cols.clone()));
        let wait = arrival(sliced, Range::one(slice), Sym::Epoch.into());
        body.push(self.copy((Range::new(from, to), cols), wait));
        Some(self.pieces_of(piece, Expr::from(tail.slices) * of_slice(), body))
    }

    /// A loop in which the CTAs take pieces in turn.
    fn pieces_of(&self, piece: VarId, count: Expr, body: Vec<Stmt>) -> Stmt {
        let pieces =
            Op::For { var: piece, from: Sym::Cta.into(), to: count, step: Sym::Ctas.into(), body };
        stmt(self.span, pieces)
    }
}
