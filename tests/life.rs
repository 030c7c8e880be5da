//! What happens to launches, on threads of the host.

#![expect(unreachable_pub, reason = "kernels stand as they would in a library")]

#[path = "support/data.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod data;
#[path = "support/life.rs"]
#[expect(dead_code, reason = "shared with tests on devices")]
mod life;

use flux::Error;
use flux::prelude::*;
use std::time::{Duration, Instant};

/// Far above what any launch takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(2);

fn host(ranks: u32) -> World {
    World::host(ranks).expect("a world of a good size")
}

#[test]
fn stalls_are_recovered_from() {
    life::stalls_are_recovered_from(&host(3), LIMIT, None);
}

#[test]
fn launches_beside_a_recovery_are_refused() {
    life::launches_beside_a_recovery_are_refused(&host(3), LIMIT);
}

#[test]
fn a_world_outlives_a_failed_run() {
    life::a_world_outlives_a_failed_run(&host(3), LIMIT);
}

#[test]
fn counters_wrap() {
    let run = host(3).run(|rank| {
        let mut operators = life::Operators::load(rank, None)?;
        operators.exact(1)?;
        rank.recover_at(u32::MAX - 4)?;
        operators.exact(4)?;
        operators.exact(7)
    });
    run.expect("launches go on");
}

#[test]
fn groups_go_their_own_ways() {
    life::groups_go_their_own_ways(&host(8));
}

#[test]
fn one_group_stalls_and_the_others_go_on() {
    life::one_group_stalls_and_the_others_go_on(&host(8), LIMIT);
}

/// What every rank of `world` says.
fn said(world: &World, program: impl Fn(&Rank) -> Result<(), Error> + Sync) -> Vec<String> {
    let run = world.run(|rank| Ok(program(rank).expect_err("it is refused").to_string()));
    run.expect("errors are values here")
}

#[test]
fn groups_that_are_none_are_refused() {
    let world = host(4).with_limit(Duration::from_millis(300));
    let group = |members: &[u32]| said(&world, |rank| rank.group(members).map(drop));
    let says = group(&[4, 0, 1, 2, 3]);
    assert!(says.iter().all(|says| says == "rank 4 is outside of a world of 4"), "{says:?}");
    let says = group(&[0, 1, 1, 2, 3]);
    let twice = "rank 1 stands twice in the group of ranks [0, 1, 1, 2, 3]";
    assert!(says.iter().all(|says| says == twice), "{says:?}");
    let says = said(&world, |rank| rank.group(&[(rank.index() + 1) % 4]).map(drop));
    assert_eq!(says[2], "rank 2 is not in the group of ranks [3] that it wants");
    let start = Instant::now();
    let says = said(&host(2), |rank| {
        let members = if rank.index() == 0 { [0, 1] } else { [1, 0] };
        rank.group(&members).map(drop)
    });
    assert!(says[0].starts_with("rank 0 wants a group of ranks [0, 1], rank 1 one of [1, 0]: all"));
    assert!(start.elapsed() < Duration::from_secs(5), "told at once");
    let says = said(&world, |rank| match rank.index() {
        // Its partner never wants it.
        0 => rank.group(&[0, 3]).map(drop),
        _ => Err(Error::EmptyReduction),
    });
    assert!(says[0].starts_with("rank 3 has given up: ") || says[0].contains("did not come"));
}

#[test]
fn members_of_a_group_with_other_shapes_are_named() {
    let world = host(4).with_limit(Duration::from_secs(2));
    let says = said(&world, |rank| {
        let pair = rank.group(&[rank.index() % 2, rank.index() % 2 + 2])?;
        let kernel = flux::kernels::gemm_rs::load(&pair)?;
        let k = 8 + pair.index() as usize;
        let (a, b) = (pair.zeros(4, k)?, pair.zeros(16, k)?);
        kernel.launch(&a, &b, &mut pair.zeros(2, 16)?)
    });
    for says in says {
        assert_eq!(says, "`a` has k = 8 (rank 0), `a` has k = 9 (rank 1)");
    }
}

#[test]
fn a_group_of_a_group_is_a_group_of_the_world() {
    let run = host(8).run(|rank| {
        let index = rank.index();
        let four =
            rank.group(&[index / 4 * 4, index / 4 * 4 + 1, index / 4 * 4 + 2, index / 4 * 4 + 3])?;
        let pair = four.group(&[four.index() % 2, four.index() % 2 + 2])?;
        assert_eq!(pair.index(), index % 4 / 2);
        let mut operators = life::Operators::load(&pair, None)?;
        operators.exact(index as u64 % 2)?;
        // The world recovers, and its groups with it.
        rank.recover()?;
        operators.exact(5)
    });
    run.expect("groups of groups work");
}

#[test]
fn what_needs_a_stream_is_refused_on_the_host() {
    let says = said(&host(1), |rank| rank.capture(|| Ok(())).map(drop));
    assert_eq!(says, ["`capture` cannot run on this world: a rank of the host has no stream"]);
    assert!(host(1).ranks()[0].stream().is_none());
}
