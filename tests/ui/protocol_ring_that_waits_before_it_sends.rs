use flux::prelude::*;

#[flux::kernel]
#[schedule(host, tile = (8, 8, 8))]
fn kernel(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    let all = symmetric::<bf16>(Extent::M, Extent::K);
    let arrived = signals(world());
    role("push", || {
        let next = (rank() + 1) % world();
        let first = arrived.wait(next);
        let own = all.put(rank(), a.part(shard(rank())));
        arrived.signal(rank(), rank(), own);
        let before = (rank() + world() - 1) % world();
        for hop in 0..world() - 1 {
            let source = (rank() + hop) % world();
            let sent = all.put(before, all.ready(shard(source), first));
            arrived.signal(before, source, sent);
        }
    });
    for tile in c.tiles() {
        let a = all.ready(tile.rows(), arrived.wait(owners(tile.rows())));
        c.store(tile, gemm(a, b.t(), tile));
    }
}

fn main() {}
