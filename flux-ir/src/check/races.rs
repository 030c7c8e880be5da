//! Races: every read after the write it is meant to see, every write after the reads of what it
//! overwrites, and what makes that so (counts, scopes, completions, fences).
//!
//! Of two accesses to one element, at least one a write, the greedy run did one first. The two are
//! a race unless that one happens before the other in every run; so each actor's trace is walked
//! once, and at an access the earlier ones of other actors are asked for.

use super::Findings;
use super::happens::{Known, Past, Scene};
use super::machine::Raise;
use super::memory::{Access, Memory};
use super::report::Report;
use super::trace::{Act, Actor, ActorTrace, Layout, Proxy};
use crate::program::{BufferKind, Completion, Engine, Op, Scope, Stmt, ValueId};
use rustc_hash::FxHashMap;

/// Waits for slots that several actors raise: by slot, the target and the wait's place.
pub(super) type SharedWaits = FxHashMap<u32, Vec<(i32, Access)>>;

/// Collects the waits for slots that several actors raise.
pub(super) fn shared_waits(scene: &Scene<'_, '_>) -> SharedWaits {
    let mut shared = SharedWaits::default();
    let by_one = |slot| {
        let raises = scene.history.of(slot);
        raises.iter().all(|raise| raise.actor == raises[0].actor)
    };
    if (0..scene.layout.slot_count() as u32).all(by_one) {
        return shared;
    }
    for (actor, trace) in (0..).zip(scene.traces) {
        for epoch in 1..=scene.layout.epochs {
            for at in trace.launch(epoch) {
                let Act::Wait { slot, len, target } = trace.steps[at].act else { continue };
                for slot in (slot..slot + len).filter(|&slot| !by_one(slot)) {
                    let wait = Access::point(actor, at as u32 + 1, epoch, trace.steps[at].number);
                    shared.entry(slot).or_default().push((target, wait));
                }
            }
        }
    }
    shared
}

/// Walks the actors of `rank`. `segments` are the run's.
pub(super) fn check(
    scene: &Scene<'_, '_>,
    memory: &Memory,
    segments: &[Vec<(u32, u32)>],
    shared_waits: &SharedWaits,
    rank: u32,
    found: &mut Findings,
) {
    let mut walk = Walk {
        scene: *scene,
        memory,
        shared_waits,
        report: Report::new(scene.layout, memory, found),
        me: Me::default(),
        known: Known::nothing(scene.layout),
        fenced: Known::nothing(scene.layout),
        learned: Vec::new(),
        since_fence: Vec::new(),
        past: None,
        fenced_past: None,
        summed: 0,
        parts: Vec::new(),
    };
    for actor in scene.layout.of_rank(rank) {
        walk.actor(actor, &segments[actor as usize]);
    }
    exits(scene, memory, rank, &mut walk.report);
}

/// No peer reads the tensors of `rank` beyond the end of its launch.
fn exits(scene: &Scene<'_, '_>, memory: &Memory, rank: u32, report: &mut Report<'_, '_, '_>) {
    let exposed = (0..).zip(&memory.rects).filter(|(_, region)| {
        let kind = scene.layout.program.buffers[region.buffer].kind;
        region.rank == rank && kind == BufferKind::Exposed
    });
    let exposed: Vec<u32> = exposed.map(|(rect, _)| rect).collect();
    if exposed.is_empty() {
        return;
    }
    let mut past = Past::new(scene.layout);
    for epoch in 1..=scene.layout.epochs {
        past.complete(scene, rank, epoch);
        for &rect in &exposed {
            for read in memory.own_reads(rect) {
                let by_peer = scene.layout.actor(read.actor).rank != rank;
                if by_peer && read.epoch == epoch && !past.known.has_issued(scene, read) {
                    report.outlives(*read, rank);
                }
            }
        }
    }
}

/// The actor at hand, and where it is.
#[derive(Debug, Clone, Copy, Default)]
struct Me {
    actor: u32,
    rank: u32,
    stamp: u32,
    epoch: u32,
    time: u32,
    number: u32,
    on_copy_engine: bool,
    /// Of an exit, the bodies of its agent: first, and one past the last.
    bodies: (u32, u32),
    /// Stamps up to which the own puts are performed: for ordinary reads, and for bulk reads.
    performed: u32,
    fenced_performed: u32,
    /// The last fence.
    fence: u32,
    /// The last wait, by statement.
    wait: Option<u32>,
}

/// What a read sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// Data from one rank, and where it was stored what was.
    One { origin: u16, value: Option<ValueId> },
    /// Data from several.
    Mixed,
    /// Something that is reported, or nothing.
    Faulty,
}

