//! The data of an MLP block and its plain f32 reference.

use crate::bert::Mlp;
use flux::prelude::bf16;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Normal};
use std::ops::Range;

/// `y = x + gelu(x · W1ᵀ + b1) · W2ᵀ + b2`; matrices row-major, weights `[out, in]`.
pub(crate) struct Block {
    /// Rows of x.
    pub(crate) tokens: usize,
    /// Columns of x and y.
    pub(crate) hidden: usize,
    /// Columns of h.
    pub(crate) inner: usize,
    x: Vec<f32>,
    w1: Vec<f32>,
    /// `[inner]`.
    pub(crate) b1: Vec<f32>,
    w2: Vec<f32>,
    /// `[hidden]`.
    pub(crate) b2: Vec<f32>,
}

/// What the block computes in plain f32.
pub(crate) struct Reference {
    /// `[tokens, inner]`.
    pub(crate) h: Vec<f32>,
    /// `[tokens, hidden]`.
    pub(crate) y: Vec<f32>,
}

impl Block {
    /// The MLP of a real layer, with the activations that really enter it.
    pub(crate) fn from_bert(mlp: Mlp) -> Block {
        Block {
            tokens: mlp.tokens,
            hidden: mlp.hidden,
            inner: mlp.inner,
            x: mlp.x,
            w1: mlp.w1,
            b1: mlp.b1,
            w2: mlp.w2,
            b2: mlp.b2,
        }
    }

    /// GPT-3's proportions (inner = 4 · hidden), scaled to what the machine does in a moment.
    pub(crate) fn gpt3_scaled(on_gpu: bool) -> Block {
        let (tokens, hidden) = if on_gpu { (1024, 3072) } else { (512, 768) };
        let inner = 4 * hidden;
        let mut rng = StdRng::seed_from_u64(0x666c_7578);
        let mut normal = |len: usize, deviation: f32| -> Vec<f32> {
            let normal = Normal::new(0.0, deviation).expect("a positive deviation");
            (0..len).map(|_| normal.sample(&mut rng)).collect()
        };
        let by_fan_in = |fan_in: usize| 1.0 / (fan_in as f32).sqrt();
        Block {
            tokens,
            hidden,
            inner,
            x: normal(tokens * hidden, 1.0),
            w1: normal(inner * hidden, by_fan_in(hidden)),
            b1: normal(inner, 0.1),
            w2: normal(hidden * inner, by_fan_in(inner)),
            b2: normal(hidden, 0.1),
        }
    }

    /// Rows of x as stored.
    pub(crate) fn x_rows(&self, rows: &Range<usize>) -> Vec<bf16> {
        to_bf16(&self.x[rows.start * self.hidden..rows.end * self.hidden])
    }

    /// Rows of W1, one per inner column, as stored.
    pub(crate) fn w1_rows(&self, inner: &Range<usize>) -> Vec<bf16> {
        to_bf16(&self.w1[inner.start * self.hidden..inner.end * self.hidden])
    }

    /// Columns of W2, one per inner column, as stored.
    pub(crate) fn w2_cols(&self, inner: &Range<usize>) -> Vec<bf16> {
        self.w2.chunks_exact(self.inner).flat_map(|row| to_bf16(&row[inner.clone()])).collect()
    }

    /// Columns `inner` of `h`, row by row.
    pub(crate) fn h_cols<'a>(
        &self,
        h: &'a [f32],
        inner: &Range<usize>,
    ) -> impl Iterator<Item = f32> + use<'a> {
        let inner = inner.clone();
        h.chunks_exact(self.inner).flat_map(move |row| row[inner.clone()].iter().copied())
    }

    /// The block in plain f32, from the unrounded data.
    pub(crate) fn reference(&self) -> Reference {
        let mut h = product(&self.x, &self.w1, self.hidden);
        for row in h.chunks_exact_mut(self.inner) {
            for (value, bias) in row.iter_mut().zip(&self.b1) {
                *value = gelu(*value + bias);
            }
        }
        let mut y = product(&h, &self.w2, self.inner);
        for (row, x) in y.chunks_exact_mut(self.hidden).zip(self.x.chunks_exact(self.hidden)) {
            for ((value, bias), residual) in row.iter_mut().zip(&self.b2).zip(x) {
                *value += bias + residual;
            }
        }
        Reference { h, y }
    }
}

/// `‖a − b‖ / ‖b‖` in f64; infinite where the lengths differ or a value is no number.
pub(crate) fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    if a.is_empty() {
        // A rank that owns nothing.
        return 0.0;
    }
    let square = |value: f64| value * value;
    let off: f64 = a.iter().zip(b).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    let all: f64 = b.iter().map(|&b| square(f64::from(b))).sum();
    let error = (off / all).sqrt();
    if error.is_nan() { f64::INFINITY } else { error }
}

fn to_bf16(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|&value| bf16::from_f32(value)).collect()
}

/// `a · bᵀ` for `a: [_, k]` and `b: [_, k]`, on all cores; eight running sums a dot product, so
/// that the compiler can use vector registers.
fn product(a: &[f32], b: &[f32], k: usize) -> Vec<f32> {
    let dot = |x: &[f32], y: &[f32]| {
        let mut sums = [0.0_f32; 8];
        let (xs, ys) = (x.chunks_exact(8), y.chunks_exact(8));
        let tail: f32 = xs.remainder().iter().zip(ys.remainder()).map(|(x, y)| x * y).sum();
        for (x, y) in xs.zip(ys) {
            for lane in 0..8 {
                sums[lane] += x[lane] * y[lane];
            }
        }
        sums.iter().sum::<f32>() + tail
    };
    let rows = |a: &[f32]| -> Vec<f32> {
        a.chunks_exact(k).flat_map(|x| b.chunks_exact(k).map(move |y| dot(x, y))).collect()
    };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let part = (a.len() / k).div_ceil(cores).max(1) * k;
    std::thread::scope(|scope| {
        let parts: Vec<_> = a.chunks(part).map(|a| scope.spawn(move || rows(a))).collect();
        parts.into_iter().flat_map(|part| part.join().expect("a product does not panic")).collect()
    })
}

fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}
