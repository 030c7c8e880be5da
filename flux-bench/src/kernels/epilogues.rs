//! Products with fused epilogues, each beside the same kernel without it.

use flux::{Error, Rank, Tensor};
use half::bf16;

#[expect(unreachable_pub, reason = "kernels stand as they would in a library")]
#[flux::module]
mod fused {
    use flux::prelude::*;

    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 144, 64), stages = 6, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, consumers = ping_pong)]
    pub fn plain(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 144, 64), stages = 6, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, consumers = ping_pong)]
    pub fn bias_gelu(a: &Global<bf16>, b: &Global<bf16>, bias: &Global<f32>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gelu(gemm(a, b.t(), tile) + bias.cols(tile)));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 144, 64), stages = 6, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, consumers = ping_pong)]
    pub fn bias_residual(
        a: &Global<bf16>,
        b: &Global<bf16>,
        bias: &Global<f32>,
        residual: &Global<bf16>,
        c: &mut Global<bf16>,
    ) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile) + bias.cols(tile) + residual.load(tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4)]
    pub fn two_products(
        a: &Global<bf16>,
        b: &Global<bf16>,
        b3: &Global<bf16>,
        c: &mut Global<bf16>,
    ) {
        for tile in c.tiles() {
            let gate = gemm(a, b.t(), tile);
            let up = gemm(a, b3.t(), tile);
            c.store(tile, gate + up);
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4)]
    pub fn swiglu(a: &Global<bf16>, b: &Global<bf16>, b3: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let gate = gemm(a, b.t(), tile);
            let up = gemm(a, b3.t(), tile);
            c.store(tile, silu(gate) * up);
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4)]
    pub fn sums(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<f32>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile));
        }
    }
}

/// What is computed of a product, or of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    /// `gelu(A · Bᵀ + bias)`.
    BiasGelu,
    /// `A · Bᵀ + bias + residual`.
    BiasResidual,
    /// `silu(A · Bᵀ) ⊙ (A · B₃ᵀ)`.
    Swiglu,
}

/// What the kernels read. `b3` is empty where only one product is made, `residual` where none is
/// added.
#[derive(Debug)]
pub struct Inputs {
    /// \[m, k\].
    pub a: Tensor<bf16>,
    /// \[n, k\].
    pub b: Tensor<bf16>,
    /// \[n, k\].
    pub b3: Tensor<bf16>,
    /// \[m, n\].
    pub residual: Tensor<bf16>,
    /// \[1, n\].
    pub bias: Tensor<f32>,
}

/// A kernel with or without its epilogue.
pub type Launch = Box<dyn Fn(&Inputs, &mut Tensor<bf16>) -> Result<(), Error>>;

impl Epilogue {
    /// Every epilogue.
    pub const ALL: [Epilogue; 3] = [Epilogue::BiasGelu, Epilogue::BiasResidual, Epilogue::Swiglu];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Epilogue::BiasGelu => "bias + GELU",
            Epilogue::BiasResidual => "bias + residual",
            Epilogue::Swiglu => "SwiGLU",
        }
    }

    /// Products that it takes.
    pub const fn products(self) -> usize {
        match self {
            Epilogue::BiasGelu | Epilogue::BiasResidual => 1,
            Epilogue::Swiglu => 2,
        }
    }

    /// The kernel without it, then the kernel with it, under the same schedules.
    ///
    /// # Errors
    /// Those of the kernels' own `load`.
    pub fn load(self, rank: &Rank) -> Result<[Launch; 2], Error> {
        let without: Launch = match self.products() {
            1 => {
                let kernel = fused::plain::load(rank)?;
                Box::new(move |i, c| kernel.launch(&i.a, &i.b, c))
            }
            _ => {
                let kernel = fused::two_products::load(rank)?;
                Box::new(move |i, c| kernel.launch(&i.a, &i.b, &i.b3, c))
            }
        };
        let with: Launch = match self {
            Epilogue::BiasGelu => {
                let kernel = fused::bias_gelu::load(rank)?;
                Box::new(move |i, c| kernel.launch(&i.a, &i.b, &i.bias, c))
            }
            Epilogue::BiasResidual => {
                let kernel = fused::bias_residual::load(rank)?;
                Box::new(move |i, c| kernel.launch(&i.a, &i.b, &i.bias, &i.residual, c))
            }
            Epilogue::Swiglu => {
                let kernel = fused::swiglu::load(rank)?;
                Box::new(move |i, c| kernel.launch(&i.a, &i.b, &i.b3, c))
            }
        };
        Ok([without, with])
    }

    /// What it makes of sums, of a bias and of an element of the residual, in f64.
    pub fn of(self, sums: [f64; 2], bias: f64, residual: f64) -> f64 {
        let [x, y] = sums;
        match self {
            Epilogue::BiasGelu => {
                let x = x + bias;
                0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))
            }
            Epilogue::BiasResidual => x + bias + residual,
            Epilogue::Swiglu => x / (1.0 + (-x).exp()) * y,
        }
    }
}

/// Sums of products, unrounded: `into[m, n] = a[m, k] · b[n, k]ᵀ`.
///
/// # Errors
/// Those of the kernel.
pub fn sums(rank: &Rank, [a, b]: [&Tensor<bf16>; 2], into: &mut Tensor<f32>) -> Result<(), Error> {
    fused::sums::load(rank)?.launch(a, b, into)
}
