//! One operator on one rank in all the ways that are compared, its peers at the same work.

use super::kind::{Ahead, Behind, Extents, Kind, Side};
use crate::device::fused::{Operator, Products};
use crate::device::link::{Dense, Link, parts};
use crate::device::operands::{normal, sets, span};
use crate::device::{LIMIT, Number};
use crate::error::Error;
use crate::kernels::{Choice, Plain, PlainKernel};
use crate::shapes::Dims;
use crate::stage::stage;
use flux::{Rank, Tensor};
use flux_runtime::blas::{Blas, Gemm, GemmShape};
use flux_runtime::nccl::Nccl;
use flux_runtime::numbers::Numbers;
use flux_runtime::{Rows, Span, Stream};
use std::cell::RefCell;
use std::sync::Arc;

/// Chunks that NCCL and cuBLASLt take turns with; the best count is told.
const CHUNKS: [u32; 3] = [2, 4, 8];

/// Runs of each algorithm when the library's best is looked for.
const TUNING_RUNS: u32 = 5;

/// What one rank brings to all shapes.
#[derive(Debug)]
pub(crate) struct Site<'r> {
    pub(crate) rank: &'r Rank,
    pub(crate) nccl: Nccl,
    pub(crate) blas: Arc<Blas>,
    pub(crate) numbers: Numbers,
    pub(crate) link: Link,
    /// How the fused kernel runs, and further ways beside it.
    pub(crate) choices: Vec<Choice>,
}

/// Which way [`Ways::reshape`] copies.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reshape {
    BlocksToColumns,
    ColumnsToBlocks,
}

/// One shape of one operator.
pub(crate) struct Ways<'s, T> {
    pub(super) site: &'s Site<'s>,
    pub(super) kind: Kind,
    pub(super) shape: Dims,
    pub(super) extents: Extents,
    fused: Vec<PlainKernel<T>>,
    /// Our product alone, and cuBLASLt's; of collectives there is none.
    pub(super) product: Option<(PlainKernel<T>, Products)>,
    /// cuBLASLt's product of as many columns as one rank gets.
    columns: Option<RefCell<Gemm>>,
    pub(super) a: Tensor<T>,
    pub(super) b: Vec<Tensor<T>>,
    pub(super) c: RefCell<Vec<Tensor<T>>>,
    /// What baselines have gathered or exchanged before a product.
    arrived: Tensor<T>,
    /// What baselines exchange, the part of each rank behind that of the one before.
    pub(super) blocks: Tensor<T>,
    /// What baselines multiply before they communicate.
    pub(super) partial: RefCell<Tensor<T>>,
    /// Results of baselines, and what all are compared with.
    pub(super) d: Tensor<T>,
    pub(super) reference: Tensor<T>,
    /// Of sums, all rows: chunks of baselines hold others than a rank's own.
    pub(super) whole: Tensor<T>,
}

impl<'s, T: Number + Plain> Ways<'s, T> {
    pub(crate) fn new(site: &'s Site<'s>, kind: Kind, shape: Dims) -> Result<Self, Error> {
        let Site { rank, numbers, link, .. } = site;
        let world = rank.world_size() as usize;
        if !kind.is_even(shape, world) {
            return Err(Error::Shards { shape, world: rank.world_size() });
        }
        let extents = kind.extents(shape, world);
        let Extents { a, b, c, product, arrived, blocks, whole } = extents;
        stage(format_args!("{kind}, {shape}: operands"));
        let bytes = size_of::<T>() * (b[0] * b[1] + c[0] * c[1]);
        let sets = sets(bytes as u64, link.main.device().properties().l2_bytes);
        // Every rank draws numbers of its own.
        let seed = 1000 * u64::from(rank.index());
        let draw = |extents, number| normal(rank, numbers, &link.main, extents, seed + number);
        let a = draw(a, 100)?;
        let b = (0..sets as u64).map(|set| draw(b, 200 + set)).collect::<Result<Vec<_>, _>>()?;
        let zeros = |[rows, cols]: [usize; 2]| rank.zeros::<T>(rows, cols);
        let mut outputs = (0..sets).map(|_| zeros(c)).collect::<Result<Vec<_>, _>>()?;
        let fused = load(site, kind, (&a, &b[0], &mut outputs[0]))?;
        let (product_of, columns) = match kind.is_collective() {
            true => (None, None),
            false => {
                let (ours, blas, columns) = products(site, kind, product)?;
                (Some((ours, blas)), columns)
            }
        };
        let ways = Ways {
            site,
            kind,
            shape,
            extents,
            fused,
            product: product_of,
            columns: columns.map(RefCell::new),
            a,
            b,
            c: RefCell::new(outputs),
            arrived: zeros(arrived)?,
            blocks: zeros(blocks)?,
            partial: RefCell::new(zeros([product.m, product.n])?),
            d: zeros(c)?,
            reference: zeros(c)?,
            whole: zeros(whole)?,
        };
        ways.warm_up()?;
        Ok(ways)
    }

