use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gleu(gemm(a, b.t(), tile)));
    }
}

fn main() {}
