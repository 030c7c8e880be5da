//! When a launch is over whose contributions leave while it runs.

use super::arrival::{BULK_US, Pace};
use super::choose::{ELEMENT_BYTES, L2_FITS};
use super::link::{CLOCK, ExposedPart, Link};
use flux_ir::eval::Launch;
use flux_ir::program::{Op, Program};
use flux_ir::{Departure, Order, ReduceScatter, Schedule, Transport};

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
                let product = product * self.beside_sends;
                let walk = Walk { shard, world, row, pass, pace, product };
                walk.end(self, schedule)
            }
            // Stores or loads of all tiles share the link.
            Some(Transport::Put | Transport::Tma | Transport::CopyFirst) | None => {
                let wire = row * f64::from(shape.m - shard.min(shape.m)) / self.stores;
                let ExposedPart { stores, pulls, bulk_pulls, .. } = self.exposed_part;
                let (exposed, begin) = match (schedule.reduce_scatter, schedule.transport) {
                    (Some(ReduceScatter::Pull), Some(Transport::Tma)) => (bulk_pulls, BULK_US),
                    (Some(ReduceScatter::Pull), _) => (pulls, self.latency),
                    // The more waves, the more of them end tiles at one time.
                    _ => {
                        let waves = pace.waves(shape.m) / pace.tile;
                        (stores.min(1.2 + 0.1 * waves), self.latency)
                    }
                };
                product.max(wire) + exposed * wire + begin
            }
        }
    }
}

/// Bytes a microsecond at which one pass over some rows streams the other operand.
const STREAMED: f64 = 3_600_000.0;

/// Bytes a microsecond at which contributions are added up.
pub(super) const SUMMED: f64 = 2_400_000.0;

/// Microseconds that each copy takes beyond its bytes, both directions of the link busy (7 copies of
/// 1.5, 6 and 24 MiB: `docs/notes/overlap.md`). What a stream's wait takes is hidden behind the
/// copy of the other one.
const COPY: f64 = 6.5;

/// Microseconds from the launch to the first tile, and from a chunk's last tile to its first byte.
const BEGIN: f64 = 8.0;
const SIGNAL: f64 = 18.0;

/// Microseconds from a chunk's last byte to the first load of its sum.
const FLAG: f64 = 12.0;

/// Microseconds from the last store to the end of the launch.
const END: f64 = 5.0;

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
        let mut wire = 0.0f64;
        let mut arrivals = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            wire = wire.max(BEGIN + chunk.ready + SIGNAL);
            wire += COPY + f64::from(chunk.rows) * self.row / link.bytes;
            arrivals.push((chunk.rows, wire));
        }
        let mut end = BEGIN + computed.max(self.product);
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
            end = end.max(arrived + FLAG + left);
        }
        // Tiles that hold rows of two owners are put, where one of them is this rank.
        let put = match self.shard % self.pace.tile_rows {
            0 => 0,
            _ => (self.shard.div_ceil(self.pace.tile_rows) + 1) * self.pace.tile_rows - self.shard,
        };
        end + END + f64::from(put) * self.row / link.stores
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
        let (mut rows_done, mut flow) = (0u32, 0.0f64);
        // When a group of so many more rows is through. Where products and the other operand's stream
        // take about as long, neither hides all of the other.
        let mut compute = |rows: u32| {
            rows_done += rows;
            let waves = |rows: u32| {
                let tiles = f64::from(rows) / f64::from(tile_rows) * f64::from(self.pace.across);
                tiles / f64::from(self.pace.ctas)
            };
            let products = waves(rows) * self.pace.tile;
            flow += (products.powi(4) + self.pass.powi(4)).sqrt().sqrt();
            flow.max(waves(rows_done).ceil() * self.pace.tile)
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
    // Where shards are long, larger groups stream the other operand less often.
    let most = [GROUP, 2 * GROUP, 4 * GROUP].into_iter();
    let groups: Vec<u32> = most.filter(|&rows| rows == GROUP || 4 * rows <= shard).collect();
    let between = launch.world.saturating_sub(3).max(1);
    let mut plans = Vec::new();
    let joins = |shards: u32| shards == 1 || (shards <= between && shards * shard <= JOINED);
    let joined = (1..=3).filter(|&shards| joins(shards));
    let walks = joined.flat_map(|shards| groups.iter().map(move |&rows| (rows, shards)));
    for (rows, shards) in walks {
        let rows = rows.min(shard).max(tile.m);
        let whole = schedule.clone().order(Order::Departure(Departure { rows, shards }));
        if rows < shard {
            // Whole groups leave alone at both ends.
            let sliced = whole.clone().tail(shard, shard.div_ceil(rows).min(4));
            plans.push(sliced.clone().head(2 * rows, 2));
            plans.push(sliced.clone().head(rows, 1));
            // A shard that is many waves leaves in several chunks.
            if shard > 1024 {
                let tail = whole.clone().tail(1024, 4);
                plans.push(tail.head(2 * rows, 2).chunk_rows(1024));
            }
        }
        plans.push(whole);
    }
    plans
}

