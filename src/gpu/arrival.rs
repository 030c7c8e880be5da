//! When a launch is over whose operands arrive while it runs: chunk by chunk, each multiplied when
//! it is there and what came before it is through.

use super::choose::ELEMENT_BYTES;
use super::departure::departures;
use super::feed::SMALL;
use super::link::{CLOCK, Link};
use crate::source::copies_first;
use flux_ir::eval::{Launch, RankView};
use flux_ir::program::{BufferId, BufferKind, Engine, Op, Program, Stmt, Sym};
use flux_ir::{AllGather, Arrival, Cache, Order, Schedule, Tail, Transport};

/// Bytes a microsecond that the copy warps of a CTA push: a piece of a row at a time.
const PUSHES: f64 = 6000.0;

/// Microseconds from the begin of a launch to the first piece, and from the last one to its signal.
const PUSH_US: f64 = 5.0;

/// Microseconds that a further wave of tiles takes beside copy warps where all wait for what is pushed.
const BESIDE_WAVE: f64 = 1.5;

/// As `PUSH_US`, of bulk copies, which begin with whole pieces of shared memory.
pub(super) const BULK_US: f64 = 20.0;

/// Bytes a microsecond of links that are faster than PCIe.
const FAST: f64 = 75_000.0;

/// Columns of a slice, in bytes, that copies move as fast as whole rows.
const SLICE_BYTES: u64 = 3072;

impl Link {
    /// Cycles of a launch whose product alone takes `product`.
    pub(super) fn cycles(
        self,
        program: &Program,
        schedule: &Schedule,
        launch: Launch,
        product: u64,
    ) -> u64 {
        if let Some(end) = self.reduction(program, launch, product) {
            return (end * CLOCK) as u64;
        }
        if program.scatters() {
            return (self.departure(program, schedule, launch, product) * CLOCK) as u64;
        }
        if launch.world == 1 {
            return product;
        }
        if has_own_rows(program) {
            return product + (self.exchanged(program, launch, product) * CLOCK) as u64;
        }
        let row_bytes = row_bytes(program, launch);
        if row_bytes == 0 {
            return product;
        }
        let all = arriving(program, launch);
        if copies_first(program, schedule) {
            let rows = all - all.div_ceil(launch.world);
            let sent = f64::from(rows) * row_bytes as f64 / self.alone;
            let copies = f64::from(launch.world) * self.gap;
            // To the first byte, to the last word, to the kernel's start.
            return product + ((3.0 * self.latency + copies + sent) * CLOCK) as u64;
        }
        if sums_what_arrives(program) {
            return (self.summed(program, schedule, launch, product) * CLOCK) as u64;
        }
        if schedule.transport.is_some_and(Transport::is_in_kernel) {
            let pushed = self.pushed(schedule, all, launch, row_bytes);
            // The last shard's tiles are left, all of them where it lies in every tile.
            let shard = launch.shape.m.div_ceil(launch.world);
            let last = Pace::new(program, launch, product).waves(shard);
            let beside = product as f64 / CLOCK * self.beside_in_kernel(schedule);
            let mut end = (pushed + last).max(beside);
            if all.div_ceil(launch.world) < program.tile.m || self.streams_once(program, launch) {
                // Rows of others lie in every tile, or the tiles that have them are among the first.
                let pace = Pace::new(program, launch, product);
                let behind = BESIDE_WAVE * (pace.waves(all) / pace.tile - 1.0);
                end = end.max(pushed + beside + behind);
            }
            let begin = if schedule.transport == Some(Transport::Tma) { BULK_US } else { PUSH_US };
            return ((end + begin) * CLOCK) as u64;
        }
        let row = row_bytes as f64 / self.bytes;
        let pace = Pace::new(program, launch, product);
        let mut end = self.end(schedule, launch, row, pace);
        let shard = all.div_ceil(launch.world);
        if shard < program.tile.m {
            // Rows of others lie in every tile.
            let sent = f64::from(all - shard) * row;
            end = end.max(4.0 * self.latency + self.gap + sent + product as f64 / CLOCK);
        }
        let end = (end * CLOCK) as u64;
        let beside = (product as f64 * self.beside) as u64;
        beside.max(end + (self.exposed * CLOCK) as u64)
    }

