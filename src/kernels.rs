//! The kernels that come with the library: bf16 in memory, f32 in accumulators.
//!
//! `C[m, n]` is a product of `A[m, k]` and `B[n, k]`, both row-major ("TN"), as the weights of a
//! linear layer are stored. Where an operand or output is a row shard, rank r holds rows
//! `r·ceil(m/world) …`.

#[crate::module]
mod shipped {
    use crate::prelude::*;

    /// `C = A · Bᵀ`, without communication.
    ///
    /// Shapes: `a: [m, k]`, `b: [n, k]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    pub fn gemm_bf16(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    /// `C = all_gather(A) · Bᵀ`.
    ///
    /// Shapes: `a: [m/world, k]` (a row shard), `b: [n, k]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong, chunk_rows = 640, tail = (384, 4))]
    #[schedule(sm_90a, tile = (128, 112, 64), stages = 6, consumers = ping_pong, tail = (256, 4))]
    pub fn ag_gemm(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    /// `C = gelu(all_gather(A) · Bᵀ + bias)`: the first half of an MLP.
    ///
    /// Shapes: `a: [m/world, k]` (a row shard), `b: [n, k]`, `bias: [n]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    pub fn ag_gemm_bias_gelu(
        a: &Gathered<bf16>,
        b: &Global<bf16>,
        bias: &Global<f32>,
        c: &mut Global<bf16>,
    ) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gelu(gemm(a, b.t(), tile) + bias.cols(tile)));
        }
    }

    /// `C = silu(X · W1ᵀ) ⊙ (X · W3ᵀ)` with `X = all_gather(A)`: the first half of a gated MLP.
    ///
    /// Shapes: `a: [m/world, k]` (a row shard), `w1: [n, k]`, `w3: [n, k]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4)]
    pub fn ag_gemm_swiglu(
        a: &Gathered<bf16>,
        w1: &Global<bf16>,
        w3: &Global<bf16>,
        c: &mut Global<bf16>,
    ) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            let gate = gemm(a, w1.t(), tile);
            let up = gemm(a, w3.t(), tile);
            c.store(tile, silu(gate) * up);
        }
    }

    /// `C = reduce_scatter(A · Bᵀ)`: each rank keeps its rows of the sum over ranks.
    ///
    /// Shapes: `a: [m, k]`, `b: [n, k]`, `c: [m/world, n]` (a row shard).
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    pub fn gemm_rs(a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>) {
        for tile in c.tiles() {
            c.add(tile, gemm(a, b.t(), tile));
        }
    }

    /// `C = reduce_scatter(A · Bᵀ) + bias + residual`: the second half of an MLP.
    ///
    /// Shapes: `a: [m, k]`, `b: [n, k]`, `bias: [n]`, `residual: [m/world, n]` and
    /// `c: [m/world, n]` (row shards).
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    pub fn gemm_rs_bias_residual(
        a: &Global<bf16>,
        b: &Global<bf16>,
        bias: &Global<f32>,
        residual: &Sharded<bf16>,
        c: &mut Scattered<bf16>,
    ) {
        for tile in c.tiles() {
            let sum = c.reduce(tile, gemm(a, b.t(), tile));
            c.store(tile, sum + bias.cols(tile) + residual.load(tile));
        }
    }
}

pub use shipped::{
    ag_gemm, ag_gemm_bias_gelu, ag_gemm_swiglu, gemm_bf16, gemm_rs, gemm_rs_bias_residual,
};

use crate::Definition;

/// Every kernel of this module.
pub fn all() -> [&'static Definition; 6] {
    [
        gemm_bf16::definition(),
        ag_gemm::definition(),
        ag_gemm_bias_gelu::definition(),
        ag_gemm_swiglu::definition(),
        gemm_rs::definition(),
        gemm_rs_bias_residual::definition(),
    ]
}
