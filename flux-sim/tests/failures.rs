//! What goes wrong is an error that says so, in time.

mod common;

use common::{Case, Form, Tensor, Tensors, problem};
use flux_ir::{Element, Schedule, Shape};
use flux_sim::{Error, Input, RankArgs, Stall, Workspace, launch_rank};
use std::time::{Duration, Instant};

const SHAPE: Shape = Shape { m: 20, n: 12, k: 6 };

fn case(form: Form, world: u32) -> (Case, Vec<Tensors>) {
    let kernel = form.kernel(Element::F32, true);
    let case = Case::new(&kernel, &Schedule::host().tile(8, 8, 16), SHAPE, world, 2);
    let (tensors, _) = problem(form, Element::F32, true, SHAPE, world, 7);
    (case, tensors)
}

#[test]
fn a_rank_that_never_comes_is_a_stall_that_names_the_signal() {
    for (form, array) in
        [(Form::Gather, "arrived"), (Form::Scatter, "landed"), (Form::GatherScatter, "arrived")]
    {
        let (case, mut tensors) = case(form, 2);
        let limit = Duration::from_millis(150);
        let start = Instant::now();
        let error = case.rank(0, 1, &mut tensors[0], limit).expect_err("rank 1 is missing");
        assert!(start.elapsed() < limit + Duration::from_secs(1), "{:?}", start.elapsed());
        let Error::Stalled(stall) = &error else { panic!("expected a stall, found {error:?}") };
        let Stall { rank, agent, tile, signal, seen, span, waited, .. } = &**stall;
        assert_eq!((*rank, agent.as_str(), *seen), (0, "gemm", 0));
        assert!(signal.contains(array), "{signal}");
        assert!(span.is_known() && *waited >= limit, "{error}");
        let [rows, cols] = tile.as_ref().expect("it was at a tile");
        assert!(rows.end <= SHAPE.m && cols.end <= SHAPE.n && !cols.is_empty(), "{tile:?}");
        let text = error.to_string();
        assert!(text.starts_with("rank 0: agent `gemm`, CTA "), "{text}");

        let again = case.rank(0, 2, &mut tensors[0], limit).expect_err("the workspace is lost");
        assert_eq!(again, Error::Lost { first: Box::new(error) });
    }
}

#[test]
fn peers_of_a_stalled_rank_end_early_and_name_it() {
    let (case, mut tensors) = case(Form::Gather, 3);
    let (first, rest) = tensors.split_at_mut(1);
    let start = Instant::now();
    let (patient, hasty) = std::thread::scope(|scope| {
        let patient = scope.spawn(|| case.rank(1, 1, &mut rest[0], Duration::from_secs(60)));
        let hasty = case.rank(0, 1, &mut first[0], Duration::from_millis(100));
        (patient.join().expect("no panic"), hasty)
    });
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let stalled = hasty.expect_err("rank 2 is missing");
    assert!(matches!(&stalled, Error::Stalled(stall) if stall.rank == 0), "{stalled:?}");
    match patient.expect_err("rank 2 is missing") {
        Error::Abandoned { stall, first } => {
            assert_eq!((stall.rank, stall.seen, *first), (1, 0, stalled));
        }
        other => panic!("expected rank 1 to give up, found {other:?}"),
    }
}

#[test]
fn launches_are_numbered_without_gaps() {
    let (case, mut tensors) = case(Form::Plain, 1);
    let limit = Duration::from_secs(5);
    let expected = |expected, found| Err(Error::Epoch { rank: 0, expected, found });
    assert_eq!(case.rank(0, 2, &mut tensors[0], limit), expected(1, 2));
    assert_eq!(case.rank(0, 1, &mut tensors[0], limit), Ok(()));
    assert_eq!(case.rank(0, 1, &mut tensors[0], limit), expected(2, 1));
    assert_eq!(case.rank(0, 2, &mut tensors[0], limit), Ok(()));
    assert_eq!(case.workspace.completed(0), Ok(2));
}

