//! Launches that are recorded, replayed, and on several streams: on a device alone.

use crate::life::{Operators, SLACK, gather_by, kernels, until};
use crate::random::Random;
use flux::prelude::*;
use flux::runtime::Stream;
use flux::{Error, Schedule, Transport};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Launches of a graph between two checks of what it computes.
const CHECKED_EVERY: u32 = 2000;

/// Launches that are under way at most.
const AHEAD: u32 = 250;

fn pushed() -> Schedule {
    gather_by(Some(Transport::Put))
}

fn world(ranks: u32) -> World {
    super::placed::world(ranks).expect("there is a device")
}

/// Replays of both operators, with launches among them, over the wrap of every counter.
pub(crate) fn replays(ranks: u32, count: u32) {
    let run = world(ranks).run(|rank| {
        let mut operators = Operators::load(rank, Some(&pushed()))?;
        operators.exact(1)?;
        rank.recover_at(u32::MAX - count / 3)?;
        let graph = rank.capture(|| {
            operators.gather()?;
            operators.scatter()
        })?;
        let mut random = Random::new(u64::from(rank.index()));
        for launch in 0..count {
            if launch % CHECKED_EVERY == 0 {
                operators.fill(u64::from(launch))?;
            }
            random.skew();
            if launch % 97 == rank.index() {
                operators.gather()?;
                operators.scatter()?;
            } else {
                graph.launch()?;
            }
            if launch % CHECKED_EVERY == CHECKED_EVERY - 1 {
                operators.check(u64::from(launch - launch % CHECKED_EVERY))?;
            } else if launch % AHEAD == 0 {
                rank.synchronize()?;
            }
        }
        rank.synchronize()
    });
    run.expect("a replay is a launch");
}

/// Copies by the host count as well as kernels do.
pub(crate) fn counters_wrap(ranks: u32) {
    let run = world(ranks).run(|rank| {
        let mut operators = Operators::load(rank, Some(&gather_by(None)))?;
        operators.exact(1)?;
        rank.recover_at(u32::MAX - 4)?;
        operators.exact(4)?;
        operators.exact(7)
    });
    run.expect("launches go on");
}

/// A peer that replays no more is missed, and all is well again when it is back.
pub(crate) fn a_replay_stalls_and_recovers() {
    let limit = Duration::from_millis(500);
    let given_up = AtomicU32::new(0);
    let run = world(2).with_limit(limit).run(|rank| {
        let mut operators = Operators::load(rank, Some(&pushed()))?;
        operators.exact(1)?;
        let graph = rank.capture(|| {
            operators.gather()?;
            operators.scatter()
        })?;
        for round in 0..3 {
            let count = if rank.index() == 0 { 120 } else { 100 };
            (0..count).try_for_each(|_| graph.launch())?;
            if rank.index() == 0 {
                let start = Instant::now();
                let stalled = rank.synchronize();
                assert!(matches!(stalled, Err(Error::Stalled { rank: 0, .. })), "{stalled:?}");
                assert!(start.elapsed() < limit + SLACK, "{:?}", start.elapsed());
                let again = graph.launch();
                assert!(matches!(again, Err(Error::Poisoned { .. })), "{again:?}");
                given_up.store(round + 1, Ordering::Release);
            } else {
                until(&given_up, round + 1);
            }
            rank.recover()?;
            operators.fill(u64::from(round) + 7)?;
            (0..10).try_for_each(|_| graph.launch())?;
            operators.check(u64::from(round) + 7)?;
        }
        Ok(())
    });
    run.expect("the graph is usable after each recovery");
}

/// What a failed launch wrote is refused until something else is written there.
pub(crate) fn nobody_reads_what_a_failed_launch_wrote() {
    let given_up = AtomicU32::new(0);
    let run = world(2).with_limit(Duration::from_millis(300)).run(|rank| {
        let mut operators = Operators::load(rank, None)?;
        operators.exact(1)?;
        if rank.index() == 1 {
            until(&given_up, 1);
        } else {
            operators.gather()?;
            // The stall comes to light with the first look, and the other output is untouched.
            let first = operators.c.to_vec().expect_err("it stalled");
            assert!(matches!(first, Error::Stalled { .. }), "{first}");
            let second = operators.c.to_vec().expect_err("it is no result");
            assert_eq!(first.to_string(), second.to_string());
            operators.sum.to_vec()?;
            given_up.store(1, Ordering::Release);
        }
        rank.recover()?;
        if rank.index() == 0 {
            assert!(operators.c.to_vec().is_err(), "still no result");
        }
        operators.exact(4)?;
        operators.c.to_vec().map(drop)
    });
    run.expect("it is usable in the end");
}

