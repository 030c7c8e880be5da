//! Whether rectangles cover a matrix, each element once.
//!
//! Tiles of an output are disjoint by their place in the grid, so rectangles that each lie in a
//! tile of their own and add up to the matrix cover it: one comparison per tile. Only where
//! that does not settle it, a sweep over rows finds the overlap or the gap.

use crate::eval::Extent;
use crate::program::Stmt;
use crate::tile::TileShape;
use std::collections::BTreeMap;
use std::ops::Range;

/// What has been written of one output on one rank in one launch. Rows count in memory.
#[derive(Debug)]
pub(super) struct Coverage<'p> {
    rows: u32,
    cols: u32,
    /// Rows of the whole tensor above the first one in memory, and the tile.
    first_row: u32,
    tile: TileShape,
    /// Tile columns.
    across: usize,
    /// Which tiles have a rectangle.
    taken: Vec<bool>,
    /// Whether each rectangle lies in a tile of its own.
    regular: bool,
    area: u64,
    written: Vec<Written<'p>>,
}

/// A rectangle with the statement that wrote it.
#[derive(Debug, Clone)]
struct Written<'p> {
    rows: Range<u32>,
    cols: Range<u32>,
    stmt: &'p Stmt,
}

/// How a matrix is not covered once.
#[derive(Debug)]
pub(super) enum Fault<'p> {
    /// Two statements (or one, twice) wrote an element.
    Twice { row: u32, col: u32, stmts: [&'p Stmt; 2] },
    /// No statement wrote an element.
    Never { row: u32, col: u32 },
}

impl<'p> Coverage<'p> {
    /// Nothing written of the first plane of `extent`.
    pub(super) fn new(extent: Extent, first_row: u32, tile: TileShape) -> Self {
        let rows = u32::try_from(extent.rows).unwrap_or(u32::MAX);
        let cols = u32::try_from(extent.cols).unwrap_or(u32::MAX);
        let across = cols.div_ceil(tile.n) as usize;
        let below = first_row.saturating_add(rows).div_ceil(tile.m) - first_row / tile.m;
        Coverage {
            rows,
            cols,
            first_row,
            tile,
            across,
            taken: vec![false; across * below as usize],
            regular: true,
            area: 0,
            written: Vec::new(),
        }
    }

    /// Adds a rectangle that is not empty and lies in the matrix.
    pub(super) fn add(&mut self, rows: Range<u32>, cols: Range<u32>, stmt: &'p Stmt) {
        let tile_row = |row: u32| (row + self.first_row) / self.tile.m;
        let (top, bottom) = (tile_row(rows.start), tile_row(rows.end - 1));
        let (left, right) = (cols.start / self.tile.n, (cols.end - 1) / self.tile.n);
        let below = (top - self.first_row / self.tile.m) as usize;
        let cell = &mut self.taken[below * self.across + left as usize];
        self.regular &= top == bottom && left == right && !*cell;
        *cell = true;
        self.area += u64::from(rows.end - rows.start) * u64::from(cols.end - cols.start);
        self.written.push(Written { rows, cols, stmt });
    }

    /// The first fault by row, if there is one.
    pub(super) fn fault(&self) -> Option<Fault<'p>> {
        let whole = u64::from(self.rows) * u64::from(self.cols);
        if self.regular && self.area == whole {
            return None;
        }
        self.sweep()
    }

    fn sweep(&self) -> Option<Fault<'p>> {
        let mut starts: Vec<_> = self.written.iter().collect();
        starts.sort_by_key(|written| (written.rows.start, written.cols.start));
        let mut ends = starts.clone();
        ends.sort_by_key(|written| written.rows.end);
        let (mut starts, mut ends) = (starts.into_iter().peekable(), ends.into_iter().peekable());
        // Rectangles that cross the row at hand, by first column.
        let mut active: BTreeMap<u32, &Written<'p>> = BTreeMap::new();
        let mut row = 0;
        while row < self.rows {
            while let Some(over) = ends.next_if(|written| written.rows.end <= row) {
                active.remove(&over.cols.start);
            }
            while let Some(new) = starts.next_if(|written| written.rows.start <= row) {
                let before = active.range(..new.cols.end).next_back();
                if let Some((_, old)) = before.filter(|(_, old)| old.cols.end > new.cols.start) {
                    let col = old.cols.start.max(new.cols.start);
                    return Some(Fault::Twice { row, col, stmts: [old.stmt, new.stmt] });
                }
                active.insert(new.cols.start, new);
            }
            let mut col = 0;
            for written in active.values() {
                if written.cols.start > col {
                    break;
                }
                col = written.cols.end;
            }
            if col < self.cols {
                return Some(Fault::Never { row, col });
            }
            let next = [starts.peek().map(|w| w.rows.start), ends.peek().map(|w| w.rows.end)];
            row = next.into_iter().flatten().min().unwrap_or(self.rows);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Op;
    use crate::span::Span;

    const STMT: Stmt = Stmt { op: Op::FenceProxyAsync, span: Span::UNKNOWN };

    /// Compares with counting every element, on all pairs of rectangles of a small matrix.
    #[test]
    fn the_sweep_agrees_with_counting() {
        let (rows, cols) = (3u32, 3u32);
        let ranges = |end: u32| (0..end).flat_map(move |lo| (lo + 1..=end).map(move |hi| lo..hi));
        let all: Vec<_> =
            ranges(rows).flat_map(|r| ranges(cols).map(move |c| (r.clone(), c))).collect();
        let tile = TileShape { m: 2, n: 2, k: 1 };
        let extent = Extent { planes: 1, rows: rows.into(), cols: cols.into() };
        let rest: Vec<_> = all.iter().map(Some).chain([None]).collect();
        for first in &all {
            for second in &rest {
                for third in &rest {
                    let mut coverage = Coverage::new(extent, 1, tile);
                    let mut counts = [[0; 3]; 3];
                    for (r, c) in [Some(first), *second, *third].into_iter().flatten() {
                        coverage.add(r.clone(), c.clone(), &STMT);
                        r.clone().for_each(|r| {
                            c.clone().for_each(|c| counts[r as usize][c as usize] += 1)
                        });
                    }
                    let at = |row: u32, col: u32| counts[row as usize][col as usize];
                    match coverage.fault() {
                        None => assert_eq!(counts, [[1; 3]; 3]),
                        Some(Fault::Twice { row, col, .. }) => assert!(at(row, col) > 1),
                        Some(Fault::Never { row, col }) => assert_eq!(at(row, col), 0),
                    }
                }
            }
        }
    }
}
