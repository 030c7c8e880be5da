//! Prints the mutation score of the checker: `make mutants`.
//!
//! Every single-point mutant of every shipped kernel under every schedule is either rejected by
//! the checker, or shown to be equivalent; the exit status is 1 where one is neither. Words behind
//! the command pick the kernels and schedules whose names hold one of them.

#[path = "../tests/shipped/mod.rs"]
mod shipped;

use flux_sim::mutants::score::{HEAD, by_rule};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let picked = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    println!("{HEAD}");
    let mut scores = Vec::new();
    for subject in shipped::all().into_iter().filter(|subject| picked(&subject.name)) {
        let score = subject.score();
        println!("{score}");
        scores.push(score);
    }
    println!("\n{}", by_rule(&scores));
    let mut survived = 0;
    for score in &scores {
        for (mutant, reason) in score.survivors() {
            println!("\nSURVIVED {}: {mutant}\n  {reason}", score.name);
            survived += 1;
        }
    }
    let mutants: usize = scores.iter().map(|score| score.judged.len()).sum();
    println!("\n{mutants} mutants, {survived} survived");
    if survived == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
