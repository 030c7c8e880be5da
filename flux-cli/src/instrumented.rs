//! Kernels of the library, compiled anew with stores of their tiles' times.

use flux::{Definition, Image};
use flux_ir::fingerprint;
use flux_ir::lower::checked;
use std::error::Error;

/// `definition` with instrumented images of all its schedules.
///
/// They stay until the process ends, as those of the library do.
pub(crate) fn instrumented(definition: &Definition) -> Result<&'static Definition, Box<dyn Error>> {
    let kernel = definition.kernel()?;
    let mut images = Vec::new();
    for (index, schedule) in (definition.schedules)().iter().enumerate() {
        let verified = checked(&kernel, schedule)?;
        let image = flux_codegen::compile_recorded(&verified)?;
        images.push(Image {
            schedule: index,
            entry: image.entry.leak(),
            ptx: image.ptx.leak(),
            shared_bytes: image.shared_bytes,
            fingerprint: fingerprint::of_program(verified.program()),
            recorded: true,
        });
    }
    let Definition { name, file, text, schedules, .. } = *definition;
    Ok(Box::leak(Box::new(Definition { name, file, text, schedules, images: images.leak() })))
}
