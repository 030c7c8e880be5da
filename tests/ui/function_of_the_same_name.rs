use flux::prelude::*;

fn gelu(x: Fragment) -> Fragment {
    x * 2.0
}

#[flux::kernel]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gelu(gemm(a, b.t(), tile)));
    }
}

fn main() {}
