//! Arithmetic on tiles, grids of tiles and shards. No other module repeats these formulas.

use std::fmt;
use std::ops::Range;

/// Rows, columns and k-step of a tile, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TileShape {
    /// Rows of the output.
    pub m: u32,
    /// Columns of the output.
    pub n: u32,
    /// Elements of the reduction consumed per pipeline stage.
    pub k: u32,
}

impl fmt::Display for TileShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {}, {})", self.m, self.n, self.k)
    }
}

/// The extents of one launch: the output is `m × n`, the reduction runs over `k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of the whole output (over all ranks).
    pub m: u32,
    /// Columns of the output.
    pub n: u32,
    /// Length of the reduction on this rank.
    pub k: u32,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.m, self.n, self.k)
    }
}

/// A tile's position in the grid of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TileCoord {
    /// Tile row.
    pub m: u32,
    /// Tile column.
    pub n: u32,
}

/// Which rank, of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ranks {
    /// This rank, below `world`.
    pub rank: u32,
    /// The number of ranks.
    pub world: u32,
}

/// What a tile order may look at: the grid of tiles of one launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Tile rows: `ceil(m / tile.m)`, or as many for each shard by itself.
    pub rows: u32,
    /// Tile columns: `ceil(n / tile.n)`.
    pub cols: u32,
    /// Matrix rows.
    pub m: u32,
    /// Matrix rows of one tile.
    pub tile_m: u32,
    /// Matrix rows of one shard: `ceil(m / world)`.
    pub shard_rows: u32,
    /// Whether the output is scattered, so that a rank's own tiles have to wait for its peers.
    pub scattered: bool,
    /// Whether tiles begin anew with each shard: none is of two.
    pub by_shard: bool,
}

impl Grid {
    /// The grid of `shape` in tiles of `tile`, its rows sharded over `world` ranks.
    pub const fn new(shape: Shape, tile: TileShape, world: u32, scattered: bool) -> Self {
        Grid {
            rows: shape.m.div_ceil(tile.m),
            cols: shape.n.div_ceil(tile.n),
            m: shape.m,
            tile_m: tile.m,
            shard_rows: shard_rows(shape.m, world),
            scattered,
            by_shard: false,
        }
    }

    /// The same rows, in tiles that begin anew with each shard.
    pub const fn by_shard(self) -> Self {
        let shard = if self.shard_rows == 0 { 1 } else { self.shard_rows };
        let whole = self.m / shard * self.tiles_of_shard();
        let rest = (self.m % shard).div_ceil(self.tile_m);
        Grid { rows: whole.saturating_add(rest), by_shard: true, ..self }
    }

    /// Tile rows of a full shard that is cut by itself, at least one.
    const fn tiles_of_shard(&self) -> u32 {
        let tiles = self.shard_rows.div_ceil(self.tile_m);
        if tiles == 0 { 1 } else { tiles }
    }

    /// The matrix rows of tile row `m`, cut at the edges.
    pub const fn rows_of(&self, m: u32) -> Range<u32> {
        let (within, begin, end) = match self.by_shard {
            true => {
                let of = self.tiles_of_shard();
                let begin = (m / of).saturating_mul(self.shard_rows);
                (m % of, begin, begin.saturating_add(self.shard_rows))
            }
            false => (m, 0, self.m),
        };
        let end = if end < self.m { end } else { self.m };
        let first = begin.saturating_add(within.saturating_mul(self.tile_m));
        let first = if first < end { first } else { end };
        let below = first.saturating_add(self.tile_m);
        first..if below < end { below } else { end }
    }

    /// The number of tiles; `u32::MAX` where there are more.
    pub const fn tiles(&self) -> u32 {
        self.rows.saturating_mul(self.cols)
    }

    /// The ranks whose shards tile row `m` touches: first and last.
    pub const fn owners(&self, m: u32) -> (u32, u32) {
        if self.shard_rows == 0 {
            return (0, 0);
        }
        let Range { start, end } = self.rows_of(m);
        let last = if end > start { end - 1 } else { start };
        (start / self.shard_rows, last / self.shard_rows)
    }
}

/// Rows of a full shard: `ceil(m / world)`.
pub const fn shard_rows(m: u32, world: u32) -> u32 {
    m.div_ceil(world)
}

/// Rows that `rank` owns: a full shard, or what is left of the matrix (possibly nothing).
pub const fn own_rows(m: u32, ranks: Ranks) -> u32 {
    let shard = shard_rows(m, ranks.world);
    let first = ranks.rank as u64 * shard as u64;
    if first >= m as u64 {
        0
    } else {
        let left = m - first as u32;
        if left < shard { left } else { shard }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_row_once_and_those_by_shard_are_of_one_owner() {
        for (m, world, tile_m) in (0..40).flat_map(|m| (1..=5).map(move |w| (m, w, 1 + m % 4))) {
            let shape = Shape { m, n: 1, k: 1 };
            let whole = Grid::new(shape, TileShape { m: tile_m, n: 1, k: 1 }, world, true);
            for grid in [whole, whole.by_shard()] {
                let covered: Vec<u32> = (0..grid.rows).flat_map(|m| grid.rows_of(m)).collect();
                assert_eq!(covered, (0..m).collect::<Vec<_>>(), "{grid:?}");
                let of_one = (0..grid.rows).all(|m| grid.owners(m).0 == grid.owners(m).1);
                assert!(of_one || !grid.by_shard, "{grid:?}");
                assert!((0..grid.rows).all(|m| !grid.rows_of(m).is_empty()), "{grid:?}");
            }
        }
    }

    #[test]
    fn shards_cover_every_row_once() {
        for m in 0..70 {
            for world in 1..=9 {
                let total: u32 = (0..world).map(|rank| own_rows(m, Ranks { rank, world })).sum();
                assert_eq!(total, m, "m = {m}, world = {world}");
            }
        }
    }
}
