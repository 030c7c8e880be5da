//! Launches that are small enough to be added up by hand, to the last picosecond.

use crate::kernels::{ROUND, cooperative, launch, ping_pong, predicted, program, round};
use flux_ir::{Arrival, Order, Transport};
use flux_sim::time::{Kind, Machine, Options, Peers, Time, simulate};

/// What a 128 x 256 tile of a reduction of 1024 takes, and the parts around it.
const STEPS: u64 = 16;
const MAINLOOP: u64 = STEPS * 1024;
const START: u64 = 1000;
const EPILOGUE: u64 = 2000;

fn nanoseconds(time: Time) -> u64 {
    assert_eq!(time.picoseconds() % 1000, 0, "{time} is no whole number of ns");
    time.picoseconds() / 1000
}

#[test]
fn one_tile_is_start_mainloop_epilogue() {
    let report =
        predicted(&program("gemm", &cooperative(256)), launch(128, 256, 1024, 1, 1), &round());
    assert_eq!(nanoseconds(report.total), START + MAINLOOP + EPILOGUE);
    assert_eq!(report.total, report.gemm);
    assert_eq!(report.comm, Time::ZERO);
    assert_eq!(report.overlap_efficiency(), None);
}

#[test]
fn a_clipped_tile_costs_the_tensor_cores_as_much() {
    let gemm = program("gemm", &cooperative(256));
    let clipped = predicted(&gemm, launch(100, 248, 1000, 1, 1), &round());
    assert_eq!(nanoseconds(clipped.total), START + MAINLOOP + EPILOGUE);
}

#[test]
fn two_waves_take_twice_a_tile_where_consumers_share_it() {
    let gemm = program("gemm", &cooperative(256));
    let report = predicted(&gemm, launch(256, 512, 1024, 1, 2), &round());
    assert_eq!(nanoseconds(report.total), START + 2 * (MAINLOOP + EPILOGUE));
    let ragged = predicted(&gemm, launch(384, 256, 1024, 1, 2), &round());
    assert_eq!(ragged.total, report.total, "three tiles on two CTAs are two waves as well");
}

#[test]
fn ping_pong_hides_every_epilogue_but_the_last() {
    let gemm = program("gemm", &ping_pong(192));
    let mainloop = STEPS * 768;
    for tiles in 1..5u64 {
        let report = predicted(&gemm, launch(128 * tiles as u32, 192, 1024, 1, 1), &round());
        let turns = (tiles - 1) * 100;
        assert_eq!(nanoseconds(report.total), START + tiles * mainloop + turns + EPILOGUE);
    }
}

#[test]
fn a_reader_bound_by_memory_takes_what_its_bytes_take() {
    let slow = ROUND.replace("\"hbm_gbps\": 1000000", "\"hbm_gbps\": 10");
    let machine = Machine::read("slow", &slow).expect("a machine");
    let report =
        predicted(&program("gemm", &cooperative(256)), launch(128, 256, 1024, 1, 1), &machine);
    let bytes = (128 + 256) * 1024 * 2;
    assert_eq!(report.total, Time::from_us(bytes as f64 / 1e4) + Time::from_us(3.0));
}

#[test]
fn a_panel_that_is_in_the_cache_is_read_once() {
    let slow = ROUND.replace("\"hbm_gbps\": 1000000", "\"hbm_gbps\": 10");
    let gemm = program("gemm", &cooperative(256).order(Order::RowMajor));
    let bytes = |panels: f64| Time::from_us((128.0 + panels * 256.0) * 2048.0 / 1e4);
    let machine = Machine::read("slow", &slow).expect("a machine");
    // Two tiles of one row, one CTA: the left panel is there, the second right panel is not.
    let kept = predicted(&gemm, launch(128, 512, 1024, 1, 1), &machine);
    assert_eq!(kept.total, bytes(2.0) + Time::from_us(1.0 + 2.0 * 2.0));
    let small = slow.replace("\"l2_bytes\": 1000000000", "\"l2_bytes\": 1");
    let none = Machine::read("small", &small).expect("a machine");
    let again = predicted(&gemm, launch(128, 512, 1024, 1, 1), &none);
    assert_eq!(again.total, bytes(2.0) + bytes(0.0) + Time::from_us(1.0 + 2.0 * 2.0));
}

/// Bytes of one shard of 128 rows; a byte takes a ns on the link, and 10 ps within the device.
const SHARD: u64 = 128 * 1024 * 2;

