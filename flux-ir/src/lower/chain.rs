//! Places a scattered output whose sum grows on its way: each tile passes from rank to rank, and each
//! adds its contribution, the owner last.
//!
//! | algorithm | the sum so far lies | each rank |
//! |---|---|---|
//! | [`ReduceScatter::Ring`] | in workspace of the rank that is next | reads it, adds in registers, and puts the result to the next one |
//! | [`ReduceScatter::Add`] | in workspace of the owner | adds to it there, and tells the next one |
//!
//! The rank before the owner begins, the one before that is next, and so on around. So are tiles
//! visited by default: at any time each rank is one shard behind the next, and what it waits for was
//! done a shard ago. The order is always the same, and so is the sum.
//!
//! Tiles begin anew with each shard: a tile of two owners would be at two places of the chain.

use super::build::{Builder, own, stmt};
use super::gather::parity;
use super::gemm::{Tile, stores};
use super::reduce::reduction;
use super::scatter::partial_element;
use super::tensors::Tensors;
use super::tiles::Tiles;
use super::values::{Values, loaded};
use crate::abi::epilogue_warps;
use crate::kernel::{Distribution, Op as KernelOp, OpEntry, Value};
use crate::program::{
    At, Buffer, BufferId, BufferKind, Completion, Cond, Expr, Home, Op, Place, Range, Scope,
    SignalId, Stmt, Sym, Update, ValueEntry, ValueOp, VarId,
};
use crate::schedule::ReduceScatter;
use crate::span::Span;

/// A sum that passes from rank to rank.
pub(super) struct Chain {
    /// Whether the sum so far travels; else it stays with the owner.
    travels: bool,
    contribution: Value,
    /// What it adds up to with the sum so far.
    total: Value,
    /// The number of the load that reads the sum so far.
    load: u32,
    /// Where it lies: `[2][M, N]` around a ring, else `[2][S, N]` of the owner.
    partial: BufferId,
    /// Raised by every epilogue warp of the rank before, by tile.
    passed: SignalId,
    /// Raised by a peer when it is through with an epoch.
    pub(super) free: SignalId,
    pub(super) span: Span,
}

/// How the sum over ranks passes along them, where it does.
pub(super) fn algorithm(b: &Builder<'_>) -> Option<ReduceScatter> {
    let (output, ..) = reduction(b)?;
    let scattered = b.kernel.tensor(output).is_some_and(|(d, ..)| d == Distribution::Scattered);
    match b.schedule.reduce_scatter.unwrap_or_default() {
        chained @ (ReduceScatter::Add | ReduceScatter::Ring) if scattered => Some(chained),
        ReduceScatter::LocalSum
        | ReduceScatter::Add
        | ReduceScatter::Ring
        | ReduceScatter::Pull => None,
    }
}

/// The number of the load that reads the sum so far: behind those of what is gathered.
pub(super) fn load(b: &Builder<'_>) -> u32 {
    loaded(b.kernel).len() as u32
}

/// Workspace and signals.
pub(super) fn place(b: &mut Builder<'_>, tensors: &Tensors) -> Option<Chain> {
    let travels = algorithm(b)? == ReduceScatter::Ring;
    let (output, contribution, span) = reduction(b)?;
    let is_sum = |entry: &OpEntry| matches!(entry.op, KernelOp::Reduce { .. });
    let (total, _) = b.kernel.ops.iter().find(|(_, entry)| is_sum(entry))?;
    let declared = b.program.buffers[tensors.buffer(output)].clone();
    let (rows, first_row) = match travels {
        true => (Sym::M.into(), 0i64.into()),
        false => (tensors.shard.into(), Expr::from(Sym::Rank) * tensors.shard),
    };
    let partial = b.program.buffers.push(Buffer {
        name: format!("{}_partial", declared.name),
        kind: BufferKind::Symmetric,
        sums: !travels,
        element: partial_element(b, declared.element),
        planes: vec![2i64.into()],
        rows,
        first_row,
        cols: Sym::N.into(),
        ..declared.clone()
    });
    let tile = b.schedule.tile;
    // No fewer than there are tiles: each shard may end with a ragged one.
    let rows = Expr::from(tensors.shard).ceil_div(tile.m) * Sym::World;
    let passed = format!("{}_passed", declared.name);
    let passed = b.signal(&passed, rows * Expr::from(Sym::N).ceil_div(tile.n), Home::Device);
    let free = b.signal("free", Sym::World, Home::Device);
    Some(Chain { travels, contribution, total, load: load(b), partial, passed, free, span })
}

