//! Contributions that stay with the rank that computed them until their owner brings them: its copy
//! warps, or bulk copies, wait for each tile of each other rank, copy the rows that it owns into its own workspace, and
//! tell the warps that sum. What is summed, and in which order, is as where contributions are put.
//!
//! A rank overwrites what it keeps two launches later, when every owner has said that it is through:
//! whoever has summed a tile has waited for all that was brought of it.
//!
//! Tiles begin anew with each shard. Of a tile of two owners each would wait for what the other brings
//! behind tiles that nobody has come to.

use super::build::{Builder, copying, own, stmt};
use super::gather::parity;
use super::scatter::Scatter;
use super::tensors::Tensors;
use super::tiles::Tiles;
use crate::abi::epilogue_warps;
use crate::program::{
    Agent, At, Buffer, BufferId, BufferKind, Completion, Engine, Expr, Home, Op, Place, Range,
    Scope, SignalId, Sym, Update,
};
use crate::tile::TileShape;

/// Contributions that owners bring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pulled {
    /// What this rank contributes, `[2][M, N]`.
    pub(super) kept: BufferId,
    /// Raised by every epilogue warp of a tile, on the owners of its rows.
    pub(super) stored: SignalId,
}

/// Rows of a piece, at most: the copy warps of a CTA bring one at a time.
const PIECE_ROWS: u32 = 32;

/// Pieces of a tile, those without a row that is owned included.
fn pieces(tile: TileShape) -> u32 {
    tile.m.div_ceil(PIECE_ROWS)
}

/// By how much the signal of a tile grows when it has been brought.
pub(super) fn brought(tile: TileShape, copier: Engine) -> u32 {
    pieces(tile) * copier.raisers()
}

/// A slot for each rank and tile, no fewer than there are: each shard may end with a ragged one.
pub(super) fn of_tiles(b: &Builder<'_>, tensors: &Tensors) -> Expr {
    let tile = b.schedule.tile;
    let rows = Expr::from(tensors.shard).ceil_div(tile.m) * Sym::World;
    Expr::from(Sym::World) * rows * Expr::from(Sym::N).ceil_div(tile.n)
}

/// Workspace and signals, beside those of what lands; `declared` is the output, of the element type
/// in which contributions travel.
pub(super) fn place(b: &mut Builder<'_>, tensors: &Tensors, declared: &Buffer) -> Pulled {
    let kept = b.program.buffers.push(Buffer {
        name: format!("{}_kept", declared.name),
        kind: BufferKind::Symmetric,
        planes: vec![2i64.into()],
        rows: Sym::M.into(),
        first_row: 0i64.into(),
        cols: Sym::N.into(),
        ..declared.clone()
    });
    let slots = of_tiles(b, tensors);
    let stored = b.signal(&format!("{}_stored", declared.name), slots, Home::Device);
    Pulled { kept, stored }
}

impl Pulled {
    /// The agent that brings the own rows of what other ranks keep, piece by piece: of the rank before
    /// first, which by default begins with the rows of this one.
    pub(super) fn bring(
        &self,
        b: &mut Builder<'_>,
        tensors: &Tensors,
        (scatter, tiles): (&Scatter, &Tiles),
    ) -> Agent {
        let (span, tile) = (scatter.span, b.schedule.tile);
        let height = PIECE_ROWS.min(tile.m);
        let mine = || Expr::from(Sym::Rank) * tensors.shard;
        let end = || mine() + tensors.own;
        let of_shard = tiles.of_shard().expect("tiles begin anew with each shard");
        let rows = b.define("MO", Expr::from(tensors.own).ceil_div(tile.m));
        let [piece, source, within] = ["q", "src", "i"].map(|name| b.var(name));
        let [m, n, row] = ["tr", "n", "r"].map(|name| b.var(name));
        let [from, to] = ["from", "to"].map(|name| b.var(name));
        let of_row = || Expr::from(tiles.cols) * pieces(tile);
        let of_source = || (Expr::from(rows) * of_row()).max(1i64);
        let hop = Expr::from(piece) / of_source();
        // The end of the tile, which a piece may reach beyond.
        let below = (mine() + (Expr::from(m) + 1i64) * tile.m).min(end());
        let lets = [
            (source, (Expr::from(Sym::Rank) + Sym::World - 1i64 - hop) % Sym::World),
            (within, Expr::from(piece) % of_source()),
            (m, Expr::from(within) / of_row()),
            (n, Expr::from(within) % of_row() / pieces(tile)),
            (row, mine() + Expr::from(m) * tile.m + Expr::from(within) % pieces(tile) * height),
            (from, Expr::from(row).min(below.clone())),
            (to, (Expr::from(row) + height).min(below)),
        ];
        let tile_row = || Expr::from(Sym::Rank) * of_shard + m;
        let slot = || Expr::from(source) * tiles.count + tile_row() * tiles.cols + n;
        let wait = Op::Wait {
            signal: self.stored,
            slots: Range::one(slot()),
            target: Expr::from(Sym::Epoch) * epilogue_warps(b.schedule.consumers),
            scope: Scope::Sys,
        };
        let left = || Expr::from(n) * tile.n;
        let cols = Range::new(left(), (left() + tile.n).min(Sym::N));
        let to = Place {
            planes: vec![parity(), source.into()],
            ..own(scatter.partial, Range::new(from, to), cols)
        };
        let kept = Place {
            at: At::Peer(source.into()),
            buffer: self.kept,
            planes: vec![parity()],
            ..to.clone()
        };
        let signal = Op::Signal {
            at: At::Own,
            signal: scatter.landed,
            slot: slot(),
            update: Update::Add(b.copier().raisers().into()),
            scope: Scope::Sys,
            after: Completion::Performed,
        };
        let copy = Op::Copy { from: kept, to, adds: false };
        let mut body: Vec<_> =
            lets.map(|(var, value)| stmt(span, Op::Let { var, value })).into_iter().collect();
        body.extend([wait, copy, signal].map(|op| stmt(span, op)));
        let all = Op::For {
            var: piece,
            from: Sym::Cta.into(),
            to: (Expr::from(Sym::World) - 1i64) * rows * of_row(),
            step: Sym::Ctas.into(),
            body,
        };
        let body = vec![stmt(span, all)];
        copying("pull", b.copier(), body)
    }
}
