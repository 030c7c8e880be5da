//! Places exchanged tensors: of an input every rank holds a column shard and multiplies or reads
//! its own rows, of an output every rank computes its own rows and keeps a column shard.
//!
//! An input's own rows arrive in workspace from every rank, the columns of each: a copy engine or
//! the kernel's copy warps push them, chunk by chunk, each chunk with its signal. A product goes
//! through them in the order in which they arrive.
//!
//! An output's tiles are put into workspace of the ranks that own their columns. There copy warps
//! wait for each tile and copy it into the output, and the exit waits for all of them before it says
//! that the workspace is free. Workspace exists twice, by parity of the epoch.

use super::build::{Builder, copying, own, stmt};
use super::gather::{self, Chunks, parity, tell, wait_free, wait_span};
use super::put::{Pieces, times};
use super::tensors::{Columns, Tensors, extent};
use super::tiles::Tiles;
use super::values;
use crate::abi::epilogue_warps;
use crate::kernel::{Distribution, Op as KernelOp, ParamId, ParamType, Value};
use crate::program::{
    Agent, At, Buffer, BufferId, BufferKind, Completion, Cond, Engine, Expr, Home, Op, Place,
    Range, Scope, SignalId, Stmt, Sym, Update, VarId,
};
use crate::schedule::Transport;
use crate::span::Span;

/// An exchanged input.
pub(super) struct Incoming {
    pub(super) param: ParamId,
    /// The own rows, `[2][S, K]`, or `[2][S, N]` where the epilogue reads them.
    pub(super) all: BufferId,
    /// The columns of each rank.
    pub(super) columns: Columns,
    /// The number of the load by which the epilogue reads it, where it is no operand of a product.
    pub(super) load: Option<u32>,
    /// One signal per (source rank, chunk of the own rows).
    pub(super) arrived: SignalId,
}

/// An exchanged output.
pub(super) struct Outgoing {
    output: ParamId,
    value: Value,
    /// Where tiles of other ranks land, `[2][M, NS]`.
    inbox: BufferId,
    columns: Columns,
    /// Raised by every epilogue warp of a tile: one signal per (source rank, tile).
    landed: SignalId,
    /// Raised by the copy warps when a piece lies in the output.
    copied: SignalId,
    /// `TR`, `TS`: tile rows of a full shard, and its tiles.
    rows: VarId,
    tiles: VarId,
    /// `TP`: pieces of a tile; `TC`: tile columns that a column shard lies in, at most.
    pieces: u32,
    across: VarId,
    /// `TQ`: pieces that land on a rank.
    all: VarId,
    span: Span,
}

/// Rows of a piece of a tile that copy warps move at a time.
const PIECE_ROWS: u32 = 32;

/// Every exchanged tensor and what they share.
pub(super) struct Exchanges {
    pub(super) incoming: Vec<Incoming>,
    pub(super) chunks: Option<Chunks>,
    /// Raised by a peer when it is through with what arrived in an epoch.
    pub(super) free: Option<SignalId>,
    pub(super) outgoing: Vec<Outgoing>,
    /// The same of tiles that were put.
    pub(super) free_tiles: Option<SignalId>,
}

pub(super) fn place(b: &mut Builder<'_>, tensors: &Tensors) -> Exchanges {
    let mut exchanges = Exchanges {
        incoming: Vec::new(),
        chunks: None,
        free: None,
        outgoing: Vec::new(),
        free_tiles: None,
    };
    let kernel = b.kernel;
    for (param, entry) in kernel.params.iter() {
        let ParamType::Tensor { distribution: Distribution::Exchanged, written: false, .. } =
            entry.ty
        else {
            continue;
        };
        let incoming = arrive(b, tensors, param, &mut exchanges);
        exchanges.incoming.push(incoming);
    }
    if let Some((chunks, free)) = exchanges.chunks.zip(exchanges.free)
        && let Some(pieces) = chunks.pieces
    {
        let agent = push(b, tensors, &exchanges.incoming, (chunks, pieces), free);
        b.program.agents.push(agent);
    }
    for entry in kernel.ops.values() {
        if let KernelOp::Store { output, x } = entry.op
            && matches!(kernel.tensor(output), Some((Distribution::Exchanged, ..)))
        {
            let outgoing = leave(b, tensors, (output, x), entry.span);
            exchanges.outgoing.push(outgoing);
        }
    }
    if !exchanges.outgoing.is_empty() {
        exchanges.free_tiles = Some(b.signal("free", Sym::World, Home::Device));
    }
    exchanges
}

