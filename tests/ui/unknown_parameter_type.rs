use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Vec<f32>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gemm(b, b, tile));
    }
}

fn main() {}
