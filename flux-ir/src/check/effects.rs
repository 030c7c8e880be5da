//! What the agents of a rank read and write: regions lie in their buffers, operands fit, and
//! every element of an output is written once. Waits play no part here, so ranks are walked
//! apart; what concerns other actors is left as the rank's traces.

use super::Findings;
use super::coverage::{Coverage, Fault};
use super::epochs::Uniform;
use super::launch::{EVENT_BYTES, MEMORY_LIMIT, bodies, describe};
use super::network;
use super::regions::{Reduction, Regions};
use super::trace::{Act, ActorTrace, Layout, Proxy, Step, name};
use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Rule};
use crate::eval::{Action, AgentRun, Change, Event, RankView, Region};
use crate::program::{AgentId, At, Buffer, BufferId, BufferKind, Op, SignalId, Stmt};
use crate::span::Span;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What a rank does: the traces of its actors, whose rectangles are numbers in `rects`.
#[derive(Debug, Default)]
pub(super) struct RankTrace {
    pub(super) actors: Vec<ActorTrace>,
    pub(super) rects: Vec<Region>,
}

/// Walks what `rank` does in all launches: in the first alone where the others follow from it.
pub(super) fn walk(
    layout: &Layout<'_>,
    regions: &Regions<'_, '_>,
    uniform: Option<&Uniform>,
    rank: u32,
    found: &mut Findings,
) -> RankTrace {
    let mut walk = Walk::new(layout, regions, rank, found);
    let mut actors = vec![ActorTrace { steps: Vec::new(), starts: vec![0] }; layout.each as usize];
    let walked = if uniform.is_some() { 1 } else { layout.epochs };
    for epoch in 1..=walked {
        walk.begin(epoch);
        let mut places = actors.iter_mut();
        for (agent, entry) in layout.program.agents.iter() {
            let ctas = (0..bodies(entry, layout.launch)).map(Some).chain([None]);
            for (cta, actor) in ctas.zip(&mut places) {
                walk.steps = std::mem::take(&mut actor.steps);
                (walk.had, walk.reduction) = (Had::default(), Reduction::default());
                let held = walk.steps.len();
                walk.run(agent, cta);
                let taken = (walk.steps.len() - held) as u64;
                actor.steps = std::mem::take(&mut walk.steps);
                actor.starts.push(actor.steps.len() as u32);
                if !walk.take(taken) {
                    walk.too_large();
                    return RankTrace::default();
                }
            }
        }
        walk.report_coverage();
    }
    let mut rects = walk.rects;
    if let Some(uniform) = uniform {
        uniform.extend(layout, &mut actors, &mut rects);
    }
    RankTrace { actors, rects }
}

/// Slots of which an actor's last wait is remembered.
const WAITED: usize = 64;

/// What an actor has had in this launch, so that it need not have it again. Tiles that follow
/// each other mostly wait for the same, and counters only grow.
#[derive(Debug)]
struct Had {
    /// The last wait for each slot, by the slot's number modulo [`WAITED`].
    waits: [Option<Step>; WAITED],
    /// Whether a fence would order something: a wait, or a signal behind puts.
    unfenced: bool,
}

impl Default for Had {
    fn default() -> Self {
        Had { waits: [None; WAITED], unfenced: false }
    }
}

impl Had {
    /// Notes a wait; says whether it gives anything.
    fn wait(&mut self, number: u32, act: Act) -> bool {
        let Act::Wait { slot, .. } = act else { return true };
        let last = &mut self.waits[slot as usize % WAITED];
        let gives = last.replace(Step { number, act }) != Some(Step { number, act });
        self.unfenced |= gives;
        gives
    }

    fn raise(&mut self) {
        self.unfenced = true;
    }

    /// Notes a fence; says whether it gives anything.
    fn fence(&mut self) -> bool {
        std::mem::take(&mut self.unfenced)
    }
}

