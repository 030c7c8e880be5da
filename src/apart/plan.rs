//! What has to happen around the kernel of one rank, so that it does what the kernel of many would.

use flux_ir::Kernel;
use flux_ir::kernel::{Distribution, Op, ParamId, Value};
use flux_ir::lower::usage::Usage;

/// What is done with a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The kernel takes this rank's own as it is.
    Own,
    /// All shards come ahead of the kernel.
    Gathered,
    /// The kernel writes this rank's contribution to all rows; their sum goes to the owners.
    Scattered,
    /// The kernel writes this rank's contribution; the sum goes to every rank.
    Reduced,
    /// This rank's rows of all column shards come ahead of the kernel.
    Received,
    /// The kernel writes all columns of this rank's rows; they go to the owners of columns.
    Sent,
}

/// The way of each parameter.
///
/// # Errors
/// What of the kernel nobody but its own Program can do, and what to do instead.
pub(super) fn ways(kernel: &Kernel, usage: &Usage) -> Result<Vec<Way>, String> {
    if kernel.protocol.is_some() {
        return Err("it moves data by a protocol of its own (workspace, signals, roles)".into());
    }
    for (sum, entry) in kernel.ops.iter() {
        if let Op::Reduce { output, .. } = entry.op {
            only_stored(kernel, sum, output)?;
        }
    }
    kernel.params.handles().map(|param| way(kernel, usage, param)).collect()
}

fn way(kernel: &Kernel, usage: &Usage, param: ParamId) -> Result<Way, String> {
    let Some((distribution, _, is_output)) = kernel.tensor(param) else { return Ok(Way::Own) };
    match (distribution, is_output) {
        (Distribution::Global, _) => Ok(Way::Own),
        (Distribution::Gathered, _) => Ok(Way::Gathered),
        (Distribution::Scattered, _) => Ok(Way::Scattered),
        (Distribution::Reduced, _) => Ok(Way::Reduced),
        (Distribution::Exchanged, false) => Ok(Way::Received),
        (Distribution::Exchanged, true) => Ok(Way::Sent),
        (Distribution::Sharded, _) if usage.own_rows() => Ok(Way::Own),
        (Distribution::Sharded, _) => {
            let name = &kernel.params[param].name;
            Err(format!("`{name}` is read in this rank's own rows beside tiles of all rows"))
        }
    }
}

/// Checks that the sum over ranks is stored and nothing else is done with it: the kernel of one rank
/// sees no sum.
fn only_stored(kernel: &Kernel, sum: Value, output: ParamId) -> Result<(), String> {
    let name = &kernel.params[output].name;
    for entry in kernel.ops.values() {
        let is_used = match &entry.op {
            Op::Store { output: to, x } => *x == sum && *to != output,
            Op::Unary { x, .. } | Op::Cast { x, .. } | Op::Reduce { x, .. } => *x == sum,
            Op::Binary { x, y, .. } => *x == sum || *y == sum,
            Op::Wait { .. }
            | Op::Await { .. }
            | Op::Ready { .. }
            | Op::Gemm { .. }
            | Op::Cols { .. }
            | Op::Rows { .. }
            | Op::Load { .. }
            | Op::LoadReady { .. }
            | Op::Const(_)
            | Op::Scalar { .. }
            | Op::Put { .. }
            | Op::Total { .. }
            | Op::Keep { .. } => false,
        };
        if is_used {
            return Err(format!(
                "it goes on with the sum over ranks before `{name}` is stored: write `{name}.add(tile, …)` \
                 and do the rest in a kernel behind it"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Way, ways};
    use crate::{Definition, kernels};
    use flux_ir::lower::usage;

    fn of(definition: &Definition) -> Result<Vec<Way>, String> {
        let kernel = definition.kernel().expect("a shipped kernel");
        let usage = usage::infer(&kernel).expect("its parameters have a meaning");
        ways(&kernel, &usage)
    }

    #[test]
    fn collectives_stand_for_what_is_gathered_summed_and_exchanged() {
        use Way::{Gathered, Own, Received, Reduced, Scattered, Sent};
        for (definition, expected) in [
            (kernels::gemm_bf16::definition(), vec![Own, Own, Own]),
            (kernels::ag_gemm::definition(), vec![Gathered, Own, Own]),
            (kernels::ag_gemm_gathered::definition(), vec![Gathered, Own, Own, Own]),
            (kernels::gemm_ag_tn::definition(), vec![Own, Gathered, Own]),
            (kernels::gemm_rs::definition(), vec![Own, Own, Scattered]),
            (kernels::gemm_ar::definition(), vec![Own, Own, Reduced]),
            (kernels::a2a_gemm::definition(), vec![Received, Own, Own]),
            (kernels::gemm_a2a::definition(), vec![Own, Own, Sent]),
            (kernels::columns_to_rows::definition(), vec![Received, Own]),
        ] {
            assert_eq!(of(definition), Ok(expected), "{}", definition.name);
        }
    }

    #[test]
    fn what_follows_a_sum_is_refused_by_name() {
        for definition in [
            kernels::gemm_rs_bias_residual::definition(),
            kernels::gemm_ar_bias_residual::definition(),
        ] {
            let said = of(definition).expect_err("it adds a bias behind the sum");
            assert!(said.contains("`c.add(tile, …)`"), "{said}");
        }
    }

    #[test]
    fn all_other_shipped_kernels_have_a_way() {
        let refused: Vec<_> =
            kernels::all().into_iter().filter(|of| self::of(of).is_err()).collect();
        let names: Vec<_> = refused.iter().map(|definition| definition.name).collect();
        assert_eq!(names, ["gemm_rs_bias_residual", "gemm_ar_bias_residual"]);
    }
}
