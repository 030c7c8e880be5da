//! What ranks, and the device, have to agree to before a launch.

use super::Findings;
use super::launch::describe;
use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::eval::Launch;
use crate::program::{Agent, Op, Program};
use crate::span::Span;

/// Checks that a grid of `ctas` CTAs a rank, of which `resident` fit the device at once, can wait.
///
/// CTAs that do not fit begin when others end. Those that wait may wait for one that has not
/// begun, so a grid with waits has to be resident as a whole.
///
/// # Errors
/// [`Rule::Residency`], at the agent's first wait.
pub fn check_residency(program: &Program, ctas: u32, resident: u32) -> Result<(), Diagnostics> {
    let mut found = Diagnostics::default();
    let on_ctas = program.agents.values().filter(|agent| agent.engine.is_in_kernel());
    for agent in on_ctas {
        let wait = Agent::statements(agent).find(|stmt| matches!(stmt.op, Op::Wait { .. }));
        if let Some(wait) = wait
            && ctas > resident
        {
            let message = format!(
                "CTAs of `{}` wait, and {resident} of {ctas} are resident at once",
                agent.name
            );
            found.push(
                Diagnostic::new(Rule::Residency, wait.span, message)
                    .help(format!("launch at most {resident} CTAs")),
            );
        }
    }
    found.into_result(())
}

/// Checks that all ranks launch alike; `launches` are theirs, by rank.
///
/// # Errors
/// [`Rule::LaunchDiffers`], with the first rank that differs from rank 0, and in what.
pub fn check_agreement(program: &Program, launches: &[Launch]) -> Result<(), Diagnostics> {
    let mut found = Findings::default();
    let Some(first) = launches.first() else { return Ok(()) };
    let numbers = |launch: &Launch| {
        let Launch { shape, world, ctas } = *launch;
        [("M", shape.m), ("N", shape.n), ("K", shape.k), ("world", world), ("ctas", ctas)]
    };
    for (rank, launch) in launches.iter().enumerate() {
        let differs = numbers(first).into_iter().zip(numbers(launch)).find(|(a, b)| a.1 != b.1);
        let Some(((name, expected), (_, number))) = differs else { continue };
        found.once(Rule::LaunchDiffers, program, || {
            let message = format!(
                "rank {rank} launches `{}` with {name} = {number}, rank 0 with {expected}",
                program.name
            );
            Diagnostic::new(Rule::LaunchDiffers, Span::UNKNOWN, message)
                .note(Span::UNKNOWN, format!("rank 0: {}", describe(*first)))
                .note(Span::UNKNOWN, format!("rank {rank}: {}", describe(*launch)))
                .help("waits count on what the other ranks raise: launch alike on all")
        });
    }
    found.diagnostics.into_result(())
}
