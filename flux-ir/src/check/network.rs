//! Ranks of other nodes: what goes there by puts and signals over the network, and what is known of it.
//!
//! A put over the network is issued and left to itself. That its source has been read is known behind a flush (a
//! signal `after read`, the end of the actor), and that its data lie where they belong to those alone who
//! have seen a signal that traveled behind them: one `after delivered`, of the same actor, on the
//! rank they went to. Neither the end of a launch nor any signal elsewhere says so.

use super::happens::Scene;
use super::machine::Raise;
use super::memory::Access;
use super::trace::{Act, Layout};
use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::program::{
    Agent, At, BufferKind, Completion, Engine, Home, Op, Place, Program, Statements, Stmt, Update,
};
use crate::span::Span;
use rustc_hash::FxHashMap;

/// What is known of puts over the network.
#[derive(Debug, Clone, Default)]
pub(super) struct Network {
    /// By actor and rank: the stamp up to which what the actor put to that rank lies there.
    delivered: FxHashMap<(u32, u32), u32>,
    /// By actor: the stamp up to which the network has read what it puts.
    flushed: FxHashMap<u32, u32>,
}

impl Network {
    /// Learns that a raise has been seen; says whether that is new.
    pub(super) fn learn(&mut self, layout: &Layout<'_>, raise: &Raise) -> bool {
        let flushed = raise_to(&mut self.flushed, raise.actor, raise.flushed);
        if !raise.delivers {
            return flushed;
        }
        let (rank, ..) = layout.place_of_slot(raise.slot);
        raise_to(&mut self.delivered, (raise.actor, rank), raise.stamp) || flushed
    }

    /// Takes over what another knows of one actor.
    pub(super) fn copy(&mut self, actor: u32, from: &Network) {
        let of_actor = from.delivered.iter().filter(|((of, _), _)| *of == actor);
        for (&key, &stamp) in of_actor {
            raise_to(&mut self.delivered, key, stamp);
        }
        if let Some(&stamp) = from.flushed.get(&actor) {
            raise_to(&mut self.flushed, actor, stamp);
        }
    }

    pub(super) fn forget(&mut self, actor: u32) {
        self.delivered.retain(|(of, _), _| *of != actor);
        self.flushed.remove(&actor);
    }

    /// Whether data that went to `to` lie there.
    pub(super) fn has_delivered(&self, access: &Access, to: u32) -> bool {
        self.delivered.get(&(access.actor, to)).is_some_and(|&stamp| stamp >= access.stamp)
    }

    /// Whether the source of a put to `to` has been read.
    pub(super) fn has_read(&self, access: &Access, to: u32) -> bool {
        self.has_delivered(access, to)
            || self.flushed.get(&access.actor).is_some_and(|&stamp| stamp >= access.stamp)
    }
}

/// Raises an entry to `value`; says whether that changed it.
fn raise_to<K: std::hash::Hash + Eq>(map: &mut FxHashMap<K, u32>, key: K, value: u32) -> bool {
    if value == 0 {
        return false;
    }
    let word = map.entry(key).or_insert(0);
    let grows = *word < value;
    *word = (*word).max(value);
    grows
}

impl Scene<'_, '_> {
    /// The rank of another node that an access puts to, or raises a signal of; none where it stays on its node.
    pub(super) fn sent_to(&self, access: &Access) -> Option<u32> {
        if !self.layout.networked {
            return None;
        }
        let steps = &self.traces[access.actor as usize].steps;
        let at = (access.stamp as usize).checked_sub(1)?;
        let step = steps.get(at)?;
        match (&self.layout.stmt(*step).op, step.act) {
            (Op::Copy { to, .. }, Act::Write { .. } | Act::Read { .. }) if to.at.is_remote() => {
                // The write of a put is the next step behind its read.
                let of_put = |act: Act| match act {
                    Act::Write { rect, .. } => Some(self.rects[rect as usize].rank),
                    _ => None,
                };
                of_put(step.act).or_else(|| of_put(steps.get(at + 1)?.act))
            }
            (Op::Signal { at, .. }, Act::Raise { slot, .. }) if at.is_remote() => {
                Some(self.layout.place_of_slot(slot).0)
            }
            _ => None,
        }
    }

    /// Whether an access reads.
    pub(super) fn is_read(&self, access: &Access) -> bool {
        let steps = &self.traces[access.actor as usize].steps;
        let step = steps.get((access.stamp as usize).wrapping_sub(1));
        step.is_some_and(|step| matches!(step.act, Act::Read { .. }))
    }
}

/// What the text of a Program alone says: who may put over the network, what, and how it is told of.
pub(super) fn structure(program: &Program, found: &mut Diagnostics) {
    for agent in program.agents.values() {
        for (part, is_exit) in [(&agent.body, false), (&agent.exit, true)] {
            for stmt in Statements::of(part) {
                if let Some(diagnostic) = statement(program, (agent, is_exit), stmt) {
                    found.push(diagnostic);
                }
            }
        }
    }
}

/// What is said of whoever reaches for memory that is not mapped.
const PUT_INSTEAD: &str = "over the network data are put by their owner's copy warps: `copy remote(…).…` out of \
                           workspace, and `signal remote(…).… after delivered` behind it";

