//! What is explained of a launch: counts, arguments for elements, traces of what is rejected,
//! drawings.

use flux_ir::check::{self, Argument, Element, Explanation, Query, QueryError};
use flux_ir::eval::Launch;
use flux_ir::{Kernel, Order, Program, Rule, Schedule, Shape, Span, lower};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests").join(name)
}

fn file(kind: &str, name: &str) -> String {
    let path = folder(kind).join(format!("{name}.flux"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A shipped kernel under a schedule that admits all of them.
fn kernel(name: &str) -> Program {
    let kernel: Kernel = file("kernel", name).parse().expect("a kernel");
    lower::lower(&kernel, &Schedule::sm_90a().tile(128, 128, 64)).expect("it lowers")
}

const KERNELS: [&str; 4] = ["gemm", "gemm_rs", "ag_gemm_gelu", "ag_gemm_rs_gated"];

fn small(program: &Program) -> Explanation<'_> {
    check::explain(program, check::small_launch(program)).expect("it runs")
}

fn element(text: &str) -> Option<Element> {
    Some(text.parse().expect("an element"))
}

/// The rows of every table, without the numbers of their steps, launches and ranks in front: what
/// is done, by whom, and the note.
fn lines(text: &str) -> Vec<String> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(words).filter(|line| !line.is_empty()).collect()
}

/// Asserts that `text` holds the lines, next to each other, white space aside.
fn holds(text: &str, expected: &[&str]) {
    let lines = lines(text);
    let found = lines.windows(expected.len()).any(|window| window == expected);
    assert!(found, "expected\n{}\nin\n{text}", expected.join("\n"));
}

fn argued(explained: &Explanation<'_>, query: Query) -> Argument {
    explained.argument(&query).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn counts_are_those_of_three_launches_on_all_ranks() {
    let program = kernel("ag_gemm_gelu");
    let explained = small(&program);
    let counts = explained.counts();
    assert_eq!((counts.launches, counts.agents), (3, 2));
    // On each of two ranks a copy engine, two CTAs, and the exit of each agent.
    assert_eq!(counts.actors, 10);
    // A launch of a rank: two credits and two arrivals raised; two credits, two tiles waited for.
    assert_eq!((counts.signals, counts.waits), (3 * 2 * 4, 3 * 2 * 4));
    // Two copies, two tiles; a fence each.
    assert_eq!((counts.writes, counts.reads), (3 * 2 * 2, 3 * 2 * 2));
    assert_eq!(counts.events, 24 + 24 + 12 + 12 + 12);
    // The tile that waits in launch e stands on e raises of its shard; the third launch on the
    // credit of the first.
    assert_eq!(counts.edges, 2 * 2 * (1 + 2 + 3) + 2 * 2);
    let signals = explained.signals();
    let used: Vec<_> =
        signals.iter().map(|s| (s.name.as_str(), s.raises, s.waits, s.idle)).collect();
    assert_eq!(used, [("free_host", 12, 12, 8), ("a_arrived", 12, 12, 0)]);
    holds(
        &explained.to_string(),
        &[
            "Signals, of all ranks and launches",
            "%free_host[2] raised 12 times, waited for 12 times, 8 of them for nothing yet",
            "%a_arrived[2] raised 12 times, waited for 12 times",
        ],
    );
    assert!(explained.diagnostics().is_empty());
    assert!(explained.traces().is_empty());
}

#[test]
fn a_gathered_shard_is_followed_from_its_copy_to_its_tile_and_back() {
    let program = kernel("ag_gemm_gelu");
    let explained = small(&program);
    let argument = argued(&explained, Query::default());
    assert!(argument.holds);
    assert_eq!((argument.rank, argument.launch), (0, 3));
    holds(
        &argument.to_string(),
        &[
            "%a_all{1}[128, 0] on rank 0, launch 3",
            "How it arrives",
            "step launch rank actor does line",
            "1 3 1 push_a copy peer(0).%a_all{1}[128..256, 0..64] <- %a[128..256, 0..64] 7:17 the write, by the copy engine",
            "2 3 1 push_a signal peer(0).%a_arrived[1] = 3 scope sys after performed 7:17 makes it 3",
            "3 3 0 gemm cta 1 wait %a_arrived[1] >= 3 scope sys 7:17 stands for the first 3 raises",
            "4 3 0 gemm cta 1 fence proxy.async 7:17 TMA loads behind it see what the wait gave",
            "5 3 0 gemm cta 1 mainloop on %a_all{1}[128..256, 0..64] 8:19 the read",
            "What keeps the write of launch 3 away until launch 1 has read it",
            "step launch rank actor does line",
            "1 1 0 gemm cta 1 mainloop on %a_all{1}[128..256, 0..64] 8:19 the read",
            "2 1 0 gemm cta 1 the body ends; the exit begins when all bodies are through",
            "3 1 0 gemm exit signal peer(1).%free_host[0] = 1 scope sys after performed 7:17 makes it 1",
            "4 3 1 push_a wait %free_host[0] >= 1 scope sys 7:17 stands for that raise",
            "5 3 1 push_a copy peer(0).%a_all{1}[128..256, 0..64] <- %a[128..256, 0..64] 7:17 the next write",
        ],
    );
}

#[test]
fn an_element_is_found_by_name_rank_plane_and_launch() {
    let program = kernel("gemm_rs");
    let explained = small(&program);
    let asked = |text: &str, rank, launch| Query { element: element(text), rank, launch };
    let argument = argued(&explained, asked("c_partial[130, 7]", Some(1), Some(1)));
    // Rank 1 owns the row; rank 0 alone contributes to it, in its own plane.
    assert_eq!(argument.element.to_string(), "%c_partial{1, 0}[130, 7]");
    holds(
        &argument.to_string(),
        &[
            "1 1 0 gemm cta 0 store peer(1).%c_partial{1, 0}[128..256, 0..128] <- %e0 5:9 the write, asynchronous",
            "2 1 0 gemm cta 0 signal peer(1).%c_landed[1] += 8 scope sys after performed 5:9 makes it 8",
            "3 1 1 gemm cta 1 wait %c_landed[1] >= 8 scope sys 5:9 stands for that raise",
            "4 1 1 gemm cta 1 sum own %e0 from %c_partial{1, 0}[128..256, 0..128] 5:9 the read",
        ],
    );
    let same = argued(&explained, asked("%c_partial{1,0}[130,7]", None, Some(1)));
    assert_eq!(argument, same);
    // The second launch takes the other plane.
    let argument = argued(&explained, asked("c_partial[130, 7]", Some(1), Some(2)));
    assert_eq!(argument.element.planes, [0, 0]);
    let nobody = explained.argument(&asked("c_partial{0, 0}[130, 7]", None, Some(1)));
    let nobody = nobody.expect_err("launch 1 does not use the plane").to_string();
    assert_eq!(nobody, "no agent reads %c_partial{0, 0}[130, 7] in launch 1");
}

#[test]
fn an_output_element_is_followed_to_what_it_is_made_of() {
    let program = kernel("gemm_rs");
    let query = Query { element: element("c[3, 5]"), ..Query::default() };
    let argument = argued(&small(&program), query);
    assert_eq!(argument.rank, 0);
    holds(
        &argument.to_string(),
        &["step launch rank actor does line", "1 3 0 gemm cta 1 store %c[3, 5] 5:9 the store"],
    );
    let text = argument.to_string();
    assert!(text.contains("made of %c_partial{1, 1}[3, 5] on rank 0. How it arrives"), "{text}");
    let program = kernel("gemm");
    let query = Query { element: element("c[3, 5]"), ..Query::default() };
    let text = argued(&small(&program), query).to_string();
    assert!(text.contains("made of inputs of the launch alone"), "{text}");
    let none = small(&program).argument(&Query::default());
    assert_eq!(none, Err(QueryError::Private));
}

#[test]
fn a_pulled_tensor_is_held_between_begin_and_end_of_its_owners_launch() {
    let program: Program = file("faults", "gather_pull_passes").parse().expect("a Program");
    let launch = Launch { shape: Shape { m: 16, n: 8, k: 8 }, world: 2, ctas: 1 };
    let explained = check::explain(&program, launch).expect("it runs");
    let argument = argued(&explained, Query { element: element("a[8, 0]"), ..Query::default() });
    assert!(argument.holds, "{argument}");
    let text = argument.to_string();
    holds(&text, &["How it arrives", "step launch rank actor does line"]);
    assert!(text.contains("launch 3 of rank 1 begins: the tensor is there"), "{text}");
    assert!(text.contains("What keeps it until it has been read"), "{text}");
    assert!(text.contains("launch 3 of rank 1 ends"), "{text}");
}

#[test]
fn what_is_no_element_is_answered_with_what_there_is() {
    for wrong in ["", "c", "c[1]", "c[1,2", "c[a,2]", "[1,2]", "c{}[1,2]", "c[1,-2]", "c[1,2]x"] {
        let error = wrong.parse::<Element>().expect_err(wrong);
        assert_eq!(error, QueryError::Syntax(wrong.into()));
    }
    let program = kernel("gemm_rs");
    let explained = small(&program);
    let error = |query: Query| explained.argument(&query).expect_err("no such thing").to_string();
    let query = Query { element: element("d[0, 0]"), ..Query::default() };
    assert_eq!(error(query), "no buffer `d`; there are: a, b, c, c_partial");
    assert_eq!(
        error(Query { rank: Some(2), ..Query::default() }),
        "expected a rank 0 to 1, found 2"
    );
    assert_eq!(
        error(Query { launch: Some(0), ..Query::default() }),
        "expected a launch 1 to 3, found 0"
    );
    let query = Query { element: element("c[9999, 0]"), ..Query::default() };
    assert_eq!(error(query), "no agent writes %c[9999, 0] in launch 3");
    let query = Query { element: element("a[0, 0]"), ..Query::default() };
    assert_eq!(error(query), "no agent reads %a[0, 0] in launch 3");
}

/// The smallest launch that shows a fault, as text.
fn rejected(kind: &str, name: &str) -> String {
    let program: Program = file(kind, name).parse().expect("a Program");
    let explained = check::smallest_rejected(&program).expect("it runs").expect("it is rejected");
    explained.to_string()
}

#[test]
fn a_deadlock_is_the_shortest_cycle_of_waits() {
    let text = rejected("verify", "deadlock");
    assert!(
        text.starts_with("gemm_rs, in a launch of 9x9x9 on 2 ranks with 1 CTA each\n"),
        "{text}"
    );
    holds(
        &text,
        &[
            "2 actors wait for each other; each raise below is the one above it waits for",
            "step launch rank actor does line",
            "1 1 0 gemm cta 0 wait %c_landed[4] >= 8 scope sys 38:13 stuck: %c_landed[4] is 0, wants 8",
            "2 1 1 gemm cta 0 signal peer(0).%c_landed[4] += 8 scope sys after performed 30:11 not reached: it stands behind the wait of this actor",
            "3 1 1 gemm cta 0 wait %c_landed[2] >= 8 scope sys 38:13 stuck: %c_landed[2] is 0, wants 8",
            "4 1 0 gemm cta 0 signal peer(1).%c_landed[2] += 8 scope sys after performed 30:11 not reached: it stands behind the wait of this actor",
            "5 1 0 gemm cta 0 wait %c_landed[4] >= 8 scope sys 38:13 the first wait again: nobody can go on",
        ],
    );
}

#[test]
fn a_cycle_may_lead_through_an_exit_or_a_grid_that_has_not_started() {
    holds(
        &rejected("verify", "deadlock_credit"),
        &[
            "2 1 0 gemm exit signal %free_host[0] = 1 scope sys after performed 48:7 not reached: the exit begins when gemm cta 0 is through",
            "3 1 0 gemm cta 0 wait %a_arrived[0] >= 1 scope sys 41:7 stuck: %a_arrived[0] is 0, wants 1",
        ],
    );
    holds(
        &rejected("verify", "deadlock_host_first"),
        &[
            "An actor waits for what stands behind its own wait",
            "step launch rank actor does line",
            "1 1 0 push_a wait %go[0] >= 1 scope sys 27:7 stuck: %go[0] is 0, wants 1",
            "2 1 0 gemm cta 0 signal %go[0] = 1 scope sys after performed 38:7 not reached: the agent starts when push_a is through",
        ],
    );
}

#[test]
fn a_wait_that_starves_is_shown_with_all_it_can_count_on() {
    holds(
        &rejected("verify", "wait_without_signal"),
        &[
            "3 raises are all there is, up to this launch",
            "step launch rank actor does line",
            "1 1 1 gemm cta 0 signal peer(0).%c_landed[1] += 7 scope sys after performed 30:11 makes it 7",
            "2 2 1 gemm cta 0 signal peer(0).%c_landed[1] += 7 scope sys after performed 30:11 makes it 14",
            "3 3 1 gemm cta 0 signal peer(0).%c_landed[1] += 7 scope sys after performed 30:11 makes it 21",
            "4 3 0 gemm cta 0 wait %c_landed[1] >= 24 scope sys 38:13 waits forever: 21 of 24",
        ],
    );
}

#[test]
fn a_signal_that_does_not_grow_is_shown_with_all_its_raises() {
    holds(
        &rejected("faults", "flags_reset_between_launches"),
        &[
            "All raises of the slot; what is set has to grow, and one actor alone sets it",
            "step launch rank actor does line",
            "1 1 0 push signal %arrived[0] = 1 scope sys after performed 30:9 makes it 1",
            "2 2 0 push signal %arrived[0] = 1 scope sys after performed 30:9 is 1 already, and has to grow",
            "3 3 0 push signal %arrived[0] = 1 scope sys after performed 30:9 is 1 already, and has to grow",
        ],
    );
}

#[test]
fn a_long_cycle_is_cut_before_its_end() {
    let kernel: Kernel = file("kernel", "gemm_rs").parse().expect("a kernel");
    let schedule = Schedule::sm_90a().tile(128, 128, 64).order(Order::OwnShardFirst);
    let program = lower::lower(&kernel, &schedule).expect("it lowers");
    let launch = Launch { shape: Shape { m: 4096, n: 4096, k: 64 }, world: 8, ctas: 132 };
    let explained = check::explain(&program, launch).expect("it runs");
    let traces = explained.traces();
    let [trace] = &traces[..] else { panic!("{explained}") };
    assert_eq!(trace.rule, Rule::Deadlock);
    let rows = &trace.table.rows;
    let first = &rows[0];
    let last = &rows[rows.len() - 1];
    assert_eq!((&first.actor, &first.does), (&last.actor, &last.does));
    assert_eq!(last.note, "the first wait again: nobody can go on");
    match trace.table.left_out {
        Some((behind, more)) => {
            assert_eq!((rows.len(), behind), (40, 39));
            let text = trace.table.to_string();
            assert!(text.contains(&format!("  … {more} more\n")), "{text}");
            let end = text.lines().last().and_then(|line| line.split_whitespace().next());
            assert_eq!(end, Some((40 + more).to_string().as_str()), "{text}");
        }
        None => assert!(rows.len() <= 40),
    }
}

#[test]
fn an_early_read_is_shown_without_the_write_it_is_meant_to_see() {
    holds(
        &rejected("faults", "arrival_counted_twice"),
        &[
            "A run in which it is read before it arrives",
            "step launch rank actor does line",
            "1 1 1 gemm cta 0 signal peer(0).%landed[1] += 8 scope sys after performed 34:11",
            "2 1 1 gemm cta 0 signal peer(0).%landed[1] += 8 scope sys after performed 35:11",
            "3 1 0 gemm cta 0 wait %landed[1] >= 8 scope sys 43:13 ends with step 1",
            "4 2 0 gemm cta 0 wait %landed[1] >= 16 scope sys 43:13 ends with step 2",
            "5 2 0 gemm cta 0 sum own %e0 from %partial{0, 1}[0..1, 0..1] 46:9 reads element (0, 0) of %partial{0, 1}",
            "6 2 1 gemm cta 0 store peer(0).%partial{0, 1}[0..1, 0..1] <- %e0 33:11 still to come: it writes element (0, 0)",
        ],
    );
    holds(
        &rejected("faults", "pull_before_the_owner_is_there"),
        &[
            "A run in which a peer's tensor is read before the peer's launch begins",
            "step launch rank actor does line",
            "1 1 1 pull copy %a_all <- peer(0).%a[0..1, 0..1] 29:7 rank 0 may not have begun launch 1",
        ],
    );
}

#[test]
fn an_overwrite_is_shown_before_the_read() {
    holds(
        &rejected("verify", "overwrite_before_read_one_buffer"),
        &[
            "A run in which it is overwritten before it is read",
            "step launch rank actor does line",
            "1 1 1 push signal peer(0).%got[0] = 1 scope sys after performed 18:5",
            "2 1 0 gemm cta 0 wait %got[0] >= 1 scope sys 27:7 ends with step 1",
            "3 2 0 push copy peer(1).%x{0}[0..1, 0..1] <- %a[0..1, 0..1] 17:5 the write",
            "4 1 1 gemm cta 0 mainloop on %x{0}[0..1, 0..1] 29:7 still to come: launch 1 reads it here",
        ],
    );
    let within_a_launch = rejected("verify", "overwrite_before_read");
    assert!(within_a_launch.contains("still to come: launch 1 reads it here"), "{within_a_launch}");
}

#[test]
fn what_is_missing_between_a_write_and_its_read_is_named() {
    holds(
        &rejected("verify", "put_not_performed"),
        &[
            "1 1 0 up cta 0 store %h[0..1, 0..1] <- %e0 23:7 the write",
            "2 1 0 up cta 0 signal %made[0] += 1 scope gpu after read 25:5 after read: its source is free, no more; makes it 1",
            "3 1 0 down cta 0 wait %made[0] >= 1 scope gpu 28:5 stands for that raise",
            "4 1 0 down cta 0 fence proxy.async 29:5 TMA loads behind it see what the wait gave",
            "5 1 0 down cta 0 mainloop on %h[0..1, 0..1] 36:7 the read: the write may still be in flight",
        ],
    );
    holds(
        &rejected("verify", "missing_proxy_fence"),
        &[
            "3 1 0 gemm cta 0 wait %filled[0] >= 1 scope sys 26:7 stands for that raise",
            "4 1 0 gemm cta 0 mainloop on %x[0..1, 0..1] 27:7 the read, by TMA: no fence proxy.async since the wait",
        ],
    );
    holds(
        &rejected("verify", "scope_too_narrow"),
        &[
            "1 1 0 fill signal %filled[0] = 1 scope sys after performed 16:5",
            "2 1 0 gemm cta 0 wait %filled[0] >= 1 scope gpu 25:7 reaches gpu, needed sys",
        ],
    );
}

#[test]
fn counts_and_sums_are_shown_with_all_that_they_take() {
    holds(
        &rejected("verify", "count_not_exact_overshoots"),
        &[
            "1 1 0 come cta 0 signal %here[0] += 2 scope gpu after performed 6:5 makes it 2",
            "2 1 0 meet cta 0 wait %here[0] >= 1 scope gpu 9:5 wants 1, and never sees just that",
        ],
    );
    holds(
        &rejected("verify", "count_not_exact_barrier"),
        &[
            "4 2 0 meet signal peer(1).%here[0] += 1 scope sys after performed 8:7 counts towards 2 in place of the one below",
            "5 1 1 meet signal %here[0] += 1 scope sys after performed 8:7 still to come: a wait for 2 is meant to wait for this",
        ],
    );
    holds(
        &rejected("verify", "sum_not_exact"),
        &[
            "1 1 0 gemm cta 0 sum own %e0 from %x{1, 1}[0..1, 0..1] 33:7 from rank 1",
            "2 1 0 gemm cta 0 sum own %e0 from %x{1, 1}[0..1, 0..1] 33:7 from rank 1: again; none from rank 2",
        ],
    );
}

#[test]
fn a_launch_that_ends_too_soon_and_a_put_nobody_hears_of_are_shown() {
    holds(
        &rejected("verify", "exit_before_read"),
        &[
            "1 1 1 pull signal peer(0).%ready[0] = 1 scope sys after performed 9:5",
            "2 1 0 pull wait %ready[0] >= 1 scope sys 10:5 ends with step 1",
            "3 1 0 pull exit launch 1 of rank 0 ends",
            "4 1 1 pull copy %x <- peer(0).%a[0..1, 0..1] 11:5 still to come",
        ],
    );
    holds(
        &rejected("verify", "put_not_signalled"),
        &[
            "1 1 0 put copy peer(1).%x{1, 0}[0..1, 0..1] <- %a[0..1, 0..1] 9:7 a put to rank 1",
            "2 1 0 put signal %got[0] += 1 scope sys after performed 10:7 tells rank 0",
            "3 1 0 put launch 1 of this actor is over rank 1 has been told nothing",
        ],
    );
}

/// Rules that a run shows.
const SHOWN: [Rule; 13] = [
    Rule::Deadlock,
    Rule::WaitWithoutSignal,
    Rule::SignalNotMonotone,
    Rule::ReadBeforeArrival,
    Rule::OverwriteBeforeRead,
    Rule::UnorderedWrites,
    Rule::ExitBeforeRead,
    Rule::PutNotPerformed,
    Rule::MissingProxyFence,
    Rule::ScopeTooNarrow,
    Rule::CountNotExact,
    Rule::SumNotExact,
    Rule::PutNotSignalled,
];

#[test]
fn every_fault_that_a_run_shows_has_a_trace_of_few_steps() {
    let mut seen = HashSet::new();
    for kind in ["verify", "faults"] {
        for entry in fs::read_dir(folder(kind)).expect("a folder") {
            let path = entry.expect("an entry").path();
            let text = fs::read_to_string(&path).expect("a file");
            let Ok(program) = text.parse::<Program>() else { continue };
            let Ok(Some(explained)) = check::smallest_rejected(&program) else { continue };
            let traces = explained.traces();
            for (index, diagnostic) in explained.diagnostics().0.iter().enumerate() {
                // What is summed too early is not exact either; the early read is what is shown.
                let early = explained.diagnostics().0.iter().any(|other| {
                    other.rule == Rule::ReadBeforeArrival && other.span == diagnostic.span
                });
                let follows = diagnostic.rule == Rule::SumNotExact && early;
                // A run is drawn with all signals; what lacks those that data stand for has none.
                let lacks = |(_, note): &(Span, String)| note.starts_with("data stand for ");
                let apart = diagnostic.notes.iter().any(lacks);
                if follows || apart || !SHOWN.contains(&diagnostic.rule) {
                    continue;
                }
                let trace = traces.iter().find(|trace| trace.diagnostic == index);
                let name = path.display();
                let trace = trace.unwrap_or_else(|| panic!("{name}: no trace for {diagnostic}"));
                assert_eq!(trace.rule, diagnostic.rule);
                let rows = trace.table.rows.len();
                assert!((1..=42).contains(&rows), "{name}: {rows} rows");
                seen.insert(diagnostic.rule);
            }
        }
    }
    let unseen: Vec<_> = SHOWN.iter().filter(|rule| !seen.contains(rule)).collect();
    assert!(unseen.is_empty(), "no file shows {unseen:?}");
}

#[test]
fn what_cannot_be_run_is_refused_with_the_rules_it_breaks() {
    for (name, rule) in [
        ("bounds", Rule::Bounds),
        ("written_twice", Rule::WrittenTwice),
        ("never_written", Rule::NeverWritten),
        ("types", Rule::Types),
        ("order_not_permutation", Rule::OrderNotPermutation),
    ] {
        let program: Program = file("verify", name).parse().expect("a Program");
        let found = check::smallest_rejected(&program).expect_err(name);
        assert!(found.0.iter().any(|diagnostic| diagnostic.rule == rule), "{name}: {found}");
    }
    let program = kernel("gemm");
    for (m, world, message) in [
        (0, 2, "a launch without output elements does nothing"),
        (256, 0, "expected a world of 1 to 64 ranks, found 0"),
    ] {
        let launch = Launch { shape: Shape { m, n: 128, k: 64 }, world, ctas: 1 };
        let found = check::explain(&program, launch).expect_err(message).to_string();
        assert!(found.contains(message), "{found}");
    }
}

#[test]
fn shipped_kernels_are_argued_about_on_a_real_launch() {
    let program = kernel("ag_gemm_rs_gated");
    let launch = Launch { shape: Shape { m: 2048, n: 1024, k: 512 }, world: 8, ctas: 132 };
    let explained = check::explain(&program, launch).expect("it runs");
    let counts = explained.counts();
    assert_eq!(counts.actors, 8 * (1 + 1 + 132 + 1));
    for query in [Query::default(), Query { element: element("y[1030, 700]"), ..Query::default() }]
    {
        let argument = argued(&explained, query);
        assert!(argument.holds, "{argument}");
    }
    let svg = explained.svg(&Query::default());
    well_formed(&svg);
    assert!(svg.contains(" events, those around %x_all{1}[256, 0] on rank 0, launch 3</text>"));
    assert!(svg.matches("<g>").count() <= 200);
}

/// Asserts that tags nest, attributes are quoted and nothing is left unescaped.
fn well_formed(svg: &str) {
    let mut open: Vec<String> = Vec::new();
    let mut rest = svg;
    while let Some(at) = rest.find('<') {
        let text = &rest[..at];
        assert!(!text.contains('>'), "a stray > in {text:?}");
        for entity in text.split('&').skip(1) {
            let name = entity.split(';').next().unwrap_or_default();
            assert!(["amp", "lt", "gt", "quot"].contains(&name), "a stray & in {text:?}");
        }
        let end = rest[at..].find('>').expect("a tag ends") + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes in {tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().expect("a name").to_owned());
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
}

#[test]
fn drawings_have_a_lane_for_each_actor_and_an_arrow_for_each_wait() {
    for name in KERNELS {
        let program = kernel(name);
        let explained = small(&program);
        let svg = explained.svg(&Query::default());
        well_formed(&svg);
        assert!(!svg.contains("#cc0000\" stroke-width"), "{name} is not at fault");
        let dot = explained.dot(&Query::default());
        assert_eq!(dot.matches('{').count(), dot.matches('}').count(), "{name}");
    }
    let program = kernel("ag_gemm_gelu");
    let svg = small(&program).svg(&Query::default());
    for lane in ["push_a", "gemm cta 0", "gemm cta 1", "gemm exit"] {
        let mark = format!("text-anchor=\"middle\">{lane}</text>");
        assert_eq!(svg.matches(&mark).count(), 2, "{lane} of two ranks");
    }
    for launch in 1..=3 {
        assert_eq!(svg.matches(&format!(">launch {launch}</text>")).count(), 2);
    }
    // Each tile that waits has an arrow, and each credit of the third launch.
    assert_eq!(svg.matches("marker-end=").count(), 3 * 2 * 2 + 2 * 2);
    assert!(
        svg.contains(
            "<title>copy peer(1).%a_all{1}[0..128, 0..64] &lt;- %a[0..128, 0..64]</title>"
        )
    );
    assert!(svg.contains(">store %c[0..128, 0..128]</text>"));
    let dot = small(&program).dot(&Query::default());
    assert!(dot.starts_with("digraph launch {\n"));
    assert!(dot.contains("label=\"rank 1 gemm exit\";"), "{dot}");
    assert_eq!(dot.matches("color=\"#2f6f3a\"").count(), 3 * 2 * 2 + 2 * 2);
}

#[test]
fn what_is_at_fault_is_drawn_red() {
    let program: Program = file("verify", "deadlock").parse().expect("a Program");
    let explained = check::smallest_rejected(&program).expect("it runs").expect("it is rejected");
    let svg = explained.svg(&Query::default());
    well_formed(&svg);
    // Two waits, and the two raises behind them that are never reached.
    assert_eq!(svg.matches("stroke=\"#cc0000\" stroke-width=\"2\"").count(), 4);
    assert_eq!(svg.matches("stroke-dasharray=\"5,3\" marker-end=\"url(#red)\"").count(), 2);
    let dot = explained.dot(&Query::default());
    assert_eq!(dot.matches("color=red, penwidth=2").count(), 4);
    let program: Program =
        file("verify", "overwrite_before_read_one_buffer").parse().expect("a Program");
    let explained = check::smallest_rejected(&program).expect("it runs").expect("it is rejected");
    let svg = explained.svg(&Query::default());
    well_formed(&svg);
    assert_eq!(svg.matches(">no order</text>").count(), 1);
}
