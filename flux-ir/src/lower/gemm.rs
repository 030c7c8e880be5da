//! Builds the agent on CTAs: the tile loop with its waits, mainloop, stores, puts and sum.

use super::build::{Builder, own, stmt};
use super::chain::Chain;
use super::exchange::Exchanges;
use super::gather::{Gather, Gathers, parity, signal_free, wait_free, wait_span};
use super::keep::Kept;
use super::one_shot::OneShot;
use super::protocol::Placed;
use super::pull;
use super::scatter::{Scatter, Staged};
use super::slices;
use super::tensors::Tensors;
use super::tiles::Tiles;
use super::values::Values;
use crate::abi::epilogue_warps;
use crate::kernel::{Distribution, Lhs, Op as KernelOp, ParamId, Protocol};
use crate::program::{
    Agent, At, Completion, Cond, Engine, Expr, Op, Place, Product, Range, Scope, SignalId, Stmt,
    Sym, Transposed, Update, VarId,
};
use crate::span::Span;

/// The tile at hand: its row and column in the grid, its rows and columns in the matrix, and the
/// chunks its rows arrive or leave in.
pub(super) struct Tile {
    pub(super) m: VarId,
    pub(super) n: VarId,
    pub(super) chunks: Range,
    pub(super) m0: VarId,
    pub(super) m1: VarId,
    n0: VarId,
    n1: VarId,
}

impl Tile {
    pub(super) fn rows(&self) -> Range {
        Range::new(self.m0, self.m1)
    }

    pub(super) fn cols(&self) -> Range {
        Range::new(self.n0, self.n1)
    }
}

/// What of a kernel moves between ranks.
pub(super) struct Moved<'a> {
    pub(super) gathers: &'a Gathers,
    pub(super) exchanges: &'a Exchanges,
    pub(super) scatter: Option<&'a Scatter>,
    pub(super) chain: Option<&'a Chain>,
    pub(super) one_shot: Option<&'a OneShot>,
    pub(super) protocol: Option<&'a Placed>,
    pub(super) kept: Option<&'a Kept>,
}

