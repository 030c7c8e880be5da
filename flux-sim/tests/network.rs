//! Ranks of several nodes: every interleaving of what goes over the network, and every mutant of it.

mod common;

use common::{Case, Form, Tensors, problem};
use flux_ir::check::{Verified, verify};
use flux_ir::eval::Launch;
use flux_ir::kernel::Kernel;
use flux_ir::lower::lower;
use flux_ir::{Element, Rule, Schedule, Shape, Transport};
use flux_sim::adversary;
use flux_sim::explore::{Limits, run};
use flux_sim::mutants::score::{Subject, Verdict};

const GATHER: &str = include_str!("../../flux-ir/tests/filetests/kernel/ag_gemm_gelu.flux");

fn schedule(node: u32) -> Schedule {
    Schedule::host().tile(8, 8, 8).transport(Transport::Put).node(node)
}

fn gather(node: u32) -> Verified {
    let kernel: Kernel = GATHER.parse().expect("a kernel");
    verify(lower(&kernel, &schedule(node)).expect("a Program")).expect("a sound Program")
}

#[test]
fn what_the_checker_accepts_is_sound_in_every_interleaving() {
    for (node, world, m, ctas, epochs) in
        [(1, 2, 8, 1, 5), (1, 2, 9, 2, 3), (2, 3, 3, 1, 3), (1, 3, 3, 1, 3), (2, 4, 4, 1, 2)]
    {
        let verified = gather(node);
        let launch = Launch { shape: Shape { m, n: 3, k: 8 }, world, ctas };
        let outcome = run(verified.program(), launch, epochs, &Limits::default());
        let outcome = outcome.unwrap_or_else(|e| panic!("nodes of {node}, {launch:?}: {e}"));
        println!("nodes of {node}, {launch:?}: {} states", outcome.states);
        assert!(outcome.is_sound(), "nodes of {node}, {launch:?}: {outcome:?}");
    }
}

#[test]
fn every_mutant_is_rejected_or_equivalent() {
    let kernel: Kernel = GATHER.parse().expect("a kernel");
    // Of nodes of two ranks `make mutants` judges them.
    let subject = Subject::new(&kernel, &schedule(1)).expect("a sound Program");
    let score = subject.score();
    println!("{score}");
    let survivors: Vec<String> =
        score.survivors().map(|(mutant, why)| format!("{mutant}\n  {why}")).collect();
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
    let judged = &score.judged;
    let rejected = judged.iter().filter(|(_, v)| matches!(v, Verdict::Rejected(_))).count();
    assert!(10 * rejected > 8 * judged.len(), "{rejected} of {}", judged.len());
    for rule in [Rule::NotMapped, Rule::PutNotDelivered] {
        let found = judged.iter().any(|(_, v)| *v == Verdict::Rejected(rule));
        assert!(found, "no mutant breaks {rule}");
    }
}

/// Three launches of a gather that feeds a product, on ranks of several nodes: what they leave, in threads and in odd
/// interleavings in which the network is late and out of order.
#[test]
fn products_are_exact() {
    for (node, world, shape) in [
        (1, 2, Shape { m: 29, n: 17, k: 12 }),
        (2, 4, Shape { m: 29, n: 17, k: 12 }),
        (2, 3, Shape { m: 1, n: 9, k: 5 }),
        (4, 6, Shape { m: 45, n: 7, k: 19 }),
        (3, 8, Shape { m: 70, n: 9, k: 8 }),
    ] {
        let kernel = Form::Gather.kernel(Element::Bf16, true);
        for seed in 0..24 {
            let case = Case::new(&kernel, &schedule(node).chunk_rows(3), shape, world, 2);
            let launch =
                |epoch| problem(Form::Gather, Element::Bf16, true, shape, world, 7 * seed + epoch);
            let (mut launches, expected): (Vec<Vec<Tensors>>, Vec<_>) = (0..3).map(launch).unzip();
            if seed == 0 {
                case.run(&mut launches);
            } else {
                let args = launches
                    .iter_mut()
                    .map(|ranks| ranks.iter_mut().map(|tensors| case.args(tensors)).collect());
                let args = args.collect();
                let outcome = adversary::run(&case.verified, case.launch, args, seed);
                outcome.unwrap_or_else(|e| panic!("nodes of {node}, {world}, seed {seed}: {e}"));
            }
            for (ranks, expected) in launches.iter().zip(&expected) {
                for (tensors, expected) in ranks.iter().zip(expected) {
                    let found = tensors.outputs[0].1.values();
                    assert_eq!(found, *expected, "nodes of {node}, {world} ranks, seed {seed}");
                }
            }
        }
    }
}
