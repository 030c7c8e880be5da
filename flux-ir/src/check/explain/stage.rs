//! A launch that is explained: its traces, a run of it, and its steps in words.

use super::super::counters::Counters;
use super::super::effects;
use super::super::epochs::{self, EPOCH_LIMIT, Uniform};
use super::super::happens::{History, Scene};
use super::super::machine::{Play, Played, Raise, Start, play};
use super::super::memory::{self, Access, Memory};
use super::super::regions::Regions;
use super::super::trace::{Act, Actor, ActorTrace, Layout, Proxy, Step};
use super::super::{Findings, wrap};
use super::order::{Edge, Place};
use super::table::Row;
use crate::arena::Handle;
use crate::eval::{Launch, RankView, Region};
use crate::order::OrderError;
use crate::program::{BufferKind, Completion, Engine, Op, Program, Stmt};

/// A launch, walked and run.
#[derive(Debug)]
pub(super) struct Stage<'p> {
    pub(super) layout: Layout<'p>,
    pub(super) traces: Vec<ActorTrace>,
    pub(super) history: History,
    pub(super) memory: Memory,
    pub(super) played: Played,
    /// By buffer: the extents of its planes.
    planes: Vec<Vec<u32>>,
}

impl<'p> Stage<'p> {
    /// Walks and runs a launch that the checker could run.
    pub(super) fn new(program: &'p Program, launch: Launch) -> Result<Self, OrderError> {
        let views = (0..launch.world).map(|rank| RankView::new(program, launch, rank));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        let period = wrap::period(program);
        let uniform = Uniform::of(&RankView::definitions(program, launch, 0), EPOCH_LIMIT);
        let epochs = if shares_memory(program) {
            epochs::count(program, period, uniform.is_some())
        } else {
            1
        };
        let layout = Layout::new(&views, epochs);
        let regions = Regions::new(&views);
        // Faults are those of the check before.
        let mut faults = Findings::default();
        let ranks = (0..launch.world)
            .map(|rank| effects::walk(&layout, &regions, uniform.as_ref(), rank, &mut faults))
            .collect();
        let (traces, rects) = memory::join(ranks);
        let how = Play { start: Start::OfTarget, limits: None, recorded: true };
        let played = play(&layout, &traces, how);
        let history = History::new(layout.slot_count(), &played.run.raises);
        let memory = Memory::new(&layout, &traces, rects, &played.run);
        let extents = |planes: &Vec<_>| {
            let extent = |expr| views[0].constant(expr).clamp(0, u32::MAX.into()) as u32;
            planes.iter().map(extent).collect()
        };
        let planes = program.buffers.values().map(|buffer| extents(&buffer.planes)).collect();
        drop(regions);
        Ok(Stage { layout, traces, history, memory, played, planes })
    }

    pub(super) fn scene(&self) -> Scene<'_, 'p> {
        Scene {
            layout: &self.layout,
            traces: &self.traces,
            history: &self.history,
            rects: &self.memory.rects,
            carried: true,
        }
    }

    pub(super) fn counters(&self) -> Counters {
        Counters::new(&self.scene())
    }