pub(super) fn build(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    values: &Values,
    moved: &Moved<'_>,
    tiles: &Tiles,
) {
    let Moved { gathers, exchanges, scatter, chain, one_shot, protocol, kept } = *moved;
    let span = b.kernel.loop_span;
    let step = b.var("t");
    let (tile, mut body) = open_tile(b, tiles, step);
    let from = Sources { tensors, gathers, exchanges, protocol };
    let exchanged = exchanges.incoming.iter().find(|incoming| incoming.load.is_none());
    let summed = gathers.shards.filter(|shards| shards.summed).zip(gathers.chunks);
    match gathers.chunks.and_then(|chunks| chunks.tail) {
        _ if !b.usage.multiplies() => {}
        None if protocol.is_some() => {
            body.extend(
                protocol.map(|placed| after_roles(b, &from, placed, &tile)).unwrap_or_default(),
            );
        }
        None if summed.is_some() => {
            body.extend(summed.map(|cut| slices::summing(b, &from, cut, &tile)));
        }
        None if exchanged.is_some() => {
            body.extend(exchanged.map(|incoming| slices::arriving(b, &from, incoming, &tile)));
        }
        None => {
            for gather in gathers.each.iter().filter(|gather| gather.load.is_none()) {
                let span = wait_span(b, gather.param);
                body.push(stmt(span, arrived(gathers, gather, &tile)));
                body.push(stmt(span, Op::FenceProxyAsync));
            }
            body.push(mainloop(b, &from, &tile, &Range::new(0i64, Sym::K)));
        }
        Some(tail) => body.extend(slices::sliced(b, &from, &tile, tail)),
    }
    body.extend(loads(b, &from, &tile));
    if let Some(sum) = one_shot.filter(|sum| sum.is_explicit) {
        body.extend(sum.tile(b, values, (tiles, &tile)));
    }
    for whole in [Distribution::Global, Distribution::Sharded] {
        body.extend(stores(b, tensors, values, whole, &tile.rows(), &tile.cols()));
    }
    for outgoing in &exchanges.outgoing {
        let place = ([tile.m, tile.n], tile.rows(), tile.cols());
        body.extend(outgoing.store(b, (tensors, values, tiles), place));
    }
    if let Some(scatter) = scatter {
        match &scatter.staged {
            None => body.push(contribute(b, tensors, values, scatter, tiles, &tile)),
            Some(staged) => {
                body.extend(leave(b, tensors, values, (scatter, staged), (tiles, &tile)))
            }
        }
        body.extend(sum_own(b, tensors, values, scatter, tiles, &tile));
    }
    if let Some(chain) = chain {
        body.extend(chain.tile(b, tensors, values, (tiles, &tile)));
    }
    if let Some(sum) = one_shot.filter(|sum| !sum.is_explicit) {
        body.extend(sum.tile(b, values, (tiles, &tile)));
        let (rows, cols) = (tile.rows(), tile.cols());
        body.extend(stores(b, tensors, values, Distribution::Reduced, &rows, &cols));
    }
    let tile_loop = Op::For {
        var: step,
        from: Sym::Cta.into(),
        to: tiles.count.into(),
        step: Sym::Ctas.into(),
        body,
    };
    let name = if b.usage.multiplies() { "gemm" } else { "tiles" };
    let mut agent = Agent { name: name.into(), engine: Engine::Ctas, body: vec![], exit: vec![] };
    agent.exit.extend(kept.map(Kept::wait));
    let of_scatter = scatter.map(|scatter| (scatter.free, scatter.span));
    let of_one_shot = one_shot.map(|one_shot| (one_shot.free, one_shot.span));
    let of_chain = chain.map(|chain| (chain.free, chain.span));
    if let Some((free, span)) = of_scatter.or(of_one_shot).or(of_chain) {
        let wait = wait_free(free, Range::new(0i64, Sym::World));
        agent.body.push(stmt(span, wait));
        // Owners read what a rank keeps for them, and it is stored by TMA. Whoever stores a sum that peers
        // read has heard of them in the launch before.
        if scatter.is_some_and(|scatter| scatter.pulled.is_some()) {
            agent.body.push(stmt(span, Op::FenceProxyAsync));
        }
        let total = scatter.and_then(|scatter| scatter.total.as_ref());
        agent.exit.extend(total.map(|total| total.wait_taken(b.copier())));
        agent.exit.push(signal_free(b, free, span));
    }
    if let Some(free) = gathers.free {
        let span = wait_span(b, gathers.each[0].param);
        agent.exit.push(signal_free(b, free, span));
    }
    if let Some(protocol) = protocol {
        agent.exit.push(signal_free(b, protocol.free, protocol.span));
    }
    if let (Some(free), Some(span)) = (exchanges.free_tiles, exchanges.span()) {
        agent.body.push(stmt(span, wait_free(free, Range::new(0i64, Sym::World))));
    }
    agent.exit.extend(exchanges.exit(b));
    agent.body.push(stmt(span, tile_loop));
    b.program.agents.push(agent);
}

/// Reads the table row of `step` and names the tile's extents.
fn open_tile(b: &mut Builder<'_>, tiles: &Tiles, step: VarId) -> (Tile, Vec<Stmt>) {
    let span = b.kernel.loop_span;
    let shape = b.schedule.tile;
    let vars = ["m", "n", "first", "last"].map(|name| b.var(name));
    let [m, n, first, last] = vars;
    let [m0, m1, n0, n1] = ["m0", "m1", "n0", "n1"].map(|name| b.var(name));
    let row = Op::Row { table: tiles.table, index: step.into(), vars };
    let end = |start: VarId, size: u32, all: Expr| (Expr::from(start) + size).min(all);
    let [top, bottom] = tiles.rows(m, shape.m);
    let lets = [
        (m0, top),
        (m1, end(m0, shape.m, bottom)),
        (n0, Expr::from(n) * shape.n),
        (n1, end(n0, shape.n, Sym::N.into())),
    ];
    let mut body = vec![stmt(span, row)];
    body.extend(lets.map(|(var, value)| stmt(span, Op::Let { var, value })));
    (Tile { m, n, chunks: Range::new(first, last), m0, m1, n0, n1 }, body)
}

