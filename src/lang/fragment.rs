//! The elements of a tile, and arithmetic on them.

use super::{Element, Never, sealed::Sealed};
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// The elements of a tile, in f32.
///
/// `+`, `-`, `*` and `/` work element by element, on two fragments or on a fragment and an
/// `f32`, and round as IEEE 754 says.
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn affine(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>, alpha: f32, beta: f32) {
///     for tile in c.tiles() {
///         let acc = gemm(a, b.t(), tile);
///         c.store(tile, 0.5 * (alpha * acc - beta) + acc / 2.0);
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "a tile is lost unless it is stored: `c.store(tile, …)`"]
pub struct Fragment(pub(super) Never);

/// A [`Fragment`] or an `f32`: what a fragment is combined with.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be combined with a tile",
    label = "expected a `Fragment` or an `f32`",
    note = "read a tensor first: `x.load(tile)`, `x.cols(tile)` or `x.rows(tile)`"
)]
pub trait Operand: Sealed {}

impl Sealed for Fragment {}
impl Sealed for f32 {}
impl Operand for Fragment {}
impl Operand for f32 {}

impl Fragment {
    /// Applies `f` to every element.
    ///
    /// ```
    /// # use flux::prelude::*;
    /// #[flux::kernel]
    /// fn squared(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    ///     for tile in c.tiles() {
    ///         c.store(tile, gemm(a, b.t(), tile).map(|x| x * x));
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    pub fn map(self, f: impl FnOnce(Fragment) -> Fragment) -> Fragment {
        f(self)
    }

    /// Applies `f` to every element and the one at the same place of `other`.
    ///
    /// ```
    /// # use flux::prelude::*;
    /// #[flux::kernel]
    /// fn biased(a: &Global<bf16>, b: &Global<bf16>, bias: &Global<f32>, c: &mut Global<bf16>) {
    ///     for tile in c.tiles() {
    ///         let acc = gemm(a, b.t(), tile);
    ///         c.store(tile, acc.zip_map(bias.cols(tile), |x, bias| gelu(x + bias)));
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    pub fn zip_map(
        self,
        other: Fragment,
        f: impl FnOnce(Fragment, Fragment) -> Fragment,
    ) -> Fragment {
        f(self, other)
    }

    /// Rounds every element to `T`, to nearest even, and goes on in f32; [`cast`](super::cast)
    /// as a method.
    pub fn cast<T: Element>(self) -> Fragment {
        match self.0 {}
    }

    /// [`relu`](super::relu) as a method.
    pub fn relu(self) -> Fragment {
        match self.0 {}
    }

    /// [`gelu`](super::gelu) as a method.
    pub fn gelu(self) -> Fragment {
        match self.0 {}
    }

    /// [`gelu_tanh`](super::gelu_tanh) as a method.
    pub fn gelu_tanh(self) -> Fragment {
        match self.0 {}
    }

    /// [`silu`](super::silu) as a method.
    pub fn silu(self) -> Fragment {
        match self.0 {}
    }

    /// [`exp`](super::exp) as a method.
    pub fn exp(self) -> Fragment {
        match self.0 {}
    }

    /// [`tanh`](super::tanh) as a method.
    pub fn tanh(self) -> Fragment {
        match self.0 {}
    }

    /// [`max`](super::max) as a method.
    pub fn max(self, other: impl Operand) -> Fragment {
        let _ = other;
        match self.0 {}
    }

    /// [`min`](super::min) as a method.
    pub fn min(self, other: impl Operand) -> Fragment {
        let _ = other;
        match self.0 {}
    }
}

impl Neg for Fragment {
    type Output = Fragment;

    fn neg(self) -> Fragment {
        match self.0 {}
    }
}

impl AddAssign for Fragment {
    fn add_assign(&mut self, _: Fragment) {
        match self.0 {}
    }
}

macro_rules! arithmetic {
    ($($name:ident $method:ident;)*) => {$(
        impl $name for Fragment {
            type Output = Fragment;
            fn $method(self, _: Fragment) -> Fragment {
                match self.0 {}
            }
        }

        impl $name<f32> for Fragment {
            type Output = Fragment;
            fn $method(self, _: f32) -> Fragment {
                match self.0 {}
            }
        }

        impl $name<Fragment> for f32 {
            type Output = Fragment;
            fn $method(self, other: Fragment) -> Fragment {
                match other.0 {}
            }
        }
    )*};
}

arithmetic! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
}
