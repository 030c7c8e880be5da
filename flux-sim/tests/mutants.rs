//! The mutation score of the checker: every single-point mutant of a shipped kernel is rejected, or
//! shown to be equivalent. One schedule for each kernel here; `make mutants` judges all.

mod shipped;

use flux_ir::Program;
use flux_sim::mutants::score::{HEAD, Score, Subject, Verdict, by_rule};
use flux_sim::mutants::{Kind, of};
use std::collections::HashSet;

#[test]
fn every_mutant_is_rejected_or_equivalent() {
    are_rejected_or_equivalent(&shipped::few());
}

fn are_rejected_or_equivalent(subjects: &[Subject]) {
    let scores: Vec<Score> = subjects.iter().map(Subject::score).collect();
    let lines = scores.iter().map(|score| format!("{score}\n")).collect::<String>();
    println!("{HEAD}\n{lines}\n{}", by_rule(&scores));
    for score in &scores {
        let survivors: Vec<_> =
            score.survivors().map(|(mutant, why)| format!("{mutant}\n  {why}")).collect();
        assert!(survivors.is_empty(), "{}:\n{}", score.name, survivors.join("\n"));
        assert_eq!(score.percent(), 100, "{}", score.name);
    }
    // The tool can tell: most mutants are rejected, by many rules.
    let verdicts = || scores.iter().flat_map(|score| &score.judged).map(|(_, verdict)| verdict);
    let rejected = verdicts().filter(|verdict| matches!(verdict, Verdict::Rejected(_))).count();
    assert!(10 * rejected > 8 * verdicts().count(), "{rejected} of {}", verdicts().count());
}

#[test]
fn mutants_are_of_every_kind_and_differ() {
    for subject in shipped::few() {
        let mutants = of(&subject.program);
        let texts: HashSet<String> = mutants.iter().map(|m| m.program.to_string()).collect();
        assert_eq!(texts.len(), mutants.len(), "{}", subject.name);
        assert!(!texts.contains(&subject.program.to_string()), "{}", subject.name);
        let points: HashSet<&str> = mutants.iter().map(|mutant| mutant.point.as_str()).collect();
        assert_eq!(points.len(), mutants.len(), "{}", subject.name);
        if subject.program.communicates() {
            for kind in Kind::ALL {
                let found = mutants.iter().any(|mutant| mutant.kind == kind);
                assert!(found, "{} has no mutant of kind {kind}", subject.name);
            }
        }
    }
}

/// Some of the slips one would make by hand, each in the text of `gemm_rs`.
#[test]
fn slips_made_by_hand_are_among_the_mutants() {
    let text = include_str!("../../flux-ir/tests/filetests/program/gemm_rs_host.flux");
    let program: Program = text.parse().unwrap_or_else(|error| panic!("{error}"));
    let mutants: HashSet<String> = of(&program).iter().map(|m| without_vars(&m.program)).collect();
    for (right, wrong) in [
        (
            "wait %free[0..world] >= epoch - 2 scope sys",
            "wait %free[0..world] >= epoch - 3 scope sys",
        ),
        (
            "wait %free[0..world] >= epoch - 2 scope sys",
            "wait %free[0..world] >= epoch - 2 scope gpu",
        ),
        ("+= 8 scope sys after performed", "+= 8 scope sys after read"),
        ("+= 8 scope sys after performed", "+= 7 scope sys after performed"),
        (">= epoch * 8 scope sys", ">= epoch * 7 scope sys"),
        ("%c_partial{epoch % 2, rank}", "%c_partial{(epoch + 1) % 2, rank}"),
        ("%c_partial{epoch % 2, %i}", "%c_partial{0 % 2, %i}"),
        ("%c_partial{epoch % 2, %i}", "%c_partial{epoch % 2, (%i + 1) % world}"),
        ("signal peer(%o).%c_landed", "signal %c_landed"),
        ("signal peer(%o).%c_landed", "signal peer((%o + 1) % world).%c_landed"),
        ("for %p in 0..world {", "for %p in 1..world {"),
        ("order next_rank_first", "order own_shard_first"),
    ] {
        assert_eq!(text.matches(right).count(), 1, "{right}");
        let slip: Program = text.replace(right, wrong).parse().unwrap_or_else(|e| panic!("{e}"));
        assert!(mutants.contains(&without_vars(&slip)), "{right} → {wrong}");
    }
}

/// The text without the numbering of variables.
fn without_vars(program: &Program) -> String {
    let text = program.to_string();
    text.lines().filter(|line| !line.starts_with("  vars ")).collect::<Vec<_>>().join("\n")
}
