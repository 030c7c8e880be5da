//! When a launch is over whose sum every rank gets.

use super::arrival::Pace;
use super::departure::{SUMMED, element_bytes};
use super::link::{CLOCK, ExposedPart, Link};
use flux_ir::AllReduce;
use flux_ir::eval::Launch;
use flux_ir::program::{At, BufferId, BufferKind, Engine, Op, Program, Sym};

/// Microseconds from the last sum of an owner to the end of its copies elsewhere, beyond bytes and the
/// link's latency: a wait, a read, the count that lets the grid end. Assumed.
const SECOND_STEP: f64 = 6.0;

/// The same where bulk copies bring sums, which begin with whole pieces of shared memory.
const BULK_STEP: f64 = 25.0;

/// What is left of the link's latency where no signal follows the data. Assumed.
const UNSIGNALLED: f64 = 0.5;

/// How a Program gives its sum to every rank; nothing where each keeps a shard.
fn algorithm(program: &Program) -> Option<AllReduce> {
    let is_output = |id: BufferId| program.buffers[id].kind == BufferKind::Output;
    let is_brought = |op: &Op| match op {
        Op::Copy { from, to, .. } => from.at != At::Own && is_output(to.buffer),
        _ => false,
    };
    let is_flagged =
        |op: &Op| matches!(op, Op::Sum { from, .. } if program.is_flagged(from.buffer));
    let is_whole = |op: &Op| match op {
        Op::Sum { from, .. } => program.buffers[from.buffer].rows == Sym::M.into(),
        _ => false,
    };
    let has = |is: &dyn Fn(&Op) -> bool| program.statements().any(|stmt| is(&stmt.op));
    if has(&is_brought) {
        return Some(AllReduce::TwoShot);
    }
    if has(&is_flagged) {
        return Some(AllReduce::Flagged);
    }
    has(&is_whole).then_some(AllReduce::OneShot)
}

impl Link {
    /// Microseconds to the end of a launch whose sum every rank gets, its product included, which
    /// alone takes `product` cycles; nothing of other launches.
    pub(super) fn reduction(self, program: &Program, launch: Launch, product: u64) -> Option<f64> {
        let algorithm = algorithm(program)?;
        let pace = Pace::new(program, launch, product);
        let product = product as f64 / CLOCK;
        let Launch { shape, world, .. } = launch;
        if world == 1 {
            return Some(product);
        }
        let all = f64::from(shape.m) * f64::from(shape.n) * f64::from(element_bytes(program));
        let (others, world) = (f64::from(world - 1), f64::from(world));
        let ExposedPart { one_shot, brought, bulk_brought, .. } = self.exposed_part;
        // What leaves while tiles are computed, and what of it is not hidden: the last wave's at least.
        let waves = (pace.waves(shape.m) / pace.tile).max(1.0);
        let put = |bytes: f64| {
            let wire = bytes / self.stores;
            product.max(wire) + wire * one_shot.max(1.0 / waves)
        };
        Some(match algorithm {
            AllReduce::OneShot => put(others * all) + self.latency + world * all / SUMMED,
            // Half of what is stored are flags.
            AllReduce::Flagged => {
                put(2.0 * others * all) + self.latency * UNSIGNALLED + world * all / SUMMED
            }
            AllReduce::TwoShot => {
                let step = others / world * all / self.stores;
                let is_bulk = program.agents.values().any(|agent| agent.engine == Engine::Tma);
                let (exposed, second) = match is_bulk {
                    true => (bulk_brought, BULK_STEP),
                    false => (brought, SECOND_STEP),
                };
                let (steps, hidden) = (2.0 * step, product.max(step));
                hidden + exposed * steps + 2.0 * self.latency + second + all / SUMMED
            }
        })
    }
}
