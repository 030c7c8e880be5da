//! Places gathered tensors: workspace for the whole tensor, the chunk map, and the agent that
//! pushes this rank's shard to every rank: a copy engine, or the kernel's own copy warps or bulk
//! copies ([`super::put`]).
//!
//! The workspace exists twice, by parity of the epoch. A rank overwrites a peer's copy of epoch
//! `e - 2` only when that peer has said (`free`) that it is through with that epoch.

use super::build::{Builder, own, stmt};
use super::nodes::Nodes;
use super::put::{self, Pieces};
use super::tensors::{Tensors, extent};
use super::usage::Dim;
use super::values;
use crate::kernel::{Distribution, ParamId, ParamType};
use crate::program::{
    Agent, At, Buffer, BufferId, BufferKind, Completion, Cond, Engine, Expr, Home, Op, Place,
    Range, Scope, SignalId, Stmt, Sym, Update, VarId,
};
use crate::schedule::{Tail, Transport};
use crate::span::Span;

/// A gathered tensor.
///
/// Rows arrive in chunks, of which a shard has `CH`. Under a [`Tail`] the rank that receives a shard
/// last gets its last rows in slices of K instead, each with a signal.
pub(super) struct Gather {
    pub(super) param: ParamId,
    /// The gathered rows, `[2][M, K]`, or `[2][M, N]` where the epilogue reads them.
    pub(super) all: BufferId,
    /// Columns of a row.
    pub(super) cols: Expr,
    pub(super) shards: Shards,
    /// The number of the load by which the epilogue reads it, where it is no operand of a product.
    pub(super) load: Option<u32>,
    /// One signal per (source rank, chunk).
    pub(super) arrived: SignalId,
    /// Under a tail, one signal per slice.
    pub(super) sliced: Option<SignalId>,
}

/// Which rows are sharded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shards {
    /// Rows of a full shard, and those of this rank's.
    pub(super) full: VarId,
    pub(super) own: VarId,
    /// Whether it is what products sum over, and not the rows of the output.
    pub(super) summed: bool,
}

/// How shards are cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunks {
    /// `CR`: rows of a chunk.
    pub(super) rows: VarId,
    /// `CH`: chunks of a full shard.
    pub(super) count: VarId,
    pub(super) tail: Option<TailCut>,
    /// How the kernel itself cuts a chunk; copy engines copy it whole.
    pub(super) pieces: Option<Pieces>,
}

/// The rows that this rank receives in slices: those of [`Tail`], of the next rank's shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct TailCut {
    of: Tail,
    /// `S`: slices.
    pub(super) slices: VarId,
    /// `KS`: columns of a slice, whole k-steps.
    pub(super) cols: VarId,
    /// `TB`, `TE`: the first row, and one past the last.
    pub(super) first: VarId,
    pub(super) end: VarId,
    /// `TC`, `TN`: one past the chunks ahead of it, and the first chunk behind its shard.
    pub(super) before: VarId,
    pub(super) behind: VarId,
}

/// Every gathered tensor and what they share.
pub(super) struct Gathers {
    pub(super) each: Vec<Gather>,
    pub(super) chunks: Option<Chunks>,
    /// The same of all.
    pub(super) shards: Option<Shards>,
    /// Raised by a peer when it is through with an epoch; waited for by the host, or by copy warps.
    pub(super) free: Option<SignalId>,
}

/// The plane that the current epoch uses of a buffer that exists twice.
pub(super) fn parity() -> Expr {
    Expr::from(Sym::Epoch) % 2i64
}

impl TailCut {
    /// Rows that are asked for in slices: a shard may have fewer.
    pub(super) fn rows(self) -> u32 {
        self.of.rows
    }
}

impl Shards {
    /// To whom a rank sends at some hop, itself first. Behind it comes the next rank, or the one before
    /// where rows are summed over: those arrive from the own rank first, and then from the next one.
    pub(super) fn target(self, hop: Expr) -> Expr {
        match self.summed {
            true => (Expr::from(Sym::Rank) + Sym::World - hop) % Sym::World,
            false => (Expr::from(Sym::Rank) + hop) % Sym::World,
        }
    }

