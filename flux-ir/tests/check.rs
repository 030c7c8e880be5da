//! The checker on lowered kernels: what it lets through, what it catches, and what it costs.

use flux_ir::arena::Arena;
use flux_ir::eval::Launch;
use flux_ir::program::{AgentId, Engine, Expr, Op, Stmt, Update};
use flux_ir::{Kernel, Order, Program, Rule, Schedule, Shape, TileCoord, check, lower};
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::time::Instant;

#[path = "check/schedules.rs"]
mod schedules;
#[path = "check/whole_devices.rs"]
mod whole_devices;

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

/// A small tile, so that small launches have many tiles.
fn small() -> Schedule {
    Schedule::host().tile(8, 8, 8)
}

fn launch(m: u32, n: u32, k: u32, world: u32, ctas: u32) -> Launch {
    Launch { shape: Shape { m, n, k }, world, ctas }
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
            Engine::Ctas | Engine::CopyWarps | Engine::Tma => Engine::CopyEngine,
        };
        agent
    });
    let swapped = Program { agents: swapped.collect(), ..program.clone() };
    let found = check::verify(swapped).expect_err("neither can do the other's work");
    assert!(found.0.iter().all(|d| d.rule == Rule::Types), "{found}");
}
