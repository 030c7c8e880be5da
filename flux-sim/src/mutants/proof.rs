//! Runs original and mutant in every interleaving of small launches.

use super::events;
use super::score::Verdict;
use crate::explore::{self, Limits};
use flux_ir::check::{EPOCHS, verify};
use flux_ir::eval::Launch;
use flux_ir::program::Program;
use flux_ir::{Shape, Target};

/// Launches that are small in tiles of four rows and two columns, with the number of consecutive
/// ones: one tile and several, whole and ragged, across shards, fewer rows than ranks, one CTA that
/// does all tiles and several that share them. Five launches see each credit used twice.
const LAUNCHES: [(Launch, u32); 17] = [
    (launch(1, 6, 3, 1), 5),
    (launch(1, 9, 2, 2), 3),
    (launch(1, 13, 3, 3), 3),
    (launch(2, 1, 1, 1), 5),
    (launch(2, 4, 3, 1), 5),
    (launch(2, 6, 3, 1), 3),
    (launch(2, 5, 1, 2), 3),
    (launch(2, 8, 2, 1), 5),
    (launch(2, 10, 3, 2), 3),
    (launch(2, 13, 1, 3), 3),
    (launch(2, 16, 1, 1), 3),
    (launch(2, 16, 3, 1), 3),
    (launch(3, 2, 1, 1), 5),
    (launch(3, 10, 1, 2), 3),
    (launch(3, 12, 3, 1), 3),
    (launch(3, 15, 1, 2), 3),
    (launch(5, 18, 1, 1), 3),
];

const fn launch(world: u32, m: u32, n: u32, ctas: u32) -> Launch {
    Launch { shape: Shape { m, n, k: 4 }, world, ctas }
}

/// Whether each interleaving of `mutant` leaves what `original` leaves, in every small launch in
/// which some actor of it does something else; there has to be one. Both run on the host; whether
/// launches end is asked as `target` runs them.
pub(super) fn same_contents(original: &Program, mutant: &Program, target: Target) -> Verdict {
    let show = || {
        let original = verify(original.clone()).map_err(|found| found.to_string())?;
        let mutant = verify(mutant.clone())
            .map_err(|found| format!("in small tiles the checker says: {found}"))?;
        let mut on_target = mutant.program().clone();
        on_target.target = target;
        let (mut launches, mut states) = (0, 0);
        for (launch, epochs) in LAUNCHES {
            if events::same(original.program(), mutant.program(), launch) {
                continue;
            }
            let Launch { shape, world, ctas } = launch;
            launches += 1;
            let about = |what: String| {
                format!("{shape} over {world} with {ctas} CTAs, {epochs} launches: {what}")
            };
            mutant.check_launch(launch).map_err(|found| about(found.to_string()))?;
            let limits = Limits { first_fault: true, ..Limits::default() };
            let equivalent = explore::equivalent(&original, &mutant, launch, &limits);
            states += equivalent.map_err(|difference| about(difference.to_string()))? as u64;
            if epochs > EPOCHS || target != Target::Host {
                let outcome = explore::run(&on_target, launch, epochs, &limits);
                let outcome = outcome.map_err(|error| about(error.to_string()))?;
                if let Some(fault) = outcome.faults.first() {
                    return Err(about(format!("an interleaving breaks {}", fault.rule)));
                }
                states += outcome.states as u64;
            }
        }
        match launches {
            0 => Err("no small launch shows a difference".into()),
            _ => Ok(Verdict::SameContents { launches, states }),
        }
    };
    show().unwrap_or_else(Verdict::Survived)
}
