//! What a meeting place promises, wherever it is: the tests that include this file say where, in
//! `meeting_place`.

use super::meeting_place;
use flux_runtime::{Error, Rendezvous};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Far beyond what any of these tests takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// A limit that is meant to pass.
pub(crate) const SHORT: Duration = Duration::from_millis(300);

/// Runs `body` for each rank on a thread of its own, all together, and gives the answers by rank.
pub(crate) fn ranks<T: Send>(world: u32, body: impl Fn(u32) -> T + Sync) -> Vec<T> {
    let ready = Barrier::new(world as usize);
    std::thread::scope(|scope| {
        let (body, ready) = (&body, &ready);
        let start = |rank| {
            scope.spawn(move || {
                ready.wait();
                body(rank)
            })
        };
        let threads: Vec<_> = (0..world).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

#[test]
fn everybody_gets_everything_in_every_round_of_every_key() {
    for world in [1, 2, 3, 8] {
        let place = meeting_place(world);
        ranks(world, |rank| {
            for round in 0..200u8 {
                for key in [0, 1, u64::MAX] {
                    let payload = vec![rank as u8, round, key as u8];
                    let all = place.all_gather(rank, key, payload, LONG).unwrap();
                    let expected: Vec<_> =
                        (0..world).map(|from| vec![from as u8, round, key as u8]).collect();
                    assert_eq!(all[..], expected[..]);
                }
            }
        });
    }
}

#[test]
fn two_threads_of_a_rank_may_meet_at_different_keys() {
    let place = meeting_place(2);
    ranks(4, |thread| {
        let (rank, key) = (thread % 2, u64::from(thread / 2));
        for round in 0..100u8 {
            let all = place.all_gather(rank, key, vec![key as u8, round], LONG).unwrap();
            assert_eq!(all[..], [vec![key as u8, round], vec![key as u8, round]]);
        }
    });
}

#[test]
fn a_rank_that_never_comes_is_named_to_all_others() {
    let place = meeting_place(4);
    let answers = ranks(3, |rank| place.all_gather(rank, 5, vec![], SHORT).unwrap_err());
    for error in answers {
        let missing = vec![3];
        assert_eq!(error, Error::RankMissing { missing, elsewhere: vec![], waited: SHORT });
        assert_eq!(error.to_string(), "ranks [3] did not come within 300ms");
    }
}

#[test]
fn a_short_limit_of_one_rank_ends_the_wait_of_all() {
    let place = meeting_place(3);
    let start = Instant::now();
    let answers = ranks(2, |rank| {
        let limit = if rank == 0 { SHORT } else { LONG };
        place.all_gather(rank, 5, vec![], limit)
    });
    assert!(start.elapsed() < LONG / 2);
    assert!(answers.iter().all(|answer| matches!(answer, Err(Error::RankMissing { .. }))));
}

#[test]
fn a_late_rank_hears_that_the_others_have_gone_and_can_join_the_next_round() {
    let place = meeting_place(2);
    assert!(place.all_gather(0, 5, vec![0], SHORT).is_err());
    let late = place.all_gather(1, 5, vec![1], LONG).unwrap_err();
    assert_eq!(late, Error::RankLate { rank: 1, waited: SHORT });
    let answers = ranks(2, |rank| place.all_gather(rank, 5, vec![rank as u8], LONG).unwrap());
    assert_eq!(answers[0][..], [vec![0], vec![1]]);
    assert_eq!(answers[1], answers[0]);
}

#[test]
fn a_rank_that_comes_within_the_limit_is_not_late() {
    let place = meeting_place(2);
    let answers = ranks(2, |rank| {
        std::thread::sleep(SHORT * rank);
        place.all_gather(rank, 5, vec![rank as u8], LONG)
    });
    assert!(answers.iter().all(Result::is_ok));
}

#[test]
fn ranks_at_different_keys_are_told_so() {
    let place = meeting_place(2);
    let answers = ranks(2, |rank| {
        let limit = if rank == 0 { SHORT } else { LONG };
        let answer = place.all_gather(rank, rank.into(), vec![], limit);
        if rank == 0 {
            place.abandon(0, "it has seen enough").unwrap();
        }
        answer.unwrap_err()
    });
    let Error::RankMissing { missing, elsewhere, .. } = &answers[0] else {
        panic!("{:?}", answers[0]);
    };
    assert_eq!((missing, elsewhere), (&vec![1], &vec![1]));
    assert!(answers[0].to_string().contains("in the same order"));
    assert!(matches!(answers[1], Error::RankAbandoned { rank: 0, .. }));
}

#[test]
fn a_rank_that_gives_up_ends_the_wait_of_the_others_at_once_and_for_good() {
    let place = meeting_place(3);
    let start = Instant::now();
    let answers = ranks(3, |rank| {
        if rank == 2 {
            std::thread::sleep(SHORT);
            place.abandon(2, "its weights are missing").unwrap();
        }
        place.all_gather(rank, 9, vec![], LONG).unwrap_err()
    });
    assert!(start.elapsed() < LONG / 2);
    let reason = "its weights are missing".to_owned();
    let gone = Error::RankAbandoned { rank: 2, reason };
    assert_eq!(answers, [gone.clone(), gone.clone(), gone.clone()]);
    assert_eq!(place.all_gather(0, 10, vec![], LONG).unwrap_err(), gone);
    assert_eq!(gone.to_string(), "rank 2 has given up: its weights are missing");
}

#[test]
fn what_a_rank_gave_before_it_gave_up_still_counts() {
    let place = meeting_place(2);
    let answers = ranks(2, |rank| {
        if rank == 0 {
            // The other is in the round, waiting, before it gives up on a thread of its own.
            std::thread::sleep(SHORT);
            place.abandon(1, "done").unwrap();
        }
        place.all_gather(rank, 1, vec![rank as u8], LONG)
    });
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[test]
fn ranks_outside_of_the_world_are_refused() {
    let place = meeting_place(2);
    let outside = Error::NoSuchRank { rank: 2, world: 2 };
    assert_eq!(place.all_gather(2, 0, vec![], LONG).unwrap_err(), outside);
    assert_eq!(place.abandon(2, "").unwrap_err(), outside);
}

#[test]
fn ranks_that_disagree_are_named_to_all() {
    let place = meeting_place(4);
    let answers = ranks(4, |rank| {
        let fingerprint = if rank == 2 { vec![9] } else { vec![1] };
        place.agree(rank, 3, "the schedule", fingerprint, LONG).unwrap_err()
    });
    for error in &answers {
        assert_eq!(error.to_string(), "ranks [2] disagree with rank 0 on the schedule");
    }
    let answers = ranks(4, |rank| place.agree(rank, 3, "the schedule", vec![1], LONG));
    assert!(answers.iter().all(Result::is_ok));
}

#[test]
fn groups_meet_apart_from_each_other() {
    let place = meeting_place(8);
    let found = ranks(8, |rank| {
        // Four pairs, then both halves; nobody meets anybody else.
        let pair = place.group(rank, &[rank & 6, rank | 1], LONG).unwrap();
        let first = rank / 4 * 4;
        let half: Vec<u32> = (first..first + 4).collect();
        let half = place.group(rank, &half, LONG).unwrap();
        assert_eq!((pair.world(), half.world()), (2, 4));
        let said = |place: &Rendezvous, index| {
            place.all_gather(index, 7, vec![rank as u8], LONG).unwrap().concat()
        };
        (said(&pair, rank % 2), said(&half, rank % 4))
    });
    for (rank, (pair, half)) in (0u8..).zip(found) {
        assert_eq!(pair, [rank & 6, rank | 1]);
        assert_eq!(half, (rank / 4 * 4..rank / 4 * 4 + 4).collect::<Vec<_>>());
    }
}

#[test]
fn groups_that_are_none_are_refused() {
    let place = meeting_place(3);
    let group = |members: &[u32]| place.group(0, members, SHORT).map(drop);
    let members = vec![1, 2];
    assert_eq!(group(&[1, 2]), Err(Error::NotInGroup { rank: 0, members }));
    let members = vec![0, 1, 0];
    assert_eq!(group(&[0, 1, 0]), Err(Error::TwiceInGroup { rank: 0, members }));
    assert_eq!(group(&[0, 3]), Err(Error::NoSuchRank { rank: 3, world: 3 }));
    assert_eq!(group(&[]), Err(Error::NotInGroup { rank: 0, members: Vec::new() }));
    let missing = Error::RankMissing { missing: vec![2], elsewhere: Vec::new(), waited: SHORT };
    assert_eq!(group(&[0, 2]), Err(missing));
    assert_eq!(group(&[0]), Ok(()));
}

#[test]
fn members_that_name_other_members_are_told_at_once() {
    let place = meeting_place(3);
    let start = Instant::now();
    let found = ranks(2, |rank| {
        let members: &[u32] = if rank == 0 { &[0, 1] } else { &[1, 0] };
        place.group(rank, members, LONG).map(drop)
    });
    assert!(start.elapsed() < LONG / 2);
    let [ours, theirs] = [vec![0, 1], vec![1, 0]];
    let differ = |rank, ours, other, theirs| Err(Error::GroupsDiffer { rank, ours, other, theirs });
    assert_eq!(found[0], differ(0, ours.clone(), 1, theirs.clone()));
    assert_eq!(found[1], differ(1, theirs, 0, ours));
    // Nothing is left of it.
    let both = ranks(2, |rank| place.group(rank, &[0, 1], LONG).map(|group| group.world()));
    assert_eq!(both, [Ok(2), Ok(2)]);
}

#[test]
fn a_rank_that_leaves_leaves_its_groups() {
    let place = meeting_place(3);
    let groups = ranks(2, |rank| place.group(rank + 1, &[2, 1], LONG).unwrap());
    place.abandon(2, "it has left").unwrap();
    let error = groups[0].all_gather(1, 1, Vec::new(), LONG).unwrap_err();
    assert_eq!(error, Error::RankAbandoned { rank: 0, reason: "it has left".into() });
}

#[test]
fn ranks_that_recover_meet_again_whatever_they_missed() {
    let place = meeting_place(3);
    for _ in 0..3 {
        // Rank 2 misses a meeting and the first attempt to recover.
        let missed = ranks(2, |rank| {
            place.next_number(rank).unwrap();
            let met = place.all_gather(rank, 5, Vec::new(), SHORT).map(drop);
            (met, place.recover(rank, SHORT))
        });
        for (met, recovered) in missed {
            assert!(matches!(met, Err(Error::RankMissing { .. })), "{met:?}");
            assert!(matches!(recovered, Err(Error::RankMissing { .. })), "{recovered:?}");
        }
        let numbers = ranks(3, |rank| {
            place.recover(rank, LONG).unwrap();
            let all = place.all_gather(rank, 5, vec![rank as u8], LONG).unwrap();
            assert_eq!(all.concat(), [0, 1, 2]);
            place.next_number(rank).unwrap()
        });
        assert!(numbers.iter().all(|&number| number == numbers[0]), "{numbers:?}");
    }
}

#[test]
fn whoever_waits_for_a_rank_that_recovers_is_told_at_once() {
    let place = meeting_place(2);
    let start = Instant::now();
    let found = ranks(2, |rank| match rank {
        0 => place.all_gather(0, 5, Vec::new(), LONG).map(drop),
        _ => place.recover(1, SHORT),
    });
    assert!(start.elapsed() < LONG / 2);
    assert_eq!(found[0], Err(Error::RankRecovers { rank: 1 }));
    assert!(matches!(found[1], Err(Error::RankMissing { .. })));
    let found = ranks(2, |rank| match rank {
        0 => place.group(0, &[0, 1], LONG).map(drop),
        _ => place.recover(1, SHORT),
    });
    assert_eq!(found[0], Err(Error::RankRecovers { rank: 1 }));
}
