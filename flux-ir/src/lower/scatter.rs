//! Places the contributions to a scattered output: for each source rank a plane of the owner's
//! workspace, twice by parity of the epoch, and how they come there.
//!
//! Put, tiles store them there and raise a signal for each (source rank, tile). By copy engine,
//! tiles leave them in memory of their own rank and count up the chunks they belong to. Two agents
//! take turns at sending chunks that are complete, with a signal for each: one waits while the other
//! copies. Tiles that hold rows of their own rank beside others' are put then as well.

use super::build::{Builder, own, stmt};
use super::chain;
use super::gather::{at_least, parity};
use super::pull::{self, Pulled};
use super::reduce::{self, Total, algorithm, of_tiles, reduction};
use super::tensors::Tensors;
use crate::abi::epilogue_warps;
use crate::element::Element;
use crate::kernel::Value;
use crate::program::{
    Agent, At, Buffer, BufferId, BufferKind, Completion, Cond, Engine, Expr, Home, Op, Place,
    Range, Scope, SignalId, Stmt, Sym, Update, VarId,
};
use crate::schedule::{AllReduce, ReduceScatter, Transport};
use crate::span::Span;

/// The sum over ranks.
pub(super) struct Scatter {
    /// What each rank contributes.
    pub(super) contribution: Value,
    /// Where contributions land, `[2][world][S, N]`.
    pub(super) partial: BufferId,
    /// Raised by every epilogue warp of a tile that is put, or for every piece that is brought.
    pub(super) landed: SignalId,
    /// Raised by a peer when it is through with an epoch; waited for by CTAs.
    pub(super) free: SignalId,
    /// What copy engines send.
    pub(super) staged: Option<Staged>,
    /// What copy warps of the owner bring.
    pub(super) pulled: Option<Pulled>,
    /// What is kept of the sum for others, where they get it too.
    pub(super) total: Option<Total>,
    pub(super) span: Span,
}

/// Contributions in memory of their own rank, and the chunks in which they leave.
///
/// A shard that others own leaves in chunks of `CR` rows; the first `HB` rows of the shard that is
/// sent first in chunks of `HR`, the last `TB` rows of the one that is sent last in chunks of `TR`.
/// Each owner has `CS` slots, no fewer than it has chunks. Which chunk a tile belongs to stands in the
/// tile table; which chunk of a peer's it waits for follows from the same numbers, which are read at
/// the launch: the kernel knows of no plan.
///
/// Between chunks of an owner stand whole tile rows, so a tile waits for one chunk: a tile row
/// belongs to the chunk that its first row of this owner is planned for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Staged {
    /// What this rank contributes, `[M, N]`.
    pub(super) partial: BufferId,
    /// Raised by every epilogue warp of a tile for the chunk of each owner that it belongs to.
    pub(super) ready: SignalId,
    /// One signal per (source rank, chunk of the own shard).
    pub(super) arrived: SignalId,
    /// `CS`: slots of an owner.
    slots: VarId,
    rows: VarId,
    /// `N1`, `P1`: to whom this rank sends first, and last.
    first: VarId,
    last: VarId,
    head: Part,
    tail: Part,
    /// `C1`, `CN`: chunks of the owner that is sent first, and of one between.
    chunks: [VarId; 2],
}

/// How many agents take turns.
const TURNS: i64 = 2;

/// Rows at an end of a shard, and those of a chunk there.
#[derive(Debug, Clone, Copy)]
struct Part {
    all: VarId,
    chunk: VarId,
}

pub(super) fn place(b: &mut Builder<'_>, tensors: &Tensors) -> Option<Scatter> {
    let (output, contribution, span) = reduction(b)?;
    let is_of_all = matches!(algorithm(b, output), Some(AllReduce::OneShot | AllReduce::Flagged));
    if is_of_all || chain::algorithm(b).is_some() {
        return None;
    }
    let mut declared = b.program.buffers[tensors.buffer(output)].clone();
    declared.element = partial_element(b, declared.element);
    let partial = b.program.buffers.push(Buffer {
        name: format!("{}_partial", declared.name),
        kind: BufferKind::Symmetric,
        planes: vec![2i64.into(), Sym::World.into()],
        rows: tensors.shard.into(),
        first_row: Expr::from(Sym::Rank) * tensors.shard,
        cols: Sym::N.into(),
        ..declared.clone()
    });
    let is_sent = b.schedule.transport == Some(Transport::CopyEngine);
    let staged = is_sent.then(|| stage(b, tensors, &declared));
    let is_pulled = b.schedule.reduce_scatter == Some(ReduceScatter::Pull);
    let pulled = is_pulled.then(|| pull::place(b, tensors, &declared));
    let name = format!("{}_landed", declared.name);
    let slots = if is_pulled { pull::of_tiles(b, tensors) } else { of_tiles(b) };
    let landed = b.signal(&name, slots, Home::Device);
    let total = reduce::total(b, tensors);
    let free = b.signal("free", Sym::World, Home::Device);
    Some(Scatter { contribution, partial, landed, free, staged, pulled, total, span })
}

