use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Reduced<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile));
    }
}

fn main() {}
