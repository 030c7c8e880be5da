use flux::prelude::*;

mod lang {
    use flux::prelude::*;

    pub fn relu(x: Fragment) -> Fragment {
        x * 10.0
    }
}

#[flux::kernel]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, lang::relu(gemm(a, b.t(), tile)));
    }
}

fn main() {}
