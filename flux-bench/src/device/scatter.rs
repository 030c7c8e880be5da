//! GEMM + reduce-scatter in all the ways that are compared.

use super::family::Family;
use super::fused::{Context, Operator, Products};
use super::link::{Dense, Sink, parts};
use super::operands::{baseline_bound, exact_density, normal, require_same, span, sum_bound};
use super::{LIMIT, Number};
use crate::error::Error;
use crate::kernels::{Fused, Plain, PlainKernel};
use crate::shapes::Dims;
use crate::stage::stage;
use flux::Tensor;
use flux_runtime::numbers::Bound;
use flux_runtime::{DeviceBuffer, Span};
use std::cell::RefCell;
use std::ops::Range;

/// One shape. Baselines compute the peers' rows first and the own rows last; so that these are
/// consecutive, they see the operand with the own rows (which are its first) repeated at its end.
pub(crate) struct Scatter<'c, T> {
    context: &'c Context<'c>,
    shape: Dims,
    shard: usize,
    family: Family<T>,
    plain: PlainKernel<T>,
    products: Products,
    a: Tensor<T>,
    /// The operand without its first shard, which stands at the end.
    rotated: Tensor<T>,
    b: Vec<Tensor<T>>,
    /// The own rows of the sum.
    c: RefCell<Vec<Tensor<T>>>,
    /// Baselines' own rows of the sum.
    d: Tensor<T>,
    /// What `plain` computes.
    full: RefCell<Tensor<T>>,
    /// Baselines' product, rotated as the operand.
    partial: Tensor<T>,
    reference: Tensor<T>,
    /// Contributions that arrived.
    inbox: DeviceBuffer,
    sink: Sink,
}

impl<'c, T: Number + Plain + Fused> Scatter<'c, T> {
    pub(crate) fn new(context: &'c Context<'c>, shape: Dims) -> Result<Self, Error> {
        let Dims { m, n, k } = shape;
        let Context { rank, numbers, link, .. } = context;
        let shard = context.shard(shape)?;
        stage(format_args!("{shape}: operands"));
        let sets = context.sets(size_of::<T>() * (n * k + shard * n));
        let draw = |rows, cols, seed: u64| normal(rank, numbers, &link.main, [rows, cols], seed);
        let (a, rotated) = (draw(m, k, 100)?, rank.zeros(m, k)?);
        let each = 0..sets as u64;
        let b = each.map(|set| draw(n, k, 200 + set)).collect::<Result<Vec<Tensor<T>>, _>>()?;
        let own = || rank.zeros::<T>(shard, n);
        let mut c = (0..sets).map(|_| own()).collect::<Result<Vec<_>, _>>()?;
        let (d, reference, partial, mut full) =
            (own()?, own()?, rank.zeros(m, n)?, rank.zeros(m, n)?);
        let plain = T::load(rank)?;
        let sent = (size_of::<T>() * (m - shard) * n) as u64;
        let sink = Sink::new(&context.device, context.peers, sent)?;
        let inbox = DeviceBuffer::alloc(&context.device, sent)?;
        let products = context.products(shape, T::ELEMENT)?;
        stage("first launch of our product");
        // The first launches load and allocate; what peers send is known from then on.
        plain.launch(&a, &b[0], &mut full)?;
        let family = Family::new(
            context,
            |choice| T::scatter(rank, choice),
            |kernel| kernel.launch(&a, &b[0], &mut c[0]),
        )?;
        for outbox in family.all_boxes() {
            // As large as products of this length are.
            let scale = (k as f32).sqrt();
            numbers.normal(&link.main, outbox.span(), 300 + u64::from(outbox.peer()), scale)?;
            outbox.changed();
        }
        let (c, full) = (RefCell::new(c), RefCell::new(full));
        let scatter = Scatter {
            context,
            shape,
            shard,
            family,
            plain,
            products,
            a,
            rotated,
            b,
            c,
            d,
            full,
            partial,
            reference,
            inbox,
            sink,
        };
        stage("choice of cuBLASLt's algorithms");
        scatter.rotate()?;
        let (b, partial) = (span(&scatter.b[0])?, span(&scatter.partial)?);
        let rotated = scatter.operand()?;
        scatter.products.tune(&link.main, |rows| Ok((rotated.rows(rows.clone())?, b, partial)))?;
        Ok(scatter)
    }

