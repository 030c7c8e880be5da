//! What a file with kernels needs: `use flux::prelude::*;`.

pub use crate::lang::{
    Exchanged, Extent, Flagged, Fragment, Gathered, Global, Reduced, Rows, Scattered, Sharded,
    Signals, Symmetric, Tile, bf16, cast, exp, f16, flagged, gelu, gelu_tanh, gemm, k_slice, max,
    min, owners, rank, relu, role, shard, shard_rows, signals, silu, symmetric, tanh, world, zeros,
};
pub use crate::{Grid, Order, Rank, Schedule, Tensor, TileCoord, World, schedule};