/// Waits for the chunks of a gathered tensor that hold the tile's rows.
fn arrived(gathers: &Gathers, gather: &Gather, tile: &Tile) -> Op {
    arrival(gather.arrived, tile.chunks.clone(), gathers.arrival())
}

/// What the epilogue reads of gathered tensors, once it is there: by ordinary loads, which the
/// acquire alone orders.
fn loads(b: &mut Builder<'_>, from: &Sources<'_>, tile: &Tile) -> Vec<Stmt> {
    let mut all = Vec::new();
    for incoming in &from.exchanges.incoming {
        let Some(index) = incoming.load else { continue };
        let span = wait_span(b, incoming.param);
        all.push(from.exchanges.await_columns(b, incoming, &tile.chunks, &tile.cols()));
        let from = incoming.arrived_at(tile.rows(), tile.cols());
        all.push(stmt(span, Op::Load { index, from }));
    }
    let gathers = from.gathers;
    for gather in &gathers.each {
        let Some(index) = gather.load else { continue };
        let span = wait_span(b, gather.param);
        let from = Place {
            at: At::Own,
            buffer: gather.all,
            planes: vec![parity()],
            rows: tile.rows(),
            cols: tile.cols(),
        };
        all.push(stmt(span, arrived(gathers, gather, tile)));
        all.push(stmt(span, Op::Load { index, from }));
    }
    all
}

/// Waits for slots to say that what they stand for is there.
pub(super) fn arrival(signal: SignalId, slots: Range, target: Expr) -> Op {
    Op::Wait { signal, slots, target, scope: Scope::Sys }
}

/// What a product may read.
pub(super) struct Sources<'a> {
    tensors: &'a Tensors,
    pub(super) gathers: &'a Gathers,
    pub(super) exchanges: &'a Exchanges,
    protocol: Option<&'a Placed>,
}

/// The mainloop of a kernel with roles: waits for what they bring, ahead of the product or, where it
/// is cut along k, ahead of each slice.
fn after_roles(b: &mut Builder<'_>, from: &Sources<'_>, placed: &Placed, tile: &Tile) -> Vec<Stmt> {
    let kernel = b.kernel;
    let span = kernel.loop_span;
    let slices = kernel.protocol.as_ref().and_then(|protocol| protocol.slices.clone());
    let slice = slices.as_ref().map(|_| b.var("s"));
    let step = b.schedule.tile.k;
    let change = |expr: &Expr| {
        expr.replace(&|var| match var {
            Protocol::SLICE => slice.map_or(0i64.into(), Expr::from),
            Protocol::K_STEP => step.into(),
            var => match Protocol::TILE.iter().position(|of| *of == var) {
                Some(index) => [tile.m0, tile.m1, tile.n0, tile.n1][index].into(),
                None => var.into(),
            },
        })
    };
    let (mut before, mut within) = (Vec::new(), Vec::new());
    for entry in kernel.ops.values() {
        let KernelOp::Await { signal, ref slots, ref times } = entry.op else { continue };
        let sliced = slots.lo.mentions(Protocol::SLICE) || slots.hi.mentions(Protocol::SLICE);
        let waits = if sliced { &mut within } else { &mut before };
        waits.push(stmt(entry.span, placed.wait((signal, slots, times), change)));
        waits.push(stmt(entry.span, Op::FenceProxyAsync));
    }
    let Some((slice, slices)) = slice.zip(slices.as_ref()) else {
        before.push(mainloop(b, from, tile, &Range::new(0i64, Sym::K)));
        return before;
    };
    let bounds = Protocol::slice(&slice.into(), slices).map(change);
    let [k0, k1] = ["k0", "k1"].map(|name| b.var(name));
    let lets = [(k0, bounds.lo), (k1, bounds.hi)];
    let mut body: Vec<_> = lets.map(|(var, value)| stmt(span, Op::Let { var, value })).into();
    body.append(&mut within);
    body.push(mainloop(b, from, tile, &Range::new(k0, k1)));
    let (first, to) = (0i64.into(), change(slices));
    before.push(stmt(span, Op::For { var: slice, from: first, to, step: 1i64.into(), body }));
    before
}

