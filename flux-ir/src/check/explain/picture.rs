//! A launch as a picture: a lane for each actor, a box for each thing it does, and arrows from
//! raises to the waits that stand for them.

use super::super::trace::{Act, Actor};
use super::stage::{Stage, peer};
use crate::eval::{Action, Change, RankView, Region};
use crate::program::{Op, Stmt};
use rustc_hash::{FxHashMap, FxHashSet};

/// Boxes of one picture, at most.
const MOST_BOXES: usize = 200;

/// Events of an actor on either side of one in focus, where not all are drawn.
const NEIGHBORS: usize = 12;

/// Steps of a launch that is drawn, at most.
const MOST_STEPS: usize = 1 << 21;

/// What a box stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Wait,
    Raise,
    /// A put or a copy.
    Move,
    /// A mainloop or a sum.
    Compute,
    /// A store of an output.
    Store,
}

/// One thing that an actor does.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) lane: usize,
    /// How many boxes come before it, one behind the other.
    pub(super) level: u32,
    pub(super) launch: u32,
    pub(super) kind: Kind,
    /// In a few words, and in full.
    pub(super) short: String,
    pub(super) full: String,
    /// It is at fault.
    pub(super) red: bool,
    /// It is not reached.
    pub(super) pending: bool,
}

/// An actor.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) rank: u32,
    pub(super) name: String,
}

#[derive(Debug, Default)]
pub(super) struct Picture {
    pub(super) title: String,
    /// Ordered by rank.
    pub(super) lanes: Vec<Lane>,
    pub(super) boxes: Vec<Node>,
    /// From and to which box, and whether it is at fault.
    pub(super) arrows: Vec<(usize, usize, bool)>,
    /// Two boxes that nothing orders.
    pub(super) clash: Option<(usize, usize)>,
}

/// An event of an actor, before anything is drawn.
struct Event<'p> {
    epoch: u32,
    /// Stamps of its steps: first, and one past the last.
    stamps: (u32, u32),
    stmt: &'p Stmt,
    action: Action,
}

/// A drawn event.
#[derive(Clone, Copy)]
struct Drawn {
    actor: u32,
    event: usize,
    level: u32,
    pending: bool,
}

impl<'p> Stage<'p> {
    /// Draws the launch: all of it, or where that is too much what lies around `focus`. Steps at
    /// fault are `red`.
    pub(super) fn picture(
        &self,
        title: &str,
        focus: &[(u32, u32)],
        of: &str,
        red: &FxHashSet<(u32, u32)>,
    ) -> Picture {
        let steps: usize = self.traces.iter().map(|trace| trace.steps.len()).sum();
        if steps > MOST_STEPS {
            let title = format!("{title}: {steps} steps are too many to draw");
            return Picture { title, ..Picture::default() };
        }
        let events = self.events();
        let mut artist = Artist {
            stage: self,
            events: &events,
            next: vec![0; self.traces.len()],
            levels: vec![0; self.traces.len()],
            epochs: vec![1; self.layout.launch.world as usize],
            begin: vec![0; self.layout.launch.world as usize],
            of_step: FxHashMap::default(),
            drawn: Vec::new(),
        };
        artist.all(red);
        let drawn = artist.drawn;
        let total = drawn.len();
        let kept = if total <= MOST_BOXES { drawn } else { near(drawn, &events, focus) };
        let title = match total {
            _ if kept.len() == total => title.to_owned(),
            _ => format!("{title}: {} of {total} events, those around {of}", kept.len()),
        };
        self.finish(title, &kept, &events, red)
    }

