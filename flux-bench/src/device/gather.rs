//! All-gather + GEMM in all the ways that are compared.

use super::family::Family;
use super::fused::{Context, Operator, Products};
use super::link::{Dense, Sink, parts};
use super::operands::{baseline_bound, exact_density, normal, require_same, span, sum_bound};
use super::{LIMIT, Number};
use crate::error::Error;
use crate::kernels::{Fused, Plain, PlainKernel};
use crate::shapes::Dims;
use crate::stage::stage;
use flux::{Outbox, Tensor};
use flux_runtime::numbers::Bound;
use std::cell::RefCell;

/// One shape. Baselines find the own shard in the gathered tensor already, and receive the others
/// in the order of the peers' numbers.
pub(crate) struct Gather<'c, T> {
    context: &'c Context<'c>,
    shape: Dims,
    shard: usize,
    family: Family<T>,
    plain: PlainKernel<T>,
    products: Products,
    /// The own shard.
    own: Tensor<T>,
    /// All shards, for baselines.
    all: Tensor<T>,
    b: Vec<Tensor<T>>,
    c: RefCell<Vec<Tensor<T>>>,
    /// Results of cuBLASLt.
    d: Tensor<T>,
    reference: Tensor<T>,
    sink: Sink,
}

impl<'c, T: Number + Plain + Fused> Gather<'c, T> {
    pub(crate) fn new(context: &'c Context<'c>, shape: Dims) -> Result<Self, Error> {
        let Dims { m, n, k } = shape;
        let Context { rank, numbers, link, .. } = context;
        let shard = context.shard(shape)?;
        stage(format_args!("{shape}: operands"));
        let sets = context.sets(size_of::<T>() * (n * k + m * n));
        let matrices = |rows, cols, seed: u64| {
            let each = 0..sets as u64;
            let each = each.map(|set| normal(rank, numbers, &link.main, [rows, cols], seed + set));
            each.collect::<Result<Vec<_>, Error>>()
        };
        let own = normal(rank, numbers, &link.main, [shard, k], 100)?;
        let b = matrices(n, k, 200)?;
        let mut c = (0..sets).map(|_| rank.zeros(m, n)).collect::<Result<Vec<Tensor<T>>, _>>()?;
        let (all, d, reference) = (rank.zeros(m, k)?, rank.zeros(m, n)?, rank.zeros(m, n)?);
        let plain = T::load(rank)?;
        let sent = (size_of::<T>() * shard * k * (rank.world_size() as usize - 1)) as u64;
        let sink = Sink::new(&context.device, context.peers, sent)?;
        let products = context.products(shape, T::ELEMENT)?;
        stage("first launch of our product");
        // The first launches load and allocate; what peers send is known from then on.
        plain.launch(&all, &b[0], &mut c[0])?;
        let family = Family::new(
            context,
            |choice| T::gather(rank, choice),
            |kernel| kernel.launch(&own, &b[0], &mut c[0]),
        )?;
        for outbox in family.all_boxes() {
            numbers.normal(&link.main, outbox.span(), 300 + u64::from(outbox.peer()), 1.0)?;
            outbox.changed();
        }
        let c = RefCell::new(c);
        let gather = Gather {
            context,
            shape,
            shard,
            family,
            plain,
            products,
            own,
            all,
            b,
            c,
            d,
            reference,
            sink,
        };
        stage("choice of cuBLASLt's algorithms");
        gather.gather_all()?;
        gather.tune()?;
        Ok(gather)
    }

