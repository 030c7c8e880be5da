//! What is slower or more never predicts less. Ranks that do the same never compete for a link at
//! different times, so that this holds exactly for the kernels and orders that are shipped.

use crate::kernels::{launch, library, predicted};
use flux_ir::Kernel;
use flux_ir::kernel::{Distribution, Lhs, Op};
use flux_ir::lower::lower;
use flux_sim::time::{Machine, Report};
use proptest::prelude::*;

fn machine(name: &str) -> Machine {
    Machine::find(name).expect("a machine")
}

fn faster(machine: Machine, factor: f64) -> Machine {
    machine.with_link_speed(factor).expect("within range")
}

/// The machine with a number of its file replaced.
fn with(machine: &Machine, section: &str, field: &str, value: f64) -> Machine {
    let mut json = serde_json::to_value(machine).expect("JSON");
    json[section][field] = value.into();
    Machine::read("changed", &json.to_string()).expect("a machine")
}

fn cases() -> impl Strategy<Value = (usize, u32, u32, u32, u32, u32)> {
    let kernels = library().len();
    (0..kernels, 1..4u32, 1..400u32, 1..800u32, prop::sample::select(vec![1, 2, 4, 8]), 1..9u32)
}

fn case(which: usize, shard: u32, n: u32, k: u32, world: u32, ctas: u32, on: &Machine) -> Report {
    let (kernel, schedule) = library().swap_remove(which);
    let program = lower(&kernel, &schedule).expect("it lowers");
    predicted(&program, launch(shard * 64 * world, n, k, world, ctas), on)
}

/// Whether what a product sums over arrives from every rank: gathered rows, or exchanged columns.
fn sums_what_arrives(kernel: &Kernel) -> bool {
    let waits = kernel.ops.values().any(|entry| matches!(entry.op, Op::Wait { .. }));
    let turned = |op: &Op| matches!(op, Op::Gemm { a: Lhs::Transposed(_), .. });
    let is_exchanged = |(found, ..): (Distribution, _, _)| found == Distribution::Exchanged;
    let exchanged = kernel.params.handles().any(|p| kernel.tensor(p).is_some_and(is_exchanged));
    waits && (exchanged || kernel.ops.values().any(|entry| turned(&entry.op)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_slower_link_never_predicts_less(
        (which, shard, n, k, world, ctas) in cases(),
        slow in 0.02f64..1.0,
        pcie in any::<bool>(),
    ) {
        let machine = machine(if pcie { "h200-pcie" } else { "h200-nvlink" });
        let fast = case(which, shard, n, k, world, ctas, &machine);
        let slow = case(which, shard, n, k, world, ctas, &faster(machine, slow));
        prop_assert!(slow.total >= fast.total, "{} < {}", slow.total, fast.total);
        prop_assert!(slow.exposed() >= fast.exposed());
        prop_assert!(slow.comm >= fast.comm);
        prop_assert_eq!(slow.gemm, fast.gemm);
    }

    #[test]
    fn costlier_parts_never_predict_less(
        (which, shard, n, k, world, ctas) in cases(),
        more in 1.0f64..20.0,
        part in 0..7usize,
    ) {
        let machine = machine("h200-nvlink");
        let (section, field) = [
            ("link", "copy_gap_us"), ("link", "flag_us"), ("link", "put_us"),
            ("link", "signal_us"), ("compute", "fill_us"), ("compute", "epilogue_cycles"),
            ("compute", "start_cycles"),
        ][part];
        let json = serde_json::to_value(&machine).expect("JSON");
        let value = json[section][field].as_f64().expect("a number") * more;
        let cheap = case(which, shard, n, k, world, ctas, &machine);
        let dear = case(which, shard, n, k, world, ctas, &with(&machine, section, field, value));
        prop_assert!(dear.total >= cheap.total, "{field}: {} < {}", dear.total, cheap.total);
    }

    #[test]
    fn a_launch_is_no_shorter_than_its_parts_and_its_path_covers_it(
        (which, shard, n, k, world, ctas) in cases(),
    ) {
        let machine = machine("h200-pcie");
        let report = case(which, shard, n, k, world, ctas, &machine);
        prop_assert!(report.total >= report.gemm);
        prop_assert!(report.total >= report.comm);
        let parts = report.path.by_kind(&report.timeline);
        let on_path: flux_sim::time::Time = parts.into_iter().map(|(_, time)| time).sum();
        prop_assert_eq!(on_path, report.total);
        for pair in report.path.segments.windows(2) {
            prop_assert!(pair[0].to <= pair[1].from);
        }
    }

    #[test]
    fn more_of_the_reduction_never_predicts_less(
        (which, shard, n, k, world, ctas) in cases(),
        more in 1..512u32,
    ) {
        // A tail's slices are whole k-steps: of a longer reduction there may be fewer, each with its wait.
        prop_assume!(library()[which].1.tail.is_none());
        // Nor is it so where ranks have shards of the reduction: of a longer one more of the first slice may be
        // a rank's own.
        prop_assume!(!sums_what_arrives(&library()[which].0));
        let machine = machine("h200-nvlink");
        let short = case(which, shard, n, k, world, ctas, &machine);
        let long = case(which, shard, n, k + more, world, ctas, &machine);
        prop_assert!(long.total >= short.total);
        prop_assert!(long.gemm >= short.gemm);
    }
}