struct Walk<'a, 'p, 'f> {
    scene: Scene<'a, 'p>,
    memory: &'a Memory,
    shared_waits: &'a SharedWaits,
    report: Report<'a, 'p, 'f>,
    me: Me,
    /// What the own waits gave, and what of it the last fence covers.
    known: Known,
    fenced: Known,
    /// Actors of which something is known.
    learned: Vec<u32>,
    since_fence: Vec<u32>,
    /// Along all paths; made where it is asked for.
    past: Option<Past>,
    fenced_past: Option<Past>,
    /// Ranks whose contribution to the sum at hand has been read, one bit each.
    summed: u64,
    /// Rectangles of writes that a read sees.
    parts: Vec<u32>,
}

impl<'p> Walk<'_, 'p, '_> {
    fn actor(&mut self, actor: u32, times: &[(u32, u32)]) {
        let layout = self.scene.layout;
        let Actor { rank, cta, exit, engine, .. } = layout.actor(actor);
        let bodies = layout.bodies(exit);
        self.me = Me {
            actor,
            rank,
            on_copy_engine: engine == Engine::CopyEngine,
            bodies: if cta.is_none() { (bodies.start, bodies.end) } else { (0, 0) },
            ..Me::default()
        };
        let trace = &self.scene.traces[actor as usize];
        let mut segment = 0;
        for epoch in 1..=layout.epochs {
            let steps = trace.launch(epoch);
            self.me.epoch = epoch;
            // The end of a launch performs what is in flight, and its begin is a fence.
            self.me.performed = steps.start as u32;
            self.fence(steps.start as u32);
            for at in steps {
                while times.get(segment + 1).is_some_and(|&(from, _)| from as usize <= at) {
                    segment += 1;
                }
                let step = trace.steps[at];
                self.me.stamp = at as u32 + 1;
                self.me.time = times.get(segment).map_or(0, |&(_, time)| time);
                self.me.number = step.number;
                self.act(step.act);
            }
            self.unsignalled(trace, epoch, exit);
        }
        for actor in self.learned.drain(..) {
            self.known.forget(layout, actor);
            self.fenced.forget(layout, actor);
        }
        self.since_fence.clear();
        (self.past, self.fenced_past) = (None, None);
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Wait { slot, len, target } => {
                self.me.wait = Some(self.me.number);
                (slot..slot + len).for_each(|slot| self.wait(slot, target));
            }
            Act::Fence => self.fence(self.me.stamp),
            Act::Raise { slot, .. } => {
                if let Op::Signal { after: Completion::Performed, .. } = self.stmt().op {
                    self.me.performed = self.me.stamp;
                }
                self.raise(slot);
            }
            Act::Read { rect, proxy } => {
                self.read(rect, proxy);
            }
            Act::Contribution { rect, own, first, last } => {
                if first {
                    self.summed = 0;
                }
                self.contribution(rect, own);
                if last {
                    self.end_of_sum();
                }
            }
            Act::Write { rect, .. } => self.write(rect),
        }
    }

    fn stmt(&self) -> &'p Stmt {
        self.scene.layout.stmts[self.me.number as usize]
    }

    /// What is known is known to bulk reads too.
    fn fence(&mut self, stamp: u32) {
        for actor in self.since_fence.drain(..) {
            self.fenced.copy(self.scene.layout, actor, &self.known);
        }
        self.me.fence = stamp;
        self.me.fenced_performed = self.me.performed;
    }

    /// Learns from the raises that a wait stands for.
    fn wait(&mut self, slot: u32, target: i32) {
        let raises = self.scene.history.stands_for(slot, target);
        if let Some(last) = raises.last()
            && i64::from(last.value) != i64::from(target)
        {
            self.report.overshoots(self.me_at(), slot, target, last);
        }
        for raise in raises {
            self.meet(raise);
            self.known.learn(self.scene.layout, raise);
            self.learned.push(raise.actor);
            self.since_fence.push(raise.actor);
        }
    }

    fn me_at(&self) -> Access {
        let Me { actor, stamp, epoch, time, number, .. } = self.me;
        Access { time, ..Access::point(actor, stamp, epoch, number) }
    }

    /// Whether the scopes of a raise and of the wait at hand reach each other.
    fn meet(&mut self, raise: &Raise) {
        let layout = self.scene.layout;
        let raiser = layout.actor(raise.actor);
        let needed = if raise.actor == self.me.actor {
            Scope::Cta
        } else if raiser.rank != self.me.rank
            || self.me.on_copy_engine
            || raiser.engine == Engine::CopyEngine
        {
            Scope::Sys
        } else {
            Scope::Gpu
        };
        let by = self.scene.traces[raise.actor as usize].steps[raise.stamp as usize - 1];
        let (wait, raised) = (self.stmt(), layout.stmt(by));
        let (Op::Wait { scope: waits, .. }, Op::Signal { scope: raises, .. }) =
            (&wait.op, &raised.op)
        else {
            return;
        };
        if *waits < needed {
            self.report.scope(wait, *waits, needed, self.me_at(), raise);
        }
        if *raises < needed {
            self.report.scope(raised, *raises, needed, self.me_at(), raise);
        }
    }

    /// A raise beyond what a wait stands for comes only behind all of that, or behind the wait:
    /// else it could end the wait in place of another.
    fn raise(&mut self, slot: u32) {
        let Some(waits) = self.shared_waits.get(&slot) else { return };
        let all = self.scene.history.of(slot);
        let me = all.iter().position(|r| (r.actor, r.stamp) == (self.me.actor, self.me.stamp));
        let me = me.unwrap_or(0);
        for (target, wait) in waits {
            let members = self.scene.history.stands_for(slot, *target);
            if members.len() > me {
                continue;
            }
            let behind = |raise: &Raise| Access::point(raise.actor, raise.stamp, raise.epoch, 0);
            let missing = members.iter().find(|&member| !self.reads_before(&behind(member)));
            if let Some(member) = missing
                && !self.reads_before(wait)
            {
                self.report.early(self.me_at(), slot, member, *target);
            }
        }
    }

    /// Whether an access of this actor, rank or exit's bodies comes before by program order or
    /// the end of a launch. None where that does not decide.
    fn by_order(&self, access: &Access) -> Option<bool> {
        if access.actor == self.me.actor {
            return Some(access.stamp < self.me.stamp);
        }
        if self.scene.layout.actor(access.actor).rank == self.me.rank {
            if access.epoch != self.me.epoch {
                return Some(access.epoch < self.me.epoch);
            }
            let (first, end) = self.me.bodies;
            if (first..end).contains(&access.actor) {
                return Some(true);
            }
        }
        None
    }

    /// Whether an access is issued, and its source read, before the step at hand.
    fn reads_before(&mut self, access: &Access) -> bool {
        let scene = self.scene;
        if let Some(before) = self.by_order(access) {
            return before;
        }
        self.known.has_issued(&scene, access) || self.whole_past().has_issued(&scene, access)
    }

    /// Whether a write is performed before the step at hand, and bulk reads see that.
    fn performed_before(&mut self, access: &Access, proxy: Proxy) -> bool {
        let scene = self.scene;
        if access.actor == self.me.actor && access.epoch == self.me.epoch {
            let upto = match proxy {
                // One engine performs its copies in their order.
                _ if self.me.on_copy_engine => self.me.stamp - 1,
                Proxy::Generic => self.me.performed,
                Proxy::Async => self.me.fenced_performed,
            };
            return access.stamp <= upto;
        }
        if let Some(before) = self.by_order(access) {
            return before;
        }
        match proxy {
            Proxy::Generic => {
                self.known.has_performed(&scene, access)
                    || self.whole_past().has_performed(&scene, access)
            }
            Proxy::Async => {
                self.fenced.has_performed(&scene, access)
                    || self.whole_fenced_past().has_performed(&scene, access)
            }
        }
    }

    fn whole_past(&mut self) -> &Known {
        let Me { actor, stamp, epoch, .. } = self.me;
        let past = self.past.get_or_insert_with(|| Past::new(self.scene.layout));
        past.extend(&self.scene, actor, stamp, epoch);
        &past.known
    }

    fn whole_fenced_past(&mut self) -> &Known {
        let Me { actor, fence, epoch, .. } = self.me;
        let past = self.fenced_past.get_or_insert_with(|| Past::new(self.scene.layout));
        past.extend(&self.scene, actor, fence, epoch);
        &past.known
    }

    /// A read sees, of each element, a write of its own launch.
    fn read(&mut self, rect: u32, proxy: Proxy) -> Seen {
        let (memory, me) = (self.memory, Access { rect, ..self.me_at() });
        let region = &memory.rects[rect as usize];
        let kind = self.scene.layout.program.buffers[region.buffer].kind;
        if kind == BufferKind::Exposed {
            self.exposed_read(region.rank, me);
            return Seen::Mixed;
        }
        let (mut seen, mut source, mut late) = (0, Seen::Faulty, None);
        self.parts.clear();
        for write in memory.writes(rect) {
            if write.epoch != self.me.epoch {
                if write.epoch > self.me.epoch && write.time < self.me.time {
                    self.report.overwrites(*write, me);
                }
                continue;
            }
            if !self.performed_before(write, proxy) {
                late = late.or(Some(*write));
                continue;
            }
            let from = Seen::One { origin: write.origin, value: write.value };
            source = if source == Seen::Faulty || source == from { from } else { Seen::Mixed };
            seen += memory.shared(rect, write.rect);
            self.parts.push(write.rect);
        }
        let gap = if memory.rewritten || seen != memory.elements(rect) {
            memory.gap(rect, &self.parts)
        } else {
            None
        };
        match (gap, late) {
            (None, None) => source,
            (Some(gap), None) => {
                self.report.never_arrives(me, gap);
                Seen::Faulty
            }
            // Other writes cover it: this one is no fault where it comes later in any run, which
            // is asked when it comes.
            (None, Some(write)) if write.time > self.me.time => source,
            (gap, Some(write)) => {
                let first = (region.rows.start, region.cols.start);
                self.explain_late(write, me, proxy, gap.unwrap_or(first));
                Seen::Faulty
            }
        }
    }

    /// Says what is missing between a write and the read at hand.
    fn explain_late(&mut self, write: Access, me: Access, proxy: Proxy, gap: (u32, u32)) {
        if proxy == Proxy::Async && self.performed_before(&write, Proxy::Generic) {
            return self.report.unfenced(write, me, self.me.wait);
        }
        let issued = write.actor == self.me.actor || self.reads_before(&write);
        if issued && write.time < self.me.time {
            return self.report.unperformed(write, me, self.scene.traces, self.me.wait);
        }
        self.report.not_arrived(write, me, self.me.wait, gap);
    }

    /// A peer's tensor is there from the begin of its launch on.
    fn exposed_read(&mut self, rank: u32, me: Access) {
        let begun = rank == self.me.rank || self.known.has_begun(rank, self.me.epoch) || {
            let epoch = self.me.epoch;
            self.whole_past().has_begun(rank, epoch)
        };
        if !begun {
            self.report.not_begun(me, rank);
        }
    }

    fn contribution(&mut self, rect: u32, own: ValueId) {
        let me = Access { rect, ..self.me_at() };
        match self.read(rect, Proxy::Generic) {
            Seen::Faulty => self.summed = u64::MAX,
            Seen::Mixed => {
                self.summed = u64::MAX;
                self.report.mixed_contribution(me);
            }
            Seen::One { origin, value } => {
                if value.is_some_and(|value| value != own) {
                    self.report.other_value(me, origin.into());
                }
                let bit = 1u64 << (origin % 64);
                if u32::from(origin) == self.me.rank || self.summed & bit != 0 {
                    self.report.summed_twice(me, origin.into());
                }
                self.summed |= bit;
            }
        }
    }

    /// Every other rank has contributed.
    fn end_of_sum(&mut self) {
        let world = self.scene.layout.launch.world;
        let mut others = (0..world).filter(|&rank| rank != self.me.rank);
        if let Some(rank) = others.find(|rank| self.summed & (1 << rank) == 0) {
            self.report.left_out(self.me_at(), rank);
        }
    }

    /// Behind each put to a peer the actor, or the exit of its agent, raises a signal there.
    fn unsignalled(&mut self, trace: &ActorTrace, epoch: u32, exit: u32) {
        let layout = self.scene.layout;
        let raised = |layout: &Layout<'_>, act: &Act| match act {
            Act::Raise { slot, .. } => 1u64 << layout.place_of_slot(*slot).0,
            _ => 0,
        };
        let steps = &trace.steps[trace.launch(epoch)];
        if !steps.iter().any(|step| matches!(step.act, Act::Write { .. })) {
            return;
        }
        let exits = &self.scene.traces[exit as usize];
        let exits = exits.steps[exits.launch(epoch)].iter();
        let mut told = exits.fold(0, |told, step| told | raised(layout, &step.act));
        for (at, step) in trace.launch(epoch).zip(steps).rev() {
            told |= raised(layout, &step.act);
            if let Act::Write { rect, .. } = step.act {
                let rank = self.memory.rects[rect as usize].rank;
                if rank != self.me.rank && told & (1 << rank) == 0 {
                    let put = Access::point(self.me.actor, at as u32 + 1, epoch, step.number);
                    self.report.not_signalled(Access { rect, ..put });
                }
            }
        }
    }

    /// A write comes behind every access that the greedy run did before.
    fn write(&mut self, rect: u32) {
        let (memory, me) = (self.memory, Access { rect, ..self.me_at() });
        for write in memory.writes(rect) {
            let earlier = if write.actor == self.me.actor {
                write.stamp < self.me.stamp
            } else {
                write.time < self.me.time
            };
            if earlier && !self.performed_before(write, Proxy::Generic) {
                self.report.unordered(*write, me);
            }
        }
        for read in memory.reads(rect) {
            let earlier = read.actor != self.me.actor && read.time < self.me.time;
            if earlier && !self.reads_before(read) {
                if read.epoch == self.me.epoch {
                    self.report.read_too_early(*read, me);
                } else {
                    self.report.overwrites(me, *read);
                }
            }
        }
    }
}
