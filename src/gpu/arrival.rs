//! When a launch is over whose operands arrive while it runs: no sooner than its product alone, nor
//! than what is left to multiply when the last rows are there.

use super::outbox::Peers;
use super::{Gpu, Passive};
use crate::source::Member;
use flux_ir::eval::Launch;
use flux_ir::program::{BufferId, Engine, Op, Program};
use flux_ir::{Schedule, Tail};

/// What ranks are linked by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Link {
    /// Bytes a microsecond, in one direction.
    bytes: f64,
    /// Microseconds that each further copy of a stream takes.
    gap: f64,
    /// Microseconds from the begin of a launch to its first byte, and from its last byte to the first
    /// product of it.
    start: f64,
}

/// PCIe 5, 16 lanes (measured: `docs/performance.md`).
const PCIE: Link = Link { bytes: 55_000.0, gap: 2.6, start: 20.0 };

/// Copies within the memory of an H200: both sides share its bandwidth with the product.
const DEVICE: Link = Link { bytes: 1_500_000.0, gap: 2.6, start: 12.0 };

/// Cycles a microsecond of a multiprocessor under load.
const CLOCK: f64 = 1650.0;

impl Gpu {
    pub(super) fn link(&self) -> Link {
        match self.passive() {
            Some(Passive { peers: Peers::Host, .. }) => PCIE,
            Some(Passive { peers: Peers::Device, .. }) | None => DEVICE,
        }
    }
}

impl Link {
    /// Cycles of a launch whose product alone takes `product`.
    pub(super) fn cycles(self, member: &Member, launch: Launch, product: u64) -> u64 {
        let program = member.verified.program();
        let row_bytes = row_bytes(program, launch);
        if row_bytes == 0 || launch.world == 1 {
            return product;
        }
        let Arrival { copies, rows, left } = Arrival::new(&member.schedule, launch, program);
        let (rows, copies) = (f64::from(rows), f64::from(copies));
        let last = self.start + rows * row_bytes as f64 / self.bytes + copies * self.gap;
        product.max((last * CLOCK) as u64 + left)
    }
}

/// The end of what a rank receives.
#[derive(Debug, PartialEq, Eq)]
struct Arrival {
    /// Copies in one stream.
    copies: u32,
    /// Rows from peers.
    rows: u32,
    /// Cycles of product that can begin only with the last rows.
    left: u64,
}

impl Arrival {
    fn new(schedule: &Schedule, launch: Launch, program: &Program) -> Arrival {
        let Launch { shape, world, ctas } = launch;
        let shard = shape.m.div_ceil(world).max(1);
        let chunk = schedule.chunk_rows.unwrap_or(shard).clamp(1, shard);
        let (tile, products) = (program.tile, u64::from(program.accumulators().max(1)));
        let step = 2 * u64::from(tile.n * tile.m.div_ceil(64)) * products;
        let of_tile = u64::from(shape.k.div_ceil(64)) * step;
        let waves = |rows: u32| {
            let tiles = u64::from(rows.div_ceil(tile.m)) * u64::from(shape.n.div_ceil(tile.n));
            tiles.div_ceil(ctas.into())
        };
        let chunks = shard.div_ceil(chunk) * (world - 1);
        let rows = shape.m.saturating_sub(shard);
        match schedule.tail {
            None => Arrival { copies: chunks, rows, left: waves(chunk.min(shard)) * of_tile },
            Some(Tail { rows: last, slices }) => {
                // Tiles beyond a wave follow the slices only when those before them are through.
                let waves = waves(last.min(shard));
                let left = (waves - 1) * of_tile + of_tile / u64::from(slices.max(1));
                Arrival { copies: chunks + slices, rows, left }
            }
        }
    }
}

/// Bytes that arrive with each row, over all gathered operands.
fn row_bytes(program: &Program, launch: Launch) -> u64 {
    let engines = program.agents.values().filter(|agent| agent.engine == Engine::CopyEngine);
    let mut buffers: Vec<BufferId> = engines
        .flat_map(|agent| agent.statements())
        .filter_map(|stmt| match &stmt.op {
            Op::Copy { to, .. } => Some(to.buffer),
            _ => None,
        })
        .collect();
    buffers.sort_unstable();
    buffers.dedup();
    let element = |buffer: &BufferId| u64::from(program.buffers[*buffer].element.bytes());
    buffers.iter().map(element).sum::<u64>() * u64::from(launch.shape.k)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux_ir::{Consumers, Shape};

    fn arrival(schedule: &Schedule, shape: Shape, world: u32) -> Arrival {
        let kernel = crate::kernels::ag_gemm::definition().kernel().expect("it is written");
        let program = flux_ir::lower::lower(&kernel, schedule).expect("it is lowered");
        Arrival::new(schedule, Launch { shape, world, ctas: 128 }, &program)
    }

    #[test]
    fn slices_leave_a_part_of_the_last_tile() {
        let shape = Shape { m: 8192, n: 6144, k: 12288 };
        let whole = Schedule::sm_90a().tile(128, 176, 64).consumers(Consumers::PingPong);
        // A shard of 8 by 35 tiles: three waves of 128.
        let tile = 4 * 176 * 192;
        assert_eq!(arrival(&whole, shape, 8), Arrival { copies: 7, rows: 7168, left: 3 * tile });
        let sliced = whole.tail(384, 4);
        assert_eq!(arrival(&sliced, shape, 8), Arrival { copies: 11, rows: 7168, left: tile / 4 });
    }
}
