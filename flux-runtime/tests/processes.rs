//! Ranks that are processes: they meet, share memory, are killed, come late, and are told apart.
//!
//! The program starts itself again, as ranks.

#[path = "support/ranks.rs"]
mod ranks;

use flux_runtime::{Coordinator, Error, Job, Joined};
use ranks::{LONG, port, start, start_all};
use rustix::process::Signal;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// What ranks wait for each other where some will not come.
const SHORT: Duration = Duration::from_millis(1500);

/// What passes until the others are surely where they are meant to be.
const PAUSE: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let cases: [(&str, fn()); 14] = [
        ("processes_meet_and_share_memory", meet_and_share),
        ("a_launcher_may_coordinate", a_launcher_may_coordinate),
        ("a_rank_killed_before_all_have_come_is_named", killed_before_all_have_come),
        ("rank_0_killed_before_all_have_come_ends_the_others", rank_0_killed_before),
        ("a_rank_killed_in_a_meeting_is_named", killed_in_a_meeting),
        ("a_rank_killed_between_meetings_is_named", killed_between_meetings),
        ("rank_0_killed_in_a_meeting_ends_the_others", rank_0_killed_in_a_meeting),
        ("a_rank_that_is_stopped_lets_the_limit_pass", stopped),
        ("a_late_rank_is_waited_for", late),
        ("a_rank_that_is_too_late_is_an_error_to_all", too_late),
        ("two_jobs_at_once", two_jobs),
        ("two_jobs_at_one_address", two_jobs_at_one_address),
        ("a_wrong_world_size_is_an_error_to_all", wrong_world_size),
        ("descriptors_that_run_out_are_an_error_to_all", no_descriptors),
    ];
    // Each waits more than it works, but has processes of its own.
    ranks::run(play, 4, cases)
}

/// What a rank does.
fn play(role: &str) -> Result<(), Error> {
    let limit = if role == "impatient" { SHORT } else { LONG };
    let joined = Joined::new(&Job::from_env()?, Vec::new(), limit)?;
    println!("joined");
    let outcome = meet(role, &joined, limit);
    // A place that a rank keeps does not keep the rank itself.
    let _kept = joined.meet();
    joined.wait_idle(if role == "share" { LONG } else { SHORT });
    outcome
}

/// What a rank does that has joined.
fn meet(role: &str, joined: &Joined, limit: Duration) -> Result<(), Error> {
    let rank = joined.rank();
    let place = joined.meet();
    match role {
        // Waits for whoever comes, until somebody is killed.
        "impatient" | "patient" => place.all_gather(rank, 1, Vec::new(), limit).map(drop)?,
        // Rank 1 does not come to the second meeting.
        "absent" => {
            place.all_gather(rank, 1, Vec::new(), LONG)?;
            println!("met");
            if rank == 1 {
                thread::sleep(LONG);
            }
            let met = place.all_gather(rank, 1, Vec::new(), SHORT).map(drop);
            println!("lost: {:?}", joined.lost());
            met?;
        }
        // Looks who is lost, as a launch does while it waits.
        "watch" => {
            place.all_gather(rank, 1, Vec::new(), LONG)?;
            println!("met");
            let start = Instant::now();
            while joined.lost().is_none() && start.elapsed() < LONG {
                thread::sleep(Duration::from_millis(1));
            }
            println!("lost: {:?}", joined.lost());
            place.all_gather(rank, 1, Vec::new(), LONG)?;
        }
        "share" => {
            share(joined, &place)?;
            place.abandon(rank, "its program has ended")?;
        }
        "poor" => {
            place.all_gather(rank, 1, Vec::new(), LONG)?;
            if rank == 1 {
                ranks::exhaust_descriptors();
            }
            share(joined, &place)?;
        }
        other => panic!("no role `{other}`"),
    }
    Ok(())
}

/// Every rank adds to the words of all.
fn share(joined: &Joined, place: &flux_runtime::Rendezvous) -> Result<(), Error> {
    let (rank, world) = (joined.rank(), joined.world());
    let members: Vec<u32> = (0..world).collect();
    let words = vec![1000; world as usize];
    for key in 0..20 {
        let segments = joined.share(place, (rank, &members), key, &words, LONG)?;
        let all = || segments.iter().flat_map(|segment| segment.words());
        all().for_each(|word| {
            word.fetch_add(rank + 1, Ordering::AcqRel);
        });
        place.all_gather(rank, 99, Vec::new(), LONG)?;
        let sum = (1..=world).sum();
        assert!(all().all(|word| word.load(Ordering::Acquire) == sum));
    }
    Ok(())
}

/// That a job at this port works: what was there before has left nothing behind.
fn works_at(port: u16) {
    start_all("share", 3, port).into_iter().for_each(|process| process.succeed());
}

fn meet_and_share() {
    let port = port();
    start_all("share", 8, port).into_iter().for_each(|process| process.succeed());
    works_at(port);
}

fn a_launcher_may_coordinate() {
    let token = Some("correct horse");
    let coordinator = Coordinator::listen("127.0.0.1:0", 3, token).expect("an address");
    let address = coordinator.address().to_string();
    let variables = [("FLUX_COORDINATOR", &*address), ("FLUX_TOKEN", "correct horse")];
    let start = |rank| start("share", (rank, 3, 1), &variables);
    let processes: Vec<_> = (0..3).map(start).collect();
    processes.into_iter().for_each(|process| process.succeed());
}

