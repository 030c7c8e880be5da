//! Ranks that do not come, fail, panic, or come too late.

use super::*;

#[test]
fn a_rank_that_never_loads_is_named_to_the_others() {
    let done = AtomicU32::new(0);
    let (found, took) = outcomes(&hasty(3), |rank| {
        if rank.index() == 1 {
            // Busy with something else for as long as the others are here.
            while done.load(Ordering::Acquire) < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            return Ok(());
        }
        let loaded = gemm_rs::load(rank).map(drop);
        done.fetch_add(1, Ordering::AcqRel);
        loaded
    });
    for rank in [0, 2] {
        let error = found[rank].as_ref().expect_err("rank 1 never came").to_string();
        assert_eq!(error, "ranks [1] did not come within 1s");
    }
    assert!(took >= LIMIT && took < LIMIT + SLACK, "{took:?}");
}

#[test]
fn a_rank_that_never_launches_is_named_to_the_others() {
    let done = AtomicU32::new(0);
    let (found, took) = outcomes(&hasty(3), |rank| {
        let kernel = ag_gemm::load(rank)?;
        if rank.index() == 1 {
            while done.load(Ordering::Acquire) < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            return Ok(());
        }
        let launched = gather(rank, &kernel, [(2, 8), (16, 8), (6, 16)]);
        done.fetch_add(1, Ordering::AcqRel);
        launched
    });
    for rank in [0, 2] {
        let error = found[rank].as_ref().expect_err("rank 1 never came").to_string();
        assert_eq!(error, "ranks [1] did not come within 1s");
    }
    assert!(took < LIMIT + SLACK, "{took:?}");
}

/// Rank 1 leaves out the second launch; what rank 0 hears, and then from a third one.
fn stall(shape: [usize; 3]) -> (Error, Error, Duration) {
    let world = hasty(2);
    let done = AtomicBool::new(false);
    let (found, took) = outcomes(&world, |rank| {
        let kernel = gemm_rs::load(rank)?;
        scatter(rank, &kernel, shape)?;
        if rank.index() == 1 {
            while !done.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            return Ok(None);
        }
        let second = scatter(rank, &kernel, shape).expect_err("rank 1 does not launch");
        let third = scatter(rank, &kernel, shape).expect_err("the workspace is lost");
        done.store(true, Ordering::Release);
        Ok(Some((second, third)))
    });
    let errors = found.into_iter().next().expect("rank 0");
    let (second, third) = errors.expect("loaded").expect("rank 0 has both");
    (second, third, took)
}

#[test]
fn a_launch_without_its_peer_stalls_and_says_where() {
    let (stalled, again, took) = stall([4, 8, 3]);
    let Error::Stalled { rank: 0, kernel, file, line, signal, seen, wanted, .. } = &stalled else {
        panic!("expected a stall of rank 0, found {stalled:?}");
    };
    assert_eq!((kernel.as_str(), *file), ("gemm_rs", "src/kernels.rs"));
    assert!(signal.contains("landed") && *line > 0 && seen < wanted, "{stalled}");
    assert!(took < LIMIT + SLACK, "{took:?}");
    let says = again.to_string();
    assert!(says.contains("an earlier launch on it failed") && says.contains("landed"), "{says}");
}

#[test]
fn a_rank_that_runs_ahead_is_told_which_peer_is_behind() {
    let done = AtomicBool::new(false);
    let (found, took) = outcomes(&hasty(2), |rank| {
        let kernel = ag_gemm::load(rank)?;
        // Rank 1 owns no rows, so rank 0 waits for none of them.
        let launch = || gather(rank, &kernel, [(rank.own_rows(1), 8), (16, 8), (1, 16)]);
        launch()?;
        if rank.index() == 1 {
            while !done.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            return Ok(());
        }
        let ahead = (2..10).try_for_each(|_| launch());
        done.store(true, Ordering::Release);
        ahead
    });
    let error = found[0].as_ref().expect_err("rank 1 launched once");
    let says = "rank 0: peer 1 is not through with launch 2 of `ag_gemm` after 1";
    assert!(error.to_string().starts_with(says), "{error}");
    assert!(error.to_string().ends_with("ms (last seen: launch 1)"), "{error}");
    assert!(took < LIMIT + SLACK, "{took:?}");
}