/// Workspace and signals of an input, and the copy engine that sends this rank's columns of it.
fn arrive(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    param: ParamId,
    exchanges: &mut Exchanges,
) -> Incoming {
    let entry = &b.kernel.params[param];
    let dims = b.usage.dims(param).expect("usage inference gives every tensor dimensions");
    let columns = tensors.columns(dims.cols);
    let part = Expr::from(columns.part);
    let chunks =
        *exchanges.chunks.get_or_insert_with(|| gather::chunks(b, tensors, tensors.shard, &part));
    let (name, home) = match chunks.pieces {
        None => ("free_host", Home::Host),
        Some(_) => ("free_copies", Home::Device),
    };
    let free = *exchanges.free.get_or_insert_with(|| b.signal(name, Sym::World, home));
    let declared = b.program.buffers[tensors.buffer(param)].clone();
    let all = b.program.buffers.push(Buffer {
        name: format!("{}_all", entry.name),
        kind: BufferKind::Symmetric,
        planes: vec![2i64.into()],
        rows: tensors.shard.into(),
        first_row: tensors.first_of(Sym::Rank),
        cols: extent(dims.cols),
        first_col: 0i64.into(),
        ..declared
    });
    let name = format!("{}_arrived", entry.name);
    let arrived = b.signal(&name, Expr::from(Sym::World) * chunks.count, Home::Device);
    let load = values::loaded(b.kernel).iter().position(|&loaded| loaded == param);
    let load = load.map(|index| index as u32);
    let incoming = Incoming { param, all, columns, load, arrived };
    if chunks.pieces.is_none() {
        let agent = send(b, tensors, &incoming, chunks, free);
        b.program.agents.push(agent);
    }
    incoming
}

/// To each rank in turn, this one first and then the one before: its rows of this rank's columns,
/// chunk by chunk. So they arrive from the own rank first, and then from the next one.
fn send(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    incoming: &Incoming,
    chunks: Chunks,
    free: SignalId,
) -> Agent {
    let span = wait_span(b, incoming.param);
    let [hop, target, rows, chunk, from] =
        ["h", "dst", "rows", "c", "from"].map(|name| b.var(name));
    let first = || tensors.first_of(target);
    let value = (Expr::from(Sym::Rank) + Sym::World - hop) % Sym::World;
    let to = (Expr::from(from) + chunks.rows).min(first() + rows);
    let copy = incoming.copy(tensors, target, Range::new(from, to), incoming.own_columns());
    let slot = Expr::from(Sym::Rank) * chunks.count + chunk;
    let signal = tell(target, incoming.arrived, slot, Update::Set(Sym::Epoch.into()));
    let value_from = first() + Expr::from(chunk) * chunks.rows;
    let each = Op::For {
        var: chunk,
        from: 0i64.into(),
        to: Expr::from(rows).ceil_div(chunks.rows),
        step: 1i64.into(),
        body: [Op::Let { var: from, value: value_from }, copy, signal]
            .map(|op| stmt(span, op))
            .into(),
    };
    let body = [
        Op::Let { var: target, value },
        wait_free(free, Range::one(target)),
        Op::Let { var: rows, value: tensors.rows_of(target) },
        each,
    ];
    let ranks = Op::For {
        var: hop,
        from: 0i64.into(),
        to: Sym::World.into(),
        step: 1i64.into(),
        body: body.map(|op| stmt(span, op)).into(),
    };
    let name = format!("push_{}", b.kernel.params[incoming.param].name);
    let body = vec![stmt(span, ranks)];
    Agent { name, engine: Engine::CopyEngine, body, exit: Vec::new() }
}

