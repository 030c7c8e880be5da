//! When a launch is over whose sum every rank gets.

use super::arrival::{CLOCK, Link, Pace};
use super::departure::{SUMMED, element_bytes};
use flux_ir::AllReduce;
use flux_ir::eval::Launch;
use flux_ir::program::{At, Op, Program};

/// Microseconds from the last sum of an owner to the end of its copies elsewhere, beyond bytes and the
/// link's latency: a wait, a read, the count that lets the grid end. Assumed.
const SECOND_STEP: f64 = 6.0;

/// What is left of the link's latency where no signal follows the data. Assumed.
const UNSIGNALLED: f64 = 0.5;

/// How a Program gives its sum to every rank; nothing where each keeps a shard.
fn algorithm(program: &Program) -> Option<AllReduce> {
    let is_brought = |op: &Op| matches!(op, Op::Copy { from, .. } if from.at != At::Own);
    let is_flagged =
        |op: &Op| matches!(op, Op::Sum { from, .. } if program.is_flagged(from.buffer));
    let is_whole = |op: &Op| match op {
        Op::Sum { from, .. } => {
            program.buffers[from.buffer].rows == flux_ir::program::Sym::M.into()
        }
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
        // What leaves while tiles are computed, and what of it the last wave leaves behind.
        let put = |bytes: f64| {
            let waves = (pace.waves(shape.m) / pace.tile).max(1.0);
            product.max(bytes / self.stores) + bytes / self.stores / waves
        };
        Some(match algorithm {
            AllReduce::OneShot => put(others * all) + self.latency + world * all / SUMMED,
            AllReduce::Flagged => {
                put(others * all) + self.latency * UNSIGNALLED + world * all / SUMMED
            }
            AllReduce::TwoShot => {
                let step = others / world * all;
                let brought = step / self.stores;
                put(step) + brought + 2.0 * self.latency + SECOND_STEP + all / SUMMED
            }
        })
    }
}
