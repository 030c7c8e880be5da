#[flux::module]
mod kernels {
    use flux::prelude::*;

    const fn columns(step: u32, grid: &Grid, _rank: u32, _world: u32) -> TileCoord {
        TileCoord { m: step % grid.cols % grid.rows, n: step / grid.rows }
    }

    #[kernel]
    #[schedule(host, order = columns)]
    pub fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b.t(), tile));
        }
    }
}

fn main() {}
