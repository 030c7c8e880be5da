//! The epilogue of a tile: which box of 16 rows and up to 64 columns is stored when.
//!
//! Stores that follow each other share one walk over the boxes, with the outputs inside, so that
//! no more than one box of values is ever live beside the accumulators.

use super::Kernel;
use super::consumer::Fragment;
use super::store::Output;
use super::value::Memo;
use crate::context::{Int, Is};
use crate::error::Error;
use crate::plan::{MMA_M, PANEL};
use flux_ir::Element;
use flux_ir::abi::BOX_ROWS;
use flux_ir::program::{At, Place, Stmt, ValueId, VarId};

/// A finished tile, as one warp sees it.
#[derive(Clone)]
pub(super) struct Tile<'c> {
    pub(super) fragment: Fragment<'c>,
    /// The warp's first row of block 0, in the whole output.
    row: Int<'c>,
    /// The tile's first column.
    column: Int<'c>,
}

/// The sum that the stores behind it may use.
#[derive(Clone, Copy)]
pub(super) struct Sum<'p> {
    pub(super) var: VarId,
    pub(super) own: ValueId,
    pub(super) from: &'p Place,
}

/// The part of the output that stores write.
#[derive(Clone, Copy)]
pub(super) struct Window<'c> {
    pub(super) row_lo: Int<'c>,
    pub(super) row_hi: Int<'c>,
    pub(super) col_lo: Int<'c>,
    pub(super) col_hi: Int<'c>,
}

/// A box of a warp: 16 rows, up to 64 columns.
pub(super) struct Slab<'c> {
    /// Block of 64 rows.
    pub(super) block: usize,
    /// Its first register in the block's list.
    pub(super) register: usize,
    /// Its columns, a multiple of 8.
    pub(super) width: u32,
    pub(super) row: Int<'c>,
    pub(super) column: Int<'c>,
    pub(super) window: Window<'c>,
}

impl Slab<'_> {
    /// Lanes in a row that take its 16-byte pieces of 16-bit elements: a power of two of them, and no fewer
    /// than leave the warp 16 rows.
    pub(super) const fn lanes(&self) -> u32 {
        let lanes = (self.width / 8).next_power_of_two();
        if lanes < 32 / BOX_ROWS { 32 / BOX_ROWS } else { lanes }
    }
}

/// A store of the Program.
#[derive(Clone, Copy)]
pub(super) struct Stored<'p> {
    pub(super) stmt: &'p Stmt,
    pub(super) to: &'p Place,
    pub(super) value: ValueId,
    pub(super) adds: bool,
}

impl<'c, 'p> Kernel<'c, 'p> {
    /// Keeps the accumulators of a tile for the statements behind the mainloop.
    pub(super) fn begin_tile(&self, group: Int<'c>, fragment: Fragment<'c>) -> Result<(), Error> {
        let cx = &self.cx;
        let in_group = cx.mul(cx.and(self.warp, cx.int(3)), cx.uint(BOX_ROWS));
        let in_tile = cx.add(cx.mul(group, cx.uint(self.group_rows())), in_group);
        let row = cx.add(self.expr(&self.plan.origin[0])?, in_tile);
        let mut column = self.expr(&self.plan.origin[1])?;
        if self.program.split_k > 1 {
            column = cx.add(column, cx.mul(self.part(), cx.uint(self.plan.columns)));
        }
        *self.tile.borrow_mut() = Some(Tile { fragment, row, column });
        Ok(())
    }

    pub(super) fn tile(&self) -> Tile<'c> {
        self.tile.borrow().clone().expect("stores stand behind the mainloop")
    }

    /// Stores that follow each other.
    pub(super) fn stores(&self, stores: &[Stored<'p>], sum: Option<Sum<'p>>) -> Result<(), Error> {
        let alike = |Stored { to: a, .. }: &Stored, Stored { to: b, .. }: &Stored| {
            a.rows == b.rows && a.cols == b.cols && is_peer(a) == is_peer(b)
        };
        self.takes_once(stores.chunk_by(alike), sum)?;
        for run in stores.chunk_by(alike) {
            let Stored { stmt, to: place, .. } = run[0];
            self.span.set(stmt.span);
            if is_peer(place) {
                // After an abort a peer must not take garbage for data.
                let live = self.cx.is(self.cx.get(self.aborted), Is::Eq, self.cx.int(0));
                self.cx.when(live, || self.run(run, sum))?;
            } else {
                self.run(run, sum)?;
            }
        }
        Ok(())
    }

    /// Stores of one window.
    fn run(&self, run: &[Stored<'p>], sum: Option<Sum<'p>>) -> Result<(), Error> {
        let cx = &self.cx;
        let place = run[0].to;
        let window = Window {
            row_lo: self.expr(&place.rows.lo)?,
            row_hi: self.expr(&place.rows.hi)?,
            col_lo: self.expr(&place.cols.lo)?,
            col_hi: self.expr(&place.cols.hi)?,
        };
        let outputs =
            run.iter().map(|store| self.output(*store)).collect::<Result<Vec<_>, Error>>()?;
        let tile = self.tile();
        for block in 0..self.plan.m_blocks {
            let row = cx.add(tile.row, cx.uint(block * MMA_M));
            let inside = overlaps(self, row, BOX_ROWS, window.row_lo, window.row_hi);
            cx.when(inside, || {
                for from in (0..self.plan.columns).step_by(PANEL as usize) {
                    let width = PANEL.min(self.plan.columns - from);
                    let column = cx.add(tile.column, cx.uint(from));
                    let register = from as usize / 2;
                    let block = block as usize;
                    let slab = Slab { block, register, width, row, column, window };
                    let inside = overlaps(self, column, width, window.col_lo, window.col_hi);
                    cx.when(inside, || self.slab(&slab, &outputs, sum))?;
                }
                Ok::<(), Error>(())
            })?;
        }
        Ok(())
    }

    fn slab(
        &self,
        slab: &Slab<'c>,
        outputs: &[Output<'c>],
        sum: Option<Sum<'p>>,
    ) -> Result<(), Error> {
        let mut memo: Memo = vec![None; self.program.values.len()];
        for output in outputs {
            self.span.set(output.span);
            let values = self.value(output.value, slab, &mut memo, sum)?;
            self.write(output, slab, &values)?;
        }
        Ok(())
    }

    /// Whether some output of this kernel leaves through bulk stores.
    pub(super) fn stores_in_bulk(&self) -> bool {
        let boxes = self.plan.abi.maps.iter().filter(|map| map.box_rows == BOX_ROWS);
        let mut outputs = boxes.map(|map| &self.program.buffers[map.buffer]);
        self.plan.columns.is_multiple_of(PANEL)
            && outputs.any(|buffer| {
                buffer.element != Element::F32 && buffer.kind != flux_ir::program::BufferKind::Input
            })
    }
}

pub(super) fn is_peer(place: &Place) -> bool {
    place.at != At::Own
}

/// Whether `from..from + length` meets `lo..hi`.
fn overlaps<'c>(
    kernel: &Kernel<'c, '_>,
    from: Int<'c>,
    length: u32,
    lo: Int<'c>,
    hi: Int<'c>,
) -> Int<'c> {
    let cx = &kernel.cx;
    let end = cx.add(from, cx.uint(length));
    cx.and(cx.is(from, Is::Lt, hi), cx.is(lo, Is::Lt, end))
}
