//! Memory of the same size on every rank, which all of them reach: for kernels of others.

use crate::error::Error;
use crate::gpu::Gpu;
use crate::meeting::Step;
use crate::problem::Extents;
use crate::tensor::{Element, OnDevice, Storage, Tensor};
use crate::world::{Backend, Rank};
use flux_runtime::Heaps;
use std::sync::Arc;

/// A matrix on every rank, in memory that each rank's GPU reaches: kernels of one's own, by way of
/// cudarc, PyTorch or CUDA C++, can store into those of peers. Of ranks on GPUs, also where each is a
/// process.
///
/// Kernels of this library have workspace of their own for what they send. They take the own matrix as
/// an argument like any tensor, and know nothing of what peers do to it: ordering that is the caller's
/// affair.
#[derive(Debug)]
pub struct SymmetricTensor<T> {
    // Dropped ahead of `own`, with which the memory waits until nobody uses it.
    heaps: Arc<Heaps>,
    gpu: Gpu,
    rank: u32,
    own: Tensor<T>,
}

impl Rank {
    /// A matrix of zeros on every rank. All of them call this, with the same extents and element type,
    /// in the same order as they load kernels.
    ///
    /// ```
    /// use flux::prelude::*;
    ///
    /// fn addresses(rank: &Rank) -> Result<Vec<u64>, flux::Error> {
    ///     let symmetric = rank.symmetric::<bf16>(64, 128)?;
    ///     let of = |rank| Ok(symmetric.of(rank)?.buffer().map_or(0, |buffer| buffer.address()));
    ///     (0..rank.world_size()).map(of).collect()
    /// }
    ///
    /// match World::virtual_ranks(0, 2) {
    ///     Ok(world) => drop(world.run(addresses)?),
    ///     Err(reason) => println!("no such world here: {reason}"),
    /// }
    /// # Ok::<(), flux::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the host, and where peers are passive; ranks that disagree; out of
    /// memory.
    pub fn symmetric<T: Element>(
        &self,
        rows: usize,
        cols: usize,
    ) -> Result<SymmetricTensor<T>, Error> {
        let refused = |problem: &str| {
            let (kernel, problem) = ("symmetric".into(), problem.into());
            Error::Unsupported { kernel, problem }
        };
        let Backend::Gpu(gpu) = &self.shared.backend else {
            return Err(refused("ranks of the host have memory of their own alone"));
        };
        if gpu.passive().is_some() {
            return Err(refused("passive peers use nothing: take ranks that are active"));
        }
        let bytes =
            rows.checked_mul(cols).and_then(|elements| elements.checked_mul(size_of::<T>()));
        let bytes = bytes.ok_or(Error::OutOfMemory { rows, cols, bytes: size_of::<T>() })?;
        let meeting = self.meeting(self.next_load()?);
        let text = format!("make a symmetric tensor of {rows} x {cols} elements of {}", T::KIND);
        meeting.step(&Step::new(text, &[]), &Extents::new())?;
        // Nothing is no memory, and peers have to be told something.
        let heaps = gpu.symmetric(&meeting, self.world_size(), bytes.max(1) as u64)?;
        let rank = self.index();
        let own = part(&heaps, gpu, (rank, rank), (rows, cols))?;
        Ok(SymmetricTensor { heaps, gpu: gpu.clone(), rank, own })
    }
}

/// The memory of rank `of`, for `rank`.
fn part<T: Element>(
    heaps: &Arc<Heaps>,
    gpu: &Gpu,
    (rank, of): (u32, u32),
    (rows, cols): (usize, usize),
) -> Result<Tensor<T>, Error> {
    let buffer = heaps.buffer(of, (rows * cols * size_of::<T>()) as u64)?;
    Ok(Tensor::new(rows, cols, Storage::Device(OnDevice::new(buffer, gpu, rank))))
}

impl<T: Element> SymmetricTensor<T> {
    /// This rank's own matrix.
    pub fn own(&self) -> &Tensor<T> {
        &self.own
    }

    /// This rank's own matrix, to be written.
    pub fn own_mut(&mut self) -> &mut Tensor<T> {
        &mut self.own
    }

    /// The matrix of a rank, its address as this rank's GPU sees it: for
    /// [`DeviceBuffer::as_cudarc`](flux_runtime::DeviceBuffer::as_cudarc) and [`Tensor::to_dlpack`]. The
    /// memory of all ranks lives as long as one such tensor does.
    ///
    /// # Errors
    /// A number that is no rank's.
    pub fn of(&self, rank: u32) -> Result<Tensor<T>, Error> {
        let extents = (self.own.rows(), self.own.cols());
        part(&self.heaps, &self.gpu, (self.rank, rank), extents)
    }
}
