//! What is seen of a run: which write each read sees, which write each write follows, and which
//! raises end each wait. All three have to be the same in every interleaving.

use super::Fault;
use super::search::{State, raised};
use super::system::{Kind, Move, MoveId, System};
use flux_ir::diagnostic::Rule;
use flux_ir::eval::Change;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included};

/// Where nothing has been seen yet.
const UNSEEN: u16 = u16::MAX;

pub(super) struct Watch<'s> {
    system: &'s System,
    /// Of each read and each write of a cell, the writer it found there.
    found: Vec<u16>,
    /// Of each signal and target, which of the signal's raises made it reach the target.
    ended: BTreeMap<(usize, i64), Vec<bool>>,
    faults: BTreeSet<Fault>,
    /// The most launches between a wait and the raise that made its signal reach the target.
    pub(super) lag: u32,
}

impl<'s> Watch<'s> {
    pub(super) fn new(system: &'s System) -> Self {
        let accesses = |step: &Move| step.reads.len() + step.writes.len();
        let found = vec![UNSEEN; system.moves.iter().map(accesses).sum()];
        let (ended, faults) = (BTreeMap::new(), BTreeSet::new());
        let mut watch = Watch { system, found, ended, faults, lag: 0 };
        watch.scopes();
        watch
    }

    pub(super) fn has_fault(&self) -> bool {
        !self.faults.is_empty()
    }

    pub(super) fn into_faults(self) -> BTreeSet<Fault> {
        self.faults
    }

    fn fault_of(&mut self, rule: Rule, id: MoveId) {
        let stmt = self.system.moves[id].stmt;
        self.faults.insert(Fault { rule, stmt });
    }

    /// Looks at a move that happens in `state`.
    pub(super) fn happens(&mut self, id: MoveId, state: &State) {
        let system = self.system;
        let step = &system.moves[id];
        let (reads, writes) = system.accesses[id];
        for (&cell, access) in step.reads.iter().zip(reads..) {
            let writer = state.writer(system, cell);
            let before = std::mem::replace(&mut self.found[access], writer as u16);
            self.read(id, writer);
            if before != UNSEEN && usize::from(before) != writer {
                let rule = Rule::OverwriteBeforeRead;
                self.fault_of(rule, if writer == 0 { before.into() } else { writer });
            }
        }
        for (&cell, access) in step.writes.iter().zip(writes..) {
            let writer = state.writer(system, cell);
            let before = std::mem::replace(&mut self.found[access], writer as u16);
            if before != UNSEEN && usize::from(before) != writer {
                self.fault_of(Rule::UnorderedWrites, id);
            }
        }
        if let Kind::Sum(contributions, _) = step.kind {
            self.sum(id, contributions, state);
        }
        if step.raise.is_some() {
            self.raise(id, state);
        }
    }

    /// What is read in a launch was written in that launch.
    fn read(&mut self, id: MoveId, writer: MoveId) {
        let (reads, writes) = (&self.system.moves[id], &self.system.moves[writer]);
        if writer == 0 || writes.launch < reads.launch {
            return self.fault_of(Rule::ReadBeforeArrival, id);
        }
        let later = writes.launch > reads.launch;
        match writes.kind {
            // The caller of the launch wrote it.
            Kind::End => self.fault_of(Rule::ExitBeforeRead, id),
            Kind::Begin if later => self.fault_of(Rule::ExitBeforeRead, id),
            _ if later => self.fault_of(Rule::OverwriteBeforeRead, writer),
            _ => {}
        }
    }