    /// The ways to cut and to walk what arrives that are weighed for a launch whose product alone
    /// takes `product` cycles: where `schedule` leaves its chunks open, else itself.
    pub(super) fn plans(
        self,
        program: &Program,
        schedule: &Schedule,
        launch: Launch,
        product: u64,
    ) -> Vec<Schedule> {
        if program.scatters() {
            // Whoever sums every tile comes to them in the order of all ranks, whatever arrives when.
            return if sends(program) {
                departures(schedule, launch)
            } else {
                vec![schedule.clone()]
            };
        }
        let Launch { shape, world, .. } = launch;
        let row_bytes = row_bytes(program, launch);
        let pushes = schedule.all_gather.unwrap_or_default() == AllGather::Push;
        if row_bytes == 0 || world == 1 || schedule.chunk_rows.is_some() || !pushes {
            return vec![schedule.clone()];
        }
        if sums_what_arrives(program) {
            return summed_plans(schedule, shape.k.div_ceil(world).max(1));
        }
        if schedule.transport.is_some_and(Transport::is_in_kernel) {
            let pushed = self.pushed(schedule, shape.m, launch, row_bytes);
            let pace = (90.0 * product as f64 / CLOCK / pushed.max(1e-3)) as u32;
            let pace = if pace > 100 { pace } else { 0 };
            let mut plan = schedule.clone();
            plan.order.get_or_insert(match self.streams_once(program, launch) {
                true => Order::Grouped(16),
                false => Order::Arrival(Arrival { chunk: 0, tail: 0, pace }),
            });
            return vec![plan];
        }
        let shard = shape.m.div_ceil(world).max(1);
        let sent = (shape.m - shard) as f64 * row_bytes as f64 / self.bytes;
        let pace = (90.0 * product as f64 / CLOCK / sent.max(1e-3)) as u32;
        let slices = (u64::from(shape.k) * ELEMENT_BYTES / SLICE_BYTES).clamp(1, 4) as u32;
        let tails: Vec<Option<Tail>> = match schedule.tail {
            None => vec![None],
            // A tail pays where the link is the slower one; each group streams the other operand.
            Some(_) if pace > 100 => Vec::new(),
            Some(_) => [512, 384, 256, 128]
                .into_iter()
                .filter(|&rows| rows == 128 || rows <= shard)
                .map(|rows| Tail { rows: rows.min(shard), slices })
                // Smaller ones are told of together, which nobody follows slice by slice.
                .filter(|tail| u64::from(tail.rows) * row_bytes >= u64::from(slices) * SMALL)
                .map(Some)
                .collect(),
        };
        let mut plans = Vec::new();
        // Nobody follows the slices of copies that come first.
        if schedule.tail.is_none() {
            let mut first = schedule.clone().transport(Transport::CopyFirst);
            first.order.get_or_insert(Order::Grouped(16));
            plans.push(first);
        }
        if self.streams_once(program, launch) {
            return plans;
        }
        for chunk in [0, 2048, 1024, 512].into_iter().filter(|&rows| rows < shard) {
            for &tail in &tails {
                let mut plan = schedule.clone();
                (plan.chunk_rows, plan.tail) = ((chunk > 0).then_some(chunk), tail);
                if plan.order.is_none() {
                    let rows = tail.map_or(0, |tail| tail.rows);
                    // Slower products find nothing there in advance.
                    let pace = if pace > 100 { pace } else { 0 };
                    plan = plan.order(Order::Arrival(Arrival { chunk, tail: rows, pace }));
                }
                plans.push(plan);
            }
        }
        plans
    }

    /// Microseconds that a launch of one's own rows, which come from columns or go to columns of all ranks,
    /// takes beyond its product.
    fn exchanged(self, program: &Program, launch: Launch, product: u64) -> f64 {
        let copies = program.statements().find_map(|stmt| match &stmt.op {
            Op::Copy { to, .. } => Some(to.buffer),
            _ => None,
        });
        let Some(buffer) = copies else { return 0.0 };
        if program.agents.values().any(|agent| agent.engine == Engine::CopyEngine) {
            return self.exposed + 2.0 * self.latency;
        }
        let view = RankView::definitions(program, launch, 0);
        let bytes = u64::from(program.buffers[buffer].element.bytes()) * view.extent(buffer).cols;
        let rows = f64::from(launch.shape.m.div_ceil(launch.world));
        let pushed = rows * bytes as f64 / self.pushes.min(PUSHES * f64::from(launch.ctas));
        PUSH_US + pushed + product as f64 / CLOCK * (self.beside_pushes - 1.0)
    }

    /// Microseconds of a launch that sums over the rows that arrive: its first wave of tiles follows them
    /// chunk by chunk, the others find them there.
    fn summed(self, program: &Program, schedule: &Schedule, launch: Launch, product: u64) -> f64 {
        let (rows, row_bytes) = (launch.shape.k, row_bytes(program, launch));
        let shard = rows.div_ceil(launch.world).max(1);
        let chunk = schedule.chunk_rows.unwrap_or(shard).clamp(1, shard);
        let copies = f64::from((rows - shard.min(rows)).div_ceil(chunk));
        let sent = match schedule.transport {
            Some(Transport::Put | Transport::Tma) => {
                PUSH_US + self.pushed(schedule, rows, launch, row_bytes)
            }
            _ => {
                let sent = f64::from(rows - shard.min(rows)) * row_bytes as f64 / self.bytes;
                self.exposed + self.latency + copies * self.gap + sent
            }
        };
        let wave = Pace::new(program, launch, product).tile;
        let behind = wave * f64::from(chunk) / f64::from(rows.max(1));
        let product = product as f64 / CLOCK;
        let beside = match schedule.transport.is_some_and(Transport::is_in_kernel) {
            true => product * self.beside_summed,
            false => product,
        };
        beside.max(sent + behind + (product - wave).max(0.0))
    }