    /// The chunk that holds `row` of the whole tensor.
    pub(super) fn chunk_of(self, Chunks { rows, count, .. }: Chunks, row: &Expr) -> Expr {
        let source = row.clone() / self.full;
        let within = (row.clone() % self.full) / rows;
        source * count + within
    }
}

impl Gathers {
    /// What a chunk's signal has become when the chunk is there.
    pub(super) fn arrival(&self) -> Expr {
        let pieces = self.chunks.and_then(|chunks| chunks.pieces);
        pieces.map_or(Sym::Epoch.into(), Pieces::arrival)
    }

    /// The chunk that holds `row` of the tiles, where they wait for theirs.
    pub(super) fn chunk_of(&self, row: &Expr) -> Option<Expr> {
        let (chunks, shards) = self.chunks.zip(self.shards.filter(|shards| !shards.summed))?;
        Some(shards.chunk_of(chunks, row))
    }

    /// Whether products sum over the gathered rows.
    pub(super) fn are_summed(&self) -> bool {
        self.shards.is_some_and(|shards| shards.summed)
    }
}

pub(super) fn place(b: &mut Builder<'_>, tensors: &Tensors) -> Gathers {
    let mut gathers = Gathers { each: Vec::new(), chunks: None, shards: None, free: None };
    let kernel = b.kernel;
    for (param, entry) in kernel.params.iter() {
        let ParamType::Tensor { distribution: Distribution::Gathered, element, .. } = entry.ty
        else {
            continue;
        };
        let dims = b.usage.dims(param).expect("usage inference gives every tensor dimensions");
        let cols = extent(dims.cols);
        let summed = dims.rows == Dim::K;
        let (full, own) = match summed {
            true => (tensors.columns(Dim::K).part, tensors.columns(Dim::K).own),
            false => (tensors.shard, tensors.own),
        };
        let shards = *gathers.shards.get_or_insert(Shards { full, own, summed });
        let chunks = *gathers.chunks.get_or_insert_with(|| chunks(b, tensors, full, &cols));
        let (name, home) = match chunks.pieces {
            None => ("free_host", Home::Host),
            Some(_) => ("free_copies", Home::Device),
        };
        let free = *gathers.free.get_or_insert_with(|| b.signal(name, Sym::World, home));
        let all = b.program.buffers.push(Buffer {
            name: format!("{}_all", entry.name),
            kind: BufferKind::Symmetric,
            sums: false,
            element,
            planes: vec![2i64.into()],
            rows: extent(dims.rows),
            first_row: 0i64.into(),
            cols: cols.clone(),
            first_col: 0i64.into(),
            span: entry.span,
        });
        let name = format!("{}_arrived", entry.name);
        let arrived = b.signal(&name, Expr::from(Sym::World) * chunks.count, Home::Device);
        let name = format!("{}_sliced", entry.name);
        let sliced = chunks.tail.map(|tail| b.signal(&name, tail.slices, Home::Device));
        let load = values::loaded(kernel).iter().position(|&loaded| loaded == param);
        let load = load.map(|index| index as u32);
        let gather = Gather { param, all, cols, shards, load, arrived, sliced };
        if chunks.pieces.is_none() {
            let body = push(b, tensors, &gather, chunks, free);
            let name = format!("push_{}", entry.name);
            let engine = Engine::CopyEngine;
            b.program.agents.push(Agent { name, engine, body, exit: Vec::new() });
        }
        gathers.each.push(gather);
    }
    if let Some((chunks, free)) = gathers.chunks.zip(gathers.free)
        && let Some(pieces) = chunks.pieces
    {
        let agent = put::agent(b, tensors, &gathers.each, (chunks, pieces), free);
        b.program.agents.push(agent);
    }
    gathers
}

/// 1 where `a` is at least `b`, else 0.
pub(super) fn at_least(a: &Expr, b: impl Into<Expr>) -> Expr {
    (a.clone() - b.into() + 1i64).min(1i64).max(0i64)
}

