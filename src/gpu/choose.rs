//! Picks, of a kernel's compiled family, the member for a shape: the least predicted time, by
//! waves of tiles.

use super::arrival::has_own_rows;
use super::link::Link;
use super::outbox::Peers;
use super::site::Shares;
use super::{COPY_SMS, Gpu, Passive};
use crate::error::Error;
use crate::source::{Member, Source, copies_first, tiles};
use flux_ir::abi;
use flux_ir::eval::Launch;
use flux_ir::kernel::{Binary, Unary};
use flux_ir::program::{Engine, Program, ValueOp};
use flux_ir::{Balance, Cache, Consumers, Schedule, Shape};
use flux_runtime::SmBudget;
use std::sync::Arc;

impl Gpu {
    /// The member of the family for `shape`, under the order and the chunks that suit it where
    /// nobody gave them, and the launch it makes.
    ///
    /// # Errors
    /// A schedule that asks for more CTAs than a rank may have resident.
    pub(crate) fn choose(
        &self,
        source: &Source,
        shape: Shape,
        world: u32,
    ) -> Result<(Arc<Member>, Launch), Error> {
        let family = source.family.iter();
        let family: Vec<_> = family.map(|of| (of.verified.program(), &of.schedule)).collect();
        let launch = |program: &Program, schedule: &Schedule| {
            let ctas = self.ctas(program, schedule, shape)?;
            Ok(Launch { shape, world, ctas })
        };
        // What roles say is copied is nobody else's choice.
        let is_given = source.is_given || source.kernel.protocol.is_some();
        let (index, schedule, launch) = least(&family, is_given, self.link(), launch)?;
        Ok((source.variant(&source.family[index], &schedule)?, launch))
    }

    /// CTAs of a rank's grid: its share of the device, the least of all ranks', and no more than it
    /// has tiles.
    fn ctas(&self, program: &Program, schedule: &Schedule, shape: Shape) -> Result<u32, Error> {
        // Copies between ranks of one device, also those that passive peers play, are within it.
        let within = match self.passive() {
            Some(Passive { peers: Peers::Host, .. }) => false,
            Some(_) if copies_first(program, schedule) => false,
            Some(Passive { peers: Peers::Device, .. }) => program.communicates(),
            Some(Passive { peers: Peers::Resident, .. }) | None => {
                program.agents.values().any(|agent| agent.engine == Engine::CopyEngine)
            }
        };
        let mut share = u32::MAX;
        for &Shares { sms, ranks } in &self.inner.shares {
            // Alone on its GPU a rank copies to other GPUs, beside which nothing is kept back.
            let is_alone = ranks == 1 && self.passive().is_none();
            let reserve = if within && !is_alone { COPY_SMS } else { 0 };
            share = share.min(SmBudget::split(sms, ranks, reserve)?.ctas);
        }
        let share = share / program.split_k;
        let tiles = tiles(program, shape);
        let most = match program.balance {
            Balance::Tiles => tiles,
            // Clusters of two, and no more than there are pairs.
            Balance::Pairs => {
                let ctas = schedule.ctas.unwrap_or(share);
                let columns = tiles / shape.m.div_ceil(program.tile.m).max(1);
                let pairs = shape.m.div_ceil(2 * program.tile.m) * columns;
                return Ok(2 * (ctas / 2).min(pairs).max(1));
            }
            Balance::StreamK => {
                tiles.saturating_mul(shape.k.div_ceil(program.tile.k)) / LEAST_STEPS
            }
        };
        Ok(schedule.ctas.unwrap_or(share).min(most).max(1))
    }
}

