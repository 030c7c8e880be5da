//! When a launch is over whose contributions leave while it runs.

use super::arrival::{CLOCK, Link, Pace};
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
        let shard = shape.m.div_ceil(world);
        let row = f64::from(shape.n) * f64::from(element_bytes(program));
        let bytes = row * f64::from(shape.m - shard.min(shape.m));
        match schedule.transport {
            Some(Transport::CopyEngine) => {
                self.sent(schedule, (shard, world), bytes, pace, product)
            }
            // Stores of all tiles share the link, the first of them when the first tiles are done.
            Some(Transport::Put | Transport::CopyFirst) | None => {
                product.max(bytes / self.stores + self.latency)
            }
        }
    }

    /// Chunks one behind the other, from when the first is computed, and then sums.
    fn sent(
        self,
        schedule: &Schedule,
        (shard, world): (u32, u32),
        bytes: f64,
        pace: Pace,
        product: f64,
    ) -> f64 {
        let shard = shard.max(1);
        let chunk = schedule.chunk_rows.unwrap_or(shard).clamp(1, shard);
        let slice = |cut: Option<(u32, u32)>| {
            cut.map_or(chunk, |(rows, parts)| rows.min(shard).div_ceil(parts.max(1)))
        };
        let (head, tail) = (schedule.head, schedule.tail);
        let first = slice(head.map(|head| (head.rows, head.copies)));
        let last = slice(tail.map(|tail| (tail.rows, tail.slices)));
        let ends = head.map_or(0, |head| head.copies) + tail.map_or(0, |tail| tail.slices);
        let copies = f64::from((world - 1) * shard.div_ceil(chunk) + ends) * (self.gap + WAIT);
        let wire =
            |rows: u32| bytes / f64::from((world - 1) * shard) * f64::from(rows) / self.bytes;
        let begun = self.latency + pace.waves(first);
        // Tiles that hold rows of two owners are put, where one of them is this rank.
        let put = match shard % pace.tile_rows {
            0 => 0,
            _ => (shard.div_ceil(pace.tile_rows) + 1) * pace.tile_rows - shard,
        };
        let sent =
            begun + wire((world - 1) * shard) + copies + wire(put) * self.bytes / self.stores;
        // The last chunk of the peers is computed when the own rows are all that is left.
        let computed = product * f64::from(world - 1) / f64::from(world);
        let arrived = sent.max(computed + self.latency + wire(last));
        // The own rows are added up as they arrive: those of the last slice are left.
        product.max(arrived + pace.waves(last) + self.latency)
    }
}

/// Microseconds that a stream takes to wait, beyond a gap between copies: of both directions of a
/// link, each waits (measured: `docs/notes/overlap.md`).
const WAIT: f64 = 6.0;

/// The ways to send contributions that are weighed for a launch: where `schedule` leaves them open,
/// else itself.
pub(super) fn departures(schedule: &Schedule, launch: Launch) -> Vec<Schedule> {
    let Schedule { transport, chunk_rows, head, tail, order, .. } = schedule;
    let open = chunk_rows.is_none() && head.is_none() && tail.is_none() && order.is_none();
    let mut plans = vec![schedule.clone()];
    if *transport != Some(Transport::CopyEngine) || !open || launch.world == 1 {
        return plans;
    }
    let shard = launch.shape.m.div_ceil(launch.world);
    for rows in [256, 128].into_iter().filter(|&rows| rows < shard) {
        let order = Order::Departure(Departure { rows, shards: 1 });
        let sliced = schedule.clone().tail(shard, shard.div_ceil(rows).min(4)).order(order);
        plans.push(sliced.clone().head(2 * rows, 2));
        plans.push(sliced);
    }
    // A shard that is many waves leaves in several chunks.
    let long: Vec<Schedule> = plans.iter().map(|plan| plan.clone().chunk_rows(1024)).collect();
    if shard > 1024 {
        plans.extend(long);
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

#[cfg(test)]
mod tests {
    use super::super::arrival::{PCIE, Pace};
    use super::*;

    /// 128 × 112 tiles, 110 across, in a bit less than a wave of 132.
    const PACE: Pace = Pace { tile: 27.0, tile_rows: 128, across: 110, ctas: 132 };

    fn end(schedule: &Schedule, pace: Pace, product: f64) -> f64 {
        let bytes = 7.0 * 1024.0 * 12288.0 * 2.0;
        PCIE.sent(schedule, (1024, 8), bytes, pace, product)
    }

    #[test]
    fn small_chunks_at_both_ends_leave_little_to_wait_for() {
        let whole = Schedule::sm_90a().transport(Transport::CopyEngine);
        let wire = 7.0 * 1024.0 * 12288.0 * 2.0 / 50_000.0;
        // A shard is computed in seven waves: before the first byte, and behind the last.
        let (waves, copy) = (7.0 * 27.0, 2.6 + WAIT);
        let close = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 1e-6, "{found}, expected {expected}");
        };
        close(end(&whole, PACE, 1500.0), 10.0 + waves + wire + 7.0 * copy + waves + 10.0);
        let cut = whole.clone().head(256, 2).tail(1024, 8);
        close(end(&cut, PACE, 1500.0), 10.0 + 27.0 + wire + 17.0 * copy + 27.0 + 10.0);
        // Where the product is what takes long, the own rows still have to be computed behind the
        // last arrival.
        let slow = Pace { tile: 144.0, ..PACE };
        close(end(&whole, slow, 8000.0), 7000.0 + 10.0 + wire / 7.0 + 7.0 * 144.0 + 10.0);
        close(end(&cut, slow, 8000.0), 8000.0);
    }

    #[test]
    fn chunks_are_weighed_where_nobody_gave_them() {
        let launch = |m: u32, world: u32| Launch {
            shape: flux_ir::Shape { m, n: 12288, k: 6144 },
            world,
            ctas: 132,
        };
        let sent = Schedule::sm_90a().transport(Transport::CopyEngine);
        assert_eq!(departures(&sent, launch(8192, 8)).len(), 5);
        assert_eq!(departures(&sent, launch(8192, 2)).len(), 10);
        assert_eq!(departures(&sent, launch(512, 8)), std::slice::from_ref(&sent));
        for given in [sent.clone().chunk_rows(5), sent.tail(5, 5), Schedule::sm_90a()] {
            assert_eq!(departures(&given, launch(8192, 8)), [given]);
        }
    }
}
