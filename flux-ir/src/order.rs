//! Tile orders: the sequence in which a rank visits the tiles of its output.
//!
//! An order is a pure integer function that runs on the host and fills a table; the checker
//! sees the very table that the kernel reads. Built-in orders go shard by shard: a tile belongs
//! to the last shard of the sequence that it touches, so a tile that straddles two shards comes
//! when both have arrived (or, for a scattered output, after every tile of other owners).

use crate::tile::{Grid, Ranks, TileCoord, own_rows};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The function behind a user's order: (step, grid, rank, world) to the tile visited at that step.
pub type OrderFn = dyn Fn(u32, &Grid, u32, u32) -> TileCoord + Send + Sync;

/// A tile order.
#[derive(Clone)]
pub enum Order {
    /// Along the rows of the grid.
    RowMajor,
    /// Along the columns of the grid.
    ColumnMajor,
    /// Column by column inside groups of so many tile rows, so that a group's operand rows stay
    /// in the L2 cache.
    Grouped(u32),
    /// The rank's own shard, then the others in the order in which peers push them.
    OwnShardFirst,
    /// The rank's own shard, then what arrives, as it arrives.
    Arrival(Arrival),
    /// The next rank's shard first, then around the ring, own tiles last.
    NextRankFirst,
    /// As [`Order::NextRankFirst`], cut as chunks leave and arrive.
    Departure(Departure),
    /// As [`Order::Grouped`] of 16, from the columns that the next rank owns on, the own ones last: for an
    /// output whose columns are sharded.
    NextColumnsFirst,
    /// Shard `rank ^ h` at step `h`: at any step the ranks exchange in pairs.
    Xor,
    /// The ranks of the own half of the world (one NUMA node), then those of the other.
    TwoNuma,
    /// The user's own.
    Custom(CustomOrder),
}

/// How what arrives is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arrival {
    /// Rows that arrive together; 0 for whole shards.
    pub chunk: u32,
    /// The last so many rows of the shard that arrives last come at the very end: those that
    /// [`crate::Tail`] slices.
    pub tail: u32,
    /// Rows that arrive while a hundred are multiplied. What is there when a group begins belongs
    /// to it, so that the other operand is streamed fewer times; at 0 each chunk is a group.
    pub pace: u32,
}

/// How what leaves is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Departure {
    /// Rows that are walked together, column by column, where chunks are small: in the shards that
    /// are sent first and last, and in the own one, whose rows are added up as they arrive.
    pub rows: u32,
    /// Shards between them that are walked together, so that the other operand is streamed fewer
    /// times.
    pub shards: u32,
}

/// A user's order with its name.
#[derive(Clone)]
pub struct CustomOrder {
    /// Shown in dumps and errors.
    pub name: String,
    /// The function; absent where an order was read back from text.
    pub function: Option<Arc<OrderFn>>,
}

/// Why an order gives no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// A step named a tile outside the grid.
    #[error("order `{order}` leaves the grid: step {step} gives tile ({}, {}), the grid has {rows} x {cols} tiles", tile.m, tile.n)]
    OutOfGrid {
        /// Name of the order.
        order: String,
        /// The offending step.
        step: u32,
        /// What it gave.
        tile: TileCoord,
        /// Tile rows of the grid.
        rows: u32,
        /// Tile columns of the grid.
        cols: u32,
    },
    /// Two steps named one tile, so another is never visited.
    #[error("order `{order}` is no permutation: steps {first} and {second} both give tile ({}, {})", tile.m, tile.n)]
    VisitedTwice {
        /// Name of the order.
        order: String,
        /// The earlier step.
        first: u32,
        /// The later step.
        second: u32,
        /// The tile visited twice.
        tile: TileCoord,
    },
    /// The user's function panicked.
    #[error("order `{0}` panicked")]
    Panicked(String),
    /// The order was read from text, which carries its name alone.
    #[error("order `{0}` was read from text and has no function here")]
    NoFunction(String),
}

impl Order {
    /// Every built-in order with its default parameter.
    pub const BUILT_IN: [Order; 10] = [
        Order::RowMajor,
        Order::ColumnMajor,
        Order::Grouped(16),
        Order::OwnShardFirst,
        Order::Arrival(Arrival { chunk: 0, tail: 0, pace: 200 }),
        Order::NextRankFirst,
        Order::Departure(Departure { rows: 256, shards: 1 }),
        Order::NextColumnsFirst,
        Order::Xor,
        Order::TwoNuma,
    ];

