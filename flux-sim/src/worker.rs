//! What one agent computes: its tiles, and where they go.

use crate::epilogue::{Epilogue, Tile, Tiles, cast};
use crate::error::Fault;
use crate::memory::{Located, Memory};
use crate::product::{Before, Matrix, multiply};
use flux_ir::Element;
use flux_ir::eval::{Loads, Region, TileRange};
use flux_ir::program::{Transposed, ValueId};

/// An agent's tiles and scratch, reused from tile to tile.
#[derive(Debug)]
pub(crate) struct Worker<'m, 'a> {
    memory: &'m Memory<'a>,
    /// The visit that the accumulators belong to, and what they sum over so far.
    visit: Option<u32>,
    reduced: usize,
    accumulators: Vec<Tile>,
    sum: Tile,
    lhs: Operand,
    rhs: Vec<Operand>,
    epilogue: Epilogue,
}

/// An operand converted to f32.
#[derive(Debug, Default)]
struct Operand {
    /// What it was converted from, while that is known to be unchanged.
    from: Option<Region>,
    /// Whether that cannot change during a launch.
    is_input: bool,
    data: Vec<f32>,
}

impl<'m, 'a> Worker<'m, 'a> {
    pub(crate) fn new(memory: &'m Memory<'a>) -> Self {
        Worker {
            memory,
            visit: None,
            reduced: 0,
            accumulators: Vec::new(),
            sum: Tile::default(),
            lhs: Operand::default(),
            rhs: Vec::new(),
            epilogue: Epilogue::default(),
        }
    }

    /// Computes the accumulators of a tile; adds to them where an earlier slice of the same visit
    /// has begun them. Behind a whole reduction another one begins.
    pub(crate) fn mainloop(
        &mut self,
        (tile, visit): (&TileRange, u32),
        products: &[(Region, Region, Transposed)],
    ) -> Result<(), Fault> {
        let is_same = self.visit.replace(visit) == Some(visit);
        let depth = |(a, _, turned): &(Region, Region, Transposed)| {
            let all = self.memory.extent_of(a);
            (turned.left(a.rows.len(), a.cols.len()).1, turned.left(all[0], all[1]).1)
        };
        let (slice, all) = products.first().map_or((0, 0), depth);
        let goes_on = is_same && (slice == 0 || self.reduced < all);
        self.reduced = if goes_on { self.reduced + slice } else { slice };
        self.accumulators.resize_with(products.len(), Tile::default);
        self.rhs.resize_with(self.rhs.len().max(products.len()), Operand::default);
        // Products of one tile may share the left operand; the next tile may find new rows in it.
        self.lhs.forget_workspace();
        let outputs = self.accumulators.iter_mut().zip(&mut self.rhs);
        for ((accumulator, rhs), (a, b, transposed)) in outputs.zip(products) {
            rhs.forget_workspace();
            let (m, k) = transposed.left(a.rows.len(), a.cols.len());
            let (n, depth) = transposed.right(b.rows.len(), b.cols.len());
            if (m, n) != (tile.rows.len(), tile.cols.len()) || k != depth {
                return Err(Fault::Malformed(format!(
                    "expected the product of a tile of {} x {}, found {m} x {k} by {depth} x {n}",
                    tile.rows.len(),
                    tile.cols.len(),
                )));
            }
            let before = if goes_on { Before::Kept } else { Before::Lost };
            if before == Before::Lost {
                accumulator.reshape(tile.rows.clone(), tile.cols.clone());
            }
            if m == 0 || n == 0 || k == 0 {
                if before == Before::Lost {
                    accumulator.data.fill(0.0);
                }
                continue;
            }
            let (left, right) = (self.memory.locate(a)?, self.memory.locate(b)?);
            let left = self.lhs.matrix(self.memory, a, &left)?;
            let right = rhs.matrix(self.memory, b, &right)?;
            let left = if transposed.a { left.t() } else { left };
            let right = if transposed.b { right.t() } else { right };
            if !multiply(&mut accumulator.data, before, left, right, 1) {
                return Err(Fault::Malformed(format!("{m} x {k} by {k} x {n} is no product")));
            }
        }
        Ok(())
    }

