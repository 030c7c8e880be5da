//! Shards that the kernel itself pushes: the copy warps of every CTA, or bulk copies that one of them
//! feeds, take pieces of them in turn, and add to the signal of the chunk that a piece belongs to.

use super::build::{Builder, copying, stmt};
use super::gather::{Chunks, Gather, tell, wait_free, wait_span};
use super::nodes::Nodes;
use super::tensors::Tensors;
use crate::abi::{COPY_WARPS, RING_SLOT_BYTES};
use crate::program::{Agent, At, Engine, Expr, Op, Range, SignalId, Stmt, Sym, Update, VarId};

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
    /// What copies them.
    pub(super) engine: Engine,
}

/// Columns of a piece of 16-bit elements: what the copy warps of a CTA have under way at once, 4
/// vectors of 16 bytes a lane, or a slot of the ring of bulk copies.
pub(super) const fn cols(engine: Engine) -> u32 {
    match engine {
        Engine::Tma => RING_SLOT_BYTES / 2,
        Engine::CopyEngine | Engine::Ctas | Engine::CopyWarps => COPY_WARPS * 32 * 4 * 8,
    }
}

/// Rows of a piece, at most: a signal costs about what a row does.
pub(super) const MOST_ROWS: u32 = 16;

/// Pieces for each CTA, where there are rows for so many.
pub(super) const EACH: u32 = 4;

impl Pieces {
    /// Pieces of chunks of `chunk` rows of `width` columns: as high as leaves every CTA some.
    pub(super) fn of(b: &mut Builder<'_>, shard: VarId, chunk: VarId, width: &Expr) -> Pieces {
        let engine = b.copier();
        if b.schedule.node != 0 {
            return Pieces::whole(b, chunk, width);
        }
        let cols = b.define("PC", width.clone().min(cols(engine)));
        let across = b.define("PA", width.clone().ceil_div(cols));
        let all = Expr::from(Sym::World) * shard * across;
        let rows = (all / (Expr::from(Sym::Ctas) * EACH)).min(MOST_ROWS).min(chunk).max(1i64);
        let rows = b.define("PR", rows);
        let count = b.define("PS", Expr::from(chunk).ceil_div(rows) * across);
        Pieces { rows, cols, across, count, engine }
    }

    /// Whole chunks: a message of the network costs microseconds whatever it holds, and one CTA that puts a chunk
    /// is one raiser of its signal. Of several, messages of a later launch could overtake those of an earlier one.
    fn whole(b: &mut Builder<'_>, chunk: VarId, width: &Expr) -> Pieces {
        let engine = b.copier();
        let cols = b.define("PC", width.clone());
        let across = b.define("PA", 1i64.into());
        let rows = b.define("PR", chunk.into());
        let count = b.define("PS", 1i64.into());
        Pieces { rows, cols, across, count, engine }
    }

    /// By how much the signal of a chunk grows with each of them.
    pub(super) fn raise(self) -> Update {
        Update::Add(self.engine.raisers().into())
    }

    /// What the signal of a chunk has become when all its pieces are there.
    pub(super) fn arrival(self) -> Expr {
        times(Expr::from(Sym::Epoch) * self.count, self.engine.raisers())
    }
}

/// `count` of what `raisers` raise for each.
pub(super) fn times(count: Expr, raisers: u32) -> Expr {
    match raisers {
        1 => count,
        raisers => count * raisers,
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
    copying("push", pieces.engine, body)
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
    // Of whole chunks none begins behind the rows that the shard has; one that would is empty.
    let begin = match Nodes::of(b) {
        Some(_) => Expr::from(row),
        None => Expr::from(row).min(gather.shards.own),
    };
    let lets = [
        (target, gather.shards.target(Expr::from(piece) / of_shard())),
        (chunk, Expr::from(piece) % of_shard() / pieces.count),
        (within, Expr::from(piece) % pieces.count),
        (row, Expr::from(chunk) * chunks.rows + Expr::from(within) / pieces.across * pieces.rows),
        (from, first() + begin),
        (to, first() + end.min(gather.shards.own)),
        (left, Expr::from(within) % pieces.across * pieces.cols),
    ];
    let mut body: Vec<_> =
        lets.map(|(var, value)| stmt(span, Op::Let { var, value })).into_iter().collect();
    let cols = Range::new(left, (Expr::from(left) + pieces.cols).min(gather.cols.clone()));
    let slot = Expr::from(Sym::Rank) * chunks.count + chunk;
    let mapped = vec![
        stmt(span, gather.copy(tensors, target, Range::new(from, to), cols.clone())),
        stmt(span, tell(target, gather.arrived, slot.clone(), pieces.raise())),
    ];
    match Nodes::of(b) {
        None => body.extend(mapped),
        Some(nodes) => {
            let place = gather.place(At::Remote(target.into()), Range::new(from, to), cols);
            let put = nodes.put((gather.arrived, slot), (place, pieces.arrival(), pieces.raise()));
            let put = put.into_iter().map(|op| stmt(span, op)).collect();
            body.extend(nodes.each(target, (mapped, put)).map(|op| stmt(span, op)));
        }
    }
    let pieces = Op::For {
        var: piece,
        from: Sym::Cta.into(),
        to: Expr::from(Sym::World) * of_shard(),
        step: Sym::Ctas.into(),
        body,
    };
    stmt(span, pieces)
}
