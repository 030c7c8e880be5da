use flux::prelude::*;

#[flux::kernel]
#[schedule(sm_90a, transport = tma)]
fn gemm_rs(a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>) {
    for tile in c.tiles() {
        c.add(tile, gemm(a, b.t(), tile));
    }
}

fn main() {}
