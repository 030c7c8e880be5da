//! An embedded DSL for tile-fused compute-communication GPU kernels.
//!
//! A kernel is a Rust function. Its types say how tensors are distributed over the ranks of a
//! world; a schedule says how it runs; a checker proves before anything runs that ranks cannot
//! wait for each other for ever.
//!
//! ```
//! use flux::prelude::*;
//!
//! /// C = gelu(all_gather(A) · Bᵀ + bias): every shard of A is consumed as it lands.
//! #[flux::kernel]
//! #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, order = own_shard_first)]
//! pub fn ag_gemm_gelu(
//!     a: &Gathered<bf16>,
//!     b: &Global<bf16>,
//!     bias: &Global<f32>,
//!     c: &mut Global<bf16>,
//! ) {
//!     for tile in c.tiles() {
//!         let a = a.wait(tile.rows());
//!         let acc = gemm(a, b.t(), tile);
//!         c.store(tile, gelu(acc + bias.cols(tile)));
//!     }
//! }
//!
//! fn main() -> Result<(), flux::Error> {
//!     let (m, n, k) = (8, 16, 32);
//!     let world = World::host(2)?;
//!     let outputs = world.run(|rank| {
//!         let kernel = ag_gemm_gelu::load(rank)?;
//!         let rows = rank.own_rows(m);
//!         let a = rank.tensor(rows, k, &vec![bf16::from_f32(0.5); rows * k])?;
//!         let b = rank.tensor(n, k, &vec![bf16::from_f32(0.25); n * k])?;
//!         let bias = rank.tensor(1, n, &vec![-4.0_f32; n])?;
//!         let mut c = rank.zeros::<bf16>(m, n)?;
//!         kernel.launch(&a, &b, &bias, &mut c)?;
//!         c.to_vec()
//!     })?;
//!     assert!(outputs.iter().flatten().all(|&x| x == bf16::from_f32(0.0)));
//!     Ok(())
//! }
//! ```
//!
//! [`lang`] is the reference of the language, [`Schedule`] of the choices that change speed and
//! never results. `ARCHITECTURE.md` follows a kernel through the compiler.

// The generated code names this crate `flux`, here as everywhere.
extern crate self as flux;

mod any_kernel;
mod apart;
mod bundle;
mod definition;
mod error;
mod gpu;
mod graph;
mod group;
mod interop;
mod kernel;
pub mod kernels;
pub mod lang;
mod meeting;
pub mod prelude;
mod problem;
mod processes;
mod recover;
mod session;
mod source;
mod symmetric;
mod tensor;
mod world;

pub use any_kernel::AnyKernel;
pub use bundle::Bundle;
pub use definition::{Definition, Image};
pub use error::Error;
pub use flux_ir::Element as ElementKind;
pub use flux_ir::kernel::{Distribution, Param, ParamType};
pub use flux_ir::{
    AllGather, AllReduce, Arrival, Balance, Cache, Consumers, Departure, Grid, Head, Kernel, Order,
    Program, Ranks, ReduceScatter, Schedule, Shape, Tail, Target, TileCoord, TileShape, Transport,
};
pub use flux_macros::{kernel, module, schedule};
pub use gpu::{Outbox, Peers};
pub use graph::Graph;
pub use processes::{PeerAccess, Processes, Processor};
pub use symmetric::SymmetricTensor;
pub use tensor::{Arg, Element, Tensor};
pub use world::{Rank, World};

/// Devices, their memory and streams, for callers who bring their own to [`Rank::adopt`],
/// [`Rank::from_dlpack`] and [`Rank::use_stream`]; the meeting place of processes, for launchers.
pub mod runtime {
    pub use flux_runtime::{
        Coordinator, CudarcSlice, CurrentContext, Device, DeviceBuffer, DlForm, DlMatrix, DlPlace,
        DlTensor, ElementKind, Error, Event, HostSlice, Stream, Timing,
    };
}

/// What generated code uses. No promise is made about it.
#[doc(hidden)]
pub mod __private {
    pub use crate::definition::{Definition, Image};
    pub use crate::kernel::Loaded;
    pub use crate::tensor::Arg;
}
