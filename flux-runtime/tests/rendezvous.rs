//! Ranks of one process meet: on time, late, never, and with different minds. What they share.

#[path = "support/contract.rs"]
mod contract;

use contract::{LONG, SHORT, ranks};
use flux_runtime::{Error, Rendezvous};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

fn meeting_place(world: u32) -> Rendezvous {
    Rendezvous::new(world)
}

#[test]
fn a_shared_value_is_built_once_in_each_round() {
    let place = Rendezvous::new(4);
    let built = AtomicU32::new(0);
    for round in 0..50 {
        let values = ranks(4, |rank| {
            let build = || Ok(built.fetch_add(1, Ordering::Relaxed));
            place.get_or_create(rank, 8, LONG, build).unwrap()
        });
        assert!(values.iter().all(|value| **value == round));
    }
    assert_eq!(built.into_inner(), 50);
}

#[test]
fn a_build_that_fails_fails_for_all_and_the_next_round_builds_again() {
    let place = Rendezvous::new(3);
    let builds = AtomicU32::new(0);
    let answers = ranks(3, |rank| {
        place.get_or_create::<u32>(rank, 8, LONG, || {
            builds.fetch_add(1, Ordering::Relaxed);
            Err(Error::NoDevice)
        })
    });
    assert!(answers.iter().all(|answer| *answer == Err(Error::NoDevice)));
    assert_eq!(builds.into_inner(), 1);
    let answers = ranks(3, |rank| place.get_or_create(rank, 8, LONG, || Ok(5)).unwrap());
    assert!(answers.iter().all(|value| **value == 5));
}

#[test]
fn a_build_that_panics_is_an_error_to_the_others() {
    let place = Rendezvous::new(2);
    let built = catch_unwind(AssertUnwindSafe(|| {
        place.get_or_create::<u32>(0, 8, LONG, || panic!("on purpose"))
    }));
    assert!(built.is_err());
    let error = place.get_or_create::<u32>(1, 8, LONG, || Ok(1)).unwrap_err();
    assert_eq!(error, Error::Shared { reason: "rank 0 panicked".into() });
}

#[test]
fn waiting_for_a_slow_build_has_a_limit() {
    let place = Rendezvous::new(2);
    let (building, waited) = (Barrier::new(2), Barrier::new(2));
    let answers = ranks(2, |rank| {
        if rank == 0 {
            return place.get_or_create(rank, 8, LONG, || {
                building.wait();
                waited.wait();
                Ok(rank)
            });
        }
        building.wait();
        let answer = place.get_or_create(rank, 8, SHORT, || Ok(rank));
        waited.wait();
        answer
    });
    assert_eq!(**answers[0].as_ref().unwrap(), 0);
    assert!(matches!(answers[1], Err(Error::Timeout { limit: SHORT, .. })));
}

#[test]
fn ranks_that_want_different_types_are_told_so() {
    let place = Rendezvous::new(2);
    assert_eq!(*place.get_or_create(0, 8, LONG, || Ok(1u32)).unwrap(), 1);
    let error = place.get_or_create(1, 8, LONG, || Ok("text")).unwrap_err();
    assert!(error.to_string().contains("rank 1 wants it to be of another type"));
}