    /// A user's order. `function` maps (step, grid, rank, world) to a tile and must visit every
    /// tile of the grid once.
    pub fn custom(
        name: impl Into<String>,
        function: impl Fn(u32, &Grid, u32, u32) -> TileCoord + Send + Sync + 'static,
    ) -> Self {
        Order::Custom(CustomOrder { name: name.into(), function: Some(Arc::new(function)) })
    }

    /// The built-in order called `name`.
    pub fn built_in(name: &str) -> Option<Order> {
        Order::BUILT_IN.into_iter().find(|order| order.name() == name)
    }

    /// The name in schedules, dumps and errors, without parameter.
    pub fn name(&self) -> &str {
        match self {
            Order::RowMajor => "row_major",
            Order::ColumnMajor => "column_major",
            Order::Grouped(_) => "grouped",
            Order::OwnShardFirst => "own_shard_first",
            Order::Arrival(_) => "arrival",
            Order::NextRankFirst => "next_rank_first",
            Order::Departure(_) => "departure",
            Order::NextColumnsFirst => "next_columns_first",
            Order::Xor => "xor",
            Order::TwoNuma => "two_numa",
            Order::Custom(custom) => &custom.name,
        }
    }

    /// The tile visited at each step, checked to be a permutation of the grid.
    ///
    /// # Errors
    /// An order that leaves the grid, visits a tile twice, or panics.
    pub fn table(&self, grid: &Grid, ranks: Ranks) -> Result<Vec<TileCoord>, OrderError> {
        let one_group = |rows: u32| groups_of(0..grid.rows, rows);
        let groups = match self {
            Order::RowMajor => one_group(1),
            Order::ColumnMajor => one_group(grid.rows.max(1)),
            Order::Grouped(rows) => one_group((*rows).max(1)),
            Order::NextColumnsFirst => one_group(RASTER_ROWS),
            Order::OwnShardFirst => by_shards(grid, &own_first(ranks)),
            Order::Arrival(arrival) => arrival.groups(grid, ranks),
            Order::NextRankFirst => by_shards(grid, &next_first(ranks)),
            Order::Departure(departure) => departure.groups(grid, ranks),
            Order::Xor => by_shards(grid, &xor(grid, ranks)),
            Order::TwoNuma => by_shards(grid, &two_numa(grid, ranks)),
            Order::Custom(custom) => return custom.table(grid, ranks),
        };
        let first = match self {
            Order::NextColumnsFirst => {
                let ahead = u64::from(ranks.rank + 1) * u64::from(grid.cols);
                (ahead / u64::from(ranks.world.max(1))) as u32
            }
            _ => 0,
        };
        let mut table = Vec::with_capacity(grid.tiles() as usize);
        for group in groups {
            for n in (first..grid.cols).chain(0..first) {
                table.extend(group.iter().map(|&m| TileCoord { m, n }));
            }
        }
        check_permutation(self.name(), grid, &table)?;
        Ok(table)
    }
}

impl CustomOrder {
    fn table(&self, grid: &Grid, ranks: Ranks) -> Result<Vec<TileCoord>, OrderError> {
        let Some(function) = &self.function else {
            return Err(OrderError::NoFunction(self.name.clone()));
        };
        let visit = |step| function(step, grid, ranks.rank, ranks.world);
        // A panic of the user's function is an error like any other, whoever asks for the table.
        let visits = || (0..grid.tiles()).map(visit).collect::<Vec<_>>();
        let table = catch_unwind(AssertUnwindSafe(visits))
            .map_err(|_| OrderError::Panicked(self.name.clone()))?;
        check_permutation(&self.name, grid, &table)?;
        Ok(table)
    }
}

impl PartialEq for Order {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Order::Grouped(a), Order::Grouped(b)) => a == b,
            (Order::Arrival(a), Order::Arrival(b)) => a == b,
            (Order::Departure(a), Order::Departure(b)) => a == b,
            _ => {
                std::mem::discriminant(self) == std::mem::discriminant(other)
                    && self.name() == other.name()
            }
        }
    }
}

impl Eq for Order {}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Grouped(rows) => write!(f, "grouped({rows})"),
            Order::Arrival(Arrival { chunk, tail, pace }) => {
                write!(f, "arrival({chunk}, {tail}, {pace})")
            }
            Order::Departure(Departure { rows, shards }) => {
                write!(f, "departure({rows}, {shards})")
            }
            Order::Custom(custom) => write!(f, "custom({})", custom.name),
            _ => f.write_str(self.name()),
        }
    }
}

