//! Peers whose processes have ended: what waits for them is ended, and says so.

use super::instance::{GpuInstance, State};
use super::{Gpu, Lane};
use crate::error::Error;
use flux_runtime::Stream;

impl Gpu {
    /// Ends launches of `rank` that wait for a peer whose process has ended.
    pub(super) fn end_for_gone(&self, rank: u32) -> Result<(), Error> {
        if self.inner.lost(&self.members).is_none() {
            return Ok(());
        }
        let rescue = &self.card(rank).rescue;
        let own = self.own_instances(rank);
        own.iter().try_for_each(|instance| instance.end_for_gone(self.lane(rank), rescue))
    }
}

impl GpuInstance {
    /// Why no launch can get any further: a rank that takes part is gone.
    pub(super) fn gone(&self) -> Option<Error> {
        let (peer, reason) = self.lost()?;
        let kernel = self.watch.kernel.clone();
        Some(Error::PeerGone { rank: self.rank, kernel, peer, reason })
    }

    fn lost(&self) -> Option<(u32, String)> {
        let (rank, reason) = self.joined.as_ref()?.lost()?;
        Some((self.members.position(rank)?, reason))
    }

    /// Whether a rank that takes part is gone: quick, as hosts ask it while they wait.
    pub(super) fn is_gone(&self) -> bool {
        self.joined.is_some() && self.lost().is_some()
    }

    /// Where a rank that takes part is gone, ends what still waits, once.
    pub(super) fn end_for_gone(&self, lane: &Lane, rescue: &Stream) -> Result<(), Error> {
        if !self.is_gone() || lane.is_idle()? || self.watch.end() {
            return Ok(());
        }
        rescue.write_u32(self.state(State::Abort)?, 1)?;
        self.release(rescue)
    }

    /// That launches were ended as a rank is gone, the first time it is asked for.
    pub(super) fn take_gone(&self) -> Option<Error> {
        let concerns = self.watch.has_ended() && !self.watch.is_poisoned();
        let gone = concerns.then(|| self.gone()).flatten()?;
        self.watch.poison();
        Some(gone)
    }
}
