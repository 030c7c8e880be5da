//! The tile of the loop.

use super::{Fragment, Never};

/// The tiles of an output: what the loop of a kernel runs over.
///
/// In which order they are visited, and by which CTA, is the schedule's to say.
#[derive(Debug)]
pub struct Tiles(pub(super) Never);

impl Iterator for Tiles {
    type Item = Tile;

    fn next(&mut self) -> Option<Tile> {
        match self.0 {}
    }
}

/// A tile of an output: some rows and columns of it, computed by one CTA.
///
/// How many is the schedule's to say; at the edges of the output there are fewer.
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn product(a: &Global<f16>, b: &Global<f16>, c: &mut Global<f16>) {
///     for tile in c.tiles() {
///         c.store(tile, gemm(a, b.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Tile(pub(super) Never);

impl Tile {
    /// The rows of the tile, for [`Gathered::wait`](super::Gathered::wait).
    pub fn rows(self) -> Rows {
        match self.0 {}
    }

    /// What the products of the tile sum over, for [`Gathered::wait`](super::Gathered::wait): all rows of
    /// a tensor that is their right operand, or their left one transposed.
    pub fn reduction(self) -> Reduction {
        match self.0 {}
    }

    /// The products of the tile, cut along k into `slices` of whole steps, so that each waits for what it
    /// multiplies alone.
    ///
    /// ```
    /// # use flux::prelude::*;
    /// /// Each rank sends its shard in four slices along k, to every rank.
    /// #[flux::kernel]
    /// fn sliced(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    ///     let all = symmetric::<bf16>(Extent::M, Extent::K);
    ///     let arrived = signals(4 * world());
    ///     role("push", || {
    ///         for slice in 0..4 {
    ///             for hop in 0..world() {
    ///                 let to = (rank() + hop) % world();
    ///                 let part = a.part(shard(rank())).cols(k_slice(slice, 4));
    ///                 let sent = all.put(to, part);
    ///                 arrived.signal(to, slice * world() + rank(), sent);
    ///             }
    ///         }
    ///     });
    ///     for tile in c.tiles() {
    ///         let mut acc = zeros();
    ///         for k in tile.k_slices(4) {
    ///             let from = owners(tile.rows());
    ///             let slots = k.index() * world() + from.start..k.index() * world() + from.end;
    ///             let a = all.ready(tile.rows(), arrived.wait(slots));
    ///             acc += gemm(a, b.t(), k);
    ///         }
    ///         c.store(tile, acc);
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    pub fn k_slices(self, slices: u32) -> Slices {
        let _ = slices;
        match self.0 {}
    }
}

/// The slices along k of a tile's products, made by [`Tile::k_slices`].
#[derive(Debug)]
pub struct Slices(pub(super) Never);

impl Iterator for Slices {
    type Item = Slice;

    fn next(&mut self) -> Option<Slice> {
        match self.0 {}
    }
}

/// A slice along k of a tile's products.
#[derive(Debug, Clone, Copy)]
pub struct Slice(pub(super) Never);

impl Slice {
    /// Its number, from 0.
    pub fn index(self) -> u32 {
        match self.0 {}
    }
}

/// A sum of products before its first slice: what `acc += gemm(a, b.t(), k)` adds to.
pub fn zeros() -> Fragment {
    unreachable!("kernels are read by the macro and never called")
}

/// What the products of a tile sum over.
#[derive(Debug, Clone, Copy)]
pub struct Reduction(pub(super) Never);

/// The rows of a tile.
#[derive(Debug, Clone, Copy)]
pub struct Rows(pub(super) Never);
