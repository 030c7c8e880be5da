//! Kernel and schedule to a checked Program and, for a device, its machine code.

use crate::cache;
use flux_ir::fingerprint::of_program;
#[cfg(feature = "codegen")]
use flux_ir::{Diagnostic, Rule, Span, Target};
use flux_ir::{Diagnostics, Kernel, Schedule, check, lower};

/// Machine code, as it is embedded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Compiled {
    /// Name of the entry in the PTX.
    pub(crate) entry: String,
    /// Dynamic shared memory of a CTA, in bytes.
    pub(crate) shared_bytes: u32,
    /// Fingerprint of the Program.
    pub(crate) fingerprint: u64,
    /// The PTX.
    pub(crate) ptx: String,
}

/// Lowers, checks and compiles; `None` where the target has no machine code, or the feature
/// `codegen` is off. What was compiled before is remembered.
///
/// A user's own tile order is not known here, and need not be: orders are tables that the code
/// reads, and the table of a custom order is checked when the kernel is loaded.
///
/// # Errors
/// Every rule found broken.
pub(crate) fn compile(
    kernel: &Kernel,
    schedule: &Schedule,
) -> Result<Option<Compiled>, Diagnostics> {
    let key = cache::key(kernel, schedule);
    if let Some(known) = cache::look_up(&key) {
        return Ok(known);
    }
    let verified = lower::checked(kernel, schedule)?;
    let fingerprint = of_program(verified.program());
    let compiled = machine_code(&verified, fingerprint)?;
    cache::store(&key, &compiled);
    Ok(compiled)
}

#[cfg(feature = "codegen")]
fn machine_code(
    verified: &check::Verified,
    fingerprint: u64,
) -> Result<Option<Compiled>, Diagnostics> {
    match verified.program().target {
        Target::Host => return Ok(None),
        Target::Sm90a => {}
    }
    let image = flux_codegen::compile(verified).map_err(|error| match error {
        flux_codegen::Error::Unsupported { message, span, help } => {
            Diagnostic::new(Rule::Resources, span, message).help(help)
        }
        error => Diagnostic::new(Rule::Schedule, Span::UNKNOWN, error.to_string()),
    })?;
    let flux_codegen::Image { entry, ptx, shared_bytes, .. } = image;
    Ok(Some(Compiled { entry, shared_bytes, fingerprint, ptx }))
}

#[cfg(not(feature = "codegen"))]
fn machine_code(
    verified: &check::Verified,
    fingerprint: u64,
) -> Result<Option<Compiled>, Diagnostics> {
    let _ = (verified, fingerprint);
    Ok(None)
}
