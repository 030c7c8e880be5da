//! Symmetric ranks: which do the same, so that one of each class stands for all.
//!
//! A launch is **symmetric under a shift** by `c` ranks if, for every rank r, rank r + c does what
//! r does with every rank it names shifted by c (modulo the world), and every signal moved along.
//! Then all ranks of a class modulo c act at the same times, and a raise of rank r on rank p is,
//! on the representative of p's class, the raise of r's representative shifted by as much.
//!
//! The shift is derived from shards and tiles: it has to take the grid of tiles to itself. Where
//! a signal moves to is one of two forms: an array has a part for each source rank, which shifts
//! with it, and inside of a part slots stay, or shift like the rows of the output. The form is
//! found, and the symmetry shown, by walking ranks side by side:
//!
//! - representatives and their first images through all they do,
//! - of every other rank its tile tables, its copy engines, the exits, and the first and the last
//!   CTA of each agent.
//!
//! CTAs differ in the rows of the table they take and in nothing else, which is asked of the
//! Program. What is left to trust is that the body of the tile loop treats a row that was not
//! walked like those that were; tests compare with every rank simulated.

use super::Error;
use flux_ir::arena::Handle;
use flux_ir::eval::Action;
use flux_ir::eval::{AgentRun, Change, Event, Launch, RankView, Region};
use flux_ir::program::{AgentId, Engine, Expr, Op, Program, SignalId, Sym};
use flux_ir::tile::shard_rows;
use std::iter::Peekable;
use std::ops::Range;

/// Which ranks stand for which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fold {
    world: u32,
    classes: u32,
    /// Of each signal array, how its slots move; none where every rank stands for itself.
    arrays: Vec<Move>,
}

/// How the slots of an array move under a shift by one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Move {
    /// Slots for each source rank; 0 where slots stay.
    part: u32,
    /// By how many slots those of a part move.
    within: u32,
}

impl Fold {
    /// Every rank for itself.
    pub const fn none(world: u32) -> Fold {
        Fold { world, classes: world, arrays: Vec::new() }
    }

    /// The fewest classes that can be shown for a launch.
    ///
    /// # Errors
    /// The launch has no tile order.
    pub fn of(program: &Program, launch: Launch) -> Result<Fold, Error> {
        let world = launch.world;
        if !program.communicates() {
            return Fold::apart(program, launch);
        }
        let Some(classes) = classes(program, launch) else { return Ok(Fold::none(world)) };
        let first = RankView::new(program, launch, 0)?;
        let parts: Vec<u32> = program
            .signals
            .handles()
            .map(|signal| first.signal_len(signal))
            .map(|len| if len.is_multiple_of(world) { len / world } else { 0 })
            .collect();
        let mut arrays: Vec<_> = parts.iter().map(|&part| Move { part, within: 0 }).collect();
        // Each array in its next form where one does not fit; they do not hang together.
        for form in 0..3 {
            let mut wrong = vec![false; arrays.len()];
            let fold = Fold { world, classes, arrays: arrays.clone() };
            if fold.shown(program, launch, &mut wrong)? {
                return Ok(fold);
            }
            for ((array, &part), _) in
                arrays.iter_mut().zip(&parts).zip(wrong).filter(|(_, wrong)| *wrong)
            {
                let within = u64::from(part) * u64::from(classes) / u64::from(world);
                *array = match form {
                    0 => Move { part, within: within as u32 },
                    _ => Move { part: 0, within: 0 },
                };
            }
        }
        Ok(Fold::none(world))
    }

    /// Where nobody meets anybody, rank 0 stands for all if they visit tiles in one order.
    fn apart(program: &Program, launch: Launch) -> Result<Fold, Error> {
        let world = launch.world;
        let first = RankView::new(program, launch, 0)?;
        for rank in 1..world {
            let view = RankView::new(program, launch, rank)?;
            if program.tables.handles().any(|table| first.table(table) != view.table(table)) {
                return Ok(Fold::none(world));
            }
        }
        Ok(Fold { world, classes: 1, arrays: Vec::new() })
    }

    /// Ranks of the world.
    pub const fn world(&self) -> u32 {
        self.world
    }

    /// Ranks that stand for all others, from 0.
    pub const fn classes(&self) -> u32 {
        self.classes
    }

    /// The rank that stands for `rank`.
    pub const fn class(&self, rank: u32) -> u32 {
        rank % self.classes
    }

