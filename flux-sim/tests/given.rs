//! Workspaces over memory that is given: each rank has one of its own over the same words, as
//! processes do.

mod common;

use common::{Case, Form, LIMIT, Tensors, problem};
use flux_ir::{Element, Schedule, Shape};
use flux_sim::{Error, Parts, Totals, Workspace};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SHAPE: Shape = Shape { m: 21, n: 13, k: 6 };
const WORLD: u32 = 3;

#[derive(Debug)]
struct Words {
    parts: Vec<Vec<AtomicU32>>,
    lost: Mutex<Option<(u32, String)>>,
}

impl Parts for Words {
    fn words(&self, rank: u32) -> &[AtomicU32] {
        &self.parts[rank as usize]
    }

    fn lost(&self) -> Option<(u32, String)> {
        self.lost.lock().expect("nobody panics").clone()
    }
}

/// What each rank has, all over the same words, and what its output has to be.
struct Ranks {
    cases: Vec<Case>,
    words: Arc<Words>,
    tensors: Vec<Tensors>,
    expected: Vec<Vec<f64>>,
}

impl Ranks {
    fn new(form: Form, element: Element) -> Ranks {
        let kernel = form.kernel(element, true);
        let case = || Case::new(&kernel, &Schedule::host().tile(8, 8, 16), SHAPE, WORLD, 2);
        let Case { verified, launch, .. } = case();
        let words = |rank| Workspace::words(&verified, launch, rank).expect("a permutation");
        let part = |rank| (0..words(rank)).map(|_| AtomicU32::new(0)).collect();
        let parts = (0..WORLD).map(part).collect();
        let words = Arc::new(Words { parts, lost: Mutex::new(None) });
        let cases = (0..WORLD).map(|_| {
            let case = case();
            let workspace = Workspace::over(&case.verified, case.launch, words.clone());
            Case { workspace: workspace.expect("enough words"), ..case }
        });
        let cases = cases.collect();
        let (tensors, expected) = problem(form, element, true, SHAPE, WORLD, 7);
        Ranks { cases, words, tensors, expected }
    }

    fn launch(&self, ranks: &[u32], epoch: u32, limit: Duration) -> Vec<Result<Vec<f64>, Error>> {
        std::thread::scope(|scope| {
            let launch = |rank: u32| {
                let mut tensors = self.tensors[rank as usize].clone();
                scope.spawn(move || {
                    self.cases[rank as usize].rank(rank, epoch, &mut tensors, limit)?;
                    Ok(tensors.outputs[0].1.values())
                })
            };
            let ranks: Vec<_> = ranks.iter().map(|&rank| launch(rank)).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        })
    }

    fn all_exact(&self, epochs: std::ops::RangeInclusive<u32>) {
        for epoch in epochs {
            for (found, expected) in
                self.launch(&[0, 1, 2], epoch, LIMIT).iter().zip(&self.expected)
            {
                assert_eq!(found.as_ref(), Ok(expected), "launch {epoch}");
            }
        }
    }

    fn restart(&self, launches: u32) {
        for (case, rank) in self.cases.iter().zip(0..) {
            case.workspace.restart_rank(rank, launches).expect("nobody runs");
        }
    }
}

#[test]
fn ranks_with_a_workspace_each_get_what_threads_get() {
    for form in [Form::Plain, Form::Gather, Form::Scatter, Form::GatherScatter, Form::Reduce] {
        for element in [Element::Bf16, Element::F16, Element::F32] {
            let ranks = Ranks::new(form, element);
            ranks.all_exact(1..=4);
            let case = &ranks.cases[1];
            let totals = Totals::after(case.verified.program(), case.launch, 4);
            assert_eq!(case.workspace.totals(), totals.expect("a permutation"), "{form:?}");
            ranks.restart(0);
            ranks.all_exact(1..=2);
            ranks.restart(u32::MAX - 1);
            for epoch in [u32::MAX, 0, 1] {
                ranks.all_exact(epoch..=epoch);
            }
        }
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_before_their_limit() {
    let ranks = Ranks::new(Form::GatherScatter, Element::Bf16);
    let start = Instant::now();
    // Rank 2 does not launch, rank 0 gives up soon.
    let (short, long) = (Duration::from_millis(100), Duration::from_secs(60));
    let [first, second] = std::thread::scope(|scope| {
        let launch = |rank, limit| {
            let ranks = &ranks;
            scope.spawn(move || ranks.launch(&[rank], 1, limit).remove(0))
        };
        [launch(0, short), launch(1, long)].map(|rank| rank.join().expect("no panic"))
    });
    assert!(start.elapsed() < long / 2);
    assert!(matches!(first, Err(Error::Stalled(_))), "{first:?}");
    let Err(Error::Abandoned { first, .. }) = second else { panic!("{second:?}") };
    assert_eq!(*first, Error::PeerFailed { rank: 0 });
    // Nor does the one who was not there begin on what is lost.
    let third = ranks.launch(&[2], 1, long).remove(0);
    assert!(matches!(third, Err(Error::Lost { .. })), "{third:?}");
    ranks.restart(0);
    ranks.all_exact(1..=2);
}

#[test]
fn a_rank_that_is_gone_ends_the_others_at_once() {
    let ranks = Ranks::new(Form::Gather, Element::F32);
    let start = Instant::now();
    let long = Duration::from_secs(60);
    let outcomes = std::thread::scope(|scope| {
        let launched = scope.spawn(|| ranks.launch(&[0, 1], 1, long));
        std::thread::sleep(Duration::from_millis(100));
        *ranks.words.lost.lock().expect("nobody panics") = Some((2, "killed".into()));
        launched.join().expect("no panic")
    });
    assert!(start.elapsed() < long / 2);
    for outcome in outcomes {
        let Err(Error::Abandoned { first, .. }) = outcome else { panic!("{outcome:?}") };
        let is_told = matches!(*first, Error::PeerLost { rank: 2, .. } | Error::PeerFailed { .. });
        assert!(is_told, "{first:?}");
    }
}

#[test]
fn memory_that_is_too_small_is_refused() {
    let Ranks { cases, words, .. } = Ranks::new(Form::Gather, Element::F32);
    let Case { verified, launch, .. } = &cases[0];
    let mut parts: Vec<Vec<AtomicU32>> =
        words.parts.iter().map(|part| part.iter().map(|_| AtomicU32::new(0)).collect()).collect();
    let expected = parts[1].len() as u64;
    parts[1].pop();
    let short = Arc::new(Words { parts, lost: Mutex::new(None) });
    let refused = Workspace::over(verified, *launch, short).err();
    assert_eq!(refused, Some(Error::TooFewWords { rank: 1, expected, found: expected - 1 }));
    assert!(words.parts.iter().flatten().all(|word| word.load(Ordering::Relaxed) == 0));
}