/// Rows of a chunk and chunks of a full shard, from the schedule.
pub(super) fn chunks(b: &mut Builder<'_>, tensors: &Tensors, shard: VarId, cols: &Expr) -> Chunks {
    let is_put = b.schedule.transport.is_some_and(Transport::is_in_kernel);
    let rows = match b.schedule.chunk_rows {
        Some(rows) => Expr::from(rows).min(shard).max(1i64),
        // Small pieces cost the kernel nothing: what tiles wait for is a tile row.
        None if is_put => Expr::from(shard).min(b.schedule.tile.m).max(1i64),
        None => Expr::from(shard).max(1i64),
    };
    let rows = b.define("CR", rows);
    let count = b.define("CH", Expr::from(shard).ceil_div(rows));
    let tail = b.schedule.tail.map(|of| tail(b, tensors, (rows, count), of));
    let pieces = is_put.then(|| Pieces::of(b, shard, rows, cols));
    Chunks { rows, count, tail, pieces }
}

/// Where the tail lies of the shard that this rank receives last.
fn tail(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    (rows, count): (VarId, VarId),
    of: Tail,
) -> TailCut {
    let step = b.schedule.tile.k;
    let slices = b.define("S", of.slices.into());
    let steps = Expr::from(Sym::K).ceil_div(step).ceil_div(slices);
    let cols = b.define("KS", steps * step);
    let last = b.define("L", (Expr::from(Sym::Rank) + 1i64) % Sym::World);
    let begin = b.define("LB", (Expr::from(last) * tensors.shard).min(Sym::M));
    let end = b.define("TE", (Expr::from(begin) + tensors.shard).min(Sym::M));
    let first = b.define("TB", (Expr::from(end) - of.rows).max(begin));
    let whole = (Expr::from(first) - begin).ceil_div(rows);
    let before = b.define("TC", Expr::from(last) * count + whole);
    let behind = b.define("TN", Expr::from(last) * count + count);
    TailCut { of, slices, cols, first, end, before, behind }
}

/// To each rank in turn, this one first: its shard, chunk by chunk, each with its signal. The rank
/// that comes last gets the tail in slices.
fn push(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    gather: &Gather,
    chunks: Chunks,
    free: SignalId,
) -> Vec<Stmt> {
    let span = wait_span(b, gather.param);
    let (hop, target) = (b.var("h"), b.var("dst"));
    let mut body = vec![
        stmt(span, Op::Let { var: target, value: gather.shards.target(hop.into()) }),
        stmt(span, wait_free(free, Range::one(target))),
    ];
    let push = Push { tensors, gather, chunks, target, span };
    match (chunks.tail, gather.sliced) {
        (Some(tail), Some(sliced)) => {
            let (cut, whole) = (b.var("cut"), b.var("whole"));
            let is_last = at_least(&hop.into(), Expr::from(Sym::World) - 1i64);
            let rows = Expr::from(tail.of.rows).min(gather.shards.own);
            let lets = [(cut, is_last * rows), (whole, Expr::from(gather.shards.own) - cut)];
            body.extend(lets.map(|(var, value)| stmt(span, Op::Let { var, value })));
            body.push(push.chunks(b, whole));
            let cond = Cond::Lt(0i64.into(), cut.into());
            let slices = push.slices(b, whole, tail, sliced);
            body.push(stmt(span, Op::If { cond, body: vec![slices] }));
        }
        _ => body.push(push.chunks(b, gather.shards.own)),
    }
    let ranks =
        Op::For { var: hop, from: 0i64.into(), to: Sym::World.into(), step: 1i64.into(), body };
    vec![stmt(span, ranks)]
}

/// What a shard's copies to one rank have in common.
struct Push<'a> {
    tensors: &'a Tensors,
    gather: &'a Gather,
    chunks: Chunks,
    target: VarId,
    span: Span,
}