/// The member of a family, the schedule that its code runs under, and the launch with the least
/// predicted time.
fn least(
    family: &[(&Program, &Schedule)],
    is_given: bool,
    link: Link,
    launch: impl Fn(&Program, &Schedule) -> Result<Launch, Error>,
) -> Result<(usize, Schedule, Launch), Error> {
    let mut best: Option<(u64, usize, Schedule, Launch)> = None;
    for (index, &(program, schedule)) in family.iter().enumerate() {
        let plans = if is_given {
            vec![schedule.clone()]
        } else {
            let launch = launch(program, schedule)?;
            link.plans(program, schedule, launch, cycles(program, launch))
        };
        for plan in plans {
            let launch = launch(program, &plan)?;
            let cycles = link.cycles(program, &plan, launch, cycles(program, launch));
            if best.as_ref().is_none_or(|(least, ..)| cycles < *least) {
                best = Some((cycles, index, plan, launch));
            }
        }
    }
    let (_, index, plan, launch) = best.expect("a loaded kernel has at least one member");
    Ok((index, plan, launch))
}

/// Predicted cycles: waves times what a tile takes, plus what a tile and a launch cost beyond that,
/// and no less than memory needs. The constants are fitted to measurements on an H200
/// (`docs/notes/gemm.md`).
fn cycles(program: &Program, launch: Launch) -> u64 {
    let launch = if has_own_rows(program) { of_own_rows(launch) } else { launch };
    let (tile, shape) = (program.tile, launch.shape);
    let products = u64::from(program.accumulators().max(1));
    let rows = u64::from(shape.m.div_ceil(tile.m));
    let (tiles, ctas) = (u64::from(tiles(program, shape)), u64::from(launch.ctas));
    let all = match program.balance {
        Balance::Tiles | Balance::StreamK => tiles,
        // A last row without another below it keeps a second multiprocessor busy.
        Balance::Pairs => tiles / rows * rows.next_multiple_of(2),
    };
    let waves = all.div_ceil(ctas);
    let steps = u64::from(shape.k.div_ceil(tile.k)).div_ceil(program.split_k.into());
    // m64nNk16 occupies the tensor cores N/2 cycles: 2 · N cycles per 64 rows and 64 of k.
    let mma = 2 * u64::from(tile.n * tile.m.div_ceil(64)) * products * u64::from(tile.k) / 64;
    let loaded = (u64::from(tile.m) + u64::from(tile.n) * products) * u64::from(tile.k);
    let empty = u64::from(tile.m - 1 - (shape.m - 1) % tile.m);
    let loads = (loaded * ELEMENT_BYTES / L2_BYTES).max(empty * EMPTY_ROW);
    let loads = loads.max(split_lines(program, shape) * LINE_TENTHS / 10);
    let epilogue = epilogue(program);
    let work = steps * pace(program, launch, waves, mma).max(loads);
    let busy = match (program.balance, program.consumers) {
        // Few waves leave little to hide the exchange of sums behind.
        (Balance::StreamK, _) if waves < 6 => all * work / ctas + 26_000,
        (Balance::StreamK, _) => all * work / ctas * 1015 / 1000 + 23_500,
        (_, Consumers::PingPong) if waves == 1 => work + 9000 + epilogue,
        (_, Consumers::PingPong) => waves * (work + 100) + 7000 + epilogue,
        (Balance::Pairs, _) => waves * (work + 2400 + epilogue) + 7500,
        (_, Consumers::Cooperative | Consumers::Single) => waves * (work + 2400 + epilogue) + 5500,
    };
    busy.max(memory(program, launch, waves) + 6000)
}

/// The product that a rank computes which has its own rows alone.
fn of_own_rows(launch: Launch) -> Launch {
    let shape = Shape { m: launch.shape.m.div_ceil(launch.world).max(1), ..launch.shape };
    Launch { shape, ..launch }
}

/// Cycles that the epilogue of a tile takes beyond that of a plain store: its instructions, at 128
/// elements a cycle.
fn epilogue(program: &Program) -> u64 {
    let instructions = program.values.values().map(|value| match &value.op {
        ValueOp::Unary(op, _) => match op {
            Unary::Neg | Unary::Relu => 1,
            Unary::Silu | Unary::Tanh => 6,
            Unary::Exp => 8,
            Unary::Gelu | Unary::GeluTanh => 10,
        },
        ValueOp::Binary(Binary::Div, ..) => 8,
        ValueOp::Load(_) | ValueOp::Loaded(_) => 10,
        ValueOp::Acc(_) | ValueOp::Const(_) | ValueOp::Scalar(_) => 0,
        ValueOp::Sum | ValueOp::Cols(_) | ValueOp::Rows(_) => 1,
        ValueOp::Binary(..) | ValueOp::Cast(..) => 1,
    });
    let elements = u64::from(program.tile.m) * u64::from(program.tile.n);
    instructions.sum::<u64>() * elements / 128
}

