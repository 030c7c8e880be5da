//! When a launch is over whose contributions leave while it runs.

use super::arrival::{CLOCK, Link, Pace};
use super::choose::{ELEMENT_BYTES, L2_FITS};
use flux_ir::eval::Launch;
use flux_ir::program::{Op, Program};
use flux_ir::{Departure, Order, Schedule, Transport};

impl Link {
    /// Microseconds to the end of a launch that sends contributions, its product included, which
    /// alone takes `product` cycles.
    pub(super) fn departure(
        self,
        program: &Program,
        schedule: &Schedule,
        launch: Launch,
        product: u64,
    ) -> f64 {
        let pace = Pace::new(program, launch, product);
        let product = product as f64 / CLOCK;
        let Launch { shape, world, .. } = launch;
        if world == 1 {
            return product;
        }
        let shard = shape.m.div_ceil(world).max(1);
        let row = f64::from(shape.n) * f64::from(element_bytes(program));
        match schedule.transport {
            Some(Transport::CopyEngine) => {
                let [m, n, k] = [shape.m, shape.n, shape.k].map(u64::from);
                let (left, right) = (m * k * ELEMENT_BYTES, n * k * ELEMENT_BYTES);
                // What stays in the cache is streamed once.
                let streamed = if left + right > L2_FITS { right } else { 0 };
                let pass = streamed as f64 / STREAMED;
                let walk = Walk { shard, world, row, pass, pace, product };
                walk.end(self, schedule)
            }
            // Stores of all tiles share the link, the first of them when the first tiles are done.
            Some(Transport::Put | Transport::CopyFirst) | None => {
                let bytes = row * f64::from(shape.m - shard.min(shape.m));
                product.max(bytes / self.stores + self.latency)
            }
        }
    }
}

/// Bytes a microsecond at which one pass over some rows streams the other operand.
const STREAMED: f64 = 3_600_000.0;

/// Bytes a microsecond at which contributions are added up.
const SUMMED: f64 = 2_400_000.0;

/// Microseconds from when a stream's copy has ended to when it has waited for the next chunk, which
/// is there: the other stream copies meanwhile (`docs/notes/overlap.md`).
const WAIT: f64 = 9.0;

/// A launch, group of rows by group of rows.
#[derive(Debug, Clone, Copy)]
struct Walk {
    shard: u32,
    world: u32,
    /// Bytes of a row.
    row: f64,
    /// Microseconds in which a group streams the other operand.
    pass: f64,
    pace: Pace,
    /// What the product takes alone.
    product: f64,
}

/// A chunk: its rows, and when the group it belongs to is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Chunk {
    rows: u32,
    ready: f64,
}

impl Walk {
    /// Microseconds to the end: chunks leave by two streams that take turns, and arrive from peers
    /// as they leave here.
    fn end(&self, link: Link, schedule: &Schedule) -> f64 {
        let (chunks, computed) = self.chunks(schedule);
        let (mut streams, mut wire) = ([0.0f64; 2], 0.0f64);
        let mut arrivals = Vec::with_capacity(chunks.len());
        for (turn, chunk) in chunks.iter().enumerate() {
            let stream = &mut streams[turn % 2];
            let waited = (chunk.ready + link.latency).max(*stream + WAIT);
            wire = wire.max(waited) + link.gap + f64::from(chunk.rows) * self.row / link.bytes;
            *stream = wire;
            arrivals.push((chunk.rows, wire));
        }
        let mut end = computed.max(self.product);
        // Own rows are added up as the last peer's chunks come; tiles behind those that wait are
        // computed then. A multiprocessor holds two.
        let (held, mut behind) = (2 * self.pace.ctas, 0);
        for &(rows, arrived) in arrivals.iter().rev() {
            behind += rows;
            if behind > self.shard {
                break;
            }
            let tiles = behind.div_ceil(self.pace.tile_rows) * self.pace.across;
            let waves = tiles.saturating_sub(held).div_ceil(self.pace.ctas.max(1));
            let summed = f64::from(behind) * self.row * f64::from(self.world + 1) / SUMMED;
            let left = (f64::from(waves) * self.pace.tile).max(summed);
            end = end.max(arrived + link.latency + left);
        }
        // Tiles that hold rows of two owners are put, where one of them is this rank.
        let put = match self.shard % self.pace.tile_rows {
            0 => 0,
            _ => (self.shard.div_ceil(self.pace.tile_rows) + 1) * self.pace.tile_rows - self.shard,
        };
        end + link.latency + f64::from(put) * self.row / link.stores
    }

