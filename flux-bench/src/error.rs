//! What can go wrong in a measurement.

use crate::shapes::Dims;
use std::path::PathBuf;

/// An error of the instrument.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A kernel, a world or a tensor.
    #[error(transparent)]
    Flux(#[from] flux::Error),
    /// A device, a stream or a library.
    #[error(transparent)]
    Runtime(#[from] flux_runtime::Error),
    /// A contestant whose result is not that of the reference.
    #[error(
        "{who} computed {wrong} wrong elements of {shape} (largest difference {largest}, {data}): \
         its time counts for nothing"
    )]
    Wrong {
        /// Whose result it is.
        who: String,
        /// The shape.
        shape: Dims,
        /// How many elements are beyond the bound.
        wrong: u64,
        /// The largest difference.
        largest: f32,
        /// What the operands were.
        data: &'static str,
    },
    /// A shape that baselines cannot share out evenly.
    #[error("M of {shape} is no multiple of {world} ranks, which the baselines need")]
    Shards {
        /// The shape.
        shape: Dims,
        /// Ranks.
        world: u32,
    },
    /// A kernel into which peers send something else than one part each.
    #[error("expected one outbox for each of {peers} peers, found {found}")]
    Boxes {
        /// Outboxes there are.
        found: usize,
        /// Peers there are.
        peers: usize,
    },
    /// A rank without a device.
    #[error("the rank computes on the host, where nothing is timed")]
    NoDevice,
    /// More work than the driver takes before any of it runs.
    #[error(
        "the driver held the host up while a sample was enqueued: its time would be the host's"
    )]
    Held,
    /// A kernel that is not instrumented.
    #[error("the kernel recorded no times: it is not instrumented")]
    NoRecording,
    /// No samples of something that was to be measured.
    #[error("nothing was measured: there are no rounds")]
    NoSamples,
    /// A file that cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}
