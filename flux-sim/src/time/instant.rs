//! Time of the model, in whole picoseconds: sums are exact, whatever their order.

use std::fmt;
use std::ops::{Add, Sub};

/// A moment or a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time(u64);

impl Time {
    /// The start.
    pub const ZERO: Time = Time(0);

    /// So many µs; nothing where that is negative or no number.
    pub fn from_us(us: f64) -> Time {
        // A cast of a float saturates.
        Time((us * 1e6).round() as u64)
    }

    /// What so many cycles take.
    pub fn from_cycles(cycles: f64, mhz: f64) -> Time {
        Time::from_us(cycles / mhz)
    }

    /// What `bytes` take at a rate in 10⁹ bytes a second.
    pub fn of_bytes(bytes: u64, gbps: f64) -> Time {
        Time::from_us(bytes as f64 / (gbps * 1e3))
    }

    /// In µs.
    pub fn us(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// In ms.
    pub fn ms(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// In picoseconds.
    pub const fn picoseconds(self) -> u64 {
        self.0
    }

    /// From `earlier` to this; nothing where that is later.
    pub const fn since(self, earlier: Time) -> Time {
        Time(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Time {
    type Output = Time;

    fn add(self, other: Time) -> Time {
        Time(self.0.saturating_add(other.0))
    }
}

impl Sub for Time {
    type Output = Time;

    fn sub(self, other: Time) -> Time {
        self.since(other)
    }
}

impl std::iter::Sum for Time {
    fn sum<I: Iterator<Item = Time>>(times: I) -> Time {
        times.fold(Time::ZERO, Add::add)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.ms())
    }
}