#[test]
fn a_gather_bound_by_one_copy_is_the_copies_then_a_tile() {
    let ag = program("ag_gemm_gelu", &cooperative(256));
    let report = predicted(&ag, launch(256, 256, 1024, 2, 1), &round());
    let own = 2000 + SHARD / 100;
    let (flag, copy, fill) = (3000, 5000 + SHARD, 1000);
    // The own shard and its flag, the peer's and its flag, the first loads, the tile.
    let total = (own * 1000 + SHARD % 100 * 10) + (flag + copy + flag + fill) * 1000;
    let tile = (MAINLOOP + EPILOGUE) * 1000;
    assert_eq!(report.total.picoseconds(), total + tile);
    assert_eq!(nanoseconds(report.gemm), START + 2 * (MAINLOOP + EPILOGUE));
    assert_eq!(nanoseconds(report.comm), copy);
    assert_eq!(report.sent_bytes, SHARD);
    // The critical path ends in the tile that waited for the peer.
    let stalls = report.path.stalls(&report.timeline);
    let last = stalls.last().expect("a wait");
    assert_eq!((last.rank, last.peer, last.tile.rows.start), (0, 1, 128));
    assert_eq!(report.path.segments.first().map(|s| s.from), Some(Time::ZERO));
    let on_path: Time =
        report.path.by_kind(&report.timeline).map(|(_, time)| time).into_iter().sum();
    assert_eq!(on_path, report.total, "the path covers the launch");
}

#[test]
fn agents_on_copy_engines_share_one_stream() {
    let one = program("ag_gemm_gelu", &cooperative(256)).to_string();
    let (before, rest) = one.split_once("  agent push_a on").expect("an agent that pushes");
    let (push, grid) = rest.split_once("  agent gemm on").expect("an agent on CTAs");
    let two =
        format!("{before}  agent push_a on{push}  agent push_b on{push}  agent gemm on{grid}");
    let program: flux_ir::Program = two.parse().expect("a Program");
    let report = predicted(&program, launch(256, 256, 1024, 2, 1), &round());
    assert_eq!(nanoseconds(report.comm), 5000 + SHARD + 2000 + SHARD);
}

#[test]
fn a_sliced_tail_leaves_a_slice_of_a_tile_when_the_last_byte_is_there() {
    let schedule = cooperative(256).tail(128, 4).order(Order::Arrival(Arrival {
        chunk: 0,
        tail: 128,
        pace: 0,
    }));
    let ag = program("ag_gemm_gelu", &schedule);
    let report = predicted(&ag, launch(256, 256, 1024, 2, 1), &round());
    assert_eq!(report.timeline.classes, 1);
    // A slice has rows of 512 bytes, which take twice as long.
    let slice = 2 * SHARD / 4;
    let own = (2000 + SHARD / 100) * 1000 + SHARD % 100 * 10;
    let copies = 5000 + 3 * 2000 + 4 * slice;
    let total = own + (3000 + copies + 4 * 3000) * 1000;
    let rest = (1000 + MAINLOOP / 4 + EPILOGUE) * 1000;
    assert_eq!(report.total.picoseconds(), total + rest);
    assert_eq!(nanoseconds(report.comm), copies);
    let mainloops = report.timeline.ops.iter().filter(|op| op.kind == Kind::Mainloop);
    assert_eq!(mainloops.count(), 1 + 4);
}

#[test]
fn slices_cost_products_alone_nothing() {
    let machine = Machine::find("h200-pcie").expect("a machine");
    let whole = ping_pong(192).order(Order::Arrival(Arrival { chunk: 0, tail: 384, pace: 0 }));
    let shape = launch(8192, 6144, 12288, 8, 128);
    let gemm = |schedule| predicted(&program("ag_gemm_gelu", schedule), shape, &machine).gemm;
    let (whole, sliced) = (gemm(&whole), gemm(&whole.clone().tail(384, 4)));
    // The clock falls a little while a tile is computed, which slices follow.
    assert!(sliced.us() < 1.001 * whole.us(), "{sliced} and {whole}");
}

#[test]
fn a_flag_of_its_own_stream_does_not_hold_up_the_next_copy() {
    let ag = program("ag_gemm_gelu", &cooperative(256));
    let own = ROUND.replace("\"flag_stream\": \"same\"", "\"flag_stream\": \"own\"");
    let machine = Machine::read("own", &own).expect("a machine");
    let shape = launch(256, 256, 1024, 2, 1);
    let (same, own) = (predicted(&ag, shape, &round()), predicted(&ag, shape, &machine));
    assert_eq!(nanoseconds(same.total - own.total), 3000, "one flag on the way of the last copy");
}

