use flux::prelude::*;

#[schedule(host)]
#[schedule(host, stages = 2)]
#[flux::kernel]
#[schedule(host, stages = 3)]
/// Documented.
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile));
    }
}

fn main() {
    let stages: Vec<u32> = (kernel::definition().schedules)().iter().map(|s| s.stages).collect();
    assert_eq!(stages.len(), 3);
    assert!(stages.contains(&2) && stages.contains(&3) && stages.contains(&4));

    // A kernel may stand in a function.
    #[flux::kernel]
    fn inner(a: &Global<f32>, c: &mut Global<f32>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, a, tile));
        }
    }
    assert_eq!(inner::definition().name, "inner");
}
