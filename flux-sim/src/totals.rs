//! What signals are at after any number of launches.

use flux_ir::arena::Handle;
use flux_ir::eval::{Action, AgentRun, Change, Launch, RankView};
use flux_ir::order::OrderError;
use flux_ir::program::Program;

/// The signals of all ranks once every rank has completed so many launches.
///
/// Launches are alike but for the parity of their number, as the checker demands (rule
/// `counter-wrap`): what one adds to a signal, every one of its parity adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Totals {
    /// By rank, then by array, then by slot.
    words: Vec<Vec<Vec<u32>>>,
}

impl Totals {
    /// Those of `program` after `launches` launches: 0 means none, and 2³² launches as well.
    ///
    /// # Errors
    /// A tile order that is no permutation.
    pub fn after(program: &Program, launch: Launch, launches: u32) -> Result<Totals, OrderError> {
        let view = |rank| match launches {
            0 => Ok(RankView::definitions(program, launch, rank)),
            _ => RankView::new(program, launch, rank),
        };
        let views = (0..launch.world).map(view).collect::<Result<Vec<_>, _>>()?;
        let arrays = |view: &RankView<'_>| {
            let signals = program.signals.handles();
            signals.map(|id| vec![0; view.signal_len(id) as usize]).collect()
        };
        let mut totals = Totals { words: views.iter().map(arrays).collect() };
        if launches == 0 {
            return Ok(totals);
        }
        // The launch before the last has the other parity.
        let of_parity = [launches / 2 + launches % 2, launches / 2];
        for (back, times) in of_parity.into_iter().enumerate().rev() {
            let epoch = launches.wrapping_sub(back as u32);
            if times > 0 {
                totals.add(&views, epoch, times);
            }
        }
        Ok(totals)
    }

    pub(crate) fn of_words(words: Vec<Vec<Vec<u32>>>) -> Totals {
        Totals { words }
    }

    /// The words of an array of `rank`.
    pub fn of(&self, rank: u32, signal: usize) -> &[u32] {
        &self.words[rank as usize][signal]
    }

    /// Adds what launch `epoch` does, so many times.
    fn add(&mut self, views: &[RankView<'_>], epoch: u32, times: u32) {
        for view in views {
            for (id, agent) in view.program.agents.iter() {
                for cta in 0..agent.engine.bodies(view.launch.ctas) {
                    self.walk(view.agent(id, cta, epoch), times);
                }
                self.walk(view.exit(id, epoch), times);
            }
        }
    }

    fn walk(&mut self, events: AgentRun<'_, '_>, times: u32) {
        for event in events {
            let Action::Signal { rank, signal, slot, change, .. } = event.action else { continue };
            let array = self.words.get_mut(rank as usize).map(|of| &mut of[signal.index()]);
            let Some(word) = array.and_then(|array| array.get_mut(slot as usize)) else { continue };
            *word = match change {
                Change::Add(count) => word.wrapping_add(count.wrapping_mul(times)),
                Change::Set(value) => value,
            };
        }
    }
}
