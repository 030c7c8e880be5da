//! Ranks that do not do the same.

use super::*;

/// Well within the limit of a world.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn different_kernels_are_both_named_on_every_rank() {
    let (found, took) = outcomes(&host(3), |rank| match rank.index() {
        2 => ag_gemm::load(rank).map(drop),
        _ => gemm_rs::load(rank).map(drop),
    });
    let order = "all ranks must load the same kernels and launch the same shapes in the same order";
    let says = [
        format!("rank 0 is about to load `gemm_rs`, rank 2 to load `ag_gemm`: {order}"),
        format!("rank 1 is about to load `gemm_rs`, rank 2 to load `ag_gemm`: {order}"),
        format!("rank 2 is about to load `ag_gemm`, rank 0 to load `gemm_rs`: {order}"),
    ];
    for (outcome, says) in found.iter().zip(says) {
        assert_eq!(outcome.as_ref().expect_err("they differ").to_string(), says);
    }
    assert!(took < SOON, "without waiting for the limit: {took:?}");
}

#[test]
fn different_schedules_are_both_named() {
    let of = |rank: u32| Schedule::host().tile(16, 16, 16).stages(2 + rank);
    let found = errors(&host(2), |rank| gemm_rs::load_with(rank, &of(rank.index())));
    for (error, own) in found.iter().zip(0..) {
        let says = format!("rank {own} is about to load `gemm_rs` ({}), ", of(own));
        let other = format!("rank {} to load `gemm_rs` ({}): ", 1 - own, of(1 - own));
        assert!(error.to_string().starts_with(&(says + &other)), "{error}");
    }
    // The default is not the same as a schedule that happens to be equal to it.
    let found = errors(&host(2), |rank| match rank.index() {
        0 => gemm_rs::load(rank),
        _ => gemm_rs::load_with(rank, &Schedule::host()),
    });
    assert!(found.iter().all(|error| matches!(error, Error::RanksDisagree { .. })), "{found:?}");
}

#[test]
fn different_kernels_of_one_name_are_told_apart() {
    let found = errors(&host(2), |rank| match rank.index() {
        0 => gemm_bf16::load(rank).map(drop),
        _ => namesake::gemm_bf16::load(rank).map(drop),
    });
    let says = "rank 0 is about to load `gemm_bf16`, rank 1 to load `gemm_bf16`, but another one \
                of that name: ";
    assert!(found[0].to_string().starts_with(says), "{}", found[0]);
    assert!(matches!(found[1], Error::RanksDisagree { own_rank: 1, rank: 0, .. }));
}

#[test]
fn loading_in_another_order_is_named() {
    let found = errors(&host(2), |rank| {
        if rank.index() == 0 {
            ag_gemm::load(rank)?;
            gemm_rs::load(rank).map(drop)
        } else {
            gemm_rs::load(rank)?;
            ag_gemm::load(rank).map(drop)
        }
    });
    assert!(found.iter().all(|error| matches!(error, Error::RanksDisagree { .. })), "{found:?}");
}

#[test]
fn launching_in_another_order_is_named_at_once() {
    let (found, took) = outcomes(&host(2), |rank| {
        let (up, down) = (ag_gemm::load(rank)?, gemm_rs::load(rank)?);
        let up = || gather(rank, &up, [(2, 8), (16, 8), (4, 16)]);
        let down = || scatter(rank, &down, [4, 16, 8]);
        if rank.index() == 0 { up().and_then(|()| down()) } else { down().and_then(|()| up()) }
    });
    let says = "rank 1 is about to launch `gemm_rs`, rank 0 to launch `ag_gemm`: ";
    let error = found[1].as_ref().expect_err("they differ").to_string();
    assert!(error.starts_with(says), "{error}");
    assert!(matches!(found[0], Err(Error::RanksDisagree { .. })) && took < SOON);
}

#[test]
fn one_kernel_loaded_twice_is_two() {
    let found = errors(&host(2), |rank| {
        let kernels = [gemm_rs::load(rank)?, gemm_rs::load(rank)?];
        scatter(rank, &kernels[rank.index() as usize], [4, 16, 8])
    });
    let says = "rank 0 is about to launch `gemm_rs`, rank 1 to launch `gemm_rs`, but another one \
                of that name: ";
    assert!(found[0].to_string().starts_with(says), "{}", found[0]);
}

#[test]
fn loading_while_others_launch_is_named() {
    let found = errors(&host(2), |rank| {
        let kernel = gemm_rs::load(rank)?;
        match rank.index() {
            0 => ag_gemm::load(rank).map(drop),
            _ => scatter(rank, &kernel, [4, 16, 8]),
        }
    });
    let says = "rank 0 is about to load `ag_gemm`, rank 1 to launch `gemm_rs`: ";
    assert!(found[0].to_string().starts_with(says), "{}", found[0]);
}

#[test]
fn ranks_of_one_kernel_at_different_known_shapes_stall_and_say_so() {
    let (found, took) = outcomes(&hasty(2), |rank| {
        let kernel = gemm_rs::load(rank)?;
        scatter(rank, &kernel, [4, 16, 8])?;
        scatter(rank, &kernel, [6, 16, 8])?;
        let m = if rank.index() == 0 { 4 } else { 6 };
        // The first launch of a shape has no peer's shards to wait for but this one's.
        scatter(rank, &kernel, [m, 16, 8])
    });
    assert!(took < LIMIT + SLACK, "{took:?}");
    for (rank, outcome) in found.iter().enumerate() {
        match outcome {
            Err(Error::Stalled { rank: stalled, kernel, wanted, seen, .. }) => {
                assert_eq!((*stalled as usize, kernel.as_str()), (rank, "gemm_rs"));
                assert!(seen < wanted);
            }
            other => panic!("expected a stall of rank {rank}, found {other:?}"),
        }
    }
}