    /// The events of every actor, in all launches.
    fn events(&self) -> Vec<Vec<Event<'p>>> {
        let launch = self.layout.launch;
        let mut events = Vec::with_capacity(self.traces.len());
        for rank in 0..launch.world {
            let Ok(view) = RankView::new(self.program(), launch, rank) else {
                events.extend(self.layout.of_rank(rank).map(|_| Vec::new()));
                continue;
            };
            for actor in self.layout.of_rank(rank) {
                let Actor { agent, cta, .. } = self.layout.actor(actor);
                let mut of_actor = Vec::new();
                for epoch in 1..=self.layout.epochs {
                    let mut stamp = self.traces[actor as usize].starts[epoch as usize - 1] + 1;
                    let run = match cta {
                        Some(cta) => view.agent(agent, cta, epoch),
                        None => view.exit(agent, epoch),
                    };
                    for event in run {
                        let end = stamp + self.steps_of(&event.action);
                        let (stmt, action) = (event.stmt, event.action);
                        of_actor.push(Event { epoch, stamps: (stamp, end), stmt, action });
                        stamp = end;
                    }
                }
                events.push(of_actor);
            }
        }
        events
    }

    /// Lanes, boxes and arrows.
    fn finish(
        &self,
        title: String,
        kept: &[Drawn],
        events: &[Vec<Event<'p>>],
        red: &FxHashSet<(u32, u32)>,
    ) -> Picture {
        let mut actors: Vec<u32> = kept.iter().map(|drawn| drawn.actor).collect();
        actors.sort_unstable();
        actors.dedup();
        let lane =
            |actor: u32| Lane { rank: self.layout.actor(actor).rank, name: self.actor_name(actor) };
        let lanes = actors.iter().map(|&actor| lane(actor)).collect();
        // Levels that nothing is left of close up.
        let mut levels: Vec<u32> = kept.iter().map(|drawn| drawn.level).collect();
        levels.sort_unstable();
        levels.dedup();
        let (mut boxes, mut of_step) = (Vec::new(), FxHashMap::default());
        for drawn in kept {
            let event = &events[drawn.actor as usize][drawn.event];
            let Some(kind) = self.kind(event) else { continue };
            let (from, end) = event.stamps;
            let red = (from..end).any(|stamp| red.contains(&(drawn.actor, stamp)));
            of_step.extend((from..end).map(|stamp| ((drawn.actor, stamp), boxes.len())));
            let rank = self.layout.actor(drawn.actor).rank;
            let (short, full) = self.texts(event, rank);
            boxes.push(Node {
                lane: actors.partition_point(|&actor| actor < drawn.actor),
                level: levels.partition_point(|&level| level < drawn.level) as u32,
                launch: event.epoch,
                kind,
                short,
                full,
                red,
                pending: drawn.pending,
            });
        }
        let mut arrows = Vec::new();
        for drawn in kept {
            let (stamp, end) = events[drawn.actor as usize][drawn.event].stamps;
            let Some(&to) = of_step.get(&(drawn.actor, stamp)).filter(|_| stamp < end) else {
                continue;
            };
            let Act::Wait { slot, len, target } = self.step(drawn.actor, stamp).act else {
                continue;
            };
            for slot in slot..slot + len {
                // Of each actor the last: those before come before it anyway.
                let mut raisers = FxHashSet::default();
                for raise in self.history.stands_for(slot, target).iter().rev() {
                    if let Some(&from) = of_step.get(&(raise.actor, raise.stamp))
                        && raisers.insert(raise.actor)
                    {
                        arrows.push((from, to, boxes[from].red && boxes[to].red));
                    }
                }
                // What is never reached.
                for other in kept.iter().filter(|other| other.pending) {
                    let stamp = events[other.actor as usize][other.event].stamps.0;
                    let raise = self.step(other.actor, stamp).act;
                    let raises = matches!(raise, Act::Raise { slot: of, .. } if of == slot);
                    if let Some(&from) = of_step.get(&(other.actor, stamp)).filter(|_| raises)
                        && boxes[to].red
                    {
                        arrows.push((from, to, true));
                    }
                }
            }
        }
        arrows.sort_unstable();
        arrows.dedup();
        let at_fault = boxes.iter().enumerate().filter(|(_, node)| node.red);
        let at_fault: Vec<usize> = at_fault.map(|(index, _)| index).collect();
        let clash = match at_fault[..] {
            [one, other] if arrows.iter().all(|&(.., red)| !red) => Some((one, other)),
            _ => None,
        };
        Picture { title, lanes, boxes, arrows, clash }
    }

    /// What an event is drawn as: fences, and waits for nothing, are not.
    fn kind(&self, event: &Event<'_>) -> Option<Kind> {
        match &event.action {
            Action::Wait { slots, target, .. } => {
                (!slots.is_empty() && *target > 0).then_some(Kind::Wait)
            }
            Action::Signal { .. } => Some(Kind::Raise),
            Action::FenceProxyAsync => None,
            Action::Mainloop { .. } | Action::Sum { .. } => Some(Kind::Compute),
            Action::Copy { to, .. } => (!to.is_empty()).then_some(Kind::Move),
            Action::Store { to, .. } if to.is_empty() => None,
            Action::Store { .. } if event.stamps.0 < event.stamps.1 => Some(Kind::Move),
            Action::Store { .. } => Some(Kind::Store),
        }
    }

    /// An event in a few words, and in full.
    fn texts(&self, event: &Event<'_>, rank: u32) -> (String, String) {
        let program = self.program();
        let named = |signal| format!("%{}", program.signals[signal].name);
        let name = |region: &Region| format!("{}{}", peer(region.rank, rank), self.buffer(region));
        let full =
            |region: &Region| format!("{}[{:?}, {:?}]", name(region), region.rows, region.cols);
        match &event.action {
            Action::Wait { signal, slots, target, scope } => {
                let slots = match slots.len() {
                    1 => slots.start.to_string(),
                    _ => format!("{slots:?}"),
                };
                let short = format!("wait {}[{slots}] >= {target}", named(*signal));
                let full = format!("{short} scope {}", scope.name());
                (short, full)
            }
            Action::FenceProxyAsync => ("fence".into(), "fence proxy.async".into()),
            Action::Signal { rank: on, signal, slot, change, scope, after } => {
                let change = match change {
                    Change::Add(count) => format!("+= {count}"),
                    Change::Set(value) => format!("= {value}"),
                };
                let slot = format!("{}{}[{slot}] {change}", peer(*on, rank), named(*signal));
                let full = format!("signal {slot} scope {} after {}", scope.name(), after.name());
                (format!("signal {slot}"), full)
            }
            Action::Mainloop { products } => {
                let turned = |transposed| if transposed { "^T" } else { "" };
                let all = products.iter().map(|(a, b, transposed)| {
                    let (of_a, of_b) = (turned(transposed.a), turned(transposed.b));
                    format!("{}{of_a} * {}{of_b}", full(a), full(b))
                });
                let all = all.collect::<Vec<_>>().join(", ");
                let short = products.first().map_or(String::new(), |(a, b, transposed)| {
                    let (rows, _) = transposed.left(&a.rows, &a.cols);
                    let (cols, _) = transposed.right(&b.rows, &b.cols);
                    format!("mainloop {rows:?}, {cols:?}")
                });
                (short, format!("mainloop {all}"))
            }
            Action::Store { to, value, adds, .. } => {
                let sign = if *adds { "+=" } else { "<-" };
                (format!("store {}", full(to)), format!("store {} {sign} {value}", full(to)))
            }
            Action::Sum { own, from, .. } => {
                let all = from.iter().map(full).collect::<Vec<_>>().join(", ");
                let short = match &event.stmt.op {
                    Op::Sum { from, .. } => &program.buffers[from.buffer].name,
                    _ => "",
                };
                (format!("sum %{short} of {}", from.len()), format!("sum own {own} from {all}"))
            }
            Action::Copy { from, to, adds } => {
                let sign = if *adds { "+=" } else { "<-" };
                (format!("copy {}", full(to)), format!("copy {} {sign} {}", full(to), full(from)))
            }
        }
    }
}

