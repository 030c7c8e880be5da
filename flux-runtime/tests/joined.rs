//! Ranks that meet over connections do so by the same rules as threads of one process, and more may
//! go wrong. Each rank is a thread here; `processes.rs` has real processes.

#[path = "support/contract.rs"]
mod contract;

use contract::{LONG, SHORT, ranks};
use flux_runtime::{Coordinator, Error, Job, Joined, Meet, Rendezvous};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A meeting place that each rank reaches over a connection of its own.
struct Apart {
    places: Vec<Rendezvous>,
    _joined: Vec<Joined>,
    _coordinator: Coordinator,
}

fn meeting_place(world: u32) -> Apart {
    let coordinator = Coordinator::listen("127.0.0.1:0", world, None).unwrap();
    let joined = join_all(&coordinator, world);
    let places = joined.iter().map(Joined::meet).collect();
    Apart { places, _joined: joined, _coordinator: coordinator }
}

fn job(rank: u32, world: u32, address: SocketAddr) -> Job {
    let meet = Meet::At(address.to_string());
    Job { rank, world, local_rank: rank, meet, token: None }
}

fn join_all(coordinator: &Coordinator, world: u32) -> Vec<Joined> {
    let at = coordinator.address();
    ranks(world, |rank| Joined::new(&job(rank, world, at), vec![rank as u8], LONG).unwrap())
}

impl Apart {
    /// What rank `rank` calls; a rank that does not exist calls what rank 0 does.
    fn of(&self, rank: u32) -> &Rendezvous {
        self.places.get(rank as usize).unwrap_or(&self.places[0])
    }

    fn all_gather(
        &self,
        rank: u32,
        key: u64,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<Arc<[Vec<u8>]>, Error> {
        self.of(rank).all_gather(rank, key, payload, limit)
    }

    fn agree(
        &self,
        rank: u32,
        key: u64,
        what: &str,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<(), Error> {
        self.of(rank).agree(rank, key, what, payload, limit)
    }

    fn abandon(&self, rank: u32, reason: &str) -> Result<(), Error> {
        self.of(rank).abandon(rank, reason)
    }

    fn next_number(&self, rank: u32) -> Result<u64, Error> {
        self.of(rank).next_number(rank)
    }

    fn group(&self, rank: u32, members: &[u32], limit: Duration) -> Result<Arc<Rendezvous>, Error> {
        self.of(rank).group(rank, members, limit)
    }

    fn recover(&self, rank: u32, limit: Duration) -> Result<(), Error> {
        self.of(rank).recover(rank, limit)
    }
}

#[test]
fn ranks_know_each_other_once_they_have_joined() {
    let coordinator = Coordinator::listen("127.0.0.1:0", 3, None).unwrap();
    for (joined, rank) in join_all(&coordinator, 3).iter().zip(0..) {
        assert_eq!((joined.rank(), joined.world()), (rank, 3));
        let said: Vec<_> = joined.peers().iter().map(|peer| peer.introduction[0]).collect();
        assert_eq!(said, [0, 1, 2]);
        assert_eq!(joined.peers()[0].version, env!("CARGO_PKG_VERSION"));
        assert_eq!(joined.lost(), None);
    }
}

#[test]
fn a_connection_speaks_for_one_rank() {
    let place = meeting_place(2);
    let error = place.places[0].all_gather(1, 5, Vec::new(), LONG).unwrap_err();
    assert_eq!(error, Error::OtherRank { own: 0, rank: 1 });
    assert!(place.places[0].spans_processes());
}

#[test]
fn places_of_the_world_follow_each_other() {
    let coordinator = Coordinator::listen("127.0.0.1:0", 2, None).unwrap();
    let joined = join_all(&coordinator, 2);
    for round in 0..20 {
        // Rank 1 comes to the next one late, when rank 0 has left the one before.
        ranks(2, |rank| {
            let place = joined[rank as usize].meet();
            let all = place.all_gather(rank, 1, vec![rank as u8, round], LONG).unwrap();
            assert_eq!(all.concat(), [0, round, 1, round]);
            place.abandon(rank, "its program has ended").unwrap();
        });
    }
    coordinator.wait_idle(LONG);
    assert!(joined.iter().all(|joined| joined.lost().is_none()));
}

#[test]
fn a_coordinator_that_ends_ends_every_call() {
    let coordinator = Coordinator::listen("127.0.0.1:0", 3, None).unwrap();
    let joined = join_all(&coordinator, 3);
    let places: Vec<_> = joined.iter().map(Joined::meet).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..2)
            .map(|rank: u32| {
                let place = &places[rank as usize];
                scope.spawn(move || place.all_gather(rank, 1, Vec::new(), LONG).unwrap_err())
            })
            .collect();
        std::thread::sleep(SHORT);
        drop(coordinator);
        for call in calls {
            let error = call.join().unwrap();
            assert!(matches!(error, Error::CoordinatorLost { .. }), "{error}");
        }
    });
    assert!(matches!(places[2].next_number(2), Err(Error::CoordinatorLost { .. })));
    assert!(matches!(joined[0].meet().next_number(0), Err(Error::CoordinatorLost { .. })));
    assert!(start.elapsed() < LONG / 2);
}

