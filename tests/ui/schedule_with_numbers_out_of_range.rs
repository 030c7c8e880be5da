use flux::prelude::*;

#[flux::kernel]
#[schedule(sm_90a, tile = (128, 128, 64), chunk_rows = 4294967295, all_gather = ring)]
fn chunks(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        let a = a.wait(tile.rows());
        c.store(tile, gemm(a, b.t(), tile));
    }
}

#[flux::kernel]
#[schedule(sm_90a, tile = (256, 128, 64), chunk_rows = 1, all_gather = ring, transport = put)]
fn too_many_chunks(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        let a = a.wait(tile.rows());
        c.store(tile, gemm(a, b.t(), tile));
    }
}

#[flux::kernel]
#[schedule(host, jitter = 0)]
fn no_pause(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile));
    }
}

#[flux::kernel]
#[schedule(host, jitter = 1001)]
fn long_pauses(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile));
    }
}

fn main() {}
