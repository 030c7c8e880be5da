//! Runs original and mutant in every interleaving of small launches.

use super::events;
use super::score::Verdict;
use crate::explore::{self, Limits};
use flux_ir::Shape;
use flux_ir::check::{EPOCHS, Verified, verify};
use flux_ir::eval::Launch;
use flux_ir::program::Program;

/// Launches that are small in tiles of four rows and two columns, with the number of consecutive
/// ones: one tile and several, whole and ragged, across shards, fewer rows than ranks, one CTA that
/// does all tiles and several that share them. Five launches see each credit used twice.
const LAUNCHES: [(Launch, u32); 16] = [
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
    (launch(3, 2, 1, 1), 5),
    (launch(3, 10, 1, 2), 3),
    (launch(3, 12, 3, 1), 3),
    (launch(3, 15, 1, 2), 3),
    (launch(5, 18, 1, 1), 3),
];

const fn launch(world: u32, m: u32, n: u32, ctas: u32) -> Launch {
    Launch { shape: Shape { m, n, k: 2 }, world, ctas }
}

/// Whether each interleaving of `mutant` leaves what `original` leaves, in every small launch in
/// which some actor of it does something else; there has to be one.
pub(super) fn same_contents(original: &Program, mutant: &Program) -> Verdict {
    let show = || {
        let original = verify(original.clone()).map_err(|found| found.to_string())?;
        let mutant = verify(mutant.clone())
            .map_err(|found| format!("in small tiles the checker says: {found}"))?;
        let (mut launches, mut states) = (0, 0);
        for (launch, epochs) in LAUNCHES {
            if events::same(original.program(), mutant.program(), launch) {
                continue;
            }
            let Launch { shape, world, ctas } = launch;
            launches += 1;
            states += explored(&original, &mutant, launch, epochs).map_err(|what| {
                format!("{shape} over {world} with {ctas} CTAs, {epochs} launches: {what}")
            })?;
        }
        match launches {
            0 => Err("no small launch shows a difference".into()),
            _ => Ok(Verdict::SameContents { launches, states }),
        }
    };
    show().unwrap_or_else(Verdict::Survived)
}

/// Plays every interleaving. Returns how many states there are, or what went wrong in one.
fn explored(
    original: &Verified,
    mutant: &Verified,
    launch: Launch,
    epochs: u32,
) -> Result<u64, String> {
    mutant.check_launch(launch).map_err(|found| format!("the checker says: {found}"))?;
    let limits = Limits { first_fault: true, ..Limits::default() };
    let states = explore::equivalent(original, mutant, launch, &limits);
    let states = states.map_err(|difference| difference.to_string())?;
    if epochs <= EPOCHS {
        return Ok(states as u64);
    }
    let outcome = explore::run(mutant.program(), launch, epochs, &limits);
    let outcome = outcome.map_err(|error| error.to_string())?;
    match outcome.faults.first() {
        None => Ok((states + outcome.states) as u64),
        Some(fault) => Err(format!("an interleaving breaks {}", fault.rule)),
    }
}