fn killed_before_all_have_come() {
    let port = port();
    let [first, second] = [0, 1].map(|rank| start("patient", (rank, 3, port), &[]));
    thread::sleep(PAUSE);
    second.signal(Signal::KILL);
    let ended = first.fail("rank 1 has given up: its process has ended");
    assert!(ended.after < LONG / 2, "{ended:?}");
    // The last one comes too late, and is told the same.
    drop(second);
    works_at(port);
}

fn rank_0_killed_before() {
    let port = port();
    let mut ranks: Vec<_> = [0, 1, 2].map(|rank| start("patient", (rank, 4, port), &[])).into();
    thread::sleep(PAUSE);
    ranks[0].signal(Signal::KILL);
    for rank in ranks.drain(1..) {
        let ended = rank.fail("is gone: it closed the connection");
        assert!(ended.after < LONG / 2, "{ended:?}");
    }
    works_at(port);
}

fn killed_in_a_meeting() {
    let port = port();
    let mut ranks = start_all("absent", 4, port);
    ranks.iter().for_each(|rank| {
        rank.wait_for("joined");
        rank.wait_for("met");
    });
    thread::sleep(PAUSE / 2);
    ranks[1].signal(Signal::KILL);
    ranks.remove(1);
    for rank in ranks {
        let ended = rank.fail("rank 1 has given up: its process has ended");
        assert!(ended.after < LONG / 2, "{ended:?}");
    }
    works_at(port);
}

fn killed_between_meetings() {
    let port = port();
    let mut ranks = start_all("watch", 3, port);
    ranks.iter().for_each(|rank| {
        rank.wait_for("joined");
        rank.wait_for("met");
    });
    ranks[2].signal(Signal::KILL);
    ranks.remove(2);
    for rank in ranks {
        let ended = rank.fail("lost: Some((2, \"its process has ended\"))");
        assert!(ended.said.contains("rank 2 has given up"), "{ended:?}");
        assert!(ended.after < LONG / 2, "{ended:?}");
    }
    works_at(port);
}

fn rank_0_killed_in_a_meeting() {
    let port = port();
    let mut ranks = start_all("watch", 3, port);
    ranks.iter().for_each(|rank| {
        rank.wait_for("joined");
        rank.wait_for("met");
    });
    ranks[0].signal(Signal::KILL);
    ranks.remove(0);
    for rank in ranks {
        let ended = rank.fail("lost: Some((0, \"it closed the connection\"))");
        assert!(ended.said.contains("the coordinator at 127.0.0.1:"), "{ended:?}");
        assert!(ended.after < LONG / 2, "{ended:?}");
    }
    works_at(port);
}

fn stopped() {
    let port = port();
    let mut ranks = start_all("absent", 3, port);
    ranks.iter().for_each(|rank| {
        rank.wait_for("joined");
        rank.wait_for("met");
    });
    ranks[1].signal(Signal::STOP);
    let stopped = ranks.remove(1);
    for rank in ranks {
        let ended = rank.fail("ranks [1] did not come within 1.5s");
        assert!(ended.after < LONG / 2, "{ended:?}");
    }
    drop(stopped);
    works_at(port);
}

fn late() {
    let port = port();
    let mut ranks: Vec<_> = [0, 2].map(|rank| start("share", (rank, 3, port), &[])).into();
    thread::sleep(SHORT);
    ranks.push(start("share", (1, 3, port), &[]));
    ranks.into_iter().for_each(|process| process.succeed());
}

fn too_late() {
    let port = port();
    let ranks = [0, 2].map(|rank| start("impatient", (rank, 3, port), &[]));
    for rank in ranks {
        let ended = rank.fail("ranks [1] did not come within");
        assert!(ended.after < LONG / 2, "{ended:?}");
    }
    let ended = start("impatient", (1, 3, port), &[]).fail("no rank 0 at 127.0.0.1:");
    assert!(ended.after < LONG / 2, "{ended:?}");
    works_at(port);
}

fn two_jobs() {
    let ports = [port(), port()];
    let jobs = ports.map(|port| start_all("share", 3, port));
    jobs.into_iter().flatten().for_each(|process| process.succeed());
}

fn two_jobs_at_one_address() {
    let port = port();
    let mut first: Vec<_> = [0, 1].map(|rank| start("share", (rank, 3, port), &[])).into();
    thread::sleep(PAUSE);
    let second = [0, 1].map(|rank| start("impatient", (rank, 3, port), &[]));
    let texts = ["cannot listen at 127.0.0.1:", "another job uses the same address"];
    for (rank, text) in second.into_iter().zip(texts) {
        rank.fail(text);
    }
    first.push(start("share", (2, 3, port), &[]));
    first.into_iter().for_each(|process| process.succeed());
}

fn wrong_world_size() {
    let port = port();
    let ranks: Vec<_> = [(0, 3), (1, 3), (2, 4), (3, 4)]
        .into_iter()
        .map(|(rank, world)| start("patient", (rank, world, port), &[]))
        .collect();
    let told = "rank 2 has given up: it was started for a world of 4, the coordinator for 3";
    let wrong = "this rank was started for a world of 4, the coordinator for one of 3";
    // The last one may find that all have gone, where it comes late.
    for (rank, text) in ranks.into_iter().zip([told, told, wrong]) {
        let ended = rank.fail(text);
        assert!(ended.after < LONG / 2, "{ended:?}");
    }
    works_at(port);
}

fn no_descriptors() {
    let port = port();
    for rank in start_all("poor", 3, port) {
        let ended = rank.fail("rank 1: no descriptor for ");
        assert!(ended.after < LONG / 2, "{ended:?}");
    }
    works_at(port);
}
