#![deny(warnings)]

use flux::lang::{Fragment, Gathered, Global};

/// Paths instead of names.
#[flux::kernel]
#[flux::schedule(host)]
pub fn kernel(a: &Gathered<flux::lang::bf16>, b: &Global<flux::lang::bf16>, c: &mut flux::lang::Global<f32>) {
    let act = |x: Fragment| flux::lang::relu(x);
    for tile in c.tiles() {
        let a = a.wait(tile.rows());
        c.store(tile, act(flux::lang::gemm(a, b.t(), tile)));
    }
}

fn main() {
    assert!(kernel::definition().kernel().is_ok());
}
