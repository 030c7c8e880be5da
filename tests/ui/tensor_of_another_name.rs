use flux::prelude::*;

#[allow(non_camel_case_types)]
mod elements {
    pub type bf16 = f32;
}
use elements::bf16;

#[flux::kernel]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<f32>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile));
    }
}

fn main() {}
