//! Where an agent was that waited in vain.

use flux_ir::abi::BULK_COPY;
use flux_ir::arena::Handle;
use flux_ir::eval::{Action, Launch, RankView, TileRange};
use flux_ir::program::{Engine, Program};
use flux_ir::{Balance, Span};
use std::ops::Range;
use std::time::Duration;

/// Rows and columns of the output, over all ranks.
pub type TileRanges = [Range<u32>; 2];

/// A wait in vain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank}: agent `{agent}`, CTA {cta}, waited {waited:.1?} at {span} for `{signal}[{slot}]` to \
     reach {wanted}, it is at {seen}"
)]
pub struct Stall {
    /// The rank that waited.
    pub rank: u32,
    /// The agent that waited.
    pub agent: String,
    /// The CTA that waited; 0 for a copy engine.
    pub cta: u32,
    /// The tile that it was at.
    pub tile: Option<TileRanges>,
    /// The signal array.
    pub signal: String,
    /// Which signal of it.
    pub slot: u32,
    /// The value last seen.
    pub seen: u32,
    /// The value wanted.
    pub wanted: u32,
    /// The wait in the user's source.
    pub span: Span,
    /// How long it waited.
    pub waited: Duration,
}

/// A wait that gave up, as a device reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenUp {
    /// The CTA, as the Program counts them.
    pub cta: u32,
    /// Index of the signal array.
    pub signal: u32,
    /// The slot.
    pub slot: u32,
    /// The value wanted.
    pub wanted: u32,
    /// Line and column of the wait in the user's source.
    pub at: (u32, u32),
}

/// The tile that an agent is at; `None` ahead of the first.
pub(crate) fn tile(tile: &TileRange) -> Option<TileRanges> {
    let TileRange { rows, cols } = tile;
    (!rows.is_empty()).then(|| [rows.clone(), cols.clone()])
}

/// The agent of `rank` that gave up a wait in launch `epoch`, and its tile where it was at one. An
/// agent does one thing after the other, so it was the first such wait of that CTA.
pub fn stalled_at(
    program: &Program,
    launch: Launch,
    rank: u32,
    epoch: u32,
    wait: GivenUp,
) -> (String, Option<TileRanges>) {
    // What waits for shared sums, or for the load of a bulk copy, is no statement.
    let engine = if wait.signal == BULK_COPY { Engine::Tma } else { Engine::Ctas };
    let mut on_grid = program.agents.values().filter(|agent| agent.engine == engine);
    let grid = on_grid.next().map_or_else(String::new, |agent| agent.name.clone());
    let unknown = || (grid.clone(), None);
    let Ok(view) = RankView::new(program, launch, rank) else { return unknown() };
    let on_ctas = |engine: Engine| engine != Engine::CopyEngine;
    let mut nearest = None;
    for (id, agent) in program.agents.iter().filter(|(_, agent)| on_ctas(agent.engine)) {
        // CTAs that share tiles take them from another list than this walk's.
        let has_tiles = program.balance == Balance::Tiles;
        let cta = if has_tiles { wait.cta } else { 0 };
        let events = view.agent(id, cta, epoch).chain(view.exit(id, epoch));
        for event in events {
            let Action::Wait { signal, slots, target, .. } = event.action else { continue };
            let span = (event.stmt.span.line, event.stmt.span.column);
            let is_there = signal.index() == wait.signal as usize && span == wait.at;
            if !is_there {
                continue;
            }
            let found = || (agent.name.clone(), has_tiles.then(|| tile(&event.tile)).flatten());
            if slots.contains(&wait.slot) && target as u32 == wait.wanted {
                return found();
            }
            // The launch may have had another number.
            if slots.contains(&wait.slot) {
                nearest.get_or_insert_with(found);
            }
        }
    }
    nearest.unwrap_or_else(unknown)
}