    /// The slot on the representative that a slot of `rank` is the image of.
    pub(super) fn slot(&self, rank: u32, signal: SignalId, slot: u32) -> (u32, u32) {
        if rank < self.classes {
            return (rank, slot);
        }
        let back = self.world / self.classes - rank / self.classes;
        (self.class(rank), self.moved(signal, slot, back))
    }

    /// Where a slot moves to under a shift by `times` classes.
    fn moved(&self, signal: SignalId, slot: u32, times: u32) -> u32 {
        let Some(&Move { part, within }) = self.arrays.get(signal.index()) else { return slot };
        if part == 0 {
            return slot;
        }
        let (source, place) = (slot / part, slot % part);
        let source = (source + times * self.classes) % self.world;
        let place = (u64::from(place) + u64::from(within) * u64::from(times)) % u64::from(part);
        source * part + place as u32
    }

    /// Whether the launch is symmetric under this fold; marks the arrays that speak against it.
    fn shown(&self, program: &Program, launch: Launch, wrong: &mut [bool]) -> Result<bool, Error> {
        let mut representatives = Vec::new();
        for rank in 0..self.classes {
            representatives.push(RankView::new(program, launch, rank)?);
        }
        let mut alike = true;
        for rank in self.classes..self.world {
            let image = RankView::new(program, launch, rank)?;
            let of = &representatives[self.class(rank) as usize];
            let pair = Pair { fold: self, times: rank / self.classes, of, image: &image };
            let all = rank < 2 * self.classes;
            alike &= pair.tables() && pair.agents(all, wrong);
            if !alike && !all {
                return Ok(false);
            }
        }
        Ok(alike)
    }
}

