//! Against what was measured on an H200 with passive peers over PCIe (`docs/time-model.md` has the
//! tables). What the machine's file was fitted to is not asked here.

use crate::kernels::{cooperative, launch, ping_pong, program};
use flux_ir::{Arrival, Grid, Order, Schedule, TileCoord};
use flux_sim::time::{FlagStream, Machine, Options, Peers, simulate};

/// An all-gather + GEMM that was measured.
struct Row {
    m: u32,
    n: u32,
    k: u32,
    world: u32,
    schedule: Schedule,
    /// Which stream wrote flags.
    flags: FlagStream,
    fused_ms: f64,
}

/// Groups of so many tile rows, the last size again and again, in the order in which shards
/// arrive.
fn groups(sizes: &'static [u32]) -> Order {
    Order::custom("groups", move |step, grid: &Grid, rank, world| {
        let mut rows: Vec<u32> = Vec::new();
        for hop in 0..world {
            let shard = (rank + world - hop) % world;
            rows.extend((0..grid.rows).filter(|&m| grid.owners(m).1 == shard));
        }
        let (mut first, mut before) = (0, 0);
        for index in 0.. {
            let size = sizes.get(index).or(sizes.last()).copied().unwrap_or(1);
            let taken = size.min(rows.len() as u32 - first);
            if step < before + taken * grid.cols {
                let within = step - before;
                let m = rows[(first + within % taken) as usize];
                return TileCoord { m, n: within / taken };
            }
            first += taken;
            before += taken * grid.cols;
        }
        unreachable!("the steps of a grid are its tiles")
    })
}

/// Rows of the first table whose schedule is one of ours (no copies of unequal size), and those of
/// its remarks.
fn rows() -> Vec<Row> {
    use FlagStream::{Own, Same};
    let row = |m, n, world, schedule: Schedule, flags, fused_ms| Row {
        m,
        n,
        k: 12288,
        world,
        schedule,
        flags,
        fused_ms,
    };
    let pp = |columns, sizes| ping_pong(columns).order(groups(sizes));
    let sliced = |columns, rows, slices| {
        ping_pong(columns).tail(rows, slices).order(Order::Arrival(Arrival {
            chunk: 0,
            tail: rows,
            pace: 0,
        }))
    };
    vec![
        row(8192, 24576, 8, pp(176, &[8]), Own, 6.076),
        row(4096, 24576, 8, pp(176, &[4, 4, 8]), Own, 3.032),
        row(2048, 24576, 8, pp(176, &[2, 2, 4]), Own, 1.558),
        row(512, 24576, 8, pp(192, &[1, 2, 1]), Own, 0.530),
        row(8192, 24576, 2, pp(176, &[8]).chunk_rows(1024), Own, 6.083),
        row(2048, 24576, 2, pp(176, &[8]).chunk_rows(512), Own, 1.511),
        row(512, 24576, 2, pp(192, &[2]), Own, 0.407),
        row(8192, 6144, 8, pp(176, &[8]), Own, 3.467),
        row(8192, 6144, 8, pp(176, &[4]).chunk_rows(512), Own, 3.395),
        row(8192, 6144, 8, pp(176, &[2]).chunk_rows(256), Same, 3.53),
        row(4096, 6144, 8, sliced(112, 256, 4), Own, 1.641),
        row(2048, 6144, 8, sliced(112, 256, 4), Own, 0.846),
        Row { k: 8192, ..row(4096, 3584, 8, sliced(112, 512, 4), Own, 1.122) },
        // An earlier and simpler kernel: tiles of 128 x 256, whole shards, the shipped order.
        row(8192, 6144, 8, cooperative(256), Same, 3.53),
    ]
}

#[test]
fn gathers_over_pcie_are_within_a_tenth_of_what_was_measured() {
    let mut machine = Machine::find("h200-pcie").expect("a machine");
    let options = Options { peers: Peers::Passive, ..Options::default() };
    let mut sum = 0.0;
    for row in rows() {
        machine.link.flag_stream = row.flags;
        let program = program("ag_gemm_gelu", &row.schedule);
        let asked = launch(row.m, row.n, row.k, row.world, 132);
        let report = simulate(&program, asked, &machine, options).expect("a prediction");
        let error = report.total.ms() / row.fused_ms - 1.0;
        println!(
            "{} x {} world {}, {}: {:.3} measured, {:.3} predicted, {:+.1} %",
            row.m,
            row.n,
            row.world,
            row.schedule,
            row.fused_ms,
            report.total.ms(),
            100.0 * error
        );
        assert!(error.abs() <= 0.1, "{} x {}: {:+.1} %", row.m, row.n, 100.0 * error);
        sum += error.abs();
    }
    assert!(sum / rows().len() as f64 <= 0.03, "mean {:.1} %", 100.0 * sum / rows().len() as f64);
}

#[test]
fn products_are_within_a_tenth_where_the_clock_was_fitted_to_others() {
    // Products beside cuBLASLt (`flux bench gemm`), cold enough to compare: below half a ms.
    let machine = Machine::find("h200-nvlink").expect("a machine");
    for (m, n, k, schedule, measured_ms) in [
        (4096, 4096, 4096, cooperative(256), 0.1765),
        (2048, 6144, 12288, ping_pong(192), 0.3853),
        (2048, 12288, 6144, ping_pong(192), 0.3958),
        (2048, 7168, 8192, ping_pong(176), 0.3026),
    ] {
        let program = program("gemm", &schedule.order(Order::Grouped(16)));
        let report = simulate(&program, launch(m, n, k, 1, 132), &machine, Options::default());
        let predicted = report.expect("a prediction").total.ms();
        let error = predicted / measured_ms - 1.0;
        println!("{m} x {n} x {k}: {measured_ms} measured, {predicted:.4} predicted");
        assert!(error.abs() <= 0.05, "{m} x {n} x {k}: {:+.1} %", 100.0 * error);
    }
}

/// Two ranks over NVLink, both active, with kernels simpler than ours: tiles of 128 x 256, all
/// ranks beginning with rank 0's rows; the scatter without its final sum. Their products ran at
/// another clock than the one the machine's file was fitted to.
#[test]
fn two_ranks_over_nvlink_are_within_a_tenth_of_what_was_measured() {
    let machine = Machine::find("h200-nvlink").expect("a machine");
    for (name, m, n, k, order, measured_ms) in [
        ("ag_gemm_gelu", 2048, 24576, 12288, Order::Grouped(16), 1.612),
        ("ag_gemm_gelu", 8192, 14336, 8192, Order::Grouped(16), 2.619),
        ("gemm_rs", 8192, 8192, 14336, Order::NextRankFirst, 2.607),
        ("gemm_rs", 4096, 12288, 24576, Order::NextRankFirst, 3.378),
    ] {
        let program = program(name, &cooperative(256).order(order));
        let report = simulate(&program, launch(m, n, k, 2, 132), &machine, Options::default());
        let report = report.expect("a prediction");
        let error = report.total.ms() / measured_ms - 1.0;
        println!(
            "{name} {m} x {n} x {k}: {measured_ms} measured, {:.3} predicted, {:+.1} %; comm {:.3}",
            report.total.ms(),
            100.0 * error,
            report.comm.ms()
        );
        assert!(error.abs() <= 0.1, "{name} {m} x {n} x {k}: {:+.1} %", 100.0 * error);
    }
}
