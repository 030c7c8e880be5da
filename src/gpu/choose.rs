//! Picks, of a kernel's compiled family, the member for a shape: the least predicted time, by
//! waves of tiles.

use super::outbox::Peers;
use super::{COPY_SMS, Gpu, Passive};
use crate::error::Error;
use crate::source::{Member, Source, tiles};
use flux_ir::eval::Launch;
use flux_ir::program::{Engine, Program};
use flux_ir::{Balance, Cache, Consumers, Shape};
use flux_runtime::SmBudget;

impl Gpu {
    /// The member of the family for `shape`, and the launch it makes.
    ///
    /// # Errors
    /// A schedule that asks for more CTAs than a rank may have resident.
    pub(crate) fn choose(
        &self,
        source: &Source,
        shape: Shape,
        world: u32,
    ) -> Result<(usize, Launch), Error> {
        let mut best: Option<(u64, usize, Launch)> = None;
        for (index, member) in source.family.iter().enumerate() {
            let launch = Launch { shape, world, ctas: self.ctas(member, shape)? };
            let product = cycles(member.verified.program(), launch);
            let cycles = self.link().cycles(member, launch, product);
            if best.as_ref().is_none_or(|(least, ..)| cycles < *least) {
                best = Some((cycles, index, launch));
            }
        }
        let (_, index, launch) = best.expect("a loaded kernel has at least one member");
        Ok((index, launch))
    }

    /// CTAs of a rank's grid: its share of the device, and no more than it has tiles.
    fn ctas(&self, member: &Member, shape: Shape) -> Result<u32, Error> {
        let program = member.verified.program();
        let copies = program.agents.values().any(|agent| agent.engine == Engine::CopyEngine);
        // What passive peers on the device send are copies within it.
        let played = matches!(self.passive(), Some(Passive { peers: Peers::Device, .. }));
        let reserve = if copies || played && program.communicates() { COPY_SMS } else { 0 };
        let sms = self.device().properties().sms;
        let share = SmBudget::split(sms, self.ranks(), reserve)?.ctas / program.split_k;
        let tiles = tiles(program, shape);
        let most = match program.balance {
            Balance::Tiles => tiles,
            Balance::StreamK => {
                tiles.saturating_mul(shape.k.div_ceil(program.tile.k)) / LEAST_STEPS
            }
        };
        Ok(member.schedule.ctas.unwrap_or(share).min(most).max(1))
    }
}

/// Predicted cycles: waves times what a tile takes, plus what a tile and a launch cost beyond that,
/// and no less than memory needs. The constants are fitted to measurements on an H200
/// (`docs/notes/gemm.md`).
fn cycles(program: &Program, launch: Launch) -> u64 {
    let (tile, shape) = (program.tile, launch.shape);
    let products = u64::from(program.accumulators().max(1));
    let (all, ctas) = (u64::from(tiles(program, shape)), u64::from(launch.ctas));
    let waves = all.div_ceil(ctas);
    let steps = u64::from(shape.k.div_ceil(tile.k)).div_ceil(program.split_k.into());
    // m64nNk16 occupies the tensor cores N/2 cycles: 2 · N cycles per 64 rows and 64 of k.
    let mma = 2 * u64::from(tile.n * tile.m.div_ceil(64)) * products * u64::from(tile.k) / 64;
    let loaded = (u64::from(tile.m) + u64::from(tile.n) * products) * u64::from(tile.k);
    let empty = u64::from(tile.m - 1 - (shape.m - 1) % tile.m);
    let loads = (loaded * ELEMENT_BYTES / L2_BYTES).max(empty * EMPTY_ROW);
    let work = steps * pace(program, launch, waves, mma).max(loads);
    let busy = match (program.balance, program.consumers) {
        // Few waves leave little to hide the exchange of sums behind.
        (Balance::StreamK, _) if waves < 6 => all * work / ctas + 26_000,
        (Balance::StreamK, _) => all * work / ctas + 22_000,
        (_, Consumers::PingPong) if waves == 1 => work + 9000,
        (_, Consumers::PingPong) => waves * (work + 100) + 7000,
        (_, Consumers::Cooperative | Consumers::Single) => waves * (work + 2400) + 5500,
    };
    busy.max(memory(program, launch, waves) + 6000)
}

/// Cycles of a k-step where operands come in time: narrow tiles, and many waves out of the L2
/// cache alone, fall a little behind the tensor cores.
fn pace(program: &Program, launch: Launch, waves: u64, mma: u64) -> u64 {
    let [m, n, k] = [launch.shape.m, launch.shape.n, launch.shape.k].map(u64::from);
    let in_l2 = (m * k + n * k) * ELEMENT_BYTES <= L2_FITS;
    let percent = match (program.consumers, program.tile.n) {
        (Consumers::Cooperative | Consumers::Single, _) => 100,
        (Consumers::PingPong, ..=112) => 105,
        (Consumers::PingPong, _) if in_l2 && waves >= 5 => 105,
        (Consumers::PingPong, ..=128) if waves > 4 => 103,
        (Consumers::PingPong, ..=128) => 101,
        (Consumers::PingPong, _) => 100,
    };
    mma * percent / 100
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
const ELEMENT_BYTES: u64 = 2;

/// Multiprocessors that the constants are fitted for.
const SMS: u64 = 132;

/// Bytes a multiprocessor loads from the L2 cache in a cycle.
const L2_BYTES: u64 = 80;

/// Cycles that a row beyond the matrix takes in a box of 128 bytes a row.
const EMPTY_ROW: u64 = 8;

/// Bytes that memory gives in a cycle.
const MEMORY_BYTES: u64 = 2600;

/// Bytes of operands that about fit in the L2 cache.
const L2_FITS: u64 = 68_000_000;

/// k-steps for which a CTA is worth starting.
const LEAST_STEPS: u32 = 8;
