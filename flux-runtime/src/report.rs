//! A wait that gave up, as a sentence.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the wait of a kernel leaves in host memory when its limit has passed.
///
/// In memory it is eight words: a state, and then these fields in their order. The state is
/// written last, with release semantics at system scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StallReport {
    /// The CTA that waited.
    pub cta: u32,
    /// Index of the signal array.
    pub signal: u32,
    /// The slot in it.
    pub slot: u32,
    /// The value last seen.
    pub seen: u32,
    /// The value wanted, or a later one.
    pub wanted: u32,
    /// Line of the wait in the user's source.
    pub line: u32,
    /// Column of the wait in the user's source.
    pub column: u32,
}

impl StallReport {
    /// Words of a report in memory.
    pub const WORDS: usize = 8;

    /// Bytes of a report in memory.
    pub const BYTES: u64 = 4 * StallReport::WORDS as u64;

    /// The report in the first words of `memory`, if there is one. Fewer words hold none.
    pub fn read(memory: &[AtomicU32]) -> Option<StallReport> {
        let words = memory.first_chunk::<{ StallReport::WORDS }>()?;
        // Pairs with the kernel's release: the other words are complete once the state is.
        if words[0].load(Ordering::Acquire) == 0 {
            return None;
        }
        let [_, cta, signal, slot, seen, wanted, line, column] =
            std::array::from_fn(|index| words[index].load(Ordering::Relaxed));
        Some(StallReport { cta, signal, slot, seen, wanted, line, column })
    }

    /// Makes room for the next report. No launch that may write here is running.
    pub fn clear(memory: &[AtomicU32]) {
        for word in memory.iter().take(StallReport::WORDS) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Display for StallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StallReport { cta, signal, slot, seen, wanted, line, column } = self;
        write!(
            f,
            "CTA {cta} waited in vain at {line}:{column}: slot {slot} of signal {signal} did not \
             reach {wanted}, it is {seen}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::StallReport;
    use std::sync::atomic::AtomicU32;

    fn words(values: [u32; 8]) -> [AtomicU32; 8] {
        values.map(AtomicU32::new)
    }

    #[test]
    fn words_are_read_in_their_order() {
        let report = StallReport::read(&words([1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
        let StallReport { cta, signal, slot, seen, wanted, line, column } = report;
        assert_eq!([cta, signal, slot, seen, wanted, line, column], [2, 3, 4, 5, 6, 7, 8]);
        let said = "CTA 2 waited in vain at 7:8: slot 4 of signal 3 did not reach 6, it is 5";
        assert_eq!(report.to_string(), said);
    }

    #[test]
    fn without_a_state_there_is_no_report() {
        assert_eq!(StallReport::read(&words([0, 2, 3, 4, 5, 6, 7, 8])), None);
        assert_eq!(StallReport::read(&words([1; 8])[..7]), None);
    }

    #[test]
    fn a_report_that_was_cleared_is_gone() {
        let memory = words([1, 2, 3, 4, 5, 6, 7, 8]);
        StallReport::clear(&memory);
        assert_eq!(StallReport::read(&memory), None);
    }
}