struct Walk<'a, 'p> {
    layout: &'a Layout<'p>,
    regions: &'a Regions<'a, 'p>,
    view: &'a RankView<'p>,
    epoch: u32,
    /// Of each buffer that is an output.
    coverages: Vec<Option<Coverage<'p>>>,
    /// A contribution to the last sum: all are of the same elements.
    summed: Option<Region>,
    /// How far the tile at hand has been reduced.
    reduction: Reduction,
    /// How copies of the agent at hand reach memory.
    copies_by: Proxy,
    sound: bool,
    /// Steps of the actor at hand, and what they gave it in this launch.
    steps: Vec<Step>,
    had: Had,
    /// The rectangles of memory that ranks share, and their numbers.
    rects: Vec<Region>,
    numbers: FxHashMap<Region, u32>,
    found: &'a mut Findings,
}

impl<'a, 'p> Walk<'a, 'p> {
    fn new(
        layout: &'a Layout<'p>,
        regions: &'a Regions<'a, 'p>,
        rank: u32,
        found: &'a mut Findings,
    ) -> Self {
        Walk {
            layout,
            regions,
            view: regions.view(rank),
            epoch: 0,
            coverages: Vec::new(),
            summed: None,
            reduction: Reduction::default(),
            copies_by: Proxy::Generic,
            sound: true,
            steps: Vec::new(),
            had: Had::default(),
            rects: Vec::new(),
            numbers: FxHashMap::default(),
            found,
        }
    }

    /// Begins a launch: nothing is written yet.
    fn begin(&mut self, epoch: u32) {
        let view = self.view;
        let coverage = |(id, buffer): (BufferId, &Buffer)| {
            (buffer.kind == BufferKind::Output).then(|| {
                Coverage::new(view.extent(id), view.first_row(id, view.rank), view.program.tile)
            })
        };
        self.epoch = epoch;
        self.coverages = view.program.buffers.iter().map(coverage).collect();
    }

