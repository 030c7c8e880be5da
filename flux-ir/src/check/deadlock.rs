//! Says why a run got stuck.
//!
//! Control flow does not depend on data, so what the stuck agents would still do is known. A wait
//! that all of it together could not end has no signal; otherwise agents wait for each other,
//! and following who would raise what is waited for leads around a cycle.

use super::EPOCHS;
use super::launch::describe;
use super::machine::{Actor, Blocked, Machine};
use crate::diagnostic::{Diagnostic, Rule};
use crate::eval::{Action, AgentRun, Change};
use crate::program::Stmt;
use crate::span::Span;
use std::collections::HashMap;

/// Waits and raises named in one diagnostic, at most.
const NOTES: usize = 6;

/// What keeps a raise from happening.
#[derive(Debug, Clone, Copy)]
enum Behind {
    /// The actor itself is stuck before it.
    Actor(usize),
    /// It stands in the exit of an agent of which this actor is stuck.
    Exit(usize),
    /// It is done by an agent that starts once this actor is through.
    Start(usize),
    /// It stands in a later launch of the rank on which this actor is stuck.
    Launch(usize),
}

impl Behind {
    fn actor(self) -> usize {
        match self {
            Behind::Actor(actor)
            | Behind::Exit(actor)
            | Behind::Start(actor)
            | Behind::Launch(actor) => actor,
        }
    }
}

/// What could still be raised, by slot.
#[derive(Default)]
struct Rest<'p> {
    slots: HashMap<usize, Raises<'p>>,
}

/// The raises of a slot that are left.
struct Raises<'p> {
    /// What each launch adds, or sets it to.
    launches: [Change; EPOCHS as usize],
    /// The first raise, and what it stands behind.
    stmt: &'p Stmt,
    behind: Behind,
}

impl Raises<'_> {
    /// What the slot reaches from `value` by the launches up to number `epoch`.
    fn reached(&self, value: u32, epoch: u32) -> u32 {
        self.launches[..epoch as usize].iter().fold(value, |value, change| match change {
            Change::Add(count) => value.saturating_add(*count),
            Change::Set(to) => value.max(*to),
        })
    }
}

/// The broken rules of a stuck machine, each with the wait that breaks it.
pub(super) fn explain<'p>(machine: &Machine<'_, 'p>) -> Vec<(&'p Stmt, Diagnostic)> {
    let stuck: Vec<usize> = (0..machine.actors.len())
        .filter(|&index| machine.actors[index].blocked.is_some())
        .collect();
    let rest = rest(machine, &stuck);
    let starved: Vec<_> =
        stuck.iter().filter_map(|&index| starved(machine, &rest, index)).collect();
    if !starved.is_empty() {
        return starved;
    }
    stuck.first().map(|&index| cycle(machine, &rest, index)).into_iter().collect()
}

/// Walks everything the stuck machine has left.
fn rest<'p>(machine: &Machine<'_, 'p>, stuck: &[usize]) -> Rest<'p> {
    let mut rest = Rest::default();
    for &index in stuck {
        if let Some(run) = &machine.actors[index].run {
            let epoch = machine.ranks[machine.actors[index].rank as usize].epoch;
            rest.collect(machine, run.clone(), epoch, Behind::Actor(index));
        }
    }
    for (rank, view) in machine.views.iter().enumerate() {
        let on_rank = |&&index: &&usize| machine.actors[index].rank as usize == rank;
        let Some(&first) = stuck.iter().find(on_rank) else { continue };
        let epoch = machine.ranks[rank].epoch;
        for (agent, entry) in machine.program.agents.iter() {
            let of_agent = |&&index: &&usize| {
                let actor = &machine.actors[index];
                actor.rank as usize == rank && actor.agent == agent && actor.cta.is_some()
            };
            if let Some(&index) = stuck.iter().find(of_agent) {
                rest.collect(machine, view.exit(agent, epoch), epoch, Behind::Exit(index));
            }
            let to_start = machine.is_to_start(rank, agent);
            let launches = if to_start { epoch..=EPOCHS } else { epoch + 1..=EPOCHS };
            for later in launches {
                let behind =
                    if later == epoch { Behind::Start(first) } else { Behind::Launch(first) };
                for cta in 0..super::launch::bodies(entry, machine.launch) {
                    let run = view.agent(agent, cta, later);
                    rest.collect(machine, run, later, behind);
                }
                let exit = view.exit(agent, later);
                rest.collect(machine, exit, later, behind);
            }
        }
    }
    rest
}

impl<'p> Rest<'p> {
    fn collect(
        &mut self,
        machine: &Machine<'_, 'p>,
        run: AgentRun<'_, 'p>,
        epoch: u32,
        behind: Behind,
    ) {
        for event in run {
            let Action::Signal { rank, signal, slot, change, .. } = event.action else { continue };
            let known = machine.views.get(rank as usize);
            if known.is_none_or(|view| slot >= view.signal_len(signal)) {
                continue;
            }
            let at = machine.slot(rank, signal, slot);
            let raises = self.slots.entry(at).or_insert(Raises {
                launches: [Change::Add(0); EPOCHS as usize],
                stmt: event.stmt,
                behind,
            });
            let launch = &mut raises.launches[epoch as usize - 1];
            *launch = match (change, *launch) {
                (Change::Add(count), Change::Add(all)) => Change::Add(all.saturating_add(count)),
                (Change::Set(value), Change::Set(old)) => Change::Set(old.max(value)),
                (_, _) => change,
            };
        }
    }
}