/// The products of a tile over the columns `depth` of the left operand.
pub(super) fn mainloop(b: &Builder<'_>, from: &Sources<'_>, tile: &Tile, depth: &Range) -> Stmt {
    let Sources { tensors, gathers, exchanges, protocol } = *from;
    let depth = || depth.clone();
    let of_parity =
        |buffer, rows, cols| Place { at: At::Own, buffer, planes: vec![parity()], rows, cols };
    // Where it has arrived, or lies as it was passed.
    let read = |param: ParamId, rows: Range, cols: Range| match gathers
        .each
        .iter()
        .find(|gather| gather.param == param)
    {
        Some(gather) => of_parity(gather.all, rows, cols),
        None => own(tensors.buffer(param), rows, cols),
    };
    let left =
        |param: ParamId| match exchanges.incoming.iter().find(|incoming| incoming.param == param) {
            Some(found) => found.arrived_at(tile.rows(), depth()),
            None => read(param, tile.rows(), depth()),
        };
    let mut products = Vec::new();
    let mut span = b.kernel.loop_span;
    for entry in b.kernel.ops.values() {
        let KernelOp::Gemm { a, b: right, transposed } = entry.op else { continue };
        let transposed = Transposed { a: matches!(a, Lhs::Transposed(_)), b: transposed };
        let a = match a {
            Lhs::Param(param) => left(param),
            Lhs::Transposed(param) => read(param, depth(), tile.rows()),
            Lhs::Ready(ready) => match b.kernel.ops[ready].op {
                KernelOp::Wait { tensor } => left(tensor),
                KernelOp::Ready { buffer, .. } => match protocol {
                    Some(placed) => of_parity(placed.buffer(buffer), tile.rows(), depth()),
                    None => continue,
                },
                _ => continue,
            },
        };
        let (rows, cols) = transposed.right(tile.cols(), depth());
        let right = read(right, rows, cols);
        if products.is_empty() {
            span = entry.span;
        }
        products.push(Product { a, b: right, transposed });
    }
    stmt(span, Op::Mainloop { products })
}

/// The kernel's stores to outputs of one distribution, limited to `rows`.
pub(super) fn stores(
    b: &Builder<'_>,
    tensors: &Tensors,
    values: &Values,
    wanted: Distribution,
    rows: &Range,
    cols: &Range,
) -> Vec<Stmt> {
    let mut stores = Vec::new();
    for entry in b.kernel.ops.values() {
        let KernelOp::Store { output, x } = entry.op else { continue };
        if b.kernel.tensor(output).is_some_and(|(distribution, ..)| distribution == wanted) {
            let to = own(tensors.buffer(output), rows.clone(), cols.clone());
            stores.push(stmt(entry.span, Op::Store { to, value: values.get(x), adds: false }));
        }
    }
    stores
}

/// The signal of `source`'s contribution to a tile.
pub(super) fn landed_slot(tiles: &Tiles, tile: &Tile, source: impl Into<Expr>) -> Expr {
    source.into() * tiles.count + Expr::from(tile.m) * tiles.cols + tile.n
}

