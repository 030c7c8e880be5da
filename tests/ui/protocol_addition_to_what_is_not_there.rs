use flux::prelude::*;

#[flux::kernel]
#[schedule(host, tile = (8, 8, 8), transport = put)]
fn kernel(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    let sums = symmetric::<bf16>(Extent::M, Extent::K);
    let laid = signals(world());
    let added = signals(world());
    role("sum", || {
        let next = (rank() + 1) % world();
        for source in 0..world() {
            let own = sums.put(rank(), a.part(shard(source)));
            // This rank is told, and not the one that adds to what is laid here.
            laid.signal(rank(), source, own);
        }
        for source in 0..world() {
            let sent = sums.reduce_add(next, a.part(shard(source)), laid.wait(source));
            added.signal(next, source, sent);
        }
    });
    for tile in c.tiles() {
        let a = sums.ready(tile.rows(), added.wait(owners(tile.rows())));
        c.store(tile, gemm(a, b.t(), tile));
    }
}

fn main() {}
