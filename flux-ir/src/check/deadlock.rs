//! Says why a run got stuck.
//!
//! Control flow does not depend on data, so what the stuck agents would still do is known. A wait
//! that all of it together could not end has no signal; otherwise agents wait for each other,
//! and following who would raise what is waited for leads around a cycle.

use super::machine::{self, Played};
use super::trace::{Act, Actor, ActorTrace, Layout};
use crate::diagnostic::{Diagnostic, Rule};
use crate::program::Stmt;
use crate::span::Span;
use rustc_hash::FxHashMap;

/// Waits and raises named in one diagnostic, at most.
const NOTES: usize = 6;

/// What keeps a raise from happening.
#[derive(Debug, Clone, Copy)]
enum Behind {
    /// The actor itself is stuck before it.
    Actor(u32),
    /// It stands in the exit of an agent of which this actor is stuck.
    Exit(u32),
    /// It is done by an agent that starts once this actor is through.
    Start(u32),
    /// It stands in a later launch of the rank on which this actor is stuck.
    Launch(u32),
}

impl Behind {
    fn actor(self) -> u32 {
        match self {
            Behind::Actor(actor)
            | Behind::Exit(actor)
            | Behind::Start(actor)
            | Behind::Launch(actor) => actor,
        }
    }
}

/// What could still be raised, by slot.
type Rest<'p> = FxHashMap<u32, Raises<'p>>;

/// The raises of a slot that are left.
struct Raises<'p> {
    /// The launch, whether it sets, and the number, of each.
    all: Vec<(u32, bool, u32)>,
    /// The first raise, and what it stands behind.
    stmt: &'p Stmt,
    behind: Behind,
}

impl Raises<'_> {
    /// What the slot reaches from `value` by the launches up to number `epoch`.
    fn reached(&self, value: u32, epoch: u32) -> u32 {
        let raises = self.all.iter().filter(|(of, ..)| *of <= epoch);
        raises.fold(
            value,
            |value, &(_, sets, by)| {
                if sets { value.max(by) } else { value.saturating_add(by) }
            },
        )
    }
}

/// A run that got stuck.
#[derive(Clone, Copy)]
struct Stuck<'a, 'p> {
    layout: &'a Layout<'p>,
    traces: &'a [ActorTrace],
    played: &'a Played,
}

/// The broken rules of a run that got stuck, each with the wait that breaks it.
pub(super) fn explain<'p>(
    layout: &Layout<'p>,
    traces: &[ActorTrace],
    played: &Played,
) -> Vec<(&'p Stmt, Diagnostic)> {
    let (stuck, run) = (played.stuck(), &Stuck { layout, traces, played });
    let rest = rest(run, &stuck);
    let starved: Vec<_> = stuck.iter().filter_map(|&actor| starved(run, &rest, actor)).collect();
    if !starved.is_empty() {
        return starved;
    }
    stuck.first().map(|&actor| cycle(run, &rest, actor)).into_iter().collect()
}

/// Collects everything the stuck run has left.
fn rest<'p>(run: &Stuck<'_, 'p>, stuck: &[u32]) -> Rest<'p> {
    let (layout, mut rest) = (run.layout, Rest::default());
    for rank in 0..layout.launch.world {
        let of_rank = layout.of_rank(rank);
        let Some(&first) = stuck.iter().find(|actor| of_rank.contains(actor)) else { continue };
        let epoch = run.played.ranks[rank as usize].epoch;
        for actor in of_rank {
            let Actor { agent, cta, exit, .. } = layout.actor(actor);
            let bodies = layout.bodies(exit);
            let now = if run.played.cursors[actor as usize].blocked.is_some() {
                Behind::Actor(actor)
            } else if run.played.is_to_start(rank, agent) {
                Behind::Start(first)
            } else {
                match stuck.iter().find(|actor| bodies.contains(actor)) {
                    Some(&body) if cta.is_none() => Behind::Exit(body),
                    _ => Behind::Launch(first),
                }
            };
            collect(run, actor, epoch, now, first, &mut rest);
        }
    }
    rest
}

/// Adds the raises an actor has left; `now` is what those of the launch at hand stand behind.
fn collect<'p>(
    run: &Stuck<'_, 'p>,
    actor: u32,
    epoch: u32,
    now: Behind,
    first: u32,
    rest: &mut Rest<'p>,
) {
    let (trace, next) = (&run.traces[actor as usize], run.played.cursors[actor as usize].next);
    for launch in epoch..=run.layout.epochs {
        let behind = if launch == epoch { now } else { Behind::Launch(first) };
        let steps = trace.launch(launch);
        for step in &trace.steps[steps.start.max(next as usize).min(steps.end)..steps.end] {
            let Act::Raise { slot, sets, value } = step.act else { continue };
            let stmt = run.layout.stmt(*step);
            let raises = rest.entry(slot).or_insert(Raises { all: Vec::new(), stmt, behind });
            raises.all.push((launch, sets, value));
        }
    }
}

/// The statement an actor waits at.
fn wait_of<'p>(run: &Stuck<'_, 'p>, actor: u32) -> &'p Stmt {
    let next = run.played.cursors[actor as usize].next;
    run.layout.stmt(run.traces[actor as usize].steps[next as usize])
}

