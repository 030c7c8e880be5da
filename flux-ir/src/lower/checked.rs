//! Lowering and checking at once, so that what a schedule's choice asks too much of names the choice.

use super::lower;
use crate::check::{Verified, verify};
use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::kernel::Kernel;
use crate::schedule::Schedule;
use crate::span::Span;

/// Lowers `kernel` under `schedule` and checks it: [`lower`](super::lower()), then [`verify`]. Chunks that are
/// too many for a check are told by the name of `chunk_rows`, which no Program knows.
///
/// # Errors
/// Every rule found broken.
pub fn checked(kernel: &Kernel, schedule: &Schedule) -> Result<Verified, Diagnostics> {
    verify(lower(kernel, schedule)?).map_err(|found| match schedule.chunk_rows {
        Some(rows) if found.0.iter().any(is_bound) && passes_whole(kernel, schedule) => {
            Diagnostics(found.0.into_iter().map(|found| of_chunks(found, rows)).collect())
        }
        _ => found,
    })
}

fn is_bound(found: &Diagnostic) -> bool {
    found.rule == Rule::Bounds
}

/// Whether it is the chunks that are too many.
fn passes_whole(kernel: &Kernel, schedule: &Schedule) -> bool {
    let whole = Schedule { chunk_rows: None, ..schedule.clone() };
    lower(kernel, &whole).is_ok_and(|program| verify(program).is_ok())
}

fn of_chunks(found: Diagnostic, rows: u32) -> Diagnostic {
    if !is_bound(&found) {
        return found;
    }
    let message =
        format!("chunk_rows = {rows} cuts more chunks than can be checked: {}", found.message);
    let help =
        "take chunks of more rows, or leave `transport` out: a copy engine takes one step a chunk";
    let named = Diagnostic::new(Rule::Schedule, Span::UNKNOWN, message).help(help);
    Diagnostic { notes: found.notes, ..named }
}
