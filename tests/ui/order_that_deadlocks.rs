use flux::prelude::*;

#[flux::kernel]
#[schedule(host, tile = (8, 8, 8), order = own_shard_first)]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>) {
    for tile in c.tiles() {
        c.add(tile, gemm(a, b.t(), tile));
    }
}

fn main() {}