    /// Takes room for so many events; says whether there was any.
    fn take(&self, events: u64) -> bool {
        let room = &self.layout.room;
        let taken = room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| {
            Some(room.saturating_sub(events))
        });
        taken.is_ok_and(|room| room >= events)
    }

    fn too_large(&mut self) {
        let launch = describe(self.layout.launch);
        let bytes = self.layout.estimate;
        self.found.once(Rule::Bounds, self.layout.program, || {
            let message = format!(
                "the check would take up to {bytes} bytes, expected at most {MEMORY_LIMIT}"
            );
            Diagnostic::new(Rule::Bounds, Span::UNKNOWN, message).note(Span::UNKNOWN, launch)
        });
    }

    /// Walks a body of an agent, or its exit.
    fn run(&mut self, agent: AgentId, cta: Option<u32>) {
        self.copies_by = Proxy::of_copies(self.layout.program.agents[agent].engine);
        let mut run: AgentRun<'_, 'p> = match cta {
            Some(cta) => self.view.agent(agent, cta, self.epoch),
            None => self.view.exit(agent, self.epoch),
        };
        loop {
            let event = run.next();
            if let Some(stmt) = run.take_escape() {
                let what =
                    "names an index that is negative, too large, or outside of its table or plane";
                self.fault(agent, cta, stmt, Rule::Bounds, what);
            }
            let Some(event) = event else { return };
            let stmt = event.stmt;
            if let Err((rule, what)) = self.event(event) {
                self.fault(agent, cta, stmt, rule, &what);
            }
            if self.steps.len() as u64 > MEMORY_LIMIT / EVENT_BYTES {
                return;
            }
        }
    }

    fn event(&mut self, event: Event<'p>) -> Result<(), (Rule, String)> {
        let (rank, number) = (self.view.rank, event.number);
        match event.action {
            Action::Wait { signal, slots, target, scope: _ } => {
                self.wait(number, signal, &slots, target)
            }
            Action::FenceProxyAsync => {
                if self.layout.repeats || self.had.fence() {
                    self.step(number, Act::Fence);
                }
                Ok(())
            }
            Action::Signal { rank, signal, slot, change, scope: _, after: _ } => {
                if let Op::Signal { at, .. } = &event.stmt.op {
                    network::reach(self.layout.program, event.stmt, self.view.rank, (rank, at))?;
                }
                self.raise(number, rank, signal, slot, change)
            }
            Action::Mainloop { products } => {
                let at = (&event.tile, event.visit);
                self.regions.mainloop(at, &products, &mut self.reduction)?;
                for (a, b, _) in &products {
                    self.mapped(event.stmt, a)?;
                    self.mapped(event.stmt, b)?;
                    self.read(number, a, Proxy::Async);
                    self.read(number, b, Proxy::Async);
                }
                Ok(())
            }
            Action::Store { to, value, loads, adds } => {
                self.regions.store(&event.tile, &to)?;
                self.regions.loads(&loads, &to)?;
                self.mapped(event.stmt, &to)?;
                for (_, region) in &loads {
                    self.mapped(event.stmt, region)?;
                    self.read(number, region, Proxy::Generic);
                }
                if !to.is_empty() && self.sound {
                    self.regions.reduced(value, event.visit, &self.reduction)?;
                }
                self.regions.operands(rank, value, &to)?;
                self.regions.store_of_sum(value, &to, self.summed.as_ref())?;
                self.write(event.stmt, &to);
                if adds {
                    self.read(number, &to, Proxy::Generic);
                }
                if let Some(rect) = self.shared(&to) {
                    let origin = rank as u16;
                    self.step(number, Act::Write { rect, value: Some(value), origin });
                }
                Ok(())
            }
            Action::Sum { own, from, loads, .. } => {
                self.regions.sum(rank, own, &from)?;
                if let Some(first) = from.first() {
                    self.regions.loads(&loads, first)?;
                    for (_, region) in &loads {
                        self.mapped(event.stmt, region)?;
                        self.read(number, region, Proxy::Generic);
                    }
                }
                if self.sound {
                    self.regions.reduced(own, event.visit, &self.reduction)?;
                }
                let last = from.len().saturating_sub(1);
                for (index, region) in from.iter().enumerate() {
                    self.mapped(event.stmt, region)?;
                    if let Some(rect) = self.shared(region) {
                        let (first, last) = (index == 0, index == last);
                        self.step(number, Act::Contribution { rect, own, first, last });
                    }
                }
                self.summed = from.into_iter().next();
                Ok(())
            }
            Action::Copy { from, to, adds } => {
                self.regions.copy(&from, &to)?;
                self.mapped(event.stmt, &from)?;
                if let Op::Copy { to: place, .. } = &event.stmt.op {
                    let (of, at) = (to.rank, &place.at);
                    network::reach(self.layout.program, event.stmt, rank, (of, at))?;
                }
                self.write(event.stmt, &to);
                self.read(number, &from, self.copies_by);
                if adds {
                    self.read(number, &to, self.copies_by);
                }
                if let Some(rect) = self.shared(&to) {
                    let origin = from.rank as u16;
                    self.step(number, Act::Write { rect, value: None, origin });
                }
                Ok(())
            }
        }
    }

    /// Whether memory is mapped on this rank, where it is accessed by ordinary loads and stores.
    fn mapped(&self, stmt: &Stmt, region: &Region) -> Result<(), (Rule, String)> {
        if region.is_empty() || self.layout.program.is_mapped(self.view.rank, region.rank) {
            return Ok(());
        }
        let peer = At::Peer(region.rank.into());
        network::reach(self.layout.program, stmt, self.view.rank, (region.rank, &peer))
    }

    fn step(&mut self, number: u32, act: Act) {
        self.steps.push(Step { number, act });
    }

    fn wait(
        &mut self,
        number: u32,
        signal: SignalId,
        slots: &Range<u32>,
        target: i64,
    ) -> Result<(), (Rule, String)> {
        let all = self.layout.slots(self.view.rank, signal);
        if slots.is_empty() {
            return Ok(());
        }
        if slots.end > all.len() as u32 {
            let name = &self.layout.program.signals[signal].name;
            let fault = format!("waits for slots {slots:?} of `%{name}`, which has {}", all.len());
            return Err((Rule::Bounds, fault));
        }
        let (slot, len) = (all.start + slots.start, slots.len() as u32);
        let target = target.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        let act = Act::Wait { slot, len, target };
        if self.layout.repeats || self.had.wait(number, act) {
            self.step(number, act);
        }
        Ok(())
    }

    fn raise(
        &mut self,
        number: u32,
        rank: u32,
        signal: SignalId,
        slot: u32,
        change: Change,
    ) -> Result<(), (Rule, String)> {
        let name = &self.layout.program.signals[signal].name;
        if rank >= self.layout.launch.world {
            return Err((Rule::Bounds, format!("raises `%{name}` on rank {rank}")));
        }
        let all = self.layout.slots(rank, signal);
        if slot >= all.len() as u32 {
            let fault = format!("raises slot {slot} of `%{name}`, which has {}", all.len());
            return Err((Rule::Bounds, fault));
        }
        let (sets, value) = match change {
            Change::Add(count) => (false, count),
            Change::Set(value) => (true, value),
        };
        self.had.raise();
        self.step(number, Act::Raise { slot: all.start + slot, sets, value });
        Ok(())
    }

    fn read(&mut self, number: u32, region: &Region, proxy: Proxy) {
        if let Some(rect) = self.shared(region) {
            self.step(number, Act::Read { rect, proxy });
        }
    }

    /// The number of a rectangle that ranks share; none where it is empty or no rank but this one
    /// ever touches it in a launch.
    fn shared(&mut self, region: &Region) -> Option<u32> {
        let kind = self.layout.program.buffers[region.buffer].kind;
        if !matches!(kind, BufferKind::Symmetric | BufferKind::Exposed) || region.is_empty() {
            return None;
        }
        if let Some(&rect) = self.numbers.get(region) {
            return Some(rect);
        }
        let rect = self.rects.len() as u32;
        self.rects.push(region.clone());
        self.numbers.insert(region.clone(), rect);
        Some(rect)
    }

    /// Notes what is written of an output. No peer can reach one.
    fn write(&mut self, stmt: &'p Stmt, to: &Region) {
        if let Some(coverage) = &mut self.coverages[to.buffer.index()]
            && !to.is_empty()
        {
            let [rows, cols] = self.regions.in_memory(to);
            coverage.add(rows, cols, stmt);
        }
    }

    fn moment(&self) -> String {
        format!("{}, launch {}", describe(self.view.launch), self.epoch)
    }

    fn fault(&mut self, agent: AgentId, cta: Option<u32>, stmt: &'p Stmt, rule: Rule, what: &str) {
        self.sound = false;
        let (view, moment) = (self.view, self.moment());
        self.found.once(rule, stmt, || {
            let actor = name(view.program, view.rank, agent, cta);
            Diagnostic::new(rule, stmt.span, format!("{actor} {what}")).note(Span::UNKNOWN, moment)
        });
    }

    fn report_coverage(&mut self) {
        if !self.sound {
            return;
        }
        let (rank, moment) = (self.view.rank, self.moment());
        for ((id, buffer), coverage) in self.view.program.buffers.iter().zip(&self.coverages) {
            let Some(fault) = coverage.as_ref().and_then(Coverage::fault) else { continue };
            let first = [self.view.first_row(id, rank), self.view.first_col(id, rank)];
            let at = |row: u32, col: u32| {
                let (row, col) = (row + first[0], col + first[1]);
                format!("element ({row}, {col}) of `%{}` on rank {rank}", buffer.name)
            };
            match fault {
                Fault::Twice { row, col, stmts: [one, two] } => {
                    self.found.once(Rule::WrittenTwice, two, || {
                        let message = format!("{} is written twice", at(row, col));
                        Diagnostic::new(Rule::WrittenTwice, two.span, message)
                            .note(one.span, "first here")
                            .note(Span::UNKNOWN, &moment)
                    });
                }
                Fault::Never { row, col } => {
                    self.found.once(Rule::NeverWritten, buffer, || {
                        let message = format!("{} is never written", at(row, col));
                        Diagnostic::new(Rule::NeverWritten, buffer.span, message)
                            .note(Span::UNKNOWN, &moment)
                            .help("every element of an output has to be stored in each launch")
                    });
                }
            }
        }
    }
}
