//! Runs a Program without a GPU: ranks and agents as threads, signals as atomics, tile products
//! through a GEMM crate, epilogues in f32 on tiles.
//!
//! What happens is read from the Program alone, by walking the events of
//! [`flux_ir::eval::RankView`]; there is no second description of any operator.
//!
//! A [`Workspace`] holds what the ranks share, for one kernel at one shape. [`launch_rank`] runs
//! one rank's agents on threads and returns when all have finished; the ranks of a world are
//! started by the caller, each on a thread of its own. The [`adversary`] runs all ranks on one
//! thread in an order that a seed decides, and delivers every put and copy as late as it may.
//! [`explore`] plays all orders, without data: what each read may see is the same in each.
//! The model of [`time`] predicts what a launch takes on a machine.
//!
//! Nothing hangs: each wait has a limit, and a rank whose wait gives up marks the workspace so
//! that its peers stop too. Nothing blocks on data: an element that two actors touch at once is
//! an [`Error::Race`].

// Unit tests share the helpers of the integration tests, which name the crate.
#[cfg(test)]
extern crate self as flux_sim;

pub mod adversary;
mod epilogue;
mod error;
pub mod explore;
mod given;
mod launch;
mod memory;
pub mod mutants;
mod product;
mod sheet;
mod signal;
mod stall;
mod tensor;
pub mod time;
mod totals;
mod worker;
mod workspace;

pub use error::Error;
pub use given::Parts;
pub use launch::launch_rank;
pub use memory::RankArgs;
pub use product::baseline_product;
pub use stall::{GivenUp, Stall, TileRanges, stalled_at};
pub use tensor::{Input, Output};
pub use totals::Totals;
pub use workspace::{DEFAULT_LIMIT_BYTES, Workspace};
