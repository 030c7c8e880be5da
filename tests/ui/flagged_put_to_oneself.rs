use flux::prelude::*;

#[flux::kernel]
#[schedule(host, tile = (8, 8, 8))]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    let parts = flagged::<bf16>(Extent::M, Extent::N);
    for tile in c.tiles() {
        let part = gemm(a, b.t(), tile);
        for to in 0..world() {
            parts.put(to, tile, part);
        }
        c.store(tile, parts.sum(tile, part));
    }
}

fn main() {}
