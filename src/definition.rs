//! What the macro embeds of a kernel, and a bundle brings.

use crate::error::Error;
use crate::source::rejected;
use flux_ir::{Kernel, Schedule};
use std::fmt;

/// A kernel as compiled into the program, or read from a [`Bundle`](crate::Bundle): its Kernel IR, its schedules, and the PTX of each.
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
pub struct Definition {
    /// The kernel's name.
    pub name: &'static str,
    /// The user's source file, as the compiler was given it.
    pub file: &'static str,
    /// Kernel IR in text form, positions included.
    pub text: &'static str,
    /// The schedules given by `#[schedule(…)]`; never empty, the first is the default.
    pub schedules: &'static (dyn Fn() -> Vec<Schedule> + Send + Sync),
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

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Definition { name, file, text, schedules, images } = self;
        f.debug_struct("Definition")
            .field("name", name)
            .field("file", file)
            .field("text", text)
            .field("schedules", &schedules())
            .field("images", images)
            .finish()
    }
}
