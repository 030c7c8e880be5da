//! Device memory and the L2 cache of one rank: which loads of operands reach device memory, and
//! when they are through.
//!
//! Tiles load panels: so many rows of an operand over the whole reduction. A panel that another
//! CTA loads at the same time comes from the cache, and so does one that was loaded so recently
//! that what was loaded since fits beside it. The rest is served at the rate of device memory.

use super::instant::Time;
use rustc_hash::FxHashMap;

/// Operand, plane, first row and first column.
pub(super) type Panel = (u32, u32, u32, u32);

#[derive(Debug, Default)]
struct Loaded {
    /// Until when a CTA loads it.
    until: Time,
    /// When its bytes are there.
    there: Time,
    /// Bytes loaded by all when it was last used.
    at: u64,
}

/// The memory of one rank.
#[derive(Debug, Default)]
pub(super) struct DeviceMemory {
    free: Time,
    loaded: u64,
    panels: FxHashMap<Panel, Loaded>,
}

impl DeviceMemory {
    /// Loads a panel for a mainloop from `start` to `end`; says when its bytes are there.
    pub(super) fn load(
        &mut self,
        panel: Panel,
        bytes: u64,
        (start, end): (Time, Time),
        (gbps, l2_bytes): (f64, f64),
    ) -> Time {
        let entry = self.panels.entry(panel).or_default();
        let known = entry.there > Time::ZERO;
        let streams = known && start <= entry.until;
        let kept = known && (self.loaded - entry.at + bytes) as f64 <= l2_bytes;
        if !streams && !kept {
            self.free = self.free.max(start) + Time::of_bytes(bytes, gbps);
            self.loaded += bytes;
            entry.there = self.free;
        }
        entry.at = self.loaded;
        entry.until = entry.until.max(end).max(entry.there);
        entry.there
    }
}