/// What partial sums are rounded to as they travel, towards an output of `output`.
pub(super) fn partial_element(b: &Builder<'_>, output: Element) -> Element {
    b.schedule.partials.unwrap_or(output)
}

/// Memory for contributions that copy engines send, and the plan of their chunks.
fn stage(b: &mut Builder<'_>, tensors: &Tensors, declared: &Buffer) -> Staged {
    let partial = b.program.buffers.push(Buffer {
        name: format!("{}_staged", declared.name),
        kind: BufferKind::Symmetric,
        rows: Sym::M.into(),
        first_row: 0i64.into(),
        cols: Sym::N.into(),
        ..declared.clone()
    });
    let (shard, tile) = (|| Expr::from(tensors.shard), b.schedule.tile.m);
    // Less than a tile row would be complete no sooner.
    let rows = b.schedule.chunk_rows.map_or(shard(), |rows| Expr::from(rows.max(tile)));
    let rows = b.define("CR", rows.min(shard()).max(1i64));
    let (head, tail) = (b.schedule.head, b.schedule.tail);
    let mut part = |names: [&str; 2], cut: Option<(u32, u32)>| {
        let (all, chunks) = cut.unwrap_or((0, 1));
        let all = b.define(names[0], shard().min(all));
        let chunk = b.define(names[1], Expr::from(all).ceil_div(chunks.max(1)).max(tile));
        Part { all, chunk }
    };
    let head = part(["HB", "HR"], head.map(|head| (head.rows, head.copies)));
    let tail = part(["TB", "TR"], tail.map(|tail| (tail.rows, tail.slices)));
    let ends = [head, tail].map(|part| Expr::from(part.all).ceil_div(part.chunk));
    let [of_head, of_tail] = ends;
    let after_head = shard() - head.all;
    let chunks = [
        b.define("C1", of_head.clone() + after_head.ceil_div(rows)),
        b.define("CN", shard().ceil_div(rows)),
    ];
    let slots = b.define("CS", of_head + shard().ceil_div(rows) + of_tail + 1i64);
    let (rank, world) = (|| Expr::from(Sym::Rank), Sym::World);
    let first = b.define("N1", (rank() + 1i64) % world);
    let last = b.define("P1", (rank() + world - 1i64) % world);
    let mut signal = |name: &str| {
        let name = format!("{}_{name}", declared.name);
        b.signal(&name, Expr::from(Sym::World) * slots, Home::Device)
    };
    let (ready, arrived) = (signal("ready"), signal("arrived"));
    Staged { partial, ready, arrived, slots, rows, first, last, head, tail, chunks }
}

/// 1 where `a` is `b`, else 0.
fn equal(a: &Expr, b: &Expr) -> Expr {
    at_least(a, b.clone()) * at_least(b, a.clone())
}

/// How the shard of an owner is cut. Rows count from its first.
struct Cut {
    /// Where its head ends and its tail begins.
    head: Expr,
    tail: Expr,
    /// Chunks ahead of what lies between, and ahead of the tail.
    heads: Expr,
    before_tail: Expr,
}

/// A stretch of a shard that is sent in chunks of one size: its rows, those of a chunk, and the
/// number of its first chunk.
struct Stretch {
    rows: Range,
    chunk: VarId,
    first: Expr,
}

/// Whose shard is sent, between which rows of the whole tensor, and behind how many chunks.
struct Shard {
    owner: VarId,
    sent: Range,
    before: VarId,
}

fn define(span: Span, var: VarId, value: Expr) -> Stmt {
    stmt(span, Op::Let { var, value })
}

