//! Declares the tile table: which tile at which step, and which chunks its rows arrive or leave
//! in.

use super::build::Builder;
use super::exchange::Exchanges;
use super::gather::Gathers;
use super::scatter::Scatter;
use super::tensors::Tensors;
use crate::kernel::Distribution;
use crate::order::{Arrival, Departure, Order};
use crate::program::{Expr, Range, Sym, Table, TableId, VarId};
use crate::schedule::{AllReduce, Transport};

/// The tile table and the counts it rests on.
pub(super) struct Tiles {
    pub(super) table: TableId,
    /// `NT`: tile columns.
    pub(super) cols: VarId,
    /// `T`: tiles.
    pub(super) count: VarId,
    /// The rows of the output that they cover.
    pub(super) tiled: Range,
}

pub(super) fn order(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    (gathers, exchanges): (&Gathers, &Exchanges),
    scatter: Option<&Scatter>,
) -> Tiles {
    let tile = b.schedule.tile;
    let own = b.usage.own_rows().then(|| Expr::from(Sym::Rank) * tensors.shard);
    let tiled = match &own {
        Some(first) => Range::new(first.clone(), first.clone() + tensors.own),
        None => Range::new(0i64, Sym::M),
    };
    let height = if own.is_some() { tensors.own.into() } else { Expr::from(Sym::M) };
    let rows = b.define("MT", height.ceil_div(tile.m));
    let cols = b.define("NT", Expr::from(Sym::N).ceil_div(tile.n));
    let count = b.define("T", Expr::from(rows) * cols);
    let (m, n) = (b.var("tm"), b.var("tn"));
    let mut first_row = Expr::from(m) * tile.m;
    if let Some(first) = own {
        first_row = first + first_row;
    }
    let last_row = (first_row.clone() + tile.m).min(tiled.hi.clone()) - 1i64;
    let staged = scatter.and_then(|scatter| scatter.staged);
    let chunks = match staged {
        Some(staged) => Some(staged.slots_of(tensors, &first_row, &last_row)),
        None => exchanges.chunks_of(tensors, [&first_row, &last_row]).or_else(|| {
            let first = gathers.chunk_of(&first_row);
            first.zip(gathers.chunk_of(&last_row)).map(|(first, last)| [first, last])
        }),
    };
    let fields = match chunks {
        Some([first, last]) => [first, last + 1i64],
        None => [0i64.into(), 0i64.into()],
    };
    let order = b.schedule.order.clone().unwrap_or_else(|| default_order(b, gathers.are_summed()));
    let range = tiled.clone();
    let table =
        Table { name: "tiles".into(), len: count.into(), order, tiled: range, m, n, fields };
    Tiles { table: b.program.tables.push(table), cols, count, tiled }
}

/// The order that fits what the kernel waits for: own tiles last where they wait for contributions,
/// else in the order in which shards arrive that a tile reads some of, else in groups that stay in L2.
fn default_order(b: &Builder<'_>, summed: bool) -> Order {
    let has = |wanted: Distribution| {
        b.kernel.params.handles().any(|p| b.kernel.tensor(p).is_some_and(|(d, ..)| d == wanted))
    };
    if has(Distribution::Scattered) {
        match b.schedule.transport {
            Some(Transport::CopyEngine) => Order::Departure(Departure { rows: 256, shards: 1 }),
            _ => Order::NextRankFirst,
        }
    } else if has(Distribution::Reduced) {
        match b.schedule.all_reduce.unwrap_or_default() {
            // Every rank waits for this tile of every other: all take the same order.
            AllReduce::OneShot => Order::Grouped(16),
            AllReduce::TwoShot => Order::NextRankFirst,
        }
    } else if has_output(b, Distribution::Exchanged) {
        Order::NextColumnsFirst
    } else if b.kernel.protocol.is_some() {
        Order::OwnShardFirst
    } else if has(Distribution::Gathered) && !summed {
        match (b.schedule.chunk_rows, b.schedule.tail) {
            (None, None) => Order::OwnShardFirst,
            (chunk, tail) => {
                let (chunk, tail) = (chunk.unwrap_or(0), tail.map_or(0, |tail| tail.rows));
                Order::Arrival(Arrival { chunk, tail, pace: 0 })
            }
        }
    } else {
        Order::Grouped(16)
    }
}

/// Whether the kernel writes a tensor of this distribution.
fn has_output(b: &Builder<'_>, wanted: Distribution) -> bool {
    let is = |param| matches!(b.kernel.tensor(param), Some((found, _, true)) if found == wanted);
    b.kernel.params.handles().any(is)
}
