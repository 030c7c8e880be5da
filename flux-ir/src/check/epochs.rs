//! How launches of one Program differ: in numbers that grow with the epoch, and in planes that
//! take turns. Where they differ in nothing else, one launch is walked and the others follow.

use super::Findings;
use super::happens::History;
use super::launch::describe;
use super::machine::Raise;
use super::trace::{Act, ActorTrace, Layout};
use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Rule};
use crate::eval::{RankView, Region};
use crate::program::{At, BinOp, Cond, Expr, Op, Place, Program, Range, Stmt, Sym, Update, VarId};
use crate::span::Span;
use rustc_hash::FxHashSet;
use std::collections::HashSet;

/// What a launch adds to the one before it.
#[derive(Debug)]
pub(super) struct Uniform {
    /// By statement: how much the target of a wait, or the value of a raise, grows.
    growth: Vec<i64>,
    /// By buffer and launch: how far its planes are from those of the first launch.
    planes: Vec<Vec<i64>>,
}

impl Uniform {
    /// How `epochs` launches differ; none where control flow, regions or slots do, or where
    /// places of one buffer do not move alike. Extents of planes are those of `view`.
    pub(super) fn of(view: &RankView<'_>, epochs: u32) -> Option<Uniform> {
        let program = view.program;
        let planes = vec![None; program.buffers.len()];
        let mut analysis = Analysis { view, epochs, varying: HashSet::new(), planes };
        let growth: Option<Vec<i64>> =
            program.statements().map(|stmt| analysis.growth(stmt)).collect();
        let unmoved = || vec![0; epochs as usize];
        let planes = analysis.planes.into_iter();
        let planes = planes.map(|moves| moves.map_or_else(unmoved, |moves| moves.by));
        Some(Uniform { growth: growth?, planes: planes.collect() })
    }

    /// Extends the traces of the first launch by those of the others, and their rectangles.
    pub(super) fn extend(
        &self,
        layout: &Layout<'_>,
        actors: &mut [ActorTrace],
        rects: &mut Vec<Region>,
    ) {
        let first = rects.len() as u32;
        for epoch in 2..=layout.epochs {
            for rect in 0..first as usize {
                let mut region = rects[rect].clone();
                let moves = self.planes[region.buffer.index()][epoch as usize - 1];
                region.plane = (i64::from(region.plane) + moves) as u32;
                rects.push(region);
            }
        }
        for actor in actors {
            let count = actor.steps.len();
            for later in 1..layout.epochs {
                let reads = later < layout.read_epochs;
                for at in 0..count {
                    let mut step = actor.steps[at];
                    let grown = self.growth[step.number as usize] * i64::from(later);
                    match &mut step.act {
                        Act::Wait { target, .. } => *target += grown as i32,
                        Act::Raise { value, .. } => *value = (i64::from(*value) + grown) as u32,
                        Act::Read { .. } | Act::Contribution { .. } if !reads => continue,
                        Act::Read { rect, .. }
                        | Act::Contribution { rect, .. }
                        | Act::Write { rect, .. } => *rect += later * first,
                        Act::Fence => {}
                    }
                    actor.steps.push(step);
                }
                actor.starts.push(actor.steps.len() as u32);
            }
        }
    }
}

struct Analysis<'a, 'p> {
    view: &'a RankView<'p>,
    epochs: u32,
    /// Variables that depend on the epoch.
    varying: HashSet<VarId>,
    /// By buffer: how its planes move, once a place of it has been seen.
    planes: Vec<Option<Moves>>,
}

/// How the plane of a place changes from launch to launch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Moves {
    /// The indices of the first launch that take turns.
    first: Vec<Option<i64>>,
    /// How far each launch's plane is from the first's.
    by: Vec<i64>,
}

