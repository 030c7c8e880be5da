//! When a launch is over whose operands arrive while it runs: chunk by chunk, each multiplied when
//! it is there and what came before it is through.

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
    /// Microseconds from the begin of a launch to its first byte, and from a chunk's last byte to
    /// its first product.
    latency: f64,
}

/// PCIe 5, 16 lanes, both directions busy (measured: `docs/machines.md`).
const PCIE: Link = Link { bytes: 50_000.0, gap: 2.6, latency: 10.0 };

/// Copies within the memory of an H200, whose bandwidth the product needs too.
const DEVICE: Link = Link { bytes: 1_000_000.0, gap: 2.6, latency: 6.0 };

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
        let row = row_bytes as f64 / self.bytes;
        let pace = Pace::new(program, launch);
        product.max((self.end(&member.schedule, launch, row, pace) * CLOCK) as u64)
    }

    /// Microseconds to the end of the last tile, where a row travels for `row` of them.
    fn end(self, schedule: &Schedule, launch: Launch, row: f64, pace: Pace) -> f64 {
        let Launch { shape, world, .. } = launch;
        let shard = shape.m.div_ceil(world).max(1);
        let size = schedule.chunk_rows.unwrap_or(shard).clamp(1, shard);
        // The own shard is there first, the others one behind the other.
        let (mut arrived, mut done) = (self.latency, self.latency + pace.of(shard));
        for hop in 1..world {
            let is_last = hop + 1 == world;
            let tail = schedule.tail.filter(|_| is_last);
            let whole = shard - tail.map_or(0, |tail| tail.rows.min(shard));
            let mut rows = whole;
            while rows > 0 {
                let chunk = size.min(rows);
                rows -= chunk;
                arrived += f64::from(chunk) * row + self.gap;
                let work = if is_last && tail.is_none() && rows == 0 {
                    // Whole waves: there is nothing left to fill the last one with.
                    pace.waves(chunk)
                } else {
                    pace.of(chunk)
                };
                done = done.max(arrived + self.latency) + work;
            }
            if let Some(Tail { rows, slices }) = tail {
                let rows = rows.min(shard);
                arrived += f64::from(rows) * row + self.gap * f64::from(slices);
                let (waves, slice) = (pace.waves(rows), pace.tile / f64::from(slices.max(1)));
                // Tiles beyond a wave follow the slices only when those before them are through.
                let behind = arrived + self.latency + waves - pace.tile + slice;
                done = behind.max(done + pace.of(rows));
            }
        }
        done
    }
}

/// How fast a grid multiplies, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Pace {
    tile: f64,
    tile_rows: u32,
    /// Tiles of a tile row.
    across: u32,
    ctas: u32,
}

impl Pace {
    fn new(program: &Program, launch: Launch) -> Pace {
        let (tile, products) = (program.tile, u64::from(program.accumulators().max(1)));
        // As in `choose`: m64nNk16 takes N/2 cycles.
        let step = 2 * u64::from(tile.n * tile.m.div_ceil(64)) * products;
        let cycles = u64::from(launch.shape.k.div_ceil(64)) * step;
        Pace {
            tile: cycles as f64 / CLOCK,
            tile_rows: tile.m,
            across: launch.shape.n.div_ceil(tile.n),
            ctas: launch.ctas,
        }
    }

    fn tiles(self, rows: u32) -> u64 {
        u64::from(rows.div_ceil(self.tile_rows)) * u64::from(self.across)
    }

    /// Rows among others.
    fn of(self, rows: u32) -> f64 {
        self.tile * self.tiles(rows) as f64 / f64::from(self.ctas)
    }

    /// Rows alone, in whole waves.
    fn waves(self, rows: u32) -> f64 {
        self.tile * self.tiles(rows).div_ceil(self.ctas.into()) as f64
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

    const LAUNCH: Launch =
        Launch { shape: flux_ir::Shape { m: 8192, n: 6144, k: 12288 }, world: 8, ctas: 128 };

    /// 128 × 176 tiles, 35 across, 84 µs each.
    const PACE: Pace = Pace { tile: 84.0, tile_rows: 128, across: 35, ctas: 128 };

    fn ends(schedule: &Schedule, pace: Pace, expected: f64) {
        let found = PCIE.end(schedule, LAUNCH, 0.5, pace);
        assert!((found - expected).abs() < 1e-6, "{schedule}: {found}, expected {expected}");
    }

    #[test]
    fn what_arrives_last_decides_how_much_is_left() {
        // 7168 rows at half a microsecond, 7 gaps; then 8 × 35 tiles in three waves of 128.
        let whole = Schedule::sm_90a();
        ends(&whole, PACE, 10.0 + 3584.0 + 7.0 * 2.6 + 10.0 + 3.0 * 84.0);
        // Half a shard: 4 × 35 tiles take two waves.
        let halves = whole.clone().chunk_rows(512);
        ends(&halves, PACE, 10.0 + 3584.0 + 14.0 * 2.6 + 10.0 + 2.0 * 84.0);
        // The tail of 3 × 35 tiles in quarters; what arrives before it is through by then.
        let sliced = whole.chunk_rows(640).tail(384, 4);
        ends(&sliced, PACE, 10.0 + 3584.0 + 17.0 * 2.6 + 10.0 + 21.0);
    }

    #[test]
    fn a_slow_product_hides_the_link() {
        let slow = Pace { tile: 840.0, ..PACE };
        // Chunks of 640 and 384 rows are whole tile rows: nothing is done twice.
        let sliced = Schedule::sm_90a().chunk_rows(640).tail(384, 4);
        ends(&sliced, slow, 10.0 + 64.0 * 35.0 * 840.0 / 128.0);
    }
}
