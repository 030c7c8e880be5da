use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Exchanged<bf16>, b: &Global<bf16>, c: &mut Sharded<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile));
    }
}

fn main() {}
