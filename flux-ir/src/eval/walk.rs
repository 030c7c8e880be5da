//! Walks the statements of one agent.

use super::{Action, Change, Event, RankView, Region, Scoped, TileRange, clamp};
use crate::arena::Handle;
use crate::program::{At, Op, Place, Range, Stmt, Update, VarId};
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
    frames: Vec<Frame<'p>>,
    /// Whether the statement at hand named an index that had to be clamped.
    clamped: Cell<bool>,
    escape: Option<&'p Stmt>,
}

#[derive(Debug, Clone)]
struct Frame<'p> {
    body: &'p [Stmt],
    next: usize,
    repeat: Option<Repeat>,
}

/// A loop in progress.
#[derive(Debug, Clone)]
struct Repeat {
    var: VarId,
    to: i64,
    step: i64,
}

impl<'a, 'p> AgentRun<'a, 'p> {
    pub(super) fn new(view: &'a RankView<'p>, body: &'p [Stmt], cta: u32, epoch: u32) -> Self {
        AgentRun {
            vars: view.vars.clone(),
            view,
            cta,
            epoch,
            tile: TileRange::default(),
            frames: vec![Frame { body, next: 0, repeat: None }],
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

    fn scope(&self) -> Scoped<'_, 'p> {
        Scoped { view: self.view, vars: &self.vars, cta: self.cta, epoch: self.epoch }
    }

    fn range(&self, range: &Range) -> ops::Range<u32> {
        let scope = self.scope();
        let (lo, hi) = (scope.eval(&range.lo), scope.eval(&range.hi));
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

    fn rank(&self, at: &At) -> u32 {
        match at {
            At::Own => self.view.rank,
            At::Peer(rank) => self.index(self.scope().eval(rank)),
        }
    }

    fn region(&self, place: &Place) -> Region {
        let scope = self.scope();
        let extents = &self.view.program.buffers[place.buffer].planes;
        let plane = place.planes.iter().zip(extents).fold(0, |plane: i64, (index, extent)| {
            let (extent, index) = (self.view.constant(extent), scope.eval(index));
            if !(0..extent).contains(&index) {
                self.clamped.set(true);
            }
            plane.saturating_mul(extent).saturating_add(index)
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
    fn contributions(&mut self, var: VarId, from: &Place) -> Vec<Region> {
        let others = (0..self.view.launch.world).filter(|&rank| rank != self.view.rank);
        let mut regions = Vec::with_capacity(others.clone().count());
        for rank in others {
            self.vars[var.index()] = rank.into();
            regions.push(self.region(from));
        }
        regions
    }

    /// Enters the body of a loop whose variable already holds its first value.
    fn enter(&mut self, body: &'p [Stmt], repeat: Option<Repeat>) {
        if let Some(repeat) = &repeat
            && self.vars[repeat.var.index()] >= repeat.to
        {
            return;
        }
        self.frames.push(Frame { body, next: 0, repeat });
    }

    /// The next statement, closing and repeating loops on the way.
    fn next_stmt(&mut self) -> Option<&'p Stmt> {
        loop {
            let frame = self.frames.last_mut()?;
            if let Some(stmt) = frame.body.get(frame.next) {
                frame.next += 1;
                return Some(stmt);
            }
            if let Some(repeat) = &frame.repeat {
                let value = &mut self.vars[repeat.var.index()];
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
            let stmt = self.next_stmt()?;
            let event = self.perform(stmt);
            if self.clamped.take() && self.escape.is_none() {
                self.escape = Some(stmt);
            }
            if let Some(action) = event {
                return Some(Event { stmt, tile: self.tile.clone(), action });
            }
        }
    }
}

impl<'p> AgentRun<'_, 'p> {
    /// Does what a statement says; index statements leave no action.
    fn perform(&mut self, stmt: &'p Stmt) -> Option<Action> {
        let action = match &stmt.op {
            Op::Let { var, value } => {
                self.vars[var.index()] = self.scope().eval(value);
                return None;
            }
            Op::Row { table, index, vars } => {
                let index = self.index(self.scope().eval(index)) as usize;
                let row = self.view.table(*table).get(index).copied();
                self.clamped.set(self.clamped.get() || row.is_none());
                let row = row.unwrap_or_default();
                for (var, value) in vars.iter().zip(row) {
                    self.vars[var.index()] = value.into();
                }
                self.tile = self.view.tile_range(row[0], row[1]);
                return None;
            }
            Op::For { var, from, to, step, body } => {
                let scope = self.scope();
                let (from, to, step) = (scope.eval(from), scope.eval(to), scope.eval(step));
                self.clamped.set(step < 1);
                self.vars[var.index()] = from;
                self.enter(body, Some(Repeat { var: *var, to, step: step.max(1) }));
                return None;
            }
            Op::If { cond, body } => {
                if self.scope().holds(cond) {
                    self.enter(body, None);
                }
                return None;
            }
            Op::Wait { signal, slots, target, scope } => Action::Wait {
                signal: *signal,
                slots: self.range(slots),
                target: self.scope().eval(target),
                scope: *scope,
            },
            Op::FenceProxyAsync => Action::FenceProxyAsync,
            Op::Mainloop { products } => Action::Mainloop {
                products: products
                    .iter()
                    .map(|p| (self.region(&p.a), self.region(&p.b), p.transposed))
                    .collect(),
            },
            Op::Store { to, value } => Action::Store { to: self.region(to), value: *value },
            Op::Sum { var, own, from } => {
                Action::Sum { own: *own, from: self.contributions(*var, from) }
            }
            Op::Signal { at, signal, slot, update, scope, after } => Action::Signal {
                rank: self.rank(at),
                signal: *signal,
                slot: self.index(self.scope().eval(slot)),
                change: match update {
                    Update::Add(count) => Change::Add(self.index(self.scope().eval(count))),
                    Update::Set(value) => Change::Set(self.index(self.scope().eval(value))),
                },
                scope: *scope,
                after: *after,
            },
            Op::Copy { from, to } => Action::Copy { from: self.region(from), to: self.region(to) },
        };
        Some(action)
    }
}

impl RankView<'_> {
    /// The rows and columns of the output under tile `(m, n)`.
    fn tile_range(&self, m: u32, n: u32) -> TileRange {
        let cut = |index: u32, size: u32, end: u32| {
            let lo = index.saturating_mul(size).min(end);
            lo..lo.saturating_add(size).min(end)
        };
        let (tile, shape) = (self.program.tile, self.launch.shape);
        TileRange { rows: cut(m, tile.m, shape.m), cols: cut(n, tile.n, shape.n) }
    }
}
