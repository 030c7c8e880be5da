//! Places reduced tensors: every rank gets the whole sum over ranks.
//!
//! | algorithm | contributions | sums | each rank gets them |
//! |---|---|---|---|
//! | [`AllReduce::OneShot`] | of every tile to every rank | every rank, of every tile | by adding up itself |
//! | [`AllReduce::Flagged`] | the same, each element with its flag | the same | the same |
//! | [`AllReduce::TwoShot`] | to the owner of the rows, as of a scattered tensor | the owner | by its copy warps, from the owner |
//!
//! A sum has the same bits whoever takes it, so both give the same result.

use super::build::{Builder, copying, own, stmt};
use super::gather::parity;
use super::gemm::{Tile, landed_slot};
use super::put::{EACH, MOST_ROWS, cols, times};
use super::tensors::Tensors;
use super::tiles::Tiles;
use super::values::Values;
use crate::abi::epilogue_warps;
use crate::kernel::{Distribution, Op as KernelOp, ParamId, Value};
use crate::program::{
    Agent, At, Buffer, BufferId, BufferKind, Completion, Cond, Engine, Expr, Home, Op, Place,
    Range, Scope, SignalId, Stmt, Sym, Update, ValueId,
};
use crate::schedule::AllReduce;
use crate::span::Span;

/// The sum over ranks that a kernel takes: its output, this rank's contribution, and where the user
/// wrote it.
pub(super) fn reduction(b: &Builder<'_>) -> Option<(ParamId, Value, Span)> {
    b.kernel.ops.values().find_map(|entry| match entry.op {
        KernelOp::Reduce { output, x } => Some((output, x, entry.span)),
        _ => None,
    })
}

/// How the sum is taken, where `output` gets it whole.
pub(super) fn algorithm(b: &Builder<'_>, output: ParamId) -> Option<AllReduce> {
    let is_reduced = b.kernel.tensor(output).is_some_and(|(d, ..)| d == Distribution::Reduced);
    is_reduced.then(|| b.schedule.all_reduce.unwrap_or_default())
}

/// A slot for each rank and tile.
pub(super) fn of_tiles(b: &Builder<'_>) -> Expr {
    let tile = b.schedule.tile;
    let tiles = Expr::from(Sym::M).ceil_div(tile.m) * Expr::from(Sym::N).ceil_div(tile.n);
    Expr::from(Sym::World) * tiles
}

/// For each other rank, the next one first: one statement, made from the number of that rank.
fn for_each_peer(b: &mut Builder<'_>, span: Span, op: impl FnOnce(Expr) -> Op) -> Stmt {
    let hop = b.var("h");
    let op = op((Expr::from(Sym::Rank) + hop) % Sym::World);
    let ranks = Op::For {
        var: hop,
        from: 1i64.into(),
        to: Sym::World.into(),
        step: 1i64.into(),
        body: vec![stmt(span, op)],
    };
    stmt(span, ranks)
}

/// Raises this rank's slot of a tile on every other rank.
fn tell_peers(
    b: &mut Builder<'_>,
    (signal, span): (SignalId, Span),
    tiles: &Tiles,
    tile: &Tile,
) -> Stmt {
    let warps = epilogue_warps(b.schedule.consumers);
    let slot = landed_slot(tiles, tile, Sym::Rank);
    for_each_peer(b, span, |peer| Op::Signal {
        at: At::Peer(peer),
        signal,
        slot,
        update: Update::Add(warps.into()),
        scope: Scope::Sys,
        after: Completion::Performed,
    })
}

/// What the owner of rows keeps of them for the others: whatever is stored to a reduced output.
pub(super) struct Total {
    /// Of each output what is stored there, and its copy, `[2][S, N]`.
    kept: Vec<Kept>,
    /// Raised by every epilogue warp of a tile, on every other rank.
    summed: SignalId,
    /// Raised by the copy warps of every CTA, on their own rank, when they have brought all they
    /// bring: the grid's exit may then tell that this rank is through.
    taken: SignalId,
    span: Span,
}

struct Kept {
    output: BufferId,
    copy: BufferId,
    value: Value,
    span: Span,
}

/// Workspace and signals of what owners keep.
pub(super) fn total(b: &mut Builder<'_>, tensors: &Tensors) -> Option<Total> {
    let (output, _, span) = reduction(b)?;
    if algorithm(b, output) != Some(AllReduce::TwoShot) {
        return None;
    }
    let mut kept = Vec::new();
    let kernel = b.kernel;
    for entry in kernel.ops.values() {
        let KernelOp::Store { output, x: value } = entry.op else { continue };
        if kernel.tensor(output).is_none_or(|(d, ..)| d != Distribution::Reduced) {
            continue;
        }
        let output = tensors.buffer(output);
        let declared = b.program.buffers[output].clone();
        let copy = b.program.buffers.push(Buffer {
            name: format!("{}_total", declared.name),
            kind: BufferKind::Symmetric,
            planes: vec![2i64.into()],
            rows: tensors.shard.into(),
            first_row: Expr::from(Sym::Rank) * tensors.shard,
            ..declared
        });
        kept.push(Kept { output, copy, value, span: entry.span });
    }
    let name = b.program.buffers[tensors.buffer(output)].name.clone();
    let summed = b.signal(&format!("{name}_summed"), of_tiles(b), Home::Device);
    let taken = b.signal(&format!("{name}_taken"), 1i64, Home::Device);
    Some(Total { kept, summed, taken, span })
}