impl fmt::Debug for CustomOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "custom({})", self.name)
    }
}

/// Whether `table` visits every tile of `grid` once.
///
/// # Errors
/// The first step that leaves the grid or repeats a tile.
pub fn check_permutation(name: &str, grid: &Grid, table: &[TileCoord]) -> Result<(), OrderError> {
    let mut seen = vec![u32::MAX; grid.tiles() as usize];
    for (step, &tile) in table.iter().enumerate() {
        let step = step as u32;
        if tile.m >= grid.rows || tile.n >= grid.cols {
            let (rows, cols) = (grid.rows, grid.cols);
            return Err(OrderError::OutOfGrid { order: name.into(), step, tile, rows, cols });
        }
        let slot = &mut seen[(tile.m * grid.cols + tile.n) as usize];
        if *slot != u32::MAX {
            let first = *slot;
            return Err(OrderError::VisitedTwice { order: name.into(), first, second: step, tile });
        }
        *slot = step;
    }
    Ok(())
}

/// The shard sequence of a push all-gather: rank `r` pushes to `r`, `r + 1`, …, so it receives
/// from itself, `r - 1`, ….
fn own_first(ranks: Ranks) -> Vec<u32> {
    (0..ranks.world).map(|hop| (ranks.rank + ranks.world - hop) % ranks.world).collect()
}

impl Arrival {
    fn groups(self, grid: &Grid, ranks: Ranks) -> Vec<Vec<u32>> {
        let (mut groups, mut units) = (Vec::<Vec<u32>>::new(), BTreeMap::<u64, Vec<u32>>::new());
        for m in 0..grid.rows {
            units.entry(self.unit(grid, ranks, m)).or_default().push(m);
        }
        // In rows multiplied: when the latest group begins, and when all groups are through.
        let (mut begun, mut done) = (0, 0);
        for (unit, rows) in units {
            let is_own = unit == 0;
            let there = match self.pace {
                0 => done,
                pace => 100 * self.arrived(grid, unit) / u64::from(pace),
            };
            let joins = self.pace > 0 && groups.len() > 1 && unit != TAIL && there <= begun;
            let work = rows.len() as u64 * u64::from(grid.tile_m);
            match groups.last_mut().filter(|_| joins) {
                Some(group) => group.extend(rows),
                None => {
                    begun = if is_own { 0 } else { done.max(there) };
                    groups.push(rows);
                }
            }
            done = done.max(begun) + work;
        }
        groups.into_iter().flat_map(|rows| groups_of(rows, RASTER_ROWS)).collect()
    }

    /// Rows that arrive together.
    fn chunk(self, grid: &Grid) -> u64 {
        let shard = u64::from(grid.shard_rows.max(1));
        if self.chunk == 0 { shard } else { u64::from(self.chunk).min(shard) }
    }

    /// When tile row `m` is there: 0 of own rows, then the number of the chunk among all.
    fn unit(self, grid: &Grid, ranks: Ranks, m: u32) -> u64 {
        let shard = u64::from(grid.shard_rows.max(1));
        let last = (ranks.rank + 1) % ranks.world;
        let end = u64::from(m) * u64::from(grid.tile_m) + u64::from(grid.tile_m);
        let end = end.min(grid.m.into());
        let (first_owner, last_owner) = grid.owners(m);
        let of_source = |source: u32| {
            // The last row of the tile in this shard is the latest.
            let begin = u64::from(source) * shard;
            let row = end.min(begin + shard) - 1;
            let hop = u64::from((ranks.rank + ranks.world - source) % ranks.world);
            if hop == 0 {
                return 0;
            }
            let own = own_rows(grid.m, Ranks { rank: source, ..ranks });
            let tail = begin + u64::from(own.saturating_sub(self.tail));
            if source == last && row >= tail && self.tail > 0 {
                return TAIL;
            }
            1 + (hop - 1) * shard.div_ceil(self.chunk(grid)) + (row - begin) / self.chunk(grid)
        };
        (first_owner..=last_owner).map(of_source).max().unwrap_or(0)
    }

    /// Rows that have arrived when unit `unit` has.
    fn arrived(self, grid: &Grid, unit: u64) -> u64 {
        let (shard, chunk) = (u64::from(grid.shard_rows.max(1)), self.chunk(grid));
        let Some(before) = unit.checked_sub(1) else { return 0 };
        if unit == TAIL {
            return grid.m.into();
        }
        let of_shard = shard.div_ceil(chunk);
        let within = (chunk * (before % of_shard + 1)).min(shard);
        before / of_shard * shard + within
    }
}

