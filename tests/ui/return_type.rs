use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) -> f32 {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile));
    }
    0.0
}

fn main() {}
