//! Numbers that look random, for what tests leave to chance.

use std::time::{Duration, Instant};

/// Xorshift (Marsaglia, "Xorshift RNGs", 2003).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(0x9e37_79b9 + seed)
    }

    /// Below `most`.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    /// Lets a rank fall behind its peers, now and then by much.
    pub(crate) fn skew(&mut self) {
        let delay = match self.below(1000) {
            0 => Duration::from_millis(1),
            1..200 => Duration::from_micros(self.below(30)),
            _ => return,
        };
        let start = Instant::now();
        while start.elapsed() < delay {
            std::hint::spin_loop();
        }
    }
}
