//! Programs of other shapes than lowering makes, and why some are not proved.

use super::{all_proved, count, launch, lowered, small};
use flux_ir::parametric::{self, Proof};
use flux_ir::{Program, Rule, check};
use std::fs;
use std::path::Path;

fn program(body: &str) -> Program {
    let text = format!(
        "program @p for host {{ tile (2, 2, 1) stages 2 consumers cooperative\n\
         let %S = ceil(M / world)\n let %T = ceil(M / 2) * ceil(N / 2)\n{body} }}"
    );
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The proofs of every wait, each compared with counts.
fn proofs(program: &Program) -> Vec<Proof> {
    let verdicts = parametric::prove(program);
    all_proved(&verdicts);
    for (m, n, world, ctas) in super::LAUNCHES {
        let walked = count::walk(program, launch(m, n, world, ctas), 100_000).expect("ends");
        walked.compare(&verdicts).unwrap_or_else(|e| panic!("{e}"));
    }
    verdicts.into_iter().filter_map(|verdict| verdict.outcome.ok()).collect()
}

#[test]
fn a_barrier_counts_every_cta_of_every_rank() {
    let proofs = proofs(&program(
        "signal %bar[1] device
         agent all on ctas {
           for %p in 0..world {
             signal peer(%p).%bar[0] += 2 scope sys after performed
           }
           wait %bar[0] >= 2 * world * ctas * (epoch - 1) scope sys
         }",
    ));
    assert_eq!((proofs[0].lag, proofs[0].steps.len()), (1, 5), "{}", proofs[0]);
    assert!(proofs[0].claim.contains("ctas * world times a launch"), "{}", proofs[0].claim);
}

#[test]
fn a_pull_leaves_the_own_rank_out() {
    let pull = program(
        "signal %ready[world] host
         signal %taken[world] device
         agent pull on copy_engine {
           for %h in 1..world {
             let %src = (rank + %h) % world
             wait %ready[%src] >= epoch scope sys
             signal peer(%src).%taken[rank] += 3 scope sys after performed
           }
         }
         agent all on ctas {
           if cta == 0 {
             for %p in 0..world { if rank != %p { wait %taken[%p] >= 3 * epoch scope sys } }
           }
         } exit {
           for %p in 0..world { signal peer(%p).%ready[rank] = epoch scope sys after performed }
         }",
    );
    assert_eq!(proofs(&pull).len(), 2);
}

#[test]
fn only_the_first_cta_of_the_last_rank_raises() {
    let one = program(
        "signal %go[2] device
         agent all on ctas {
           if cta == 0 { if rank == world - 1 {
             for %p in 0..world { for %i in 0..2 {
               signal peer(%p).%go[1 - %i] += M scope sys after performed
             } }
           } }
           wait %go[1] >= epoch * M scope sys
         }",
    );
    assert_eq!(proofs(&one).len(), 1);
}

/// Two raises of one array that share its slots, and one that never reaches the slot.
#[test]
fn raises_of_several_statements_add_up() {
    let several = program(
        "signal %s[world + 1] device
         agent all on copy_engine {
           for %p in 0..world {
             signal peer(%p).%s[rank] += 1 scope sys after performed
             signal peer(%p).%s[rank] += 4 scope sys after performed
             signal peer(%p).%s[world] += 1 scope sys after performed
           }
           for %q in 0..world { wait %s[%q] >= 5 * epoch scope sys }
           wait %s[world] >= world * epoch scope sys
         }",
    );
    assert_eq!(proofs(&several).len(), 2);
}

/// Steps and tiles as slots of their own.
#[test]
fn tiles_are_visited_once() {
    let tiles = program(
        "signal %step[%T] device
         signal %tile[world * %T] device
         table %tiles[%T] order xor (%tm, %tn) -> (%tm * ceil(N / 2) + %tn, 0)
         agent all on ctas {
           for %t in cta..%T step ctas {
             signal %step[%t] += 1 scope gpu after performed
             row (%m, %n, %at, %zero) = %tiles[%t]
             for %p in 0..world {
               signal peer(%p).%tile[rank * %T + %at] = epoch scope sys after performed
             }
           }
           for %u in 0..%T { wait %step[%u] >= epoch scope gpu }
           for %r in 0..world { for %v in 0..ceil(M / 2) {
             wait %tile[%r * %T + %v * ceil(N / 2)..%r * %T + %v * ceil(N / 2) + ceil(N / 2)]
               >= epoch - 2 scope sys
           } }
         }",
    );
    assert_eq!(proofs(&tiles).len(), 2);
}

/// Changes of `gemm_rs` and `ag_gemm_gelu` that leave some wait without a proof, and why.
#[test]
fn what_is_not_proved_says_why() {
    let cases = [
        ("gemm_rs", "+= 8", "+= 9", "a launch adds 9, the target is epoch * 8"),
        ("gemm_rs", ">= epoch - 2", ">= epoch + 1", "a launch adds 1, the target is epoch + 1"),
        ("gemm_rs", "_landed[rank", "_landed[1 + rank", "%m * %NT + %n"),
        ("gemm_rs", "in cta..%T step ctas", "in cta..%T - 1 step ctas", "not over all tiles"),
        ("gemm_rs", "in cta..%T step ctas", "in cta..%T step 2", "%t runs by 2"),
        ("gemm_rs", "in cta..%T step ctas", "in cta..%T + cta step ctas", "depends on cta"),
        ("gemm_rs", "if %o != rank", "if %o < rank", "is not shown"),
        ("gemm_rs", "if %lo < %hi", "if %lo < %hi + 1", "is not shown"),
        ("gemm_rs", "%free[rank] = epoch", "%free[rank] = 2 * epoch", "a launch adds 2"),
        ("gemm_rs", "%free[rank] = epoch", "%free[rank] = epoch + 1", "no multiple of the epoch"),
        ("gemm_rs", "peer(%p).%free", "%free", "rank - x = 0 is not shown"),
        ("gemm_rs", "for %p in 0..world", "for %p in 1..world", "1 <= rank is not shown"),
        ("gemm_rs", "%m0 / %S..", "%m0 / (%S - 1)..", "the divisor %S - 1 may be 0"),
        ("ag_gemm_gelu", "M - rank * %S", "M - cta * %S", "a definition or a table depends on cta"),
        ("gemm_rs", "let %m1 =", "let %m0 =", "given a value in two places"),
        ("ag_gemm_gelu", "0..ceil(%own / %CR)", "1..ceil(%own / %CR)", "1 <= %c' is not shown"),
        ("ag_gemm_gelu", "ceil(%own / %CR)", "%own / %CR", "is not shown"),
        ("ag_gemm_gelu", "(rank + %h) % world", "(rank * %h) % world", "is not solved"),
        ("ag_gemm_gelu", "let %CH = ", "let %CH = 1 + ", "is not shown"),
        ("ag_gemm_gelu", "/ %CR, (min", "/ %CR - 1, (min", "may be negative"),
        ("ag_gemm_gelu", "peer(%dst).%a_arrived", "peer(%dst + 1).%a_arrived", "in range"),
    ];
    for (name, from, to, why) in cases {
        let text = lowered(name, &small(Some(3))).to_string();
        assert!(text.contains(from), "{from} in\n{text}");
        let changed: Program = text.replacen(from, to, 1).parse().unwrap_or_else(|e| panic!("{e}"));
        let verdicts = parametric::prove(&changed);
        let unproved = verdicts.iter().filter_map(|v| v.outcome.as_ref().err());
        let found: Vec<_> = unproved.map(|unproved| unproved.to_string()).collect();
        assert!(found.iter().any(|found| found.contains(why)), "{from} -> {to}: {found:#?}");
    }
}

/// Hostile Programs end soon, without a proof.
#[test]
fn a_search_without_end_is_cut_short() {
    let mut nested = String::from("signal %s[world] device\n agent all on copy_engine {\n");
    nested += "let %x0 = M\n";
    for at in 1..900 {
        nested += &format!("let %x{at} = min(%x{0} * rank, max(%x{0}, world - %x{0}))\n", at - 1);
    }
    for at in (0..900).step_by(10) {
        nested += &format!("signal peer(%x{at}).%s[%x{at} / 7] += 1 scope sys after performed\n");
        nested += &format!("wait %s[%x{at} / 3] >= epoch scope sys\n");
    }
    nested += "}\n";
    let mut crowded = String::from("signal %s[world] device\n agent all on copy_engine {\n");
    crowded += "for %p in 0..world {\n";
    for _ in 0..900 {
        crowded += "signal peer(%p).%s[rank] += 1 scope sys after performed\n";
    }
    crowded += "}\n for %q in 0..world {\n";
    for at in 0..900 {
        crowded += &format!("wait %s[%q] >= epoch * 900 - {at} scope sys\n");
    }
    crowded += "} }\n";
    let mut whys = Vec::new();
    for text in [nested, crowded] {
        let started = std::time::Instant::now();
        let program = program(&text);
        let verdicts = parametric::prove(&program);
        println!("{} waits in {:?}", verdicts.len(), started.elapsed());
        assert!(started.elapsed().as_secs() < 60);
        let last = verdicts.last().and_then(|verdict| verdict.outcome.as_ref().err());
        whys.push(last.expect("nothing is proved").why.clone());
    }
    assert!(whys[0].contains("an expression grows too large"), "{}", whys[0]);
    assert_eq!(whys[1], "the search for a proof ran out of steps");
}

/// Programs of the other file tests, sound and broken: whatever is proved of them is so.
#[test]
fn no_proof_about_a_program_of_the_file_tests_is_wrong() {
    let (mut proofs, mut unproved) = (0, 0);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let folders =
        fs::read_dir(&root).expect("a folder").map(|entry| entry.expect("an entry").path());
    let files = folders.flat_map(|folder| fs::read_dir(folder).expect("a folder"));
    for file in files.map(|file| file.expect("a file").path()) {
        let text = fs::read_to_string(&file).expect("text");
        let Ok(program) = text.parse::<Program>() else { continue };
        let verdicts = parametric::prove(&program);
        proofs += verdicts.iter().filter(|verdict| verdict.outcome.is_ok()).count();
        unproved += verdicts.iter().filter(|verdict| verdict.outcome.is_err()).count();
        // One that leaves its bounds may loop for longer than anyone waits.
        let found = check::verify(program.clone()).err();
        if found.is_some_and(|found| found.0.iter().any(|d| d.rule == Rule::Bounds)) {
            continue;
        }
        for (m, n, world, ctas) in super::LAUNCHES {
            if let Some(walked) = count::walk(&program, launch(m, n, world, ctas), 40_000) {
                walked.compare(&verdicts).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            }
        }
    }
    println!("{proofs} waits proved, {unproved} not");
    assert!(proofs > 0 && unproved > 0);
}

#[test]
fn the_proofs_of_the_documentation_are_those_found() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/parametric.md");
    let text = fs::read_to_string(file).expect("the documentation");
    for name in ["ag_gemm_gelu", "gemm_rs"] {
        let program = lowered(name, &flux_ir::Schedule::sm_90a());
        let verdicts = parametric::prove(&program);
        let shown: Vec<_> = verdicts.iter().map(|verdict| verdict.to_string()).collect();
        let shown = shown.join("\n");
        assert!(text.contains(&format!("```text\n{shown}\n```")), "{name}:\n{shown}");
    }
}