    /// Whether rows of tiles that memory bounds share the other operand side by side: in the order in
    /// which rows arrive they stream it once for each. A slow link leaves the time to do that twice.
    fn streams_once(self, program: &Program, launch: Launch) -> bool {
        let rows = if self.bytes < FAST { 2 } else { 1 };
        program.cache == Cache::StreamB && launch.shape.m > rows * program.tile.m
    }

    /// What the product takes beside copies of its own kernel, in parts of what it takes alone.
    fn beside_in_kernel(self, schedule: &Schedule) -> f64 {
        match (schedule.transport, schedule.all_gather) {
            (Some(Transport::Tma), Some(AllGather::Pull)) => self.beside_pulls,
            (Some(Transport::Tma), _) => self.beside_bulk,
            _ => self.beside_pushes,
        }
    }

    /// Microseconds that a kernel takes to push a shard to all peers.
    fn pushed(self, schedule: &Schedule, rows: u32, launch: Launch, row_bytes: u64) -> f64 {
        let Launch { world, ctas, .. } = launch;
        let rows = rows - rows.div_ceil(world).min(rows);
        let rate = match schedule.transport {
            Some(Transport::Tma) => self.bulk,
            _ => self.pushes,
        };
        let rate = rate.min(PUSHES * f64::from(ctas));
        f64::from(rows) * row_bytes as f64 / rate
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
pub(super) struct Pace {
    pub(super) tile: f64,
    pub(super) tile_rows: u32,
    /// Tiles of a tile row.
    pub(super) across: u32,
    pub(super) ctas: u32,
}

impl Pace {
    /// That of a launch whose product alone takes `product` cycles.
    pub(super) fn new(program: &Program, launch: Launch, product: u64) -> Pace {
        let (tile, products) = (program.tile, u64::from(program.accumulators().max(1)));
        // As in `choose`: m64nNk16 takes N/2 cycles.
        let step = 2 * u64::from(tile.n * tile.m.div_ceil(64)) * products;
        // Out of the L2 cache come 80 bytes a cycle, 128 for each row of a k-step's operands.
        let rows = u64::from(tile.m) + u64::from(tile.n) * products;
        let cycles = u64::from(launch.shape.k.div_ceil(64)) * step.max(rows * 128 * 10 / 8 / 80);
        // Where memory bounds it, in even waves.
        let across = launch.shape.n.div_ceil(tile.n);
        let tiles = u64::from(launch.shape.m.div_ceil(tile.m)) * u64::from(across);
        let waves = tiles.div_ceil(launch.ctas.into()).max(1);
        Pace {
            tile: cycles.max(product * 8 / 10 / waves) as f64 / CLOCK,
            tile_rows: tile.m,
            across,
            ctas: launch.ctas,
        }
    }

    fn tiles(self, rows: u32) -> u64 {
        u64::from(rows.div_ceil(self.tile_rows)) * u64::from(self.across)
    }

    /// Rows among others: of a chunk below a tile's rows, its part of the tile.
    fn of(self, rows: u32) -> f64 {
        let part = f64::from(rows.min(self.tile_rows)) / f64::from(self.tile_rows);
        self.tile * part * self.tiles(rows) as f64 / f64::from(self.ctas)
    }

    /// Rows alone, in whole waves.
    pub(super) fn waves(self, rows: u32) -> f64 {
        self.tile * self.tiles(rows).div_ceil(self.ctas.into()) as f64
    }
}

/// Whether a rank computes its own rows alone, as those of exchanges do.
pub(super) fn has_own_rows(program: &Program) -> bool {
    program.tables.values().any(|table| !table.tiled.is_up_to(&Sym::M.into()))
}

/// Whether products sum over the rows that arrive.
fn sums_what_arrives(program: &Program) -> bool {
    let mut copied = program.statements().filter_map(|stmt| match &stmt.op {
        Op::Copy { to, .. } => Some(&program.buffers[to.buffer]),
        _ => None,
    });
    copied.any(|buffer| buffer.rows == Sym::K.into())
}

/// Whether copies bring contributions to who sums them.
fn sends(program: &Program) -> bool {
    let sums = |copied| {
        let sums = |stmt: &Stmt| matches!(&stmt.op, Op::Sum { from, .. } if from.buffer == copied);
        program.statements().any(sums)
    };
    program.statements().any(|stmt| matches!(&stmt.op, Op::Copy { to, .. } if sums(to.buffer)))
}

/// Rows of all ranks that arrive.
fn arriving(program: &Program, launch: Launch) -> u32 {
    if sums_what_arrives(program) { launch.shape.k } else { launch.shape.m }
}

/// The ways to cut what is summed over that are weighed: every tile reads all of it, so their order is
/// that of a product alone.
fn summed_plans(schedule: &Schedule, shard: u32) -> Vec<Schedule> {
    if schedule.transport.is_some_and(Transport::is_in_kernel) {
        return vec![schedule.clone()];
    }
    let chunks = [0, 2048, 1024, 512].into_iter().filter(|&rows| rows < shard);
    let cut = |rows: u32| Schedule { chunk_rows: (rows > 0).then_some(rows), ..schedule.clone() };
    let first = schedule.clone().transport(Transport::CopyFirst);
    chunks.map(cut).chain([first]).collect()
}

/// Bytes that arrive with each row, over all gathered tensors. Of exchanged ones there is no plan.
fn row_bytes(program: &Program, launch: Launch) -> u64 {
    if has_own_rows(program) {
        return 0;
    }
    let mut buffers: Vec<BufferId> = program
        .statements()
        .filter_map(|stmt| match &stmt.op {
            Op::Copy { to, .. } => Some(to.buffer),
            _ => None,
        })
        // What copies leave in an output has arrived before.
        .filter(|&buffer| program.buffers[buffer].kind == BufferKind::Symmetric)
        .collect();
    buffers.sort_unstable();
    buffers.dedup();
    let view = RankView::definitions(program, launch, 0);
    let row = |&buffer: &BufferId| {
        u64::from(program.buffers[buffer].element.bytes()) * view.extent(buffer).cols
    };
    buffers.iter().map(row).sum()
}

#[cfg(test)]
mod tests {
    use super::super::link::{NVLINK, PCIE};
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
    fn ranks_of_one_gpu_share_its_link() {
        let shared = NVLINK.shared(2);
        assert_eq!((2.0 * shared.bytes, 2.0 * shared.stores), (NVLINK.bytes, NVLINK.stores));
        assert_eq!(NVLINK.shared(1), NVLINK);
        assert_eq!((shared.gap, shared.latency), (NVLINK.gap, NVLINK.latency));
    }

    #[test]
    fn a_slow_product_hides_the_link() {
        let slow = Pace { tile: 840.0, ..PACE };
        // Chunks of 640 and 384 rows are whole tile rows: nothing is done twice.
        let sliced = Schedule::sm_90a().chunk_rows(640).tail(384, 4);
        ends(&sliced, slow, 10.0 + 64.0 * 35.0 * 840.0 / 128.0);
    }

    #[test]
    fn what_every_rank_sums_is_walked_as_it_was_lowered() {
        let text = include_str!("../../flux-ir/tests/filetests/kernel/low_latency.flux");
        let kernel: flux_ir::Kernel = text.parse().unwrap();
        for transport in [None, Some(Transport::CopyEngine)] {
            let schedule = Schedule { transport, ..Schedule::sm_90a() };
            let program = flux_ir::lower::lower(&kernel, &schedule).unwrap();
            assert_eq!(PCIE.plans(&program, &schedule, LAUNCH, 1), [schedule]);
        }
    }

    #[test]
    fn rows_that_are_summed_over_come_in_chunks_that_the_first_wave_follows() {
        let kernel = crate::kernels::gemm_ag_tn::definition().kernel().unwrap();
        let schedule = Schedule::sm_90a();
        let program = flux_ir::lower::lower(&kernel, &schedule).unwrap();
        // A shard of K has 1536 rows.
        let plans = PCIE.plans(&program, &schedule, LAUNCH, 1);
        let chunks: Vec<_> = plans.iter().map(|plan| plan.chunk_rows).collect();
        assert_eq!(chunks, [None, Some(1024), Some(512), None]);
        assert_eq!(plans[3].transport, Some(Transport::CopyFirst));
        // 12 waves; 10752 rows of 12 KiB take 2.6 ms.
        let ends = |us: f64| {
            let product = (us * CLOCK) as u64;
            let ends = plans.iter().map(|plan| PCIE.cycles(&program, plan, LAUNCH, product));
            let ends: Vec<u64> = ends.collect();
            assert!(ends.iter().all(|&end| end > product), "the first wave waits");
            assert!(ends[0] < ends[3], "what overlaps nothing");
            ends
        };
        let slow = ends(40_000.0);
        assert!(slow[2] < slow[1] && slow[1] < slow[0], "less is left of a long wave");
        let fast = ends(4000.0);
        assert!(fast[0] < fast[2], "copies take longer than what is left of a short one");
    }
}