/// Rows of shards that are walked together, at most: more make the other operand's stream no shorter
/// than their products.
const JOINED: u32 = 1024;

/// Rows of a group at both ends, at least: of fewer, each streams the other operand anew.
const GROUP: u32 = 256;

/// Bytes of an element of what is summed.
pub(super) fn element_bytes(program: &Program) -> u32 {
    let summed = program.statements().find_map(|stmt| match &stmt.op {
        Op::Sum { from, .. } => Some(program.buffers[from.buffer].element.bytes()),
        _ => None,
    });
    summed.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::arrival::Pace;
    use super::super::link::PCIE;
    use super::*;

    /// 128 × 112 tiles, 110 across, in a bit less than a wave of 132.
    const WALK: Walk = Walk {
        shard: 1024,
        world: 8,
        row: 12288.0 * 2.0,
        pass: 0.0,
        pace: Pace { tile: 27.0, tile_rows: 128, across: 110, ctas: 132 },
        product: 1500.0,
    };

    fn sent() -> Schedule {
        Schedule::sm_90a().transport(Transport::CopyEngine)
    }

    fn rows(chunks: &[Chunk]) -> Vec<u32> {
        chunks.iter().map(|chunk| chunk.rows).collect()
    }

    #[test]
    fn chunks_are_ready_with_their_groups() {
        let order = |rows, shards| sent().order(Order::Departure(Departure { rows, shards }));
        let (chunks, own) = WALK.chunks(&order(256, 1));
        assert_eq!(rows(&chunks), [1024; 7]);
        // 880 tiles of a shard, one wave for each 132 of them begun.
        let waves = |shards: f64| (shards * 880.0 / 132.0).ceil() * 27.0;
        assert_eq!((chunks[0].ready, chunks[6].ready, own), (waves(1.0), waves(7.0), waves(8.0)));
        let (chunks, _) = WALK.chunks(&order(256, 1).head(512, 2).tail(1024, 4));
        assert_eq!(rows(&chunks), [&[256, 256, 512][..], &[1024; 5], &[256; 4]].concat());
        assert_eq!(chunks[0].ready, waves(0.25));
        assert_eq!(chunks[8].ready, waves(6.25));
        // Shards that are walked together are ready together.
        let (chunks, _) = WALK.chunks(&order(1024, 2));
        assert_eq!([chunks[1].ready, chunks[2].ready], [waves(3.0); 2]);
        assert_eq!(chunks[5].ready, waves(6.0));
        // What is streamed anew for each group is the least that one takes.
        let narrow = Walk { pass: 300.0, ..WALK };
        let ready = |rows| narrow.chunks(&order(rows, 1)).0[0].ready;
        assert!((1200.0..1201.0).contains(&ready(256)), "{}", ready(256));
        // A shard's products take 180 µs.
        assert!((300.0..310.0).contains(&ready(1024)), "{}", ready(1024));
    }

    #[test]
    fn the_link_is_busy_from_the_first_chunk_to_the_last() {
        let order = Order::Departure(Departure { rows: 256, shards: 1 });
        let plan = sent().order(order).head(512, 2).tail(1024, 4);
        let wire = 7.0 * 1024.0 * WALK.row / PCIE.bytes;
        // Two waves to the first chunk, twelve copies, the sum of the last 256 rows.
        let sum = 256.0 * WALK.row * 9.0 / SUMMED;
        let begun = BEGIN + 2.0 * 27.0 + SIGNAL;
        let expected = begun + 12.0 * COPY + wire + FLAG + sum + END;
        let found = WALK.end(PCIE, &plan);
        assert!((found - expected).abs() < 1e-6, "{found}, expected {expected}");
        assert!(WALK.end(PCIE, &sent()) > expected + 60.0, "whole shards at both ends");
        let slow = Walk { product: 8000.0, ..WALK };
        assert_eq!(slow.end(PCIE, &plan), BEGIN + 8000.0 + END);
    }

    #[test]
    fn chunks_are_weighed_where_nobody_gave_them() {
        let launch = |m: u32, world: u32| Launch {
            shape: flux_ir::Shape { m, n: 12288, k: 6144 },
            world,
            ctas: 132,
        };
        let of = |m, world| departures(&sent(), launch(m, world));
        assert!(of(8192, 8).iter().any(|plan| plan.head.is_some() && plan.tail.is_some()));
        assert!(of(512, 8).iter().all(|plan| plan.tail.is_none() && plan.order.is_some()));
        assert!(of(8192, 2).iter().any(|plan| plan.chunk_rows == Some(1024)));
        for given in [sent().chunk_rows(5), sent().tail(5, 5), Schedule::sm_90a()] {
            assert_eq!(departures(&given, launch(8192, 8)), [given]);
        }
    }
}
