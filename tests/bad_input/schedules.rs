//! Schedules and tile orders that cannot be.

use super::*;

/// What loading the scattered product with `schedule` says, the same on every rank.
fn refused(schedule: &Schedule) -> String {
    let errors = errors(&host(2), |rank| gemm_rs::load_with(rank, schedule));
    assert_eq!(errors[0].to_string(), errors[1].to_string(), "the same on both ranks");
    assert!(matches!(cause(&errors[0]), Error::Rejected { .. }), "{:?}", errors[0]);
    errors[0].to_string()
}

#[test]
fn a_schedule_that_does_not_fit_its_target_is_refused_with_both_numbers() {
    let says = refused(&Schedule::sm_90a().stages(6));
    // Six stages of operands take 294912 bytes; barriers and the epilogue take the rest.
    let (before, rest) = says.split_once("stages = 6 needs ").expect("the sentence");
    let (bytes, after) = rest.split_once(' ').expect("a number");
    assert_eq!(before, "kernel `gemm_rs` is rejected\nerror[resources]: ");
    assert!(bytes.parse::<u32>().is_ok_and(|bytes| (294_912..320_000).contains(&bytes)));
    assert!(after.starts_with("bytes of shared memory, sm_90a has 232448\n"), "{says}");
    // Threads of the host have no shared memory.
    let ranks = host(1).run(|rank| gemm_rs::load_with(rank, &Schedule::host().stages(6)));
    assert!(ranks.is_ok(), "{ranks:?}");
}

#[test]
fn numbers_that_make_no_schedule_are_refused() {
    let host = Schedule::host;
    let cases = [
        host().tile(0, 16, 16),
        host().tile(16, 0, 16),
        host().tile(16, 16, 0),
        host().tile(u32::MAX, 16, 16),
        host().tile(16, u32::MAX, u32::MAX),
        host().chunk_rows(0),
        host().ctas(0),
        Schedule::sm_90a().stages(0),
        Schedule::sm_90a().stages(1),
        Schedule::sm_90a().stages(u32::MAX),
        Schedule::sm_90a().tile(16, 16, 16),
        Schedule::sm_90a().tile(128, 512, 64),
        Schedule::sm_90a().tile(128, 256, 60),
        Schedule::sm_90a().tile(256, 256, 64).consumers(Consumers::PingPong),
    ];
    for schedule in cases {
        println!("({schedule})\n    {}", refused(&schedule).replace('\n', "\n    "));
    }
}

#[test]
fn more_ctas_than_tiles_are_not_started() -> Result<(), Error> {
    let schedule = Schedule::host().tile(16, 16, 16).ctas(u32::MAX);
    let world = World::host(1)?;
    world.run(|rank| multiply(rank, &gemm_bf16::load_with(rank, &schedule)?, [40, 40, 40]))?;
    Ok(())
}

#[test]
fn an_order_that_is_no_permutation_is_refused() {
    let order = Order::custom("stuck", |_, _, _, _| TileCoord { m: 0, n: 0 });
    let says = refused(&Schedule::host().tile(16, 16, 16).order(order));
    let expected = "order `stuck` is no permutation: steps 0 and 1 both give tile (0, 0)";
    assert!(says.contains(expected), "{says}");
}

#[test]
fn an_order_that_leaves_the_grid_is_refused() {
    let order = Order::custom("beyond", |step, _, _, _| TileCoord { m: step, n: 7 });
    let says = refused(&Schedule::host().tile(16, 16, 16).order(order));
    assert!(says.contains("order `beyond` leaves the grid: step 0 gives tile (0, 7)"), "{says}");
    let order = Order::custom("far", |_, _, _, _| TileCoord { m: u32::MAX, n: u32::MAX });
    let says = refused(&Schedule::host().tile(16, 16, 16).order(order));
    assert!(says.contains("order `far` leaves the grid"), "{says}");
}

#[test]
fn an_order_that_panics_is_refused() {
    let order = Order::custom("fragile", |step, grid, _, _| {
        // Underflows at the last step.
        let left = grid.tiles().checked_sub(step + 2).expect("a bug of the order");
        TileCoord { m: left / grid.cols, n: left % grid.cols }
    });
    let says = refused(&Schedule::host().tile(16, 16, 16).order(order));
    assert!(says.contains("order `fragile` panicked"), "{says}");
}

#[test]
fn an_order_that_is_wrong_on_larger_grids_is_refused_when_it_meets_one() {
    for panics in [false, true] {
        let order = Order::custom("small only", move |step, grid, _, _| {
            assert!(!panics || grid.rows < 20, "too large");
            let step = if grid.rows < 20 { step } else { step / 2 };
            TileCoord { m: step / grid.cols, n: step % grid.cols }
        });
        let schedule = Schedule::host().tile(4, 4, 4).order(order);
        let errors = errors(&host(2), |rank| {
            let kernel = ag_gemm::load_with(rank, &schedule)?;
            gather(rank, &kernel, [(4, 4), (4, 4), (8, 4)])?;
            gather(rank, &kernel, [(50, 4), (4, 4), (100, 4)])
        });
        let expected = ["is no permutation", "panicked"][usize::from(panics)];
        for error in errors {
            assert!(error.to_string().contains(expected), "{error}");
            assert!(matches!(cause(&error), Error::Rejected { .. }), "{error:?}");
        }
    }
}

#[test]
fn an_order_that_changes_its_mind_gives_no_wrong_data() -> Result<(), Error> {
    // Another start at each call, so the table that was checked is not the one that runs.
    let calls = AtomicU32::new(0);
    let order = Order::custom("moody", move |step, grid, _, _| {
        if step == 0 {
            calls.fetch_add(1, Ordering::Relaxed);
        }
        let tile = (step + calls.load(Ordering::Relaxed)) % grid.tiles();
        TileCoord { m: tile / grid.cols, n: tile % grid.cols }
    });
    let schedule = Schedule::host().tile(16, 16, 16).order(order);
    host(1).run(|rank| {
        let kernel = gemm_bf16::load_with(rank, &schedule)?;
        (0..4).try_for_each(|_| multiply(rank, &kernel, [40, 40, 40]))
    })?;
    Ok(())
}

#[test]
fn an_order_that_panics_late_is_an_error_of_that_launch() {
    let broken = Arc::new(AtomicBool::new(false));
    let breaks = Arc::clone(&broken);
    let order = Order::custom("late", move |step, grid, _, _| {
        assert!(!breaks.load(Ordering::Relaxed), "a bug of the order");
        TileCoord { m: step / grid.cols, n: step % grid.cols }
    });
    let schedule = Schedule::host().tile(16, 16, 16).order(order);
    all_say(&host(1), "order `late` panicked", |rank| {
        let kernel = gemm_bf16::load_with(rank, &schedule)?;
        multiply(rank, &kernel, [40, 40, 40])?;
        broken.store(true, Ordering::Relaxed);
        multiply(rank, &kernel, [40, 40, 40])
    });
}

#[test]
fn an_order_that_can_deadlock_is_refused_when_it_is_loaded() {
    let says = refused(&Schedule::host().tile(16, 16, 16).order(Order::OwnShardFirst));
    println!("{says}");
    assert!(says.contains("error[deadlock]"), "{says}");
}