/// Puts the tile's rows to their owners, or keeps them where owners bring them; each with its signals.
fn contribute(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    values: &Values,
    scatter: &Scatter,
    tiles: &Tiles,
    tile: &Tile,
) -> Stmt {
    let owner = b.var("o");
    let first = Expr::from(owner) * tensors.shard;
    let end = first.clone() + tensors.shard;
    let (at, buffer, planes, told) = match scatter.pulled {
        Some(pulled) => (At::Own, pulled.kept, vec![parity()], pulled.stored),
        None => {
            let planes = vec![parity(), Sym::Rank.into()];
            (At::Peer(owner.into()), scatter.partial, planes, scatter.landed)
        }
    };
    let put = Op::Store {
        to: Place {
            at,
            buffer,
            planes,
            rows: Range::new(first.max(tile.m0), end.min(tile.m1)),
            cols: tile.cols(),
        },
        value: values.get(scatter.contribution),
        adds: false,
    };
    let signal = Op::Signal {
        at: At::Peer(owner.into()),
        signal: told,
        slot: landed_slot(tiles, tile, Sym::Rank),
        update: Update::Add(epilogue_warps(b.schedule.consumers).into()),
        scope: Scope::Sys,
        after: Completion::Performed,
    };
    let span = scatter.span;
    let to_peer = Op::If {
        cond: Cond::Ne(owner.into(), Sym::Rank.into()),
        body: vec![stmt(span, put), stmt(span, signal)],
    };
    let owners = Op::For {
        var: owner,
        from: Expr::from(tile.m0) / tensors.shard,
        to: (Expr::from(tile.m1) - 1i64) / tensors.shard + 1i64,
        step: 1i64.into(),
        body: vec![stmt(span, to_peer)],
    };
    stmt(span, owners)
}

/// Leaves a tile of other owners' rows for copy engines, and counts up its chunks. A tile that
/// holds rows of this rank as well is put: its sum waits for what peers send of this very tile,
/// so nothing of it may wait for other tiles.
fn leave(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    values: &Values,
    (scatter, staged): (&Scatter, &Staged),
    (tiles, tile): (&Tiles, &Tile),
) -> [Stmt; 3] {
    let span = scatter.span;
    let (mine, slot) = (b.var("mine"), b.var("c"));
    let first = Expr::from(Sym::Rank) * tensors.shard;
    let end = first.clone() + tensors.own;
    let held = end.min(tile.m1) - first.max(tile.m0);
    let store = Op::Store {
        to: own(staged.partial, tile.rows(), tile.cols()),
        value: values.get(scatter.contribution),
        adds: false,
    };
    let signal = Op::Signal {
        at: At::Own,
        signal: staged.ready,
        slot: slot.into(),
        update: Update::Add(epilogue_warps(b.schedule.consumers).into()),
        scope: Scope::Sys,
        after: Completion::Performed,
    };
    let Range { lo: from, hi: to } = tile.chunks.clone();
    let signals =
        Op::For { var: slot, from, to, step: 1i64.into(), body: vec![stmt(span, signal)] };
    let staged = vec![stmt(span, store), stmt(span, signals)];
    let put = vec![contribute(b, tensors, values, scatter, tiles, tile)];
    let none = Cond::Lt(mine.into(), 1i64.into());
    let some = Cond::Lt(0i64.into(), mine.into());
    [
        stmt(span, Op::Let { var: mine, value: held }),
        stmt(span, Op::If { cond: none, body: staged }),
        stmt(span, Op::If { cond: some, body: put }),
    ]
}

