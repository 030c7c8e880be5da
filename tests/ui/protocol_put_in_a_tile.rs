use flux::prelude::*;

#[flux::kernel]
#[schedule(host, tile = (8, 8, 8))]
fn kernel(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    let all = symmetric::<bf16>(Extent::M, Extent::K);
    let arrived = signals(world());
    role("push", || {
        for hop in 0..world() {
            let to = (rank() + hop) % world();
            let sent = all.put(to, a.part(shard(rank())));
            arrived.signal(to, rank(), sent);
        }
    });
    for tile in c.tiles() {
        let sent = all.put(rank(), a.part(shard(rank())));
        arrived.signal(rank(), rank(), sent);
        c.store(tile, gemm(all.ready(tile.rows(), arrived.wait(rank())), b.t(), tile));
    }
}

fn main() {}
