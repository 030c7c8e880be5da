//! Walks the statements of one agent.

use super::fold::{Code, CodeOp, Folded, FoldedPlace, Inputs};
use super::{Action, Change, Event, Loads, RankView, Region, TileRange, clamp};
use crate::arena::Handle;
use crate::element::Element;
use crate::program::{LOADS, Stmt, TableId, ValueId};
use smallvec::SmallVec;
use std::cell::Cell;
use std::ops;

/// The events of one agent, in program order.
#[derive(Debug, Clone)]
pub struct AgentRun<'a, 'p> {
    view: &'a RankView<'p>,
    vars: Vec<i64>,
    cta: u32,
    epoch: u32,
    tile: TileRange,
    /// Tiles come to so far.
    visit: u32,
    frames: Vec<Frame<'a, 'p>>,
    /// What each load of the tile at hand named.
    loaded: SmallVec<[Option<Region>; 1]>,
    /// Whether the statement at hand named an index that had to be clamped.
    clamped: Cell<bool>,
    escape: Option<&'p Stmt>,
}

#[derive(Debug, Clone)]
struct Frame<'a, 'p> {
    body: &'a [Code<'p>],
    next: usize,
    repeat: Option<Repeat>,
}

/// A loop in progress.
#[derive(Debug, Clone)]
struct Repeat {
    var: usize,
    to: i64,
    step: i64,
}

impl<'a, 'p> AgentRun<'a, 'p> {
    pub(super) fn new(view: &'a RankView<'p>, body: &'a [Code<'p>], cta: u32, epoch: u32) -> Self {
        AgentRun {
            vars: view.vars.clone(),
            view,
            cta,
            epoch,
            tile: TileRange::default(),
            visit: 0,
            frames: vec![Frame { body, next: 0, repeat: None }],
            loaded: SmallVec::new(),
            clamped: Cell::new(false),
            escape: None,
        }
    }

    /// The first statement since the last call that named an index outside of what it indexes
    /// (a negative or too large slot, rank, row or plane, a row that its table lacks, a step
    /// below 1). Index arithmetic is total, so the walk goes on with a nearby index.
    pub fn take_escape(&mut self) -> Option<&'p Stmt> {
        self.escape.take()
    }

    fn eval(&self, folded: &Folded) -> i64 {
        folded.eval(Inputs { vars: &self.vars, cta: self.cta, epoch: self.epoch })
    }

    fn range(&self, [lo, hi]: &[Folded; 2]) -> ops::Range<u32> {
        let (lo, hi) = (self.eval(lo), self.eval(hi));
        if lo >= hi {
            return clamp(lo)..clamp(lo);
        }
        self.index(lo)..self.index(hi)
    }

    /// `value` as an index; noted where that changes it.
    fn index(&self, value: i64) -> u32 {
        let index = clamp(value);
        if i64::from(index) != value {
            self.clamped.set(true);
        }
        index
    }

    fn rank(&self, at: &Option<Folded>) -> u32 {
        match at {
            None => self.view.rank,
            Some(rank) => self.index(self.eval(rank)),
        }
    }

    fn region(&self, place: &FoldedPlace) -> Region {
        let plane = place.planes.iter().fold(0, |plane: i64, (extent, index)| {
            let index = self.eval(index);
            if !(0..*extent).contains(&index) {
                self.clamped.set(true);
            }
            plane.saturating_mul(*extent).saturating_add(index)
        });
        Region {
            rank: self.rank(&place.at),
            buffer: place.buffer,
            plane: clamp(plane),
            rows: self.range(&place.rows),
            cols: self.range(&place.cols),
        }
    }

    /// The contributions a `Sum` adds, in order: every rank but the own one.
    fn contributions(&mut self, var: usize, from: &FoldedPlace) -> Vec<Region> {
        let others = (0..self.view.launch.world).filter(|&rank| rank != self.view.rank);
        let mut regions = Vec::with_capacity(self.view.launch.world as usize);
        for rank in others {
            self.vars[var] = rank.into();
            regions.push(self.region(from));
        }
        regions
    }

    /// What loads a value reads, whole.
    fn loads_of(&self, value: ValueId) -> impl Iterator<Item = (u32, Region)> {
        let loads = self.view.loads.get(value.index()).into_iter().flatten();
        loads.filter_map(|&index| Some((index, self.loaded.get(index as usize)?.clone()?)))
    }

    /// What a value reads of loads for the elements of `of`, as far as they were named.
    fn loads(&self, value: ValueId, of: &Region) -> Loads {
        if of.is_empty() {
            return Loads::new();
        }
        let part = |(index, region): (u32, Region)| {
            let rows = cut(&of.rows, &region.rows);
            (index, Region { rows, cols: cut(&of.cols, &region.cols), ..region })
        };
        self.loads_of(value).map(part).collect()
    }

    /// Enters the body of a loop whose variable already holds its first value.
    fn enter(&mut self, body: &'a [Code<'p>], repeat: Option<Repeat>) {
        if let Some(repeat) = &repeat
            && self.vars[repeat.var] >= repeat.to
        {
            return;
        }
        self.frames.push(Frame { body, next: 0, repeat });
    }

    /// The next statement, closing and repeating loops on the way.
    fn next_stmt(&mut self) -> Option<&'a Code<'p>> {
        loop {
            let frame = self.frames.last_mut()?;
            if let Some(stmt) = frame.body.get(frame.next) {
                frame.next += 1;
                return Some(stmt);
            }
            if let Some(repeat) = &frame.repeat {
                let value = &mut self.vars[repeat.var];
                *value = value.saturating_add(repeat.step);
                if *value < repeat.to {
                    frame.next = 0;
                    continue;
                }
            }
            self.frames.pop();
        }
    }
}