    /// Each element takes, of each other rank once, what that rank computed as this one did its
    /// own, or what was copied from there.
    fn sum(&mut self, id: MoveId, contributions: usize, state: &State) {
        let system = self.system;
        let step = &system.moves[id];
        let Kind::Sum(_, own) = step.kind else { return };
        let rank = system.threads[step.thread].rank;
        let cells = step.reads.len() / contributions.max(1);
        let is_exact = (0..cells).all(|cell| {
            let origins = (0..contributions).map(|part| {
                let writer = state.writer(system, step.reads[part * cells + cell]);
                match system.moves[writer].kind {
                    Kind::Write { value, origin } => {
                        (origin != rank && value.is_none_or(|v| v == own)).then_some(origin)
                    }
                    Kind::Begin | Kind::End | Kind::Sum(..) | Kind::Other => None,
                }
            });
            let origins: Option<BTreeSet<u32>> = origins.collect();
            origins.is_some_and(|origins| origins.len() == contributions)
        });
        if !is_exact {
            self.fault_of(Rule::SumNotExact, id);
        }
    }

    /// A signal is set by one actor, each time to more; and what ends a wait for it is the same set of
    /// raises in every interleaving, and no more than the wait asked for.
    fn raise(&mut self, id: MoveId, state: &State) {
        let system = self.system;
        let step = &system.moves[id];
        let Some(raise) = step.raise else { return };
        let old = state.signal(raise.slot);
        let slot = &system.slots[raise.slot];
        if let Change::Set(value) = raise.change {
            let alone = slot.raises.iter().all(|&(_, thread)| thread == step.thread);
            if i64::from(value) <= old || !alone {
                self.fault_of(Rule::SignalNotMonotone, id);
            }
        }
        let new = raised(old, raise);
        for (&target, waits) in slot.targets.range((Excluded(old), Included(new))) {
            let last = waits.iter().map(|&wait| system.moves[wait].launch).max();
            self.lag = self.lag.max(last.unwrap_or(0).saturating_sub(step.launch));
            if new != target {
                self.faults_of(Rule::CountNotExact, waits);
            }
            let done =
                slot.raises.iter().map(|&(raised, _)| raised == id || state.did(system, raised));
            let done: Vec<bool> = done.collect();
            match self.ended.get(&(raise.slot, target)) {
                Some(before) if *before == done => {}
                Some(_) => self.faults_of(Rule::CountNotExact, waits),
                None => {
                    self.ended.insert((raise.slot, target), done);
                }
            }
        }
    }

    fn faults_of(&mut self, rule: Rule, ids: &[MoveId]) {
        ids.iter().for_each(|&id| self.fault_of(rule, id));
    }

    /// Whether the raises of each signal and the waits for it reach each other: a wait may see any
    /// of them.
    fn scopes(&mut self) {
        let system = self.system;
        for slot in &system.slots {
            for &wait in slot.targets.values().flatten() {
                let waiting = &system.threads[system.moves[wait].thread];
                for &(id, thread) in &slot.raises {
                    let reach = system.threads[thread].reach(waiting);
                    if system.moves[id].raise.is_some_and(|raise| raise.scope < reach) {
                        self.fault_of(Rule::ScopeTooNarrow, id);
                    }
                    if system.moves[wait].wait.as_ref().is_some_and(|wait| wait.scope < reach) {
                        self.fault_of(Rule::ScopeTooNarrow, wait);
                    }
                }
            }
        }
    }

    /// Nothing can happen, and not all is over: tells which waits hang.
    pub(super) fn stuck(&mut self, state: &State) {
        let system = self.system;
        for thread in 0..system.threads.len() {
            let Some(id) = state.next(system, thread) else { continue };
            let step = &system.moves[id];
            let Some(wait) = &step.wait else { continue };
            let hangs = |&slot: &usize| state.signal(slot) < wait.target;
            for slot in wait.slots.clone().filter(hangs) {
                let raises = system.slots[slot]
                    .raises
                    .iter()
                    .filter(|(id, ..)| system.moves[*id].launch <= step.launch);
                let reached = raises.fold(0, |value, (id, ..)| {
                    system.moves[*id].raise.map_or(value, |raise| raised(value, raise))
                });
                let rule =
                    if reached < wait.target { Rule::WaitWithoutSignal } else { Rule::Deadlock };
                self.fault_of(rule, id);
            }
        }
    }
}
