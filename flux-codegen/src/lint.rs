//! Rules of the memory model, checked on PTX text.

/// A broken rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LintRule {
    /// x
    X,
}
/// A broken rule with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("x")]
pub struct LintError;
/// Checks.
///
/// # Errors
/// All.
pub fn lint(_ptx: &str) -> Result<(), Vec<LintError>> {
    Ok(())
}