    fn dense(&self) -> Result<Dense<'_>, Error> {
        let row_bytes = (size_of::<T>() * self.shape.k) as u64;
        Ok(Dense { span: span(&self.all)?, row_bytes })
    }

    /// The peers' rows, `rows` counting from the first of them.
    fn receive(&self, rows: std::ops::Range<usize>) -> Result<(), Error> {
        let Dense { span, row_bytes } = self.dense()?;
        let own = self.shard as u64 * row_bytes;
        let peers = Dense { span: span.part(own, span.bytes() - own)?, row_bytes };
        self.family.boxes().copy_rows(&self.context.link.inbound, peers, self.shard, rows)
    }

    /// The own shard to every peer.
    fn send(&self) -> Result<(), Error> {
        let own = span(&self.own)?;
        for peer in 0..self.context.rank.world_size() as u64 - 1 {
            let to = self.sink.span().part(peer * own.bytes(), own.bytes())?;
            self.context.link.out.copy(to, own)?;
        }
        Ok(())
    }

    /// Places all shards, outside of any measurement.
    fn gather_all(&self) -> Result<(), Error> {
        let link = &self.context.link;
        link.main.synchronize(LIMIT)?;
        link.inbound.copy(self.dense()?.rows(0..self.shard)?, span(&self.own)?)?;
        self.receive(0..self.shape.m - self.shard)?;
        link.inbound.synchronize(LIMIT)?;
        Ok(())
    }

    fn tune(&self) -> Result<(), Error> {
        let (a, b, d) = (self.dense()?, span(&self.b[0])?, span(&self.d)?);
        self.products.tune(&self.context.link.main, |rows| Ok((a.rows(rows.clone())?, b, d)))
    }

    fn rows_of_d(&self, rows: std::ops::Range<usize>) -> Result<flux_runtime::Span<'_>, Error> {
        let row_bytes = (size_of::<T>() * self.shape.n) as u64;
        Dense { span: span(&self.d)?, row_bytes }.rows(rows)
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

    /// Every way of computing it against the product of all shards.
    fn check_all(&self, data: &'static str, bound: Bound) -> Result<f32, Error> {
        let link = &self.context.link;
        stage(format_args!("results on {data}"));
        self.gather_all()?;
        let reference = span(&self.reference)?;
        self.products.reference(&link.main, span(&self.all)?, span(&self.b[0])?, reference)?;
        let poison = |tensor: &Tensor<T>| Ok::<_, Error>(link.main.fill_u8(span(tensor)?, 0xff)?);
        let mut largest = 0.0f32;
        for (which, name) in self.family.names(self.context).iter().enumerate() {
            poison(&self.c.borrow()[0])?;
            self.fused(which, 0)?;
            self.context.rank.synchronize()?;
            largest = largest.max(self.check(name, &self.c.borrow()[0], data, bound)?);
        }
        poison(&self.c.borrow()[0])?;
        self.ours(0)?;
        self.check("our product", &self.c.borrow()[0], data, bound)?;
        let loose = baseline_bound::<T>(bound, self.shape.k);
        for chunks in std::iter::once(1).chain(self.chunk_counts()) {
            poison(&self.d)?;
            poison_rows(self)?;
            self.chunked(chunks, 0)?;
            self.check(&format!("cuBLASLt in {chunks} chunks"), &self.d, data, loose)?;
        }
        Ok(largest)
    }
}

/// Spoils the peers' rows of the gathered tensor, so that a baseline has to receive them.
fn poison_rows<T: Number + Plain + Fused>(gather: &Gather<'_, T>) -> Result<(), Error> {
    let peers = gather.dense()?.rows(gather.shard..gather.shape.m)?;
    Ok(gather.context.link.main.fill_u8(peers, 0xff)?)
}

impl<T: Number + Plain + Fused> Operator for Gather<'_, T> {
    fn sets(&self) -> usize {
        self.b.len()
    }

    fn chunk_counts(&self) -> Vec<u32> {
        self.products.chunk_counts()
    }

    fn blas(&self, set: usize) -> Result<(), Error> {
        let main = &self.context.link.main;
        let (a, b, d) = (span(&self.all)?, span(&self.b[set])?, span(&self.d)?);
        self.products.run(1, 0, main, a, b, d)
    }

    fn ours(&self, set: usize) -> Result<(), Error> {
        Ok(self.plain.launch(&self.all, &self.b[set], &mut self.c.borrow_mut()[set])?)
    }

    fn comm(&self) -> Result<(), Error> {
        self.context.link.fork()?;
        self.send()?;
        self.receive(0..self.shape.m - self.shard)?;
        self.context.link.join()
    }

    fn none(&self, set: usize) -> Result<(), Error> {
        self.comm()?;
        self.blas(set)
    }

    fn chunked(&self, chunks: u32, set: usize) -> Result<(), Error> {
        if chunks == 1 {
            return self.none(set);
        }
        let link = &self.context.link;
        let b = span(&self.b[set])?;
        link.fork()?;
        self.send()?;
        for (index, rows) in parts(self.shape.m, chunks).unwrap_or_default().into_iter().enumerate()
        {
            let peers = rows.start.max(self.shard)..rows.end.max(self.shard);
            let stream = link.product(index);
            if !peers.is_empty() {
                self.receive(peers.start - self.shard..peers.end - self.shard)?;
                link.order(&link.inbound, stream)?;
            }
            let (a, d) = (self.dense()?.rows(rows.clone())?, self.rows_of_d(rows)?);
            self.products.run(chunks, index, stream, a, b, d)?;
        }
        link.join()
    }

    fn fused(&self, which: usize, set: usize) -> Result<(), Error> {
        let kernel = self.family.kernel(which);
        Ok(kernel.launch(&self.own, &self.b[set], &mut self.c.borrow_mut()[set])?)
    }

    fn verify(&self) -> Result<f32, Error> {
        let Context { numbers, link, .. } = self.context;
        let k = self.shape.k;
        let largest = self.check_all("normal data", sum_bound::<T>(k))?;
        let density = exact_density(k);
        let operands = [span(&self.own)?, span(&self.b[0])?];
        let boxes = self.family.all_boxes().map(|outbox| (2 + outbox.peer(), outbox.span()));
        for (seed, operand) in (0..).zip(operands).chain(boxes) {
            numbers.integers(&link.main, operand, seed.into(), density)?;
        }
        self.family.all_boxes().for_each(Outbox::changed);
        self.check_all("small integers", Bound::EXACT)?;
        Ok(largest)
    }
}
