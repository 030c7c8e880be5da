//! Picks, of a kernel's compiled family, the member for a shape: the least predicted time, by
//! waves of tiles.

use super::outbox::Peers;
use super::{COPY_SMS, Gpu, Passive};
use crate::error::Error;
use crate::source::{Member, Source, tiles};
use flux_ir::Consumers;
use flux_ir::Shape;
use flux_ir::eval::Launch;
use flux_ir::program::{Engine, Program};
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
        let share = SmBudget::split(sms, self.ranks(), reserve)?.ctas;
        Ok(member.schedule.ctas.unwrap_or(share).min(tiles(program, shape)).max(1))
    }
}

/// Predicted cycles: waves times the tensor cores' time for a tile, plus what a tile and a launch
/// cost beyond that. The constants are fitted to measurements on an H200 (`docs/measurements.md`).
fn cycles(program: &Program, launch: Launch) -> u64 {
    let tile = program.tile;
    let waves = u64::from(tiles(program, launch.shape).div_ceil(launch.ctas));
    // m64nNk16 occupies the tensor cores N/2 cycles: 4 · N cycles per 128 rows and 64 of k.
    let steps = u64::from(launch.shape.k.div_ceil(tile.k));
    let per_step = u64::from(4 * tile.n * tile.m.div_ceil(64) / 2 * program.accumulators().max(1));
    let mma = steps * per_step;
    match program.consumers {
        Consumers::Cooperative => waves * (mma + 2400) + 5500,
        Consumers::PingPong if waves == 1 => mma + 9000,
        Consumers::PingPong => waves * (mma + 100) + 7000,
    }
}
