//! Ranks of several nodes: what lowering makes of them, and what the checker says of ways to break it.

use flux_ir::check::{check_program, verify};
use flux_ir::eval::Launch;
use flux_ir::lower::lower;
use flux_ir::{AllGather, Kernel, Program, Rule, Schedule, Shape, Transport};

const GATHER: &str = include_str!("filetests/kernel/ag_gemm_gelu.flux");

fn schedule(node: u32) -> Schedule {
    Schedule::host().tile(8, 8, 4).transport(Transport::Put).node(node)
}

/// The text of the gather on nodes of two ranks.
fn gather() -> String {
    let kernel: Kernel = GATHER.parse().expect("the kernel parses");
    lower(&kernel, &schedule(2)).expect("it lowers").to_string()
}

/// Four ranks of two nodes: CTAs put chunks that others copied.
const LAUNCH: Launch = Launch { shape: Shape { m: 64, n: 9, k: 8 }, world: 4, ctas: 3 };

/// The same with a rank that has no rows: no tile waits for it, so nothing but credit does.
const FEW: Launch = Launch { shape: Shape { m: 3, n: 9, k: 8 }, world: 4, ctas: 3 };

/// The rules that `text` breaks in a launch, and all that is said.
fn said(text: &str, launch: Launch) -> (Vec<Rule>, String) {
    let program: Program = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    match check_program(&program, launch) {
        Ok(()) => (Vec::new(), String::new()),
        Err(found) => (found.0.iter().map(|d| d.rule).collect(), found.to_string()),
    }
}

/// Replaces what stands once.
fn edit(text: &str, right: &str, wrong: &str) -> String {
    assert_eq!(text.matches(right).count(), 1, "{right}\n{text}");
    text.replace(right, wrong)
}

#[test]
fn gathers_between_nodes_are_sound() {
    let kernel: Kernel = GATHER.parse().expect("the kernel parses");
    for node in 1..=8 {
        for schedule in [
            schedule(node),
            schedule(node).chunk_rows(3),
            Schedule {
                target: flux_ir::Target::Sm90a,
                ..Schedule::sm_90a().tile(128, 128, 64).transport(Transport::Put).node(node)
            },
        ] {
            let program = lower(&kernel, &schedule).expect("it lowers");
            assert!(program.is_networked());
            let verified = verify(program).unwrap_or_else(|found| panic!("{schedule}: {found}"));
            for world in [2, 4, 6, 16] {
                let launch = Launch { world, ..LAUNCH };
                verified.check_launch(launch).unwrap_or_else(|found| panic!("{schedule}: {found}"));
            }
        }
    }
    assert_eq!(said(&gather(), LAUNCH), (Vec::new(), String::new()));
}

/// Whatever is gathered: for the epilogue, to be summed over, to be given back.
#[test]
fn every_gathered_tensor_is_moved_between_nodes() {
    for text in [
        include_str!("filetests/kernel/all_gather.flux"),
        include_str!("filetests/kernel/ag_gemm_gathered.flux"),
        include_str!("filetests/kernel/gemm_ag_tn.flux"),
        include_str!("filetests/kernel/ag_gemm_tn.flux"),
    ] {
        let kernel: Kernel = text.parse().expect("the kernel parses");
        let program = lower(&kernel, &schedule(2)).expect("it lowers");
        assert!(program.is_networked(), "{}", kernel.name);
        let verified = verify(program).unwrap_or_else(|found| panic!("{}: {found}", kernel.name));
        verified.check_launch(LAUNCH).unwrap_or_else(|found| panic!("{}: {found}", kernel.name));
    }
}

#[test]
fn programs_of_one_node_name_no_network() {
    let kernel: Kernel = GATHER.parse().expect("the kernel parses");
    let program = lower(&kernel, &schedule(0)).expect("it lowers");
    let text = program.to_string();
    assert!(
        !program.is_networked() && !text.contains("remote") && !text.contains("node"),
        "{text}"
    );
}