    pub(super) fn program(&self) -> &'p Program {
        self.layout.program
    }

    pub(super) fn step(&self, actor: u32, stamp: u32) -> Step {
        self.traces[actor as usize].steps[stamp as usize - 1]
    }

    pub(super) fn stmt(&self, actor: u32, stamp: u32) -> &'p Stmt {
        self.layout.stmt(self.step(actor, stamp))
    }

    /// The launch a stamp is in.
    pub(super) fn epoch(&self, actor: u32, stamp: u32) -> u32 {
        let starts = &self.traces[actor as usize].starts;
        (starts.partition_point(|&start| start < stamp) as u32).max(1)
    }

    /// Every access, reads first.
    pub(super) fn accesses(&self) -> impl Iterator<Item = (Access, bool)> + '_ {
        let rects = 0..self.memory.rects.len() as u32;
        rects.flat_map(|rect| {
            let reads = self.memory.reads(rect).iter().map(|read| (*read, false));
            reads.chain(self.memory.writes(rect).iter().map(|write| (*write, true)))
        })
    }

    /// How an access reaches memory.
    pub(super) fn proxy(&self, access: &Access) -> Proxy {
        let step = self.step(access.actor, access.stamp);
        match step.act {
            Act::Read { proxy, .. } => proxy,
            Act::Write { .. } => self
                .layout
                .writes_by(self.layout.actor(access.actor).engine, self.layout.stmt(step)),
            _ => Proxy::Generic,
        }
    }

    /// The place before a step: what happened before it for an ordinary access, and for what
    /// goes through `proxy`.
    pub(super) fn before(&self, access: &Access, proxy: Proxy) -> Place {
        let trace = &self.traces[access.actor as usize];
        let start = trace.starts[access.epoch as usize - 1];
        let upto = access.stamp - 1;
        if self.layout.actor(access.actor).engine == Engine::CopyEngine {
            // One engine performs its copies in their order.
            return Place::new(access.actor, upto, access.epoch, upto);
        }
        let last = |upto: u32, is: &dyn Fn(&Step) -> bool| {
            let steps = &trace.steps[start as usize..upto as usize];
            steps.iter().rposition(is).map_or(start, |at| start + at as u32 + 1)
        };
        let upto = match proxy {
            Proxy::Generic => upto,
            Proxy::Async => last(upto, &|step| matches!(step.act, Act::Fence)),
        };
        let performs = |step: &Step| {
            let stmt = self.layout.stmt(*step);
            matches!(stmt.op, Op::Signal { after: Completion::Performed, .. })
        };
        Place::new(access.actor, upto, access.epoch, last(upto, &performs))
    }

    /// `gemm cta 0`, `push_a`, `gemm exit`.
    pub(super) fn actor_name(&self, actor: u32) -> String {
        let Actor { agent, cta, engine, .. } = self.layout.actor(actor);
        let name = &self.program().agents[agent].name;
        match (cta, engine) {
            (None, _) => format!("{name} exit"),
            (Some(cta), Engine::Ctas | Engine::CopyWarps | Engine::Tma) => {
                format!("{name} cta {cta}")
            }
            (Some(_), Engine::CopyEngine) => name.clone(),
        }
    }

    /// The row of a step.
    pub(super) fn row(&self, actor: u32, stamp: u32, note: impl Into<String>) -> Row {
        let span = self.stmt(actor, stamp).span;
        let does = self.does(actor, stamp);
        Row { span, ..self.event(actor, self.epoch(actor, stamp), does, note) }
    }

    /// A row of what is no statement.
    pub(super) fn event(
        &self,
        actor: u32,
        launch: u32,
        does: impl Into<String>,
        note: impl Into<String>,
    ) -> Row {
        let (rank, name) = (self.layout.actor(actor).rank, self.actor_name(actor));
        let (does, note) = (does.into(), note.into());
        Row { launch, rank, actor: name, does, span: crate::Span::UNKNOWN, note }
    }

    /// `%landed[3]`, or the slots of a wait `%landed[0..2]`.
    fn slots(&self, slot: u32, len: u32) -> String {
        let (_, signal, place) = self.layout.place_of_slot(slot);
        let name = &self.program().signals[signal].name;
        match len {
            1 => format!("%{name}[{place}]"),
            _ => format!("%{name}[{place}..{}]", place + len),
        }
    }

    /// A step in the text form, on the numbers of the launch.
    pub(super) fn does(&self, actor: u32, stamp: u32) -> String {
        let rank = self.layout.actor(actor).rank;
        let (step, stmt) = (self.step(actor, stamp), self.stmt(actor, stamp));
        match step.act {
            Act::Wait { slot, len, target } => {
                let scope = match &stmt.op {
                    Op::Wait { scope, .. } => scope.name(),
                    _ => "sys",
                };
                format!("wait {} >= {target} scope {scope}", self.slots(slot, len))
            }
            Act::Fence => "fence proxy.async".into(),
            Act::Raise { slot, sets, value } => {
                let (on, ..) = self.layout.place_of_slot(slot);
                let (at, how) = (peer(on, rank), if sets { "=" } else { "+=" });
                let slot = self.slots(slot, 1);
                match &stmt.op {
                    Op::Signal { scope, after, .. } => format!(
                        "signal {at}{slot} {how} {value} scope {} after {}",
                        scope.name(),
                        after.name()
                    ),
                    _ => format!("signal {at}{slot} {how} {value}"),
                }
            }
            Act::Read { rect, .. } => match &stmt.op {
                Op::Copy { to, .. } => {
                    let to = &self.program().buffers[to.buffer].name;
                    format!("copy %{to} <- {}", self.place(rect, rank))
                }
                _ => format!("mainloop on {}", self.place(rect, rank)),
            },
            Act::Contribution { rect, own, .. } => {
                format!("sum own {own} from {}", self.place(rect, rank))
            }
            Act::Write { rect, value: Some(value), .. } => {
                format!("store {} <- {value}", self.place(rect, rank))
            }
            Act::Write { rect, value: None, origin } => {
                let to = self.place(rect, rank);
                let region = &self.memory.rects[rect as usize];
                let from = match &stmt.op {
                    Op::Copy { from, .. } => &self.program().buffers[from.buffer].name,
                    _ => "?",
                };
                let at = peer(origin.into(), rank);
                format!("copy {to} <- {at}%{from}[{:?}, {:?}]", region.rows, region.cols)
            }
        }
    }

    /// `peer(1).%x{0, 1}[0..8, 0..4]`, as `rank` says it.
    fn place(&self, rect: u32, rank: u32) -> String {
        let region = &self.memory.rects[rect as usize];
        let buffer = self.buffer(region);
        format!("{}{buffer}[{:?}, {:?}]", peer(region.rank, rank), region.rows, region.cols)
    }

    /// `%x{0, 1}`.
    pub(super) fn buffer(&self, region: &Region) -> String {
        let name = &self.program().buffers[region.buffer].name;
        let planes = self.plane(region);
        if planes.is_empty() {
            return format!("%{name}");
        }
        let planes: Vec<String> = planes.iter().map(u32::to_string).collect();
        format!("%{name}{{{}}}", planes.join(", "))
    }

    /// The plane of a region, an index for each dimension.
    pub(super) fn plane(&self, region: &Region) -> Vec<u32> {
        let mut rest = region.plane;
        let extents = &self.planes[region.buffer.index()];
        let indices = extents.iter().rev().map(|&extent| {
            let extent = extent.max(1);
            let index = rest % extent;
            rest /= extent;
            index
        });
        let mut indices: Vec<u32> = indices.collect();
        indices.reverse();
        indices
    }

    pub(super) fn is_exposed(&self, region: &Region) -> bool {
        self.program().buffers[region.buffer].kind == BufferKind::Exposed
    }

    /// Raises that some wait of the run stands for, and the number of such pairs.
    pub(super) fn edges(&self) -> u64 {
        let mut edges = 0;
        for trace in &self.traces {
            for step in &trace.steps {
                let Act::Wait { slot, len, target } = step.act else { continue };
                let stands = (slot..slot + len).map(|slot| self.history.stands_for(slot, target));
                edges += stands.map(|raises| raises.len() as u64).sum::<u64>();
            }
        }
        edges
    }

    /// The rows of a path: its first step, what leads to the last, and that.
    pub(super) fn rows_of_path(&self, path: &[Place], from: u32, to: &Access) -> Vec<Row> {
        self.rows_to(path, from, to, self.proxy(to))
    }

    /// The same, to an access that reaches memory through `proxy`.
    pub(super) fn rows_to(&self, path: &[Place], from: u32, to: &Access, proxy: Proxy) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut done = from;
        for (index, place) in path.iter().enumerate() {
            let next = path.get(index + 1);
            match place.edge {
                Edge::Here => {}
                Edge::Raise { raise: Raise { actor, stamp, slot, value, .. }, wait } => {
                    let note = format!("makes it {value}");
                    rows.push(self.row(actor, stamp, note));
                    if let Some(next) = next {
                        let note = self.stands_note(next.actor, wait, slot);
                        rows.push(self.row(next.actor, wait, note));
                        done = wait;
                    }
                }
                Edge::Bodies => {
                    let text = "the body ends; the exit begins when all bodies are through";
                    rows.push(self.event(place.actor, place.epoch, text, ""));
                    done = 0;
                }
                Edge::Launch => {
                    let text = format!(
                        "launch {} of rank {} ends; the next one begins behind it",
                        place.epoch,
                        self.layout.actor(place.actor).rank
                    );
                    rows.push(self.event(place.actor, place.epoch, text, ""));
                    done = 0;
                }
            }
        }
        if proxy == Proxy::Generic {
            return rows;
        }
        // The first fence behind what the read stands on.
        let begin = self.traces[to.actor as usize].starts[to.epoch as usize - 1];
        let fence = (done.max(begin) + 1..to.stamp)
            .find(|&stamp| matches!(self.step(to.actor, stamp).act, Act::Fence));
        if let Some(fence) = fence {
            rows.push(self.row(to.actor, fence, "TMA loads behind it see what the wait gave"));
        }
        rows
    }

    /// `stands for all 3 raises`, or for the one.
    fn stands_note(&self, actor: u32, wait: u32, slot: u32) -> String {
        let Act::Wait { target, len, .. } = self.step(actor, wait).act else {
            return String::new();
        };
        let raises = self.history.stands_for(slot, target).len();
        let of = if len == 1 { String::new() } else { format!(" of {}", self.slots(slot, 1)) };
        match raises {
            1 => format!("stands for that raise{}", of),
            _ => format!("stands for the first {raises} raises{of}"),
        }
    }
}

/// Whether ranks have signals or memory in common.
fn shares_memory(program: &Program) -> bool {
    let shared = |kind| matches!(kind, BufferKind::Symmetric | BufferKind::Exposed);
    program.communicates() || program.buffers.values().any(|buffer| shared(buffer.kind))
}

/// How `rank` names what lies on `on`.
pub(super) fn peer(on: u32, rank: u32) -> String {
    if on == rank { String::new() } else { format!("peer({on}).") }
}
