//! Declares the tile table: which tile at which step, and which chunks its rows arrive or leave
//! in.

use super::build::Builder;
use super::chain;
use super::exchange::Exchanges;
use super::gather::Gathers;
use super::gemm::Tile;
use super::one_shot;
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
    tiled: Range,
    /// `S` and `TS`, where tiles begin anew with each shard: its rows, and its rows of tiles.
    shards: Option<[VarId; 2]>,
}

impl Tiles {
    /// The first row of tile row `m`, `height` rows high, and the row it ends ahead of where none of
    /// its rows is missing.
    pub(super) fn rows(&self, m: VarId, height: u32) -> [Expr; 2] {
        rows(&self.tiled, self.shards, m, height)
    }

    /// Rows of tiles of a full shard, where tiles begin anew with each.
    pub(super) fn of_shard(&self) -> Option<VarId> {
        self.shards.map(|[_, of_shard]| of_shard)
    }

    /// The rank that owns the rows of a tile: tiles begin anew with each shard.
    pub(super) fn owner(&self, tile: &Tile) -> Expr {
        match self.shards {
            Some([_, of_shard]) => Expr::from(tile.m) / of_shard,
            None => Sym::Rank.into(),
        }
    }
}

fn rows(tiled: &Range, shards: Option<[VarId; 2]>, m: VarId, height: u32) -> [Expr; 2] {
    let m = || Expr::from(m);
    if let Some([shard, of_shard]) = shards {
        let begin = m() / of_shard * shard;
        let end = (m() / of_shard + 1i64) * shard;
        return [begin + m() % of_shard * height, end.min(tiled.hi.clone())];
    }
    let first = match &tiled.lo {
        Expr::Int(0) => m() * height,
        lo => lo.clone() + m() * height,
    };
    [first, tiled.hi.clone()]
}

pub(super) fn order(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    (gathers, exchanges): (&Gathers, &Exchanges),
    scatter: Option<&Scatter>,
) -> Tiles {
    let tile = b.schedule.tile;
    let own = b.usage.own_rows().then(|| tensors.first_of(Sym::Rank));
    let tiled = match &own {
        Some(first) => Range::new(first.clone(), first.clone() + tensors.own),
        None => Range::new(0i64, Sym::M),
    };
    let height = if own.is_some() { tensors.own.into() } else { Expr::from(Sym::M) };
    let by_shard = chain::algorithm(b).is_some() || scatter.is_some_and(|s| s.pulled.is_some());
    let shards = by_shard.then(|| {
        let of_shard = Expr::from(tensors.shard).ceil_div(tile.m).max(1i64);
        [tensors.shard, b.define("TS", of_shard)]
    });
    let rows = match shards {
        Some([shard, of_shard]) => {
            let shard = Expr::from(shard).max(1i64);
            height.clone() / shard.clone() * of_shard + (height % shard).ceil_div(tile.m)
        }
        None => height.ceil_div(tile.m),
    };
    let rows = b.define("MT", rows);
    let cols = b.define("NT", Expr::from(Sym::N).ceil_div(tile.n));
    let count = b.define("T", Expr::from(rows) * cols);
    let (m, n) = (b.var("tm"), b.var("tn"));
    let [first_row, end] = self::rows(&tiled, shards, m, tile.m);
    let last_row = (first_row.clone() + tile.m).min(end) - 1i64;
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
    let table = Table {
        name: "tiles".into(),
        len: count.into(),
        order,
        tiled: range,
        by_shard,
        m,
        n,
        fields,
    };
    Tiles { table: b.program.tables.push(table), cols, count, tiled, shards }
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
            AllReduce::OneShot | AllReduce::Flagged => Order::Grouped(16),
            AllReduce::TwoShot => Order::NextRankFirst,
        }
    } else if has_output(b, Distribution::Exchanged) {
        Order::NextColumnsFirst
    } else if one_shot::total(b.kernel).is_some() {
        // As in one shot.
        Order::Grouped(16)
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
