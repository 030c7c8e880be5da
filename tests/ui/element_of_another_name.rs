use flux::prelude::{Global, f16, f16 as bf16, gemm};

#[flux::kernel]
fn kernel(a: &Global<f16>, b: &Global<f16>, c: &mut Global<f32>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile).cast::<bf16>());
    }
}

fn main() {}