#[test]
fn a_scatter_is_a_put_a_signal_and_a_sum() {
    let rs = program("gemm_rs", &cooperative(256));
    let report = predicted(&rs, launch(256, 256, 1024, 2, 1), &round());
    let bytes = 128 * 256 * 2;
    let (put, sum) = (Time::of_bytes(bytes, 10.0), Time::of_bytes(bytes, 10.0));
    let ns = |ns: u64| Time::from_us(ns as f64 / 1e3);
    // The peer's tile, its put and its release, the own tile, the sum; the signal is seen long
    // before it is waited for.
    let total =
        ns(START + MAINLOOP + EPILOGUE) + put + ns(1000) + ns(MAINLOOP) + sum + ns(EPILOGUE);
    assert_eq!(report.total, total);
    assert_eq!(report.comm, put + ns(1000));
    assert_eq!(report.sent_bytes, bytes);
}

#[test]
fn the_third_launch_takes_credit_from_the_first() {
    let ag = program("ag_gemm_gelu", &cooperative(256));
    let once = predicted(&ag, launch(256, 256, 1024, 2, 1), &round());
    let options = Options { launches: 4, ..Options::default() };
    let fourth = simulate(&ag, launch(256, 256, 1024, 2, 1), &round(), options).expect("ends");
    // Credit of two launches before is there, so nothing is new.
    assert_eq!(fourth.total, once.total);
    assert!(fourth.timeline.begins >= once.total + once.total + once.total);
}

#[test]
fn links_loaded_both_ways_are_slower_unless_peers_are_passive() {
    let loaded = ROUND.replace("\"both_ways\": 1", "\"both_ways\": 2");
    let machine = Machine::read("loaded", &loaded).expect("a machine");
    let ag = program("ag_gemm_gelu", &cooperative(256));
    let shape = launch(256, 256, 1024, 2, 1);
    let active = predicted(&ag, shape, &machine);
    assert_eq!(nanoseconds(active.comm), 5000 + 2 * SHARD);
    let options = Options { peers: Peers::Passive, ..Options::default() };
    let passive = simulate(&ag, shape, &machine, options).expect("a prediction");
    assert_eq!(passive.total, predicted(&ag, shape, &round()).total);
}

#[test]
fn ranks_that_send_to_one_rank_share_its_link() {
    let ring = program("ag_gemm_gelu", &cooperative(256)).to_string();
    let incast = ring.replace("let %dst = (rank + %h) % world", "let %dst = %h");
    assert_ne!(incast, ring, "the ring is there");
    let program: flux_ir::Program = incast.parse().expect("a Program");
    let report = predicted(&program, launch(512, 256, 1024, 4, 1), &round());
    assert_eq!(report.timeline.classes, 4, "ranks differ");
    let copies = report.timeline.ops.iter().filter(|op| op.kind == Kind::Copy);
    // All push to rank 0 first: its link takes one shard after the other.
    let mut ends: Vec<_> =
        copies.filter(|op| op.peer == 0 && op.bytes > 0).map(|op| nanoseconds(op.end)).collect();
    ends.sort_unstable();
    assert_eq!(ends, [1, 2, 3].map(|shards| 5000 + shards * SHARD));
}

/// Bulk copies move at a rate of their own, where the machine has one.
#[test]
fn bulk_copies_take_their_rate_and_without_one_that_of_stores() {
    let slow = ROUND.replace("\"put_gbps\": 10,", "\"put_gbps\": 10, \"bulk_gbps\": 5,").replace(
        "\"link.put_gbps\": \"chosen\",",
        "\"link.put_gbps\": \"chosen\", \"link.bulk_gbps\": \"chosen\",",
    );
    let slow = Machine::read("slow", &slow).expect("a machine");
    let comm = |transport, machine: &Machine| {
        let gather = program("ag_gemm_gelu", &cooperative(256).transport(transport));
        predicted(&gather, launch(256, 256, 2000, 2, 2), machine).comm
    };
    let stored = comm(Transport::Put, &round());
    assert!(stored > Time::ZERO);
    assert_eq!(comm(Transport::Put, &slow), stored);
    assert_eq!(comm(Transport::Tma, &round()), stored);
    // 128 rows of 4000 bytes, one piece behind the other: half as fast, twice as long.
    let in_bulk = comm(Transport::Tma, &slow);
    assert_eq!(nanoseconds(in_bulk) - nanoseconds(stored), 128 * 4000 / 10);
    let faster = slow.with_link_speed(2.0).expect("rates in their range");
    assert_eq!(faster.link.bulk_gbps.map(f64::from), Some(10.0));
}