    /// All chunks in the order in which they leave, and when all groups are computed.
    fn chunks(&self, schedule: &Schedule) -> (Vec<Chunk>, f64) {
        let (shard, tile_rows) = (self.shard, self.pace.tile_rows);
        let Departure { rows, shards } = match &schedule.order {
            Some(Order::Departure(departure)) => *departure,
            None => DEFAULT,
            Some(_) => Departure { rows: shard, shards: 1 },
        };
        let at_least_a_tile = |rows: u32| rows.clamp(tile_rows.min(shard), shard);
        let (rows, most) = (at_least_a_tile(rows), RASTER_ROWS * tile_rows);
        let (mut rows_done, mut done) = (0u32, 0.0f64);
        // When a group of so many more rows is through.
        let mut compute = |rows: u32| {
            rows_done += rows;
            let tiles = f64::from(rows_done) / f64::from(tile_rows) * f64::from(self.pace.across);
            let waves = (tiles / f64::from(self.pace.ctas)).ceil() * self.pace.tile;
            done = (done + self.pass).max(waves);
            done
        };
        // Behind its last row each group is complete.
        let mut cut = |all: u32, size: u32| {
            let mut groups = Vec::new();
            let mut left = all;
            while left > 0 {
                let rows = size.min(left);
                left -= rows;
                groups.push((all - left, compute(rows)));
            }
            groups
        };
        let ready = |groups: &[(u32, f64)], row: u32| {
            groups.iter().find(|(last, _)| row <= *last).map_or(0.0, |(_, ready)| *ready)
        };
        let mut chunks = Vec::new();
        let mut hop = 1;
        while hop < self.world {
            let is_end = hop == 1 || hop + 1 == self.world;
            // Shards between the ends are joined.
            let joined = if is_end { 1 } else { shards.clamp(1, self.world - 1 - hop) };
            let groups = if is_end { cut(shard, rows) } else { cut(joined * shard, most) };
            for index in 0..joined {
                let mut sent = 0;
                for rows in self.cuts(schedule, hop + index) {
                    sent += rows;
                    chunks.push(Chunk { rows, ready: ready(&groups, index * shard + sent) });
                }
            }
            hop += joined;
        }
        let own = cut(shard, rows);
        (chunks, ready(&own, shard))
    }

    /// The rows of each chunk for the owner `hop` ranks on.
    fn cuts(&self, schedule: &Schedule, hop: u32) -> Vec<u32> {
        let (shard, tile_rows) = (self.shard, self.pace.tile_rows);
        let part = |cut: Option<(u32, u32)>| {
            let (rows, parts) = cut.unwrap_or((0, 1));
            let rows = rows.min(shard);
            (rows, rows.div_ceil(parts.max(1)).max(tile_rows))
        };
        let head = schedule.head.map(|head| (head.rows, head.copies)).filter(|_| hop == 1);
        let tail = schedule.tail.map(|tail| (tail.rows, tail.slices));
        let tail = tail.filter(|_| hop + 1 == self.world);
        let ((head, head_chunk), (tail, tail_chunk)) = (part(head), part(tail));
        let tail = tail.min(shard - head);
        let chunk = schedule.chunk_rows.map_or(shard, |rows| rows.max(tile_rows)).min(shard);
        let stretches = [(head, head_chunk), (shard - head - tail, chunk), (tail, tail_chunk)];
        let cut = |(all, size): (u32, u32)| {
            (0..all.div_ceil(size.max(1))).map(move |index| size.min(all - index * size))
        };
        stretches.into_iter().flat_map(cut).collect()
    }
}

/// The order that contributions are lowered to where none is given.
const DEFAULT: Departure = Departure { rows: 256, shards: 1 };

/// Tile rows of a group, at most.
const RASTER_ROWS: u32 = 16;

/// The ways to send contributions that are weighed for a launch: where `schedule` leaves them open,
/// else itself.
pub(super) fn departures(schedule: &Schedule, launch: Launch) -> Vec<Schedule> {
    let Schedule { transport, chunk_rows, head, tail, order, tile, .. } = schedule;
    let open = chunk_rows.is_none() && head.is_none() && tail.is_none() && order.is_none();
    if *transport != Some(Transport::CopyEngine) || !open || launch.world == 1 {
        return vec![schedule.clone()];
    }
    let shard = launch.shape.m.div_ceil(launch.world).max(1);
    let mut plans = Vec::new();
    let mut sizes: Vec<u32> =
        [128, 256, 512, 1024].into_iter().filter(|&rows| rows >= tile.m && rows < shard).collect();
    sizes.push(shard.max(tile.m));
    let between = launch.world.saturating_sub(3).max(1);
    for &rows in &sizes {
        for shards in [1, 2, 3, 4, 5].into_iter().filter(|&shards| shards <= between) {
            let order = Order::Departure(Departure { rows, shards });
            let whole = schedule.clone().order(order);
            if rows < shard {
                let sliced = whole.clone().tail(shard, shard.div_ceil(rows));
                plans.push(sliced.clone().head(rows, 1));
                plans.push(sliced.clone().head(2 * rows, 2));
                // A shard that is many waves leaves in several chunks.
                if shard > 1024 {
                    plans.push(sliced.head(2 * rows, 2).chunk_rows(1024));
                }
            }
            plans.push(whole);
        }
    }
    plans
}

/// Bytes of an element of what is summed.
fn element_bytes(program: &Program) -> u32 {
    let summed = program.statements().find_map(|stmt| match &stmt.op {
        Op::Sum { from, .. } => Some(program.buffers[from.buffer].element.bytes()),
        _ => None,
    });
    summed.unwrap_or(0)
}
