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
//! | `tiles::order` | chunk maps | the tile table |
//! | `gemm::build` | all of the above | the agent on CTAs |
//! | `Staged::drain` | chunk map | the agents that send contributions |

mod build;
mod gather;
mod gemm;
mod put;
mod scatter;
mod tensors;
mod tiles;
pub mod usage;
mod values;

use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Distribution, Kernel, Param, ParamId};
use crate::program::Program;
use crate::schedule::{Schedule, Transport};
use build::Builder;
use usage::Dim;

/// Lowers `kernel` under `schedule`, for any M, N, K ≥ 1 and any world.
///
/// # Errors
/// Every rule the kernel breaks. Whether the schedule fits its target is the checker's to say.
pub fn lower(kernel: &Kernel, schedule: &Schedule) -> Result<Program, Diagnostics> {
    let usage = usage::infer(kernel)?;
    transport(kernel, schedule, &usage)?;
    let mut builder = Builder::new(kernel, schedule, &usage);
    let tensors = tensors::declare(&mut builder);
    let values = values::build(&mut builder, &tensors);
    let gathers = gather::place(&mut builder, &tensors);
    let scatter = scatter::place(&mut builder, &tensors);
    let table = tiles::order(&mut builder, &tensors, &gathers, scatter.as_ref());
    gemm::build(&mut builder, &tensors, &values, &gathers, scatter.as_ref(), table);
    if let Some((scatter, staged)) = scatter.as_ref().zip(scatter.as_ref().and_then(|s| s.staged)) {
        for sender in staged.drain(&mut builder, &tensors, scatter) {
            builder.program.agents.push(sender);
        }
    }
    Ok(builder.finish())
}

/// Whether bytes can move as the schedule wants it.
fn transport(
    kernel: &Kernel,
    schedule: &Schedule,
    usage: &usage::Usage,
) -> Result<(), Diagnostics> {
    let find = |wanted: Distribution| {
        kernel.params.iter().find(|(id, _)| {
            kernel.tensor(*id).is_some_and(|(distribution, ..)| distribution == wanted)
        })
    };
    let (gathered, scattered) = (find(Distribution::Gathered), find(Distribution::Scattered));
    let refuse = |(_, param): (ParamId, &Param), message: String, help: &str| {
        Err(Diagnostic::new(Rule::Schedule, param.span, message).help(help).into())
    };
    if let (Some(param), None, Some(_)) = (gathered, scattered, schedule.head) {
        let message = format!(
            "expected no `head` where nothing is scattered, found one for the gathered `{}`",
            param.1.name
        );
        return refuse(param, message, "leave `head` out: it is of contributions that leave");
    }
    let usage = |param: ParamId| usage.dims(param).map(|dims| dims.cols);
    let is_gathered = |id| kernel.tensor(id).is_some_and(|(d, ..)| d == Distribution::Gathered);
    let gathers: Vec<_> = kernel.params.iter().filter(|(id, _)| is_gathered(*id)).collect();
    if let Some(&param) = gathers.iter().find(|(id, _)| usage(*id) != Some(Dim::K))
        && schedule.tail.is_some()
    {
        let message = format!(
            "expected no `tail` where the epilogue reads `{}`, found one: slices are of a product",
            param.1.name
        );
        return refuse(param, message, "leave `tail` out, and name `chunk_rows`");
    }
    if let Some(first) = gathered
        && let Some(&param) = gathers.iter().find(|(id, _)| usage(*id) != usage(first.0))
        && schedule.transport == Some(Transport::Put)
    {
        let message = format!(
            "expected tensors of one width where the kernel pushes them, found `{}` and `{}`",
            first.1.name, param.1.name
        );
        return refuse(param, message, "leave `transport` out: copy engines gather both");
    }
    match (schedule.transport, gathered, scattered) {
        (Some(Transport::Put), Some(param), _) if schedule.tail.is_some() => {
            let message = format!(
                "expected no `tail` where the kernel pushes `{}` itself, found both",
                param.1.name
            );
            refuse(param, message, "leave `tail` out: pieces are small already")
        }
        (Some(Transport::CopyFirst), None, Some(param)) => {
            let message = format!(
                "expected `transport = put` or `copy_engine` for the scattered `{}`, found copy_first",
                param.1.name
            );
            refuse(param, message, "leave `transport` out: contributions follow the product")
        }
        (Some(Transport::CopyEngine), Some(_), Some(param)) => {
            let message = format!(
                "expected contributions to `{}` to be put, as the kernel also gathers",
                param.1.name
            );
            refuse(param, message, "leave `transport` out: copy engines gather, tiles are put")
        }
        _ => Ok(()),
    }
}
