//! Kernel × schedule to Program.
//!
//! The passes, in order; each is a plain function:
//!
//! | pass | needs | gives |
//! |---|---|---|
//! | [`usage::infer`] | a kernel | the role, dimensions and row domain of every parameter and value |
//! | `roles::of_gathers` | a schedule | the kernel with roles that pull shards or hand them on |
//! | `tensors::declare` | roles | buffers of the launch, shard arithmetic as definitions |
//! | `values::build` | buffers | the epilogue's dataflow |
//! | `gather::place` | shards | workspace, chunk map and the agent that pushes shards |
//! | `exchange::place` | shards | workspace and signals of exchanged tensors, the agents that move them |
//! | `scatter::place` | shards | workspace and signals of contributions |
//! | `chain::place` | tensors | workspace and signals of a sum that passes from rank to rank |
//! | `one_shot::place` | tensors | workspace and signals of a sum that every rank takes |
//! | `protocol::place` | tensors | workspace, signals and roles of the user's own |
//! | `keep::place` | workspace | the copy warps that give gathered tensors back |
//! | `tiles::order` | chunk maps | the tile table |
//! | `gemm::build` | all of the above | the agent on CTAs |
//! | `Total::bring` | tiles | the agent that brings sums from their owners |
//! | `Pulled::bring` | tiles | the agent that brings contributions to the owner of their rows |
//! | `Staged::drain` | chunk map | the agents that send contributions |

mod build;
mod chain;
mod checked;
mod exchange;
mod gather;
mod gemm;
mod keep;
mod nodes;
mod one_shot;
mod protocol;
mod pull;
mod put;
mod reduce;
mod roles;
mod scatter;
mod slices;
mod tensors;
mod tiles;
pub mod usage;
mod values;

use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Distribution, Kernel, Op, OpEntry, Param, ParamId};
use crate::program::Program;
use crate::schedule::{AllReduce, ReduceScatter, Schedule, Transport};
use build::Builder;
pub use checked::checked;
use usage::Dim;

/// Lowers `kernel` under `schedule`, for any M, N, K ≥ 1 and any world.
///
/// # Errors
/// Every rule the kernel breaks. Whether the schedule fits its target is the checker's to say.
pub fn lower(kernel: &Kernel, schedule: &Schedule) -> Result<Program, Diagnostics> {
    let usage = usage::infer(kernel)?;
    transport(kernel, schedule, &usage)?;
    if let Some((kernel, schedule)) = roles::of_gathers(kernel, schedule, &usage)? {
        return lower(&kernel, &schedule);
    }
    protocol::check(kernel, schedule)?;
    let mut builder = Builder::new(kernel, schedule, &usage);
    let tensors = tensors::declare(&mut builder);
    let values = values::build(&mut builder, &tensors);
    let gathers = gather::place(&mut builder, &tensors);
    let scatter = scatter::place(&mut builder, &tensors);
    let chain = chain::place(&mut builder, &tensors);
    let one_shot = one_shot::place(&mut builder, &tensors);
    let protocol = protocol::place(&mut builder, &tensors, one_shot.as_ref());
    let kept = keep::place(&mut builder, &tensors, &gathers, protocol.as_ref());
    let exchanges = exchange::place(&mut builder, &tensors);
    let tiles = tiles::order(&mut builder, &tensors, (&gathers, &exchanges), scatter.as_ref());
    let moved = gemm::Moved {
        gathers: &gathers,
        exchanges: &exchanges,
        scatter: scatter.as_ref(),
        chain: chain.as_ref(),
        one_shot: one_shot.as_ref(),
        protocol: protocol.as_ref(),
        kept: kept.as_ref(),
    };
    gemm::build(&mut builder, &tensors, &values, &moved, &tiles);
    if let Some(total) = scatter.as_ref().and_then(|scatter| scatter.total.as_ref()) {
        let agent = total.bring(&mut builder, &tensors, &tiles);
        builder.beside(agent);
    }
    if let Some(scatter) = &scatter
        && let Some(pulled) = scatter.pulled
    {
        let agent = pulled.bring(&mut builder, &tensors, (scatter, &tiles));
        builder.beside(agent);
    }
    if let Some(agent) = exchanges.land(&mut builder, &tensors, &tiles) {
        builder.program.agents.push(agent);
    }
    if let Some((scatter, staged)) = scatter.as_ref().zip(scatter.as_ref().and_then(|s| s.staged)) {
        for sender in staged.drain(&mut builder, &tensors, scatter) {
            builder.program.agents.push(sender);
        }
    }
    Ok(builder.finish())
}

/// Whether the kernel itself moves what copy engines would.
fn pushes(schedule: &Schedule) -> bool {
    schedule.transport.is_some_and(Transport::is_in_kernel)
}

