use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Gathered<bf16>, x: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        let _rows = a.wait(tile.rows());
        c.store(tile, gemm(x, b.t(), tile));
    }
}

fn main() {}
