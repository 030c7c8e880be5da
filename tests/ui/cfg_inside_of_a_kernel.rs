use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        let acc = gemm(a, b.t(), tile);
        #[cfg(feature = "scaled")]
        let acc = acc * 2.0;
        c.store(tile, acc);
    }
}

fn main() {}
