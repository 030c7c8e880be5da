//! One launch of an instrumented kernel.

use super::fused::{Kind, OverlapOptions, open};
use super::operands::normal;
use super::{LIMIT, Number, Timer};
use crate::error::Error;
use crate::kernels::{Choice, PlainKernel};
use crate::shapes::Dims;
use crate::stage::stage;
use flux::{Definition, Tensor};
use flux_runtime::numbers::Numbers;
use flux_sim::time::Recording;
use std::sync::Arc;

/// Launches before the one that is recorded.
const WARM_UP: usize = 3;

/// Runs `definition`, whose images are instrumented, as [`super::overlap`] runs the library's
/// kernel of [`OverlapOptions::kind`], and gives the times of its tiles.
///
/// # Errors
/// No device; a shape that ranks cannot share evenly; a stalled kernel; [`Error::NoRecording`].
pub fn record<T: Number>(
    options: &OverlapOptions,
    shape: Dims,
    definition: &'static Definition,
) -> Result<Recording, Error> {
    let world = open(options)?;
    let ranks = world.ranks();
    let [rank] = ranks.as_slice() else { return Err(Error::NoDevice) };
    let main = rank.stream().ok_or(Error::NoDevice)?;
    let numbers = Numbers::load(&rank.device().ok_or(Error::NoDevice)?, T::ELEMENT)?;
    let Dims { m, n, k } = shape;
    let world = options.world;
    if !m.is_multiple_of(world as usize) {
        return Err(Error::Shards { shape, world });
    }
    let shard = m / world as usize;
    let (of_a, of_c) = match options.kind {
        Kind::Gather => (shard, m),
        Kind::Scatter => (m, shard),
    };
    let a = normal::<T>(rank, &numbers, &main, [of_a, k], 1)?;
    let b = normal::<T>(rank, &numbers, &main, [n, k], 2)?;
    let mut c: Tensor<T> = rank.zeros(of_c, n)?;
    let choice: &Choice = options.plans.first().unwrap_or(&options.choice);
    let kernel = PlainKernel::of_definition(rank, definition, choice)?;
    stage(format_args!("launches of {choice}"));
    kernel.launch(&a, &b, &mut c)?;
    rank.synchronize()?;
    // On zeros a product takes less power, and so less time.
    for outbox in rank.outboxes() {
        numbers.normal(&main, outbox.span(), 3 + u64::from(outbox.peer()), 1.0)?;
        outbox.changed();
    }
    main.synchronize(LIMIT)?;
    let timer = Timer::new(Arc::clone(&main))?;
    for _ in 0..WARM_UP {
        timer.time(|| Ok(kernel.launch(&a, &b, &mut c)?))?;
        rank.synchronize()?;
    }
    rank.recording()?.ok_or(Error::NoRecording)
}
