//! Visits every state once.

use super::system::{MoveId, Raise, System, Wait};
use super::watch::Watch;
use super::{ExploreError, Limits, Reduction};
use flux_ir::eval::Change;
use std::collections::HashSet;
use std::ops::Bound::{Excluded, Unbounded};

/// Bits of a word of a state.
const WORD: usize = 16;

/// Bytes that a visited state takes besides its words and signals, at most: pointers and lengths,
/// free places of the set and the stack, and what the allocator adds.
const OVERHEAD_BYTES: usize = 192;

/// What has happened: how far each thread is, which moves adrift are over, and which move wrote
/// each cell last. Signals follow from the first.
#[derive(Debug, Clone)]
pub(super) struct State {
    words: Vec<u16>,
    signals: Vec<i64>,
}

pub(super) struct Search<'s> {
    system: &'s System,
    limits: &'s Limits,
    pub(super) watch: Watch<'s>,
    seen: HashSet<Box<[u16]>>,
    stack: Vec<State>,
    /// States in which nothing was left to do, or nothing could be done.
    pub(super) last: usize,
}

impl<'s> Search<'s> {
    pub(super) fn new(system: &'s System, limits: &'s Limits) -> Self {
        let watch = Watch::new(system);
        Search { system, limits, watch, seen: HashSet::new(), stack: Vec::new(), last: 0 }
    }

    /// The number of states that were visited.
    pub(super) fn states(&self) -> usize {
        self.seen.len()
    }