/// Where nobody listens. Tests beside this one get ports of 127.0.0.1, and could get this one.
fn free(host: &str) -> SocketAddr {
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap()
}

#[test]
fn nobody_listens_and_the_deadline_passes() {
    let free = free("127.0.0.2");
    let start = Instant::now();
    let error = Joined::new(&job(1, 2, free), Vec::new(), SHORT).unwrap_err();
    assert!(matches!(error, Error::NoCoordinator { .. }), "{error}");
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn a_coordinator_that_listens_late_is_found() {
    let address = free("127.0.0.3");
    let joined = ranks(2, |rank| {
        if rank == 0 {
            std::thread::sleep(SHORT);
        }
        let meet = Meet::AtRank0(address.to_string());
        Joined::new(&Job { meet, ..job(rank, 2, address) }, Vec::new(), LONG).map(drop)
    });
    assert_eq!(joined, [Ok(()), Ok(())]);
}

#[test]
fn a_rank_that_does_not_join_is_named_to_all() {
    let coordinator = Coordinator::listen("127.0.0.1:0", 3, None).unwrap();
    let at = coordinator.address();
    let found = ranks(2, |rank| Joined::new(&job(rank, 3, at), Vec::new(), SHORT).map(drop));
    for error in found {
        let Err(Error::RankMissing { missing, .. }) = error else { panic!("{error:?}") };
        assert_eq!(missing, [2]);
    }
    let late = Joined::new(&job(2, 3, at), Vec::new(), LONG).unwrap_err();
    assert!(matches!(late, Error::RankAbandoned { .. } | Error::RankLate { .. }), "{late}");
}

#[test]
fn another_number_of_ranks_is_an_error_on_every_rank() {
    let coordinator = Coordinator::listen("127.0.0.1:0", 3, None).unwrap();
    let at = coordinator.address();
    let start = Instant::now();
    let found = ranks(3, |rank| {
        let world = if rank == 2 { 4 } else { 3 };
        Joined::new(&job(rank, world, at), Vec::new(), LONG).map(drop)
    });
    assert!(start.elapsed() < LONG / 2);
    assert_eq!(found[2], Err(Error::OtherWorld { ours: 4, theirs: 3 }));
    for error in &found[..2] {
        let text = error.as_ref().unwrap_err().to_string();
        let expected =
            "rank 2 has given up: it was started for a world of 4, the coordinator for 3";
        assert_eq!(text, expected);
    }
    let beyond = Joined::new(&job(3, 4, at), Vec::new(), LONG).map(drop);
    assert_eq!(beyond, Err(Error::OtherWorld { ours: 4, theirs: 3 }));
}

#[test]
fn a_rank_comes_once() {
    let coordinator = Coordinator::listen("127.0.0.1:0", 2, None).unwrap();
    let at = coordinator.address();
    let joined = join_all(&coordinator, 2);
    let again = Joined::new(&job(1, 2, at), Vec::new(), LONG).map(drop);
    assert_eq!(again, Err(Error::RankTaken { rank: 1 }));
    // The others do not suffer from it.
    let places: Vec<_> = joined.iter().map(Joined::meet).collect();
    let met = ranks(2, |rank| places[rank as usize].all_gather(rank, 1, vec![], LONG).is_ok());
    assert_eq!(met, [true, true]);
}

#[test]
fn who_has_left_is_told_to_keep_its_world() {
    let coordinator = Coordinator::listen("127.0.0.1:0", 1, None).unwrap();
    let at = coordinator.address();
    drop(Joined::new(&job(0, 1, at), Vec::new(), LONG).unwrap());
    // The coordinator hears of it a little later.
    let again = || Joined::new(&job(0, 1, at), Vec::new(), LONG).map(drop).unwrap_err();
    let start = Instant::now();
    let mut says = again();
    while matches!(says, Error::RankTaken { .. }) && start.elapsed() < LONG {
        says = again();
    }
    let says = says.to_string();
    assert!(says.contains("rank 0 has joined and has left, and a rank joins once"), "{says}");
    assert!(!says.contains("has ended") && says.contains("clone it or pass it on"), "{says}");
}

#[test]
fn a_process_that_ends_before_it_joins_is_told_at_once() {
    let coordinator = Coordinator::listen("127.0.0.1:0", 3, None).unwrap();
    let at = coordinator.address();
    assert!(!coordinator.ended(9, "there is none"));
    let start = Instant::now();
    let found = std::thread::scope(|scope| {
        let others = [0, 1].map(|rank| {
            scope.spawn(move || Joined::new(&job(rank, 3, at), Vec::new(), LONG).map(drop))
        });
        std::thread::sleep(SHORT / 4);
        assert!(coordinator.ended(2, "its process ended with exit status 0 and had not joined"));
        assert!(!coordinator.ended(2, "it did so before"));
        others.map(|other| other.join().unwrap())
    });
    assert!(start.elapsed() < LONG / 2);
    for says in found {
        let says = says.unwrap_err().to_string();
        let expected =
            "rank 2 has given up: its process ended with exit status 0 and had not joined";
        assert_eq!(says, expected);
    }
    // It was the first to go.
    assert_eq!(coordinator.departures()[0], 2);
}

#[test]
fn who_gives_up_comes_ahead_of_those_who_hear_of_it() {
    for first in 0..3 {
        let coordinator = Coordinator::listen("127.0.0.1:0", 3, None).unwrap();
        let joined = join_all(&coordinator, 3);
        // All end a run well, and then one fails.
        for run in 0..2 {
            let places: Vec<_> = joined.iter().map(Joined::meet).collect();
            ranks(3, |rank| {
                let place = &places[rank as usize];
                if run == 0 || rank == first {
                    place.abandon(rank, "its program has ended").unwrap();
                } else {
                    place.all_gather(rank, 1, vec![], LONG).unwrap_err();
                    place.abandon(rank, "its program has ended").unwrap();
                }
            });
        }
        assert_eq!(coordinator.departures()[0], first);
        assert_eq!(coordinator.departures().len(), 3);
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let meet = Meet::AtRank0(address.to_string());
    let error = Joined::new(&Job { meet, ..job(0, 2, address) }, Vec::new(), LONG).unwrap_err();
    assert!(matches!(error, Error::CannotListen { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[test]
fn strangers_are_turned_away_and_cost_nothing() {
    let token = Some("correct horse battery staple");
    let coordinator = Coordinator::listen("127.0.0.1:0", 2, token).unwrap();
    let at = coordinator.address();
    for token in [None, Some("correct horse battery stable".to_owned())] {
        let stranger = Joined::new(&Job { token, ..job(0, 2, at) }, Vec::new(), LONG);
        assert!(matches!(stranger, Err(Error::TokenRejected { .. })));
        // Nor can one spoil the world by claiming to be of another.
        let stranger = Joined::new(&job(0, 5, at), Vec::new(), LONG);
        assert!(matches!(stranger, Err(Error::TokenRejected { .. })));
    }
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"FLUX", b""] {
        let mut stranger = TcpStream::connect(at).unwrap();
        stranger.write_all(noise).unwrap();
        stranger.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.len() < 100, "{noise:?} was answered at length");
    }
    let joined = ranks(2, |rank| {
        let token = token.map(str::to_owned);
        Joined::new(&Job { token, ..job(rank, 2, at) }, Vec::new(), LONG).map(drop)
    });
    assert_eq!(joined, [Ok(()), Ok(())]);
}

#[test]
fn what_listens_there_may_be_another_program() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut socket, _) = other.accept().unwrap();
            socket.write_all(&[b'x'; 200]).unwrap();
        });
        let error = Joined::new(&job(1, 2, at), Vec::new(), LONG).unwrap_err();
        assert!(matches!(error, Error::NotCoordinator { .. }), "{error}");
    });
}

