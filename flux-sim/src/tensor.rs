//! Tensors as slices of one of the three element types.

use flux_ir::Element;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ops::Range;

/// A tensor that is read: this rank's part, row-major without gaps.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Elements of bf16.
    Bf16(&'a [bf16]),
    /// Elements of f16.
    F16(&'a [f16]),
    /// Elements of f32.
    F32(&'a [f32]),
}

/// A tensor that is written: this rank's part, row-major without gaps.
#[derive(Debug)]
pub enum Output<'a> {
    /// Elements of bf16.
    Bf16(&'a mut [bf16]),
    /// Elements of f16.
    F16(&'a mut [f16]),
    /// Elements of f32.
    F32(&'a mut [f32]),
}

/// Applies one expression to whichever slice it is.
macro_rules! each {
    ($tensor:expr, $of:ident, $slice:ident => $value:expr) => {
        match $tensor {
            $of::Bf16($slice) => $value,
            $of::F16($slice) => $value,
            $of::F32($slice) => $value,
        }
    };
    ($tensor:expr, $of:ident, $slice:ident => $value:expr, as $result:ident) => {
        match $tensor {
            $of::Bf16($slice) => $result::Bf16($value),
            $of::F16($slice) => $result::F16($value),
            $of::F32($slice) => $result::F32($value),
        }
    };
}

macro_rules! from_slices {
    ($($variant:ident $element:ty;)*) => {$(
        impl<'a> From<&'a [$element]> for Input<'a> {
            fn from(slice: &'a [$element]) -> Self {
                Input::$variant(slice)
            }
        }

        impl<'a> From<&'a mut [$element]> for Output<'a> {
            fn from(slice: &'a mut [$element]) -> Self {
                Output::$variant(slice)
            }
        }
    )*};
}

from_slices! {
    Bf16 bf16;
    F16 f16;
    F32 f32;
}

impl<'a> Input<'a> {
    /// The element type.
    pub const fn element(&self) -> Element {
        match self {
            Input::Bf16(_) => Element::Bf16,
            Input::F16(_) => Element::F16,
            Input::F32(_) => Element::F32,
        }
    }

    /// The number of elements.
    pub const fn len(&self) -> usize {
        each!(self, Input, slice => slice.len())
    }

    /// Whether there is no element.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn slice(self, range: Range<usize>) -> Input<'a> {
        each!(self, Input, slice => &slice[range], as Input)
    }

    /// Converts into `into`, which has the same length.
    pub(crate) fn load(self, into: &mut [f32]) {
        match self {
            Input::Bf16(slice) => slice.convert_to_f32_slice(into),
            Input::F16(slice) => slice.convert_to_f32_slice(into),
            Input::F32(slice) => into.copy_from_slice(slice),
        }
    }
}

impl<'a> Output<'a> {
    /// The element type.
    pub const fn element(&self) -> Element {
        match self {
            Output::Bf16(_) => Element::Bf16,
            Output::F16(_) => Element::F16,
            Output::F32(_) => Element::F32,
        }
    }

    /// The number of elements.
    pub const fn len(&self) -> usize {
        each!(self, Output, slice => slice.len())
    }

    /// Whether there is no element.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn slice(self, range: Range<usize>) -> Output<'a> {
        each!(self, Output, slice => &mut slice[range], as Output)
    }

    pub(crate) fn split_at(self, mid: usize) -> (Output<'a>, Output<'a>) {
        match self {
            Output::Bf16(slice) => {
                let (a, b) = slice.split_at_mut(mid);
                (Output::Bf16(a), Output::Bf16(b))
            }
            Output::F16(slice) => {
                let (a, b) = slice.split_at_mut(mid);
                (Output::F16(a), Output::F16(b))
            }
            Output::F32(slice) => {
                let (a, b) = slice.split_at_mut(mid);
                (Output::F32(a), Output::F32(b))
            }
        }
    }

    /// Rounds `from`, of the same length, to nearest even.
    pub(crate) fn store(self, from: &[f32]) {
        match self {
            Output::Bf16(slice) => slice.convert_from_f32_slice(from),
            Output::F16(slice) => slice.convert_from_f32_slice(from),
            Output::F32(slice) => slice.copy_from_slice(from),
        }
    }

    /// Copies elements of the same type and number; `false` where the types differ.
    pub(crate) fn copy_from(self, from: Input<'_>) -> bool {
        match (self, from) {
            (Output::Bf16(to), Input::Bf16(from)) => to.copy_from_slice(from),
            (Output::F16(to), Input::F16(from)) => to.copy_from_slice(from),
            (Output::F32(to), Input::F32(from)) => to.copy_from_slice(from),
            (Output::Bf16(_) | Output::F16(_) | Output::F32(_), _) => return false,
        }
        true
    }
}

/// Elements that can be read and written where they lie.
pub(crate) trait Cell {
    fn view(&self) -> Input<'_>;
    fn view_mut(&mut self) -> Output<'_>;
}

impl Cell for Output<'_> {
    fn view(&self) -> Input<'_> {
        each!(self, Output, slice => slice, as Input)
    }

    fn view_mut(&mut self) -> Output<'_> {
        each!(self, Output, slice => slice, as Output)
    }
}

/// Elements of the workspace.
#[derive(Debug)]
pub(crate) enum Values {
    Bf16(Box<[bf16]>),
    F16(Box<[f16]>),
    F32(Box<[f32]>),
}

impl Values {
    pub(crate) fn zeroed(element: Element, len: usize) -> Values {
        match element {
            Element::Bf16 => Values::Bf16(vec![bf16::ZERO; len].into()),
            Element::F16 => Values::F16(vec![f16::ZERO; len].into()),
            Element::F32 => Values::F32(vec![0.0; len].into()),
        }
    }

    pub(crate) fn zero(&mut self) {
        match self {
            Values::Bf16(data) => data.fill(bf16::ZERO),
            Values::F16(data) => data.fill(f16::ZERO),
            Values::F32(data) => data.fill(0.0),
        }
    }
}

impl Cell for Values {
    fn view(&self) -> Input<'_> {
        each!(self, Values, slice => slice, as Input)
    }

    fn view_mut(&mut self) -> Output<'_> {
        each!(self, Values, slice => slice, as Output)
    }
}