impl<'p> Iterator for AgentRun<'_, 'p> {
    type Item = Event<'p>;

    fn next(&mut self) -> Option<Event<'p>> {
        loop {
            let code = self.next_stmt()?;
            let event = self.perform(code);
            if self.clamped.take() && self.escape.is_none() {
                self.escape = Some(code.stmt);
            }
            if let Some(action) = event {
                let Code { stmt, number, op: _ } = *code;
                let (tile, visit) = (self.tile.clone(), self.visit);
                return Some(Event { stmt, number, tile, visit, action });
            }
        }
    }
}

impl<'a, 'p> AgentRun<'a, 'p> {
    /// Does what a statement says; index statements leave no action.
    fn perform(&mut self, code: &'a Code<'p>) -> Option<Action> {
        let action = match &code.op {
            CodeOp::Let { var, value } => {
                self.vars[*var] = self.eval(value);
                return None;
            }
            CodeOp::Row { table, index, vars } => {
                let index = self.index(self.eval(index)) as usize;
                let row = self.view.table(*table).get(index).copied();
                self.clamped.set(self.clamped.get() || row.is_none());
                let row = row.unwrap_or_default();
                for (var, value) in vars.iter().zip(row) {
                    self.vars[*var] = value.into();
                }
                self.tile = self.view.tile_range(*table, row[0], row[1]);
                self.visit = self.visit.saturating_add(1);
                return None;
            }
            CodeOp::For { var, from, to, step, body } => {
                let (from, to, step) = (self.eval(from), self.eval(to), self.eval(step));
                self.clamped.set(step < 1);
                self.vars[*var] = from;
                self.enter(body, Some(Repeat { var: *var, to, step: step.max(1) }));
                return None;
            }
            CodeOp::If { cond, body } => {
                let inputs = Inputs { vars: &self.vars, cta: self.cta, epoch: self.epoch };
                if cond.holds(inputs) {
                    self.enter(body, None);
                }
                return None;
            }
            CodeOp::Wait { signal, slots, target, scope } => Action::Wait {
                signal: *signal,
                slots: self.range(slots),
                target: self.eval(target),
                scope: *scope,
            },
            CodeOp::FenceProxyAsync => Action::FenceProxyAsync,
            CodeOp::Mainloop { products } => Action::Mainloop {
                products: products
                    .iter()
                    .map(|(a, b, transposed)| (self.region(a), self.region(b), *transposed))
                    .collect(),
            },
            CodeOp::Store { to, value, adds } => {
                let to = self.region(to);
                Action::Store { loads: self.loads(*value, &to), to, value: *value, adds: *adds }
            }
            CodeOp::Sum { var, own, from } => {
                let buffer = self.view.program.buffers.get(from.buffer);
                let element = buffer.map_or(Element::F32, |buffer| buffer.element);
                let from = self.contributions(*var, from);
                let loads = match from.first() {
                    Some(first) => self.loads(*own, first),
                    None => self.loads_of(*own).collect(),
                };
                Action::Sum { own: *own, element, from, loads }
            }
            CodeOp::Load { index, from } => {
                let region = self.region(from);
                // A Program that numbers more is refused.
                if *index < LOADS as usize {
                    self.loaded.resize(self.loaded.len().max(*index + 1), None);
                    self.loaded[*index] = Some(region);
                }
                return None;
            }
            CodeOp::Signal { at, signal, slot, sets, value, scope, after } => {
                let value = self.index(self.eval(value));
                Action::Signal {
                    rank: self.rank(at),
                    signal: *signal,
                    slot: self.index(self.eval(slot)),
                    change: if *sets { Change::Set(value) } else { Change::Add(value) },
                    scope: *scope,
                    after: *after,
                }
            }
            CodeOp::Copy { from, to, adds } => {
                Action::Copy { from: self.region(from), to: self.region(to), adds: *adds }
            }
        };
        Some(action)
    }
}

/// What two ranges share.
fn cut(one: &ops::Range<u32>, other: &ops::Range<u32>) -> ops::Range<u32> {
    let lo = one.start.max(other.start);
    lo..one.end.min(other.end).max(lo)
}

impl RankView<'_> {
    /// The rows and columns of the output under tile `(m, n)` of a table.
    fn tile_range(&self, table: TableId, m: u32, n: u32) -> TileRange {
        let cut = |index: u32, size: u32, end: u32| {
            let lo = index.saturating_mul(size).min(end);
            lo..lo.saturating_add(size).min(end)
        };
        let cols = cut(n, self.program.tile.n, self.launch.shape.n);
        let rows = self.grids.get(table.index()).map_or(0..0, |grid| grid.rows_of(m));
        let first = self.tiled(table).start;
        TileRange { rows: first + rows.start..first + rows.end, cols }
    }
}
