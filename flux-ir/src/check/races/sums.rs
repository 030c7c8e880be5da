//! Sums over ranks: each contribution once, and of the value that the sum has as its own.

use super::{Seen, Walk};
use crate::check::memory::Access;
use crate::check::trace::Proxy;
use crate::program::ValueId;

impl Walk<'_, '_, '_> {
    pub(super) fn contribution(&mut self, rect: u32, own: ValueId) {
        let me = Access { rect, ..self.me_at() };
        match self.read(rect, Proxy::Generic) {
            Seen::Faulty => self.unclear = true,
            Seen::Mixed => {
                self.unclear = true;
                self.report.mixed_contribution(me);
            }
            Seen::One { origin, value } => {
                if value.is_some_and(|value| value != own) {
                    self.report.other_value(me, origin.into());
                }
                let bit = 1u64 << (origin % 64);
                if u32::from(origin) == self.me.rank || self.summed & bit != 0 {
                    self.report.summed_twice(me, origin.into());
                }
                self.summed |= bit;
            }
        }
    }

    /// What ranks have added up holds the contribution of each other rank, once; on one rank alone,
    /// its own.
    pub(super) fn total(&mut self, rect: u32) {
        let (memory, me) = (self.memory, Access { rect, ..self.me_at() });
        (self.summed, self.unclear) = (0, false);
        let mut summed = None;
        for near in memory.around(rect) {
            let here = |write: &&Access| write.epoch == me.epoch && write.moment() < me.moment();
            for write in memory.writes(near).iter().filter(here) {
                if memory.shared(rect, near) != memory.elements(rect) {
                    return self.report.mixed_contribution(me);
                }
                let bit = 1u64 << (write.origin % 64);
                if self.summed & bit != 0 {
                    self.report.summed_twice(me, write.origin.into());
                }
                self.summed |= bit;
                if *summed.get_or_insert(write.value) != write.value {
                    self.report.other_value(me, write.origin.into());
                }
            }
        }
        self.end_of_sum();
    }

    /// Every other rank has contributed.
    pub(super) fn end_of_sum(&mut self) {
        if self.unclear {
            return;
        }
        let world = self.scene.layout.launch.world;
        let mut others = (0..world).filter(|&rank| rank != self.me.rank);
        if let Some(rank) = others.find(|rank| self.summed & (1 << rank) == 0) {
            self.report.left_out(self.me_at(), rank);
        }
    }
}