impl Analysis<'_, '_> {
    /// How much the number of a statement grows. None where launches differ otherwise.
    fn growth(&mut self, stmt: &Stmt) -> Option<i64> {
        let fixed = |all: &[&Expr]| all.iter().all(|expr| !self.varies(expr)).then_some(0);
        match &stmt.op {
            Op::Let { var, value } => {
                if self.varies(value) {
                    self.varying.insert(*var);
                }
                Some(0)
            }
            Op::Row { table: _, index, vars: _ } => fixed(&[index]),
            Op::For { var: _, from, to, step, body: _ } => fixed(&[from, to, step]),
            Op::If { cond: Cond::Eq(a, b) | Cond::Ne(a, b) | Cond::Lt(a, b), body: _ } => {
                fixed(&[a, b])
            }
            Op::Wait { signal: _, slots: Range { lo, hi }, target, scope: _ } => {
                fixed(&[lo, hi])?;
                self.slope(target)
            }
            Op::FenceProxyAsync => Some(0),
            Op::Mainloop { products } => {
                products.iter().try_for_each(|p| self.place(&p.a).and(self.place(&p.b)))?;
                Some(0)
            }
            Op::Store { to, value: _, adds: _ } => self.place(to).map(|()| 0),
            Op::Sum { var: _, own: _, from } | Op::Load { index: _, from } => {
                self.place(from).map(|()| 0)
            }
            Op::Signal { at, signal: _, slot, update, scope: _, after: _ } => {
                fixed(&[slot])?;
                self.at(at)?;
                match update {
                    Update::Add(value) | Update::Set(value) => self.slope(value),
                }
            }
            Op::Copy { from, to, adds: _ } => self.place(from).and(self.place(to)).map(|()| 0),
        }
    }

    fn varies(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Int(_) => false,
            Expr::Sym(sym) => *sym == Sym::Epoch,
            Expr::Var(var) => self.varying.contains(var),
            Expr::First(rank) => self.varies(rank),
            Expr::Bin(_, a, b) => self.varies(a) || self.varies(b),
        }
    }

    /// How much an expression grows with the epoch, where that is a number.
    fn slope(&self, expr: &Expr) -> Option<i64> {
        if !self.varies(expr) {
            return Some(0);
        }
        match expr {
            Expr::Sym(Sym::Epoch) => Some(1),
            Expr::Bin(BinOp::Add, a, b) => Some(self.slope(a)? + self.slope(b)?),
            Expr::Bin(BinOp::Sub, a, b) => Some(self.slope(a)? - self.slope(b)?),
            Expr::Bin(BinOp::Mul, a, b) => match (self.fixed(a), self.fixed(b)) {
                (Some(factor), _) => self.slope(b)?.checked_mul(factor),
                (_, Some(factor)) => self.slope(a)?.checked_mul(factor),
                (None, None) => None,
            },
            Expr::Int(_) | Expr::Sym(_) | Expr::Var(_) | Expr::First(_) | Expr::Bin(..) => None,
        }
    }

    /// An expression that is one number for all ranks, CTAs and launches.
    fn fixed(&self, expr: &Expr) -> Option<i64> {
        fixed(self.view.program, expr).then(|| self.view.constant(expr))
    }

    fn at(&self, at: &At) -> Option<()> {
        match at {
            At::Own => Some(()),
            At::Peer(rank) | At::Remote(rank) => (!self.varies(rank)).then_some(()),
        }
    }

    fn place(&mut self, place: &Place) -> Option<()> {
        self.at(&place.at)?;
        let (rows, cols) = (&place.rows, &place.cols);
        if [&rows.lo, &rows.hi, &cols.lo, &cols.hi].into_iter().any(|expr| self.varies(expr)) {
            return None;
        }
        let moves = self.moves(place)?;
        let known = self.planes[place.buffer.index()].get_or_insert_with(|| moves.clone());
        (*known == moves).then_some(())
    }

    /// How the plane of a place changes. An index that takes turns is a linear one modulo a
    /// number: so two launches meet in a plane exactly if the launches that follow them do.
    fn moves(&self, place: &Place) -> Option<Moves> {
        let extents = &self.view.program.buffers[place.buffer].planes;
        let mut moves = Moves { first: Vec::new(), by: vec![0; self.epochs as usize] };
        for (index, extent) in place.planes.iter().zip(extents) {
            let extent = self.view.constant(extent);
            moves.by.iter_mut().for_each(|by| *by *= extent);
            if !self.varies(index) {
                moves.first.push(None);
                continue;
            }
            let Expr::Bin(BinOp::Rem, linear, _) = index else { return None };
            self.slope(linear)?;
            let first = turn(index, 1)?;
            moves.first.push(Some(first));
            for (epoch, by) in (1..).zip(&mut moves.by) {
                let turn = turn(index, epoch)?;
                if !(0..extent).contains(&turn) {
                    return None;
                }
                *by += turn - first;
            }
        }
        Some(moves)
    }
}

