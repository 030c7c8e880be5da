//! The attribute macros of flux.
//!
//! | step | file |
//! |---|---|
//! | tokens to a kernel, its schedules, and what is wrong with them | `model.rs` |
//! | kernel and schedule to a checked Program and its machine code | `compile.rs`, `cache.rs` |
//! | the user's function again, and the struct that launches it | `expand.rs` |
//! | `#[flux::module]` | `module.rs` |
//! | tile orders that rustc can try | `order.rs` |
//! | findings to errors of rustc at the user's tokens | `report.rs` |

#![forbid(unsafe_code)]

mod cache;
mod compile;
mod expand;
mod model;
mod module;
mod order;
mod report;

use proc_macro::TokenStream;

/// Makes a kernel of a function: a struct of the same name loads and launches it.
///
/// The function is read, checked and compiled, and never called; what it can say is in
/// `flux::lang`. For `pub fn name(a: &Gathered<bf16>, c: &mut Global<f32>, alpha: f32)` there is a
///
/// ```text
/// pub struct name { … }
/// impl name {
///     pub fn definition() -> &'static flux::Definition;
///     pub fn load(rank: &flux::Rank) -> Result<name, flux::Error>;
///     pub fn load_with(rank: &flux::Rank, schedule: &flux::Schedule) -> Result<name, flux::Error>;
///     pub fn launch(&self, a: &flux::Tensor<bf16>, c: &mut flux::Tensor<f32>, alpha: f32)
///         -> Result<(), flux::Error>;
/// }
/// ```
///
/// How it runs is said by `#[schedule(…)]`; without one it is `Schedule::sm_90a()`, with narrower
/// tiles where several products share the registers.
#[proc_macro_attribute]
pub fn kernel(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::kernel(args.into(), item.into()).into()
}

/// How a kernel runs: what changes its speed and never its results.
///
/// `#[schedule(target, choice = value, …)]`, where the target is `sm_90a` or `host` and the
/// choices are
///
/// | choice | value | without it |
/// |---|---|---|
/// | `tile` | rows, columns and k-step of a tile: `(128, 256, 64)` | `(128, 256, 64)` |
/// | `stages` | slots of the shared-memory ring | 4 |
/// | `consumers` | `cooperative` (two warpgroups share a tile) or `ping_pong` (each has its own) | `cooperative` |
/// | `order` | `row_major`, `column_major`, `grouped(8)`, `own_shard_first`, `arrival`, `next_rank_first`, `next_columns_first`, `xor`, `two_numa`; or a function or closure `(step, &Grid, rank, world) -> TileCoord` of your own | what fits the kernel's types |
/// | `transport` | `copy_engine`, `copy_first` (gathered inputs alone), `put` or `tma` | gathered inputs travel by copy engine, scattered outputs are put |
/// | `all_reduce` | `one_shot` or `two_shot`: how every rank gets the sum of a reduced output | `two_shot` |
/// | `chunk_rows` | rows of a communication chunk | a whole shard |
/// | `ctas` | CTAs of the grid | what the device holds at once |
///
/// Given several times it makes a family of compiled kernels, of which the one that suits a shape
/// is launched.
#[proc_macro_attribute]
pub fn schedule(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::schedule(args.into(), item.into()).into()
}

/// Lets kernels, helper functions, constants and tile orders see each other.
///
/// Kernels in it are marked `#[kernel]`. Helper functions take and return `Fragment`s, numbers,
/// tiles or tensors; constants are `f32`. Everything else in the module is left as it is.
#[proc_macro_attribute]
pub fn module(args: TokenStream, item: TokenStream) -> TokenStream {
    module::expand(args.into(), item.into()).into()
}