    fn operand(&self) -> Result<Dense<'_>, Error> {
        let row_bytes = (size_of::<T>() * self.shape.k) as u64;
        Ok(Dense { span: span(&self.rotated)?, row_bytes })
    }

    fn dense<'a>(&self, span: Span<'a>) -> Dense<'a> {
        Dense { span, row_bytes: (size_of::<T>() * self.shape.n) as u64 }
    }

    /// Makes the rotated operand, outside of any measurement.
    fn rotate(&self) -> Result<(), Error> {
        let (from, to) = (Dense { span: span(&self.a)?, ..self.operand()? }, self.operand()?);
        let (m, shard, main) = (self.shape.m, self.shard, &self.context.link.main);
        main.copy(to.rows(0..m - shard)?, from.rows(shard..m)?)?;
        main.copy(to.rows(m - shard..m)?, from.rows(0..shard)?)?;
        Ok(main.synchronize(LIMIT)?)
    }

    /// Rows of the product to their owners, and as many of the peers' to here.
    fn exchange(&self, rows: Range<usize>) -> Result<(), Error> {
        let link = &self.context.link;
        let partial = self.dense(span(&self.partial)?);
        let mut next = rows.start;
        while next < rows.end {
            // One copy for each owner.
            let end = ((next / self.shard + 1) * self.shard).min(rows.end);
            let to = self.dense(self.sink.span()).rows(next..end)?;
            link.out.copy(to, partial.rows(next..end)?)?;
            next = end;
        }
        self.family.boxes().copy_rows(
            &link.inbound,
            self.dense(self.inbox.span()),
            self.shard,
            rows,
        )
    }

    /// The sum, which needs what arrives and not what leaves.
    fn finish(&self) -> Result<(), Error> {
        let link = &self.context.link;
        link.order(&link.side, &link.main)?;
        link.order(&link.inbound, &link.main)?;
        self.sum(span(&self.d)?)?;
        link.order(&link.out, &link.main)
    }

    /// The sum of the own rows and of what arrived.
    fn sum(&self, out: Span<'_>) -> Result<(), Error> {
        let peers = self.context.rank.world_size() - 1;
        let own = self.dense(span(&self.partial)?).rows(self.peers_rows()..self.shape.m)?;
        let planes = (self.inbox.span(), out.bytes());
        Ok(self.context.numbers.sum(&self.context.link.main, out, own, planes, peers)?)
    }

    /// Rows that others own: the first ones of the rotated product.
    fn peers_rows(&self) -> usize {
        self.shape.m - self.shard
    }

    fn check(
        &self,
        who: &str,
        found: &Tensor<T>,
        data: &'static str,
        bound: Bound,
    ) -> Result<f32, Error> {
        let Context { numbers, link, .. } = self.context;
        let what = (who, self.shape, data);
        require_same(numbers, &link.main, what, span(found)?, span(&self.reference)?, bound)
    }

    /// Every way of computing it against product, exchange and sum.
    fn check_all(&self, data: &'static str, bound: Bound) -> Result<f32, Error> {
        let link = &self.context.link;
        stage(format_args!("results on {data}"));
        self.rotate()?;
        let (a, b, partial) = (span(&self.rotated)?, span(&self.b[0])?, span(&self.partial)?);
        self.products.reference(&link.main, a, b, partial)?;
        link.fork()?;
        self.exchange(0..self.peers_rows())?;
        link.join()?;
        self.sum(span(&self.reference)?)?;
        let poison = |span: Span<'_>| link.main.fill_u8(span, 0xff);
        let mut largest = 0.0f32;
        for (which, name) in self.family.names(self.context).iter().enumerate() {
            poison(span(&self.c.borrow()[0])?)?;
            self.fused(which, 0)?;
            self.context.rank.synchronize()?;
            largest = largest.max(self.check(name, &self.c.borrow()[0], data, bound)?);
        }
        let loose = baseline_bound::<T>(bound, self.shape.k);
        for chunks in std::iter::once(1).chain(self.chunk_counts()) {
            for spoiled in [span(&self.d)?, partial, self.inbox.span()] {
                poison(spoiled)?;
            }
            self.chunked(chunks, 0)?;
            self.check(&format!("cuBLASLt in {chunks} chunks"), &self.d, data, loose)?;
        }
        Ok(largest)
    }
}