/// The slot an actor waits for, and its position among all signals.
fn waited(machine: &Machine<'_, '_>, index: usize) -> Option<(usize, String)> {
    let actor = &machine.actors[index];
    let Blocked { signal, slots, .. } = actor.blocked.as_ref()?;
    let name = format!("%{}[{}]", machine.program.signals[*signal].name, slots.start);
    Some((machine.slot(actor.rank, *signal, slots.start), name))
}

/// The wait of an actor, if nothing left could end it.
fn starved<'p>(
    machine: &Machine<'_, 'p>,
    rest: &Rest<'p>,
    index: usize,
) -> Option<(&'p Stmt, Diagnostic)> {
    let actor = &machine.actors[index];
    let blocked = actor.blocked.as_ref()?;
    let (at, slot) = waited(machine, index)?;
    let (seen, epoch) = (machine.signals[at], machine.ranks[actor.rank as usize].epoch);
    let raised = rest.slots.get(&at).map_or(seen, |raises| raises.reached(seen, epoch));
    if i64::from(raised) >= blocked.target {
        return None;
    }
    let message = format!(
        "{} waits for `{slot}` >= {}, all agents of all ranks raise it to {raised} by then",
        actor.name(machine.program),
        blocked.target
    );
    let mut diagnostic = Diagnostic::new(Rule::WaitWithoutSignal, blocked.stmt.span, message)
        .note(Span::UNKNOWN, moment(machine, actor));
    let raises = super::raises(machine.program, blocked.signal);
    for (stmt, _) in raises.iter().take(NOTES) {
        diagnostic = diagnostic.note(stmt.span, "the array is raised here");
    }
    let help = if raises.is_empty() {
        "raise the signal, or drop the wait"
    } else {
        "make slot and count of the wait those of its signals"
    };
    Some((blocked.stmt, diagnostic.help(help)))
}

/// The cycle that an actor's wait leads to.
fn cycle<'p>(machine: &Machine<'_, 'p>, rest: &Rest<'p>, from: usize) -> (&'p Stmt, Diagnostic) {
    let mut path: Vec<(usize, Option<(Behind, &'p Stmt)>)> = Vec::new();
    let mut next = from;
    let begin = loop {
        if let Some(begin) = path.iter().position(|&(index, _)| index == next) {
            break begin;
        }
        let raise = waited(machine, next).and_then(|(at, _)| rest.slots.get(&at));
        path.push((next, raise.map(|raises| (raises.behind, raises.stmt))));
        match raise {
            Some(raises) => next = raises.behind.actor(),
            None => break path.len() - 1,
        }
    };
    let cycle = &path[begin..];
    let (first, _) = cycle[0];
    let actor = &machine.actors[first];
    let blocked = actor.blocked.as_ref().expect("only stuck actors are on the path");
    let mut diagnostic = Diagnostic::new(
        Rule::Deadlock,
        blocked.stmt.span,
        format!("{}, and the raise waits for this", wait_sentence(machine, first)),
    )
    .note(Span::UNKNOWN, moment(machine, actor));
    for &(index, raise) in cycle.iter().take(NOTES) {
        let actor = &machine.actors[index];
        if index != first
            && let Some(blocked) = &actor.blocked
        {
            diagnostic = diagnostic.note(blocked.stmt.span, wait_sentence(machine, index));
        }
        if let Some((behind, stmt)) = raise {
            let name = machine.actors[behind.actor()].name(machine.program);
            let what = match behind {
                Behind::Actor(_) => format!("raised by {name} after its wait"),
                Behind::Exit(_) => format!("raised on exit, after {name}"),
                Behind::Start(_) => format!("raised by a grid that starts after {name}"),
                Behind::Launch(_) => format!("raised in a later launch, after {name}"),
            };
            diagnostic = diagnostic.note(stmt.span, what);
        }
    }
    let short: Vec<_> = cycle
        .iter()
        .chain(&cycle[..1])
        .map(|&(index, _)| machine.actors[index].name(machine.program))
        .collect();
    let shown = if short.len() > NOTES { &short[..NOTES] } else { &short[..] };
    let more = if short.len() > NOTES { " -> …" } else { "" };
    let diagnostic = diagnostic
        .note(Span::UNKNOWN, format!("cycle: {}{more}", shown.join(" -> ")))
        .help("signal before waiting, or choose a tile order in which a rank's own tiles, which wait for peers, come last");
    (blocked.stmt, diagnostic)
}

/// `rank 0, cta 1 of gemm waits for %x[3] >= 8 and sees 0`.
fn wait_sentence(machine: &Machine<'_, '_>, index: usize) -> String {
    let actor = &machine.actors[index];
    let target = actor.blocked.as_ref().map_or(0, |blocked| blocked.target);
    let Some((at, slot)) = waited(machine, index) else { return actor.name(machine.program) };
    let seen = machine.signals[at];
    format!("{} waits for `{slot}` >= {target} and sees {seen}", actor.name(machine.program))
}

fn moment(machine: &Machine<'_, '_>, actor: &Actor<'_, '_>) -> String {
    let epoch = machine.ranks[actor.rank as usize].epoch;
    format!("{}, launch {epoch} of {EPOCHS}", describe(machine.launch))
}
