//! What the instrument is doing, for whoever asked to be told.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Instant;

/// Since when stages are told; unset where they are not.
static BEGIN: OnceLock<Instant> = OnceLock::new();

/// Tells every stage on standard error from now on, with the seconds since.
pub fn tell_stages() {
    BEGIN.get_or_init(Instant::now);
}

/// Tells a stage.
pub(crate) fn stage(text: impl Display) {
    if let Some(begin) = BEGIN.get() {
        // Nobody may be listening.
        let _ = writeln!(io::stderr(), "{:8.3} s  {text}", begin.elapsed().as_secs_f64());
    }
}
