//! Declares the tile table: which tile at which step, and which chunks its rows arrive or leave
//! in.

use super::build::Builder;
use super::gather::Gathers;
use super::scatter::Scatter;
use super::tensors::Tensors;
use crate::kernel::Distribution;
use crate::order::{Arrival, Departure, Order};
use crate::program::{Expr, Sym, Table, TableId, VarId};
use crate::schedule::{AllReduce, Transport};

/// The tile table and the counts it rests on.
pub(super) struct Tiles {
    pub(super) table: TableId,
    /// `NT`: tile columns.
    pub(super) cols: VarId,
    /// `T`: tiles.
    pub(super) count: VarId,
}

pub(super) fn order(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    gathers: &Gathers,
    scatter: Option<&Scatter>,
) -> Tiles {
    let tile = b.schedule.tile;
    let rows = b.define("MT", Expr::from(Sym::M).ceil_div(tile.m));
    let cols = b.define("NT", Expr::from(Sym::N).ceil_div(tile.n));
    let count = b.define("T", Expr::from(rows) * cols);
    let (m, n) = (b.var("tm"), b.var("tn"));
    let first_row = Expr::from(m) * tile.m;
    let last_row = (first_row.clone() + tile.m).min(Sym::M) - 1i64;
    let staged = scatter.and_then(|scatter| scatter.staged);
    let chunks = match staged {
        Some(staged) => Some(staged.slots_of(tensors, &first_row, &last_row)),
        None => gathers
            .chunk_of(tensors, &first_row)
            .zip(gathers.chunk_of(tensors, &last_row))
            .map(|(first, last)| [first, last]),
    };
    let fields = match chunks {
        Some([first, last]) => [first, last + 1i64],
        None => [0i64.into(), 0i64.into()],
    };
    let order = b.schedule.order.clone().unwrap_or_else(|| default_order(b));
    let table = Table { name: "tiles".into(), len: count.into(), order, m, n, fields };
    Tiles { table: b.program.tables.push(table), cols, count }
}

/// The order that fits what the kernel waits for: own tiles last where they wait for contributions,
/// else in the order in which shards arrive, else in groups that stay in L2.
fn default_order(b: &Builder<'_>) -> Order {
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
    } else if b.kernel.protocol.is_some() {
        Order::OwnShardFirst
    } else if has(Distribution::Gathered) {
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
