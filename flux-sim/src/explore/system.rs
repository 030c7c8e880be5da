//! What the actors of all ranks can do: moves, and what each needs, reads, writes and raises.
//!
//! A **thread** is an actor through all launches: its moves stand in line. A move **adrift** stands
//! in no line: what a put or a copy does after it was issued, a signal on its way through the network, and a bulk
//! read that no fence holds back. It happens at any time after what it needs, and before what needs it.

use super::build::{self, Loose};
use super::cells::Cell;
use super::{Config, ExploreError};
use flux_ir::eval::Change;
use flux_ir::program::{AgentId, Engine, Program, Scope, ValueId};
use std::collections::BTreeMap;
use std::ops::Range;

/// Number of a move; 0 is none: the writer of memory that nothing was written to.
pub(super) type MoveId = usize;

/// One indivisible thing that happens.
#[derive(Debug, Clone)]
pub(super) struct Move {
    pub(super) kind: Kind,
    /// The number of the statement it comes from; `None` for the begin and the end of a launch.
    pub(super) stmt: Option<u32>,
    /// The acting thread.
    pub(super) thread: usize,
    /// The launch of the thread's rank.
    pub(super) launch: u32,
    /// Threads, each with how many of its moves have to be over.
    pub(super) passed: Vec<(usize, usize)>,
    /// Moves adrift that have to be over, by their number among these.
    pub(super) done: Vec<usize>,
    pub(super) wait: Option<Wait>,
    pub(super) raise: Option<Raise>,
    pub(super) reads: Vec<Cell>,
    pub(super) writes: Vec<Cell>,
}

/// What a move is, where that decides how it is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Begins a launch of a rank.
    Begin,
    /// Ends one.
    End,
    /// Reads contributions, so many, for a sum with this value of the own rank.
    Sum(usize, ValueId),
    /// Writes: a store a value, a copy what it finds on the rank `origin`.
    Write { value: Option<ValueId>, origin: u32 },
    /// Anything else.
    Other,
}

/// Signals that all have to reach a target.
#[derive(Debug, Clone)]
pub(super) struct Wait {
    pub(super) slots: Range<usize>,
    pub(super) target: i64,
    pub(super) scope: Scope,
}

/// A change of a signal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raise {
    pub(super) slot: usize,
    pub(super) change: Change,
    pub(super) scope: Scope,
}

/// An actor through all launches.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) rank: u32,
    pub(super) agent: AgentId,
    pub(super) engine: Engine,
    /// The CTA; `None` for an exit.
    pub(super) cta: Option<u32>,
    pub(super) line: Vec<MoveId>,
}

impl Thread {
    /// The least scope in which a raise of one thread and a wait of another reach each other.
    pub(super) fn reach(&self, other: &Thread) -> Scope {
        let engine = [self, other].iter().any(|thread| thread.engine == Engine::CopyEngine);
        if self.rank != other.rank || engine {
            Scope::Sys
        } else if (self.agent, self.cta) == (other.agent, other.cta) {
            Scope::Cta
        } else {
            Scope::Gpu
        }
    }
}

/// A signal.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The raises of it, each with its thread.
    pub(super) raises: Vec<(MoveId, usize)>,
    /// The positive targets it is waited for, with the waits.
    pub(super) targets: BTreeMap<i64, Vec<MoveId>>,
}

/// Everything that can happen.
#[derive(Debug)]
pub(super) struct System {
    pub(super) threads: Vec<Thread>,
    pub(super) moves: Vec<Move>,
    /// The moves adrift, and of each move its number among them.
    pub(super) adrift: Vec<MoveId>,
    pub(super) number: Vec<Option<usize>>,
    /// Of each move in a line, its place there.
    pub(super) place: Vec<usize>,
    pub(super) slots: Vec<Slot>,
    pub(super) cells: usize,
    /// Of each move, those whose order with it can be seen: both touch a cell and one writes it, or
    /// both raise a signal.
    pub(super) conflicts: Vec<Vec<MoveId>>,
    /// Of each move, the place of its first read and of its first write among all of them.
    pub(super) accesses: Vec<(usize, usize)>,
}

impl System {
    /// What happens in `config.epochs` launches on every rank.
    pub(super) fn new(program: &Program, config: Config) -> Result<Self, ExploreError> {
        let Loose { threads, moves, adrift, slots, cells } = build::build(program, config)?;
        if moves.len() > usize::from(u16::MAX) {
            return Err(ExploreError::Moves { found: moves.len(), limit: u16::MAX.into() });
        }
        let mut number = vec![None; moves.len()];
        for (index, &id) in adrift.iter().enumerate() {
            number[id] = Some(index);
        }
        let mut places = vec![0; moves.len()];
        let mut slots: Vec<Slot> = (0..slots).map(|_| Slot::default()).collect();
        for (index, thread) in threads.iter().enumerate() {
            for (place, &id) in thread.line.iter().enumerate() {
                places[id] = place;
                if let Some(raise) = moves[id].raise {
                    slots[raise.slot].raises.push((id, index));
                }
                if let Some(wait) = moves[id].wait.as_ref().filter(|wait| wait.target > 0) {
                    for slot in wait.slots.clone() {
                        slots[slot].targets.entry(wait.target).or_default().push(id);
                    }
                }
            }
        }
        let mut accesses = Vec::with_capacity(moves.len());
        let mut next = 0;
        for step in &moves {
            accesses.push((next, next + step.reads.len()));
            next += step.reads.len() + step.writes.len();
        }
        for &id in &adrift {
            if let Some(raise) = moves[id].raise {
                slots[raise.slot].raises.push((id, moves[id].thread));
            }
        }
        let conflicts = conflicts(&moves, &slots, cells);
        Ok(System {
            threads,
            moves,
            adrift,
            number,
            place: places,
            slots,
            cells,
            conflicts,
            accesses,
        })
    }

    /// Whether a move neither touches memory nor raises nor waits: it only lets its thread go on.
    pub(super) fn is_silent(&self, id: MoveId) -> bool {
        let step = &self.moves[id];
        step.wait.is_none()
            && step.raise.is_none()
            && step.reads.is_empty()
            && step.writes.is_empty()
    }
}

fn conflicts(moves: &[Move], slots: &[Slot], cells: usize) -> Vec<Vec<MoveId>> {
    let (mut readers, mut writers) = (vec![Vec::new(); cells], vec![Vec::new(); cells]);
    for (id, step) in moves.iter().enumerate() {
        step.reads.iter().for_each(|&cell| readers[cell as usize].push(id));
        step.writes.iter().for_each(|&cell| writers[cell as usize].push(id));
    }
    let of = |(id, step): (MoveId, &Move)| {
        let mut all: Vec<MoveId> = Vec::new();
        for &cell in &step.reads {
            all.extend(&writers[cell as usize]);
        }
        for &cell in &step.writes {
            all.extend(readers[cell as usize].iter().chain(&writers[cell as usize]));
        }
        if let Some(raise) = step.raise {
            all.extend(slots[raise.slot].raises.iter().map(|(id, ..)| *id));
        }
        all.sort_unstable();
        all.dedup();
        all.retain(|&other| other != id);
        all
    };
    moves.iter().enumerate().map(of).collect()
}