    /// Evaluates `value` in the region `to` and hands its rows, counted from 0, to `each`.
    pub(crate) fn evaluate(
        &mut self,
        value: ValueId,
        to: &Region,
        loads: &Loads,
        each: impl FnMut(usize, &[f32]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let tiles = Tiles { accumulators: &self.accumulators, sum: &self.sum, loads };
        let (rows, cols) = (to.rows.clone(), to.cols.clone());
        self.epilogue.evaluate(self.memory, tiles, value, rows, cols, each)
    }

    /// Writes `value` to the region `to`, or adds it to what lies there.
    pub(crate) fn store(
        &mut self,
        (value, adds): (ValueId, bool),
        to: &Region,
        loads: &Loads,
    ) -> Result<(), Fault> {
        let memory = self.memory;
        let place = memory.locate(to)?;
        self.evaluate(value, to, loads, |row, values| match adds {
            true => memory.add(&place, row, values),
            false => memory.store(&place, row, values),
        })
    }

    /// Sums contributions in the order of ranks: those at `from`, and `own` in its place, rounded as
    /// the others were. Without any of them the sum is `own` in the whole tile.
    pub(crate) fn sum(
        &mut self,
        tile: &TileRange,
        (own, element, loads): (ValueId, Element, &Loads),
        from: &[Region],
    ) -> Result<(), Fault> {
        let (rows, cols) = match from.first() {
            Some(region) => (region.rows.clone(), region.cols.clone()),
            None => (tile.rows.clone(), tile.cols.clone()),
        };
        let memory = self.memory;
        let places = from
            .iter()
            .map(|region| {
                if (&region.rows, &region.cols) == (&rows, &cols) {
                    memory.locate(region)
                } else {
                    Err(Fault::Malformed("expected contributions to the same rows".into()))
                }
            })
            .collect::<Result<Vec<_>, _>>()?;
        let (before, after) = places.split_at(places.len().min(memory.rank as usize));
        let width = cols.len();
        let mut sum = std::mem::take(&mut self.sum);
        sum.reshape(rows.clone(), cols.clone());
        let mut addend = vec![0.0; width];
        let tiles = Tiles { accumulators: &self.accumulators, sum: &self.sum, loads };
        let summed = self.epilogue.evaluate(memory, tiles, own, rows, cols, |row, values| {
            let total = &mut sum.data[row * width..][..width];
            // What adds nothing, not even a sign to a zero.
            total.fill(-0.0);
            let mut add = |addend: &[f32]| {
                total.iter_mut().zip(addend).for_each(|(total, addend)| *total += addend);
            };
            for place in before {
                memory.load(place, row, 0..width, &mut addend)?;
                add(&addend);
            }
            cast(element, values, &mut addend);
            add(&addend);
            for place in after {
                memory.load(place, row, 0..width, &mut addend)?;
                add(&addend);
            }
            Ok(())
        });
        self.sum = sum;
        summed
    }
}

impl Operand {
    /// Forgets what may have changed since the last tile.
    fn forget_workspace(&mut self) {
        if !self.is_input {
            self.from = None;
        }
    }

    /// The region as a matrix of f32: in place where it can be, else converted.
    fn matrix<'s, 'a: 's>(
        &'s mut self,
        memory: &Memory<'a>,
        region: &Region,
        place: &Located<'_, 'a>,
    ) -> Result<Matrix<'s>, Fault> {
        let (rows, cols) = place.extent();
        let matrix = match place.in_place() {
            Some((data, pitch)) => Matrix::new(data, rows, cols, pitch),
            None => {
                if self.from.as_ref() != Some(region) {
                    self.from = None;
                    self.data.resize(rows * cols, 0.0);
                    for (row, into) in self.data.chunks_exact_mut(cols.max(1)).enumerate() {
                        memory.load(place, row, 0..cols, into)?;
                    }
                    self.from = Some(region.clone());
                    self.is_input = place.is_input();
                }
                Matrix::new(&self.data, rows, cols, cols)
            }
        };
        matrix.ok_or_else(|| Fault::Malformed(format!("{rows} x {cols} leave their memory")))
    }
}