/// Lines of the cache that a multiprocessor asks for in a k-step, of operands whose rows do not
/// begin with a line each: two a row of 128 bytes, where others need one.
fn split_lines(program: &Program, shape: Shape) -> u64 {
    let lines = abi::products(program).iter().enumerate().map(|(index, product)| {
        let (a, b) = (product.transposed.a, product.transposed.b);
        let left = if index == 0 { program.tile.m } else { 0 };
        let right = program.tile.n / abi::loaders(program);
        // Rows that are copied ahead of the kernel begin at multiples of 16 bytes there.
        let split = |elements: u32| {
            let bytes = u64::from(elements) * ELEMENT_BYTES;
            !bytes.next_multiple_of(16).is_multiple_of(128)
        };
        let rows = |rows: u32, row: u32| if split(row) { 2 * u64::from(rows) } else { 0 };
        rows(left, if a { shape.m } else { shape.k })
            + rows(right, if b { shape.k } else { shape.n })
    });
    lines.sum()
}

/// Cycles of a k-step where operands come in time: many waves out of the L2 cache alone fall a
/// little behind the tensor cores, and narrow tiles, which take more energy, lower the clock.
fn pace(program: &Program, launch: Launch, waves: u64, mma: u64) -> u64 {
    let [m, n, k] = [launch.shape.m, launch.shape.n, launch.shape.k].map(u64::from);
    let in_l2 = (m * k + n * k) * ELEMENT_BYTES <= L2_FITS;
    let permille = match (program.consumers, program.tile.n) {
        (Consumers::Cooperative | Consumers::Single, _) => 1000,
        (Consumers::PingPong, ..=112) => 1050,
        (Consumers::PingPong, _) if in_l2 && waves >= 5 => 1050,
        (Consumers::PingPong, ..=128) => 1045,
        (Consumers::PingPong, ..=144) => 1035,
        (Consumers::PingPong, ..=176) => 1020,
        (Consumers::PingPong, _) => 1005,
    };
    mma * permille / 1000
}

/// Cycles that memory needs for operands and output: more where few multiprocessors ask, where
/// more than one row of tiles reads a right operand that leaves the cache first, or where it does
/// not leave first; and where sums are exchanged at the end.
fn memory(program: &Program, launch: Launch, waves: u64) -> u64 {
    let [m, n, k] = [launch.shape.m, launch.shape.n, launch.shape.k].map(u64::from);
    let products = u64::from(program.accumulators().max(1));
    let cycles = (m * k + n * k * products + m * n) * ELEMENT_BYTES / MEMORY_BYTES;
    let tiles = u64::from(tiles(program, launch.shape)) * u64::from(program.split_k);
    let idle = 1000 - (1000 * tiles / (waves * SMS)).min(1000);
    let again = u64::from(launch.shape.m.div_ceil(program.tile.m)) - 1;
    let percent = match program.cache {
        Cache::Normal => 103,
        Cache::StreamB => 100 + 3 * again.min(10),
    };
    let exchange = 3000 * u64::from(program.split_k - 1);
    cycles * (1000 + 15 * idle / 100) / 1000 * percent / 100 + 1000 * (waves - 1) + exchange
}

/// bf16 and f16; other elements are not multiplied here.
pub(super) const ELEMENT_BYTES: u64 = 2;

/// Multiprocessors that the constants are fitted for.
const SMS: u64 = 132;

/// Bytes a multiprocessor loads from the L2 cache in a cycle.
const L2_BYTES: u64 = 80;

