//! Places gathered tensors: workspace for the whole tensor, the chunk map, and the agent that
//! pushes this rank's shard to every rank.
//!
//! The workspace exists twice, by parity of the epoch. A rank overwrites a peer's copy of epoch
//! `e - 2` only when that peer has said (`free`) that it is through with that epoch.

use super::build::{Builder, own, stmt};
use super::tensors::Tensors;
use crate::kernel::{Distribution, ParamId, ParamType};
use crate::program::{
    Agent, At, Buffer, BufferId, BufferKind, Completion, Engine, Expr, Home, Op, Place, Range,
    Scope, SignalId, Stmt, Sym, Update, VarId,
};
use crate::schedule::Transport;
use crate::span::Span;

/// A gathered tensor.
pub(super) struct Gather {
    pub(super) param: ParamId,
    /// The gathered rows, `[2][M, K]`.
    pub(super) all: BufferId,
    /// One signal per (source rank, chunk).
    pub(super) arrived: SignalId,
}

/// Every gathered tensor and what they share.
pub(super) struct Gathers {
    pub(super) each: Vec<Gather>,
    /// `CR` and `CH`: rows of a chunk, chunks of a full shard.
    chunks: Option<(VarId, VarId)>,
    /// Raised by a peer when it is through with an epoch; waited for by the host.
    pub(super) free: Option<SignalId>,
}

/// The plane that the current epoch uses of a buffer that exists twice.
pub(super) fn parity() -> Expr {
    Expr::from(Sym::Epoch) % 2i64
}

impl Gathers {
    /// The chunk that holds `row` of the whole tensor.
    pub(super) fn chunk_of(&self, tensors: &Tensors, row: &Expr) -> Option<Expr> {
        let (rows, count) = self.chunks?;
        let source = row.clone() / tensors.shard;
        let within = (row.clone() % tensors.shard) / rows;
        Some(source * count + within)
    }
}

pub(super) fn place(b: &mut Builder<'_>, tensors: &Tensors) -> Gathers {
    let mut gathers = Gathers { each: Vec::new(), chunks: None, free: None };
    let kernel = b.kernel;
    for (param, entry) in kernel.params.iter() {
        let ParamType::Tensor { distribution: Distribution::Gathered, element, .. } = entry.ty
        else {
            continue;
        };
        let (rows, count) = *gathers.chunks.get_or_insert_with(|| chunks(b, tensors));
        let free =
            *gathers.free.get_or_insert_with(|| b.signal("free_host", Sym::World, Home::Host));
        let all = b.program.buffers.push(Buffer {
            name: format!("{}_all", entry.name),
            kind: BufferKind::Symmetric,
            element,
            planes: vec![2i64.into()],
            rows: Sym::M.into(),
            first_row: 0i64.into(),
            cols: Sym::K.into(),
            span: entry.span,
        });
        let name = format!("{}_arrived", entry.name);
        let arrived = b.signal(&name, Expr::from(Sym::World) * count, Home::Device);
        let gather = Gather { param, all, arrived };
        let body = match b.schedule.transport {
            Transport::CopyEngine => push(b, tensors, &gather, rows, count, free),
        };
        let name = format!("push_{}", entry.name);
        b.program.agents.push(Agent { name, engine: Engine::CopyEngine, body, exit: Vec::new() });
        gathers.each.push(gather);
    }
    gathers
}

/// Rows of a chunk and chunks of a full shard, from the schedule.
fn chunks(b: &mut Builder<'_>, tensors: &Tensors) -> (VarId, VarId) {
    let rows = match b.schedule.chunk_rows {
        Some(rows) => Expr::from(rows).min(tensors.shard).max(1i64),
        None => Expr::from(tensors.shard).max(1i64),
    };
    let rows = b.define("CR", rows);
    let count = b.define("CH", Expr::from(tensors.shard).ceil_div(rows));
    (rows, count)
}

/// To each rank in turn, this one first: its shard, chunk by chunk, each with its signal.
fn push(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    gather: &Gather,
    chunk_rows: VarId,
    chunk_count: VarId,
    free: SignalId,
) -> Vec<Stmt> {
    let span = wait_span(b, gather.param);
    let (hop, target, chunk) = (b.var("h"), b.var("dst"), b.var("c"));
    let rank = || Expr::from(Sym::Rank);
    let first = rank() * tensors.shard;
    let lo = b.var("from");
    let rows = Range::new(lo, (Expr::from(lo) + chunk_rows).min(first.clone() + tensors.own));
    let cols = Range::new(0i64, Sym::K);
    let copy = Op::Copy {
        from: own(tensors.buffer(gather.param), rows.clone(), cols.clone()),
        to: Place {
            at: At::Peer(target.into()),
            buffer: gather.all,
            planes: vec![parity()],
            rows,
            cols,
        },
    };
    let signal = Op::Signal {
        at: At::Peer(target.into()),
        signal: gather.arrived,
        slot: rank() * chunk_count + chunk,
        update: Update::Set(Sym::Epoch.into()),
        scope: Scope::Sys,
        after: Completion::Performed,
    };
    let chunks = Op::For {
        var: chunk,
        from: 0i64.into(),
        to: Expr::from(tensors.own).ceil_div(chunk_rows),
        step: 1i64.into(),
        body: vec![
            stmt(span, Op::Let { var: lo, value: first + Expr::from(chunk) * chunk_rows }),
            stmt(span, copy),
            stmt(span, signal),
        ],
    };
    let ranks = Op::For {
        var: hop,
        from: 0i64.into(),
        to: Sym::World.into(),
        step: 1i64.into(),
        body: vec![
            stmt(span, Op::Let { var: target, value: (rank() + hop) % Sym::World }),
            stmt(span, wait_free(free, Range::one(target))),
            stmt(span, chunks),
        ],
    };
    vec![stmt(span, ranks)]
}

/// Blocks until the ranks in `slots` are through with the last epoch that used this parity.
pub(super) fn wait_free(free: SignalId, slots: Range) -> Op {
    Op::Wait { signal: free, slots, target: Expr::from(Sym::Epoch) - 2i64, scope: Scope::Sys }
}

/// Tells every rank that this one is through with the current epoch.
pub(super) fn signal_free(b: &mut Builder<'_>, free: SignalId, span: Span) -> Stmt {
    let peer = b.var("p");
    let signal = Op::Signal {
        at: At::Peer(peer.into()),
        signal: free,
        slot: Sym::Rank.into(),
        update: Update::Set(Sym::Epoch.into()),
        scope: Scope::Sys,
        after: Completion::Performed,
    };
    let ranks = Op::For {
        var: peer,
        from: 0i64.into(),
        to: Sym::World.into(),
        step: 1i64.into(),
        body: vec![stmt(span, signal)],
    };
    stmt(span, ranks)
}

/// The `wait` the user wrote for a gathered tensor, or its declaration.
pub(super) fn wait_span(b: &Builder<'_>, param: ParamId) -> Span {
    let wait =
        b.kernel.ops.values().find(
            |entry| matches!(entry.op, crate::kernel::Op::Wait { tensor } if tensor == param),
        );
    wait.map_or(b.kernel.params[param].span, |entry| entry.span)
}
