//! Whom a tile waits for, asked of the Program: a recording says when a wait ended, not by whom.

use super::record::Role;
use flux_ir::arena::Handle;
use flux_ir::eval::{Action, Launch, RankView, TileRange};
use flux_ir::order::OrderError;
use flux_ir::program::{Engine, Program};
use rustc_hash::FxHashMap;

/// Who raises a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Raiser {
    pub(super) rank: u32,
    pub(super) role: Role,
    /// How many raises of the actor come before.
    before: u32,
}

/// Of each rank and tile (by its first row and column) that waits ahead of its mainloop, who
/// raises what comes last: of several signals the one that its actor raises latest.
pub(super) fn awaited(
    program: &Program,
    launch: Launch,
) -> Result<FxHashMap<(u32, u32, u32), Raiser>, OrderError> {
    let views = (0..launch.world)
        .map(|rank| RankView::new(program, launch, rank))
        .collect::<Result<Vec<_>, _>>()?;
    let mut raisers = FxHashMap::default();
    for view in &views {
        each_actor(view, |role, actions| {
            let mut before = 0;
            for (_, action) in actions {
                if let Action::Signal { rank, signal, slot, .. } = action {
                    let raiser = Raiser { rank: view.rank, role, before };
                    raisers.insert((rank, signal.index(), slot), raiser);
                    before += 1;
                }
            }
        });
    }
    let mut awaited = FxHashMap::default();
    for view in &views {
        each_actor(view, |role, actions| {
            let mut latest: Option<Raiser> = None;
            for (tile, action) in actions {
                match action {
                    Action::Wait { signal, slots, target, .. } if target > 0 => {
                        let of = |slot| raisers.get(&(view.rank, signal.index(), slot)).copied();
                        let all = latest.into_iter().chain(slots.filter_map(of));
                        latest = all.max_by_key(|raiser| (raiser.before, raiser.rank));
                    }
                    Action::Mainloop { .. } if matches!(role, Role::Cta(..)) => {
                        if let Some(raiser) = latest.take() {
                            let key = (view.rank, tile.rows.start, tile.cols.start);
                            awaited.insert(key, raiser);
                        }
                    }
                    // Behind a mainloop it is the epilogue that waits.
                    Action::Store { .. } => latest = None,
                    _ => {}
                }
            }
        });
    }
    Ok(awaited)
}

/// Shows what each actor of a rank does in its first launch.
fn each_actor(
    view: &RankView<'_>,
    mut show: impl FnMut(Role, &mut dyn Iterator<Item = (TileRange, Action)>),
) {
    for (agent, entry) in view.program.agents.iter() {
        let number = agent.index() as u32;
        for cta in 0..entry.engine.bodies(view.launch.ctas) {
            let role = match entry.engine {
                Engine::CopyEngine => Role::Engine(number),
                Engine::Ctas | Engine::CopyWarps | Engine::Tma => Role::Cta(number, cta),
            };
            show(role, &mut view.agent(agent, cta, 1).map(|event| (event.tile, event.action)));
        }
    }
}