impl Staged {
    /// How a shard is cut that is sent first, or last, or neither: 1 or 0 each.
    fn cut(&self, tensors: &Tensors, [first, last]: [Expr; 2]) -> Cut {
        let head = first.clone() * self.head.all;
        let left = Expr::from(tensors.shard) - head.clone();
        let tail = Expr::from(tensors.shard) - last * left.min(self.tail.all);
        let heads = first * Expr::from(self.head.all).ceil_div(self.head.chunk);
        let between = (tail.clone() - head.clone()).max(0i64).ceil_div(self.rows);
        Cut { before_tail: heads.clone() + between, head, tail, heads }
    }

    /// The slots of the chunks that a tile with rows `first` to `last` of the whole tensor belongs
    /// to: those of its first owner, of its last one and of all between.
    pub(super) fn slots_of(&self, tensors: &Tensors, first: &Expr, last: &Expr) -> [Expr; 2] {
        let last_owner = last.clone() / tensors.shard * tensors.shard;
        let in_last_owner = last_owner.max(first.clone());
        [self.slot_of(tensors, first), self.slot_of(tensors, &in_last_owner)]
    }

    /// The slot of the chunk that `row` of the whole tensor is planned for.
    fn slot_of(&self, tensors: &Tensors, row: &Expr) -> Expr {
        let owner = row.clone() / tensors.shard;
        let within = row.clone() % tensors.shard;
        owner.clone() * self.slots + self.chunk_of(tensors, &within, self.ends(&owner))
    }

    /// The slot of the chunk of `source` that holds the tile row from `row` on, of the own shard.
    pub(super) fn arrival(&self, tensors: &Tensors, source: VarId, row: VarId) -> Expr {
        let within = (Expr::from(row) - Expr::from(Sym::Rank) * tensors.shard).max(0i64);
        // Whom this rank sends to last sends to it first.
        let [first, last] = self.ends(&source.into());
        Expr::from(source) * self.slots + self.chunk_of(tensors, &within, [last, first])
    }

    /// Whether this rank sends to `owner` first, and last.
    fn ends(&self, owner: &Expr) -> [Expr; 2] {
        [self.first, self.last].map(|end| equal(owner, &end.into()))
    }

    /// The number of the chunk that a row of a shard is planned for.
    fn chunk_of(&self, tensors: &Tensors, within: &Expr, ends: [Expr; 2]) -> Expr {
        let Cut { head, tail, heads, before_tail } = self.cut(tensors, ends);
        let (past_head, in_tail) = (at_least(within, head.clone()), at_least(within, tail.clone()));
        let of_head = (Expr::from(1i64) - past_head.clone()) * (within.clone() / self.head.chunk);
        let between = heads + (within.clone() - head).max(0i64) / self.rows;
        let of_tail = before_tail + (within.clone() - tail).max(0i64) / self.tail.chunk;
        let between = past_head * (Expr::from(1i64) - in_tail.clone()) * between;
        of_head + between + in_tail * of_tail
    }

    /// The agents that send chunks, each every second one: to each rank in turn, the next one first.
    pub(super) fn drain(
        &self,
        b: &mut Builder<'_>,
        tensors: &Tensors,
        scatter: &Scatter,
    ) -> Vec<Agent> {
        (0..TURNS).map(|turn| self.sender(b, tensors, scatter, turn)).collect()
    }