#[test]
fn a_kernel_whose_launch_failed_can_be_loaded_anew() -> Result<(), Error> {
    let given_up = AtomicBool::new(false);
    let results = hasty(2).run(|rank| {
        let kernel = gemm_rs::load(rank)?;
        scatter(rank, &kernel, [4, 8, 3])?;
        if rank.index() == 1 {
            // Comes too late.
            while !given_up.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let stalled = scatter(rank, &kernel, [4, 8, 3]).is_err();
        given_up.store(true, Ordering::Release);
        let kernel = gemm_rs::load(rank)?;
        scatter(rank, &kernel, [4, 8, 3])?;
        Ok(stalled)
    })?;
    assert_eq!(results, [true, true]);
    Ok(())
}

#[test]
fn a_launch_that_was_refused_does_not_count() -> Result<(), Error> {
    host(2).run(|rank| {
        let kernel = gemm_rs::load(rank)?;
        for _ in 0..3 {
            scatter(rank, &kernel, [4, 8, 3])?;
            let (a, b) = (rank.zeros(4, 3)?, rank.zeros(8, 5)?);
            let refused = kernel.launch(&a, &b, &mut rank.zeros(2, 8)?);
            assert!(matches!(refused, Err(Error::Extents { .. })), "{refused:?}");
        }
        let kernel = gemm_bf16::load(rank)?;
        multiply(rank, &kernel, [3, 4, 5])
    })?;
    Ok(())
}

#[test]
fn a_rank_that_fails_ends_the_wait_of_the_others_at_once() {
    let world = host(3);
    let start = Instant::now();
    let failed = world.run(|rank| {
        let kernel = gemm_rs::load(rank)?;
        if rank.index() == 2 {
            rank.tensor(1, 1, &[0.0_f32; 2])?;
        }
        scatter(rank, &kernel, [6, 8, 3])
    });
    let error = failed.expect_err("rank 2 failed");
    assert!(matches!(error, Error::DataLength { .. }), "the first error, not: {error}");
    assert!(start.elapsed() < Duration::from_secs(5), "well within the limit of 10 s");
    let (found, _) = outcomes(&world, |rank| match rank.index() {
        2 => Err(Error::EmptyReduction),
        _ => gemm_rs::load(rank).map(drop),
    });
    let says = "rank 2 has given up: its program has ended";
    assert_eq!(found[0].as_ref().expect_err("rank 2 left").to_string(), says);
}

#[test]
fn a_rank_that_panics_ends_the_wait_of_the_others_and_the_run() {
    let world = host(3);
    let start = Instant::now();
    let others = AtomicU32::new(0);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run(|rank| {
            let kernel = ag_gemm::load(rank)?;
            assert!(rank.index() != 1, "a bug of the program");
            let launched = gather(rank, &kernel, [(2, 8), (16, 8), (6, 16)]);
            others.fetch_add(u32::from(launched.is_err()), Ordering::Relaxed);
            launched
        })
    }));
    let panic = panicked.expect_err("the panic is passed on");
    assert_eq!(panic.downcast_ref(), Some(&"a bug of the program"));
    assert_eq!(others.into_inner(), 2, "the others got an error");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_rank_that_panics_in_the_middle_lets_the_others_stall() {
    let start = Instant::now();
    let world = hasty(2);
    let stalled = AtomicBool::new(false);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run(|rank| {
            let kernel = gemm_rs::load(rank)?;
            scatter(rank, &kernel, [4, 8, 3])?;
            assert!(rank.index() != 1, "a bug of the program");
            let launched = scatter(rank, &kernel, [4, 8, 3]);
            stalled.store(matches!(launched, Err(Error::Stalled { .. })), Ordering::Relaxed);
            launched
        })
    }));
    assert!(panicked.is_err() && stalled.into_inner());
    assert!(start.elapsed() < LIMIT + SLACK, "{:?}", start.elapsed());
}

#[test]
fn ranks_one_after_the_other_on_one_thread_are_told_so() {
    let ranks = hasty(2).ranks();
    let error = gemm_rs::load(&ranks[0]).expect_err("rank 1 cannot come");
    assert_eq!(error.to_string(), "ranks [1] did not come within 1s");
    let error = gemm_rs::load(&ranks[1]).expect_err("rank 0 has gone");
    let says = "rank 1 came after the others had given up waiting for it (1s)";
    assert_eq!(error.to_string(), says);
}

#[test]
fn a_kernel_that_outlives_its_run_says_so() -> Result<(), Error> {
    let loaded = host(2).run(gemm_bf16::load)?;
    let kernel = &loaded[0];
    let ranks = host(1).ranks();
    let [a, b, mut c] = [ranks[0].zeros(2, 2)?, ranks[0].zeros(2, 2)?, ranks[0].zeros(2, 2)?];
    let error = kernel.launch(&a, &b, &mut c).expect_err("its ranks are gone");
    assert_eq!(error.to_string(), "rank 0 has given up: its program has ended");
    Ok(())
}

#[test]
fn launches_of_two_threads_queue() -> Result<(), Error> {
    // Both threads launch again and again; each launch gives the right result.
    let mut world = World::host(1)?.ranks();
    let rank = world.remove(0);
    let kernel = gemm_bf16::load(&rank)?;
    multiply(&rank, &kernel, [40, 40, 40])?;
    std::thread::scope(|scope| {
        let work = || {
            for _ in 0..20 {
                let outcome = multiply(&rank, &kernel, [40, 40, 40]);
                assert!(outcome.is_ok(), "{outcome:?}");
            }
        };
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.into_iter().for_each(|thread| assert!(thread.join().is_ok()));
    });
    multiply(&rank, &kernel, [40, 40, 40])
}
