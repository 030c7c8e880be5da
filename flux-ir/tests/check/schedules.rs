//! Schedules that kernels admit, and those that are refused.

use super::{KERNELS, kernel, launch, lowered, small};
use flux_ir::eval::{Action, RankView};
use flux_ir::program::{Agent, Engine, Op, Stmt};
use flux_ir::{
    AllGather, AllReduce, Arrival, Consumers, Head, Order, Program, ReduceScatter, Rule, Schedule,
    Span, Tail, Target, TileCoord, Transport, check, lower,
};

fn tail(rows: u32, slices: u32) -> Option<Tail> {
    Some(Tail { rows, slices })
}

/// Ranks wait for each other's tiles, so orders that begin with the own shard end in a deadlock.
#[test]
fn reduced_outputs_pass_under_every_schedule_they_admit() {
    let shared = [Order::RowMajor, Order::ColumnMajor, Order::Grouped(2)];
    let by_owner = [Order::NextRankFirst, Order::Xor, Order::TwoNuma];
    for algorithm in AllReduce::ALL {
        let orders = shared.iter().chain(match algorithm {
            AllReduce::OneShot | AllReduce::Flagged => &[],
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
        let of = |schedule: Schedule| {
            let schedule = schedule.jitter(jitter);
            check::verify(lowered("gemm_ar", &schedule)).err().unwrap_or_default().to_string()
        };
        let found = of(Schedule::sm_90a());
        assert_eq!(of(small()), found, "a laptop refuses what a GPU would");
        found
    };
    assert_eq!(of(1000), "");
    let found = of(1001);
    assert!(found.contains("`jitter` is expected up to 1000 µs, found 1001"), "{found}");
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
fn shards_that_the_kernel_pushes_pass_in_any_chunks() {
    for (name, transport) in [
        ("ag_gemm_gelu", Transport::Put),
        ("ag_gemm_gelu", Transport::Tma),
        ("ag_gemm_rs_gated", Transport::Put),
    ] {
        for chunk_rows in [None, Some(1), Some(20)] {
            let mut schedule = small().transport(transport);
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
fn bulk_copies_are_refused_where_nothing_is_copied() {
    let bulk = || small().transport(Transport::Tma);
    let refused = |name: &str, schedule: &Schedule| {
        let found = lower::lower(&kernel(name), schedule);
        found.expect_err("tiles are stored").to_string()
    };
    let found = refused("gemm_rs", &bulk());
    assert!(found.contains("found tiles of `c` alone, which are stored"), "{found}");
    assert!(found.contains("or add `reduce_scatter = pull`"), "{found}");
    let found = refused("gemm_rs", &bulk().reduce_scatter(ReduceScatter::Ring));
    assert!(found.contains("found tiles of `c` alone"), "{found}");
    let found = refused("gemm_ar", &bulk().all_reduce(AllReduce::OneShot));
    assert!(found.contains("or add `all_reduce = two_shot`"), "{found}");
    let found = refused("ag_gemm_gelu", &bulk().tail(4, 2));
    assert!(found.contains("no `tail` where the kernel pushes `a` itself"), "{found}");
    for (name, schedule) in [
        ("gemm_rs", bulk().reduce_scatter(ReduceScatter::Pull)),
        ("gemm_ar", bulk()),
        ("ag_gemm_rs_gated", bulk()),
    ] {
        let program = lowered(name, &schedule);
        check::verify(program).unwrap_or_else(|e| panic!("{name}, {schedule}: {e}"));
    }
}

/// The ring of bulk copies takes shared memory; where it is what does not fit, the copy is at fault.
#[test]
fn the_ring_of_bulk_copies_counts_as_shared_memory() {
    let wide = Schedule::sm_90a().tile(128, 192, 64).stages(5);
    let program = |transport| lowered("ag_gemm_gelu", &wide.clone().transport(transport));
    assert!(check::verify(program(Transport::Put)).is_ok());
    let found = check::verify(program(Transport::Tma)).expect_err("5 stages leave no room");
    let [found] = &found.0[..] else { panic!("{found}") };
    assert_eq!(
        found.message,
        "transport = tma needs 16416 bytes of shared memory beside 222288 for stages = 5, sm_90a has 232448"
    );
    assert_eq!(found.help.as_deref(), Some("at most 4 stages fit with tile = (128, 192, 64)"));
    let of_copy = |stmt: &&Stmt| matches!(stmt.op, Op::Copy { .. });
    let program = program(Transport::Tma);
    assert_eq!(found.span, program.statements().find(of_copy).expect("it copies").span);
    assert!(found.span != Span::UNKNOWN);
}

#[test]
fn chunks_of_any_rows_are_handed_on_by_copy_warps() {
    for way in [AllGather::Pull, AllGather::Ring] {
        for rows in [1, 2, 3, 6] {
            for tile in [(128, 256, 64), (256, 128, 64)] {
                let schedule = Schedule::sm_90a().tile(tile.0, tile.1, tile.2);
                let schedule = schedule.transport(Transport::Put).all_gather(way).chunk_rows(rows);
                let started = std::time::Instant::now();
                let found = check::verify(lowered("ag_gemm_gelu", &schedule)).err();
                println!("{schedule}: {:.2} s", started.elapsed().as_secs_f64());
                // Of tiles of 256 rows chunks of one row are too many.
                if rows > 1 || tile.0 == 128 {
                    assert!(found.is_none(), "{schedule}:\n{}", found.unwrap_or_default());
                }
            }
        }
    }
}

#[test]
fn chunks_that_cannot_be_checked_are_told_by_their_name() {
    let way = Schedule::sm_90a().tile(256, 128, 64).transport(Transport::Put);
    for way in [AllGather::Pull, AllGather::Ring].map(|of| way.clone().all_gather(of)) {
        let found = lower::checked(&kernel("ag_gemm_gelu"), &way.chunk_rows(1)).unwrap_err();
        let [found] = found.0.as_slice() else { panic!("{found}") };
        assert_eq!(found.rule, Rule::Schedule);
        let says = "chunk_rows = 1 cuts more chunks than can be checked: the check would take ";
        assert!(found.message.starts_with(says), "{found}");
        assert!(found.help.as_ref().is_some_and(|help| help.contains("more rows")), "{found}");
    }
    // Larger than any number of rows, on whatever way.
    for way in AllGather::ALL {
        for schedule in [small(), small().transport(Transport::Put), Schedule::sm_90a()] {
            let schedule = schedule.all_gather(way).chunk_rows(u32::MAX);
            let found = lower::checked(&kernel("ag_gemm_gelu"), &schedule).unwrap_err();
            let [found] = found.0.as_slice() else { panic!("{found}") };
            assert_eq!(found.message, "chunk_rows = 4294967295 is over the limit of 2147483647");
        }
    }
    let found = lower::checked(&kernel("ag_gemm_gelu"), &small().tail(u32::MAX, 2)).unwrap_err();
    assert!(found.to_string().contains("tail = 4294967295 is over the limit"), "{found}");
}
