//! Sums over ranks that every rank takes of every tile, from what the others put to it: those of reduced outputs
//! in one shot, and those that a kernel writes out.

use super::build::{Builder, stmt};
use super::gather::parity;
use super::gemm::{Tile, landed, landed_slot};
use super::reduce::{algorithm, of_tiles, reduction};
use super::scatter::partial_element;
use super::tensors::Tensors;
use super::tiles::Tiles;
use super::values::Values;
use crate::abi::epilogue_warps;
use crate::kernel::{Kernel, Op as KernelOp, Protocol, Value};
use crate::program::{
    At, Buffer, BufferId, BufferKind, Completion, Expr, Home, Op, Place, Range, Scope, SignalId,
    Stmt, Sym, Update,
};
use crate::schedule::AllReduce;
use crate::span::Span;

/// A sum that every rank takes of every tile.
pub(super) struct OneShot {
    /// This rank's own contribution.
    own: Value,
    puts: Vec<Put>,
    /// Where contributions land, `[2][world][M, N]`.
    pub(super) partial: BufferId,
    /// Raised by every epilogue warp of a tile, on every rank that it is put to.
    landed: SignalId,
    /// Raised by a peer when it is through with an epoch.
    pub(super) free: SignalId,
    pub(super) span: Span,
    /// Whether the kernel writes it out: its sum then is a value like any other.
    pub(super) is_explicit: bool,
}

/// A tile is put to one rank for each number of a range.
struct Put {
    hops: Range,
    /// The rank, from [`Protocol::HOP`].
    to: Expr,
    value: Value,
    span: Span,
}

/// Workspace and signals of a sum that every rank takes.
pub(super) fn place(b: &mut Builder<'_>, tensors: &Tensors) -> Option<OneShot> {
    written_out(b).or_else(|| reduced(b, tensors))
}

/// The sum that a kernel writes out over what was put to a workspace: the workspace, the own contribution, and
/// where.
pub(super) fn total(kernel: &Kernel) -> Option<(BufferId, Value, Span)> {
    kernel.ops.values().find_map(|entry| match entry.op {
        KernelOp::Total { buffer, own } => Some((buffer, own, entry.span)),
        _ => None,
    })
}

/// The sum of a reduced output: the contribution is put to every other rank, the next one first.
fn reduced(b: &mut Builder<'_>, tensors: &Tensors) -> Option<OneShot> {
    let (output, own, span) = reduction(b)?;
    let flagged = match algorithm(b, output)? {
        AllReduce::OneShot => false,
        AllReduce::Flagged => true,
        AllReduce::TwoShot => return None,
    };
    let declared = b.program.buffers[tensors.buffer(output)].clone();
    let name = declared.name.clone();
    let partial = b.program.buffers.push(Buffer {
        name: format!("{name}_partial"),
        kind: BufferKind::Symmetric,
        planes: vec![2i64.into(), Sym::World.into()],
        element: partial_element(b, declared.element),
        ..declared
    });
    let landed = tell(b, &name, partial, flagged);
    let free = b.signal("free", Sym::World, Home::Device);
    let puts = vec![Put {
        hops: Range::new(1i64, Sym::World),
        to: (Expr::from(Sym::Rank) + Protocol::HOP) % Sym::World,
        value: own,
        span,
    }];
    Some(OneShot { own, puts, partial, landed, free, span, is_explicit: false })
}

fn written_out(b: &mut Builder<'_>) -> Option<OneShot> {
    let kernel = b.kernel;
    let (workspace, own, span) = total(kernel)?;
    let declared = &kernel.protocol.as_ref()?.parts.buffers[workspace];
    let partial = b
        .program
        .buffers
        .push(Buffer { planes: vec![2i64.into(), Sym::World.into()], ..declared.clone() });
    let landed = tell(b, &declared.name, partial, true);
    let free = b.signal("free", Sym::World, Home::Device);
    let puts = kernel.ops.values().filter_map(|entry| match &entry.op {
        KernelOp::Put { hops, to, x, .. } => {
            Some(Put { hops: hops.clone(), to: to.clone(), value: *x, span: entry.span })
        }
        _ => None,
    });
    let puts = puts.collect();
    Some(OneShot { own, puts, partial, landed, free, span, is_explicit: true })
}

/// The signal that tells of a tile: one of its own, or what the data stand for.
fn tell(b: &mut Builder<'_>, name: &str, partial: BufferId, flagged: bool) -> SignalId {
    let (name, slots) = (format!("{name}_landed"), of_tiles(b));
    match flagged {
        true => b.carried(&name, slots, partial),
        false => b.signal(&name, slots, Home::Device),
    }
}

impl Put {
    /// One statement for each rank that the tile is put to.
    fn each(&self, b: &mut Builder<'_>, op: impl FnOnce(Expr) -> Op) -> Stmt {
        let hop = b.var("h");
        let to = self.to.replace(&|var| match var {
            Protocol::HOP => hop.into(),
            var => var.into(),
        });
        let Range { lo: from, hi } = self.hops.clone();
        let body = vec![stmt(self.span, op(to))];
        stmt(self.span, Op::For { var: hop, from, to: hi, step: 1i64.into(), body })
    }
}

impl OneShot {
    /// Puts the tile to other ranks, then tells them, so that what is on its way is waited for once;
    /// waits for theirs and sums.
    pub(super) fn tile(
        &self,
        b: &mut Builder<'_>,
        values: &Values,
        (tiles, tile): (&Tiles, &Tile),
    ) -> Vec<Stmt> {
        let span = self.span;
        let warps = epilogue_warps(b.schedule.consumers);
        let place = |at, plane: Expr| Place {
            at,
            buffer: self.partial,
            planes: vec![parity(), plane],
            rows: tile.rows(),
            cols: tile.cols(),
        };
        let mut all = Vec::new();
        for put in &self.puts {
            let value = values.get(put.value);
            let store =
                |to| Op::Store { to: place(At::Peer(to), Sym::Rank.into()), value, adds: false };
            all.push(put.each(b, store));
        }
        for put in &self.puts {
            let slot = landed_slot(tiles, tile, Sym::Rank);
            let tell = |to| Op::Signal {
                at: At::Peer(to),
                signal: self.landed,
                slot,
                update: Update::Add(warps.into()),
                scope: Scope::Sys,
                after: Completion::Performed,
            };
            all.push(put.each(b, tell));
        }
        let mut source = None;
        let told = (self.landed, warps, span);
        all.push(landed(b, told, (tiles, tile), |_, (rank, wait)| {
            source = Some(rank);
            vec![wait]
        }));
        // The variable of the wait: a slot of it is that of the contribution that the sum takes.
        let addend = source.unwrap_or_else(|| b.var("i"));
        let from = place(At::Own, addend.into());
        all.push(stmt(span, Op::Sum { var: addend, own: values.get(self.own), from }));
        all
    }
}