/// Whether an expression is one number for all ranks, CTAs and launches.
fn fixed(program: &Program, expr: &Expr) -> bool {
    match expr {
        Expr::Int(_) => true,
        Expr::Sym(Sym::M | Sym::N | Sym::K | Sym::Shard | Sym::World | Sym::Ctas) => true,
        Expr::Sym(Sym::Rank | Sym::Epoch | Sym::Cta) => false,
        Expr::Var(var) => {
            let definition = program.lets.iter().find(|(of, _)| of == var);
            definition.is_some_and(|(_, value)| fixed(program, value))
        }
        Expr::First(rank) => fixed(program, rank),
        Expr::Bin(_, a, b) => fixed(program, a) && fixed(program, b),
    }
}

/// An expression of the epoch alone.
fn turn(expr: &Expr, epoch: i64) -> Option<i64> {
    match expr {
        Expr::Int(value) => Some(*value),
        Expr::Sym(Sym::Epoch) => Some(epoch),
        Expr::Bin(op, a, b) => {
            let (a, b) = (turn(a, epoch)?, turn(b, epoch)?);
            match op {
                BinOp::Add => a.checked_add(b),
                BinOp::Sub => a.checked_sub(b),
                BinOp::Mul => a.checked_mul(b),
                BinOp::Rem => a.checked_rem_euclid(b),
                BinOp::Div | BinOp::CeilDiv | BinOp::Min | BinOp::Max => None,
            }
        }
        Expr::Sym(_) | Expr::Var(_) | Expr::First(_) => None,
    }
}

/// The most launches that are run.
pub(super) const EPOCH_LIMIT: u32 = 17;

/// How many launches decide all: three, one more than the period of what takes turns, and one more
/// than those in which some wait asks for nothing yet. Where launches differ in more than numbers
/// that grow, two periods behind those.
pub(super) fn count(program: &Program, period: u32, uniform: bool) -> u32 {
    let lag = program.statements().map(|stmt| match &stmt.op {
        Op::Wait { target, .. } => {
            let target = |epoch: u32| turn(target, epoch.into());
            (1..EPOCH_LIMIT).take_while(|&epoch| target(epoch).is_some_and(|t| t <= 0)).count()
        }
        _ => 0,
    });
    let lag = lag.max().unwrap_or(0) as u32;
    let least = if uniform { (period + 1).max(lag + 1) } else { lag + 2 * period };
    super::EPOCHS.max(least).min(EPOCH_LIMIT)
}

/// Whether each wait asks for something in the last launch, if it ever does.
pub(super) fn lag(layout: &Layout<'_>, traces: &[ActorTrace], period: u32, found: &mut Findings) {
    let last = layout.epochs;
    for trace in traces {
        let (then, now) = (trace.waits(last - period), trace.waits(last));
        for ((_, _, t1), (now, _, t2)) in then.zip(now) {
            if t2 <= 0 && t2 > t1 {
                let stmt = layout.stmt(now);
                found.once(Rule::CounterWrap, stmt, || {
                    let message = format!(
                        "the wait asks for nothing in the first {last} launches, which are those that are checked"
                    );
                    Diagnostic::new(Rule::CounterWrap, stmt.span, message)
                        .note(Span::UNKNOWN, describe(layout.launch))
                        .help("let credit lag by two launches, as `epoch - 2` does")
                });
            }
        }
    }
}