/// Puts events in an order, and finds how deep each stands.
struct Artist<'a, 'p> {
    stage: &'a Stage<'p>,
    events: &'a [Vec<Event<'p>>],
    /// By actor: the next event.
    next: Vec<usize>,
    /// By actor: the level of its last box.
    levels: Vec<u32>,
    /// By rank: the launch at hand, and the level it begins behind.
    epochs: Vec<u32>,
    begin: Vec<u32>,
    /// The level of each raise.
    of_step: FxHashMap<(u32, u32), u32>,
    drawn: Vec<Drawn>,
}

impl Artist<'_, '_> {
    fn all(&mut self, red: &FxHashSet<(u32, u32)>) {
        let stage = self.stage;
        for &(actor, stamp) in &stage.played.order {
            self.upto(actor, stamp + 1);
        }
        let stuck = stage.played.stuck();
        if stuck.is_empty() {
            for epoch in 1..=stage.layout.epochs {
                for actor in 0..stage.traces.len() as u32 {
                    self.launch(actor, epoch);
                }
            }
            return;
        }
        for &actor in &stuck {
            let stamp = stage.played.cursors[actor as usize].next + 1;
            self.upto(actor, stamp + 1);
        }
        // What is at fault and not reached.
        let mut missing: Vec<(u32, u32)> = red.iter().copied().collect();
        missing.sort_unstable();
        for (actor, stamp) in missing {
            let events = &self.events[actor as usize];
            let event = events.partition_point(|event| event.stamps.1 <= stamp);
            if event >= self.next[actor as usize] && event < events.len() {
                self.levels[actor as usize] += 1;
                let level = self.levels[actor as usize];
                self.drawn.push(Drawn { actor, event, level, pending: true });
            }
        }
    }

