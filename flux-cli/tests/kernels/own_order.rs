use flux::prelude::*;

fn backwards(step: u32, grid: &Grid, _rank: u32, _world: u32) -> TileCoord {
    let tile = grid.rows * grid.cols - 1 - step;
    TileCoord { m: tile / grid.cols, n: tile % grid.cols }
}

/// Visits the last tile first.
#[flux::kernel]
#[schedule(sm_90a, tile = (128, 256, 64), stages = 4, order = backwards)]
pub fn reversed(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile));
    }
}
