//! The element types a tensor can have in memory.

use std::fmt;
use std::str::FromStr;

/// An element type in memory. Arithmetic is always done in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// bfloat16: 8 exponent bits, 8 significant bits.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl Element {
    /// Every element type, for exhaustive tests and messages.
    pub const ALL: [Element; 3] = [Element::Bf16, Element::F16, Element::F32];

    /// Bytes of one element.
    pub const fn bytes(self) -> u32 {
        match self {
            Element::Bf16 | Element::F16 => 2,
            Element::F32 => 4,
        }
    }

    /// The name used in kernels and in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Element::Bf16 => "bf16",
            Element::F16 => "f16",
            Element::F32 => "f32",
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Element {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Element::ALL.into_iter().find(|e| e.name() == text).ok_or(())
    }
}
