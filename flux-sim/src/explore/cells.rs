//! Memory as a grid: the rectangles that a run touches cut each buffer into cells, and no access
//! touches a part of one.

use flux_ir::eval::Region;
use flux_ir::program::BufferId;
use std::collections::{BTreeMap, BTreeSet};

/// A part of a buffer that every access touches whole or not at all.
pub(super) type Cell = u32;

/// Where the rectangles of one buffer begin and end, on whatever rank and plane: so rectangles of
/// the same rows and columns have the same cells in every plane.
#[derive(Debug, Default)]
struct Lines {
    rows: BTreeSet<u32>,
    cols: BTreeSet<u32>,
}

/// The cells of all buffers that a run touches.
#[derive(Debug, Default)]
pub(super) struct Cells {
    lines: BTreeMap<BufferId, Lines>,
    /// By buffer, rank, plane, and the row and column a cell begins with.
    numbers: BTreeMap<(BufferId, u32, u32, u32, u32), Cell>,
}

impl Cells {
    /// Cuts at the edges of `region`. All cuts come before the first [`Cells::of`].
    pub(super) fn cut(&mut self, region: &Region) {
        let lines = self.lines.entry(region.buffer).or_default();
        lines.rows.extend([region.rows.start, region.rows.end]);
        lines.cols.extend([region.cols.start, region.cols.end]);
    }

    /// The cells of a region that has been cut, row by row.
    pub(super) fn of(&mut self, region: &Region) -> Vec<Cell> {
        let Cells { lines, numbers } = self;
        let Some(lines) = lines.get(&region.buffer).filter(|_| !region.is_empty()) else {
            return Vec::new();
        };
        let mut cells = Vec::new();
        for &row in lines.rows.range(region.rows.clone()) {
            for &col in lines.cols.range(region.cols.clone()) {
                let next = numbers.len() as Cell;
                let place = (region.buffer, region.rank, region.plane, row, col);
                cells.push(*numbers.entry(place).or_insert(next));
            }
        }
        cells
    }

    /// Every cell so far of a buffer on one rank.
    pub(super) fn on_rank(&self, buffer: BufferId, rank: u32) -> Vec<Cell> {
        let from = (buffer, rank, 0, 0, 0);
        let to = (buffer, rank, u32::MAX, u32::MAX, u32::MAX);
        self.numbers.range(from..=to).map(|(_, &cell)| cell).collect()
    }

    /// The number of cells so far.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}
