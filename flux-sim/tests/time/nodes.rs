//! Ranks of several nodes: what goes over the network takes what the machine says, and nothing else does.

use crate::kernels::{ROUND, cooperative, launch, predicted, program, round};
use flux_ir::{Program, Transport};
use flux_sim::time::{Error, Machine, Options, Symmetry, Time, simulate};

/// A gather by copy warps on nodes of so many ranks.
fn gather(node: u32) -> Program {
    program("ag_gemm_gelu", &cooperative(256).transport(Transport::Put).node(node))
}

/// The round machine with a network: 2 GB/s, 7 µs a message, 11 µs on its way, 5 µs a signal.
fn networked() -> Machine {
    let network = "\"network\": { \"put_gbps\": 2, \"message_us\": 7, \"put_us\": 11, \"signal_us\": 5 },\n  \"sources\": {\n";
    let sources: String = ["put_gbps", "message_us", "put_us", "signal_us"]
        .map(|name| format!("    \"network.{name}\": \"chosen\",\n"))
        .concat();
    let text = ROUND.replace("\"sources\": {\n", &format!("{network}{sources}"));
    Machine::read("networked", &text).expect("a machine")
}

/// Bytes of a shard of 128 rows.
const SHARD: u64 = 128 * 1024 * 2;

#[test]
fn a_put_over_the_network_takes_message_bytes_way_and_signal() {
    // Two nodes of a rank each; one tile row a rank, one CTA: the second tile waits for the put.
    let report = predicted(&gather(1), launch(256, 256, 1024, 2, 1), &networked());
    let machine = networked();
    let (start, own) = (1000, f64::from(machine.link.own_signal_us) * 1e3);
    let (own, put) = (own as u64, 7000 + SHARD / 2);
    let (fill, tile) = (1000, 16 * 1024 + 2000);
    let arrives = start + own + put + 11_000 + 5000;
    assert_eq!(report.total, Time::from_us((arrives + fill + tile) as f64 / 1e3));
    assert_eq!(report.sent_bytes, SHARD, "a rank sends its shard once");
}

#[test]
fn ranks_of_one_node_cost_what_they_did() {
    for node in [2, 4, 8] {
        let (m, world) = (128 * node, node);
        let shape = launch(m, 512, 1024, world, 2);
        let all_of_one = predicted(&gather(node), shape, &networked());
        let other = predicted(&gather(64), shape, &networked());
        assert_eq!(all_of_one.total, other.total, "{node}");
    }
}

#[test]
fn a_machine_without_a_network_is_refused() {
    let shape = launch(256, 256, 1024, 2, 1);
    let error = simulate(&gather(1), shape, &round(), Options::default()).expect_err("refused");
    assert!(matches!(error, Error::NoNetwork { .. }), "{error}");
    assert!(error.to_string().contains("has no network between nodes"), "{error}");
    assert!(simulate(&gather(0), shape, &round(), Options::default()).is_ok());
}

/// One rank of each place in a node stands for all of it.
#[test]
fn nodes_are_folded_and_give_what_all_ranks_give() {
    for (node, world) in [(1, 4), (2, 4), (2, 8), (4, 8)] {
        let shape = launch(128 * world, 512, 1024, world, 2);
        let folded = predicted(&gather(node), shape, &networked());
        let options = Options { symmetry: Symmetry::All, ..Options::default() };
        let every = simulate(&gather(node), shape, &networked(), options).expect("it ends");
        assert_eq!(folded.total, every.total, "nodes of {node}, {world} ranks");
        assert_eq!(folded.comm, every.comm, "nodes of {node}, {world} ranks");
    }
}

/// A faster network is no slower, and what every rank has to take in is a bound.
#[test]
fn more_nodes_take_longer_and_a_faster_network_less() {
    let machine = Machine::find("h200-ib").expect("a machine");
    let network = machine.network.expect("it has one");
    let mut last = Time::ZERO;
    for nodes in [2, 4, 8] {
        let world = 8 * nodes;
        let shape = launch(128 * world, 1024, 4096, world, 32);
        let total = predicted(&gather(8), shape, &machine).total;
        assert!(total > last, "{nodes} nodes: {total} after {last}");
        let bytes = f64::from((world - 8) * 128 * 4096 * 2);
        assert!(total.us() > bytes / (network.put_gbps.get() * 1e3), "{nodes} nodes: {total}");
        let fast = machine.clone().with_link_speed(2.0).expect("in range");
        assert!(predicted(&gather(8), shape, &fast).total < total, "{nodes} nodes");
        last = total;
    }
}

/// `cargo test --release -p flux-sim --test time table_of_nodes -- --ignored --nocapture`: the table of
/// `docs/multi-node.md`.
#[test]
#[ignore = "a table to look at; it takes half a minute in a release build"]
fn table_of_nodes() {
    let machine = Machine::find("h200-ib").expect("a machine");
    println!(
        "| nodes | ranks | m × n × k | total ms | GEMM ms | comm ms | exposed ms | bound ratio |"
    );
    for nodes in [2, 4, 8, 16, 32, 64, 128] {
        let world = 8 * nodes;
        let schedule = cooperative(256).tile(128, 176, 64).transport(Transport::Put).node(8);
        let program = program("ag_gemm_gelu", &schedule);
        let (m, n, k) = (256 * world, 3520, 8192);
        let report = predicted(&program, launch(m, n, k, world, 132), &machine);
        let ms = |time: Time| time.us() / 1e3;
        let bound = ms(report.total) / ms(report.gemm).max(ms(report.comm));
        println!(
            "| {nodes} | {world} | {m} × {n} × {k} | {:.3} | {:.3} | {:.3} | {:.3} | {bound:.3} |",
            ms(report.total),
            ms(report.gemm),
            ms(report.comm),
            ms(report.total) - ms(report.gemm)
        );
    }
}
