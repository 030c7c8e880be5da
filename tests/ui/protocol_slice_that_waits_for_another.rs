use flux::prelude::*;

#[flux::kernel]
#[schedule(host, tile = (8, 8, 8))]
fn kernel(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    let all = symmetric::<bf16>(Extent::M, Extent::K);
    let arrived = signals(2 * world());
    role("push", || {
        for to in 0..world() {
            for slice in 0..2 {
                let sent = all.put(to, a.part(shard(rank())).cols(k_slice(slice, 2)));
                arrived.signal(to, slice * world() + rank(), sent);
            }
        }
    });
    for tile in c.tiles() {
        let from = owners(tile.rows());
        let mut acc = zeros();
        for k in tile.k_slices(2) {
            let a = all.ready(tile.rows(), arrived.wait(from.start..from.end));
            acc += gemm(a, b.t(), k);
        }
        c.store(tile, acc);
    }
}

fn main() {}