/// Cycles that a row beyond the matrix takes in a box of 128 bytes a row.
const EMPTY_ROW: u64 = 8;

/// Cycles, in tenths, that a line of the cache takes where rows lie across two of them.
const LINE_TENTHS: u64 = 24;

/// Bytes that memory gives in a cycle.
const MEMORY_BYTES: u64 = 2600;

/// Bytes of operands that about fit in the L2 cache.
pub(super) const L2_FITS: u64 = 68_000_000;

/// k-steps for which a CTA is worth starting.
const LEAST_STEPS: u32 = 8;

#[cfg(test)]
pub(super) mod tests {
    use super::super::link::{CLOCK, DEVICE, NVLINK, PASSIVE_DEVICE, PCIE};
    use super::*;
    use flux_ir::lower::lower;
    use flux_ir::{AllReduce, Transport};
    use flux_runtime::topology::Way;

    /// What an all-gather + GEMM of `shape` runs under.
    fn chosen(link: Link, world: u32, shape: [u32; 3]) -> (Schedule, Launch) {
        chosen_of(crate::kernels::ag_gemm::definition(), link, world, shape)
    }

    fn chosen_of(
        definition: &crate::Definition,
        link: Link,
        world: u32,
        [m, n, k]: [u32; 3],
    ) -> (Schedule, Launch) {
        let kernel = definition.kernel().unwrap();
        let schedules = (definition.schedules)();
        let programs: Vec<Program> =
            schedules.iter().map(|schedule| lower(&kernel, schedule).unwrap()).collect();
        let family: Vec<_> = programs.iter().zip(&schedules).collect();
        let shape = Shape { m, n, k };
        let launch = |program: &Program, _: &Schedule| {
            let ctas = tiles(program, shape).min(SMS as u32);
            Ok(Launch { shape, world, ctas })
        };
        let (_, schedule, launch) = least(&family, false, link, launch).unwrap();
        (schedule, launch)
    }

    /// Predicted cycles of each member under the best of its plans.
    pub(in crate::gpu) fn costs(
        definition: &crate::Definition,
        link: Link,
        world: u32,
        [m, n, k]: [u32; 3],
    ) -> Vec<u64> {
        let kernel = definition.kernel().unwrap();
        let shape = Shape { m, n, k };
        let cost = |schedule: &Schedule| {
            let program = lower(&kernel, schedule).unwrap();
            let ctas = tiles(&program, shape).min(SMS as u32);
            let launch = Launch { shape, world, ctas };
            let product = cycles(&program, launch);
            let plans = link.plans(&program, schedule, launch, product);
            let cost = |plan| link.cycles(&program, plan, launch, product);
            plans.iter().map(cost).min().unwrap_or(u64::MAX)
        };
        (definition.schedules)().iter().map(cost).collect()
    }

    #[test]
    fn what_is_long_is_overlapped_and_what_is_short_is_not() {
        for (world, shape, tail) in [
            (8, [8192, 6144, 12288], true),
            (8, [2048, 6144, 12288], true),
            (8, [8192, 24576, 12288], false),
            (2, [4096, 6144, 12288], true),
        ] {
            let (schedule, _) = chosen(PCIE, world, shape);
            assert_ne!(schedule.transport, Some(Transport::CopyFirst), "{shape:?}: {schedule}");
            assert_eq!(schedule.tail.is_some(), tail, "{shape:?}: {schedule}");
        }
        for shape in [[2048, 24576, 12288], [8192, 14336, 8192]] {
            let (schedule, _) = chosen(NVLINK, 2, shape);
            assert_ne!(schedule.transport, Some(Transport::CopyFirst), "{shape:?}: {schedule}");
        }
        for shape in [[16, 6144, 12288], [64, 6144, 12288], [256, 6144, 12288]] {
            let transport = chosen(PCIE, 8, shape).0.transport;
            assert_eq!(transport, None, "{shape:?}: over a slow link even few rows are overlapped");
        }
        for (shape, expected) in [
            ([16, 6144, 12288], Transport::Put),
            ([64, 6144, 12288], Transport::Put),
            ([512, 6144, 12288], Transport::CopyFirst),
            ([8192, 6144, 12288], Transport::CopyFirst),
        ] {
            let transport = chosen(PASSIVE_DEVICE, 8, shape).0.transport;
            assert_eq!(transport, Some(expected), "{shape:?}");
            let transport = chosen(DEVICE, 8, shape).0.transport;
            assert_eq!(transport, Some(Transport::Put), "virtual ranks, {shape:?}");
        }
    }

