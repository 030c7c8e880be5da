//! Functions of elements. All are evaluated in f32.

use super::{Element, Fragment, sealed::Sealed};

/// `max(x, 0)`; a NaN gives 0, as in [`max`].
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn activated(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
///     for tile in c.tiles() {
///         c.store(tile, relu(gemm(a, b.t(), tile)));
///     }
/// }
/// # fn main() {}
/// ```
pub fn relu(x: Fragment) -> Fragment {
    match x.0 {}
}

/// `x/2 · (1 + erf(x/√2))`: the exact form.
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn activated(a: &Global<bf16>, b: &Global<bf16>, bias: &Global<f32>, c: &mut Global<bf16>) {
///     for tile in c.tiles() {
///         c.store(tile, gelu(gemm(a, b.t(), tile) + bias.cols(tile)));
///     }
/// }
/// # fn main() {}
/// ```
pub fn gelu(x: Fragment) -> Fragment {
    match x.0 {}
}

/// `x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³)))`: the form of GPT-2 and others, close to
/// [`gelu`].
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn activated(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
///     for tile in c.tiles() {
///         c.store(tile, gemm(a, b.t(), tile).gelu_tanh());
///     }
/// }
/// # fn main() {}
/// ```
pub fn gelu_tanh(x: Fragment) -> Fragment {
    match x.0 {}
}

/// `x / (1 + e⁻ˣ)`, also called swish.
///
/// ```
/// # use flux::prelude::*;
/// /// SwiGLU: one product gates the other.
/// #[flux::kernel]
/// fn swiglu(x: &Global<bf16>, w1: &Global<bf16>, w3: &Global<bf16>, y: &mut Global<bf16>) {
///     for tile in y.tiles() {
///         y.store(tile, silu(gemm(x, w1.t(), tile)) * gemm(x, w3.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
pub fn silu(x: Fragment) -> Fragment {
    match x.0 {}
}

/// `eˣ`.
///
/// ```
/// # use flux::prelude::*;
/// /// A sigmoid, written out.
/// #[flux::kernel]
/// fn activated(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
///     for tile in c.tiles() {
///         c.store(tile, 1.0 / (1.0 + exp(-gemm(a, b.t(), tile))));
///     }
/// }
/// # fn main() {}
/// ```
pub fn exp(x: Fragment) -> Fragment {
    match x.0 {}
}

/// Hyperbolic tangent.
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn capped(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>, limit: f32) {
///     for tile in c.tiles() {
///         c.store(tile, limit * tanh(gemm(a, b.t(), tile) / limit));
///     }
/// }
/// # fn main() {}
/// ```
pub fn tanh(x: Fragment) -> Fragment {
    match x.0 {}
}

/// Two operands of [`max`] or [`min`]: fragments, or a fragment and an `f32` in either order.
#[diagnostic::on_unimplemented(
    message = "`max` and `min` do not combine `{Self}` and `{Y}`",
    label = "expected a `Fragment`, and another or an `f32`",
    note = "read a tensor first: `x.load(tile)`, `x.cols(tile)` or `x.rows(tile)`"
)]
pub trait Pair<Y>: Sealed {
    #[doc(hidden)]
    fn combined(self, other: Y) -> Fragment;
}

impl Pair<Fragment> for Fragment {
    fn combined(self, _: Fragment) -> Fragment {
        match self.0 {}
    }
}

impl Pair<f32> for Fragment {
    fn combined(self, _: f32) -> Fragment {
        match self.0 {}
    }
}

impl Pair<Fragment> for f32 {
    fn combined(self, other: Fragment) -> Fragment {
        match other.0 {}
    }
}

/// The larger of two elements; a NaN gives the other one.
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn leaky(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>, slope: f32) {
///     for tile in c.tiles() {
///         let x = gemm(a, b.t(), tile);
///         c.store(tile, max(x, slope * x));
///     }
/// }
/// # fn main() {}
/// ```
pub fn max<X: Pair<Y>, Y>(x: X, y: Y) -> Fragment {
    x.combined(y)
}

/// The smaller of two elements; a NaN gives the other one.
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn clipped(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>, limit: f32) {
///     for tile in c.tiles() {
///         c.store(tile, min(gemm(a, b.t(), tile), limit).max(-limit));
///     }
/// }
/// # fn main() {}
/// ```
pub fn min<X: Pair<Y>, Y>(x: X, y: Y) -> Fragment {
    x.combined(y)
}

/// Rounds every element to `T`, to nearest even, and goes on in f32.
///
/// A store rounds by itself; `cast` is for a value that is used further after having been
/// rounded, as another implementation would have stored it.
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn rounded_twice(a: &Global<bf16>, b: &Global<bf16>, bias: &Global<f32>, c: &mut Global<bf16>) {
///     for tile in c.tiles() {
///         let product = cast::<bf16>(gemm(a, b.t(), tile));
///         c.store(tile, product + bias.cols(tile));
///     }
/// }
/// # fn main() {}
/// ```
pub fn cast<T: Element>(x: Fragment) -> Fragment {
    match x.0 {}
}