/// Launches that are under way when their rank recovers end at once, and have no results.
pub(crate) fn a_recovery_ends_what_is_under_way() {
    let limit = Duration::from_secs(20);
    let (launched, start) = (AtomicU32::new(0), Instant::now());
    let run = world(2).with_limit(limit).run(|rank| {
        let mut operators = Operators::load(rank, None)?;
        operators.exact(1)?;
        if rank.index() == 0 {
            // Rank 1 never launches these.
            (0..3).try_for_each(|_| operators.gather())?;
            operators.scatter()?;
            launched.store(1, Ordering::Release);
        }
        until(&launched, 1);
        rank.recover()?;
        if rank.index() == 0 {
            let says = "rank 0 recovered while launches of it were under way: they have no results";
            assert_eq!(operators.c.to_vec().expect_err("interrupted").to_string(), says);
        }
        operators.exact(4)
    });
    run.expect("the recovery waits for no limit");
    assert!(start.elapsed() < limit / 2, "{:?}", start.elapsed());
}

/// That an outcome is an error which says this.
fn says<T>(outcome: Result<T, Error>, expected: &str) {
    match outcome {
        Ok(_) => panic!("expected `{expected}`"),
        Err(error) => assert!(error.to_string().contains(expected), "{error}"),
    }
}

/// What no graph can hold is refused, and leaves the rank as it was.
pub(crate) fn what_no_graph_holds_is_refused() {
    let run = world(2).run(|rank| {
        let mut copied = Operators::load(rank, Some(&gather_by(None)))?;
        let mut pushed = Operators::load(rank, Some(&pushed()))?;
        copied.exact(1)?;
        says(rank.capture(|| copied.gather()), "load it under `transport = put`");
        says(rank.capture(|| pushed.gather()), "it has not been launched with these extents");
        pushed.exact(2)?;
        says(rank.capture(|| rank.synchronize()), "nothing that could be waited for");
        says(rank.capture(|| copied.c.to_vec().map(drop)), "nothing that could be waited for");
        says(rank.capture(|| rank.recover()), "nothing that could be waited for");
        says(rank.capture(|| rank.capture(|| Ok(())).map(drop)), "another capture");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            rank.capture(|| panic!("a bug of the program"))
        }));
        assert!(panicked.is_err());
        let nothing = rank.capture(|| Ok(()))?;
        rank.recover()?;
        nothing.launch()?;
        copied.exact(3)?;
        pushed.exact(4)
    });
    run.expect("the ranks are as before");
}

/// A graph outlives the tensors it was given, and their memory what comes after.
pub(crate) fn a_graph_holds_its_tensors() {
    let run = world(2).run(|rank| {
        let [m, n, k] = crate::life::SHAPE;
        let kernel = kernels::scattered::load(rank)?;
        let ones = |rows, cols| rank.tensor(rows, cols, &vec![bf16::ONE; rows * cols]);
        let mut c = rank.zeros(rank.own_rows(m), n)?;
        let graph = {
            let (a, b) = (ones(m, k)?, ones(n, k)?);
            kernel.launch(&a, &b, &mut c)?;
            rank.capture(|| kernel.launch(&a, &b, &mut c))?
        };
        // A new kernel frees what has been dropped; new tensors would take its place.
        Operators::load(rank, None)?.exact(1)?;
        let others: Vec<_> = (0..20).map(|_| rank.zeros::<bf16>(m, k)).collect::<Result<_, _>>()?;
        c.write(&vec![bf16::NAN; c.rows() * c.cols()])?;
        graph.launch()?;
        let found = c.to_vec()?;
        assert!(found.iter().all(|&x| x == bf16::from_f32(2.0 * k as f32)), "{:?}", &found[..8]);
        drop((graph, others));
        Operators::load(rank, None)?.exact(2)
    });
    run.expect("memory lives as long as it is used");
}

