//! Ranks of a GPU come to rest and begin anew.

use super::instance::{GpuInstance, STATE_STRIDE, State};
use super::{Gpu, RESCUE_INTERVAL, SYNCHRONIZE_LIMIT};
use crate::error::Error;
use flux_ir::arena::Handle;
use flux_ir::program::{Home, SignalId};
use flux_runtime::Span;
use flux_sim::Totals;
use std::sync::atomic::Ordering;

impl Gpu {
    /// Ends whatever `rank` has launched. Work that still ran has no results: it is told so.
    pub(crate) fn rest(&self, rank: u32) -> Result<(), Error> {
        self.lane(rank).require_free("recovery")?;
        let rescue = &self.card(rank).rescue;
        // A group leaves alone what reaches beyond it: that ends by its own limit.
        let own = self.own_instances(rank);
        let ends = |instance: &GpuInstance| instance.members.are_among(&self.members);
        if let Some(comms) = self.comms() {
            comms.end(&self.members, &Error::Interrupted { rank });
        }
        if !self.lane(rank).is_idle()? {
            // The queue may hold many launches, each of which would wait for its own limit.
            for instance in own.iter().filter(|instance| ends(instance)) {
                // Nothing is launched on it as long as it is told to give up.
                instance.watch.poison();
                rescue.write_u32(instance.state(State::Abort)?, 1)?;
                instance.release(rescue)?;
            }
            self.lane(rank).spoil(Error::Interrupted { rank });
        }
        while let Err(error) = self.await_streams(rank, RESCUE_INTERVAL) {
            if !matches!(error, Error::Runtime(flux_runtime::Error::Timeout { .. })) {
                return Err(error);
            }
            // What was enqueued ahead of the abort may only now have come to wait.
            let mut waited = own.iter().filter(|instance| ends(instance) || instance.has_stalled());
            waited.try_for_each(|instance| instance.release(rescue))?;
        }
        if let Some(error) = self.failure(rank) {
            self.lane(rank).spoil(error);
        }
        Ok(rescue.synchronize(SYNCHRONIZE_LIMIT)?)
    }

    /// Sets everything of `rank`'s to where it is after so many launches. All ranks are at rest.
    pub(crate) fn begin_anew(&self, rank: u32, launches: u32) -> Result<(), Error> {
        if self.comms().is_some_and(|comms| !comms.are_sound(&self.members)) {
            let problem = "a collective of NCCL was ended, and with it its communicator: start the \
                           processes anew";
            return Err(Error::Unsupported { kernel: "recover".into(), problem: problem.into() });
        }
        for instance in self.own_instances(rank) {
            // A group's kernels begin anew only with all of its ranks.
            if instance.members.are_among(&self.members) {
                instance.begin_anew(self.passive().is_some(), launches)?;
                let (workspace, rescue) = (&instance.workspace, &self.card(rank).rescue);
                workspace.lower_flags(&instance.program, instance.rank, rescue)?;
            }
        }
        Ok(())
    }
}

impl GpuInstance {
    fn begin_anew(&self, alone: bool, launches: u32) -> Result<(), Error> {
        let words = [launches, 0, 0];
        for (index, word) in words.into_iter().enumerate() {
            self.state.copy_from(index as u64 * STATE_STRIDE, &[word])?;
        }
        if let Some(sharing) = &self.sharing {
            sharing.parts.fill(0)?;
        }
        let totals = Totals::after(&self.program, self.launch, launches)
            .map_err(|error| self.unsupported(&error.to_string()))?;
        // Passive peers have nobody else.
        let own = if alone { 0..self.launch.world } else { self.rank..self.rank + 1 };
        for rank in own {
            self.set_signals(rank, &totals)?;
        }
        self.reset(launches);
        Ok(())
    }

    /// Zeros the heaps of `rank`, but for its signals.
    fn set_signals(&self, rank: u32, totals: &Totals) -> Result<(), Error> {
        let heaps = &self.workspace.heaps;
        heaps.fill_zero(rank)?;
        let host = heaps.host(rank)?.words();
        for (id, signal) in self.program.signals.iter() {
            let id: SignalId = id;
            let values = totals.of(rank, id.index());
            if values.iter().all(|&value| value == 0) {
                continue;
            }
            let offset = self.workspace.signal(id);
            match signal.home {
                Home::Device => heaps.write_words(rank, offset, values)?,
                Home::Host => {
                    let words = host.iter().skip(offset as usize / 4).zip(values);
                    words.for_each(|(word, value)| word.store(*value, Ordering::Release));
                }
            }
        }
        Ok(())
    }

    /// A word of the state, on this rank's device.
    pub(super) fn state(&self, word: State) -> Result<Span<'_>, Error> {
        Ok(self.state.span().part(word as u64 * STATE_STRIDE, 4)?)
    }
}