/// Every way to break it, with the rule that says so and a part of what is said.
#[test]
fn broken_gathers_are_rejected() {
    let base = gather();
    let put = "copy remote(%dst).%a_all{epoch % 2}[%from..%to, %k0..min(%k0 + %PC, K)] <- %a_all{epoch % 2}[%from..%to, %k0..min(%k0 + %PC, K)] @7:17";
    let told =
        "signal remote(%dst).%a_arrived[rank * %CH + %c] += 3 scope sys after delivered @7:17";
    let own = "wait %a_arrived[rank * %CH + %c] >= epoch * %PS * 3 scope sys @7:17";
    let freed = "signal remote(%p).%free_copies[rank] += 1 scope sys after delivered @7:17";
    let credit = "wait %free_copies[0..world] >= epoch - 2 scope sys @7:17";
    let mate = "%dst / 2 * 2 + (%dst + 1) % 2";
    let cases: [(&str, String, Rule, &str); 16] = [
        (
            "mapped copy",
            put.replacen("remote", "peer", 1),
            Rule::NotMapped,
            "copies to memory of rank",
        ),
        (
            "mapped signal",
            told.replace("remote", "peer").replace("delivered", "performed"),
            Rule::NotMapped,
            "raises a signal of rank",
        ),
        (
            "pull",
            "copy %a_all{epoch % 2}[%from..%to, 0..K] <- remote(%dst).%a_all{epoch % 2}[%from..%to, 0..K] @7:17".to_owned(),
            Rule::NotMapped,
            "a copy that pulls from there",
        ),
        ("sum", put.replace("<-", "+="), Rule::NotMapped, "found one that adds"),
        (
            "source of the caller",
            put.replace("<- %a_all{epoch % 2}", "<- %a"),
            Rule::NotMapped,
            "the network reads workspace of the own rank",
        ),
        (
            "performed",
            told.replace("delivered", "performed"),
            Rule::PutNotDelivered,
            "`after performed`, which the network does not tell",
        ),
        ("read", told.replace("delivered", "read"), Rule::PutNotDelivered, "`after read`, which"),
        (
            "set",
            told.replace("+= 3", "= epoch"),
            Rule::SignalNotMonotone,
            "is set, and the network adds",
        ),
        ("no signal", String::new(), Rule::WaitWithoutSignal, ""),
        (
            "signal of another rank",
            told.replace("remote(%dst)", &format!("remote({mate})")),
            Rule::ReadBeforeArrival,
            "nothing it waits for says",
        ),
        ("source not there", String::new(), Rule::ReadBeforeArrival, "reads rows"),
        ("no credit", String::new(), Rule::OverwriteBeforeRead, "may not have read yet"),
        ("late credit", credit.replace("- 2", "- 3"), Rule::OverwriteBeforeRead, ""),
        ("credit not raised", String::new(), Rule::WaitWithoutSignal, ""),
        ("credit by performed", freed.replace("delivered", "performed"), Rule::PutNotDelivered, ""),
        (
            "another plane",
            put.replacen("%a_all{epoch % 2}", "%a_all{(epoch + 1) % 2}", 1),
            Rule::ReadBeforeArrival,
            "",
        ),
    ];
    let mut wrong = Vec::new();
    for (name, with, rule, part) in cases {
        let right = match name {
            "mapped copy" | "pull" | "sum" | "source of the caller" | "another plane" => put,
            "source not there" => own,
            "no credit" | "late credit" => credit,
            "credit not raised" | "credit by performed" => freed,
            _ => told,
        };
        let launch = if right == credit { FEW } else { LAUNCH };
        let (rules, text) = said(&edit(&base, right, &with), launch);
        if !(rules.contains(&rule) && text.contains(part)) {
            wrong.push(format!("{name}: expected {rule}, found\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The signal stands ahead of what it is to travel behind.
#[test]
fn a_signal_ahead_of_its_put_says_nothing() {
    let text = gather();
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.contains("after delivered")).expect("a signal");
    let mut swapped = lines.clone();
    swapped.swap(at - 1, at);
    let (rules, text) = said(&swapped.join("\n"), LAUNCH);
    assert!(rules.contains(&Rule::ReadBeforeArrival), "{text}");
    assert!(text.contains("`after delivered` of the same agent, on the rank it went to"), "{text}");
}

/// Messages of two CTAs to one slot overtake each other: those of a later launch those of an earlier one.
#[test]
fn several_raisers_of_a_slot_overtake_each_other() {
    let halves = edit(&gather(), "let %PR = %CR", "let %PR = max(%CR / 2, 1)");
    let halves = edit(&halves, "let %PS = 1", "let %PS = ceil(%CR / %PR)");
    let (rules, text) = said(&halves, LAUNCH);
    assert!(rules.contains(&Rule::CountNotExact), "{text}");
    // Of mapped memory alone the same cut is sound: a launch that is over has raised.
    let (rules, text) = said(&halves, Launch { world: 2, ..LAUNCH });
    assert!(rules.is_empty(), "{text}");
}

/// Two ranks, a node each: one puts what it has, and uses its source again.
const REUSED: &str = "
program @reused for host {
  tile (8, 8, 8) stages 4 consumers cooperative node 1
  buffer %a : bf16[M, K] in
  buffer %c : bf16[M, N] out
  buffer %w : bf16[M, K] symmetric
  buffer %y : bf16[M, K] symmetric
  signal %made[1] device
  signal %came[1] device
  signal %free[1] device
  signal %sent[1] device
  table %tiles[ceil(M / 8) * ceil(N / 8)] order row_major (%tm, %tn) -> (0, 0)
  %e0 = const 0
  agent push on copy_warps {
    if cta == 0 {
      wait %free[0] >= epoch - 1 scope sys
      copy %w[0..M, 0..K] <- %a[0..M, 0..K]
      signal %made[0] += 3 scope sys after performed
      wait %made[0] >= epoch * 3 scope sys
      copy remote(1 - rank).%y[0..M, 0..K] <- %w[0..M, 0..K]
      signal remote(1 - rank).%came[0] += 3 scope sys after delivered
      AGAIN
      copy %w[0..M, 0..K] <- %a[0..M, 0..K]
      signal %made[0] += 0 scope sys after performed
    }
  }
  agent use on ctas {
    for %t in cta..ceil(M / 8) * ceil(N / 8) step ctas {
      row (%m, %n, %f, %l) = %tiles[%t]
      wait %came[0] >= epoch * 3 scope sys
      store %c[%m * 8..min(%m * 8 + 8, M), %n * 8..min(%n * 8 + 8, N)] <- %e0
    }
  } exit {
    signal remote(1 - rank).%free[0] += 1 scope sys after delivered
  }
}
";

#[test]
fn sources_are_free_behind_a_flush_alone() {
    let launch = Launch { shape: Shape { m: 8, n: 8, k: 8 }, world: 2, ctas: 1 };
    let (rules, text) = said(&REUSED.replace("AGAIN", ""), launch);
    assert!(rules.contains(&Rule::OverwriteBeforeRead), "{text}");
    assert!(text.contains("the network reads the source of a put at some time"), "{text}");
    let flushed = REUSED.replace("AGAIN", "signal %sent[0] += 3 scope sys after read");
    assert_eq!(said(&flushed, launch), (Vec::new(), String::new()));
    // That the data have been delivered does not follow from the end of a launch either.
    let alone = flushed.replace("wait %free[0] >= epoch - 1 scope sys", "");
    let (rules, text) = said(&alone, launch);
    assert!(rules.contains(&Rule::UnorderedWrites), "{text}");
}

/// What a schedule cannot move between nodes is said where it is lowered.
#[test]
fn what_other_nodes_cannot_be_given_is_refused() {
    let parse = |text: &str| text.parse::<Kernel>().expect("the kernel parses");
    let gather = parse(GATHER);
    let scatter = parse(include_str!("filetests/kernel/gemm_rs.flux"));
    let reduce = parse(include_str!("filetests/kernel/gemm_ar.flux"));
    let exchange = parse(include_str!("filetests/kernel/gemm_a2a.flux"));
    let protocol = parse(include_str!("filetests/kernel/sum_ahead.flux"));
    let tma = Schedule { transport: Some(Transport::Tma), ..schedule(2) };
    let engine = Schedule { transport: None, ..schedule(2) };
    for (kernel, schedule, part) in [
        (&gather, tma, "expected `transport = put` where ranks are of several nodes, found tma"),
        (
            &gather,
            engine,
            "expected `transport = put` where ranks are of several nodes, found none",
        ),
        (&gather, schedule(2).all_gather(AllGather::Pull), "found `all_gather = pull`"),
        (&gather, schedule(2).all_gather(AllGather::Ring), "found `all_gather = ring`"),
        (&scatter, schedule(2), "found the scattered `c`"),
        (&reduce, schedule(2), "found the reduced `c`"),
        (&exchange, schedule(2), "found the exchanged `c`"),
        (&protocol, schedule(2), "found one"),
    ] {
        let found = lower(kernel, &schedule).expect_err("it cannot go there").to_string();
        assert!(found.contains(part) && found.contains("help: "), "{schedule}: {found}");
    }
}
