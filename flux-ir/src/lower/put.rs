//! Shards that the kernel itself pushes: the copy warps of every CTA take pieces of them in turn,
//! and add to the signal of the chunk that a piece belongs to.

use super::build::{Builder, stmt};
use super::gather::{Chunks, Gather, tell, wait_free, wait_span};
use super::tensors::Tensors;
use crate::abi::COPY_WARPS;
use crate::program::{Agent, Engine, Expr, Op, Range, SignalId, Stmt, Sym, Update, VarId};

/// How a chunk is cut: each piece is copied by the copy warps of one CTA.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pieces {
    /// `PR`, `PC`: rows and columns of a piece.
    pub(super) rows: VarId,
    pub(super) cols: VarId,
    /// `PA`: pieces beside each other.
    pub(super) across: VarId,
    /// `PS`: pieces of a chunk.
    pub(super) count: VarId,
}

/// Columns of a piece: what the copy warps of a CTA have under way at once, 4 vectors of 16 bytes
/// a lane.
pub(super) const COLS: u32 = COPY_WARPS * 32 * 4 * 8;

/// Rows of a piece, at most: a signal costs about what a row does.
pub(super) const MOST_ROWS: u32 = 16;

/// Pieces for each CTA, where there are rows for so many.
pub(super) const EACH: u32 = 4;

impl Pieces {
    /// Pieces of chunks of `chunk` rows of `width` columns: as high as leaves every CTA some.
    pub(super) fn of(b: &mut Builder<'_>, shard: VarId, chunk: VarId, width: &Expr) -> Pieces {
        let cols = b.define("PC", width.clone().min(COLS));
        let across = b.define("PA", width.clone().ceil_div(cols));
        let all = Expr::from(Sym::World) * shard * across;
        let rows = (all / (Expr::from(Sym::Ctas) * EACH)).min(MOST_ROWS).min(chunk).max(1i64);
        let rows = b.define("PR", rows);
        let count = b.define("PS", Expr::from(chunk).ceil_div(rows) * across);
        Pieces { rows, cols, across, count }
    }

    /// What the signal of a chunk has become when all its pieces are there.
    pub(super) fn arrival(self) -> Expr {
        Expr::from(Sym::Epoch) * self.count * COPY_WARPS
    }
}

/// The agent: waits until every rank is through with the plane, and pushes piece by piece, to this
/// rank first and then to each other in turn.
pub(super) fn agent(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    gathers: &[Gather],
    (chunks, pieces): (Chunks, Pieces),
    free: SignalId,
) -> Agent {
    let mut body = Vec::new();
    if let Some(first) = gathers.first() {
        let wait = wait_free(free, Range::new(0i64, Sym::World));
        body.push(stmt(wait_span(b, first.param), wait));
    }
    for gather in gathers {
        body.push(push(b, tensors, gather, (chunks, pieces)));
    }
    Agent { name: "push".into(), engine: Engine::CopyWarps, body, exit: Vec::new() }
}

fn push(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    gather: &Gather,
    (chunks, pieces): (Chunks, Pieces),
) -> Stmt {
    let span = wait_span(b, gather.param);
    let [piece, target, chunk] = ["q", "dst", "c"].map(|name| b.var(name));
    let [within, row, from, to, left] = ["i", "r", "from", "to", "k0"].map(|name| b.var(name));
    let of_shard = || Expr::from(chunks.count) * pieces.count;
    let first = || Expr::from(Sym::Rank) * gather.shards.full;
    let end = (Expr::from(row) + pieces.rows).min((Expr::from(chunk) + 1i64) * chunks.rows);
    let lets = [
        (target, gather.shards.target(Expr::from(piece) / of_shard())),
        (chunk, Expr::from(piece) % of_shard() / pieces.count),
        (within, Expr::from(piece) % pieces.count),
        (row, Expr::from(chunk) * chunks.rows + Expr::from(within) / pieces.across * pieces.rows),
        (from, first() + Expr::from(row).min(gather.shards.own)),
        (to, first() + end.min(gather.shards.own)),
        (left, Expr::from(within) % pieces.across * pieces.cols),
    ];
    let mut body: Vec<_> =
        lets.map(|(var, value)| stmt(span, Op::Let { var, value })).into_iter().collect();
    let cols = Range::new(left, (Expr::from(left) + pieces.cols).min(gather.cols.clone()));
    body.push(stmt(span, gather.copy(tensors, target, Range::new(from, to), cols)));
    let slot = Expr::from(Sym::Rank) * chunks.count + chunk;
    let update = Update::Add(COPY_WARPS.into());
    body.push(stmt(span, tell(target, gather.arrived, slot, update)));
    let pieces = Op::For {
        var: piece,
        from: Sym::Cta.into(),
        to: Expr::from(Sym::World) * of_shard(),
        step: Sym::Ctas.into(),
        body,
    };
    stmt(span, pieces)
}