/// The unit behind all chunks.
const TAIL: u64 = u64::MAX;

fn next_first(ranks: Ranks) -> Vec<u32> {
    (1..=ranks.world).map(|hop| (ranks.rank + hop) % ranks.world).collect()
}

impl Departure {
    fn groups(self, grid: &Grid, ranks: Ranks) -> Vec<Vec<u32>> {
        let shards = of_shards(grid, &next_first(ranks));
        let height = (self.rows / grid.tile_m.max(1)).clamp(1, RASTER_ROWS);
        // The first shard, and the last two: what is sent last, and the own.
        let tail = shards.len().saturating_sub(2).max(1).min(shards.len());
        let ((first, between), last) = {
            let (ahead, last) = shards.split_at(tail);
            (ahead.split_at(1), last)
        };
        let cut = |shards: &[Vec<u32>]| -> Vec<Vec<u32>> {
            shards.iter().flat_map(|rows| groups_of(rows.iter().copied(), height)).collect()
        };
        let join = (self.shards as usize).clamp(1, shards.len());
        let joined = between.chunks(join).flat_map(|some| groups_of(some.concat(), RASTER_ROWS));
        cut(first).into_iter().chain(joined).chain(cut(last)).collect()
    }
}

fn xor(grid: &Grid, ranks: Ranks) -> Vec<u32> {
    let hops = 0..ranks.world.next_power_of_two();
    let sequence: Vec<_> = hops.map(|hop| ranks.rank ^ hop).filter(|&s| s < ranks.world).collect();
    own_last_if_scattered(grid, sequence)
}

fn two_numa(grid: &Grid, ranks: Ranks) -> Vec<u32> {
    let half = ranks.world.div_ceil(2);
    let (near, far) =
        if ranks.rank < half { (0..half, half..ranks.world) } else { (half..ranks.world, 0..half) };
    let around = |range: std::ops::Range<u32>| -> Vec<u32> {
        let len = range.len() as u32;
        let from = ranks.rank - if ranks.rank < half { 0 } else { half };
        (0..len).map(|hop| range.start + (from % len + len - hop) % len).collect()
    };
    let mut sequence = around(near);
    if !far.is_empty() {
        sequence.extend(around(far));
    }
    own_last_if_scattered(grid, sequence)
}

/// A rank's own tiles of a scattered output wait for every peer: they come last.
fn own_last_if_scattered(grid: &Grid, mut sequence: Vec<u32>) -> Vec<u32> {
    if grid.scattered {
        sequence.rotate_left(1);
    }
    sequence
}

/// Tile rows in the order of the shards in `sequence`, shard by shard.
fn by_shards(grid: &Grid, sequence: &[u32]) -> Vec<Vec<u32>> {
    let shards = of_shards(grid, sequence);
    shards.into_iter().flat_map(|rows| groups_of(rows, RASTER_ROWS)).collect()
}

/// The tile rows of each shard in `sequence`; those of several belong to the last of them.
fn of_shards(grid: &Grid, sequence: &[u32]) -> Vec<Vec<u32>> {
    let mut position = vec![0; sequence.len()];
    for (index, &shard) in sequence.iter().enumerate() {
        position[shard as usize] = index;
    }
    let mut groups = vec![Vec::new(); sequence.len().max(1)];
    for m in 0..grid.rows {
        let (first, last) = grid.owners(m);
        let latest = (first..=last).map(|shard| position[shard as usize]).max();
        groups[latest.unwrap_or(0)].push(m);
    }
    groups
}

/// Tile rows that are walked together, column by column: enough to reuse a column of the right
/// operand from L2, few enough that their rows of the left operand stay there too.
const RASTER_ROWS: u32 = 16;