/// The least shift that takes shards to shards and tiles to tiles.
fn classes(program: &Program, launch: Launch) -> Option<u32> {
    let Launch { shape, world, .. } = launch;
    let shard = shard_rows(shape.m, world);
    let fits = world > 1 && shape.m > 0 && shape.m.is_multiple_of(world);
    if !fits || mentions_cta(program) {
        return None;
    }
    let classes = program.tile.m / gcd(shard, program.tile.m);
    // Ranks of a node differ by where in it they are.
    let node = program.node.max(1);
    let classes = classes / gcd(classes, node) * node;
    (world.is_multiple_of(classes) && classes < world).then_some(classes)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Whether a statement depends on the CTA otherwise than by where its tile loop begins.
fn mentions_cta(program: &Program) -> bool {
    fn within(expr: &Expr) -> bool {
        match expr {
            Expr::Sym(sym) => *sym == Sym::Cta,
            Expr::Int(_) | Expr::Var(_) => false,
            Expr::First(rank) => within(rank),
            Expr::Bin(_, a, b) => within(a) || within(b),
        }
    }
    let place = |place: &flux_ir::program::Place| {
        let ranges = [&place.rows.lo, &place.rows.hi, &place.cols.lo, &place.cols.hi];
        let at = match &place.at {
            flux_ir::program::At::Own => false,
            flux_ir::program::At::Peer(rank) | flux_ir::program::At::Remote(rank) => within(rank),
        };
        at || place.planes.iter().chain(ranges).any(within)
    };
    program.statements().any(|stmt| match &stmt.op {
        Op::Let { value, .. } => within(value),
        Op::Row { index, .. } => within(index),
        Op::For { to, step, .. } => within(to) || within(step),
        Op::If { cond, .. } => {
            let (flux_ir::program::Cond::Eq(a, b)
            | flux_ir::program::Cond::Ne(a, b)
            | flux_ir::program::Cond::Lt(a, b)) = cond;
            within(a) || within(b)
        }
        Op::Wait { slots, target, .. } => within(&slots.lo) || within(&slots.hi) || within(target),
        Op::Mainloop { products } => products.iter().any(|p| place(&p.a) || place(&p.b)),
        Op::Store { to, .. } => place(to),
        Op::Sum { from, .. } | Op::Load { from, .. } => place(from),
        Op::Copy { from, to, adds: _ } => place(from) || place(to),
        Op::Signal { slot, .. } => within(slot),
        Op::FenceProxyAsync => false,
    })
}

/// A representative and a rank it is to stand for.
struct Pair<'a, 'p> {
    fold: &'a Fold,
    /// How often the shift takes one to the other.
    times: u32,
    of: &'a RankView<'p>,
    image: &'a RankView<'p>,
}

impl Pair<'_, '_> {
    fn shift(&self) -> u32 {
        self.times * self.fold.classes
    }

    /// Whether both visit the same tiles, shifted by their shards.
    fn tables(&self) -> bool {
        let program = self.of.program;
        let shape = self.of.launch.shape;
        let rows = shape.m.div_ceil(program.tile.m.max(1)).max(1);
        let shard = u64::from(shard_rows(shape.m, self.fold.world));
        let by = (u64::from(self.shift()) * shard / u64::from(program.tile.m.max(1))) as u32;
        program.tables.handles().all(|table| {
            let (of, image) = (self.of.table(table), self.image.table(table));
            let alike = |(a, b): (&[u32; 4], &[u32; 4])| (a[0] + by) % rows == b[0] && a[1] == b[1];
            of.len() == image.len() && of.iter().zip(image).all(alike)
        })
    }

    /// Whether both do the same, in all that they do or in a part of it.
    fn agents(&self, all: bool, wrong: &mut [bool]) -> bool {
        let ctas = self.of.launch.ctas;
        let mut alike = true;
        for (agent, entry) in self.of.program.agents.iter() {
            let bodies: Vec<u32> = match entry.engine {
                Engine::CopyEngine => vec![0],
                Engine::Ctas | Engine::CopyWarps | Engine::Tma if all => (0..ctas).collect(),
                Engine::Ctas | Engine::CopyWarps | Engine::Tma => vec![0, ctas - 1],
            };
            for cta in bodies {
                let at_once = entry.engine.is_in_kernel();
                let of = self.of.agent(agent, cta, EPOCH);
                let image = self.image.agent(agent, cta, EPOCH);
                alike &= self.runs(of, image, at_once, wrong);
            }
            alike &= self.exits(agent, wrong);
            if !alike && !all {
                return false;
            }
        }
        alike
    }

    fn exits(&self, agent: AgentId, wrong: &mut [bool]) -> bool {
        let (of, image) = (self.of.exit(agent, EPOCH), self.image.exit(agent, EPOCH));
        self.runs(of, image, true, wrong)
    }

    /// Whether two walks correspond. `at_once`: raises that follow each other take no time, so
    /// that their order means nothing.
    fn runs(
        &self,
        of: AgentRun<'_, '_>,
        image: AgentRun<'_, '_>,
        at_once: bool,
        wrong: &mut [bool],
    ) -> bool {
        let (mut of, mut image) = (of.peekable(), image.peekable());
        let mut alike = true;
        loop {
            match (of.next(), image.next()) {
                (None, None) => return alike,
                (Some(a), Some(b)) if meets(&a, at_once) && meets(&b, at_once) => {
                    let (a, b) = (batch(a, &mut of, at_once), batch(b, &mut image, at_once));
                    alike &= self.meetings(&a, &b, wrong);
                }
                (Some(a), Some(b)) => alike &= self.events(&a, &b, wrong),
                _ => return false,
            }
        }
    }

    /// Whether waits or raises that follow each other correspond, in any order.
    fn meetings(&self, of: &[Event<'_>], image: &[Event<'_>], wrong: &mut [bool]) -> bool {
        if let ([a], [b]) = (of, image) {
            return self.events(a, b, wrong);
        }
        let mut moved: Vec<_> = of.iter().flat_map(|a| self.met(a, self.times)).collect();
        let mut met: Vec<_> = image.iter().flat_map(|b| self.met(b, 0)).collect();
        moved.sort_unstable();
        met.sort_unstable();
        if moved == met {
            return true;
        }
        for (signal, wrong) in wrong.iter_mut().enumerate() {
            let of_signal = |met: &&Met| met.1 == signal;
            *wrong |= !moved.iter().filter(of_signal).eq(met.iter().filter(of_signal));
        }
        false
    }

    /// What a wait or a raise is about, each slot for itself, shifted so often.
    fn met(&self, event: &Event<'_>, times: u32) -> Vec<Met> {
        let shift = times * self.fold.classes;
        match &event.action {
            Action::Wait { signal, slots, target, .. } => {
                let one = |slot| {
                    let slot = self.fold.moved(*signal, slot, times);
                    (0, signal.index(), slot, (false, *target))
                };
                slots.clone().map(one).collect()
            }
            Action::Signal { rank, signal, slot, change, .. } => {
                let rank = (rank + shift) % self.fold.world;
                let slot = self.fold.moved(*signal, *slot, times);
                let change = match change {
                    Change::Add(value) => (false, i64::from(*value)),
                    Change::Set(value) => (true, i64::from(*value)),
                };
                vec![(rank, signal.index(), slot, change)]
            }
            _ => Vec::new(),
        }
    }

    fn events(&self, a: &Event<'_>, b: &Event<'_>, wrong: &mut [bool]) -> bool {
        if a.number != b.number {
            return false;
        }
        match (&a.action, &b.action) {
            (
                Action::Wait { signal, slots, target, .. },
                Action::Wait { slots: image, target: other, .. },
            ) => target == other && self.slots(*signal, slots, image, wrong),
            (
                Action::Signal { rank, signal, slot, change, .. },
                Action::Signal { rank: on, slot: image, change: other, .. },
            ) => {
                let one = |slot: u32| slot..slot.saturating_add(1);
                let to = self.rank(*rank, *on) && change == other;
                to && self.slots(*signal, &one(*slot), &one(*image), wrong)
            }
            (Action::Mainloop { products: a }, Action::Mainloop { products: b }) => {
                let pairs = a.iter().zip(b);
                let mut regions = pairs.flat_map(|(a, b)| [(&a.0, &b.0), (&a.1, &b.1)]);
                a.len() == b.len() && regions.all(|(a, b)| self.region(a, b))
            }
            (Action::Store { to: a, .. }, Action::Store { to: b, .. }) => self.region(a, b),
            (Action::Copy { from: a, to: c, .. }, Action::Copy { from: b, to: d, .. }) => {
                self.region(a, b) && self.region(c, d)
            }
            (Action::Sum { from: a, .. }, Action::Sum { from: b, .. }) => {
                // In the order of ranks, which differs: what counts is how much is summed.
                let size = |region: &Region| (region.rows.len(), region.cols.len());
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| size(a) == size(b))
            }
            (Action::FenceProxyAsync, Action::FenceProxyAsync) => true,
            _ => false,
        }
    }

    fn rank(&self, of: u32, image: u32) -> bool {
        (of + self.shift()) % self.fold.world == image
    }

    /// Whether a set of slots moves to another, as a whole.
    fn slots(
        &self,
        signal: SignalId,
        of: &Range<u32>,
        image: &Range<u32>,
        wrong: &mut [bool],
    ) -> bool {
        let moved = |slot| self.fold.moved(signal, slot, self.times);
        let alike = of.len() == image.len() && {
            let in_step = of.clone().zip(image.clone()).all(|(slot, to)| moved(slot) == to);
            in_step || {
                let mut set: Vec<u32> = of.clone().map(moved).collect();
                set.sort_unstable();
                set.into_iter().eq(image.clone())
            }
        };
        if !alike && let Some(wrong) = wrong.get_mut(signal.index()) {
            *wrong = true;
        }
        alike
    }

    /// Whether two regions are as large, on ranks that correspond, in rows that are the same or
    /// shifted.
    fn region(&self, a: &Region, b: &Region) -> bool {
        let shape = self.of.launch.shape;
        let shard = u64::from(shard_rows(shape.m, self.fold.world));
        let shifted =
            (u64::from(a.rows.start) + u64::from(self.shift()) * shard).checked_rem(shape.m.into());
        let start = u64::from(b.rows.start);
        let rows = start == u64::from(a.rows.start) || Some(start) == shifted || a.is_empty();
        let size = |r: &Region| (r.rows.len(), r.cols.len());
        a.buffer == b.buffer && self.rank(a.rank, b.rank) && size(a) == size(b) && rows
    }
}

/// Rank, array, slot, and whether it is set, and what it is set to, or what is added or waited for.
type Met = (u32, usize, u32, (bool, i64));

/// Whether an event is a wait, or a raise that takes no time.
fn meets(event: &Event<'_>, at_once: bool) -> bool {
    match event.action {
        Action::Wait { .. } => true,
        Action::Signal { .. } => at_once,
        _ => false,
    }
}

/// The event, and the waits that follow a wait, or the raises that follow a raise.
fn batch<'p>(
    first: Event<'p>,
    rest: &mut Peekable<AgentRun<'_, 'p>>,
    at_once: bool,
) -> Vec<Event<'p>> {
    let kind = std::mem::discriminant(&first.action);
    let mut all = vec![first];
    let same =
        |event: &Event<'p>| std::mem::discriminant(&event.action) == kind && meets(event, at_once);
    while let Some(event) = rest.next_if(same) {
        all.push(event);
    }
    all
}

/// The launch that is walked: the first.
const EPOCH: u32 = 1;