#[test]
fn a_coordinator_that_hangs_is_given_up() {
    // Connections are taken by the system, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let start = Instant::now();
    let error =
        Joined::new(&job(1, 2, silent.local_addr().unwrap()), Vec::new(), SHORT).unwrap_err();
    assert!(matches!(error, Error::NoCoordinator { .. }), "{error}");
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn too_much_at_once_is_refused() {
    let place = meeting_place(1);
    let error = place.all_gather(0, 1, vec![0; (1 << 20) + 1], LONG).unwrap_err();
    assert_eq!(error, Error::PayloadTooLarge { bytes: (1 << 20) + 1, most: 1 << 20 });
    let all = place.all_gather(0, 1, vec![7; 1 << 20], LONG).unwrap();
    assert_eq!(all[0].len(), 1 << 20);
}

#[test]
fn groups_are_forgotten_when_nobody_has_them() {
    let place = meeting_place(1);
    // More than a coordinator keeps for a rank at once.
    for _ in 0..1100 {
        place.group(0, &[0], LONG).unwrap();
    }
    let kept: Result<Vec<_>, _> = (0..1100).map(|_| place.group(0, &[0], LONG)).collect();
    assert!(matches!(kept, Err(Error::TooManyMeetings { .. })));
}

#[test]
fn every_rank_maps_the_memory_of_all() {
    let coordinator = Coordinator::listen("127.0.0.1:0", 4, None).unwrap();
    let joined = join_all(&coordinator, 4);
    let places: Vec<_> = joined.iter().map(Joined::meet).collect();
    let words = [5, 0, 1000, 7];
    ranks(4, |rank| {
        let (joined, place) = (&joined[rank as usize], &places[rank as usize]);
        for _ in 0..10 {
            let own = (rank, &[0, 1, 2, 3][..]);
            let segments = joined.share(place, own, 3, &words, LONG).unwrap();
            let lengths: Vec<_> = segments.iter().map(|s| s.words().len() as u64).collect();
            assert_eq!(lengths, words);
            for segment in segments.iter().filter(|segment| !segment.words().is_empty()) {
                segment.words()[0].fetch_add(rank + 1, Ordering::AcqRel);
            }
            place.all_gather(rank, 4, Vec::new(), LONG).unwrap();
            for (segment, words) in segments.iter().zip(words) {
                let sum = segment.words().first().map(|word| word.load(Ordering::Acquire));
                assert_eq!(sum, (words > 0).then_some(10));
            }
        }
    });
}

#[test]
fn memory_that_one_rank_cannot_have_is_an_error_on_every_rank() {
    let coordinator = Coordinator::listen("127.0.0.1:0", 3, None).unwrap();
    let joined = join_all(&coordinator, 3);
    let places: Vec<_> = joined.iter().map(Joined::meet).collect();
    let share = |rank: u32, words: &[u64]| {
        let own = (rank, &[0, 1, 2][..]);
        joined[rank as usize].share(&places[rank as usize], own, 3, words, LONG).map(drop)
    };
    for error in ranks(3, |rank| share(rank, &[1, 1 << 58, 1]).unwrap_err()) {
        let Error::OnRank { rank: 1, reason } = &error else { panic!("{error}") };
        assert!(reason.contains("no memory for 1152921504606846976 bytes"), "{error}");
    }
    assert!(ranks(3, |rank| share(rank, &[1, 2, 3])).iter().all(Result::is_ok));
}