fn stream(rank: &Rank) -> Result<Stream, Error> {
    Ok(Stream::new(&rank.device().expect("ranks of a device have one"))?)
}

/// Two operators on two streams, each with its own signals: one waits while the other goes on.
pub(crate) fn operators_on_two_streams() {
    let limit = Duration::from_secs(20);
    let (met, done) = (AtomicU32::new(0), AtomicU32::new(0));
    let run = world(2).with_limit(limit).run(|rank| {
        let side = rank.on(stream(rank)?)?;
        let gather = Operators::load(rank, Some(&pushed().ctas(12)))?;
        let scatter = Operators::load(&side, Some(&pushed().ctas(12)))?;
        let (mut gather, mut scatter) = (gather, scatter);
        gather.exact(1)?;
        scatter.exact(2)?;
        // Rank 0's gather waits for rank 1's, which comes when both scatters have ended.
        if rank.index() == 0 {
            gather.gather()?;
        }
        scatter.scatter()?;
        let beside = side.stream().expect("it has one");
        beside.synchronize(limit / 2)?;
        met.fetch_add(1, Ordering::AcqRel);
        until(&met, 2);
        if rank.index() == 1 {
            gather.gather()?;
        }
        rank.synchronize()?;
        // Each rank in another order, hundreds in flight.
        for seed in 3..6 {
            gather.fill(seed)?;
            scatter.fill(seed)?;
            for _ in 0..150 {
                let first = rank.index() == 0;
                if first {
                    gather.gather()?;
                }
                scatter.gather()?;
                if !first {
                    gather.gather()?;
                }
            }
            gather.scatter()?;
            rank.synchronize()?;
            done.fetch_add(1, Ordering::AcqRel);
            until(&done, 2 * (seed as u32 - 2));
            scatter.scatter()?;
            gather.check(seed)?;
            scatter.check(seed)?;
        }
        Ok(())
    });
    run.expect("neither disturbs the other");
}

/// Kernels that do not fit beside each other queue, and so do launches of one kernel.
pub(crate) fn what_does_not_fit_beside_queues() {
    let run = world(2).run(|rank| {
        let side = rank.on(stream(rank)?)?;
        let mut first = Operators::load(rank, Some(&pushed()))?;
        let mut second = Operators::load(&side, Some(&pushed()))?;
        first.exact(1)?;
        second.exact(2)?;
        for seed in 3..6 {
            first.fill(seed)?;
            second.fill(seed)?;
            for _ in 0..100 {
                first.gather()?;
                second.gather()?;
                second.scatter()?;
                first.scatter()?;
            }
            first.check(seed)?;
            second.check(seed)?;
        }
        // One kernel, now here, now there.
        let (here, there) = (stream(rank)?.into(), std::sync::Arc::new(stream(rank)?));
        let here: std::sync::Arc<Stream> = here;
        first.fill(7)?;
        for turn in 0..100 {
            rank.use_stream(if turn % 2 == 0 { here.clone() } else { there.clone() })?;
            first.gather()?;
            first.scatter()?;
        }
        first.check(7)
    });
    run.expect("all of it ends");
}

/// Groups do on a device what they do on the host; graphs too.
pub(crate) fn graphs_of_groups() {
    let run = world(4).run(|rank| {
        let pair = rank.group(&[rank.index() & 2, rank.index() | 1])?;
        let mut whole = Operators::load(rank, Some(&pushed()))?;
        let mut half = Operators::load(&pair, Some(&pushed()))?;
        whole.exact(1)?;
        half.exact(2)?;
        let graph = rank.capture(|| {
            whole.gather()?;
            half.gather()?;
            half.scatter()?;
            whole.scatter()
        })?;
        for seed in 3..6 {
            whole.fill(seed)?;
            half.fill(seed)?;
            (0..100).try_for_each(|_| graph.launch())?;
            whole.check(seed)?;
            half.check(seed)?;
        }
        Ok(())
    });
    run.expect("a graph holds kernels of several groups");
}
