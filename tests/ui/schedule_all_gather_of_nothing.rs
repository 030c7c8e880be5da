use flux::prelude::*;

#[flux::kernel]
#[schedule(sm_90a, all_gather = ring)]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile));
    }
}

fn main() {}