    #[test]
    fn what_links_gpus_changes_the_schedule() {
        let over = |way| chosen(Link::over(Some(way)), 8, [8192, 6144, 12288]).0;
        let (full, pcie) = (over(Way::NvLink { links: 18 }), over(Way::Pcie(None)));
        assert_eq!(full, chosen(NVLINK, 8, [8192, 6144, 12288]).0);
        assert_ne!(full, pcie, "PCIe hides less");
        assert_eq!(pcie.transport, None, "over PCIe copy engines are faster than stores");
        assert!(pcie.tail.is_some() && full.tail.is_none(), "{pcie}\n{full}");
    }

    #[test]
    fn contributions_are_sent_over_slow_links_and_put_within_a_device() {
        let definition = crate::kernels::gemm_rs::definition();
        for (world, shape, is_cut) in [
            (8, [8192, 12288, 6144], true),
            (8, [8192, 12288, 24576], true),
            (2, [8192, 12288, 6144], true),
            (8, [512, 12288, 6144], false),
        ] {
            let (schedule, _) = chosen_of(definition, PCIE, world, shape);
            assert_eq!(schedule.transport, Some(Transport::CopyEngine), "{shape:?}: {schedule}");
            assert_eq!(schedule.tail.is_some(), is_cut, "{shape:?}: {schedule}");
            // Tiles that hold rows of two owners would be put.
            assert!((shape[0] / world).is_multiple_of(schedule.tile.m), "{shape:?}: {schedule}");
            let (schedule, _) = chosen_of(definition, DEVICE, world, shape);
            assert_eq!(schedule.transport, None, "{shape:?}: {schedule}");
        }
    }

    /// What `flux bench gemm-rs` measured of one schedule under several plans, in microseconds
    /// (`docs/notes/overlap.md`): head, tail, order.
    #[test]
    fn departures_are_predicted_as_they_were_measured() {
        type Plan = (Option<(u32, u32)>, Option<(u32, u32)>, (u32, u32), f64);
        let predicted = |world, [m, n, k]: [u32; 3], index: usize, plans: &[Plan]| {
            let definition = crate::kernels::gemm_rs::definition();
            let (kernel, schedules) = (definition.kernel().unwrap(), (definition.schedules)());
            let cost = |&(head, tail, (rows, shards), measured): &Plan| {
                let order = flux_ir::Order::Departure(flux_ir::Departure { rows, shards });
                let mut plan = schedules[index].clone().order(order);
                plan.head = head.map(|(rows, copies)| flux_ir::Head { rows, copies });
                plan.tail = tail.map(|(rows, slices)| flux_ir::Tail { rows, slices });
                let program = lower(&kernel, &plan).unwrap();
                let ctas = tiles(&program, Shape { m, n, k }).min(SMS as u32);
                let launch = Launch { shape: Shape { m, n, k }, world, ctas };
                let found = PCIE.cycles(&program, &plan, launch, cycles(&program, launch));
                (found as f64 / CLOCK, measured)
            };
            plans.iter().map(cost).collect::<Vec<_>>()
        };
        let (some, none) = (Some, None);
        let slow_links = [
            (
                8,
                [8192, 12288, 6144],
                3,
                &[
                    (some((512, 2)), some((1024, 4)), (256, 1), 3775.0),
                    (some((512, 4)), some((1024, 8)), (256, 1), 3805.0),
                    (none, some((1024, 4)), (256, 1), 3917.0),
                ][..],
            ),
            (
                8,
                [512, 12288, 6144],
                4,
                &[
                    (none, none, (64, 1), 378.0),
                    (none, none, (64, 2), 360.0),
                    (none, none, (64, 5), 388.0),
                ][..],
            ),
            (8, [2048, 12288, 6144], 3, &[(none, none, (256, 1), 1031.0)][..]),
            (2, [2048, 12288, 6144], 3, &[(some((256, 1)), some((1024, 4)), (256, 1), 630.0)][..]),
            (8, [2048, 8192, 3584], 3, &[(none, none, (256, 1), 704.0)][..]),
        ];
        for (world, shape, index, plans) in slow_links {
            for (found, measured) in predicted(world, shape, index, plans) {
                let off = found / measured - 1.0;
                assert!(off.abs() < 0.04, "{shape:?}: {found:.0} µs, measured {measured}");
            }
        }
        // Where products take longer the clock is lower than it is taken to be: the order holds.
        let slow_product: [Plan; 4] = [
            (none, none, (256, 2), 1696.0),
            (none, none, (256, 1), 1743.0),
            (none, none, (256, 3), 1746.0),
            (none, none, (256, 5), 2105.0),
        ];
        let found = predicted(8, [2048, 12288, 24576], 2, &slow_product);
        assert!(found.is_sorted_by(|(a, _), (b, _)| a < b), "{found:?}");
    }