impl Push<'_> {
    /// The first `rows` rows of the shard, chunk by chunk.
    fn chunks(&self, b: &mut Builder<'_>, rows: VarId) -> Stmt {
        let (chunk, lo) = (b.var("c"), b.var("from"));
        let first = Expr::from(Sym::Rank) * self.gather.shards.full;
        let size = self.chunks.rows;
        let of_chunk = Range::new(lo, (Expr::from(lo) + size).min(first.clone() + rows));
        let value = first + Expr::from(chunk) * size;
        let mut body = vec![stmt(self.span, Op::Let { var: lo, value })];
        body.push(self.copy(of_chunk, Range::new(0i64, self.gather.cols.clone())));
        let slot = Expr::from(Sym::Rank) * self.chunks.count + chunk;
        body.push(self.signal(self.gather.arrived, slot));
        let chunks = Op::For {
            var: chunk,
            from: 0i64.into(),
            to: Expr::from(rows).ceil_div(size),
            step: 1i64.into(),
            body,
        };
        stmt(self.span, chunks)
    }

    /// The rows behind the first `whole` ones, slice by slice.
    fn slices(&self, b: &mut Builder<'_>, whole: VarId, tail: TailCut, sliced: SignalId) -> Stmt {
        let slice = b.var("s");
        let first = Expr::from(Sym::Rank) * self.gather.shards.full;
        let rows = Range::new(first.clone() + whole, first + self.gather.shards.own);
        let lo = Expr::from(slice) * tail.cols;
        let cols = Range::new(lo.clone(), (lo + tail.cols).min(Sym::K));
        let body = vec![self.copy(rows, cols), self.signal(sliced, slice)];
        let slices = Op::For {
            var: slice,
            from: 0i64.into(),
            to: tail.slices.into(),
            step: 1i64.into(),
            body,
        };
        stmt(self.span, slices)
    }

    fn copy(&self, rows: Range, cols: Range) -> Stmt {
        let copy = self.gather.copy(self.tensors, self.target, rows, cols);
        stmt(self.span, copy)
    }

    fn signal(&self, signal: SignalId, slot: impl Into<Expr>) -> Stmt {
        let update = Update::Set(Sym::Epoch.into());
        stmt(self.span, tell(self.target, signal, slot.into(), update))
    }
}

impl Gather {
    /// Copies a part of this rank's shard to where it belongs on `target`.
    pub(super) fn copy(&self, tensors: &Tensors, target: VarId, rows: Range, cols: Range) -> Op {
        let to = self.place(At::Peer(target.into()), rows.clone(), cols.clone());
        Op::Copy { from: own(tensors.buffer(self.param), rows, cols), to, adds: false }
    }

    /// Where a part of the whole tensor lies in this launch.
    pub(super) fn place(&self, at: At, rows: Range, cols: Range) -> Place {
        Place { at, buffer: self.all, planes: vec![parity()], rows, cols }
    }
}

/// Tells `target` of what was copied there.
pub(super) fn tell(target: VarId, signal: SignalId, slot: Expr, update: Update) -> Op {
    Op::Signal {
        at: At::Peer(target.into()),
        signal,
        slot,
        update,
        scope: Scope::Sys,
        after: Completion::Performed,
    }
}

/// Blocks until the ranks in `slots` are through with the last epoch that used this parity.
pub(super) fn wait_free(free: SignalId, slots: Range) -> Op {
    Op::Wait { signal: free, slots, target: Expr::from(Sym::Epoch) - 2i64, scope: Scope::Sys }
}

/// Tells every rank that this one is through with the current epoch.
pub(super) fn signal_free(b: &mut Builder<'_>, free: SignalId, span: Span) -> Stmt {
    let peer = b.var("p");
    let signal = |at, update, after| Op::Signal {
        at,
        signal: free,
        slot: Sym::Rank.into(),
        update,
        scope: Scope::Sys,
        after,
    };
    let body = match Nodes::of(b) {
        None => {
            let update = Update::Set(Sym::Epoch.into());
            vec![stmt(span, signal(At::Peer(peer.into()), update, Completion::Performed))]
        }
        Some(nodes) => {
            let one = || Update::Add(1i64.into());
            let mapped = signal(At::Peer(peer.into()), one(), Completion::Performed);
            let carried = signal(At::Remote(peer.into()), one(), Completion::Delivered);
            let each = [mapped, carried].map(|op| vec![stmt(span, op)]);
            nodes.each(peer, each.into()).map(|op| stmt(span, op)).into()
        }
    };
    let ranks =
        Op::For { var: peer, from: 0i64.into(), to: Sym::World.into(), step: 1i64.into(), body };
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
