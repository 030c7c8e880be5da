//! Signals: counters in symmetric memory that only grow.

use flux_ir::eval::Change;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Whether a wait for `target` ends when the signal is at `seen`. Counters wrap, so they are
/// compared by the sign of their difference: a negative target is one of launches before the
/// first, or before the wrap.
pub(crate) const fn reached(seen: u32, target: i64) -> bool {
    seen.wrapping_sub(target as u32).cast_signed() >= 0
}

/// Raises a signal (release).
pub(crate) fn raise(signal: &AtomicU32, change: Change) {
    match change {
        Change::Add(count) => {
            // Acquire too: whoever sees this sum also sees what earlier raisers released.
            signal.fetch_add(count, Ordering::AcqRel);
        }
        Change::Set(value) => signal.store(value, Ordering::Release),
    }
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The target was reached.
    Reached,
    /// Someone else failed.
    GivenUp,
    /// The limit passed.
    TimedOut { seen: u32, after: Duration },
}

/// Polls that only spin, then polls that yield to other threads; later ones sleep.
const SPINS: u32 = 64;
const YIELDS: u32 = 64;
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// Blocks until `signal` reaches `target` (acquire), `give_up` says so, or `limit` has passed.
pub(crate) fn wait(
    signal: &AtomicU32,
    target: i64,
    limit: Duration,
    give_up: impl Fn() -> bool,
) -> Waited {
    let mut polls = 0;
    let mut sleep = SHORTEST_SLEEP;
    let mut start = None;
    loop {
        let seen = signal.load(Ordering::Acquire);
        if reached(seen, target) {
            return Waited::Reached;
        }
        if give_up() {
            return Waited::GivenUp;
        }
        polls += 1;
        if polls <= SPINS {
            std::hint::spin_loop();
            continue;
        }
        let start = *start.get_or_insert_with(Instant::now);
        let after = start.elapsed();
        if after >= limit {
            return Waited::TimedOut { seen, after };
        }
        if polls <= SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(sleep.min(limit - after));
            sleep = (sleep * 2).min(LONGEST_SLEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_reached_across_the_wrap() {
        assert!(reached(0, 0) && reached(0, -1));
        assert!(!reached(0, 1) && reached(1, 1) && reached(2, 1));
        let last = i64::from(u32::MAX);
        assert!(!reached(u32::MAX - 1, last) && reached(u32::MAX, last));
        assert!(!reached(u32::MAX, last + 9) && reached(8, last + 9), "the sum wrapped to 8");
        assert!(!reached(u32::MAX, last + 1) && reached(0, last + 1));
        assert!(!reached(u32::MAX - 1, -1) && reached(u32::MAX, -1), "two launches before the 1st");
    }

    #[test]
    fn a_wait_ends_by_signal_by_failure_or_by_the_limit() {
        let signal = AtomicU32::new(u32::MAX);
        let limit = Duration::from_millis(20);
        raise(&signal, Change::Add(3));
        assert_eq!(wait(&signal, 2, limit, || false), Waited::Reached);
        assert_eq!(wait(&signal, 3, limit, || true), Waited::GivenUp);
        match wait(&signal, 3, limit, || false) {
            Waited::TimedOut { seen, after } => assert!(seen == 2 && after >= limit),
            other => panic!("expected the limit to pass, found {other:?}"),
        }
        raise(&signal, Change::Set(7));
        assert_eq!(wait(&signal, 7, limit, || true), Waited::Reached);
    }
}
