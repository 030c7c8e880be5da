use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Exchanged<bf16>) {
    for tile in c.tiles() {
        c.add(tile, gemm(a, b.t(), tile));
    }
}

fn main() {}
