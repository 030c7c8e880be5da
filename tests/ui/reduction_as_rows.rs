use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        let a = a.wait(tile.reduction());
        c.store(tile, gemm(a, b, tile));
    }
}

fn main() {}