    /// Chooses algorithms, and runs each baseline once: NCCL connects ranks at its first use, which a
    /// closed gate must not see, and libraries load code.
    fn warm_up(&self) -> Result<(), Error> {
        stage("choice of cuBLASLt's algorithms");
        self.tune()?;
        stage("first runs of baselines");
        self.none(0)?;
        for chunks in self.chunk_counts() {
            self.chunked(chunks, 0)?;
        }
        self.ours(0)?;
        Ok(self.main().synchronize(LIMIT)?)
    }

    pub(super) fn main(&self) -> &Stream {
        &self.site.link.main
    }

    /// Finds the fastest algorithms of cuBLASLt, on what is multiplied.
    fn tune(&self) -> Result<(), Error> {
        let Some((_, products)) = &self.product else { return Ok(()) };
        self.bring(0)?;
        let (left, right) = self.operands(0)?;
        let partial = self.partial.borrow();
        let c = span(&partial)?;
        let Dims { m, k, .. } = self.extents.product;
        // Operands whose rows are no rows of the result are multiplied whole.
        let row_bytes = if self.kind.has_chunks() { (size_of::<T>() * k) as u64 } else { 0 };
        products.tune(self.main(), |rows| {
            let whole = rows.len() == m;
            let left =
                if whole { left } else { Dense { span: left, row_bytes }.rows(rows.clone())? };
            Ok((left, right, c))
        })?;
        if let Some(columns) = &self.columns {
            let part = right.part(0, right.bytes() / u64::from(self.site.rank.world_size()))?;
            columns.borrow_mut().tune(self.main(), left, part, c, TUNING_RUNS, LIMIT)?;
        }
        Ok(self.main().synchronize(LIMIT)?)
    }

    /// The product's operands as baselines have them once all that is communicated ahead is there.
    pub(super) fn operands(&self, set: usize) -> Result<(Span<'_>, Span<'_>), Error> {
        let (a, b, arrived) = (span(&self.a)?, span(&self.b[set])?, span(&self.arrived)?);
        Ok(match self.kind.ahead() {
            Ahead::Nothing => (a, b),
            Ahead::Gather(Side::Left) | Ahead::Exchange => (arrived, b),
            Ahead::Gather(Side::Right) => (a, arrived),
        })
    }

    /// Communicates what is needed ahead of the product, or all that a collective is.
    pub(super) fn bring(&self, set: usize) -> Result<(), Error> {
        let (nccl, main, a) = (&self.site.nccl, self.main(), span(&self.a)?);
        let to = span(if self.kind.is_collective() { &self.d } else { &self.arrived })?;
        match self.kind.ahead() {
            Ahead::Nothing => Ok(()),
            Ahead::Gather(Side::Left) => Ok(nccl.all_gather(main, to, a)?),
            Ahead::Gather(Side::Right) => Ok(nccl.all_gather(main, to, span(&self.b[set])?)?),
            Ahead::Exchange => {
                let blocks = span(&self.blocks)?;
                nccl.all_to_all(main, blocks, a)?;
                self.reshape(blocks, to, Reshape::BlocksToColumns)
            }
        }
    }

    /// Copies between blocks that stand one behind the other and columns beside each other.
    pub(super) fn reshape(&self, from: Span<'_>, to: Span<'_>, how: Reshape) -> Result<(), Error> {
        let world = u64::from(self.site.rank.world_size());
        let block_bytes = from.bytes() / world;
        let rows = self.extents.product.m as u64;
        let width = block_bytes / rows;
        let pitch = world * width;
        let (blocks, columns) = match how {
            Reshape::BlocksToColumns => (from, to),
            Reshape::ColumnsToBlocks => (to, from),
        };
        for block in 0..world {
            let packed = blocks.part(block * block_bytes, block_bytes)?;
            let beside = columns.part(block * width, columns.bytes() - block * width)?;
            let packed = Rows { span: packed, pitch_bytes: width };
            let beside = Rows { span: beside, pitch_bytes: pitch };
            let (to, from) = match how {
                Reshape::BlocksToColumns => (beside, packed),
                Reshape::ColumnsToBlocks => (packed, beside),
            };
            self.main().copy_2d(to, from, width, rows)?;
        }
        Ok(())
    }

