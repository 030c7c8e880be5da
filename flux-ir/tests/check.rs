//! The checker on lowered kernels: what it lets through, what it catches, and what it costs.

use flux_ir::arena::Arena;
use flux_ir::eval::{Action, Launch, RankView};
use flux_ir::program::{Agent, AgentId, Engine, Expr, Op, Stmt, Update};
use flux_ir::{
    AllReduce, Arrival, Consumers, Head, Kernel, Order, Program, Rule, Schedule, Shape, Tail,
    Target, TileCoord, Transport, check, lower,
};
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::time::Instant;

const KERNELS: [&str; 4] = ["gemm", "ag_gemm_gelu", "gemm_rs", "ag_gemm_rs_gated"];

fn kernel(name: &str) -> Kernel {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/filetests/kernel/{name}.flux"));
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    text.parse().unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn lowered(name: &str, schedule: &Schedule) -> Program {
    lower::lower(&kernel(name), schedule).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn tail(rows: u32, slices: u32) -> Option<Tail> {
    Some(Tail { rows, slices })
}

/// A small tile, so that small launches have many tiles.
fn small() -> Schedule {
    Schedule::host().tile(8, 8, 8)
}

fn launch(m: u32, n: u32, k: u32, world: u32, ctas: u32) -> Launch {
    Launch { shape: Shape { m, n, k }, world, ctas }
}

/// Ranks wait for each other's tiles, so orders that begin with the own shard end in a deadlock.
#[test]
fn reduced_outputs_pass_under_every_schedule_they_admit() {
    let shared = [Order::RowMajor, Order::ColumnMajor, Order::Grouped(2)];
    let by_owner = [Order::NextRankFirst, Order::Xor, Order::TwoNuma];
    for algorithm in AllReduce::ALL {
        let orders = shared.iter().chain(match algorithm {
            AllReduce::OneShot => &[],
            AllReduce::TwoShot => by_owner.as_slice(),
        });
        for order in orders.cloned().map(Some).chain([None]) {
            for consumers in Consumers::ALL {
                for target in Target::ALL {
                    let mut schedule = match (target, consumers) {
                        (Target::Host, _) => small(),
                        (Target::Sm90a, Consumers::Cooperative) => {
                            Schedule::sm_90a().tile(128, 128, 64)
                        }
                        (Target::Sm90a, _) => Schedule::sm_90a().tile(64, 128, 64),
                    };
                    schedule = schedule.consumers(consumers).all_reduce(algorithm);
                    schedule.order = order.clone();
                    let found = check::verify(lowered("gemm_ar", &schedule)).err();
                    assert!(found.is_none(), "{schedule}:\n{}", found.unwrap_or_default());
                }
            }
        }
        let own_first = small().all_reduce(algorithm).order(Order::OwnShardFirst);
        let found = check::verify(lowered("gemm_ar", &own_first)).err().unwrap_or_default();
        assert!(found.0.iter().any(|found| found.rule == Rule::Deadlock), "{own_first}: {found}");
    }
}

#[test]
fn pauses_are_as_long_as_threads_can_sleep() {
    let of = |jitter| {
        let schedule = Schedule::sm_90a().jitter(jitter);
        check::verify(lowered("gemm_ar", &schedule)).err().unwrap_or_default().to_string()
    };
    assert_eq!(of(1000), "");
    let found = of(1001);
    assert!(found.contains("expected `jitter` up to 1000 µs, found 1001"), "{found}");
}

#[test]
fn schedules_that_no_reduced_output_admits_are_refused() {
    let of = |name, schedule: &Schedule| {
        let found = lower::lower(&kernel(name), schedule).err().unwrap_or_default();
        assert!(
            found.0.iter().any(|found| found.rule == Rule::Schedule),
            "{name}, {schedule}: {found}"
        );
        found.to_string()
    };
    for name in KERNELS {
        for algorithm in AllReduce::ALL {
            let found = of(name, &small().all_reduce(algorithm));
            assert!(found.contains("where nothing is reduced"), "{found}");
        }
    }
    for transport in [Transport::CopyEngine, Transport::CopyFirst] {
        let found = of("gemm_ar", &small().transport(transport));
        assert!(found.contains(transport.name()) && found.contains("are put"), "{found}");
    }
    for (schedule, what) in [(small().head(8, 2), "head"), (small().tail(8, 2), "tail")] {
        let found = of("gemm_ar", &schedule);
        assert!(found.contains(&format!("leave `{what}` out")), "{found}");
    }
}

#[test]
fn shipped_kernels_pass_under_every_schedule_they_admit() {
    for name in KERNELS {
        for order in [
            None,
            Some(Order::RowMajor),
            Some(Order::ColumnMajor),
            Some(Order::Grouped(2)),
            Some(Order::NextRankFirst),
            Some(Order::Xor),
            Some(Order::TwoNuma),
            Some(Order::custom("backwards", |step, grid, _, _| {
                let at = grid.tiles() - 1 - step;
                TileCoord { m: at / grid.cols, n: at % grid.cols }
            })),
        ] {
            for (chunk_rows, tail) in
                [(None, None), (Some(1), None), (None, tail(3, 2)), (Some(5), tail(8, 3))]
            {
                for target in Target::ALL {
                    for consumers in Consumers::ALL {
                        let mut schedule = match target {
                            Target::Host => small(),
                            Target::Sm90a => Schedule::sm_90a().tile(128, 128, 64),
                        };
                        schedule = schedule.consumers(consumers);
                        schedule.order = order.clone();
                        (schedule.chunk_rows, schedule.tail) = (chunk_rows, tail);
                        // Consumers that do not share a tile hold a whole one each.
                        if target == Target::Sm90a && consumers != Consumers::Cooperative {
                            schedule = schedule.tile(64, 128, 64);
                        }
                        let found = check::verify(lowered(name, &schedule)).err();
                        assert!(
                            found.is_none(),
                            "{name}, {schedule}:\n{}",
                            found.unwrap_or_default()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn own_tiles_of_a_scattered_output_may_not_come_first() {
    let joined = Arrival { chunk: 0, tail: 0, pace: 200 };
    for order in [Order::OwnShardFirst, Order::Arrival(joined)] {
        let program = lowered("gemm_rs", &small());
        let mut table = program.tables.values().next().expect("a tile table").clone();
        // The built-in orders put own tiles last by themselves; the text form can ask for others.
        table.order = Order::custom(order.name(), move |step, grid, rank, world| {
            let rows = grid.rows;
            let from = (rank * rows / world + step / grid.cols) % rows;
            TileCoord { m: from, n: step % grid.cols }
        });
        let program = Program { tables: [table].into_iter().collect(), ..program };
        let found = check::verify(program).expect_err("every rank waits for the next one");
        assert_eq!(found.0[0].rule, Rule::Deadlock, "{found}");
        assert!(found.to_string().contains("cycle:"), "{found}");
    }
}

#[test]
fn an_order_that_is_no_permutation_is_caught_where_it_is_none() {
    let stuck = Order::custom("stuck", |step, grid, _, _| {
        // Sound on one tile column alone.
        TileCoord { m: step % grid.rows, n: 0 }
    });
    let found = check::verify(lowered("gemm", &small().order(stuck))).expect_err("repeats tiles");
    assert_eq!(found.0[0].rule, Rule::OrderNotPermutation, "{found}");
    let panics = Order::custom("panics", |step, grid, _, _| TileCoord {
        m: step,
        n: step / (grid.cols - 1),
    });
    let found = check::verify(lowered("gemm", &small().order(panics))).expect_err("divides by 0");
    assert_eq!(found.0[0].message, "order `panics` panicked", "{found}");
    let beyond = Order::custom("beyond", |step, grid, _, _| TileCoord { m: step, n: grid.cols });
    let found =
        check::verify(lowered("gemm", &small().order(beyond))).expect_err("leaves the grid");
    assert_eq!(found.0[0].rule, Rule::OrderNotPermutation, "{found}");
}

/// Calls `edit` on the body that holds the `wanted`-th statement of a walk.
fn edit(body: &mut Vec<Stmt>, wanted: &mut usize, edit_at: &mut dyn FnMut(&mut Vec<Stmt>, usize)) {
    let mut index = 0;
    while index < body.len() {
        if *wanted == 0 {
            *wanted = usize::MAX;
            return edit_at(body, index);
        }
        *wanted -= 1;
        if let Op::For { body, .. } | Op::If { body, .. } = &mut body[index].op {
            edit(body, wanted, edit_at);
        }
        if *wanted == usize::MAX {
            return;
        }
        index += 1;
    }
}

/// Every Program that differs from `program` by one edited statement.
fn edited(
    program: &Program,
    mut change: impl FnMut(&mut Vec<Stmt>, usize) -> bool,
) -> Vec<Program> {
    let mut programs = Vec::new();
    for which in 0.. {
        let (mut wanted, mut changed) = (which, false);
        let agents: Arena<AgentId, _> = program
            .agents
            .values()
            .map(|agent| {
                let mut agent = agent.clone();
                for body in [&mut agent.body, &mut agent.exit] {
                    if wanted != usize::MAX {
                        edit(body, &mut wanted, &mut |body, index| changed = change(body, index));
                    }
                }
                agent
            })
            .collect();
        if wanted != usize::MAX {
            return programs;
        }
        if changed {
            programs.push(Program { agents, ..program.clone() });
        }
    }
    programs
}

#[test]
fn a_kernel_that_loses_a_signal_or_counts_otherwise_is_rejected() {
    let (mut lost, mut less) = (0, 0);
    for name in KERNELS {
        let program = lowered(name, &small());
        let without = edited(&program, |body, index| {
            let is_signal = matches!(body[index].op, Op::Signal { .. });
            if is_signal {
                body.remove(index);
            }
            is_signal
        });
        for mutant in without {
            lost += 1;
            let found = check::verify(mutant).expect_err("a wait starves");
            assert!(found.0.iter().all(|d| d.rule == Rule::WaitWithoutSignal), "{name}: {found}");
        }
        let smaller = edited(&program, |body, index| {
            let Op::Signal { signal, update: Update::Add(value) | Update::Set(value), .. } =
                &mut body[index].op
            else {
                return false;
            };
            // Credit given a launch late makes launches wait, and is sound.
            if program.signals[*signal].name.starts_with("free") {
                return false;
            }
            *value = value.clone() - 1i64;
            true
        });
        for mutant in smaller {
            less += 1;
            let found = check::verify(mutant).expect_err("a wait starves");
            // `= epoch - 1` raises nothing in the first launch.
            let expected = [Rule::WaitWithoutSignal, Rule::Deadlock, Rule::SignalNotMonotone];
            assert!(found.0.iter().all(|d| expected.contains(&d.rule)), "{name}: {found}");
        }
    }
    assert_eq!((lost, less), (8, 4), "one arrival and one credit per gather, two per scatter");
}

#[test]
fn a_kernel_whose_waits_ask_for_more_is_rejected() {
    let mut count = 0;
    for name in KERNELS {
        let program = lowered(name, &small());
        let greedier = edited(&program, |body, index| {
            let Op::Wait { target, .. } = &mut body[index].op else { return false };
            *target = target.clone() + 16i64;
            true
        });
        for mutant in greedier {
            count += 1;
            let found = check::verify(mutant).expect_err("a wait starves");
            // `= epoch - 1` raises nothing in the first launch.
            let expected = [Rule::WaitWithoutSignal, Rule::Deadlock, Rule::SignalNotMonotone];
            assert!(found.0.iter().all(|d| expected.contains(&d.rule)), "{name}: {found}");
        }
    }
    assert_eq!(count, 8);
}

#[test]
fn a_kernel_that_loses_a_store_is_rejected() {
    for name in KERNELS {
        let program = lowered(name, &small());
        for mutant in edited(&program, |body, index| {
            // Puts to peers are read by a sum: losing one is a race, not a hole in the output.
            let own = matches!(&body[index].op, Op::Store { to, .. } if to.at == flux_ir::program::At::Own);
            if own {
                body.remove(index);
            }
            own
        }) {
            let found = check::verify(mutant).expect_err("elements are missing");
            assert!(found.0.iter().any(|d| d.rule == Rule::NeverWritten), "{name}: {found}");
        }
    }
}

#[test]
fn launches_are_checked_exactly() {
    for name in KERNELS {
        let verified =
            check::verify(lowered(name, &small())).unwrap_or_else(|e| panic!("{name}: {e}"));
        for m in [1, 7, 8, 9, 17, 63, 64, 65, 100] {
            for world in [1, 2, 3, 5, 8, 16, 64] {
                for ctas in [1, 2, 7, 132] {
                    let found = verified.check_launch(launch(m, 19, 5, world, ctas));
                    assert_eq!(found, Ok(()), "{name}: m = {m}, world = {world}, ctas = {ctas}");
                }
            }
        }
        for (m, n, k) in [(0, 8, 8), (8, 0, 8), (8, 8, 0)] {
            assert_eq!(verified.check_launch(launch(m, n, k, 2, 1)), Ok(()), "{name}: empty");
        }
    }
}

#[test]
fn contributions_that_copy_engines_send_pass_in_any_chunks() {
    for name in ["gemm_rs"] {
        let head = |rows, copies| Some(Head { rows, copies });
        for (chunk_rows, head, tail) in [
            (None, None, None),
            (None, head(24, 3), tail(24, 3)),
            (Some(1), None, tail(5, 9)),
            (Some(20), head(10, 1), tail(1000, 4)),
        ] {
            for target in Target::ALL {
                let mut schedule = match target {
                    Target::Host => small(),
                    Target::Sm90a => Schedule::sm_90a().tile(128, 128, 64),
                };
                schedule = schedule.transport(Transport::CopyEngine);
                (schedule.chunk_rows, schedule.head, schedule.tail) = (chunk_rows, head, tail);
                let verified = check::verify(lowered(name, &schedule))
                    .unwrap_or_else(|e| panic!("{name}, {schedule}: {e}"));
                if target == Target::Sm90a {
                    continue;
                }
                for m in [1, 7, 17, 64, 65, 200] {
                    for world in [1, 2, 3, 8] {
                        for ctas in [1, 7] {
                            let found = verified.check_launch(launch(m, 19, 5, world, ctas));
                            let at = format!("{schedule}: m = {m}, world = {world}, ctas = {ctas}");
                            assert_eq!(found, Ok(()), "{name}, {at}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn two_copy_engines_wait_for_ctas_and_no_third() {
    let schedule = Schedule::sm_90a().tile(128, 128, 64).transport(Transport::CopyEngine);
    let mut program = lowered("gemm_rs", &schedule);
    let senders: Vec<_> =
        program.agents.iter().filter(|(_, agent)| agent.engine == Engine::CopyEngine).collect();
    let names: Vec<&str> = senders.iter().map(|(_, agent)| &*agent.name).collect();
    assert_eq!(names, ["send_c_staged_0", "send_c_staged_1"]);
    let third = Agent { name: "send_c_staged_2".into(), ..senders[0].1.clone() };
    program.agents.push(third);
    let found = check::verify(program).expect_err("a third stream").to_string();
    let said = "expected at most 2 copy engines that wait in a launch, found 3";
    assert!(found.contains(said), "{found}");
}

/// Chunks take turns, and none is sent twice.
#[test]
fn every_chunk_has_its_turn() {
    for (m, world, head, tail) in [(64, 8, None, None), (256, 4, Some((16, 2)), Some((24, 3)))] {
        let mut schedule = small().transport(Transport::CopyEngine).chunk_rows(16);
        schedule.head = head.map(|(rows, copies)| Head { rows, copies });
        schedule.tail = tail.map(|(rows, slices)| Tail { rows, slices });
        let program = lowered("gemm_rs", &schedule);
        let view = RankView::new(&program, launch(m, 19, 5, world, 1), 1).unwrap();
        let sent = |name: &str| -> Vec<(u32, u32, u32)> {
            let (agent, _) = program.agents.iter().find(|(_, agent)| agent.name == name).unwrap();
            let events = view.agent(agent, 0, 1).filter_map(|event| match event.action {
                Action::Copy { to, .. } => Some(((to.rank + world - 2) % world, to.rows)),
                _ => None,
            });
            events.map(|(hop, rows)| (hop, rows.start, rows.end)).collect::<Vec<_>>()
        };
        let [even, odd] = ["send_c_staged_0", "send_c_staged_1"].map(sent);
        assert!(even.len() - odd.len() <= 1, "{} and {}", even.len(), odd.len());
        let turns = even.iter().enumerate().map(|(index, chunk)| (2 * index, chunk));
        let mut all: Vec<_> =
            turns.chain(odd.iter().enumerate().map(|(i, chunk)| (2 * i + 1, chunk))).collect();
        all.sort_by_key(|(turn, _)| *turn);
        let chunks: Vec<_> = all.into_iter().map(|(_, chunk)| *chunk).collect();
        assert!(chunks.is_sorted(), "in the order of the owners: {chunks:?}");
        let rows: u32 = chunks.iter().map(|(_, from, to)| to - from).sum();
        assert_eq!(rows, m - m / world, "{chunks:?}");
    }
}

#[test]
fn shards_that_copy_warps_push_pass_in_any_chunks() {
    for name in ["ag_gemm_gelu", "ag_gemm_rs_gated"] {
        for chunk_rows in [None, Some(1), Some(20)] {
            let mut schedule = small().transport(Transport::Put);
            schedule.chunk_rows = chunk_rows;
            let verified = check::verify(lowered(name, &schedule))
                .unwrap_or_else(|e| panic!("{name}, {schedule}: {e}"));
            for m in [1, 7, 17, 64, 65, 200] {
                for (world, k) in [(1, 5), (2, 1), (3, 4000), (8, 64)] {
                    for ctas in [1, 7] {
                        let found = verified.check_launch(launch(m, 19, k, world, ctas));
                        let at =
                            format!("{schedule}: m = {m}, k = {k}, {world} ranks, {ctas} ctas");
                        assert_eq!(found, Ok(()), "{name}, {at}");
                    }
                }
            }
            let device = Schedule { target: Target::Sm90a, ..schedule }.tile(128, 128, 64);
            check::verify(lowered(name, &device))
                .unwrap_or_else(|e| panic!("{name}, {device}: {e}"));
        }
    }
}

#[test]
fn transports_that_a_kernel_has_not_are_refused() {
    let refused = |name: &str, transport: Transport| {
        let found = lower::lower(&kernel(name), &small().transport(transport));
        found.expect_err("there is no such transport").to_string()
    };
    let sliced = small().transport(Transport::Put).tail(4, 2);
    let found = lower::lower(&kernel("ag_gemm_gelu"), &sliced).expect_err("pieces have no slices");
    assert!(found.to_string().contains("no `tail` where the kernel pushes `a` itself"), "{found}");
    let headed = small().head(4, 2);
    let found = lower::lower(&kernel("ag_gemm_gelu"), &headed).expect_err("nothing leaves");
    assert!(found.to_string().contains("no `head` where nothing is scattered"), "{found}");
    let found = refused("gemm_rs", Transport::CopyFirst);
    assert!(found.contains("for the scattered `c`, found copy_first"), "{found}");
    let found = refused("ag_gemm_rs_gated", Transport::CopyEngine);
    assert!(found.contains("to be put, as the kernel also gathers"), "{found}");
}

#[test]
fn launches_that_cannot_be_checked_are_refused_with_the_number() {
    let verified = check::verify(lowered("ag_gemm_gelu", &small())).expect("it passes");
    let refused = |launch: Launch| {
        let found = verified.check_launch(launch).expect_err("refused");
        assert!(found.0.iter().all(|d| d.rule == Rule::Bounds), "{found}");
        found.to_string()
    };
    assert!(refused(launch(8, 8, 8, 0, 1)).contains("found 0"));
    assert!(refused(launch(8, 8, 8, 65, 1)).contains("world of 1 to 64 ranks, found 65"));
    assert!(refused(launch(8, 8, 8, 1, 0)).contains("found 0"));
    assert!(refused(launch(8, 8, 8, 1, u32::MAX)).contains("found 4294967295"));
    assert!(refused(launch(u32::MAX, 8, 8, 1, 1)).contains("found 4294967295"));
    assert!(refused(launch(1 << 30, 1 << 30, 8, 1, 1)).contains("tiles"));
    let bytes = refused(launch(1 << 17, 1 << 17, 8, 8, 132));
    assert!(bytes.contains("bytes, expected at most 4294967296"), "{bytes}");
    // 2³¹ elements in a row of a shard's arithmetic.
    let far = refused(launch((1 << 31) - 1, 8, 8, 1, 1));
    assert!(far.contains("31 bits") || far.contains("bytes"), "{far}");
}

/// A Program with one integer of one statement changed, or a statement doubled, dropped or moved.
fn garbled(program: &Program, which: usize, how: u8) -> Option<Program> {
    let mut at = 0;
    let all = edited(program, |body, index| {
        at += 1;
        if at - 1 != which {
            return false;
        }
        match how % 6 {
            0 => drop(body.remove(index)),
            1 => body.insert(index, body[index].clone()),
            2 => body.swap(index, 0),
            3 => match &mut body[index].op {
                Op::For { to, step, .. } => {
                    *to = to.clone() + 1i64;
                    *step = Expr::Int(1);
                }
                Op::Let { value, .. } => *value = value.clone() - 3i64,
                Op::Wait { slots, .. } => slots.hi = slots.hi.clone() + 1i64,
                Op::Signal { slot, .. } => *slot = slot.clone() - 1i64,
                Op::Store { to, .. } | Op::Copy { to, .. } => {
                    to.rows.lo = to.rows.lo.clone() - 1i64
                }
                Op::Row { index, .. } => *index = index.clone() + 1i64,
                Op::Mainloop { products } => products.truncate(products.len() - 1),
                Op::Load { from, .. } => from.rows.lo = from.rows.lo.clone() - 1i64,
                Op::If { .. } | Op::FenceProxyAsync | Op::Sum { .. } => {}
            },
            4 => match &mut body[index].op {
                Op::For { to, .. } => *to = Expr::Int(i64::MAX),
                Op::Let { value, .. } => *value = Expr::Int(i64::MIN),
                Op::Wait { target, .. } => *target = Expr::Int(i64::MAX),
                Op::Signal { update, .. } => *update = Update::Add(Expr::Int(i64::MAX)),
                Op::Store { to, .. } | Op::Copy { to, .. } => to.cols.hi = Expr::Int(i64::MAX),
                Op::Row { index, .. } => *index = Expr::Int(-1),
                Op::Load { index, .. } => *index = u32::MAX,
                Op::Mainloop { .. } | Op::If { .. } | Op::FenceProxyAsync | Op::Sum { .. } => {}
            },
            _ => match &mut body[index].op {
                Op::Let { value, .. } => *value = Expr::Int(7) / (value.clone() - value.clone()),
                Op::For { step, .. } => *step = step.clone() - step.clone(),
                _ => return false,
            },
        }
        true
    });
    all.into_iter().next()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// 512 garbled Programs: a verdict, never a panic, never a run without end.
    #[test]
    fn a_garbled_program_gets_a_verdict(name in 0..KERNELS.len(), which in 0usize..40, how: u8) {
        let program = lowered(KERNELS[name], &small());
        if let Some(garbled) = garbled(&program, which, how) {
            let started = Instant::now();
            let verdict = check::verify(garbled);
            prop_assert!(started.elapsed().as_secs() < 60, "{:?}", verdict.err());
            if let Err(found) = verdict {
                prop_assert!(!found.is_empty());
            }
        }
    }
}

/// What is wrong with a protocol is said at the user's `wait`, `gemm` or `reduce`, with notes at the
/// other places: here of kernels whose lowering has lost something.
#[test]
fn races_are_reported_at_the_tokens_of_the_kernel() {
    let (gather, scatter) = (lowered("ag_gemm_gelu", &small()), lowered("gemm_rs", &small()));
    let span_of = |program: &Program, wanted: fn(&Op) -> bool| {
        let stmt = program.statements().find(|stmt| wanted(&stmt.op)).expect("it is there");
        assert!(stmt.span.is_known());
        stmt.span
    };
    let wait = span_of(&gather, |op| matches!(op, Op::Wait { .. }));
    let gemm = span_of(&gather, |op| matches!(op, Op::Mainloop { .. }));
    let sum = span_of(&scatter, |op| matches!(op, Op::Sum { .. }));
    let without = |program: &Program, wanted: fn(&Op) -> bool| {
        edited(program, |body, index| {
            let found = wanted(&body[index].op);
            if found {
                body.remove(index);
            }
            found
        })
    };
    let fence = |op: &Op| matches!(op, Op::FenceProxyAsync);
    let any_wait = |op: &Op| matches!(op, Op::Wait { .. });
    for (programs, rule, token, other) in [
        (without(&gather, fence), Rule::MissingProxyFence, gemm, wait),
        (without(&gather, any_wait), Rule::ReadBeforeArrival, gemm, wait),
        (without(&scatter, any_wait), Rule::ReadBeforeArrival, sum, sum),
        (without(&gather, any_wait), Rule::OverwriteBeforeRead, wait, gemm),
    ] {
        let found: Vec<_> = programs
            .into_iter()
            .filter_map(|program| check::verify(program).err())
            .flat_map(|found| found.0)
            .filter(|diagnostic| diagnostic.rule == rule)
            .collect();
        let at_token = found.iter().find(|diagnostic| diagnostic.span == token);
        let diagnostic = at_token.unwrap_or_else(|| panic!("no {rule} at {token}: {found:?}"));
        assert!(diagnostic.notes.iter().any(|(span, _)| *span == other), "{diagnostic}");
        assert!(diagnostic.help.is_some(), "{diagnostic}");
    }
}

#[test]
fn agents_of_a_lowered_kernel_keep_to_their_engines() {
    let program = lowered("ag_gemm_rs_gated", &small());
    let engines: Vec<_> = program.agents.values().map(|agent| agent.engine).collect();
    assert_eq!(engines, [Engine::CopyEngine, Engine::Ctas]);
    let swapped = program.agents.values().cloned().map(|mut agent| {
        agent.engine = match agent.engine {
            Engine::CopyEngine => Engine::Ctas,
            Engine::Ctas | Engine::CopyWarps => Engine::CopyEngine,
        };
        agent
    });
    let swapped = Program { agents: swapped.collect(), ..program.clone() };
    let found = check::verify(swapped).expect_err("neither can do the other's work");
    assert!(found.0.iter().all(|d| d.rule == Rule::Types), "{found}");
}
