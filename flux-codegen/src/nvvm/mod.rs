//! The only home of intrinsic names and inline assembly: one function per instruction, named as
//! in the PTX manual (PTX ISA 8.3), split by family.
//!
//! Everything that touches memory or synchronizes is a convergent side effect and clobbers
//! memory, so that LLVM keeps the order it was written in. Global addresses are 64-bit, shared
//! addresses 32-bit integers.

pub(crate) mod cluster;
pub(crate) mod convert;
pub(crate) mod fence;
pub(crate) mod ldmatrix;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod special;
pub(crate) mod stmatrix;
pub(crate) mod sync;
pub(crate) mod tma;
pub(crate) mod wgmma;