/// The same by copy warps, piece by piece.
fn push(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    incoming: &[Incoming],
    (chunks, pieces): (Chunks, Pieces),
    free: SignalId,
) -> Agent {
    let mut body = Vec::new();
    if let Some(first) = incoming.first() {
        let wait = wait_free(free, Range::new(0i64, Sym::World));
        body.push(stmt(wait_span(b, first.param), wait));
    }
    for input in incoming {
        let span = wait_span(b, input.param);
        let [piece, target, chunk] = ["q", "dst", "c"].map(|name| b.var(name));
        let [within, row, rows] = ["i", "r", "rows"].map(|name| b.var(name));
        let [from, to, left, right] = ["from", "to", "k0", "k1"].map(|name| b.var(name));
        let of_rank = || Expr::from(chunks.count) * pieces.count;
        let first = || tensors.first_of(target);
        let end = (Expr::from(row) + pieces.rows).min((Expr::from(chunk) + 1i64) * chunks.rows);
        let column = || Expr::from(within) % pieces.across * pieces.cols;
        let mine = || Expr::from(Sym::Rank) * input.columns.part;
        let hop = Expr::from(piece) / of_rank();
        let lets = [
            (target, (Expr::from(Sym::Rank) + Sym::World - hop) % Sym::World),
            (chunk, Expr::from(piece) % of_rank() / pieces.count),
            (within, Expr::from(piece) % pieces.count),
            (
                row,
                Expr::from(chunk) * chunks.rows + Expr::from(within) / pieces.across * pieces.rows,
            ),
            (rows, tensors.rows_of(target)),
            (from, first() + Expr::from(row).min(rows)),
            (to, first() + end.min(rows)),
            (left, mine() + column().min(input.columns.own)),
            (right, mine() + (column() + pieces.cols).min(input.columns.own)),
        ];
        let mut each: Vec<_> =
            lets.map(|(var, value)| stmt(span, Op::Let { var, value })).into_iter().collect();
        let copy = input.copy(tensors, target, Range::new(from, to), Range::new(left, right));
        each.push(stmt(span, copy));
        let slot = Expr::from(Sym::Rank) * chunks.count + chunk;
        each.push(stmt(span, tell(target, input.arrived, slot, pieces.raise())));
        let all = Op::For {
            var: piece,
            from: Sym::Cta.into(),
            to: Expr::from(Sym::World) * of_rank(),
            step: Sym::Ctas.into(),
            body: each,
        };
        body.push(stmt(span, all));
    }
    copying("push", pieces.engine, body)
}

impl Incoming {
    /// The columns that this rank holds.
    fn own_columns(&self) -> Range {
        let first = Expr::from(Sym::Rank) * self.columns.part;
        Range::new(first.clone(), first + self.columns.own)
    }

    /// Copies a part of what this rank holds to where it belongs on `target`.
    fn copy(&self, tensors: &Tensors, target: VarId, rows: Range, cols: Range) -> Op {
        let to = Place {
            at: At::Peer(target.into()),
            buffer: self.all,
            planes: vec![parity()],
            rows: rows.clone(),
            cols: cols.clone(),
        };
        Op::Copy { from: own(tensors.buffer(self.param), rows, cols), to, adds: false }
    }

    /// Where some of the own rows lie once they have arrived.
    pub(super) fn arrived_at(&self, rows: Range, cols: Range) -> Place {
        Place { at: At::Own, buffer: self.all, planes: vec![parity()], rows, cols }
    }
}

impl Exchanges {
    /// What a chunk's signal has become when the chunk is there.
    fn arrival(&self) -> Expr {
        let pieces = self.chunks.and_then(|chunks| chunks.pieces);
        pieces.map_or(Sym::Epoch.into(), Pieces::arrival)
    }

    /// The chunks of the own rows that hold `first` and `last` of the whole tensor.
    pub(super) fn chunks_of(&self, tensors: &Tensors, rows: [&Expr; 2]) -> Option<[Expr; 2]> {
        let chunks = self.chunks?;
        let begin = || tensors.first_of(Sym::Rank);
        Some(rows.map(|row| (row.clone() - begin()).max(0i64) / chunks.rows))
    }

    /// Waits for the columns `cols` of the rows in `slots`, from each rank that holds some.
    pub(super) fn await_columns(
        &self,
        b: &mut Builder<'_>,
        incoming: &Incoming,
        slots: &Range,
        cols: &Range,
    ) -> Stmt {
        let span = wait_span(b, incoming.param);
        let source = b.var("src");
        let part = incoming.columns.part;
        let Some(chunks) = self.chunks else { unreachable!("an input has chunks") };
        let of_source = || Expr::from(source) * chunks.count;
        let wait = Op::Wait {
            signal: incoming.arrived,
            slots: Range::new(of_source() + slots.lo.clone(), of_source() + slots.hi.clone()),
            target: self.arrival(),
            scope: Scope::Sys,
        };
        let sources = Op::For {
            var: source,
            from: cols.lo.clone() / part,
            to: (cols.hi.clone().max(1i64) - 1i64) / part + 1i64,
            step: 1i64.into(),
            body: vec![stmt(span, wait)],
        };
        stmt(span, sources)
    }

    /// The token of the first output.
    pub(super) fn span(&self) -> Option<Span> {
        self.outgoing.first().map(|outgoing| outgoing.span)
    }

