//! What happens to launches, on virtual ranks of one GPU.
//!
//! Without a device every case is counted as ignored and the reason is printed.

#![expect(unreachable_pub, reason = "kernels stand as they would in a library")]

#[path = "support/data.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod data;
#[path = "support/life.rs"]
mod life;
#[path = "support/placed.rs"]
mod placed;
#[path = "support/random.rs"]
mod random;
#[path = "support/replays.rs"]
mod replays;

use flux::Transport;
use flux::prelude::*;
use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;
use std::time::Duration;

/// Far below the limit of other tests, far above what a launch takes.
const LIMIT: Duration = Duration::from_millis(300);

/// The same where others load and prepare kernels meanwhile.
const LONGER: Duration = Duration::from_secs(1);

fn virtual_ranks(ranks: u32) -> World {
    placed::world(ranks).expect("there is a device")
}

fn stalls(ranks: u32, by: Option<Transport>) {
    life::stalls_are_recovered_from(&virtual_ranks(ranks), LIMIT, Some(&life::gather_by(by)));
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let missing = World::virtual_ranks(0, 1).err();
    if let Some(reason) = &missing {
        println!("skipped: no CUDA device ({reason})");
    }
    let cases: [(&str, fn()); 19] = [
        ("stalls_are_recovered_from_2_pushed", || stalls(2, Some(Transport::Put))),
        ("stalls_are_recovered_from_2_copied", || stalls(2, None)),
        ("stalls_are_recovered_from_2_in_bulk", || stalls(2, Some(Transport::Tma))),
        ("stalls_are_recovered_from_4_pushed", || stalls(4, Some(Transport::Put))),
        ("launches_beside_a_recovery_are_refused", || {
            life::launches_beside_a_recovery_are_refused(&virtual_ranks(3), LIMIT);
        }),
        ("a_world_outlives_a_failed_run", || {
            life::a_world_outlives_a_failed_run(&virtual_ranks(3), LIMIT);
        }),
        (
            "nobody_reads_what_a_failed_launch_wrote",
            replays::nobody_reads_what_a_failed_launch_wrote,
        ),
        ("a_recovery_ends_what_is_under_way", replays::a_recovery_ends_what_is_under_way),
        ("counters_wrap", || replays::counters_wrap(3)),
        ("groups_go_their_own_ways", || life::groups_go_their_own_ways(&virtual_ranks(8))),
        ("one_group_stalls_and_the_others_go_on", || {
            life::one_group_stalls_and_the_others_go_on(&virtual_ranks(8), LONGER);
        }),
        ("graphs_of_groups", replays::graphs_of_groups),
        ("what_no_graph_holds_is_refused", replays::what_no_graph_holds_is_refused),
        ("a_graph_holds_its_tensors", replays::a_graph_holds_its_tensors),
        ("a_replay_stalls_and_recovers", replays::a_replay_stalls_and_recovers),
        ("operators_on_two_streams", replays::operators_on_two_streams),
        ("what_does_not_fit_beside_queues", replays::what_does_not_fit_beside_queues),
        ("replays_2", || replays::replays(2, 100_000)),
        ("replays_4", || replays::replays(4, 100_000)),
    ];
    let trial = |(name, case): (&str, fn())| {
        let test = move || {
            case();
            Ok(())
        };
        Trial::test(name, test).with_ignored_flag(missing.is_some())
    };
    // Every case wants the whole device.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, cases.into_iter().map(trial).collect()).exit_code()
}
