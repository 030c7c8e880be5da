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
    #[schedule(sm_90a, tile = (128, 224, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 5)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 144, 64), stages = 6, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong, balance = stream_k)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong, balance = stream_k)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, balance = pairs)]
    #[schedule(sm_90a, tile = (8, 48, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (8, 56, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (8, 64, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (8, 96, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (8, 192, 64), stages = 8, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (16, 48, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (16, 56, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (16, 64, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (16, 96, 64), stages = 14, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (16, 192, 64), stages = 8, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (32, 64, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (32, 96, 64), stages = 13, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (32, 192, 64), stages = 7, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 48, 64), stages = 14, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 56, 64), stages = 13, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 64, 64), stages = 13, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 96, 64), stages = 10, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 128, 64), stages = 8, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 192, 64), stages = 6, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 96, 64), stages = 9, consumers = single, split_k = 2, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 96, 64), stages = 7, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 112, 64), stages = 6, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 5, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 96, 64), stages = 6, consumers = single, split_k = 2, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 112, 64), stages = 6, consumers = single, split_k = 2, cache = stream_b)]
    pub fn gemm_bf16(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    /// `C = A · Bᵀ`, without communication, in f16.
    ///
    /// Shapes: `a: [m, k]`, `b: [n, k]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 224, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 5)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 144, 64), stages = 6, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong, balance = stream_k)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong, balance = stream_k)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, balance = pairs)]
    #[schedule(sm_90a, tile = (8, 48, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (8, 56, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (8, 64, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (8, 96, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (8, 192, 64), stages = 8, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (16, 48, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (16, 56, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (16, 64, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (16, 96, 64), stages = 14, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (16, 192, 64), stages = 8, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (32, 64, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (32, 96, 64), stages = 13, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (32, 192, 64), stages = 7, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 48, 64), stages = 14, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 56, 64), stages = 13, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 64, 64), stages = 13, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 96, 64), stages = 10, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 128, 64), stages = 8, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 192, 64), stages = 6, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 96, 64), stages = 9, consumers = single, split_k = 2, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 96, 64), stages = 7, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 112, 64), stages = 6, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 5, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 96, 64), stages = 6, consumers = single, split_k = 2, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 112, 64), stages = 6, consumers = single, split_k = 2, cache = stream_b)]
    pub fn gemm_f16(a: &Global<f16>, b: &Global<f16>, c: &mut Global<f16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    /// `C = A · B`, without communication: `b` as it lies.
    ///
    /// Shapes: `a: [m, k]`, `b: [k, n]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong, balance = stream_k)]
    #[schedule(sm_90a, tile = (64, 64, 64), stages = 13, consumers = single, cache = stream_b)]
    pub fn gemm_nn_bf16(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b, tile));
        }
    }

    /// `C = Aᵀ · B`, without communication: what both operands have as rows is summed over.
    ///
    /// Shapes: `a: [k, m]`, `b: [k, n]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong, balance = stream_k)]
    #[schedule(sm_90a, tile = (64, 64, 64), stages = 13, consumers = single, cache = stream_b)]
    pub fn gemm_tn_bf16(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a.t(), b, tile));
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
    #[schedule(sm_90a, tile = (128, 192, 64), stages = 4, consumers = ping_pong, tail = (512, 4))]
    #[schedule(sm_90a, tile = (128, 112, 64), stages = 6, consumers = ping_pong, tail = (256, 4))]
    #[schedule(sm_90a, tile = (128, 96, 64), stages = 6, consumers = ping_pong, tail = (128, 4))]
    #[schedule(sm_90a, tile = (16, 48, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (16, 192, 64), stages = 8, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 48, 64), stages = 14, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 192, 64), stages = 6, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 96, 64), stages = 7, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, transport = put)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong, transport = put)]
    #[schedule(sm_90a, tile = (16, 48, 64), stages = 16, consumers = single, cache = stream_b, transport = put)]
    #[schedule(sm_90a, tile = (64, 48, 64), stages = 14, consumers = single, cache = stream_b, transport = put)]
    #[schedule(sm_90a, tile = (64, 192, 64), stages = 6, consumers = single, cache = stream_b, transport = put)]
    #[schedule(sm_90a, tile = (128, 96, 64), stages = 7, consumers = single, cache = stream_b, transport = put)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 3, all_gather = pull, transport = tma)]
    pub fn ag_gemm(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    /// `X = all_gather(A)` and `C = X · Bᵀ`: the gathered rows are an output as well, for a backward pass,
    /// further projections or a residual.
    ///
    /// Shapes: `a: [m/world, k]` (a row shard), `b: [n, k]`, `x: [m, k]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong)]
    #[schedule(sm_90a, tile = (128, 112, 64), stages = 6, consumers = ping_pong, tail = (256, 4))]
    #[schedule(sm_90a, tile = (64, 48, 64), stages = 14, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, transport = put)]
    #[schedule(sm_90a, tile = (64, 48, 64), stages = 14, consumers = single, cache = stream_b, transport = put)]
    pub fn ag_gemm_gathered(
        a: &Gathered<bf16>,
        b: &Global<bf16>,
        x: &mut Global<bf16>,
        c: &mut Global<bf16>,
    ) {
        a.all_gather_into(x);
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
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, consumers = ping_pong, transport = copy_engine)]
    #[schedule(sm_90a, tile = (128, 112, 64), stages = 6, consumers = ping_pong, transport = copy_engine)]
    #[schedule(sm_90a, tile = (64, 192, 64), stages = 6, consumers = ping_pong, transport = copy_engine)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 3, reduce_scatter = pull, transport = tma)]
    #[schedule(sm_90a, tile = (16, 64, 64), stages = 16, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (64, 192, 64), stages = 6, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single, cache = stream_b)]
    #[schedule(sm_90a, tile = (128, 96, 64), stages = 7, consumers = single, cache = stream_b)]
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

    /// `C = all_gather(X)`: every rank gets all rows.
    ///
    /// Shapes: `x: [m/world, n]` (a row shard), `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 2)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 2)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 2, transport = put)]
    pub fn all_gather(x: &Gathered<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let rows = x.wait(tile.rows());
            c.store(tile, rows.load(tile));
        }
    }

    /// `C = all_to_all(A · Bᵀ)`: each rank multiplies its rows and keeps its columns. The projection
    /// ahead of attention, from a part of the sequence to a part of the heads.
    ///
    /// Shapes: `a: [m/world, k]` (a row shard), `b: [n, k]`, `c: [m, n/world]` (a column shard). Ranks may own rows of
    /// another number: `launch_with_rows`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    #[schedule(sm_90a, tile = (64, 192, 64), stages = 6, consumers = single)]
    pub fn gemm_a2a(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Exchanged<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    /// `C = all_to_all(A) · Bᵀ`: each rank holds columns of A and multiplies its rows. The projection
    /// behind attention, from a part of the heads to a part of the sequence.
    ///
    /// Shapes: `a: [m, k/world]` (a column shard), `b: [n, k]`, `c: [m/world, n]` (a row shard). Ranks may own rows of
    /// another number: `launch_with_rows`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, transport = put)]
    #[schedule(sm_90a, tile = (64, 192, 64), stages = 6, consumers = single, transport = put)]
    pub fn a2a_gemm(a: &Exchanged<bf16>, b: &Global<bf16>, c: &mut Sharded<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    /// `C = all_to_all(X)`, from row shards to column shards.
    ///
    /// Shapes: `x: [m/world, n]` (a row shard), `c: [m, n/world]` (a column shard).
    #[kernel]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 2)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 2)]
    pub fn rows_to_columns(x: &Sharded<bf16>, c: &mut Exchanged<bf16>) {
        for tile in c.tiles() {
            c.store(tile, x.load(tile));
        }
    }

    /// `C = all_to_all(X)`, from column shards to row shards.
    ///
    /// Shapes: `x: [m, n/world]` (a column shard), `c: [m/world, n]` (a row shard).
    #[kernel]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 2)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 2, transport = put)]
    pub fn columns_to_rows(x: &Exchanged<bf16>, c: &mut Sharded<bf16>) {
        for tile in c.tiles() {
            let rows = x.wait(tile.rows());
            c.store(tile, rows.load(tile));
        }
    }

    /// `C = reduce_scatter(A · B)`: the gradient of an input, where the output was gathered ahead of the
    /// product.
    ///
    /// Shapes: `a: [m, k]`, `b: [k, n]`, `c: [m/world, n]` (a row shard).
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 3, reduce_scatter = pull, transport = tma)]
    pub fn gemm_rs_nn(a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>) {
        for tile in c.tiles() {
            c.add(tile, gemm(a, b, tile));
        }
    }

    /// `C = all_gather(A) · B`: the gradient of an input, where the product was scattered behind it.
    ///
    /// Shapes: `a: [m/world, k]` (a row shard), `b: [k, n]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 3, all_gather = pull, transport = tma)]
    pub fn ag_gemm_nn(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gemm(a, b, tile));
        }
    }

    /// `C = Aᵀ · all_gather(B)`: the gradient of weights, where the input was gathered ahead of the
    /// product. What is summed over is the rows of every rank.
    ///
    /// Shapes: `a: [k, m]`, `b: [k/world, n]` (a row shard), `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, transport = put)]
    pub fn gemm_ag_tn(a: &Global<bf16>, b: &Gathered<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let b = b.wait(tile.reduction());
            c.store(tile, gemm(a.t(), b, tile));
        }
    }

    /// `C = all_gather(A)ᵀ · B`: the gradient of weights, where the product was scattered behind it.
    /// What is summed over is the rows of every rank.
    ///
    /// Shapes: `a: [k/world, m]` (a row shard), `b: [k, n]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, transport = put)]
    pub fn ag_gemm_tn(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.reduction());
            c.store(tile, gemm(a.t(), b, tile));
        }
    }

    /// `C = reduce_scatter(X)`: each rank keeps its rows of the sum over ranks.
    ///
    /// Shapes: `x: [m, n]`, `c: [m/world, n]` (a row shard).
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 2)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 2)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 2, transport = copy_engine)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 2, reduce_scatter = pull, transport = tma)]
    pub fn reduce_scatter(x: &Global<bf16>, c: &mut Scattered<bf16>) {
        for tile in c.tiles() {
            c.add(tile, x.load(tile));
        }
    }

    /// `C = all_reduce(X)`: each rank gets the whole sum over ranks, the same bits on all.
    ///
    /// Shapes: `x: [m, n]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 2, all_reduce = two_shot)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 2, all_reduce = flagged)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 2, all_reduce = two_shot, transport = tma)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 2, all_reduce = one_shot)]
    pub fn all_reduce(x: &Global<bf16>, c: &mut Reduced<bf16>) {
        for tile in c.tiles() {
            c.add(tile, x.load(tile));
        }
    }

    /// `C = all_reduce(A · Bᵀ)`: each rank gets the whole sum over ranks, the same bits on all.
    ///
    /// Shapes: `a: [m, k]`, `b: [n, k]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, all_reduce = two_shot)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, all_reduce = two_shot)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single, cache = stream_b, all_reduce = two_shot)]
    #[schedule(sm_90a, tile = (16, 64, 64), stages = 16, consumers = single, cache = stream_b, all_reduce = flagged)]
    #[schedule(sm_90a, tile = (64, 64, 64), stages = 12, consumers = single, cache = stream_b, all_reduce = flagged)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single, cache = stream_b, all_reduce = flagged)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, all_reduce = one_shot)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 3, all_reduce = two_shot, transport = tma)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, all_reduce = one_shot)]
    pub fn gemm_ar(a: &Global<bf16>, b: &Global<bf16>, c: &mut Reduced<bf16>) {
        for tile in c.tiles() {
            c.add(tile, gemm(a, b.t(), tile));
        }
    }

    /// `C = all_reduce(A · Bᵀ) + bias + residual`: the second half of an MLP whose ranks all hold
    /// every row. Each rank passes the same bias and the same residual.
    ///
    /// Shapes: `a: [m, k]`, `b: [n, k]`, `bias: [n]`, `residual: [m, n]`, `c: [m, n]`.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 176, 64), stages = 5, all_reduce = two_shot)]
    #[schedule(sm_90a, tile = (16, 64, 64), stages = 16, consumers = single, cache = stream_b, all_reduce = flagged)]
    #[schedule(sm_90a, tile = (128, 64, 64), stages = 8, consumers = single, cache = stream_b, all_reduce = flagged)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, all_reduce = one_shot)]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 3, all_reduce = two_shot, transport = tma)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 6, all_reduce = one_shot)]
    pub fn gemm_ar_bias_residual(
        a: &Global<bf16>,
        b: &Global<bf16>,
        bias: &Global<f32>,
        residual: &Global<bf16>,
        c: &mut Reduced<bf16>,
    ) {
        for tile in c.tiles() {
            let sum = c.reduce(tile, gemm(a, b.t(), tile));
            c.store(tile, sum + bias.cols(tile) + residual.load(tile));
        }
    }
}