/// Waits for what `source` sends of a tile: the tile itself, `landed`, where the source owns rows of
/// it too, else the chunk of its tile row.
fn arrivals(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    (scatter, staged): (&Scatter, &Staged),
    tile: &Tile,
    (source, landed): (VarId, Stmt),
) -> Vec<Stmt> {
    let span = scatter.span;
    let shared = b.var("shared");
    let first = Expr::from(source) * tensors.shard;
    let held = (first.clone() + tensors.shard).min(tile.m1) - first.max(tile.m0);
    let arrived = Op::Wait {
        signal: staged.arrived,
        slots: Range::one(staged.arrival(tensors, source, tile.m0)),
        target: Sym::Epoch.into(),
        scope: Scope::Sys,
    };
    let if_ = |cond, op| stmt(span, Op::If { cond, body: vec![op] });
    vec![
        stmt(span, Op::Let { var: shared, value: held }),
        if_(Cond::Lt(0i64.into(), shared.into()), landed),
        if_(Cond::Lt(shared.into(), 1i64.into()), stmt(span, arrived)),
    ]
}

/// Waits for the contribution of each other rank to a tile: `wait` is for that of rank `source`,
/// and `each` says what stands in its place. The signal of a tile grows by `count`.
pub(super) fn landed(
    b: &mut Builder<'_>,
    (signal, count, span): (SignalId, u32, Span),
    (tiles, tile): (&Tiles, &Tile),
    each: impl FnOnce(&mut Builder<'_>, (VarId, Stmt)) -> Vec<Stmt>,
) -> Stmt {
    let source = b.var("s");
    let wait = Op::Wait {
        signal,
        slots: Range::one(landed_slot(tiles, tile, source)),
        target: Expr::from(Sym::Epoch) * count,
        scope: Scope::Sys,
    };
    let body = each(b, (source, stmt(span, wait)));
    let peers_only = Op::If { cond: Cond::Ne(source.into(), Sym::Rank.into()), body };
    let waits = Op::For {
        var: source,
        from: 0i64.into(),
        to: Sym::World.into(),
        step: 1i64.into(),
        body: vec![stmt(span, peers_only)],
    };
    stmt(span, waits)
}

/// In the rows this rank owns: waits for every peer's contribution, sums and stores.
fn sum_own(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    values: &Values,
    scatter: &Scatter,
    tiles: &Tiles,
    tile: &Tile,
) -> Vec<Stmt> {
    let span = scatter.span;
    let [lo, hi] = ["lo", "hi"].map(|name| b.var(name));
    let first = Expr::from(Sym::Rank) * tensors.shard;
    let lets = [(lo, first.clone().max(tile.m0)), (hi, (first + tensors.shard).min(tile.m1))];
    let count = match scatter.pulled {
        None => epilogue_warps(b.schedule.consumers),
        Some(_) => pull::brought(b.schedule.tile, b.copier()),
    };
    let each = |b: &mut Builder<'_>, (source, wait)| match &scatter.staged {
        None => vec![wait],
        Some(staged) => arrivals(b, tensors, (scatter, staged), tile, (source, wait)),
    };
    let waits = landed(b, (scatter.landed, count, span), (tiles, tile), each);
    let addend = b.var("i");
    let sum = Op::Sum {
        var: addend,
        own: values.get(scatter.contribution),
        from: Place {
            at: At::Own,
            buffer: scatter.partial,
            planes: vec![parity(), addend.into()],
            rows: Range::new(lo, hi),
            cols: tile.cols(),
        },
    };
    let mut body = vec![waits, stmt(span, sum)];
    let rows = Range::new(lo, hi);
    let wanted = match scatter.total {
        None => Distribution::Scattered,
        Some(_) => Distribution::Reduced,
    };
    body.extend(stores(b, tensors, values, wanted, &rows, &tile.cols()));
    if let Some(total) = &scatter.total {
        body.extend(total.keep(b, values, (tiles, tile), &rows));
    }
    let owned = Op::If { cond: Cond::Lt(lo.into(), hi.into()), body };
    let mut all: Vec<_> =
        lets.map(|(var, value)| stmt(span, Op::Let { var, value })).into_iter().collect();
    all.push(stmt(span, owned));
    all
}