impl Total {
    /// Keeps what has been stored of the own rows, and tells every other rank.
    pub(super) fn keep(
        &self,
        b: &mut Builder<'_>,
        values: &Values,
        (tiles, tile): (&Tiles, &Tile),
        rows: &Range,
    ) -> Vec<Stmt> {
        let keep = |kept: &Kept, value: ValueId| {
            let to = Place { planes: vec![parity()], ..own(kept.copy, rows.clone(), tile.cols()) };
            stmt(kept.span, Op::Store { to, value, adds: false })
        };
        let mut all: Vec<_> =
            self.kept.iter().map(|kept| keep(kept, values.get(kept.value))).collect();
        all.push(tell_peers(b, (self.summed, self.span), tiles, tile));
        all
    }

    /// Waits until the copy warps of this rank have read what peers kept.
    pub(super) fn wait_taken(&self, copier: Engine) -> Stmt {
        let wait = Op::Wait {
            signal: self.taken,
            slots: Range::one(0i64),
            target: times(Expr::from(Sym::Epoch) * Sym::Ctas, copier.raisers()),
            scope: Scope::Sys,
        };
        stmt(self.span, wait)
    }

    /// The agent that brings the sums of other owners' rows into the outputs of this rank, piece by
    /// piece: of every owner in turn, the next one first, as they are summed.
    pub(super) fn bring(&self, b: &mut Builder<'_>, tensors: &Tensors, tiles: &Tiles) -> Agent {
        let span = self.span;
        let tile = b.schedule.tile;
        // A piece is as wide as copy warps copy at once, and as high as leaves every CTA some.
        let across = (cols(b.copier()) / tile.n).max(1);
        let beside = Expr::from(tiles.cols).ceil_div(across).min(tiles.cols);
        let beside = b.define("PA", beside);
        let pieces = Expr::from(Sym::M) * beside / (Expr::from(Sym::Ctas) * EACH);
        let height = b.define("PR", pieces.min(MOST_ROWS).max(1i64));
        let high = b.define("PH", Expr::from(tensors.shard).ceil_div(height));
        let turn = b.define("PT", (Expr::from(Sym::World) - 1i64).max(1i64) * beside);
        let [piece, owner, first, from, to] =
            ["q", "o", "first", "from", "to"].map(|name| b.var(name));
        let [n0, width, below, row] = ["c0", "cw", "d", "m"].map(|name| b.var(name));
        let within = || Expr::from(piece) % turn;
        let rows = || Expr::from(piece) / turn * height;
        let lets = [
            (owner, (Expr::from(Sym::Rank) + within() / beside + 1i64) % Sym::World),
            (first, Expr::from(owner) * tensors.shard),
            (from, (Expr::from(first) + rows()).min(Sym::M)),
            (to, (Expr::from(first) + (rows() + height).min(tensors.shard)).min(Sym::M)),
            (n0, within() % beside * across),
            (width, (Expr::from(tiles.cols) - n0).min(across)),
        ];
        let slot = Expr::from(owner) * tiles.count + Expr::from(row) * tiles.cols + n0;
        let summed = Op::Wait {
            signal: self.summed,
            slots: Range::new(slot.clone(), slot + width),
            target: Expr::from(Sym::Epoch) * epilogue_warps(b.schedule.consumers),
            scope: Scope::Sys,
        };
        // The tile rows that a piece may touch.
        let begins = Cond::Lt(Expr::from(row) * tile.m, to.into());
        let tile_row = Op::Let { var: row, value: Expr::from(from) / tile.m + below };
        let waits = Op::For {
            var: below,
            from: 0i64.into(),
            to: ((MOST_ROWS - 1) / tile.m + 2).into(),
            step: 1i64.into(),
            body: vec![
                stmt(span, tile_row),
                stmt(span, Op::If { cond: begins, body: vec![stmt(span, summed)] }),
            ],
        };
        let mut some = vec![stmt(span, waits)];
        some.extend(self.kept.iter().map(|kept| {
            let cols = Range::new(
                Expr::from(n0) * tile.n,
                ((Expr::from(n0) + width) * tile.n).min(Sym::N),
            );
            let to = own(kept.output, Range::new(from, to), cols);
            let from = Place {
                at: At::Peer(owner.into()),
                buffer: kept.copy,
                planes: vec![parity()],
                ..to.clone()
            };
            stmt(kept.span, Op::Copy { from, to, adds: false })
        }));
        let mut body: Vec<_> =
            lets.map(|(var, value)| stmt(span, Op::Let { var, value })).into_iter().collect();
        let cond = Cond::Lt(from.into(), to.into());
        body.push(stmt(span, Op::If { cond, body: some }));
        let pieces = Op::For {
            var: piece,
            from: Sym::Cta.into(),
            to: Expr::from(high) * (Expr::from(Sym::World) - 1i64) * beside,
            step: Sym::Ctas.into(),
            body,
        };
        let taken = Op::Signal {
            at: At::Own,
            signal: self.taken,
            slot: 0i64.into(),
            update: Update::Add(b.copier().raisers().into()),
            scope: Scope::Sys,
            after: Completion::Performed,
        };
        let body = vec![stmt(span, pieces), stmt(span, taken)];
        copying("bring", b.copier(), body)
    }
}
