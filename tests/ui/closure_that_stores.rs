use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        let mut finish = |x: Fragment| c.store(tile, x);
        finish(gemm(a, b.t(), tile));
    }
}

fn main() {}
