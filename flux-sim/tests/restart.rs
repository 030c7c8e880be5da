//! Workspaces that begin anew: after a failure, and at any number of launches.

mod common;

use common::{Case, Form, LIMIT, Tensors, problem};
use flux_ir::{Element, Schedule, Shape};
use flux_sim::{Error, Totals};
use std::time::Duration;

const SHAPE: Shape = Shape { m: 20, n: 12, k: 6 };

/// Three ranks of two CTAs, and what their outputs have to be.
fn case(form: Form) -> (Case, Vec<Tensors>, Vec<Vec<f64>>) {
    let kernel = form.kernel(Element::F32, true);
    let case = Case::new(&kernel, &Schedule::host().tile(8, 8, 16), SHAPE, 3, 2);
    let (tensors, expected) = problem(form, Element::F32, true, SHAPE, 3, 7);
    (case, tensors, expected)
}

/// Every rank's launch numbered `epoch`, with the results checked.
fn all_exact(case: &Case, tensors: &[Tensors], expected: &[Vec<f64>], epoch: u32) {
    let mut tensors = tensors.to_vec();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let launch = |(rank, tensors)| scope.spawn(move || case.rank(rank, epoch, tensors, LIMIT));
        let ranks: Vec<_> = (0..).zip(&mut tensors).map(launch).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    assert!(outcomes.iter().all(Result::is_ok), "launch {epoch}: {outcomes:?}");
    for (rank, (tensors, expected)) in tensors.iter().zip(expected).enumerate() {
        assert_eq!(tensors.outputs[0].1.values(), *expected, "launch {epoch}, rank {rank}");
    }
}

#[test]
fn a_lost_workspace_is_as_good_as_new_once_restarted() {
    for form in [Form::Gather, Form::Scatter, Form::GatherScatter] {
        let (case, tensors, expected) = case(form);
        for _ in 0..3 {
            let missing = case.rank(0, 1, &mut tensors[0].clone(), Duration::from_millis(50));
            assert!(matches!(missing, Err(Error::Stalled(_))), "{missing:?}");
            case.workspace.restart(0).expect("nobody runs");
            for epoch in 1..4 {
                all_exact(&case, &tensors, &expected, epoch);
            }
            case.workspace.restart(0).expect("nobody runs");
        }
    }
}

#[test]
fn launches_go_on_over_the_wrap_of_their_number() {
    for form in [Form::Gather, Form::Scatter, Form::GatherScatter] {
        let (case, tensors, expected) = case(form);
        // What signals are at is what launches make of them.
        for epoch in 1..6 {
            all_exact(&case, &tensors, &expected, epoch);
            let seen = Totals::after(case.verified.program(), case.launch, epoch);
            assert_eq!(case.workspace.totals(), seen.expect("a permutation"), "{form:?} {epoch}");
        }
        let last = u32::MAX - 4;
        case.workspace.restart(last).expect("nobody runs");
        for launch in 1..10 {
            all_exact(&case, &tensors, &expected, last.wrapping_add(launch));
        }
        let missing = case.rank(0, 6, &mut tensors[0].clone(), Duration::from_millis(50));
        assert!(matches!(missing, Err(Error::Epoch { expected: 5, .. })), "{missing:?}");
        // A rank that runs ahead is held back, on either side.
        case.workspace.restart(u32::MAX - 1).expect("nobody runs");
        let ahead = |epoch| case.rank(0, epoch, &mut tensors[0].clone(), Duration::from_millis(50));
        assert!(matches!(ahead(u32::MAX), Err(Error::Stalled(_))), "{form:?}");
    }
}
