//! Tensors that each rank has whole.

use super::{Element, Fragment, Never, Tile, Tiles};
use std::marker::PhantomData;

/// A tensor of this rank's own: read as `&Global<T>`, written as `&mut Global<T>`.
///
/// A matrix is row-major. A vector is a tensor of one row or one column.
///
/// ```
/// # use flux::prelude::*;
/// /// C = s ⊙ (A · Bᵀ) + residual, with a scale for each row of A.
/// #[flux::kernel]
/// fn scaled(
///     a: &Global<bf16>,
///     b: &Global<bf16>,
///     scale: &Global<f32>,
///     residual: &Global<bf16>,
///     c: &mut Global<bf16>,
/// ) {
///     for tile in c.tiles() {
///         let acc = scale.rows(tile) * gemm(a, b.t(), tile);
///         c.store(tile, acc + residual.load(tile));
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct Global<T> {
    pub(super) never: Never,
    element: PhantomData<T>,
}

impl<T: Element> Global<T> {
    /// The tensor transposed, as an operand of [`gemm`](super::gemm): a weight stored as `[n, k]`
    /// is multiplied as `[k, n]`.
    pub fn t(&self) -> Transposed<T> {
        match self.never {}
    }

    /// The tile of a matrix of the output's shape, `[m, n]`.
    pub fn load(&self, tile: Tile) -> Fragment {
        let _ = tile;
        match self.never {}
    }

    /// A vector over the columns, of n elements, repeated on every row: a bias.
    ///
    /// ```
    /// # use flux::prelude::*;
    /// #[flux::kernel]
    /// fn linear(x: &Global<bf16>, w: &Global<bf16>, bias: &Global<f32>, y: &mut Global<bf16>) {
    ///     for tile in y.tiles() {
    ///         y.store(tile, gemm(x, w.t(), tile) + bias.cols(tile));
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    pub fn cols(&self, tile: Tile) -> Fragment {
        let _ = tile;
        match self.never {}
    }

    /// A vector over the rows, of m elements, repeated on every column: a scale of tokens.
    pub fn rows(&self, tile: Tile) -> Fragment {
        let _ = tile;
        match self.never {}
    }

    /// The tiles of an output. The loop over them is the kernel.
    pub fn tiles(&self) -> Tiles {
        match self.never {}
    }

    /// Writes the tile, rounded to `T`, to nearest even. Every output is stored once.
    ///
    /// ```
    /// # use flux::prelude::*;
    /// /// The product twice: as it is in f32, and activated in bf16.
    /// #[flux::kernel]
    /// fn two_outputs(
    ///     a: &Global<bf16>,
    ///     b: &Global<bf16>,
    ///     raw: &mut Global<f32>,
    ///     activated: &mut Global<bf16>,
    /// ) {
    ///     for tile in raw.tiles() {
    ///         let acc = gemm(a, b.t(), tile);
    ///         raw.store(tile, acc);
    ///         activated.store(tile, silu(acc));
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    pub fn store(&mut self, tile: Tile, x: Fragment) {
        let _ = (tile, x);
        match self.never {}
    }
}

/// A tensor with rows and columns exchanged, made by [`Global::t`]. Nothing is moved.
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn product(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
///     let weights = b.t();
///     for tile in c.tiles() {
///         c.store(tile, gemm(a, weights, tile));
///     }
/// }
/// # fn main() {}
/// ```
#[must_use = "a transposed tensor is an operand of `gemm`"]
#[derive(Debug, Clone, Copy)]
pub struct Transposed<T> {
    element: PhantomData<T>,
}