    /// Multiplies into what is communicated afterwards, or into the result.
    pub(super) fn multiply(&self, set: usize) -> Result<(), Error> {
        let Some((_, products)) = &self.product else { return Ok(()) };
        let (left, right) = self.operands(set)?;
        let partial = self.partial.borrow();
        let out = match self.kind.behind() {
            Behind::Nothing => span(&self.d)?,
            Behind::Scatter | Behind::Reduce => span(&partial)?,
            Behind::Exchange => return self.multiply_columns(left, right, span(&self.blocks)?),
        };
        products.run(1, 0, self.main(), left, right, out)
    }

    /// The columns of each rank in a block of their own, which can be sent as it is.
    fn multiply_columns(
        &self,
        left: Span<'_>,
        right: Span<'_>,
        out: Span<'_>,
    ) -> Result<(), Error> {
        let Some(columns) = &self.columns else { return Ok(()) };
        let world = u64::from(self.site.rank.world_size());
        let (columns, b, c) = (columns.borrow(), right.bytes() / world, out.bytes() / world);
        (0..world).try_for_each(|block| {
            let (right, out) = (right.part(block * b, b)?, out.part(block * c, c)?);
            Ok(columns.run(self.main(), left, right, out)?)
        })
    }

    /// Communicates what was multiplied, or what a collective is given.
    fn hand_on(&self) -> Result<(), Error> {
        let (nccl, main, d) = (&self.site.nccl, self.main(), span(&self.d)?);
        let partial = self.partial.borrow();
        let from = span(if self.kind.is_collective() { &self.a } else { &partial })?;
        match self.kind.behind() {
            Behind::Nothing => Ok(()),
            Behind::Scatter => Ok(nccl.reduce_scatter(main, d, from, T::ELEMENT)?),
            Behind::Reduce => Ok(nccl.all_reduce(main, d, from, T::ELEMENT)?),
            Behind::Exchange => {
                let blocks = span(&self.blocks)?;
                if self.kind.is_collective() {
                    self.reshape(from, blocks, Reshape::ColumnsToBlocks)?;
                }
                Ok(nccl.all_to_all(main, d, blocks)?)
            }
        }
    }

    /// Bytes of a row of the left operand, and of the result.
    fn rows_of(&self, left: Span<'_>) -> (u64, u64) {
        let Dims { m, n, .. } = self.extents.product;
        (left.bytes() / m as u64, (size_of::<T>() * n) as u64)
    }

    /// Gathers rows in chunks; the product of each begins when it is there.
    fn gather_in_chunks(&self, products: &Products, chunks: u32, set: usize) -> Result<(), Error> {
        let Site { link, nccl, .. } = self.site;
        let (own, arrived, d) = (span(&self.a)?, span(&self.arrived)?, span(&self.d)?);
        let (row_bytes, out_bytes) = self.rows_of(arrived);
        let right = span(&self.b[set])?;
        let m = self.extents.product.m;
        let own_parts = parts(self.a.rows(), chunks).unwrap_or_default();
        for (index, rows) in parts(m, chunks).unwrap_or_default().into_iter().enumerate() {
            let left = Dense { span: arrived, row_bytes }.rows(rows.clone())?;
            let part = Dense { span: own, row_bytes }.rows(own_parts[index].clone())?;
            nccl.all_gather(&link.out, left, part)?;
            let stream = link.product(index);
            link.order(&link.out, stream)?;
            let out = Dense { span: d, row_bytes: out_bytes }.rows(rows)?;
            products.run(chunks, index, stream, left, right, out)?;
        }
        Ok(())
    }

    /// Multiplies rows in chunks; the sum of each begins when it is there.
    fn sum_in_chunks(&self, products: &Products, chunks: u32, set: usize) -> Result<(), Error> {
        let Site { link, nccl, .. } = self.site;
        let (left, right, d) = (span(&self.a)?, span(&self.b[set])?, span(&self.d)?);
        let (row_bytes, out_bytes) = self.rows_of(left);
        let partial = self.partial.borrow();
        let partial = Dense { span: span(&partial)?, row_bytes: out_bytes };
        let d = Dense { span: d, row_bytes: out_bytes };
        let m = self.extents.product.m;
        let own_parts = parts(self.d.rows(), chunks).unwrap_or_default();
        for (index, rows) in parts(m, chunks).unwrap_or_default().into_iter().enumerate() {
            let stream = link.product(index);
            let (left, out) =
                (Dense { span: left, row_bytes }.rows(rows.clone())?, partial.rows(rows)?);
            products.run(chunks, index, stream, left, right, out)?;
            link.order(stream, &link.out)?;
            let to = d.rows(own_parts[index].clone())?;
            match self.kind.behind() {
                Behind::Reduce => nccl.all_reduce(&link.out, to, out, T::ELEMENT)?,
                _ => nccl.reduce_scatter(&link.out, to, out, T::ELEMENT)?,
            }
        }
        Ok(())
    }
}

