use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Gathered<bf16>, b: &Global<bf16>, x: &mut Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        let a = a.wait(tile.rows());
        c.store(tile, gemm(a, b.t(), tile));
    }
}

fn main() {}
