use flux::prelude::*;

#[flux::kernel]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile));
    }
}

fn call(rank: &Rank, a: &Tensor<bf16>, c: &mut Tensor<f16>) -> Result<(), flux::Error> {
    kernel::load(rank)?.launch(a, a, c)
}

fn main() {
    let _ = call;
}
