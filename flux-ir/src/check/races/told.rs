//! Puts that somebody is told of.

use super::Walk;
use crate::check::memory::Access;
use crate::check::trace::{Act, ActorTrace};
use crate::eval::Region;

impl Walk<'_, '_, '_> {
    /// Behind each put to a peer the actor, or the exit of its agent, raises a signal there.
    pub(super) fn unsignalled(&mut self, trace: &ActorTrace, epoch: u32, exit: u32) {
        let scene = self.scene;
        let raised = |act: &Act| match act {
            Act::Raise { slot, .. } if !scene.leaves_out(*slot) => {
                1u64 << scene.layout.place_of_slot(*slot).0
            }
            _ => 0,
        };
        let steps = &trace.steps[trace.launch(epoch)];
        if !steps.iter().any(|step| matches!(step.act, Act::Write { .. })) {
            return;
        }
        let exits = &self.scene.traces[exit as usize];
        let exits = exits.steps[exits.launch(epoch)].iter();
        let mut told = exits.fold(0, |told, step| told | raised(&step.act));
        for (at, step) in trace.launch(epoch).zip(steps).rev() {
            told |= raised(&step.act);
            if let Act::Write { rect, .. } = step.act {
                let Region { rank, buffer, .. } = self.memory.rects[rect as usize];
                let is_told = told & (1 << rank) != 0 || scene.orders_itself(buffer);
                if rank != self.me.rank && !is_told {
                    let put = Access::point(self.me.actor, at as u32 + 1, epoch, step.number);
                    self.report.not_signalled(Access { rect, ..put });
                }
            }
        }
    }
}
