//! Elementwise functions in f32.

use super::Kernel;
use crate::context::Float;
use crate::nvvm::special;
use flux_ir::kernel::Unary;
use std::f32::consts::LOG2_E;

impl<'c> Kernel<'c, '_> {
    pub(super) fn unary(&self, op: Unary, x: Float<'c>) -> Float<'c> {
        let cx = &self.cx;
        match op {
            Unary::Neg => cx.fneg(x),
            Unary::Relu => cx.math("llvm.maxnum", &[x, cx.float(0.0)]),
            Unary::Gelu => self.gelu(x),
            Unary::GeluTanh => {
                let square = cx.fmul(x, x);
                let inner = self.fma(square, cx.float(GELU_CUBIC * GELU_SCALE), GELU_SCALE);
                let tanh = self.tanh(cx.fmul(x, inner));
                let half = cx.fmul(x, cx.float(0.5));
                cx.fmul(half, cx.fadd(tanh, cx.float(1.0)))
            }
            Unary::Silu => {
                let power = special::ex2_approx_ftz(cx, cx.fmul(x, cx.float(-LOG2_E)));
                cx.fmul(x, special::rcp_approx_ftz(cx, cx.fadd(power, cx.float(1.0))))
            }
            Unary::Exp => self.exp(x),
            Unary::Tanh => self.tanh(x),
        }
    }

    fn fma(&self, a: Float<'c>, b: Float<'c>, c: f32) -> Float<'c> {
        let cx = &self.cx;
        cx.math("llvm.fma", &[a, b, cx.float(c)])
    }

    /// 1 - 2 / (1 + e²ˣ): absolute error below 5e-7.
    fn tanh(&self, x: Float<'c>) -> Float<'c> {
        let cx = &self.cx;
        let power = special::ex2_approx_ftz(cx, cx.fmul(x, cx.float(2.0 * LOG2_E)));
        let inverse = special::rcp_approx_ftz(cx, cx.fadd(power, cx.float(1.0)));
        self.fma(inverse, cx.float(-2.0), 1.0)
    }

    /// eˣ as 2 to the power of x log₂e, whose rounding error is put back by a factor: relative
    /// error below 4e-7.
    fn exp(&self, x: Float<'c>) -> Float<'c> {
        let cx = &self.cx;
        let log2e = cx.float(LOG2_E);
        let exponent = cx.fmul(x, log2e);
        let lost = cx.math("llvm.fma", &[x, log2e, cx.fneg(exponent)]);
        let lost = cx.math("llvm.fma", &[x, cx.float(LOG2_E_LOW), lost]);
        let power = special::ex2_approx(cx, exponent);
        let scaled = cx.fmul(lost, cx.float(std::f32::consts::LN_2));
        let corrected = cx.math("llvm.fma", &[power, scaled, power]);
        // Beyond these the power is 0 or infinite, and the correction not a number.
        let finite = cx.fless(cx.math("llvm.fabs", &[exponent]), cx.float(127.0));
        cx.select_f(finite, corrected, power)
    }

    /// max(x, 0) - |x| · Φ(-|x|), where Φ is the normal distribution function, as 2 to the power of
    /// a polynomial in |x|: absolute error below 3e-7. A NaN comes through by the maximum.
    fn gelu(&self, x: Float<'c>) -> Float<'c> {
        let cx = &self.cx;
        let size = cx.math("llvm.minnum", &[cx.math("llvm.fabs", &[x]), cx.float(TAIL_END)]);
        let [first, others @ ..] = TAIL_LOG2;
        let sum = others.into_iter().fold(cx.float(first), |sum, c| self.fma(sum, size, c));
        let tail = special::ex2_approx_ftz(cx, sum);
        let positive = cx.math("llvm.maximum", &[x, cx.float(0.0)]);
        cx.math("llvm.fma", &[cx.fneg(size), tail, positive])
    }
}

/// √(2/π).
const GELU_SCALE: f32 = 0.797_884_6;
/// The cubic coefficient of [`Unary::GeluTanh`].
const GELU_CUBIC: f32 = 0.044_715;
/// log₂e less its nearest f32.
const LOG2_E_LOW: f32 = 1.925_963e-8;
/// From here on |x| · Φ(-|x|) is below 1.1e-7.
const TAIL_END: f32 = 5.5;
/// log₂ Φ(-t) on [0, 5.5] as a polynomial in t, highest power first; fitted so that the error of
/// t · Φ(-t) is even over the interval: 5.2e-8.
const TAIL_LOG2: [f32; 7] = [
    3.309_278e-5,
    -7.692_193_6e-4,
    8.080_715e-3,
    -5.341_210_2e-2,
    -0.458_770_96,
    -1.151_201_7,
    -0.999_993_1,
];

#[cfg(test)]
mod tests {
    use super::{TAIL_END, TAIL_LOG2};

    /// What [`super::Kernel::gelu`] computes, but for the error of `ex2`.
    fn gelu(x: f32) -> f32 {
        let size = x.abs().min(TAIL_END);
        let [first, others @ ..] = TAIL_LOG2;
        let sum = others.into_iter().fold(first, |sum, c| sum.mul_add(size, c));
        (-size).mul_add(sum.exp2(), x.max(0.0))
    }

    #[test]
    fn gelu_is_as_close_as_documented() {
        let exact = |x: f64| 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
        let mut worst = 0.0f64;
        for step in -800_000..=400_000 {
            let x = step as f32 * 1e-5;
            let (found, wanted) = (f64::from(gelu(x)), exact(x.into()));
            worst = worst.max((found - wanted).abs());
            // Where it is small, it keeps its first digits.
            assert!(wanted.abs() < 1e-4 || (found / wanted - 1.0).abs() < 6e-4, "{x}");
        }
        assert!(worst < 3e-7, "{worst}");
        assert_eq!(gelu(0.0), 0.0);
        assert_eq!(gelu(f32::INFINITY), f32::INFINITY);
        assert!(gelu(f32::NEG_INFINITY).abs() < 1.1e-7);
    }
}
