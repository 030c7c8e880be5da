//! Kernel × schedule to Program.
//!
//! The passes, in order; each is a plain function:
//!
//! | pass | needs | gives |
//! |---|---|---|
//! | [`usage::infer`] | a kernel | the role, dimensions and row domain of every parameter and value |
//! | `tensors::declare` | roles | buffers of the launch, shard arithmetic as definitions |
//! | `values::build` | buffers | the epilogue's dataflow |
//! | `gather::place` | shards | workspace, chunk map and the agent that pushes shards |
//! | `scatter::place` | shards | workspace and signals of contributions |
//! | `tiles::order` | chunk map | the tile table |
//! | `gemm::build` | all of the above | the agent on CTAs |

mod build;
mod gather;
mod gemm;
mod scatter;
mod tensors;
mod tiles;
pub mod usage;
mod values;

use crate::diagnostic::Diagnostics;
use crate::kernel::Kernel;
use crate::program::Program;
use crate::schedule::Schedule;
use build::Builder;

/// Lowers `kernel` under `schedule`, for any M, N, K ≥ 1 and any world.
///
/// # Errors
/// Every rule the kernel breaks. Whether the schedule fits its target is the checker's to say.
pub fn lower(kernel: &Kernel, schedule: &Schedule) -> Result<Program, Diagnostics> {
    let usage = usage::infer(kernel)?;
    let mut builder = Builder::new(kernel, schedule, &usage);
    let tensors = tensors::declare(&mut builder);
    let values = values::build(&mut builder, &tensors);
    let gathers = gather::place(&mut builder, &tensors);
    let scatter = scatter::place(&mut builder, &tensors);
    let table = tiles::order(&mut builder, &tensors, &gathers);
    gemm::build(&mut builder, &tensors, &values, &gathers, scatter.as_ref(), table);
    Ok(builder.finish())
}
