//! What only the inside can see of a launch that fails.

#[path = "../../tests/common/mod.rs"]
mod common;

use super::*;
use crate::tensor::Input;
use crate::workspace::Place;
use common::{Case, Form, Tensors, problem};
use flux_ir::program::{Program, SignalId};
use flux_ir::{Element, Schedule, Shape};

fn case(form: Form, world: u32) -> (Case, Vec<Tensors>) {
    let shape = Shape { m: 20, n: 12, k: 6 };
    let kernel = form.kernel(Element::F32, true);
    let case = Case::new(&kernel, &Schedule::host().tile(8, 8, 16), shape, world, 2);
    let (tensors, _) = problem(form, Element::F32, true, shape, world, 7);
    (case, tensors)
}

fn signals(program: &Program, array: &str) -> Vec<SignalId> {
    let named = program.signals.iter().filter(|(_, signal)| signal.name.contains(array));
    named.map(|(id, _)| id).collect()
}

#[test]
fn a_stalled_rank_gives_no_credit() {
    for form in [Form::Gather, Form::Scatter, Form::GatherScatter] {
        let (case, mut tensors) = case(form, 2);
        let limit = Duration::from_millis(50);
        let stalled = case.rank(0, 1, &mut tensors[0], limit);
        assert!(matches!(stalled, Err(Error::Stalled { .. })), "{stalled:?}");
        let credits = signals(case.verified.program(), "free");
        assert!(!credits.is_empty());
        for (rank, credit) in (0..2).flat_map(|rank| credits.iter().map(move |id| (rank, *id))) {
            let word = case.workspace.signal(rank, credit, 0).expect("a signal for rank 0");
            assert_eq!(word.load(Ordering::Acquire), 0, "{form:?}, on rank {rank}");
        }
    }
}

#[test]
fn a_row_in_use_by_another_actor_is_a_race() {
    let (case, mut tensors) = case(Form::Gather, 1);
    let buffers = &case.verified.program().buffers;
    let all = buffers.handles().find_map(|id| case.workspace.symmetric(0, id));
    let Some(Place::Sheet(all)) = all else { panic!("a gathered operand has a workspace buffer") };
    let mut launched = Ok(());
    // The first launch writes the second plane: rows 20 to 39 in memory.
    let reader = |_: Input<'_>| {
        launched = case.rank(0, 1, &mut tensors[0], Duration::from_secs(5));
        Ok(())
    };
    all.read(27, 0..6, reader).expect("nobody writes yet");
    match launched {
        Err(Error::Race { rank: 0, agent, on: 0, row: 27, .. }) => assert_eq!(agent, "push_a"),
        other => panic!("expected a race, found {other:?}"),
    }
}

#[test]
fn a_panic_is_an_error_and_loses_the_workspace() {
    let (case, mut tensors) = case(Form::Plain, 1);
    let view = RankView::new(case.verified.program(), case.launch, 0).expect("a view");
    let memory = Memory::bind(&case.workspace, 0, case.args(&mut tensors[0])).expect("fits");
    let run = Run {
        workspace: &case.workspace,
        memory: &memory,
        view: &view,
        epoch: 1,
        limit: Duration::from_secs(5),
        failed: AtomicBool::new(false),
        error: Mutex::new(None),
        running_ctas: Vec::new(),
    };
    let actor = Actor { rank: 0, agent: "nobody", cta: 1 };
    run.guarded(actor, AgentId(99), Engine::Ctas);
    let error = lock(&run.error).clone();
    assert!(
        matches!(&error, Some(Error::Panicked { rank: 0, agent, cta: 1, message })
            if agent == "nobody" && message.contains("99")),
        "{error:?}"
    );
    assert_eq!(case.workspace.failure(), error);
}