pub use shipped::{
    a2a_gemm, ag_gemm, ag_gemm_bias_gelu, ag_gemm_gathered, ag_gemm_nn, ag_gemm_swiglu, ag_gemm_tn,
    all_gather, all_reduce, columns_to_rows, gemm_a2a, gemm_ag_tn, gemm_ar, gemm_ar_bias_residual,
    gemm_bf16, gemm_f16, gemm_nn_bf16, gemm_rs, gemm_rs_bias_residual, gemm_rs_nn, gemm_tn_bf16,
    reduce_scatter, rows_to_columns,
};

use crate::Definition;

/// Every kernel of this module.
pub fn all() -> [&'static Definition; 23] {
    [
        gemm_bf16::definition(),
        gemm_f16::definition(),
        gemm_nn_bf16::definition(),
        gemm_tn_bf16::definition(),
        ag_gemm::definition(),
        ag_gemm_gathered::definition(),
        ag_gemm_bias_gelu::definition(),
        ag_gemm_swiglu::definition(),
        gemm_rs::definition(),
        gemm_rs_bias_residual::definition(),
        all_gather::definition(),
        reduce_scatter::definition(),
        all_reduce::definition(),
        gemm_ar::definition(),
        gemm_ar_bias_residual::definition(),
        gemm_a2a::definition(),
        a2a_gemm::definition(),
        rows_to_columns::definition(),
        columns_to_rows::definition(),
        gemm_rs_nn::definition(),
        ag_gemm_nn::definition(),
        gemm_ag_tn::definition(),
        ag_gemm_tn::definition(),
    ]
}