    /// What the exit does: waits until tiles of peers lie in the outputs, and tells every rank that
    /// this one is through.
    pub(super) fn exit(&self, b: &mut Builder<'_>) -> Vec<Stmt> {
        let mut exit = Vec::new();
        if let (Some(free), Some(first)) = (self.free, self.incoming.first()) {
            let span = wait_span(b, first.param);
            exit.push(gather::signal_free(b, free, span));
        }
        for outgoing in &self.outgoing {
            let wait = Op::Wait {
                signal: outgoing.copied,
                slots: Range::one(0i64),
                target: Expr::from(Sym::Epoch) * times(outgoing.all.into(), b.copier().raisers()),
                scope: Scope::Sys,
            };
            exit.push(stmt(outgoing.span, wait));
        }
        if let (Some(free), Some(first)) = (self.free_tiles, self.outgoing.first()) {
            exit.push(gather::signal_free(b, free, first.span));
        }
        exit
    }

    /// The agent that copies what peers put into the outputs.
    pub(super) fn land(
        &self,
        b: &mut Builder<'_>,
        tensors: &Tensors,
        tiles: &Tiles,
    ) -> Option<Agent> {
        if self.outgoing.is_empty() {
            return None;
        }
        let body = self.outgoing.iter().map(|outgoing| outgoing.land(b, tensors, tiles)).collect();
        Some(copying("land", b.copier(), body))
    }
}

/// Workspace and signals of an output.
fn leave(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    (output, value): (ParamId, Value),
    span: Span,
) -> Outgoing {
    let dims = b.usage.dims(output).expect("usage inference gives every tensor dimensions");
    let columns = tensors.columns(dims.cols);
    let declared = b.program.buffers[tensors.buffer(output)].clone();
    let inbox = b.program.buffers.push(Buffer {
        name: format!("{}_inbox", declared.name),
        kind: BufferKind::Symmetric,
        planes: vec![2i64.into()],
        cols: columns.part.into(),
        ..declared.clone()
    });
    let tile = b.schedule.tile;
    let rows = b.define("TR", Expr::from(tensors.shard).ceil_div(tile.m));
    let tiles = b.define("TS", Expr::from(rows) * Expr::from(Sym::N).ceil_div(tile.n));
    let name = format!("{}_landed", declared.name);
    let landed = b.signal(&name, Expr::from(Sym::World) * tiles, Home::Device);
    let copied = b.signal(&format!("{}_copied", declared.name), 1i64, Home::Device);
    let pieces = tile.m.div_ceil(PIECE_ROWS);
    let across = b.define("TC", Expr::from(columns.part).ceil_div(tile.n) + 1i64);
    let all = (Expr::from(Sym::World) - 1i64) * rows * across * pieces;
    let all = b.define("TQ", all);
    Outgoing {
        output,
        value,
        inbox,
        columns,
        landed,
        copied,
        rows,
        tiles,
        pieces,
        across,
        all,
        span,
    }
}

impl Outgoing {
    /// The signal of `source`'s tile.
    fn slot(&self, tiles: &Tiles, source: impl Into<Expr>, [m, n]: [VarId; 2]) -> Expr {
        source.into() * self.tiles + Expr::from(m) * tiles.cols + n
    }

    /// Stores the own columns of a tile, and puts the others to their owners, each with its signal.
    pub(super) fn store(
        &self,
        b: &mut Builder<'_>,
        (tensors, values, tiles): (&Tensors, &values::Values, &Tiles),
        tile: ([VarId; 2], Range, Range),
    ) -> Vec<Stmt> {
        let ([m, n], rows, Range { lo: left, hi: right }) = tile;
        let [lo, hi, owner] = ["lo", "hi", "o"].map(|name| b.var(name));
        let part = self.columns.part;
        let first = |of: Expr| of * part;
        let value = values.get(self.value);
        let mine = first(Sym::Rank.into());
        let lets = [
            (lo, mine.clone().max(left.clone())),
            (hi, (mine + self.columns.own).min(right.clone())),
        ];
        let to = own(tensors.buffer(self.output), rows.clone(), Range::new(lo, hi));
        let kept = Op::If {
            cond: Cond::Lt(lo.into(), hi.into()),
            body: vec![stmt(self.span, Op::Store { to, value, adds: false })],
        };
        let begin = first(owner.into());
        let put = Op::Store {
            to: Place {
                at: At::Peer(owner.into()),
                buffer: self.inbox,
                planes: vec![parity()],
                rows,
                cols: Range::new(
                    begin.clone().max(left.clone()),
                    (begin + part).min(right.clone()),
                ),
            },
            value,
            adds: false,
        };
        let signal = Op::Signal {
            at: At::Peer(owner.into()),
            signal: self.landed,
            slot: self.slot(tiles, Sym::Rank, [m, n]),
            update: Update::Add(epilogue_warps(b.schedule.consumers).into()),
            scope: Scope::Sys,
            after: Completion::Performed,
        };
        let to_peer = Op::If {
            cond: Cond::Ne(owner.into(), Sym::Rank.into()),
            body: vec![stmt(self.span, put), stmt(self.span, signal)],
        };
        let owners = Op::For {
            var: owner,
            from: left / part,
            to: (right - 1i64) / part + 1i64,
            step: 1i64.into(),
            body: vec![stmt(self.span, to_peer)],
        };
        let lets = lets.map(|(var, value)| stmt(self.span, Op::Let { var, value }));
        lets.into_iter().chain([stmt(self.span, kept), stmt(self.span, owners)]).collect()
    }

