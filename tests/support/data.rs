//! Test data and plain references.

use flux::Element;
use flux::prelude::*;
use std::ops::Range;

/// A tensor element that tests can make and read.
pub(crate) trait Number: Element {
    /// Rounded to nearest even.
    fn from_f32(value: f32) -> Self;
    /// Exact.
    fn to_f32(self) -> f32;
}

impl Number for bf16 {
    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
}

impl Number for f16 {
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
}

impl Number for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }
    fn to_f32(self) -> f32 {
        self
    }
}

/// How elements are drawn. Both are functions of (seed, position), so every rank can make any part.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Draw {
    /// -1, 0 or 1: sums are exact in f32 whatever their order.
    Integers,
    /// Uniform in [-1, 1).
    Uniform,
}

/// A number that looks random, of a seed and a position (splitmix64's finalizer).
fn scramble(seed: u64, position: u64) -> u64 {
    let mut x =
        position.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Draw {
    fn one(self, seed: u64, position: u64) -> f32 {
        let bits = scramble(seed, position);
        match self {
            Draw::Integers => (bits % 3) as f32 - 1.0,
            Draw::Uniform => (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0,
        }
    }

    /// Rows of a matrix with `cols` columns, as stored.
    pub(crate) fn rows<T: Number>(self, seed: u64, rows: Range<usize>, cols: usize) -> Vec<T> {
        let positions = rows.start * cols..rows.end * cols;
        positions.map(|position| T::from_f32(self.one(seed, position as u64))).collect()
    }
}

/// `a · bᵀ` in f64 for chosen rows of `a: [_, k]` and all of `b: [n, k]`, on all cores.
pub(crate) fn product<T: Number>(a: &[T], b: &[T], k: usize, rows: &[usize]) -> Vec<f64> {
    let b: Vec<f32> = b.iter().map(|x| x.to_f32()).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let part = rows.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = rows
            .chunks(part)
            .map(|rows| {
                let b = &b;
                scope.spawn(move || {
                    let mut out = Vec::with_capacity(rows.len() * (b.len() / k));
                    for &row in rows {
                        let x: Vec<f32> =
                            a[row * k..(row + 1) * k].iter().map(|x| x.to_f32()).collect();
                        out.extend(b.chunks_exact(k).map(|y| dot(&x, y)));
                    }
                    out
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker finishes")).collect()
    })
}

/// Eight running sums, so that the compiler can use vector registers.
fn dot(x: &[f32], y: &[f32]) -> f64 {
    let mut sums = [0.0_f64; 8];
    for (x, y) in x.chunks(8).zip(y.chunks(8)) {
        for (sum, (&x, &y)) in sums.iter_mut().zip(x.iter().zip(y)) {
            *sum += f64::from(x) * f64::from(y);
        }
    }
    sums.iter().sum()
}

/// `‖a − b‖ / ‖b‖`; infinite where the lengths differ or a value is no number.
pub(crate) fn relative_error(a: &[f32], b: &[f64]) -> f64 {
    if a.len() != b.len() || a.iter().any(|x| !x.is_finite()) {
        return f64::INFINITY;
    }
    let off: f64 = a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - b).powi(2)).sum();
    let all: f64 = b.iter().map(|b| b * b).sum();
    if all == 0.0 { off.sqrt() } else { (off / all).sqrt() }
}

/// `x/2 · (1 + erf(x/√2))` in f64.
pub(crate) fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))
}
