//! Matrices that several actors write at once, in disjoint places.
//!
//! A sheet is cut into cells: one row of one column band each, behind a lock of its own. Bands
//! are as wide as a tile, so two actors meet in one cell only where the signal protocol let both
//! touch the same elements: a lock that is not free is a race, never a reason to block.

use crate::tensor::{Cell, Input, Output, Values};
use flux_ir::Element;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};

/// Bytes of bookkeeping for each cell: the lock, the slice, the allocator's header.
pub(crate) const CELL_OVERHEAD: u64 = size_of::<RwLock<Values>>() as u64 + 16;

/// Rows of cells.
#[derive(Debug)]
pub(crate) struct Sheet<C> {
    cols: usize,
    band: usize,
    cells: Vec<RwLock<C>>,
}

/// A cell was held by another actor; the row it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held(pub(crate) usize);

/// The widths of the bands of a row, in order.
fn bands(cols: usize, band: usize) -> impl Iterator<Item = usize> {
    (0..cols).step_by(band.max(1)).map(move |start| (cols - start).min(band))
}

impl Sheet<Values> {
    /// `rows × cols` zeros.
    pub(crate) fn zeroed(element: Element, rows: usize, cols: usize, band: usize) -> Self {
        let row = || bands(cols, band).map(|len| RwLock::new(Values::zeroed(element, len)));
        Sheet { cols, band, cells: (0..rows).flat_map(|_| row()).collect() }
    }
}

impl Sheet<Values> {
    /// Zeros everywhere. Nobody else holds a cell; what a panic left behind is overwritten.
    pub(crate) fn zero(&self) {
        for cell in &self.cells {
            cell.clear_poison();
            cell.write().unwrap_or_else(PoisonError::into_inner).zero();
        }
    }
}

impl<'a> Sheet<Output<'a>> {
    /// A tensor of the caller, whose length is a multiple of `cols`.
    pub(crate) fn over(mut tensor: Output<'a>, cols: usize, band: usize) -> Self {
        let mut cells = Vec::new();
        while !tensor.is_empty() {
            for len in bands(cols, band) {
                let (cell, rest) = tensor.split_at(len);
                cells.push(RwLock::new(cell));
                tensor = rest;
            }
        }
        Sheet { cols, band, cells }
    }
}

impl<C: Cell> Sheet<C> {
    /// The cells of `cols` in a row: index, and the part of the cell.
    fn parts(&self, row: usize, cols: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let band = self.band.max(1);
        let first = row * self.cols.div_ceil(band);
        let touched =
            if cols.is_empty() { 0..0 } else { cols.start / band..(cols.end - 1) / band + 1 };
        touched.map(move |index| {
            let start = index * band;
            let part = cols.start.max(start) - start..cols.end.min(start + band) - start;
            (first + index, part)
        })
    }

    /// Hands the elements `cols` of a row to `each`, in parts from left to right.
    pub(crate) fn read(
        &self,
        row: usize,
        cols: Range<usize>,
        mut each: impl FnMut(Input<'_>) -> Result<(), Held>,
    ) -> Result<(), Held> {
        for (index, part) in self.parts(row, cols) {
            let cell = self.cells[index].try_read().map_err(|_| Held(row))?;
            each(cell.view().slice(part))?;
        }
        Ok(())
    }

    /// Hands the elements `cols` of a row to `each` to be written, in parts from left to right.
    pub(crate) fn write(
        &self,
        row: usize,
        cols: Range<usize>,
        mut each: impl FnMut(Output<'_>),
    ) -> Result<(), Held> {
        for (index, part) in self.parts(row, cols) {
            let mut cell = self.cells[index].try_write().map_err(|_| Held(row))?;
            each(cell.view_mut().slice(part));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_back_through_any_bands() {
        for band in 1..=9 {
            let sheet = Sheet::zeroed(Element::F32, 3, 7, band);
            let row: Vec<f32> = (0..5).map(|x| x as f32).collect();
            let mut rest = row.as_slice();
            sheet
                .write(1, 1..6, |part| {
                    let (here, behind) = rest.split_at(part.len());
                    part.store(here);
                    rest = behind;
                })
                .expect("no lock is held");
            let mut seen = Vec::new();
            for row in 0..3 {
                sheet
                    .read(row, 0..7, |part| {
                        let mut values = vec![0.0; part.len()];
                        part.load(&mut values);
                        seen.extend(values);
                        Ok(())
                    })
                    .expect("no lock is held");
            }
            let mut expected = vec![0.0; 21];
            expected[8..13].copy_from_slice(&row);
            assert_eq!(seen, expected, "band {band}");
        }
    }

    #[test]
    fn a_cell_that_is_being_read_cannot_be_written() {
        let sheet = Sheet::zeroed(Element::Bf16, 2, 8, 4);
        let inner = sheet.read(1, 0..4, |_| {
            assert_eq!(sheet.write(1, 4..8, |_| ()), Ok(()), "the other band is free");
            sheet.write(1, 2..6, |_| ())
        });
        assert_eq!(inner, Err(Held(1)));
    }
}
