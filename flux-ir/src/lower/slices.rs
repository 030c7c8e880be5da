//! The mainloop of a tile whose operands arrive along k: slice by slice, each behind its waits.

use super::build::{Builder, stmt};
use super::exchange::Incoming;
use super::gather::{Chunks, Shards, TailCut, at_least, wait_span};
use super::gemm::{Sources, Tile, arrival, mainloop};
use crate::program::{Expr, Op, Range, Stmt, Sym};

/// The mainloop of rows whose columns arrive from every rank: rank by rank, the own columns first and
/// those of the next rank behind them, once around. Slices end between k-steps, so one may hold
/// columns of the rank behind.
pub(super) fn arriving(
    b: &mut Builder<'_>,
    from: &Sources<'_>,
    incoming: &Incoming,
    tile: &Tile,
) -> Stmt {
    let span = b.kernel.loop_span;
    let step = b.schedule.tile.k;
    let [hop, source, k0, k1] = ["h", "from", "k0", "k1"].map(|name| b.var(name));
    let part = incoming.columns.part;
    let begin = |shards: Expr| ((shards * part).ceil_div(step) * step).min(Sym::K);
    let lets = [
        (source, (Expr::from(Sym::Rank) + hop) % Sym::World),
        (k0, begin(source.into())),
        (k1, begin(Expr::from(source) + 1i64)),
    ];
    let mut body: Vec<_> =
        lets.map(|(var, value)| stmt(span, Op::Let { var, value })).into_iter().collect();
    let slice = Range::new(k0, k1);
    body.push(from.exchanges.await_columns(b, incoming, &tile.chunks, &slice));
    body.push(stmt(wait_span(b, incoming.param), Op::FenceProxyAsync));
    body.push(mainloop(b, from, tile, &slice));
    let (from, to) = (0i64.into(), Sym::World.into());
    stmt(span, Op::For { var: hop, from, to, step: 1i64.into(), body })
}

/// The mainloop of gathered rows that it sums over: chunk by chunk, the own ones first and those of the
/// next rank behind them, once around. Slices end between k-steps, so one may hold rows of the chunk
/// behind.
pub(super) fn summing(
    b: &mut Builder<'_>,
    from: &Sources<'_>,
    (shards, chunks): (Shards, Chunks),
    tile: &Tile,
) -> Stmt {
    let span = b.kernel.loop_span;
    let step = b.schedule.tile.k;
    let [turn, chunk, k0, k1] = ["i", "c", "k0", "k1"].map(|name| b.var(name));
    let all = || Expr::from(Sym::World) * chunks.count;
    let begin = |chunk: Expr| {
        let within = (chunk.clone() % chunks.count * chunks.rows).min(shards.full);
        let row = chunk / chunks.count * shards.full + within;
        (row.ceil_div(step) * step).min(Sym::K)
    };
    let lets = [
        (chunk, (Expr::from(Sym::Rank) * chunks.count + turn) % all()),
        (k0, begin(chunk.into())),
        (k1, begin(Expr::from(chunk) + 1i64)),
    ];
    let mut body: Vec<_> = lets.map(|(var, value)| stmt(span, Op::Let { var, value })).into();
    let last = Expr::from(k1).max(1i64) - 1i64;
    let slots =
        Range::new(shards.chunk_of(chunks, &k0.into()), shards.chunk_of(chunks, &last) + 1i64);
    for gather in &from.gathers.each {
        let span = wait_span(b, gather.param);
        body.push(stmt(span, arrival(gather.arrived, slots.clone(), from.gathers.arrival())));
        body.push(stmt(span, Op::FenceProxyAsync));
    }
    body.push(mainloop(b, from, tile, &Range::new(k0, k1)));
    let (from, to) = (0i64.into(), all());
    stmt(span, Op::For { var: turn, from, to, step: 1i64.into(), body })
}

/// The mainloop with its waits: of a tile that reaches into the tail slice by slice, of any other
/// in one slice behind everything it reads.
pub(super) fn sliced(
    b: &mut Builder<'_>,
    from: &Sources<'_>,
    tile: &Tile,
    tail: TailCut,
) -> Vec<Stmt> {
    let span = b.kernel.loop_span;
    let define = |(var, value)| stmt(span, Op::Let { var, value });
    let [touches, cols] = ["touches", "ks"].map(|name| b.var(name));
    let [slice, k0, k1] = ["s", "k0", "k1"].map(|name| b.var(name));
    let reaches = at_least(&(Expr::from(tile.m1) - 1i64), tail.first);
    let begins = at_least(&tail.end.into(), Expr::from(tile.m0) + 1i64);
    let wider = Expr::from(touches) * (Expr::from(Sym::K) - tail.cols);
    let lets = [(touches, reaches * begins), (cols, Expr::from(Sym::K) - wider)];
    let mut all: Vec<_> = lets.map(define).into();
    let mut body: Vec<_> =
        [(k0, (Expr::from(slice) * cols).min(Sym::K)), (k1, (Expr::from(k0) + cols).min(Sym::K))]
            .map(define)
            .into();
    // Chunks ahead of the tail, the slice at hand, chunks behind the shard: each where the tile
    // has any.
    let Range { lo: first, hi: last } = &tile.chunks;
    let before = Range::new(first.clone(), last.clone().min(tail.before));
    let behind = Range::new(first.clone().max(tail.behind), last.clone());
    let next = Expr::from(slice) + 1i64;
    let slots = Range::new(Expr::from(touches) * slice, Expr::from(touches) * next);
    for gather in &from.gathers.each {
        let span = wait_span(b, gather.param);
        let waits = [
            (Some(gather.arrived), &before),
            (gather.sliced, &slots),
            (Some(gather.arrived), &behind),
        ];
        for (signal, slots) in waits {
            let wait = |signal| arrival(signal, slots.clone(), Sym::Epoch.into());
            body.extend(signal.map(|signal| stmt(span, wait(signal))));
        }
        body.push(stmt(span, Op::FenceProxyAsync));
    }
    body.push(mainloop(b, from, tile, &Range::new(k0, k1)));
    let slices = Op::For {
        var: slice,
        from: 0i64.into(),
        to: Expr::from(touches) * (Expr::from(tail.slices) - 1i64) + 1i64,
        step: 1i64.into(),
        body,
    };
    all.push(stmt(span, slices));
    all
}