    #[test]
    fn few_rows_are_reduced_in_one_shot_and_many_in_two() {
        for definition in [
            crate::kernels::gemm_ar::definition(),
            crate::kernels::gemm_ar_bias_residual::definition(),
        ] {
            for world in [2, 4, 8] {
                for (rows, expected) in [
                    (1, AllReduce::Flagged),
                    (16, AllReduce::Flagged),
                    (4096, AllReduce::TwoShot),
                    (8192, AllReduce::TwoShot),
                ] {
                    let (schedule, _) = chosen_of(definition, NVLINK, world, [rows, 8192, 4096]);
                    let found = schedule.all_reduce;
                    assert!(
                        world == 2 || found == Some(expected),
                        "{rows} rows, {world}: {schedule}"
                    );
                }
            }
        }
    }

    #[test]
    #[ignore = "prints what the rows of docs/performance.md run under"]
    fn scatters_are_printed() {
        let definition = crate::kernels::gemm_rs::definition();
        for (world, n, k) in [
            (8, 12288, 6144),
            (8, 12288, 24576),
            (8, 8192, 3584),
            (2, 12288, 6144),
            (2, 12288, 24576),
        ] {
            for m in [512, 2048, 4096, 8192] {
                let schedule = chosen_of(definition, PCIE, world, [m, n, k]).0;
                println!("{world}: {m} x {n} x {k}: {schedule}");
            }
        }
    }

    #[test]
    #[ignore = "prints what the rows of docs/performance.md run under"]
    fn rows_are_printed() {
        for (world, n, k) in [
            (8, 6144, 12288),
            (8, 24576, 12288),
            (8, 3584, 8192),
            (2, 6144, 12288),
            (2, 24576, 12288),
        ] {
            for m in [16, 64, 256, 512, 2048, 4096, 8192] {
                println!("{world}: {m} x {n} x {k}: {}", chosen(PCIE, world, [m, n, k]).0);
            }
        }
        for (n, k) in [(6144, 12288), (24576, 12288), (3584, 8192)] {
            for m in [16, 64, 256, 512, 2048, 4096, 8192] {
                for (peers, link) in [("virtual", DEVICE), ("passive", PASSIVE_DEVICE)] {
                    println!("{peers}: {m} x {n} x {k}: {}", chosen(link, 8, [m, n, k]).0);
                }
            }
        }
        for shape in [[512, 24576, 12288], [2048, 24576, 12288], [8192, 14336, 8192]] {
            println!("NVLink, 2: {shape:?}: {}", chosen(NVLINK, 2, shape).0);
            let scatter = crate::kernels::gemm_rs::definition();
            println!("scattered: {shape:?}: {}", chosen_of(scatter, NVLINK, 2, shape).0);
        }
    }
}