impl Chain {
    /// Passes a tile on, or stores it where it is this rank's.
    pub(super) fn tile(
        &self,
        b: &mut Builder<'_>,
        tensors: &Tensors,
        values: &Values,
        (tiles, tile): (&Tiles, &Tile),
    ) -> Vec<Stmt> {
        let span = self.span;
        let vars = ["o", "at", "next"].map(|name| b.var(name));
        let [owner, place, next] = vars;
        let before = |rank: Expr| (rank + Sym::World - 1i64) % Sym::World;
        let lets = [
            (owner, tiles.owner(tile)),
            // How many have added theirs.
            (place, before(Expr::from(owner) + Sym::World - Sym::Rank)),
            (next, before(Sym::Rank.into())),
        ];
        let passes = self.passes(b, values, (tiles, tile), vars);
        let ends = self.ends(b, tensors, values, (tiles, tile));
        let (owner, rank) = (|| owner.into(), || Sym::Rank.into());
        let mut all: Vec<_> =
            lets.map(|(var, value)| stmt(span, Op::Let { var, value })).into_iter().collect();
        all.push(stmt(span, Op::If { cond: Cond::Ne(owner(), rank()), body: passes }));
        all.push(stmt(span, Op::If { cond: Cond::Eq(owner(), rank()), body: ends }));
        all
    }

    /// Adds this rank's contribution to a tile of `owner`'s, the first of which stands alone, and tells
    /// the next rank.
    fn passes(
        &self,
        b: &Builder<'_>,
        values: &Values,
        (tiles, tile): (&Tiles, &Tile),
        [owner, place, next]: [VarId; 3],
    ) -> Vec<Stmt> {
        let (contribution, total) = (values.get(self.contribution), values.get(self.total));
        let store = |to: VarId, value, adds| {
            let to = self.so_far(At::Peer(to.into()), tile);
            self.stmt(Op::Store { to, value, adds })
        };
        let wait = self.stmt(self.wait(b, tiles, tile));
        let (to, more) = match self.travels {
            true => (next, vec![wait, self.load(tile), store(next, total, false)]),
            false => (owner, vec![wait, store(owner, contribution, true)]),
        };
        let first = store(to, contribution, false);
        let is_first = Cond::Eq(place.into(), 0i64.into());
        let is_later = Cond::Lt(0i64.into(), place.into());
        vec![
            self.stmt(Op::If { cond: is_first, body: vec![first] }),
            self.stmt(Op::If { cond: is_later, body: more }),
            self.stmt(self.tell(b, tiles, tile, At::Peer(next.into()))),
        ]
    }

    /// Adds this rank's contribution to a tile of its own, and stores what the kernel makes of it.
    fn ends(
        &self,
        b: &mut Builder<'_>,
        tensors: &Tensors,
        values: &Values,
        (tiles, tile): (&Tiles, &Tile),
    ) -> Vec<Stmt> {
        // On one rank alone the sum begins with what adds nothing, not even a sign to a zero.
        let nothing = ValueEntry { op: ValueOp::Const(-0.0), span: self.span };
        let value = b.program.values.push(nothing);
        let begin = Op::Store { to: self.so_far(At::Own, tile), value, adds: false };
        let tell = self.tell(b, tiles, tile, At::Own);
        let alone = vec![self.stmt(begin), self.stmt(tell)];
        let cond = Cond::Eq(Sym::World.into(), 1i64.into());
        let wait = self.stmt(self.wait(b, tiles, tile));
        let mut ends = vec![self.stmt(Op::If { cond, body: alone }), wait, self.load(tile)];
        let (rows, cols) = (tile.rows(), tile.cols());
        ends.extend(stores(b, tensors, values, Distribution::Scattered, &rows, &cols));
        ends
    }

    fn stmt(&self, op: Op) -> Stmt {
        stmt(self.span, op)
    }

    /// The sum so far of a tile.
    fn so_far(&self, at: At, tile: &Tile) -> Place {
        let planes = vec![parity()];
        Place { at, planes, ..own(self.partial, tile.rows(), tile.cols()) }
    }

    fn load(&self, tile: &Tile) -> Stmt {
        self.stmt(Op::Load { index: self.load, from: self.so_far(At::Own, tile) })
    }

    fn slot(tiles: &Tiles, tile: &Tile) -> Expr {
        Expr::from(tile.m) * tiles.cols + tile.n
    }

    fn wait(&self, b: &Builder<'_>, tiles: &Tiles, tile: &Tile) -> Op {
        Op::Wait {
            signal: self.passed,
            slots: Range::one(Chain::slot(tiles, tile)),
            target: Expr::from(Sym::Epoch) * epilogue_warps(b.schedule.consumers),
            scope: Scope::Sys,
        }
    }

    fn tell(&self, b: &Builder<'_>, tiles: &Tiles, tile: &Tile, at: At) -> Op {
        Op::Signal {
            at,
            signal: self.passed,
            slot: Chain::slot(tiles, tile),
            update: Update::Add(epilogue_warps(b.schedule.consumers).into()),
            scope: Scope::Sys,
            after: Completion::Performed,
        }
    }
}
