//! What the macro embeds of a kernel.

use crate::error::Error;
use crate::source::rejected;
use flux_ir::{Kernel, Schedule};

/// A kernel as compiled into the program: its Kernel IR, its schedules, and the PTX of each.
///
/// ```
/// let definition = flux::kernels::gemm_rs::definition();
/// assert_eq!(definition.name, "gemm_rs");
/// println!("{}", definition.kernel()?);
/// for image in definition.images {
///     let schedule = &(definition.schedules)()[image.schedule];
///     println!("({schedule}): {} bytes of PTX", image.ptx.len());
/// }
/// # Ok::<(), flux::Error>(())
/// ```
#[derive(Debug)]
pub struct Definition {
    /// The kernel's name.
    pub name: &'static str,
    /// The user's source file, as the compiler was given it.
    pub file: &'static str,
    /// Kernel IR in text form, positions included.
    pub text: &'static str,
    /// The schedules given by `#[schedule(…)]`; never empty, the first is the default.
    pub schedules: fn() -> Vec<Schedule>,
    /// Machine code by schedule; empty where the feature `codegen` is off.
    pub images: &'static [Image],
}

/// One compiled kernel.
#[derive(Debug)]
pub struct Image {
    /// Index into [`Definition::schedules`].
    pub schedule: usize,
    /// Name of the entry in the PTX.
    pub entry: &'static str,
    /// The PTX.
    pub ptx: &'static str,
    /// Dynamic shared memory of a CTA, in bytes.
    pub shared_bytes: u32,
    /// Fingerprint of the Program it was made from.
    pub fingerprint: u64,
    /// Whether it is instrumented: it writes when its tiles wait, compute and store
    /// ([`crate::Rank::recording`]).
    pub recorded: bool,
}

impl Definition {
    /// The embedded Kernel IR.
    ///
    /// # Errors
    /// Only where macro and library are of different versions.
    pub fn kernel(&self) -> Result<Kernel, Error> {
        self.text.parse().map_err(rejected(self))
    }
}