fn statement(program: &Program, by: (&Agent, bool), stmt: &Stmt) -> Option<Diagnostic> {
    let refuse = |what: &str| {
        let message =
            format!("a rank of another node is reached by puts and signals, found {what}");
        Some(Diagnostic::new(Rule::NotMapped, stmt.span, message).help(PUT_INSTEAD))
    };
    match &stmt.op {
        Op::Store { to, .. } if to.at.is_remote() => refuse("a store of a tile"),
        Op::Sum { from, .. } if from.at.is_remote() => refuse("a sum that reads there"),
        Op::Load { from, .. } if from.at.is_remote() => refuse("a load"),
        Op::Mainloop { products }
            if products.iter().any(|p| p.a.at.is_remote() || p.b.at.is_remote()) =>
        {
            refuse("an operand of a product")
        }
        Op::Copy { from, .. } if from.at.is_remote() => refuse("a copy that pulls from there"),
        Op::Copy { to, from, adds } if to.at.is_remote() => {
            put(program, by.0, (from, to, *adds), stmt)
        }
        Op::Signal { .. } => signal(program, by, stmt),
        _ => None,
    }
}

/// A put over the network.
fn put(
    program: &Program,
    agent: &Agent,
    (from, to, adds): (&Place, &Place, bool),
    stmt: &Stmt,
) -> Option<Diagnostic> {
    let symmetric = |place: &Place| {
        program.buffers.get(place.buffer).map(|b| b.kind) == Some(BufferKind::Symmetric)
    };
    let (message, help) = if agent.engine != Engine::CopyWarps {
        let found = agent.engine.name();
        let message = format!("puts over the network are issued by copy warps, found {found}");
        (message, "give the put to the agent on copy_warps: `transport = put`")
    } else if adds {
        let message = "a put over the network writes, found one that adds".to_owned();
        (message, "put contributions to a plane of their own, and let the owner add them up")
    } else if from.at != At::Own || !symmetric(from) || !symmetric(to) {
        let message =
            "the network reads workspace of the own rank and writes workspace, found another source or target"
                .to_owned();
        (message, "copy the data into a symmetric buffer first, and put them from there")
    } else {
        return None;
    };
    Some(Diagnostic::new(Rule::NotMapped, stmt.span, message).help(help))
}

/// A signal over the network, or one that claims to travel there.
fn signal(program: &Program, (agent, is_exit): (&Agent, bool), stmt: &Stmt) -> Option<Diagnostic> {
    let Op::Signal { at, signal, update, after, .. } = &stmt.op else { return None };
    let entry = program.signals.get(*signal)?;
    let name = &entry.name;
    let refuse = |rule, message: String, help: &str| {
        Some(Diagnostic::new(rule, stmt.span, message).help(help))
    };
    match (at.is_remote(), *after) {
        (false, Completion::Delivered) => {
            let message =
                format!("`%{name}` is raised by mapped memory, and not carried by the network");
            return refuse(
                Rule::PutNotDelivered,
                message,
                "write `after performed`, or name the rank by `remote(…)` where it is of another node",
            );
        }
        (true, Completion::Read | Completion::Performed) => {
            let message = format!(
                "`%{name}` of another node is raised `after {}`, which the network does not tell its sender",
                after.name()
            );
            return refuse(
                Rule::PutNotDelivered,
                message,
                "write `after delivered`: the signal then travels behind the data",
            );
        }
        (false, _) => return None,
        (true, Completion::Delivered) => {}
    }
    let by_grid = agent.engine == Engine::Ctas && is_exit;
    if agent.engine != Engine::CopyWarps && !by_grid {
        let message = format!("`%{name}` of another node is raised on {}", agent.engine.name());
        return refuse(
            Rule::NotMapped,
            message,
            "let copy warps raise it, or the exit of the agent on ctas",
        );
    }
    if matches!(update, Update::Set(_)) {
        let message = format!("`%{name}` of another node is set, and the network adds");
        return refuse(
            Rule::SignalNotMonotone,
            message,
            "write `+= 1`, and count what is waited for",
        );
    }
    if entry.home == Home::Host || entry.carrier.is_some() {
        let what = if entry.home == Home::Host { "on the host" } else { "carried by its data" };
        let message = format!("`%{name}` is {what}, where no signal of another node arrives");
        return refuse(Rule::NotMapped, message, "declare it on the device");
    }
    None
}

/// Whether a statement reaches ranks as they can be reached: those of its node by mapped memory, others by the network.
/// `ranks` are those that the event at hand names.
pub(super) fn reach(
    program: &Program,
    stmt: &Stmt,
    rank: u32,
    of: (u32, &At),
) -> Result<(), (Rule, String)> {
    let (other, at) = of;
    let mapped = program.is_mapped(rank, other);
    match (at, mapped) {
        (At::Own, _) | (At::Peer(_), true) | (At::Remote(_), false) => Ok(()),
        (At::Peer(_), false) => {
            let what = match &stmt.op {
                Op::Signal { .. } => "raises a signal of",
                Op::Store { .. } => "stores to memory of",
                Op::Copy { to, .. } if to.at == *at => "copies to memory of",
                _ => "reads memory of",
            };
            let message = format!(
                "{what} rank {other}, which is of another node (of {} ranks each): write `remote(…)`",
                program.node
            );
            Err((Rule::NotMapped, message))
        }
        (At::Remote(_), true) => {
            let message = format!(
                "puts to rank {other} over the network, which is of its own node{}: write `peer(…)`",
                if program.node == 0 { ", as all ranks are" } else { "" }
            );
            Err((Rule::NotMapped, message))
        }
    }
}

/// A node holds ranks.
pub(super) fn fits(program: &Program, found: &mut Diagnostics) {
    if program.node > super::WORLD_LIMIT {
        let message = format!(
            "expected nodes of at most {} ranks, found {}",
            super::WORLD_LIMIT,
            program.node
        );
        found.push(Diagnostic::new(Rule::Schedule, Span::UNKNOWN, message));
    }
}
