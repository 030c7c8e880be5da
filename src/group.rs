//! Some ranks of a world as a world of their own.

use crate::error::Error;
use crate::world::{Backend, Rank, Shared};
use std::sync::Arc;

impl Rank {
    /// This rank as one of a smaller world: that of the ranks `members` of this one, of which the
    /// first is its rank 0. Each member calls this with the same list; nobody else does, or waits.
    ///
    /// Kernels are loaded on it as on any rank, and meet nobody but its members. Its launches are
    /// ordered with those of this rank, on the same stream; tensors of either serve both.
    ///
    /// ```
    /// use flux::prelude::*;
    ///
    /// // Tensor parallel within pairs, data parallel across them.
    /// let sums = World::host(4)?.run(|rank| {
    ///     let first = rank.index() / 2 * 2;
    ///     let pair = rank.group(&[first, first + 1])?;
    ///     let kernel = flux::kernels::gemm_rs::load(&pair)?;
    ///     let ones = |rows, cols| pair.tensor(rows, cols, &vec![bf16::ONE; rows * cols]);
    ///     let (a, b, mut c) = (ones(4, 8)?, ones(16, 8)?, pair.zeros(2, 16)?);
    ///     kernel.launch(&a, &b, &mut c)?;
    ///     Ok(c.to_vec()?[0].to_f32())
    /// })?;
    /// assert_eq!(sums, [16.0; 4]);
    /// # Ok::<(), flux::Error>(())
    /// ```
    ///
    /// # Errors
    /// A list without this rank, with one twice, or with one that is no rank of this world; members
    /// that name others, or in another order; a member that does not come within the limit;
    /// [`Error::Unsupported`] where peers are passive.
    pub fn group(&self, members: &[u32]) -> Result<Rank, Error> {
        let shared = &*self.shared;
        if let Backend::Gpu(gpu) = &shared.backend
            && gpu.passive().is_some()
        {
            let problem = "passive peers are memory and form no groups: make a smaller world";
            return Err(Error::Unsupported { kernel: "group".into(), problem: problem.into() });
        }
        let rendezvous = self.rendezvous.group(self.index, members, shared.limit)?;
        let index = members.iter().position(|&rank| rank == self.index).unwrap_or(0) as u32;
        let members = shared.members.group(members);
        let backend = match &shared.backend {
            Backend::Host { ctas } => Backend::Host { ctas: *ctas },
            Backend::Gpu(gpu) => Backend::Gpu(gpu.of(&members, &shared.session)),
        };
        let (limit, session) = (shared.limit, Arc::clone(&shared.session));
        let (size, joined) = (members.len(), shared.joined.clone());
        let shared = Shared { size, backend, limit, members, session, joined };
        Ok(Rank { shared: Arc::new(shared), rendezvous, index })
    }
}