    /// Draws an actor's events that begin before `stamp`.
    fn upto(&mut self, actor: u32, stamp: u32) {
        let events = self.events;
        while let Some(event) = events[actor as usize].get(self.next[actor as usize])
            && event.stamps.0 < stamp
        {
            self.draw(actor);
        }
    }

    /// Draws an actor's events up to the end of a launch.
    fn launch(&mut self, actor: u32, epoch: u32) {
        let events = self.events;
        while let Some(event) = events[actor as usize].get(self.next[actor as usize])
            && event.epoch <= epoch
        {
            self.draw(actor);
        }
    }

    fn draw(&mut self, actor: u32) {
        let (stage, at) = (self.stage, actor as usize);
        let index = self.next[at];
        self.next[at] += 1;
        let event = &self.events[at][index];
        let Actor { rank, cta, .. } = stage.layout.actor(actor);
        // The launch before is over, and the bodies of an exit are through.
        if self.epochs[rank as usize] < event.epoch {
            self.epochs[rank as usize] = event.epoch;
            for other in stage.layout.of_rank(rank) {
                self.launch(other, event.epoch - 1);
            }
            let levels = stage.layout.of_rank(rank).map(|other| self.levels[other as usize]);
            self.begin[rank as usize] = levels.max().unwrap_or(0);
        }
        let mut level = self.levels[at].max(self.begin[rank as usize]);
        if cta.is_none() {
            for body in stage.layout.bodies(actor) {
                self.launch(body, event.epoch);
                level = level.max(self.levels[body as usize]);
            }
        }
        if stage.kind(event).is_none() {
            return;
        }
        let (from, end) = event.stamps;
        if from < end
            && let Act::Wait { slot, len, target } = stage.step(actor, from).act
        {
            for slot in slot..slot + len {
                for raise in stage.history.stands_for(slot, target) {
                    let of = self.of_step.get(&(raise.actor, raise.stamp)).copied();
                    level = level.max(of.unwrap_or(0));
                }
            }
        }
        level += 1;
        self.levels[at] = level;
        self.of_step.extend((from..end).map(|stamp| ((actor, stamp), level)));
        self.drawn.push(Drawn { actor, event: index, level, pending: false });
    }
}

/// The boxes closest in their lanes to steps in focus, as many as there is room for.
fn near(drawn: Vec<Drawn>, events: &[Vec<Event<'_>>], focus: &[(u32, u32)]) -> Vec<Drawn> {
    let holds = |drawn: &Drawn, &(actor, stamp): &(u32, u32)| {
        let (from, end) = events[drawn.actor as usize][drawn.event].stamps;
        drawn.actor == actor && (from..end).contains(&stamp)
    };
    let focus: Vec<Drawn> =
        drawn.iter().filter(|drawn| focus.iter().any(|step| holds(drawn, step))).copied().collect();
    let distance = |drawn: &Drawn| {
        let of_lane = focus.iter().filter(|other| other.actor == drawn.actor);
        of_lane.map(|other| other.event.abs_diff(drawn.event)).min()
    };
    let mut all: Vec<(usize, usize)> = drawn
        .iter()
        .enumerate()
        .filter_map(|(index, drawn)| Some((distance(drawn)?, index)))
        .filter(|(distance, _)| *distance <= NEIGHBORS)
        .collect();
    all.sort_unstable();
    // Whole neighborhoods.
    let room = match all.get(MOST_BOXES) {
        Some(&(first_out, _)) => {
            let whole = all.iter().take_while(|(distance, _)| *distance < first_out).count();
            if whole == 0 { MOST_BOXES } else { whole }
        }
        None => all.len(),
    };
    let mut kept: Vec<usize> = all[..room].iter().map(|&(_, index)| index).collect();
    kept.sort_unstable();
    kept.into_iter().map(|index| drawn[index]).collect()
}
