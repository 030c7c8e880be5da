use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Sharded<bf16>, b: &Exchanged<bf16>, c: &mut Sharded<bf16>) {
    for tile in c.tiles() {
        let b = b.wait(tile.rows());
        c.store(tile, gemm(a, b, tile));
    }
}

fn main() {}