impl<T: Number + Plain + Fused> Operator for Scatter<'_, T> {
    fn sets(&self) -> usize {
        self.b.len()
    }

    fn chunk_counts(&self) -> Vec<u32> {
        self.products.chunk_counts()
    }

    fn blas(&self, set: usize) -> Result<(), Error> {
        let main = &self.context.link.main;
        let (a, b, c) = (span(&self.rotated)?, span(&self.b[set])?, span(&self.partial)?);
        self.products.run(1, 0, main, a, b, c)
    }

    fn ours(&self, set: usize) -> Result<(), Error> {
        Ok(self.plain.launch(&self.a, &self.b[set], &mut self.full.borrow_mut())?)
    }

    fn comm(&self) -> Result<(), Error> {
        self.context.link.fork()?;
        self.exchange(0..self.peers_rows())?;
        self.context.link.join()
    }

    fn none(&self, set: usize) -> Result<(), Error> {
        self.blas(set)?;
        self.context.link.fork()?;
        self.exchange(0..self.peers_rows())?;
        self.finish()
    }

    fn chunked(&self, chunks: u32, set: usize) -> Result<(), Error> {
        if chunks == 1 {
            return self.none(set);
        }
        let link = &self.context.link;
        let (b, a) = (span(&self.b[set])?, self.operand()?);
        let partial = self.dense(span(&self.partial)?);
        link.fork()?;
        for (index, rows) in parts(self.shape.m, chunks).unwrap_or_default().into_iter().enumerate()
        {
            let stream = link.product(index);
            let (a, c) = (a.rows(rows.clone())?, partial.rows(rows.clone())?);
            self.products.run(chunks, index, stream, a, b, c)?;
            let peers = rows.start..rows.end.min(self.peers_rows());
            if !peers.is_empty() {
                // Peers keep step: they send when this rank sends.
                link.order(stream, &link.out)?;
                link.order(stream, &link.inbound)?;
                self.exchange(peers)?;
            }
        }
        self.finish()
    }

    fn fused(&self, which: usize, set: usize) -> Result<(), Error> {
        let kernel = self.family.kernel(which);
        Ok(kernel.launch(&self.a, &self.b[set], &mut self.c.borrow_mut()[set])?)
    }

    fn verify(&self) -> Result<f32, Error> {
        let Context { numbers, link, .. } = self.context;
        let k = self.shape.k;
        // The reference rounds its own product once more, at six standard deviations at most.
        let mut bound = sum_bound::<T>(k);
        bound.absolute += 0.5 * T::ULP * 6.0 * (k as f32).sqrt();
        let largest = self.check_all("normal data", bound)?;
        let density = exact_density(k);
        for (seed, operand) in [span(&self.a)?, span(&self.b[0])?].into_iter().enumerate() {
            numbers.integers(&link.main, operand, seed as u64, density)?;
        }
        for outbox in self.family.all_boxes() {
            numbers.integers(&link.main, outbox.span(), 9 + u64::from(outbox.peer()), 1.0)?;
            outbox.changed();
        }
        self.check_all("small integers", Bound::EXACT)?;
        Ok(largest)
    }
}
