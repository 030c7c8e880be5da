//! **The language of kernels.** What the documentation of this module says is what a kernel can
//! say; there is no other reference.
//!
//! A kernel is a function under [`#[flux::kernel]`](crate::kernel). It is never called: the macro
//! reads it, and rustc checks it over the types of this module, so an editor completes and
//! explains every word of it. No value of these types exists on the host, and no function here
//! does anything there.
//!
//! # A kernel
//!
//! ```
//! use flux::prelude::*;
//!
//! /// C = gelu(alpha · all_gather(A) · Bᵀ + bias)
//! #[flux::kernel]
//! pub fn ag_gemm_gelu(
//!     a: &Gathered<bf16>,
//!     b: &Global<bf16>,
//!     bias: &Global<f32>,
//!     c: &mut Global<bf16>,
//!     alpha: f32,
//! ) {
//!     for tile in c.tiles() {
//!         let a = a.wait(tile.rows());
//!         let acc = gemm(a, b.t(), tile);
//!         c.store(tile, gelu(alpha * acc + bias.cols(tile)));
//!     }
//! }
//! # fn main() {}
//! ```
//!
//! # Parameters
//!
//! | type | what it is | what it has |
//! |---|---|---|
//! | [`&Global<T>`](Global) | this rank's tensor, read | [`t`](Global::t), [`load`](Global::load), [`cols`](Global::cols), [`rows`](Global::rows) |
//! | [`&mut Global<T>`](Global) | this rank's tensor, written | [`tiles`](Global::tiles), [`store`](Global::store) |
//! | [`&Gathered<T>`](Gathered) | each rank has a row shard, all rows are read, or summed over | [`wait`](Gathered::wait), [`all_gather_into`](Gathered::all_gather_into) |
//! | [`&Sharded<T>`](Sharded) | each rank has a row shard and reads that | [`load`](Sharded::load), [`rows`](Sharded::rows) |
//! | [`&mut Scattered<T>`](Scattered) | summed over the ranks; each keeps its row shard | [`tiles`](Scattered::tiles), [`add`](Scattered::add), [`reduce`](Scattered::reduce), [`store`](Scattered::store) |
//! | [`&mut Reduced<T>`](Reduced) | summed over the ranks; each gets the whole sum | [`tiles`](Reduced::tiles), [`add`](Reduced::add), [`reduce`](Reduced::reduce), [`store`](Reduced::store) |
//! | [`&mut Sharded<T>`](Sharded) | each rank writes its row shard | [`tiles`](Sharded::tiles), [`store`](Sharded::store) |
//! | [`&Exchanged<T>`](Exchanged) | each rank has a column shard and reads its own rows | [`wait`](Exchanged::wait) |
//! | [`&mut Exchanged<T>`](Exchanged) | each rank writes its own rows and gets a column shard | [`tiles`](Exchanged::tiles), [`store`](Exchanged::store) |
//! | `f32` | a number given at launch | arithmetic |
//!
//! `T` is `bf16`, `f16` or `f32`: how elements lie in memory. Arithmetic is done in f32.
//!
//! # Statements
//!
//! One loop `for tile in c.tiles() { … }` over an output `c`; in it, and before it,
//! `let name = …;`. A name can be reused, nothing is assigned. There are no conditions and no
//! other loops: [`gemm`] contains the sum over k, and [`max`], [`min`] and [`relu`] choose.
//! Several outputs are stored in the same loop. Beside it may stand
//! [`all_gather_into`](Gathered::all_gather_into): the rows of a gathered tensor, as they are. Protocols of one's own have a little more, below.
//!
//! # Values
//!
//! [`gemm`] and the reads of tensors yield a [`Fragment`]: the tile's elements in f32. Fragments
//! and numbers have `+`, `-`, `*`, `/`; functions are [`relu`], [`gelu`], [`gelu_tanh`],
//! [`silu`], [`exp`], [`tanh`], [`max`], [`min`] and [`cast`], all of them methods as well.
//! Closures name what is repeated, and [`Fragment::map`] and [`Fragment::zip_map`] apply them.
//!
//! # Protocols of one's own
//!
//! Ahead of the loop a kernel may declare workspace on every rank ([`symmetric`]), signals
//! ([`signals`]) and what moves between ranks beside the loop ([`role`]). A role has loops over ranges of
//! integers, conditions, [`put`](Symmetric::put), [`get`](Symmetric::get), [`signal`](Signals::signal)
//! and [`wait`](Signals::wait). The loop over tiles waits for what roles bring, and multiplies what is
//! [`ready`](Symmetric::ready), slice by slice along k where it is told so ([`Tile::k_slices`]). Integers
//! are `u32`: [`rank`], [`world`], [`shard`], [`owners`], constants of the module, and their arithmetic.
//! [`Symmetric`] shows a whole protocol; `examples/protocols.rs` has four. What tiles have computed is put to
//! workspace of other ranks whose data tell by themselves that they have come ([`flagged`]).
//!
//! # Several kernels, helper functions, constants
//!
//! A kernel sees its own function and, under [`#[flux::module]`](crate::module), the functions
//! and `f32` (in protocols also `u32`) constants of its module:
//!
//! ```
//! #[flux::module]
//! mod kernels {
//!     use flux::prelude::*;
//!
//!     const LIMIT: f32 = 30.0;
//!
//!     /// x, smoothly kept within ±LIMIT.
//!     fn soft_cap(x: Fragment) -> Fragment {
//!         LIMIT * tanh(x / LIMIT)
//!     }
//!
//!     #[kernel]
//!     pub fn capped(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
//!         for tile in c.tiles() {
//!             c.store(tile, soft_cap(gemm(a, b.t(), tile)));
//!         }
//!     }
//! }
//! # fn main() {}
//! ```

mod collective;
mod fragment;
mod gemm;
mod math;
mod protocol;
mod tensor;
mod tile;

pub use collective::{Awaited, Exchanged, Gathered, Ready, Reduced, Scattered, Sharded, Summed};
pub use fragment::{Fragment, Operand};
pub use gemm::{Left, Place, Right, gemm};
pub use math::{Pair, cast, exp, gelu, gelu_tanh, max, min, relu, silu, tanh};
pub use protocol::{
    Arrived, Extent, Flagged, Part, Put, RowRange, Sent, Signals, Slots, Source, Symmetric,
    flagged, k_slice, owners, rank, role, shard, shard_rows, signals, symmetric, world,
};
pub use tensor::{Global, Transposed};
pub use tile::{Reduction, Rows, Slice, Slices, Tile, Tiles, zeros};

pub use crate::tensor::Element;
pub use half::{bf16, f16};

/// Values of the language exist on the device alone: on the host they cannot be made, and the
/// compiler knows it.
type Never = core::convert::Infallible;

mod sealed {
    pub trait Sealed {}
}
