//! Kernel × schedule to Program.

use crate::diagnostic::Diagnostics;
use crate::kernel::Kernel;
use crate::program::Program;
use crate::schedule::Schedule;

/// Lowers `kernel` under `schedule`.
///
/// # Errors
/// Every rule the kernel or the schedule breaks.
pub fn lower(kernel: &Kernel, schedule: &Schedule) -> Result<Program, Diagnostics> {
    let _ = (kernel, schedule);
    Err(Diagnostics::new())
}