/// Whether bytes can move as the schedule wants it.
fn transport(
    kernel: &Kernel,
    schedule: &Schedule,
    usage: &usage::Usage,
) -> Result<(), Diagnostics> {
    countable(kernel, schedule)?;
    nodes::check(kernel, schedule)?;
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
            "expected no `tail` where `{}` has other columns than k, found one: slices are of those",
            param.1.name
        );
        return refuse(param, message, "leave `tail` out, and name `chunk_rows`");
    }
    if let Some(first) = gathered
        && let Some(&param) = gathers.iter().find(|(id, _)| usage(*id) != usage(first.0))
        && pushes(schedule)
    {
        let message = format!(
            "expected tensors of one width where the kernel pushes them, found `{}` and `{}`",
            first.1.name, param.1.name
        );
        return refuse(param, message, "leave `transport` out: copy engines gather both");
    }
    if let Some((_, reduced)) = find(Distribution::Reduced) {
        all_reduce(schedule, reduced, gathered.map(|(_, param)| param))?;
    } else if let Some(algorithm) = schedule.all_reduce {
        let name = algorithm.name();
        let message = format!("expected no `all_reduce` where nothing is reduced, found `{name}`");
        let diagnostic = Diagnostic::new(Rule::Schedule, kernel.span, message);
        let help = "leave `all_reduce` out, or declare an output `&mut Reduced<_>`";
        return Err(diagnostic.help(help).into());
    }
    reduce_scatter(kernel, schedule, scattered, gathered)?;
    let exchanged = |written| {
        kernel.params.iter().find(|(id, _)| {
            kernel.tensor(*id).is_some_and(|(distribution, _, is_written)| {
                distribution == Distribution::Exchanged && is_written == written
            })
        })
    };
    let (incoming, outgoing) = (exchanged(false), exchanged(true));
    let copied = gathered.or(incoming).or(outgoing).is_some() || kernel.protocol.is_some();
    if schedule.transport == Some(Transport::Tma) && !copied {
        bulk_copies(schedule, scattered, find(Distribution::Reduced))?;
    }
    if let Some(param) = incoming.or(outgoing) {
        let name = &param.1.name;
        if schedule.tail.is_some() || schedule.head.is_some() {
            let message = format!("expected neither `head` nor `tail`, as `{name}` is exchanged");
            return refuse(param, message, "leave them out: columns arrive rank by rank already");
        }
        if !exchange::moves(schedule.transport, incoming.is_some(), outgoing.is_some()) {
            let transport = schedule.transport.map_or("", Transport::name);
            let message =
                format!("expected no `transport = {transport}` where `{name}` is exchanged");
            let help = "leave it out: tiles are put, and copy warps bring them into the output";
            return refuse(param, message, help);
        }
        let width = |id| kernel.tensor(id).filter(|(d, _, w)| *d == Distribution::Exchanged && !w);
        let apart = kernel.params.iter().find(|(id, _)| {
            width(*id).is_some() && incoming.is_some_and(|first| usage(first.0) != usage(*id))
        });
        if let (Some(param), true) = (apart, pushes(schedule)) {
            let message = format!(
                "expected tensors of one width where the kernel pushes them, found `{name}` and `{}`",
                param.1.name
            );
            return refuse(param, message, "leave `transport` out: copy engines send both");
        }
    }
    match (schedule.transport, gathered, scattered) {
        (Some(Transport::Put | Transport::Tma), Some(param), _) if schedule.tail.is_some() => {
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

/// Whether bulk copies have something to move where all that leaves a rank are tiles: sums that owners
/// pull, or that others bring from there.
fn bulk_copies(
    schedule: &Schedule,
    scattered: Option<(ParamId, &Param)>,
    reduced: Option<(ParamId, &Param)>,
) -> Result<(), Diagnostics> {
    let pulls = schedule.reduce_scatter == Some(ReduceScatter::Pull);
    let brings = schedule.all_reduce.unwrap_or_default() == AllReduce::TwoShot;
    let stored = match (scattered, reduced) {
        (Some(param), _) if !pulls => Some((param, "reduce_scatter = pull")),
        (_, Some(param)) if !brings => Some((param, "all_reduce = two_shot")),
        _ => None,
    };
    let Some(((_, param), copied)) = stored else { return Ok(()) };
    let message = format!(
        "expected something to copy where `transport = tma`, found tiles of `{}` alone, which are stored",
        param.name
    );
    let help = format!("leave `transport` out, or add `{copied}`");
    Err(Diagnostic::new(Rule::Schedule, param.span, message).help(help).into())
}

/// Whether rows and copies of the schedule are numbers that index arithmetic can take.
fn countable(kernel: &Kernel, schedule: &Schedule) -> Result<(), Diagnostics> {
    const MOST: u32 = i32::MAX as u32;
    let counts = [
        ("chunk_rows", schedule.chunk_rows),
        ("head", schedule.head.map(|head| head.rows.max(head.copies))),
        ("tail", schedule.tail.map(|tail| tail.rows.max(tail.slices))),
    ];
    for (name, count) in counts {
        if let Some(count) = count.filter(|&count| count > MOST) {
            let message = format!("{name} = {count} is over the limit of {MOST}");
            let help = format!("leave `{name}` out, or cut what a rank holds: it has no more rows");
            return Err(Diagnostic::new(Rule::Schedule, kernel.span, message).help(help).into());
        }
    }
    Ok(())
}

/// Whether the schedule moves contributions to a scattered output as they can be: a sum that passes
/// from rank to rank is put, tile by tile.
fn reduce_scatter(
    kernel: &Kernel,
    schedule: &Schedule,
    scattered: Option<(ParamId, &Param)>,
    gathered: Option<(ParamId, &Param)>,
) -> Result<(), Diagnostics> {
    let refuse = |span, message: String, help: &str| {
        Err(Diagnostic::new(Rule::Schedule, span, message).help(help).into())
    };
    let sums = |entry: &OpEntry| matches!(entry.op, Op::Reduce { .. });
    if let (Some(element), false) = (schedule.partials, kernel.ops.values().any(sums)) {
        let own = kernel.ops.values().any(|entry| matches!(entry.op, Op::Total { .. }));
        let (what, help) = match own {
            true => {
                ("a kernel says itself what it puts", "name the type there: `flagged::<f32>(…)`")
            }
            false => ("nothing is summed over ranks", "leave `partials` out"),
        };
        let message = format!("expected no `partials` where {what}, found `{element}`");
        return refuse(kernel.span, message, help);
    }
    let Some(algorithm) = schedule.reduce_scatter else { return Ok(()) };
    let name = algorithm.name();
    let Some((_, param)) = scattered else {
        let message =
            format!("expected no `reduce_scatter` where nothing is scattered, found `{name}`");
        let help = "leave `reduce_scatter` out, or declare an output `&mut Scattered<_>`";
        return refuse(kernel.span, message, help);
    };
    if algorithm == ReduceScatter::LocalSum {
        return Ok(());
    }
    let output = &param.name;
    if let (Some(transport @ (Transport::CopyEngine | Transport::CopyFirst)), None) =
        (schedule.transport, gathered)
    {
        let found = transport.name();
        let message =
            format!("expected tiles to be put where the sum `{output}` is {name}, found {found}");
        return refuse(param.span, message, "leave `transport` out");
    }
    let cut = [("head", schedule.head.is_some()), ("tail", schedule.tail.is_some())];
    if let (Some((what, _)), None) = (cut.into_iter().find(|(_, is_cut)| *is_cut), gathered) {
        let message = format!("expected no `{what}` where `reduce_scatter = {name}`, found one");
        return refuse(param.span, message, &format!("leave `{what}` out: tiles pass one by one"));
    }
    if let (ReduceScatter::Pull, true, Some((_, gathered))) =
        (algorithm, pushes(schedule), gathered)
    {
        let message = format!(
            "expected copy warps for one of the gathered `{}` and the pulled `{output}`, found both",
            gathered.name
        );
        return refuse(param.span, message, "leave `transport` out: copy engines gather");
    }
    Ok(())
}

/// Whether the schedule moves what is reduced as it can be: contributions are put.
fn all_reduce(
    schedule: &Schedule,
    reduced: &Param,
    gathered: Option<&Param>,
) -> Result<(), Diagnostics> {
    let name = &reduced.name;
    let refuse = |message: String, help: &str| {
        Err(Diagnostic::new(Rule::Schedule, reduced.span, message).help(help).into())
    };
    let Some(gathered) = gathered else {
        if let Some(transport @ (Transport::CopyEngine | Transport::CopyFirst)) = schedule.transport
        {
            let found = transport.name();
            let message =
                format!("expected `transport = put` for the reduced `{name}`, found {found}");
            return refuse(message, "leave `transport` out: contributions are put");
        }
        let cut = [("head", schedule.head.is_some()), ("tail", schedule.tail.is_some())];
        if let Some((what, _)) = cut.into_iter().find(|(_, is_cut)| *is_cut) {
            let message = format!("expected no `{what}` for the reduced `{name}`, found one");
            return refuse(
                message,
                &format!("leave `{what}` out: tiles are put as they are ready"),
            );
        }
        return Ok(());
    };
    let two_shot = schedule.all_reduce.unwrap_or_default() == AllReduce::TwoShot;
    if two_shot && pushes(schedule) {
        let message = format!(
            "expected copy warps for one of the gathered `{}` and the reduced `{name}`, found both",
            gathered.name
        );
        return refuse(message, "leave `transport` out: copy engines gather");
    }
    Ok(())
}
