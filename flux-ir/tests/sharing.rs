//! Schedules that give a tile to more than one multiprocessor, or fewer rows to a tile than a
//! `wgmma` has: which are let through, and what is said of the others.

use flux_ir::{Balance, Cache, Consumers, Kernel, Schedule, check, lower};

const PLAIN: &str = "
kernel @plain(%a: &global<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    store %c, %0
  }
}";

const LYING: &str = "
kernel @lying(%a: &global<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b
    store %c, %0
  }
}";

const SCATTER: &str = "
kernel @scatter(%a: &global<bf16>, %b: &global<bf16>, %c: &mut scattered<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    %1 = reduce %c, %0
    store %c, %1
  }
}";

fn verdict(kernel: &str, schedule: &Schedule) -> Result<(), String> {
    let kernel: Kernel = kernel.parse().unwrap_or_else(|error| panic!("{error}"));
    let program = lower::lower(&kernel, schedule).unwrap_or_else(|error| panic!("{error}"));
    check::verify(program).map(drop).map_err(|found| found.to_string())
}

fn single() -> Schedule {
    Schedule::sm_90a().consumers(Consumers::Single).tile(64, 96, 64)
}

#[test]
fn tiles_are_shared_where_nobody_meets() {
    let stream = Schedule::sm_90a().balance(Balance::StreamK);
    for schedule in [
        stream.clone(),
        stream.consumers(Consumers::PingPong).tile(128, 192, 64),
        single().balance(Balance::StreamK),
        single().split_k(2).cache(Cache::StreamB),
        Schedule::sm_90a().tile(128, 224, 64).stages(3).split_k(2),
        Schedule::sm_90a().balance(Balance::Pairs),
        single().tile(8, 48, 64).stages(16),
        single().tile(16, 48, 64),
        single().tile(32, 48, 64),
    ] {
        verdict(PLAIN, &schedule).unwrap_or_else(|found| panic!("{schedule}: {found}"));
    }
}

#[test]
fn what_does_not_fit_together_is_said() {
    let ping_pong = Schedule::sm_90a().consumers(Consumers::PingPong).tile(128, 192, 64);
    for (kernel, schedule, says) in [
        (SCATTER, Schedule::sm_90a().balance(Balance::StreamK), "a kernel that communicates"),
        (SCATTER, single().split_k(2), "no `split_k` in a kernel that communicates"),
        (PLAIN, single().split_k(3), "expected `split_k` 1 or 2, found 3"),
        (PLAIN, single().split_k(0), "expected `split_k` 1 or 2, found 0"),
        (PLAIN, single().split_k(2).balance(Balance::StreamK), "found both"),
        (SCATTER, Schedule::sm_90a().balance(Balance::Pairs), "a kernel that communicates"),
        (PLAIN, single().balance(Balance::Pairs).split_k(2), "found both"),
        (PLAIN, single().tile(64, 56, 64).balance(Balance::Pairs), "multiples of 16 for `balance"),
        (LYING, Schedule::sm_90a().balance(Balance::Pairs), "expected `%b` transposed"),
        (PLAIN, ping_pong.split_k(2), "found ping_pong"),
        (PLAIN, single().tile(64, 56, 64).split_k(2), "multiples of 16"),
        (PLAIN, single().tile(24, 96, 64), "tile rows in multiples of 64"),
        (PLAIN, Schedule::sm_90a().tile(8, 96, 64), "tile rows in multiples of 128"),
        (PLAIN, single().tile(256, 128, 64), "256 registers"),
    ] {
        let found = verdict(kernel, &schedule).expect_err("does not fit");
        assert!(found.contains(says), "{schedule}: expected `{says}` in: {found}");
    }
}

#[test]
fn the_text_of_a_program_keeps_them() {
    let kernel: Kernel = PLAIN.parse().expect("a kernel");
    let schedule = single().split_k(2).cache(Cache::StreamB);
    let program = lower::lower(&kernel, &schedule).expect("it lowers");
    let text = program.to_string();
    assert!(text.contains("consumers single split_k 2 cache stream_b\n"), "{text}");
    assert_eq!(text.parse(), Ok(program));
}