    fn sender(
        &self,
        b: &mut Builder<'_>,
        tensors: &Tensors,
        scatter: &Scatter,
        turn: i64,
    ) -> Agent {
        let span = scatter.span;
        let [hop, owner, begin, end, before] =
            ["h", "dst", "begin", "end", "before"].map(|name| b.var(name));
        let tile = b.schedule.tile.m;
        let first = || Expr::from(owner) * tensors.shard;
        // Tile rows that hold rows of this rank are put: sent is what lies above and below them.
        let mine = || Expr::from(Sym::Rank) * tensors.shard;
        let owns = || Expr::from(tensors.own).min(1i64);
        let above = (Expr::from(1i64) - owns()) * Sym::M + owns() * (mine() / tile) * tile;
        let below = (mine() + tensors.own).ceil_div(tile) * tile;
        let is_below = || at_least(&owner.into(), Expr::from(Sym::Rank) + 1i64);
        let limit = is_below() * Sym::M + (Expr::from(1i64) - is_below()) * above;
        let [of_first, of_each] = self.chunks;
        let chunks = Expr::from(of_first) + (Expr::from(hop) - 2i64) * of_each;
        let mut body = vec![
            define(span, owner, (Expr::from(Sym::Rank) + hop) % Sym::World),
            define(span, begin, first().max(is_below() * below).min(Sym::M)),
            define(span, end, (first() + tensors.shard).min(limit)),
            define(span, before, at_least(&hop.into(), 2i64) * chunks),
        ];
        let shard = Shard { owner, sent: Range::new(begin, end), before };
        let cut = self.cut(tensors, self.ends(&owner.into()));
        let names = ["head", "tail", "heads", "before_tail"];
        let [head, tail, heads, before_tail] = names.map(|name| b.var(name));
        let values = [cut.head, cut.tail, cut.heads, cut.before_tail];
        let vars = [head, tail, heads, before_tail];
        body.extend(vars.into_iter().zip(values).map(|(var, value)| define(span, var, value)));
        let stretch =
            |lo: Expr, hi: Expr, chunk, first| Stretch { rows: Range::new(lo, hi), chunk, first };
        let stretches = [
            stretch(0i64.into(), head.into(), self.head.chunk, 0i64.into()),
            stretch(head.into(), tail.into(), self.rows, heads.into()),
            stretch(tail.into(), tensors.shard.into(), self.tail.chunk, before_tail.into()),
        ];
        let scatter = (scatter, turn);
        body.extend(stretches.map(|stretch| self.send(b, tensors, scatter, &shard, stretch)));
        let to = Sym::World.into();
        let ranks = Op::For { var: hop, from: 1i64.into(), to, step: 1i64.into(), body };
        let name = format!("send_{}_{turn}", b.program.buffers[self.partial].name);
        let body = vec![stmt(span, ranks)];
        Agent { name, engine: Engine::CopyEngine, body, exit: Vec::new() }
    }

    /// Sends every second chunk of a stretch: waits until every tile of it is there, copies it to its
    /// owner, and tells of it.
    fn send(
        &self,
        b: &mut Builder<'_>,
        tensors: &Tensors,
        (scatter, turn): (&Scatter, i64),
        shard: &Shard,
        stretch: Stretch,
    ) -> Stmt {
        let span = scatter.span;
        let tile = b.schedule.tile;
        let [chunk, from, to] = ["c", "from", "to"].map(|name| b.var(name));
        let Shard { owner, ref sent, before } = *shard;
        let Stretch { rows, chunk: size, first } = stretch;
        // Where the shard does not begin, a tile row does.
        let border = |chunk: Expr| {
            let within = (rows.lo.clone() + chunk * size).min(rows.hi.clone());
            let row = Expr::from(owner) * tensors.shard + within.clone();
            let up = row.clone().ceil_div(tile.m) * tile.m;
            row.max(at_least(&within, 1i64) * up)
        };
        let begin = (Expr::from(before) + first.clone() + turn) % TURNS;
        let down = Expr::from(to).ceil_div(tile.m) - Expr::from(from) / tile.m;
        let tiles = down * Expr::from(Sym::N).ceil_div(tile.n);
        let wait = Op::Wait {
            signal: self.ready,
            slots: Range::one(Expr::from(owner) * self.slots + first.clone() + chunk),
            target: Expr::from(Sym::Epoch) * tiles * epilogue_warps(b.schedule.consumers),
            scope: Scope::Sys,
        };
        let source = own(self.partial, Range::new(from, to), Range::new(0i64, Sym::N));
        let target = Place {
            at: At::Peer(owner.into()),
            buffer: scatter.partial,
            planes: vec![parity(), Sym::Rank.into()],
            ..source.clone()
        };
        let copy = Op::Copy { from: source, to: target, adds: false };
        let signal = Op::Signal {
            at: At::Peer(owner.into()),
            signal: self.arrived,
            slot: Expr::from(Sym::Rank) * self.slots + first + chunk,
            update: Update::Set(Sym::Epoch.into()),
            scope: Scope::Sys,
            after: Completion::Performed,
        };
        let cond = Cond::Lt(from.into(), to.into());
        let body = [wait, copy, signal].map(|op| stmt(span, op)).into();
        let body = vec![
            define(span, from, border(chunk.into()).max(sent.lo.clone())),
            define(span, to, border(Expr::from(chunk) + 1i64).min(sent.hi.clone())),
            stmt(span, Op::If { cond, body }),
        ];
        let chunks = Op::For {
            var: chunk,
            from: begin,
            to: (rows.hi.clone() - rows.lo.clone()).max(0i64).ceil_div(size),
            step: TURNS.into(),
            body,
        };
        stmt(span, chunks)
    }
}