/// Whether waits keep up with what they wait for: between launches `period` apart, the target of a
/// wait grows by what the slot grows, and by something.
pub(super) fn drift(
    layout: &Layout<'_>,
    traces: &[ActorTrace],
    history: &History,
    period: u32,
    found: &mut Findings,
) {
    let last = layout.epochs;
    // Waits alike are asked for once.
    let mut asked = FxHashSet::default();
    for trace in traces {
        for epoch in last.saturating_sub(2 * period) + 1..=last - period {
            let (now, then) = (trace.waits(epoch), trace.waits(epoch + period));
            for ((_, _, t1), (then, slots, t2)) in now.zip(then) {
                let grows = i64::from(t2) - i64::from(t1);
                if t2 <= 0 || !asked.insert((slots.clone(), t1, t2)) {
                    continue;
                }
                for slot in slots {
                    let growth = history.growth(slot, epoch, epoch + period);
                    if growth != grows || grows <= 0 {
                        drifts(layout, layout.stmt(then), slot, (grows, growth), period, found);
                    } else if !is_likeness(history, slot, (t1, t2), period) {
                        changes(layout, layout.stmt(then), slot, found);
                    }
                }
            }
        }
    }
}

/// Whether what a wait stands for is, one period later, the same raises and those of the first
/// period. Of a slot that one actor raises, each time by something, that follows from the sums.
fn is_likeness(history: &History, slot: u32, (before, after): (i32, i32), period: u32) -> bool {
    let all = history.of(slot);
    if all.iter().all(|raise| raise.actor == all[0].actor) {
        return true;
    }
    let place = |raise: &Raise, later: u32| (raise.actor, raise.epoch + later, raise.place);
    let moved = history.stands_for(slot, before).iter().map(|raise| place(raise, period));
    let first = all.iter().filter(|raise| raise.epoch <= period).map(|raise| place(raise, 0));
    let mut expected: Vec<_> = moved.chain(first).collect();
    let mut found: Vec<_> =
        history.stands_for(slot, after).iter().map(|raise| place(raise, 0)).collect();
    expected.sort_unstable();
    found.sort_unstable();
    expected == found
}

fn changes<'p>(layout: &Layout<'p>, stmt: &'p Stmt, slot: u32, found: &mut Findings) {
    found.once(Rule::CountNotExact, stmt, || {
        let message = format!(
            "the wait for `{}` stands for other raises in the last launch than in the one before",
            layout.slot_name(slot)
        );
        Diagnostic::new(Rule::CountNotExact, stmt.span, message)
            .note(Span::UNKNOWN, describe(layout.launch))
            .help("wait for all raises of a launch, or give each raiser a slot of its own")
    });
}

fn drifts<'p>(
    layout: &Layout<'p>,
    stmt: &'p Stmt,
    slot: u32,
    (grows, growth): (i64, i64),
    period: u32,
    found: &mut Findings,
) {
    let (_, signal, _) = layout.place_of_slot(slot);
    found.once(Rule::CountNotExact, stmt, || {
        let launches = if period == 1 { "a launch".into() } else { format!("{period} launches") };
        let slot = layout.slot_name(slot);
        let message = if grows <= 0 && growth <= 0 {
            format!("the target of the wait for `{slot}` does not grow: launches after the first do not wait")
        } else {
            format!("the target of the wait for `{slot}` grows by {grows} {launches}, the signal by {growth}")
        };
        let diagnostic = Diagnostic::new(Rule::CountNotExact, stmt.span, message)
            .note(Span::UNKNOWN, describe(layout.launch))
            .help("wait for what the raises of a launch add up to, times the epoch");
        match super::raises(layout.program, signal).first() {
            Some((raise, _)) => diagnostic.note(raise.span, "raised here"),
            None => diagnostic,
        }
    });
}