    /// Piece by piece: waits for the tile, and copies it into the output. Those of the rank before come
    /// first, which begins with the columns of this one.
    fn land(&self, b: &mut Builder<'_>, tensors: &Tensors, tiles: &Tiles) -> Stmt {
        let tile = b.schedule.tile;
        let [piece, source, within] = ["q", "src", "i"].map(|name| b.var(name));
        let [m, n, row, rows] = ["m", "n", "r", "rows"].map(|name| b.var(name));
        let [from, to, left, right] = ["from", "to", "left", "right"].map(|name| b.var(name));
        let of_row = || Expr::from(self.across) * self.pieces;
        let of_source = || Expr::from(self.rows) * of_row();
        let mine = || Expr::from(Sym::Rank) * self.columns.part;
        let first = || tensors.first_of(source);
        let hop = Expr::from(piece) / of_source();
        let height = PIECE_ROWS.min(tile.m);
        let part = Expr::from(within) % self.pieces;
        let end = (Expr::from(row) + height).min((Expr::from(m) + 1i64) * tile.m);
        let column = || Expr::from(n) * tile.n;
        let lets = [
            (source, (Expr::from(Sym::Rank) + Sym::World - 1i64 - hop) % Sym::World),
            (within, Expr::from(piece) % of_source()),
            (m, Expr::from(within) / of_row()),
            (n, mine() / tile.n + Expr::from(within) % of_row() / self.pieces),
            (row, Expr::from(m) * tile.m + part * height),
            (rows, tensors.rows_of(source)),
            (from, first() + Expr::from(row).min(rows)),
            (to, first() + end.min(rows)),
            (left, column().max(mine())),
            (right, (column() + tile.n).min(mine() + self.columns.own)),
        ];
        let span = self.span;
        let mut body: Vec<_> =
            lets.map(|(var, value)| stmt(span, Op::Let { var, value })).into_iter().collect();
        let wait = Op::Wait {
            signal: self.landed,
            slots: Range::one(self.slot(tiles, source, [m, n])),
            target: Expr::from(Sym::Epoch) * epilogue_warps(b.schedule.consumers),
            scope: Scope::Sys,
        };
        let to = own(tensors.buffer(self.output), Range::new(from, to), Range::new(left, right));
        let landed = Place { buffer: self.inbox, planes: vec![parity()], ..to.clone() };
        let copy = Op::Copy { from: landed, to, adds: false };
        let some_rows = Cond::Lt(
            from.into(),
            match &copy {
                Op::Copy { to, .. } => to.rows.hi.clone(),
                _ => unreachable!("it was made above"),
            },
        );
        let copied = vec![stmt(span, wait), stmt(span, copy)];
        let columns = Op::If { cond: Cond::Lt(left.into(), right.into()), body: copied };
        body.push(stmt(span, Op::If { cond: some_rows, body: vec![stmt(span, columns)] }));
        let signal = Op::Signal {
            at: At::Own,
            signal: self.copied,
            slot: 0i64.into(),
            update: Update::Add(b.copier().raisers().into()),
            scope: Scope::Sys,
            after: Completion::Performed,
        };
        body.push(stmt(span, signal));
        let all = Op::For {
            var: piece,
            from: Sym::Cta.into(),
            to: self.all.into(),
            step: Sym::Ctas.into(),
            body,
        };
        stmt(span, all)
    }
}

/// How the schedule moves exchanged tensors, where it can.
pub(super) const fn moves(transport: Option<Transport>, incoming: bool, outgoing: bool) -> bool {
    match transport {
        None => true,
        Some(Transport::CopyEngine | Transport::CopyFirst) => incoming,
        Some(Transport::Put | Transport::Tma) => !(incoming && outgoing),
    }
}