/// Loads the fused kernel under every choice, and launches each once.
fn load<T: Number>(
    site: &Site<'_>,
    kind: Kind,
    (a, b, c): (&Tensor<T>, &Tensor<T>, &mut Tensor<T>),
) -> Result<Vec<PlainKernel<T>>, Error> {
    let load = match kind.is_collective() {
        true => PlainKernel::of_collective,
        false => PlainKernel::of_definition,
    };
    let kernels = site.choices.iter().map(|choice| {
        stage(format_args!("first launch of {kind}, {choice}"));
        let kernel: PlainKernel<T> = load(site.rank, kind.definition(), choice)?;
        kernel.launch(a, b, c)?;
        site.rank.synchronize()?;
        Ok(kernel)
    });
    kernels.collect()
}

/// Our product, cuBLASLt's, and cuBLASLt's of one rank's columns where columns are exchanged.
fn products<T: Number + Plain>(
    site: &Site<'_>,
    kind: Kind,
    product: Dims,
) -> Result<(PlainKernel<T>, Products, Option<Gemm>), Error> {
    let ours = T::load_as(site.rank, kind.layout(), None)?;
    let chunks: &[u32] = if kind.has_chunks() { &CHUNKS } else { &[] };
    let blas = Products::new(&site.blas, chunks, kind.layout(), product, T::ELEMENT)?;
    let columns = GemmShape {
        m: product.m as u64,
        n: product.n as u64 / u64::from(site.rank.world_size()),
        k: product.k as u64,
        element: T::ELEMENT,
        alignment: 16,
    };
    let exchanges = kind.behind() == Behind::Exchange;
    Ok((ours, blas, exchanges.then(|| site.blas.gemm(columns)).transpose()?))
}

impl<T: Number + Plain> Operator for Ways<'_, T> {
    fn sets(&self) -> usize {
        self.b.len()
    }

    fn chunk_counts(&self) -> Vec<u32> {
        let Some((_, products)) = &self.product else { return Vec::new() };
        let world = self.site.rank.world_size() as usize;
        let even = |chunks: &u32| self.extents.product.m.is_multiple_of(*chunks as usize * world);
        products.chunk_counts().into_iter().filter(even).collect()
    }

    fn blas(&self, set: usize) -> Result<(), Error> {
        let Some((_, products)) = &self.product else { return Ok(()) };
        let (left, right) = self.operands(set)?;
        let partial = self.partial.borrow();
        products.run(1, 0, self.main(), left, right, span(&partial)?)
    }

    fn ours(&self, set: usize) -> Result<(), Error> {
        let Some((plain, _)) = &self.product else { return Ok(()) };
        let b = &self.b[set];
        let mut out = self.partial.borrow_mut();
        match self.kind.ahead() {
            Ahead::Nothing => plain.launch(&self.a, b, &mut out)?,
            Ahead::Gather(Side::Left) | Ahead::Exchange => {
                plain.launch(&self.arrived, b, &mut out)?;
            }
            Ahead::Gather(Side::Right) => plain.launch(&self.a, &self.arrived, &mut out)?,
        }
        Ok(())
    }

    fn comm(&self) -> Result<(), Error> {
        self.bring(0)?;
        self.hand_on()
    }

    fn none(&self, set: usize) -> Result<(), Error> {
        self.bring(set)?;
        self.multiply(set)?;
        self.hand_on()
    }

    fn chunked(&self, chunks: u32, set: usize) -> Result<(), Error> {
        let Some((_, products)) = &self.product else { return Ok(()) };
        self.site.link.fork()?;
        match self.kind.ahead() {
            Ahead::Nothing => self.sum_in_chunks(products, chunks, set)?,
            _ => self.gather_in_chunks(products, chunks, set)?,
        }
        self.site.link.join()
    }

    fn fused(&self, which: usize, set: usize) -> Result<(), Error> {
        Ok(self.fused[which].launch(&self.a, &self.b[set], &mut self.c.borrow_mut()[set])?)
    }

    fn verify(&self) -> Result<f32, Error> {
        self.check_on_normal_data_and_integers()
    }
}
