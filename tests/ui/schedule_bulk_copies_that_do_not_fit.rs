use flux::prelude::*;

#[flux::kernel]
#[schedule(sm_90a, tile = (128, 192, 64), stages = 5, transport = tma)]
fn ag_gemm(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        let rows = a.wait(tile.rows());
        c.store(tile, gemm(rows, b.t(), tile));
    }
}

fn main() {}
