//! Races: every read after the write it is meant to see, every write after the reads of what it
//! overwrites, and what makes that so (counts, scopes, completions, fences).
//!
//! Of two accesses to one element, at least one a write, the greedy run did one first. The two are
//! a race unless that one happens before the other in every run; so each actor's trace is walked
//! once, and at an access the earlier ones of other actors are asked for.

mod sums;
mod told;
mod writes;

use super::Findings;
use super::counters::{Counters, Group};
use super::ends::{Ends, Heard};
use super::happens::{Known, Past, Scene};
use super::machine::Raise;
use super::memory::{Access, Memory};
use super::report::Report;
use super::trace::{Act, Actor, Proxy};
use crate::program::{BufferKind, Completion, Engine, Op, Stmt, ValueId};
use std::cmp::Reverse;

/// Questions about the order of two steps that the check of one rank may ask: seconds. Shipped
/// operators ask a few for each tile.
const QUESTION_LIMIT: u64 = 1 << 28;

/// Walks the actors of `rank`. `segments` are the run's.
pub(super) fn check(
    scene: &Scene<'_, '_>,
    memory: &Memory,
    segments: &[Vec<(u32, u32)>],
    (counters, ends): (&Counters, &Ends),
    rank: u32,
    found: &mut Findings,
) {
    let mut walk = Walk {
        scene: *scene,
        memory,
        counters,
        ends,
        report: Report::new(scene.layout, memory, found),
        me: Me::default(),
        known: Known::nothing(scene.layout),
        fenced: Known::nothing(scene.layout),
        learned: Vec::new(),
        since_fence: Vec::new(),
        raised: vec![0; scene.layout.slot_count()],
        waited: Vec::new(),
        heard: ends.unheard(),
        fenced_heard: ends.unheard(),
        past: None,
        fenced_past: None,
        summed: 0,
        unclear: false,
        parts: Vec::new(),
        last: Vec::new(),
        asked: 0,
    };
    for actor in scene.layout.of_rank(rank) {
        walk.actor(actor, &segments[actor as usize]);
        if walk.asked > QUESTION_LIMIT {
            return walk.report.too_many(QUESTION_LIMIT);
        }
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
    for epoch in 1..=scene.layout.read_epochs {
        past.complete(scene, rank, epoch);
        for &rect in &exposed {
            for read in memory.reads(rect) {
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
    /// Copies reach memory so.
    copies_by: Proxy,
    /// Of an exit, the bodies of its agent: first, and one past the last.
    bodies: (u32, u32),
    /// Stamps up to which the own puts are performed: for ordinary reads, and for bulk reads.
    performed: u32,
    fenced_performed: u32,
    /// The stamp up to which the network has read what was put.
    flushed: u32,
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
    counters: &'a Counters,
    ends: &'a Ends,
    report: Report<'a, 'p, 'f>,
    me: Me,
    /// What the own waits gave, and what of it the last fence covers.
    known: Known,
    fenced: Known,
    /// Actors of which something is known.
    learned: Vec<u32>,
    since_fence: Vec<u32>,
    /// By slot: how many of its first raises are known; and the slots of which some are.
    raised: Vec<u32>,
    waited: Vec<u32>,
    /// Exits that are known to have come so far, and those of them that the last fence covers.
    heard: Heard,
    fenced_heard: Heard,
    /// Along all paths; made where it is asked for.
    past: Option<Past>,
    fenced_past: Option<Past>,
    /// Ranks whose contribution to the sum at hand has been read, one bit each; and whether some
    /// contribution is not known to be one rank's.
    summed: u64,
    unclear: bool,
    /// Rectangles that are written before a read, and the last write of each: when, and what.
    parts: Vec<u32>,
    last: Vec<((u32, u32), u32, Seen)>,
    /// Questions asked so far.
    asked: u64,
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
            copies_by: Proxy::of_copies(engine),
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
            self.me.flushed = steps.start as u32;
            self.ends.over(&mut self.heard, rank, epoch);
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
                if self.asked > QUESTION_LIMIT {
                    return;
                }
            }
            self.unsignalled(trace, epoch, exit);
        }
        for actor in self.learned.drain(..) {
            self.known.forget(layout, actor);
            self.fenced.forget(layout, actor);
        }
        self.since_fence.clear();
        for slot in self.waited.drain(..) {
            self.raised[slot as usize] = 0;
        }
        (self.heard, self.fenced_heard) = (self.ends.unheard(), self.ends.unheard());
        (self.past, self.fenced_past) = (None, None);
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Wait { slot, len, target } => {
                self.me.wait = Some(self.me.number);
                (slot..slot + len).for_each(|slot| self.wait(slot, target));
            }
            Act::Fence => self.fence(self.me.stamp),
            Act::Raise { slot, .. } if self.scene.leaves_out(slot) => {}
            Act::Raise { slot, .. } => {
                match self.stmt().op {
                    Op::Signal { after: Completion::Performed, .. } => {
                        self.me.performed = self.me.stamp;
                    }
                    Op::Signal { after: Completion::Read, .. } => self.me.flushed = self.me.stamp,
                    _ => {}
                }
                self.raise(slot);
            }
            Act::Read { rect, proxy } => {
                let seen = self.read(rect, proxy);
                let buffer = self.memory.rects[rect as usize].buffer;
                let adds = matches!(&self.stmt().op, Op::Store { to, adds: true, .. } if to.buffer == buffer);
                if self.scene.layout.program.buffers[buffer].sums && !adds && seen != Seen::Faulty {
                    self.total(rect);
                }
            }
            // Their own flags order them.
            Act::Contribution { rect, .. }
                if self.scene.orders_itself(self.memory.rects[rect as usize].buffer) => {}
            Act::Contribution { rect, own, first, last } => {
                if first {
                    (self.summed, self.unclear) = (0, false);
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
        self.fenced_heard.clone_from(&self.heard);
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
        let known = &mut self.raised[slot as usize];
        if *known == 0 {
            self.waited.push(slot);
        }
        let new = raises.get(*known as usize..).unwrap_or_default();
        *known = (*known).max(raises.len() as u32);
        self.asked += new.len() as u64;
        for raise in new {
            self.ends.hear(self.scene.layout, &mut self.heard, raise);
            if self.known.learn(self.scene.layout, raise) {
                self.learned.push(raise.actor);
                self.since_fence.push(raise.actor);
            }
        }
    }

    fn me_at(&self) -> Access {
        let Me { actor, stamp, epoch, time, number, .. } = self.me;
        Access { time, ..Access::point(actor, stamp, epoch, number) }
    }

    /// A raise beyond what a wait stands for comes only behind all of that, or behind the wait:
    /// else it could end the wait in place of another.
    fn raise(&mut self, slot: u32) {
        let counters = self.counters;
        let Some(counter) = counters.of(slot) else { return };
        let all = self.scene.history.of(slot);
        let at = counter.places.get(&(self.me.actor, self.me.stamp)).copied().unwrap_or(0);
        for level in counter.levels.iter().rev().filter(|level| level.members <= at) {
            let Some(member) = self.missing(&level.groups, &all[..level.members]) else {
                // What a smaller target stands for is a part of this.
                return;
            };
            let after_waits = level.waits.iter().all(|wait| self.reads_before(wait));
            if !after_waits {
                self.report.early(self.me_at(), slot, &member, level.target);
            }
        }
    }

    /// A member that may come after the step at hand.
    fn missing(&mut self, groups: &[Group], members: &[Raise]) -> Option<Raise> {
        let layout = self.scene.layout;
        // What travels over the network may come when the launch that raised it is over.
        let travel = layout.networked && members.iter().any(|member| member.delivers);
        let mut open = groups.iter().filter(|group| !self.is_over(group)).peekable();
        if !travel {
            open.peek()?;
        }
        let open: Vec<&Group> = open.collect();
        members.iter().copied().find(|member| {
            let of = Group::of(layout, member);
            let place = Access::point(member.actor, member.stamp, member.epoch, 0);
            (member.delivers || open.contains(&&of)) && !self.reads_before(&place)
        })
    }

    /// Whether all that a group did in its launch is before the step at hand.
    fn is_over(&self, group: &Group) -> bool {
        let last = Access::point(group.exit, 0, group.epoch, 0);
        if self.scene.layout.actor(group.exit).rank == self.me.rank {
            return group.epoch < self.me.epoch;
        }
        self.known.is_later(&self.scene, &last)
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

    /// The same of what goes over the network: the read of a put's source, or a raise. None where that does not
    /// decide.
    fn by_order_over_network(&self, access: &Access) -> Option<bool> {
        if !self.scene.is_read(access) {
            // Raises of one actor that overtake each other say the same: what the later one says holds of both.
            return (access.actor == self.me.actor).then_some(access.stamp < self.me.stamp);
        }
        let same_launch = access.actor == self.me.actor && access.epoch == self.me.epoch;
        if same_launch && access.stamp > self.me.flushed {
            return (access.stamp > self.me.stamp).then_some(false);
        }
        self.by_order(access)
    }

    /// Whether an access is issued, and its source read, before the step at hand.
    fn reads_before(&mut self, access: &Access) -> bool {
        self.is_before(access, Proxy::Generic)
    }

    /// The same, and accesses of this step through `proxy` know.
    fn is_before(&mut self, access: &Access, proxy: Proxy) -> bool {
        self.asked += 1;
        let scene = self.scene;
        let order = match scene.sent_to(access) {
            None => self.by_order(access),
            Some(_) => self.by_order_over_network(access),
        };
        if let Some(before) = order {
            return before;
        }
        match proxy {
            Proxy::Generic => {
                self.known.has_issued(&scene, access)
                    || self.ends.has_issued(&scene, &self.heard, access)
                    || self.whole_past().has_issued(&scene, access)
            }
            Proxy::Async => {
                self.fenced.has_issued(&scene, access)
                    || self.ends.has_issued(&scene, &self.fenced_heard, access)
                    || self.whole_fenced_past().has_issued(&scene, access)
            }
        }
    }

    /// Whether a write is performed before the step at hand, and bulk reads see that.
    fn performed_before(&mut self, access: &Access, proxy: Proxy) -> bool {
        self.asked += 1;
        let scene = self.scene;
        // The network tells its sender nothing of what it has written, not even at the end of a launch.
        let travels = scene.sent_to(access).is_some();
        if !travels && access.actor == self.me.actor && access.epoch == self.me.epoch {
            let upto = match proxy {
                // One engine performs its copies in their order.
                _ if self.me.on_copy_engine => self.me.stamp - 1,
                Proxy::Generic => self.me.performed,
                // What was written by bulk copies is read by them: no other proxy comes in between.
                Proxy::Async if self.me.copies_by == Proxy::Async => self.me.performed,
                Proxy::Async => self.me.fenced_performed,
            };
            return access.stamp <= upto;
        }
        if !travels && let Some(before) = self.by_order(access) {
            return before;
        }
        match proxy {
            Proxy::Generic => {
                self.known.has_performed(&scene, access)
                    || self.ends.has_performed(&scene, &self.heard, access)
                    || self.whole_past().has_performed(&scene, access)
            }
            Proxy::Async => {
                self.fenced.has_performed(&scene, access)
                    || self.ends.has_performed(&scene, &self.fenced_heard, access)
                    || self.whole_fenced_past().has_performed(&scene, access)
            }
        }
    }

    fn whole_past(&mut self) -> &Known {
        let Me { actor, stamp, epoch, .. } = self.me;
        let past = self.past.get_or_insert_with(|| Past::new(self.scene.layout));
        self.asked += past.extend(&self.scene, actor, stamp, epoch);
        &past.known
    }

    fn whole_fenced_past(&mut self) -> &Known {
        let Me { actor, fence, epoch, .. } = self.me;
        let past = self.fenced_past.get_or_insert_with(|| Past::new(self.scene.layout));
        self.asked += past.extend(&self.scene, actor, fence, epoch);
        &past.known
    }

    /// A read sees, of each element, a write of its own launch.
    fn read(&mut self, rect: u32, proxy: Proxy) -> Seen {
        let (memory, me) = (self.memory, Access { rect, ..self.me_at() });
        let region = &memory.rects[rect as usize];
        let kind = self.scene.layout.program.buffers[region.buffer].kind;
        if kind == BufferKind::Exposed {
            self.exposed_read(region.rank, me, proxy);
            return Seen::Mixed;
        }
        let (mut seen, mut late) = (0, None);
        self.parts.clear();
        self.last.clear();
        for near in memory.around(rect) {
            let writes = memory.writes(near);
            let earlier = writes.partition_point(|write| write.moment() < me.moment());
            for write in writes[..earlier].iter().rev() {
                if write.epoch > me.epoch {
                    self.report.overwrites(*write, me);
                }
                if write.epoch != me.epoch {
                    continue;
                }
                if !self.performed_before(write, proxy) {
                    late = late.or(Some(*write));
                    continue;
                }
                let from = Seen::One { origin: write.origin, value: write.value };
                self.last.push((write.moment(), near, from));
                seen += memory.shared(rect, near);
                self.parts.push(near);
                // Earlier writes of this rectangle come before this one.
                break;
            }
            if late.is_none() {
                let of_launch = writes[earlier..].iter().find(|write| write.epoch == me.epoch);
                late = of_launch.copied();
            }
        }
        let gap = if memory.rewritten || seen != memory.elements(rect) {
            memory.gap(rect, &self.parts)
        } else {
            None
        };
        match (gap, late) {
            (None, None) => self.source(rect),
            (Some(gap), None) => {
                self.report.never_arrives(me, gap);
                Seen::Faulty
            }
            // Other writes cover it. Where the run did this one later, it is asked for there.
            (None, Some(write)) => {
                if write.moment() < me.moment() {
                    self.report.overwrites(write, me);
                }
                self.source(rect)
            }
            (Some(gap), Some(write)) => {
                self.explain_late(write, me, proxy, gap);
                Seen::Faulty
            }
        }
    }

    /// What a read of `rect` sees of the last writes of rectangles: of each element the newest.
    fn source(&mut self, rect: u32) -> Seen {
        let Some(&(_, _, first)) = self.last.first() else { return Seen::Faulty };
        if self.last.iter().all(|&(_, _, from)| from == first) {
            return first;
        }
        self.last.sort_unstable_by_key(|&(moment, ..)| Reverse(moment));
        self.parts.clear();
        let mut source = None;
        for &(_, near, from) in &self.last {
            if self.memory.shows(rect, near, &self.parts) {
                if source.is_some_and(|source| source != from) {
                    return Seen::Mixed;
                }
                source = Some(from);
            }
            self.parts.push(near);
        }
        source.unwrap_or(Seen::Faulty)
    }

    /// Says what is missing between a write and the read at hand.
    fn explain_late(&mut self, write: Access, me: Access, proxy: Proxy, gap: (u32, u32)) {
        if proxy == Proxy::Async && self.performed_before(&write, Proxy::Generic) {
            return self.report.unfenced(Some(write), me, self.me.wait);
        }
        let issued = write.actor == self.me.actor || self.reads_before(&write);
        if issued && write.moment() < me.moment() {
            return self.report.unperformed(write, me, self.scene.traces, self.me.wait);
        }
        self.report.not_arrived(write, me, self.me.wait, gap);
    }

    /// A peer's tensor is there from the begin of its launch on.
    fn exposed_read(&mut self, rank: u32, me: Access, proxy: Proxy) {
        let epoch = self.me.epoch;
        if rank == self.me.rank
            || self.fenced.has_begun(rank, epoch)
            || self.whole_fenced_past().has_begun(rank, epoch)
        {
            return;
        }
        if !self.known.has_begun(rank, epoch) && !self.whole_past().has_begun(rank, epoch) {
            self.report.not_begun(me, rank);
        } else if proxy == Proxy::Async {
            self.report.unfenced(None, me, self.me.wait);
        }
    }
}
