//! Whether scopes reach: every raise of a slot everyone who waits for it, and the other way round.
//!
//! This does not depend on which raise a wait stands for: of two stores to a word, a wait may see
//! the second, which releases nothing to it if its scope is too narrow.

use super::Findings;
use super::happens::History;
use super::report;
use super::trace::{Act, Actor, ActorTrace, Layout};
use crate::program::{Engine, Op, Scope};
use rustc_hash::FxHashMap;

/// Actors of one kind at one end of a slot, by one statement: all of them on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    rank: u32,
    engine: Engine,
    number: u32,
    /// One of them, and whether there are others.
    actor: u32,
    several: bool,
}

/// The ends of each slot.
type Ends = FxHashMap<u32, Vec<End>>;

/// Checks all pairs. Statements of scope `sys` reach everyone, so most Programs have none to ask.
pub(super) fn check(
    layout: &Layout<'_>,
    traces: &[ActorTrace],
    history: &History,
    found: &mut Findings,
) {
    let scopes: Vec<Option<Scope>> = layout.stmts.iter().map(|stmt| scope(&stmt.op)).collect();
    if scopes.iter().flatten().all(|scope| *scope == Scope::Sys) {
        return;
    }
    let (mut raises, mut waits) = (Ends::default(), Ends::default());
    for (actor, trace) in (0..).zip(traces) {
        for step in &trace.steps {
            match step.act {
                Act::Raise { slot, .. } => add(layout, &mut raises, slot, actor, step.number),
                Act::Wait { slot, len, target } if target > 0 => {
                    for slot in slot..slot + len {
                        add(layout, &mut waits, slot, actor, step.number);
                    }
                }
                Act::Wait { .. }
                | Act::Fence
                | Act::Read { .. }
                | Act::Contribution { .. }
                | Act::Write { .. } => {}
            }
        }
    }
    let mut slots: Vec<u32> =
        waits.keys().copied().filter(|slot| !history.of(*slot).is_empty()).collect();
    slots.sort_unstable();
    for slot in slots {
        for wait in &waits[&slot] {
            for raise in &raises[&slot] {
                let needed = needed(raise, wait);
                for (end, other) in [(wait, raise), (raise, wait)] {
                    let has = scopes[end.number as usize].unwrap_or(Scope::Sys);
                    if has < needed {
                        let (end, other) = ((end.actor, end.number), (other.actor, other.number));
                        report::scope(layout, slot, end, other, has, needed, found);
                    }
                }
            }
        }
    }
}

fn scope(op: &Op) -> Option<Scope> {
    match op {
        Op::Wait { scope, .. } | Op::Signal { scope, .. } => Some(*scope),
        Op::Let { .. }
        | Op::Row { .. }
        | Op::For { .. }
        | Op::If { .. }
        | Op::FenceProxyAsync
        | Op::Mainloop { .. }
        | Op::Store { .. }
        | Op::Sum { .. }
        | Op::Load { .. }
        | Op::Copy { .. } => None,
    }
}

fn add(layout: &Layout<'_>, ends: &mut Ends, slot: u32, actor: u32, number: u32) {
    let Actor { rank, engine, .. } = layout.actor(actor);
    let ends = ends.entry(slot).or_default();
    let same = |end: &&mut End| (end.rank, end.engine, end.number) == (rank, engine, number);
    match ends.iter_mut().find(same) {
        Some(end) => end.several |= end.actor != actor,
        None => ends.push(End { rank, engine, number, actor, several: false }),
    }
}

/// The scope that both ends need.
fn needed(raise: &End, wait: &End) -> Scope {
    let on_ctas = raise.engine.is_in_kernel() && wait.engine.is_in_kernel();
    if raise.rank != wait.rank || !on_ctas {
        Scope::Sys
    } else if raise.several || wait.several || raise.actor != wait.actor {
        Scope::Gpu
    } else {
        Scope::Cta
    }
}
