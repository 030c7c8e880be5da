//! Prints the mutation score of the checker: `make mutants`.
//!
//! Every single-point mutant of every shipped kernel under every schedule is either rejected by
//! the checker, or shown to be equivalent; the exit status is 1 where one is neither. Words behind
//! the command pick the kernels and schedules whose names hold one of them; `--equivalent` lists
//! the mutants that were shown to be equivalent by execution, `--at-launch` those that are rejected
//! at a launch alone.

#[path = "../tests/shipped/mod.rs"]
mod shipped;

use flux_sim::mutants::score::{HEAD, Verdict, by_rule};
use std::process::ExitCode;

fn main() -> ExitCode {
    let (options, words): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let shown = |verdict: &Verdict| match verdict {
        Verdict::SameContents { launches, states } => options
            .contains(&"--equivalent".into())
            .then(|| format!("{launches} launches, {states} states")),
        Verdict::RejectedAtLaunch(rule) => {
            options.contains(&"--at-launch".into()).then(|| rule.to_string())
        }
        Verdict::Survived(reason) => Some(format!("SURVIVED: {reason}")),
        Verdict::Rejected(_) | Verdict::SameEvents => None,
    };
    let picked = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    println!("{HEAD}");
    let mut scores = Vec::new();
    for subject in shipped::all().into_iter().filter(|subject| picked(&subject.name)) {
        let score = subject.score();
        println!("{score}");
        scores.push(score);
    }
    println!("\n{}", by_rule(&scores));
    for score in &scores {
        for (mutant, verdict) in &score.judged {
            if let Some(verdict) = shown(verdict) {
                println!("\n{}: {mutant}\n  {verdict}", score.name);
            }
        }
    }
    let survived: usize = scores.iter().map(|score| score.survivors().count()).sum();
    let mutants: usize = scores.iter().map(|score| score.judged.len()).sum();
    println!("\n{mutants} mutants, {survived} survived");
    if survived == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