fn groups_of(rows: impl IntoIterator<Item = u32>, size: u32) -> Vec<Vec<u32>> {
    let rows: Vec<_> = rows.into_iter().collect();
    rows.chunks(size as usize).map(<[u32]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::{Shape, TileShape};

    #[test]
    fn every_built_in_order_is_a_permutation() {
        for order in Order::BUILT_IN {
            for m in 1..=24 {
                for world in [1, 2, 3, 4, 7, 8, 64] {
                    for scattered in [false, true] {
                        let shape = Shape { m, n: 5, k: 1 };
                        let tile = TileShape { m: 2, n: 2, k: 1 };
                        let grid = Grid::new(shape, tile, world, scattered);
                        for rank in 0..world {
                            let table = order.table(&grid, Ranks { rank, world });
                            let table = table.unwrap_or_else(|e| panic!("{e}"));
                            assert_eq!(table.len(), grid.tiles() as usize, "{order} m={m}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn departures_are_fine_at_both_ends_and_coarse_between() {
        let (shape, tile) = (Shape { m: 64, n: 2, k: 1 }, TileShape { m: 2, n: 1, k: 1 });
        let groups = |world, rows, shards| {
            let grid = Grid::new(shape, tile, world, true);
            Departure { rows, shards }.groups(&grid, Ranks { rank: 0, world })
        };
        let sizes = |groups: Vec<Vec<u32>>| groups.iter().map(Vec::len).collect::<Vec<_>>();
        // Eight shards of four tile rows: 1, then 2 to 6 in pairs, then 7 and the own.
        assert_eq!(sizes(groups(8, 4, 2)), [2, 2, 8, 8, 4, 2, 2, 2, 2]);
        assert_eq!(groups(8, 4, 2)[0], [4, 5]);
        assert_eq!(groups(8, 4, 2).last().unwrap(), &[2, 3]);
        assert_eq!(sizes(groups(2, 8, 1)), [4; 8]);
        assert_eq!(sizes(groups(1, 100, 1)), [16, 16]);
    }

    #[test]
    fn own_shard_comes_first_and_next_rank_first_puts_it_last() {
        let grid = Grid::new(Shape { m: 8, n: 1, k: 1 }, TileShape { m: 1, n: 1, k: 1 }, 4, false);
        let ranks = Ranks { rank: 2, world: 4 };
        let first = Order::OwnShardFirst.table(&grid, ranks).expect("a permutation");
        assert_eq!(first[0].m, 4);
        assert_eq!(first[2].m, 2, "the previous rank pushes next");
        let last = Order::NextRankFirst.table(&grid, ranks).expect("a permutation");
        assert_eq!((last[0].m, last[7].m), (6, 5));
    }

    /// Groups of tile rows of an arrival, on rank 0 of 8, shards of 2 tile rows.
    fn groups(of: Arrival) -> Vec<Vec<u32>> {
        let tile = TileShape { m: 128, n: 1, k: 1 };
        let grid = Grid::new(Shape { m: 2048, n: 1, k: 1 }, tile, 8, false);
        of.groups(&grid, Ranks { rank: 0, world: 8 })
    }

    #[test]
    fn what_has_arrived_when_a_group_begins_belongs_to_it() {
        let whole = Arrival { chunk: 0, tail: 0, pace: 0 };
        let each: Vec<Vec<u32>> =
            (0..8).map(|hop| (8 - hop) % 8 * 2).map(|m| vec![m, m + 1]).collect();
        assert_eq!(groups(whole), each);
        let slow = groups(Arrival { pace: 50, ..whole });
        assert_eq!(slow, each, "nothing is there in advance");
        let sizes = |of| groups(of).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(Arrival { pace: 150, ..whole }), [2, 2, 4, 6, 2]);
        assert_eq!(sizes(Arrival { pace: 10_000, ..whole }), [2, 14]);
    }

    #[test]
    fn chunks_and_the_tail_are_walked_apart() {
        let halves = groups(Arrival { chunk: 128, tail: 128, pace: 0 });
        assert_eq!(halves[..3], [vec![0, 1], vec![14], vec![15]]);
        assert_eq!(halves[halves.len() - 2..], [vec![2], vec![3]]);
        // A tile that reaches into the tail comes with it.
        let wide = groups(Arrival { chunk: 0, tail: 130, pace: 1000 });
        assert_eq!(wide.last(), Some(&vec![2, 3]));
    }

    #[test]
    fn a_custom_order_that_repeats_a_tile_is_refused() {
        let grid = Grid::new(Shape { m: 4, n: 1, k: 1 }, TileShape { m: 1, n: 1, k: 1 }, 1, false);
        let order = Order::custom("stuck", |step, _, _, _| TileCoord { m: step / 2, n: 0 });
        let error = order.table(&grid, Ranks { rank: 0, world: 1 }).expect_err("repeats tiles");
        assert_eq!(
            error.to_string(),
            "order `stuck` is no permutation: steps 0 and 1 both give tile (0, 0)"
        );
    }
}