/// The wait of an actor, if nothing left could end it.
fn starved<'p>(run: &Stuck<'_, 'p>, rest: &Rest<'p>, actor: u32) -> Option<(&'p Stmt, Diagnostic)> {
    let layout = run.layout;
    let blocked = run.played.cursors[actor as usize].blocked?;
    let (_, signal, _) = layout.place_of_slot(blocked.slot);
    let seen = run.played.slots[blocked.slot as usize];
    let epoch = run.played.ranks[layout.actor(actor).rank as usize].epoch;
    let raised = rest.get(&blocked.slot).map_or(seen, |raises| raises.reached(seen, epoch));
    if i64::from(raised) >= blocked.target.into() {
        return None;
    }
    let message = format!(
        "{} waits for `{}` >= {}, all agents of all ranks raise it to {raised} by then",
        layout.name(actor),
        layout.slot_name(blocked.slot),
        blocked.target
    );
    let stmt = wait_of(run, actor);
    let mut diagnostic = Diagnostic::new(Rule::WaitWithoutSignal, stmt.span, message)
        .note(Span::UNKNOWN, moment(run, actor));
    let raises = super::raises(layout.program, signal);
    for (stmt, _) in raises.iter().take(NOTES) {
        diagnostic = diagnostic.note(stmt.span, "the array is raised here");
    }
    let carrier = layout.program.signals[signal].carrier;
    let help = match carrier.map(|carrier| &layout.program.buffers[carrier].name) {
        Some(name) => {
            let note = format!("data of `%{name}` stand for this signal");
            diagnostic = diagnostic.note(Span::UNKNOWN, note);
            "put to every other rank, once: `(rank() + hop) % world()` for each `hop` in `1..world()`"
        }
        None if raises.is_empty() => "raise the signal, or drop the wait",
        None => "make slot and count of the wait those of its signals",
    };
    Some((stmt, diagnostic.help(help)))
}

/// The cycle that an actor's wait leads to.
fn cycle<'p>(run: &Stuck<'_, 'p>, rest: &Rest<'p>, from: u32) -> (&'p Stmt, Diagnostic) {
    let layout = run.layout;
    let mut path: Vec<(u32, Option<(Behind, &'p Stmt)>)> = Vec::new();
    let mut next = from;
    let begin = loop {
        if let Some(begin) = path.iter().position(|&(actor, _)| actor == next) {
            break begin;
        }
        let blocked = run.played.cursors[next as usize].blocked;
        let raise = blocked.and_then(|blocked| rest.get(&blocked.slot));
        path.push((next, raise.map(|raises| (raises.behind, raises.stmt))));
        match raise {
            Some(raises) => next = raises.behind.actor(),
            None => break path.len() - 1,
        }
    };
    let cycle = &path[begin..];
    let (first, _) = cycle[0];
    let stmt = wait_of(run, first);
    let message = format!("{}, and the raise waits for this", wait_sentence(run, first));
    let mut diagnostic =
        Diagnostic::new(Rule::Deadlock, stmt.span, message).note(Span::UNKNOWN, moment(run, first));
    for &(actor, raise) in cycle.iter().take(NOTES) {
        if actor != first {
            let wait = wait_of(run, actor);
            diagnostic = diagnostic.note(wait.span, wait_sentence(run, actor));
        }
        if let Some((behind, stmt)) = raise {
            let name = layout.name(behind.actor());
            let what = match behind {
                Behind::Actor(_) => format!("raised by {name} after its wait"),
                Behind::Exit(_) => format!("raised on exit, after {name}"),
                Behind::Start(_) => format!("raised by a grid that starts after {name}"),
                Behind::Launch(_) => format!("raised in a later launch, after {name}"),
            };
            diagnostic = diagnostic.note(stmt.span, what);
        }
    }
    let short: Vec<_> =
        cycle.iter().chain(&cycle[..1]).map(|&(actor, _)| layout.name(actor)).collect();
    let shown = if short.len() > NOTES { &short[..NOTES] } else { &short[..] };
    let more = if short.len() > NOTES { " -> …" } else { "" };
    let carried = |actor: u32| {
        let blocked = run.played.cursors[actor as usize].blocked;
        blocked.is_some_and(|blocked| layout.is_carried(blocked.slot))
    };
    let help = if carried(first) {
        "every rank sums every tile: come to them in one order on all ranks, `grouped(16)`, `row_major` or `column_major`"
    } else {
        "signal before waiting, or choose a tile order in which a rank's own tiles, which wait for peers, come last"
    };
    let note = format!("cycle: {}{more}", shown.join(" -> "));
    (stmt, diagnostic.note(Span::UNKNOWN, note).help(help))
}

/// `rank 0, cta 1 of gemm waits for %x[3] >= 8 and sees 0`.
fn wait_sentence(run: &Stuck<'_, '_>, actor: u32) -> String {
    let name = run.layout.name(actor);
    let Some(blocked) = run.played.cursors[actor as usize].blocked else { return name };
    let (slot, seen) =
        (run.layout.slot_name(blocked.slot), run.played.slots[blocked.slot as usize]);
    format!("{name} waits for `{slot}` >= {} and sees {seen}", blocked.target)
}

fn moment(run: &Stuck<'_, '_>, actor: u32) -> String {
    let rank = run.layout.actor(actor).rank as usize;
    machine::moment(run.layout, run.played.ranks[rank].epoch)
}
