//! What a file with kernels needs: `use flux::prelude::*;`.

pub use crate::lang::{
    Fragment, Gathered, Global, Reduced, Rows, Scattered, Sharded, Tile, bf16, cast, exp, f16,
    gelu, gelu_tanh, gemm, max, min, relu, silu, tanh,
};
pub use crate::{Grid, Order, Rank, Schedule, Tensor, TileCoord, World, schedule};