    /// Visits all states, or those up to the first fault where that is asked for.
    pub(super) fn run(&mut self) -> Result<(), ExploreError> {
        self.visit(State::first(self.system))?;
        while let Some(state) = self.stack.pop() {
            let enabled: Vec<MoveId> = state.enabled(self.system).collect();
            if enabled.is_empty() {
                self.last += 1;
                if !state.is_over(self.system) {
                    self.watch.stuck(&state);
                }
            }
            let chosen = self.alone(&state, &enabled);
            for &id in chosen.as_slice(&enabled) {
                let mut next = state.clone();
                self.watch.happens(id, &state);
                next.happen(self.system, id);
                self.visit(next)?;
            }
            if self.limits.first_fault && self.watch.has_fault() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn visit(&mut self, state: State) -> Result<(), ExploreError> {
        if self.seen.contains(state.words.as_slice()) {
            return Ok(());
        }
        if self.seen.len() >= self.limits.states {
            return Err(ExploreError::States { limit: self.limits.states });
        }
        // The words are kept in the set, and with the signals on the stack.
        let (words, signals) = (state.words.as_slice(), state.signals.as_slice());
        let bytes = 2 * size_of_val(words) + size_of_val(signals) + OVERHEAD_BYTES;
        if (self.seen.len() + 1).saturating_mul(bytes) > self.limits.bytes {
            return Err(ExploreError::Bytes { limit: self.limits.bytes });
        }
        self.seen.insert(state.words.clone().into_boxed_slice());
        self.stack.push(state);
        Ok(())
    }

    /// One of the enabled moves that needs no company, if there is one.
    fn alone(&self, state: &State, enabled: &[MoveId]) -> Chosen {
        if let Some(&id) = enabled.iter().find(|&&id| self.system.is_silent(id)) {
            return Chosen::One([id]);
        }
        match self.limits.reduction {
            Reduction::None => Chosen::All,
            Reduction::Persistent => {
                let alone = enabled.iter().find(|&&id| self.is_persistent(state, id));
                alone.map_or(Chosen::All, |&id| Chosen::One([id]))
            }
        }
    }

    /// Whether nothing that can happen while `id` is held back is in conflict with it.
    fn is_persistent(&self, state: &State, id: MoveId) -> bool {
        let system = self.system;
        if system.conflicts[id].iter().all(|&other| state.did(system, other)) {
            return true;
        }
        let raise = system.moves[id].raise;
        let mut ahead = state.clone();
        loop {
            let others: Vec<MoveId> = ahead.enabled(system).filter(|&other| other != id).collect();
            if others.is_empty() {
                return raise.is_none_or(|raise| is_last(system, raise, state, &ahead));
            }
            for other in others {
                if raise.is_none() && system.conflicts[id].binary_search(&other).is_ok() {
                    return false;
                }
                ahead.happen(system, other);
            }
        }
    }
}

/// Whether a raise that is held back is missing in every count that is not reached yet: so no wait
/// can tell it from those that happened meanwhile.
fn is_last(system: &System, raise: Raise, now: &State, ahead: &State) -> bool {
    let (value, without) = (now.signal(raise.slot), ahead.signal(raise.slot));
    let with = raised(without, raise);
    let Change::Add(_) = raise.change else { return value == without };
    system.slots[raise.slot].targets.range((Excluded(value), Unbounded)).all(|(&t, _)| t >= with)
}

/// Which enabled moves are followed.
enum Chosen {
    One([MoveId; 1]),
    All,
}

impl Chosen {
    fn as_slice<'a>(&'a self, enabled: &'a [MoveId]) -> &'a [MoveId] {
        match self {
            Chosen::One(one) => one,
            Chosen::All => enabled,
        }
    }
}

impl State {
    /// Nothing has happened.
    fn first(system: &System) -> Self {
        let words = system.threads.len() + system.adrift.len().div_ceil(WORD) + system.cells;
        State { words: vec![0; words], signals: vec![0; system.slots.len()] }
    }

    /// How many moves of a thread are over.
    pub(super) fn place(&self, thread: usize) -> usize {
        self.words[thread].into()
    }

    pub(super) fn signal(&self, slot: usize) -> i64 {
        self.signals[slot]
    }

    /// The move that wrote a cell last; 0 for none.
    pub(super) fn writer(&self, system: &System, cell: u32) -> MoveId {
        self.words[State::memory(system) + cell as usize].into()
    }

    fn memory(system: &System) -> usize {
        system.threads.len() + system.adrift.len().div_ceil(WORD)
    }

    fn is_done(&self, system: &System, number: usize) -> bool {
        self.words[system.threads.len() + number / WORD] >> (number % WORD) & 1 == 1
    }

    /// Whether a move is over.
    pub(super) fn did(&self, system: &System, id: MoveId) -> bool {
        match system.number[id] {
            Some(number) => self.is_done(system, number),
            None => system.place[id] < self.place(system.moves[id].thread),
        }
    }

    fn can_happen(&self, system: &System, id: MoveId) -> bool {
        let step = &system.moves[id];
        let reached =
            |wait: &Wait| wait.slots.clone().all(|slot| self.signals[slot] >= wait.target);
        step.passed.iter().all(|&(thread, place)| self.place(thread) >= place)
            && step.done.iter().all(|&number| self.is_done(system, number))
            && step.wait.as_ref().is_none_or(|wait| wait.target <= 0 || reached(wait))
    }

    /// The move a thread would do next.
    pub(super) fn next(&self, system: &System, thread: usize) -> Option<MoveId> {
        system.threads[thread].line.get(self.place(thread)).copied()
    }

    fn enabled<'a>(&'a self, system: &'a System) -> impl Iterator<Item = MoveId> + 'a {
        let lines = (0..system.threads.len()).filter_map(|thread| self.next(system, thread));
        let adrift = system.adrift.iter().enumerate();
        let adrift = adrift.filter(|&(number, _)| !self.is_done(system, number)).map(|(_, &id)| id);
        lines.chain(adrift).filter(|&id| self.can_happen(system, id))
    }

    fn is_over(&self, system: &System) -> bool {
        (0..system.threads.len()).all(|thread| self.next(system, thread).is_none())
    }

    fn happen(&mut self, system: &System, id: MoveId) {
        let step = &system.moves[id];
        match system.number[id] {
            Some(number) => {
                self.words[system.threads.len() + number / WORD] |= 1 << (number % WORD);
            }
            None => self.words[step.thread] += 1,
        }
        let memory = State::memory(system);
        for &cell in &step.writes {
            self.words[memory + cell as usize] = id as u16;
        }
        if let Some(raise) = step.raise {
            self.signals[raise.slot] = raised(self.signals[raise.slot], raise);
        }
    }
}

/// What a signal becomes. One that is set to less stays: the fault is told, and what could go on
/// still can.
pub(super) fn raised(old: i64, raise: Raise) -> i64 {
    match raise.change {
        Change::Add(count) => old.saturating_add(count.into()),
        Change::Set(value) => old.max(value.into()),
    }
}
