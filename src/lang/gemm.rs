//! The product of a tile.

use super::{
    Element, Fragment, Global, Never, Ready, Sharded, Slice, Summed, Tile, Transposed,
    sealed::Sealed,
};

/// The tile of `a · b`, accumulated in f32.
///
/// `a` is `[m, k]`, or `[k, m]` as `a.t()`. `b` is `[k, n]`, or `[n, k]` as `b.t()`: both operands
/// are then read along k, as weights of a linear layer are stored. The products of one kernel
/// share their left operand.
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn product(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<f32>) {
///     for tile in c.tiles() {
///         c.store(tile, gemm(a, b.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
///
/// The gradient of a linear layer's weights sums over tokens, which both operands have as rows:
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn gradient(dy: &Global<bf16>, x: &Global<bf16>, dw: &mut Global<f32>) {
///     for tile in dw.tiles() {
///         dw.store(tile, gemm(dy.t(), x, tile));
///     }
/// }
/// # fn main() {}
/// ```
///
/// Where what is multiplied arrives in slices along k, `at` is a slice, and the products of all slices
/// are summed: see [`Tile::k_slices`].
pub fn gemm<T: Element, A: Left<T>, B: Right<T>, P: Place>(a: A, b: B, at: P) -> Fragment {
    let _ = (a, b);
    match at.never() {}
}

/// Which part of a product: a [`Tile`] of it, or a [`Slice`] along k of the tile.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no part of a product",
    label = "expected the tile of the loop, or a slice of it"
)]
pub trait Place: Sealed {
    #[doc(hidden)]
    fn never(self) -> Never;
}

impl Sealed for Tile {}
impl Sealed for Slice {}

impl Place for Tile {
    fn never(self) -> Never {
        self.0
    }
}

impl Place for Slice {
    fn never(self) -> Never {
        self.0
    }
}

/// Left operands of [`gemm`]: a [`&Global<T>`](Global), as it is or [`Transposed`], or rows of a
/// [`Gathered`](super::Gathered) tensor that are [`Ready`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the left operand of `gemm`",
    label = "expected a `&Global<{T}>`, or rows of a `&Gathered<{T}>` that have arrived",
    note = "rows of a `Gathered` tensor may still be in flight from a peer: \
            write `let a = a.wait(tile.rows());`"
)]
pub trait Left<T>: Sealed {}

/// Right operands of [`gemm`]: a [`&Global<T>`](Global), as it is or [`Transposed`], or a
/// [`Gathered`](super::Gathered) tensor that is [`Summed`] over.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the right operand of `gemm`",
    label = "expected a `&Global<{T}>`, as it is or as `b.t()`"
)]
pub trait Right<T>: Sealed {}

impl<T> Sealed for &Global<T> {}
impl<T> Sealed for &Sharded<T> {}
impl<T> Sealed for Summed<T> {}
impl<T> Sealed for &Summed<T> {}
impl<T> Sealed for Ready<T> {}
impl<T> Sealed for &Ready<T> {}
impl<T> Sealed for Transposed<T> {}
impl<T> Sealed for &Transposed<T> {}

impl<T: Element> Left<T> for &Global<T> {}
impl<T: Element> Left<T> for &Sharded<T> {}
impl<T: Element> Left<T> for Ready<T> {}
impl<T: Element> Left<T> for &Ready<T> {}
impl<T: Element> Left<T> for Transposed<T> {}
impl<T: Element> Left<T> for &Transposed<T> {}

impl<T: Element> Right<T> for &Global<T> {}
impl<T: Element> Right<T> for Summed<T> {}
impl<T: Element> Right<T> for &Summed<T> {}
impl<T: Element> Right<T> for Transposed<T> {}
impl<T: Element> Right<T> for &Transposed<T> {}
