//! Results of all ways, compared before their times count.

use super::kind::Behind;
use super::ways::{Reshape, Ways};
use crate::device::Number;
use crate::device::fused::Operator;
use crate::device::link::Dense;
use crate::device::operands::{exact_density, require_same, span, sum_bound};
use crate::error::Error;
use crate::kernels::Plain;
use crate::stage::stage;
use flux::Tensor;
use flux_runtime::Span;
use flux_runtime::numbers::Bound;
use std::ops::Range;

impl<T: Number + Plain> Ways<'_, T> {
    /// Computes it in every way and compares all elements; overwrites the operands. Gives the largest
    /// difference on normal data.
    pub(super) fn check_on_normal_data_and_integers(&self) -> Result<f32, Error> {
        let (k, world) = (self.extents.product.k, self.site.rank.world_size() as usize);
        let sums = matches!(self.kind.behind(), Behind::Scatter | Behind::Reduce);
        let terms = match (sums, self.kind.is_collective()) {
            (true, true) => world,
            (true, false) => k * world,
            (false, _) => k,
        };
        let mut bound = sum_bound::<T>(terms);
        if sums {
            // Contributions are rounded before they are summed, each at six standard deviations at
            // most, and so are the sums of the reference.
            bound.absolute += (world + 1) as f32 * 0.5 * T::ULP * 6.0 * (terms as f32).sqrt();
        }
        let largest = self.check_all("normal data", bound)?;
        let density = if self.kind.is_collective() { 1.0 } else { exact_density(terms) };
        for (number, operand) in [span(&self.a)?, span(&self.b[0])?].into_iter().enumerate() {
            let seed = 10 * u64::from(self.site.rank.index()) + number as u64;
            self.site.numbers.integers(self.main(), operand, seed, density)?;
        }
        self.check_all("small integers", Bound::EXACT)?;
        Ok(largest)
    }

    /// Where rows of baselines' result in `chunks` chunks are those of the reference: pieces of both.
    fn pieces(&self, chunks: u32) -> Vec<[Range<usize>; 2]> {
        let world = self.site.rank.world_size() as usize;
        let (m, index) = (self.extents.product.m, self.site.rank.index() as usize);
        let chunk = m / chunks as usize;
        let part = chunk / world;
        let range = |start: usize| start..start + part;
        (0..chunks as usize)
            .flat_map(|at| match self.kind.behind() {
                // A chunk holds a part of each rank's rows.
                Behind::Nothing => (0..world)
                    .map(|of| [range(at * chunk + of * part), range(of * m / world + at * part)])
                    .collect(),
                Behind::Scatter => vec![[range(at * part), range(at * chunk + index * part)]],
                _ => vec![[at * chunk..(at + 1) * chunk, at * chunk..(at + 1) * chunk]],
            })
            .collect()
    }

    fn poison(&self, tensor: &Tensor<T>) -> Result<(), Error> {
        Ok(self.main().fill_u8(span(tensor)?, 0xff)?)
    }

    fn check(
        &self,
        who: &str,
        data: &'static str,
        found: Span<'_>,
        expected: Span<'_>,
        bound: Bound,
    ) -> Result<f32, Error> {
        let what = (who, self.shape, data);
        require_same(&self.site.numbers, self.main(), what, found, expected, bound)
    }

    /// The reference: operands that NCCL brings, a product whose sums stay in f32, and NCCL again.
    fn refer(&self) -> Result<(), Error> {
        let (nccl, main, reference) = (&self.site.nccl, self.main(), span(&self.reference)?);
        let Some((_, products)) = &self.product else {
            self.none(0)?;
            return Ok(main.copy(reference, span(&self.d)?)?);
        };
        self.bring(0)?;
        let (left, right) = self.operands(0)?;
        let partial = self.partial.borrow();
        let partial = span(&partial)?;
        match self.kind.behind() {
            Behind::Nothing => products.reference(main, left, right, reference),
            Behind::Exchange => {
                let blocks = span(&self.blocks)?;
                products.reference(main, left, right, partial)?;
                self.reshape(partial, blocks, Reshape::ColumnsToBlocks)?;
                Ok(nccl.all_to_all(main, reference, blocks)?)
            }
            Behind::Scatter | Behind::Reduce => {
                products.reference(main, left, right, partial)?;
                nccl.all_reduce(main, span(&self.whole)?, partial, T::ELEMENT)?;
                self.own_of_whole()
            }
        }
    }

    /// A rank's part of the whole sum.
    fn own_of_whole(&self) -> Result<(), Error> {
        let (whole, reference) = (span(&self.whole)?, span(&self.reference)?);
        let offset = match self.kind.behind() {
            Behind::Scatter => u64::from(self.site.rank.index()) * reference.bytes(),
            _ => 0,
        };
        Ok(self.main().copy(reference, whole.part(offset, reference.bytes())?)?)
    }

    /// Every way of computing it against the reference.
    fn check_all(&self, data: &'static str, bound: Bound) -> Result<f32, Error> {
        stage(format_args!("results on {data}"));
        self.refer()?;
        let mut largest = 0.0f32;
        for (which, choice) in self.site.choices.iter().enumerate() {
            self.poison(&self.c.borrow()[0])?;
            self.fused(which, 0)?;
            self.site.rank.synchronize()?;
            let outputs = self.c.borrow();
            let (found, expected) = (span(&outputs[0])?, span(&self.reference)?);
            let who = format!("{}, {choice}", self.kind);
            largest = largest.max(self.check(&who, data, found, expected, bound)?);
        }
        if bound == Bound::EXACT {
            self.check_baselines(data)?;
        }
        Ok(largest)
    }

    /// Baselines round each contribution and their sums as they like, so they are compared where
    /// nothing is rounded.
    fn check_baselines(&self, data: &'static str) -> Result<(), Error> {
        self.poison(&self.d)?;
        self.none(0)?;
        self.check("no overlap", data, span(&self.d)?, span(&self.reference)?, Bound::EXACT)?;
        let reference = match self.kind.behind() {
            Behind::Scatter => span(&self.whole)?,
            _ => span(&self.reference)?,
        };
        let row_bytes = (size_of::<T>() * self.extents.product.n) as u64;
        let (d, reference) =
            (Dense { span: span(&self.d)?, row_bytes }, Dense { span: reference, row_bytes });
        for chunks in self.chunk_counts() {
            self.poison(&self.d)?;
            self.chunked(chunks, 0)?;
            let who = format!("{chunks} chunks");
            for [found, expected] in self.pieces(chunks) {
                let (found, expected) = (d.rows(found)?, reference.rows(expected)?);
                self.check(&who, data, found, expected, Bound::EXACT)?;
            }
        }
        Ok(())
    }
}
