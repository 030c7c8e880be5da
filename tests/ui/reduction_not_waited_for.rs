use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Global<bf16>, x: &Gathered<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a.t(), x, tile));
    }
}

fn main() {}