#[test]
fn one_rank_runs_one_launch_at_a_time() {
    let (case, mut tensors) = case(Form::Gather, 2);
    let (mut first, mut second) = (tensors[0].clone(), tensors.remove(0));
    let limit = Duration::from_millis(400);
    let (early, late) = std::thread::scope(|scope| {
        let early = scope.spawn(|| case.rank(0, 1, &mut first, limit));
        std::thread::sleep(limit / 4);
        let late = case.rank(0, 1, &mut second, limit);
        (early.join().expect("no panic"), late)
    });
    assert!(matches!(early, Err(Error::Stalled { .. })), "{early:?}");
    assert_eq!(late, Err(Error::Running { rank: 0, epoch: 1 }));
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_anything_runs() {
    let (case, tensors) = case(Form::Plain, 1);
    let limit = Duration::from_secs(5);
    let with = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = tensors[0].clone();
        change(&mut tensors);
        let error = case.rank(0, 1, &mut tensors, limit).expect_err("refused");
        error.to_string()
    };
    let short = |t: &mut Tensors| t.inputs[0].1 = Tensor::F32(vec![0.0; 119]);
    assert_eq!(with(&short), "rank 0: expected `a` of 20 x 6 = 120 elements, found 119");
    let long = |t: &mut Tensors| t.outputs[0].1 = Tensor::F32(vec![0.0; 241]);
    assert_eq!(with(&long), "rank 0: expected `c` of 20 x 12 = 240 elements, found 241");
    let other = |t: &mut Tensors| t.inputs[1].1 = Tensor::new(Element::F16, &[0.0; 72]);
    assert_eq!(with(&other), "rank 0: expected `b` of f32, found f16");
    let missing = |t: &mut Tensors| drop(t.inputs.pop());
    assert_eq!(with(&missing), "rank 0: expected input `b`, found none");
    let nowhere = |t: &mut Tensors| t.outputs.clear();
    assert_eq!(with(&nowhere), "rank 0: expected output `c`, found none");
    let twice = |t: &mut Tensors| t.inputs.push(t.inputs[0].clone());
    assert_eq!(with(&twice), "rank 0: expected each input of the kernel once, found `a`");
    let swapped = |t: &mut Tensors| {
        let c = Tensor::F32(vec![0.0; 240]);
        t.inputs.push(("c", c));
    };
    assert_eq!(with(&swapped), "rank 0: expected each input of the kernel once, found `c`");
    let scalar = |t: &mut Tensors| t.scalars.push(1.0);
    assert_eq!(with(&scalar), "rank 0: expected 0 scalars, found 1");

    let mut good = tensors[0].clone();
    assert_eq!(case.rank(0, 1, &mut good, limit), Ok(()), "refusals leave the workspace alone");
}

#[test]
fn a_workspace_serves_the_launch_it_was_made_for() {
    let (case, mut tensors) = case(Form::Plain, 1);
    let limit = Duration::from_secs(5);
    let mut other = case.launch;
    other.shape.n = 13;
    let args = case.args(&mut tensors[0]);
    let error = launch_rank(&case.verified, other, 0, 1, &case.workspace, args, limit);
    let text = error.expect_err("another shape").to_string();
    assert_eq!(
        text,
        "the workspace was made for `product` at 20x12x6 with 1 ranks of 2 CTAs, \
         found `product` at 20x13x6 with 1 ranks of 2 CTAs"
    );
    let args = case.args(&mut tensors[0]);
    let error = launch_rank(&case.verified, case.launch, 1, 1, &case.workspace, args, limit);
    assert_eq!(error, Err(Error::NoSuchRank { rank: 1, world: 1 }));

    let (transposed, _) = self::case(Form::Gather, 1);
    let empty: [f32; 0] = [];
    let args = RankArgs {
        inputs: vec![(case.buffer("a"), Input::from(empty.as_slice()))],
        ..RankArgs::default()
    };
    let error = launch_rank(&transposed.verified, case.launch, 0, 1, &case.workspace, args, limit);
    assert!(matches!(error, Err(Error::OtherLaunch { .. })), "{error:?}");
}

#[test]
fn a_workspace_over_the_limit_is_refused_before_it_is_allocated() {
    let kernel = Form::Scatter.kernel(Element::F32, true);
    let program = flux_ir::lower::lower(&kernel, &Schedule::host()).expect("lowers");
    let verified = flux_ir::check::verify(program).expect("verifies");
    let shape = Shape { m: 1 << 16, n: 1 << 16, k: 64 };
    let launch = flux_ir::eval::Launch { shape, world: 8, ctas: 1 };
    let needed = Workspace::bytes(&verified, launch).expect("a size");
    // Two epochs of contributions from every rank to every rank.
    assert!(needed >= 2 * 8 * (1 << 32) * 4, "{needed}");
    match Workspace::new(&verified, launch) {
        Err(Error::TooLarge { bytes, limit, .. }) => {
            assert_eq!((bytes, limit), (needed, flux_sim::DEFAULT_LIMIT_BYTES));
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
    let small = flux_ir::eval::Launch { shape: SHAPE, world: 2, ctas: 1 };
    let needed = Workspace::bytes(&verified, small).expect("a size");
    assert!(Workspace::with_limit(&verified, small, needed).is_ok());
    assert!(Workspace::with_limit(&verified, small, needed - 1).is_err());
    let none = flux_ir::eval::Launch { ctas: 0, ..small };
    assert_eq!(Workspace::new(&verified, none).err(), Some(Error::NoCtas));
}

#[test]
fn a_workspace_can_be_shared_by_threads() {
    fn shared<T: Send + Sync + 'static>(_: &T) {}
    shared(&case(Form::Plain, 1).0.workspace);
}
