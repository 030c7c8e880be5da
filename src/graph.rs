//! Launches that are recorded once and replayed.

use crate::error::Error;
use crate::gpu::Captured;
use crate::world::{Backend, Rank};

/// What one rank launched in a closure, to be launched again and again: [`Rank::capture`].
///
/// It holds the memory of the tensors that it was given, so these may be dropped; what is written
/// to them later it reads.
#[derive(Debug)]
pub struct Graph {
    /// A rank like the one that captured it.
    rank: Rank,
    captured: Captured,
}

impl Rank {
    /// Records the launches of `program` on this rank as a CUDA graph, and runs none of them. Every
    /// kernel has been launched with these extents before, so that there is nothing left to prepare.
    ///
    /// A rank may replay a graph as its peers replay theirs or launch one by one: kernels count their
    /// launches on the device, so both are the same to them. Signals, limits and reports of stalls are
    /// as ever.
    ///
    /// ```
    /// use flux::prelude::*;
    ///
    /// fn decode(rank: &Rank) -> Result<(), flux::Error> {
    ///     let kernel = flux::kernels::gemm_rs::load(rank)?;
    ///     let (a, b) = (rank.zeros(64, 512)?, rank.zeros(256, 512)?);
    ///     let mut c = rank.zeros(rank.own_rows(64), 256)?;
    ///     kernel.launch(&a, &b, &mut c)?;
    ///     let graph = rank.capture(|| kernel.launch(&a, &b, &mut c))?;
    ///     for _ in 0..1000 {
    ///         graph.launch()?;
    ///     }
    ///     rank.synchronize()
    /// }
    ///
    /// match World::virtual_ranks(0, 2) {
    ///     Ok(world) => drop(world.run(decode)?),
    ///     Err(reason) => println!("no such world here: {reason}"),
    /// }
    /// # Ok::<(), flux::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `program`; [`Error::Unsupported`] on the host, and within `program` for a kernel whose
    /// copies the host feeds, for extents that are new, and for whatever waits for the device.
    pub fn capture(&self, program: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        let captured = self.gpu("capture")?.capture(self.index, program)?;
        Ok(Graph { rank: self.again(), captured })
    }
}

impl Graph {
    /// Launches everything recorded, in its order, behind what is on the rank's stream.
    ///
    /// # Errors
    /// As of the launch of a kernel: a launch that stalled, a kernel that is lost by it, a rank that
    /// recovers.
    pub fn launch(&self) -> Result<(), Error> {
        let shared = &self.rank.shared;
        let Backend::Gpu(gpu) = &shared.backend else { return Ok(()) };
        let _launching = shared.session.launch(&shared.members, self.rank.index, "graph")?;
        gpu.replay(self.rank.index, &self.captured)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Backend::Gpu(gpu) = &self.rank.shared.backend {
            gpu.bury_all(self.rank.index, &mut self.captured);
        }
    }
}
