//! The adversary is one: Programs with a term of their protocol weakened give wrong bits under
//! it, where the checker lets them through at all.

mod common;

use common::{Case, Form, problem};
use flux_ir::check::verify;
use flux_ir::program::{Completion, Expr, Op, Program, Stmt};
use flux_ir::{Element, Schedule, Shape};
use flux_sim::{Workspace, adversary};

/// Every rank owns rows, so every rank waits for all others in every launch.
const SHARED: Shape = Shape { m: 29, n: 17, k: 12 };

/// One rank owns all rows, so ranks wait one way only, and may drift apart.
const LOPSIDED: Shape = Shape { m: 1, n: 17, k: 12 };

const WORLD: u32 = 3;
const LAUNCHES: u64 = 4;

/// Applies `change` to every statement of the Program.
fn weaken(program: &mut Program, mut change: impl FnMut(&mut Op, &dyn Fn(&Op) -> Option<String>)) {
    fn each(body: &mut [Stmt], change: &mut dyn FnMut(&mut Op)) {
        for stmt in body {
            change(&mut stmt.op);
            if let Op::For { body, .. } | Op::If { body, .. } = &mut stmt.op {
                each(body, change);
            }
        }
    }
    let names: Vec<_> = program.signals.values().map(|array| array.name.clone()).collect();
    let signal = move |op: &Op| match op {
        Op::Wait { signal, .. } | Op::Signal { signal, .. } => {
            Some(names[signal.0 as usize].clone())
        }
        _ => None,
    };
    for id in program.agents.handles().collect::<Vec<_>>() {
        let agent = &mut program.agents[id];
        for body in [&mut agent.body, &mut agent.exit] {
            each(body, &mut |op| change(op, &signal));
        }
    }
}

/// Lets waits for signals whose name contains `array` end at once.
fn without_wait(array: &str, program: &mut Program) {
    weaken(program, |op, signal| {
        let named = signal(op).is_some_and(|name| name.contains(array));
        if let Op::Wait { target, .. } = op
            && named
        {
            *target = Expr::Int(0);
        }
    });
}

/// Lets signals whose name contains `array` be raised before what precedes them is performed.
fn without_completion(array: &str, program: &mut Program) {
    weaken(program, |op, signal| {
        let named = signal(op).is_some_and(|name| name.contains(array));
        if let Op::Signal { after, .. } = op
            && named
        {
            *after = Completion::Read;
        }
    });
}

/// Whether some interleaving of `program` fails or gives other bits than the plain product.
fn is_caught(form: Form, shape: Shape, change: impl Fn(&mut Program)) -> bool {
    let element = Element::F32;
    let schedule = Schedule::host().tile(8, 8, 16).chunk_rows(3);
    let mut case = Case::new(&form.kernel(element, true), &schedule, shape, WORLD, 2);
    let mut program = case.verified.program().clone();
    change(&mut program);
    let Ok(verified) = verify(program) else { return true };
    if verified.check_launch(case.launch).is_err() {
        return true;
    }
    case.workspace = Workspace::new(&verified, case.launch).expect("a workspace");
    case.verified = verified;
    let problem = |epoch: u64| problem(form, element, true, shape, WORLD, epoch * 77);
    let (poisoned, expected): (Vec<_>, Vec<_>) = (1..=LAUNCHES).map(problem).unzip();
    (0..40).any(|seed| {
        let mut tensors = poisoned.clone();
        let args = tensors
            .iter_mut()
            .map(|ranks| ranks.iter_mut().map(|rank| case.args(rank)).collect())
            .collect();
        adversary::run(&case.verified, case.launch, args, seed).is_err()
            || tensors.iter().zip(&expected).any(|(ranks, expected)| {
                let found = ranks.iter().map(|tensors| tensors.outputs[0].1.values());
                found.zip(expected).any(|(found, expected)| found != *expected)
            })
    })
}

#[test]
fn an_untouched_program_is_not_caught() {
    for form in Form::ALL {
        assert!(!is_caught(form, SHARED, |_| ()) && !is_caught(form, LOPSIDED, |_| ()), "{form:?}");
    }
}

#[test]
fn a_shard_that_nobody_waits_for_is_caught() {
    assert!(is_caught(Form::Gather, SHARED, |program| without_wait("arrived", program)));
}

#[test]
fn a_contribution_that_nobody_waits_for_is_caught() {
    assert!(is_caught(Form::Scatter, SHARED, |program| without_wait("landed", program)));
}

#[test]
fn workspace_that_is_reused_without_credit_is_caught() {
    for form in [Form::Gather, Form::Scatter] {
        assert!(is_caught(form, LOPSIDED, |program| without_wait("free", program)), "{form:?}");
    }
}

#[test]
fn a_signal_ahead_of_its_data_is_caught() {
    assert!(is_caught(Form::Gather, SHARED, |program| without_completion("arrived", program)));
    assert!(is_caught(Form::Scatter, SHARED, |program| without_completion("landed", program)));
}
