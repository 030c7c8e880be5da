//! Elementwise functions in f32.

use super::Kernel;
use crate::context::Float;
use crate::nvvm::special;
use flux_ir::kernel::Unary;
use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

impl<'c> Kernel<'c, '_> {
    pub(super) fn unary(&self, op: Unary, x: Float<'c>) -> Float<'c> {
        let cx = &self.cx;
        match op {
            Unary::Neg => cx.fneg(x),
            Unary::Relu => cx.math("llvm.maxnum", &[x, cx.float(0.0)]),
            Unary::Gelu => {
                let erf = self.erf(cx.fmul(x, cx.float(FRAC_1_SQRT_2)));
                let half = cx.fmul(x, cx.float(0.5));
                cx.fmul(half, cx.fadd(erf, cx.float(1.0)))
            }
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

    /// The error function, as 1 - 2 to the power of a polynomial in |x|: absolute error below
    /// 2.5e-7 (9.2e-8 of the polynomial, the rest of `ex2`).
    fn erf(&self, x: Float<'c>) -> Float<'c> {
        let cx = &self.cx;
        let size = cx.math("llvm.minnum", &[cx.math("llvm.fabs", &[x]), cx.float(ERF_END)]);
        let [first, others @ ..] = ERFC_LOG2;
        let sum = others.into_iter().fold(cx.float(first), |sum, c| self.fma(sum, size, c));
        let power = special::ex2_approx_ftz(cx, cx.fmul(sum, size));
        let positive = cx.fsub(cx.float(1.0), power);
        cx.math("llvm.copysign", &[positive, x])
    }
}

/// √(2/π).
const GELU_SCALE: f32 = 0.797_884_6;
/// The cubic coefficient of [`Unary::GeluTanh`].
const GELU_CUBIC: f32 = 0.044_715;
/// log₂e less its nearest f32.
const LOG2_E_LOW: f32 = 1.925_963e-8;
/// From here on erf is 1 in f32.
const ERF_END: f32 = 4.0;
/// log₂(erfc(t)) / t on [0, 4] as a polynomial in t, highest power first; fitted so that the
/// error of erfc is even over the interval.
const ERFC_LOG2: [f32; 8] = [
    -4.536_092_5e-5,
    4.455_242e-4,
    -1.489_487_8e-3,
    -7.745_651_5e-4,
    2.825_363_4e-2,
    -0.148_481_59,
    -0.918_416_4,
    -1.627_908_6,
];

#[cfg(test)]
mod tests {
    use super::{ERF_END, ERFC_LOG2};

    /// What [`super::Kernel::erf`] computes, but for the error of `ex2`.
    fn erf(x: f32) -> f32 {
        let size = x.abs().min(ERF_END);
        let [first, others @ ..] = ERFC_LOG2;
        let sum = others.into_iter().fold(first, |sum, c| sum.mul_add(size, c));
        (1.0 - (sum * size).exp2()).copysign(x)
    }

    #[test]
    fn the_polynomial_of_erf_is_as_close_as_documented() {
        let mut worst = 0.0f64;
        for step in -500_000..=500_000 {
            let x = step as f32 * 1e-5;
            worst = worst.max((f64::from(erf(x)) - libm::erf(f64::from(x))).abs());
        }
        assert!(worst < 1.3e-7, "{worst}");
        assert_eq!(erf(0.0), 0.0);
        assert_eq!(erf(f32::INFINITY), 1.0);
        assert_eq!(erf(f32::NEG_INFINITY), -1.0);
    }
}
