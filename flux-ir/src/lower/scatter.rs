//! Places the contributions to a scattered output: for each source rank a plane of the owner's
//! workspace, twice by parity of the epoch, and a signal per (source rank, tile).

use super::build::Builder;
use super::tensors::Tensors;
use crate::kernel::{Op, Value};
use crate::program::{Buffer, BufferId, BufferKind, Expr, Home, SignalId, Sym};
use crate::span::Span;

/// The sum over ranks.
pub(super) struct Scatter {
    /// What each rank contributes.
    pub(super) contribution: Value,
    /// Where contributions land, `[2][world][S, N]`.
    pub(super) partial: BufferId,
    /// Raised by every epilogue warp of a tile.
    pub(super) landed: SignalId,
    /// Raised by a peer when it is through with an epoch; waited for by CTAs.
    pub(super) free: SignalId,
    pub(super) span: Span,
}

pub(super) fn place(b: &mut Builder<'_>, tensors: &Tensors) -> Option<Scatter> {
    let (output, contribution, span) = b.kernel.ops.values().find_map(|entry| match entry.op {
        Op::Reduce { output, x } => Some((output, x, entry.span)),
        _ => None,
    })?;
    let declared = &b.program.buffers[tensors.buffer(output)];
    let partial = Buffer {
        name: format!("{}_partial", declared.name),
        kind: BufferKind::Symmetric,
        element: declared.element,
        planes: vec![2i64.into(), Sym::World.into()],
        rows: tensors.shard.into(),
        first_row: Expr::from(Sym::Rank) * tensors.shard,
        cols: Sym::N.into(),
        span: declared.span,
    };
    let name = format!("{}_landed", declared.name);
    let partial = b.program.buffers.push(partial);
    let tile = b.schedule.tile;
    let tiles = Expr::from(Sym::M).ceil_div(tile.m) * Expr::from(Sym::N).ceil_div(tile.n);
    let landed = b.signal(&name, Expr::from(Sym::World) * tiles, Home::Device);
    let free = b.signal("free", Sym::World, Home::Device);
    Some(Scatter { contribution, partial, landed, free, span })
}
