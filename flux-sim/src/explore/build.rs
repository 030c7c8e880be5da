//! Walks the events of every actor and makes moves of them.

use super::cells::Cells;
use super::system::{Kind, Move, MoveId, Raise, Thread, Wait};
use super::{Config, ExploreError};
use flux_ir::arena::Handle;
use flux_ir::eval::{Action, AgentRun, Event, Loads, RankView, Region};
use flux_ir::program::{
    AgentId, At, BufferId, BufferKind, Completion, Engine, Op, Program, SignalId, Stmt, ValueId,
};
use std::collections::HashMap;
use std::ops::Range;

/// Moves that nothing has been derived from yet.
pub(super) struct Loose {
    pub(super) threads: Vec<Thread>,
    pub(super) moves: Vec<Move>,
    pub(super) adrift: Vec<MoveId>,
    /// The number of signals of all ranks, and of cells.
    pub(super) slots: usize,
    pub(super) cells: usize,
}

/// What a move touches, until the grid of cells is known.
#[derive(Default)]
struct Touch {
    reads: Vec<Region>,
    writes: Vec<Region>,
    /// How far its thread is where bulk reads can begin, if that is before their place in line.
    early: Option<usize>,
}

/// The place of one launch in a thread's line.
struct Span {
    begin: MoveId,
    /// How many moves the thread has done when the last wait of the launch is over, if there is
    /// one.
    waited: Option<usize>,
    /// The same for the end of the launch.
    end: usize,
}

struct Build<'v, 'p> {
    program: &'p Program,
    views: &'v [RankView<'p>],
    /// Where the signals of each (rank, array) begin.
    bases: Vec<usize>,
    loose: Loose,
    touches: Vec<Touch>,
    /// By thread, its launches.
    spans: Vec<Vec<Span>>,
    /// By thread and rank: what is on its way there through the network.
    sent: HashMap<(usize, u32), Sent>,
}

/// What a thread sent to a rank of another node. Its writes overtake each other; a signal comes behind those that
/// were sent before it, and behind earlier signals: a later one that overtook them would say the same and more.
#[derive(Default)]
struct Sent {
    writes: Vec<usize>,
    last_signal: Option<usize>,
}

pub(super) fn build(program: &Program, config: Config) -> Result<Loose, ExploreError> {
    let views = (0..config.launch.world)
        .map(|rank| RankView::new(program, config.launch, rank))
        .collect::<Result<Vec<_>, _>>()?;
    let mut bases = vec![0];
    let mut end = 0;
    for view in &views {
        for signal in program.signals.handles() {
            end += view.signal_len(signal) as usize;
            bases.push(end);
        }
    }
    let loose = Loose { threads: vec![], moves: vec![], adrift: vec![], slots: end, cells: 0 };
    let (touches, spans, sent) = (vec![], vec![], HashMap::new());
    let mut build = Build { program, views: &views, bases, loose, touches, spans, sent };
    // Number 0 stands for no move at all.
    build.step(Kind::Other, None, 0, 0);
    for rank in 0..config.launch.world {
        for (id, agent) in program.agents.iter() {
            let ctas = agent.engine.bodies(config.launch.ctas);
            for cta in (0..ctas).map(Some).chain([None]) {
                build.thread(rank, id, cta, config.epochs)?;
            }
        }
    }
    for rank in 0..config.launch.world {
        build.link(rank, config);
    }
    build.place();
    Ok(build.loose)
}

/// What a thread has behind it in the launch at hand.
#[derive(Default)]
struct Past {
    /// Moves adrift that were issued and that nothing asked for: sources, and everything.
    sources: Vec<usize>,
    all: Vec<usize>,
    /// Sources of what goes over the network, which only a flush asks for: that of a signal, and that of the end.
    sent: Vec<usize>,
    unsent: Vec<usize>,
    /// The last write of a stream.
    last_copy: Option<usize>,
    /// How far the thread was where it first learned something behind the last fence: at a wait, or
    /// when own writes were performed.
    unfenced: Option<usize>,
    /// What was read in line, and how far the thread was behind that.
    read: Vec<(Region, usize)>,
}

impl<'p> Build<'_, 'p> {
    fn step(&mut self, kind: Kind, stmt: Option<u32>, thread: usize, launch: u32) -> MoveId {
        self.touches.push(Touch::default());
        self.loose.moves.push(Move {
            kind,
            stmt,
            thread,
            launch,
            passed: Vec::new(),
            done: Vec::new(),
            wait: None,
            raise: None,
            reads: Vec::new(),
            writes: Vec::new(),
        });
        self.loose.moves.len() - 1
    }

    /// A move at the end of a thread's line.
    fn in_line(&mut self, kind: Kind, stmt: Option<u32>, thread: usize, launch: u32) -> MoveId {
        let id = self.step(kind, stmt, thread, launch);
        self.loose.threads[thread].line.push(id);
        id
    }

    /// A move adrift that needs what its thread has done so far, or up to an earlier place. Returns
    /// its number as well.
    fn adrift(
        &mut self,
        (kind, early): (Kind, Option<usize>),
        stmt: u32,
        thread: usize,
        launch: u32,
    ) -> (MoveId, usize) {
        let id = self.step(kind, Some(stmt), thread, launch);
        let so_far = early.unwrap_or(self.loose.threads[thread].line.len());
        self.loose.moves[id].passed.push((thread, so_far));
        self.loose.adrift.push(id);
        (id, self.loose.adrift.len() - 1)
    }

    fn thread(
        &mut self,
        rank: u32,
        agent: AgentId,
        cta: Option<u32>,
        epochs: u32,
    ) -> Result<(), ExploreError> {
        let views = self.views;
        let view = &views[rank as usize];
        let thread = self.loose.threads.len();
        let engine = self.program.agents[agent].engine;
        self.loose.threads.push(Thread { rank, agent, engine, cta, line: Vec::new() });
        let mut spans = Vec::new();
        for epoch in 1..=epochs {
            let begin = self.in_line(Kind::Begin, None, thread, epoch);
            let mut waited = None;
            let mut run = match cta {
                Some(cta) => view.agent(agent, cta, epoch),
                None => view.exit(agent, epoch),
            };
            let mut past = Past::default();
            while let Some(event) = next(&mut run)? {
                let waits = matches!(event.action, Action::Wait { .. });
                self.event(thread, epoch, event, &mut past)?;
                if waits {
                    waited = Some(self.loose.threads[thread].line.len());
                }
            }
            let end = self.in_line(Kind::End, None, thread, epoch);
            self.loose.moves[end].done = past.all;
            self.loose.moves[end].done.extend(past.unsent);
            spans.push(Span { begin, waited, end: self.loose.threads[thread].line.len() });
        }
        self.spans.push(spans);
        Ok(())
    }

    fn event(
        &mut self,
        thread: usize,
        epoch: u32,
        event: Event<'p>,
        past: &mut Past,
    ) -> Result<(), ExploreError> {
        let Event { stmt, number, tile, visit: _, action } = event;
        let place = self.loose.threads[thread].line.len();
        let rank = self.loose.threads[thread].rank;
        match action {
            Action::FenceProxyAsync => past.unfenced = None,
            Action::Wait { signal, slots, target, scope } => {
                past.unfenced.get_or_insert(place);
                let slots = self.slots(stmt, rank, signal, slots)?;
                let id = self.in_line(Kind::Other, Some(number), thread, epoch);
                self.loose.moves[id].wait = Some(Wait { slots, target, scope });
            }
            Action::Signal { rank, signal, slot, change, scope, after } => {
                let slots = self.slots(stmt, rank, signal, slot..slot.saturating_add(1))?;
                if after == Completion::Delivered {
                    let raise = Raise { slot: slots.start, change, scope };
                    self.deliver((thread, rank), epoch, number, raise);
                    return Ok(());
                }
                let id = self.in_line(Kind::Other, Some(number), thread, epoch);
                self.loose.moves[id].raise = Some(Raise { slot: slots.start, change, scope });
                self.loose.moves[id].done = past.ask(after, place);
            }
            Action::Mainloop { products } => {
                let mut reads = Vec::new();
                for region in products.into_iter().flat_map(|(a, b, _)| [a, b]) {
                    reads.extend(self.shared(stmt, region)?);
                }
                if reads.is_empty() {
                    return Ok(());
                }
                let id = self.in_line(Kind::Other, Some(number), thread, epoch);
                self.touches[id].early = past.unfenced;
                past.reads(&reads, place + 1);
                self.touches[id].reads = reads;
            }
            Action::Sum { own, from, loads, .. } => {
                self.loads(thread, epoch, (stmt, number), &loads, past)?;
                let contributions = from.len();
                let mut reads = Vec::new();
                for region in from {
                    reads.extend(self.shared(stmt, region)?);
                }
                let kind = Kind::Sum(contributions, own);
                let id = self.in_line(kind, Some(number), thread, epoch);
                past.reads(&reads, self.loose.threads[thread].line.len());
                self.touches[id].reads = reads;
            }
            Action::Store { to, value, loads, adds } => {
                self.loads(thread, epoch, (stmt, number), &loads, past)?;
                let to = Region {
                    rows: cut(&to.rows, &tile.rows),
                    cols: cut(&to.cols, &tile.cols),
                    ..to
                };
                let from = (None, adds);
                self.issue(thread, epoch, (stmt, number), from, (to, Some(value)), past)?;
            }
            Action::Copy { from, to, .. } if is_put_over_network(stmt) => {
                self.send((thread, to.rank), epoch, (stmt, number), (from, to), past)?;
            }
            Action::Copy { from, to, adds } => {
                let from = (Some(from), adds);
                self.issue(thread, epoch, (stmt, number), from, (to, None), past)?;
            }
        }
        Ok(())
    }

    /// What a value reads of workspace, in line: registers hold it before anything is written.
    fn loads(
        &mut self,
        thread: usize,
        epoch: u32,
        (stmt, number): (&Stmt, u32),
        loads: &Loads,
        past: &mut Past,
    ) -> Result<(), ExploreError> {
        let mut reads = Vec::new();
        for (_, region) in loads {
            reads.extend(self.shared(stmt, region.clone())?);
        }
        if !reads.is_empty() {
            let id = self.in_line(Kind::Other, Some(number), thread, epoch);
            past.reads(&reads, self.loose.threads[thread].line.len());
            self.touches[id].reads = reads;
        }
        Ok(())
    }

    /// A put or a copy: its read and its write drift.
    fn issue(
        &mut self,
        thread: usize,
        epoch: u32,
        (stmt, number): (&Stmt, u32),
        (from, adds): (Option<Region>, bool),
        (to, value): (Region, Option<ValueId>),
        past: &mut Past,
    ) -> Result<(), ExploreError> {
        let is_copy = from.is_some();
        let Thread { rank: own, engine, .. } = self.loose.threads[thread];
        // Bulk copies overtake each other, and what the thread has learned behind the last fence;
        // but what earlier ones read is in shared memory before one is stored.
        let is_bulk = is_copy && engine == Engine::Tma;
        // Tiles stored on the own rank may leave by TMA: they overtake that as well, but nothing that the thread
        // itself has read of the same memory.
        let early = match self.may_leave_in_bulk(stmt) {
            true => past.unfenced.map(|place| place.max(past.behind_reads(&to))),
            false => past.unfenced.filter(|_| is_bulk),
        };
        let origin = from.as_ref().map_or(own, |region| region.rank);
        // What is added to is read as well.
        let so_far = adds.then(|| to.clone());
        let mut sources = Vec::new();
        for region in from.into_iter().chain(so_far) {
            sources.extend(self.shared(stmt, region)?);
        }
        let mut before = past.last_copy.filter(|_| is_copy && !is_bulk);
        if !sources.is_empty() {
            let (id, drift) = self.adrift((Kind::Other, early), number, thread, epoch);
            self.touches[id].reads.extend(sources);
            self.loose.moves[id].done.extend(before);
            before = Some(drift);
            past.sources.push(drift);
            past.all.push(drift);
        }
        if let Some(region) = self.shared(stmt, to)? {
            let kind = Kind::Write { value, origin };
            let (id, drift) = self.adrift((kind, early), number, thread, epoch);
            self.touches[id].writes.push(region);
            self.loose.moves[id].done.extend(before);
            self.loose.moves[id].done.extend(past.sources.iter().filter(|_| is_bulk));
            before = Some(drift);
            past.all.push(drift);
        }
        if is_copy {
            past.last_copy = before;
        }
        Ok(())
    }

    fn may_leave_in_bulk(&self, stmt: &Stmt) -> bool {
        let Op::Store { to, adds, .. } = &stmt.op else { return false };
        to.at == At::Own && !adds && !self.program.is_flagged(to.buffer)
    }

    /// A put over the network: its source is read at some time, and it lies there at some time behind that.
    fn send(
        &mut self,
        (thread, rank): (usize, u32),
        epoch: u32,
        (stmt, number): (&Stmt, u32),
        (from, to): (Region, Region),
        past: &mut Past,
    ) -> Result<(), ExploreError> {
        let origin = from.rank;
        let mut before = None;
        if let Some(region) = self.shared(stmt, from)? {
            let (id, drift) = self.adrift((Kind::Other, None), number, thread, epoch);
            self.touches[id].reads.push(region);
            past.sent.push(drift);
            past.unsent.push(drift);
            before = Some(drift);
        }
        if let Some(region) = self.shared(stmt, to)? {
            let kind = Kind::Write { value: None, origin };
            let (id, drift) = self.adrift((kind, None), number, thread, epoch);
            self.touches[id].writes.push(region);
            self.loose.moves[id].done.extend(before);
            self.sent.entry((thread, rank)).or_default().writes.push(drift);
        }
        Ok(())
    }

    /// A signal that travels behind what its thread has put to that rank.
    fn deliver(&mut self, to: (usize, u32), epoch: u32, number: u32, raise: Raise) {
        let (id, drift) = self.adrift((Kind::Other, None), number, to.0, epoch);
        self.loose.moves[id].raise = Some(raise);
        let sent = self.sent.entry(to).or_default();
        self.loose.moves[id].done.append(&mut sent.writes);
        self.loose.moves[id].done.extend(sent.last_signal.replace(drift));
    }

    /// The signals of an array on one rank, among those of all.
    fn slots(
        &self,
        stmt: &Stmt,
        rank: u32,
        signal: SignalId,
        slots: Range<u32>,
    ) -> Result<Range<usize>, ExploreError> {
        let outside = || ExploreError::OutOfBounds { span: stmt.span };
        if slots.is_empty() {
            return Ok(0..0);
        }
        let view = self.views.get(rank as usize).ok_or_else(outside)?;
        if slots.end > view.signal_len(signal) {
            return Err(outside());
        }
        let base = self.bases[rank as usize * self.program.signals.len() + signal.index()];
        Ok(base + slots.start as usize..base + slots.end as usize)
    }

    /// A region that other actors can touch as well, if it holds anything.
    fn shared(&self, stmt: &Stmt, region: Region) -> Result<Option<Region>, ExploreError> {
        let shared = match self.program.buffers[region.buffer].kind {
            BufferKind::Symmetric | BufferKind::Exposed => true,
            BufferKind::Input | BufferKind::Output => false,
        };
        if region.is_empty() || !shared {
            return Ok(None);
        }
        let outside = || ExploreError::OutOfBounds { span: stmt.span };
        let view = self.views.get(region.rank as usize).ok_or_else(outside)?;
        let extent = view.extent(region.buffer);
        let first = view.first_row(region.buffer, region.rank);
        let left = view.first_col(region.buffer, region.rank);
        let inside = u64::from(region.plane) < extent.planes
            && first <= region.rows.start
            && u64::from(region.rows.end) <= u64::from(first) + extent.rows
            && left <= region.cols.start
            && u64::from(region.cols.end) <= u64::from(left) + extent.cols;
        if inside { Ok(Some(region)) } else { Err(outside()) }
    }

    /// Orders the launches of one rank: a body begins when the launch before is over, an exit when
    /// the bodies of its agent are.
    fn link(&mut self, rank: u32, config: Config) {
        let all: Vec<usize> = (0..self.loose.threads.len())
            .filter(|&thread| self.loose.threads[thread].rank == rank)
            .collect();
        let caller = self.exposes().then(|| self.caller(rank, &all, config.epochs));
        for &thread in &all {
            let Thread { agent, cta, .. } = self.loose.threads[thread];
            for launch in 0..config.epochs as usize {
                let mut passed = Vec::new();
                for &other in &all {
                    let Thread { agent: of, cta: other_cta, .. } = self.loose.threads[other];
                    let spans = &self.spans[other];
                    if cta.is_some() && launch > 0 {
                        passed.push((other, spans[launch - 1].end));
                    }
                    if cta.is_none() && of == agent && other_cta.is_some() {
                        passed.push((other, spans[launch].end));
                    }
                    if config.host_first && self.is_before(of, agent) {
                        passed.extend(spans[launch].waited.map(|waited| (other, waited)));
                    }
                }
                // The caller's line holds a begin and an end for each launch.
                passed.extend(caller.map(|caller| (caller, 2 * launch + 1)));
                let begin = self.spans[thread][launch].begin;
                self.loose.moves[begin].passed = passed;
            }
        }
    }

    /// Whether the host is through with the waits of agent `one` before it starts `two`: it feeds
    /// one copy engine behind the other, then launches the grid and feeds those that wait for it.
    fn is_before(&self, one: AgentId, two: AgentId) -> bool {
        let beside = |agent: AgentId| self.program.beside_grid(&self.program.agents[agent]);
        !beside(one) && one != two && (beside(two) || one.index() < two.index())
    }

    fn exposes(&self) -> bool {
        self.program.buffers.values().any(|buffer| buffer.kind == BufferKind::Exposed)
    }

    /// The caller of a rank's launches, who writes the tensors that peers read before each launch,
    /// and may do with them as it likes behind it.
    fn caller(&mut self, rank: u32, all: &[usize], epochs: u32) -> usize {
        let thread = self.loose.threads.len();
        let agent = AgentId(u32::MAX);
        let engine = Engine::CopyEngine;
        self.loose.threads.push(Thread { rank, agent, engine, cta: None, line: Vec::new() });
        self.spans.push(Vec::new());
        for launch in 0..epochs as usize {
            self.in_line(Kind::Begin, None, thread, launch as u32 + 1);
            let end = self.in_line(Kind::End, None, thread, launch as u32 + 1);
            let ends = all.iter().map(|&thread| (thread, self.spans[thread][launch].end));
            self.loose.moves[end].passed = ends.collect();
        }
        thread
    }

    /// Cuts memory into cells and gives each move those it touches.
    fn place(&mut self) {
        let mut cells = Cells::default();
        for touch in &self.touches {
            touch.reads.iter().chain(&touch.writes).for_each(|region| cells.cut(region));
        }
        for id in 0..self.touches.len() {
            let touch = std::mem::take(&mut self.touches[id]);
            let reads: Vec<_> = touch.reads.iter().flat_map(|region| cells.of(region)).collect();
            let writes = touch.writes.iter().flat_map(|region| cells.of(region)).collect();
            self.loose.moves[id].writes = writes;
            match touch.early {
                Some(from) => self.read_early(id, from, reads),
                None => self.loose.moves[id].reads = reads,
            }
        }
        let exposed = self.program.buffers.iter().filter(|(_, b)| b.kind == BufferKind::Exposed);
        let exposed: Vec<BufferId> = exposed.map(|(id, _)| id).collect();
        for thread in self.loose.threads.iter().filter(|thread| thread.agent.0 == u32::MAX) {
            let on_rank = exposed.iter().flat_map(|&buffer| cells.on_rank(buffer, thread.rank));
            let writes: Vec<_> = on_rank.collect();
            for &id in &thread.line {
                self.loose.moves[id].writes = writes.clone();
            }
        }
        self.loose.cells = cells.len();
    }

    /// Lets the reads of a mainloop drift, from where its thread has come so far.
    fn read_early(&mut self, id: MoveId, from: usize, reads: Vec<u32>) {
        let Move { thread, launch, stmt, .. } = self.loose.moves[id];
        let early = self.step(Kind::Other, stmt, thread, launch);
        self.loose.moves[early].passed.push((thread, from));
        self.loose.moves[early].reads = reads;
        self.loose.moves[id].done.push(self.loose.adrift.len());
        self.loose.adrift.push(early);
    }
}

impl Past {
    /// Notes what is read in line, with which the thread comes to `place`.
    fn reads(&mut self, regions: &[Region], place: usize) {
        self.read.extend(regions.iter().map(|region| (region.clone(), place)));
    }

    /// How far the thread is behind its last read of anything of `to`.
    fn behind_reads(&self, to: &Region) -> usize {
        let meets = |from: &Region| {
            (from.rank, from.buffer, from.plane) == (to.rank, to.buffer, to.plane)
                && !cut(&from.rows, &to.rows).is_empty()
                && !cut(&from.cols, &to.cols).is_empty()
        };
        let last = self.read.iter().rfind(|(from, _)| meets(from));
        last.map_or(0, |&(_, place)| place)
    }

    /// What has to be over before a signal is raised.
    fn ask(&mut self, after: Completion, place: usize) -> Vec<usize> {
        let mut sources = std::mem::take(&mut self.sources);
        match after {
            Completion::Read => {
                sources.append(&mut self.sent);
                sources
            }
            // It stands in no line.
            Completion::Delivered => sources,
            Completion::Performed => {
                self.unfenced.get_or_insert(place);
                std::mem::take(&mut self.all)
            }
        }
    }
}

/// Whether a copy goes to another node.
fn is_put_over_network(stmt: &Stmt) -> bool {
    matches!(&stmt.op, Op::Copy { to, .. } if to.at.is_remote())
}

/// The next event, none of whose indices leaves what it indexes.
fn next<'p>(run: &mut AgentRun<'_, 'p>) -> Result<Option<Event<'p>>, ExploreError> {
    let event = run.next();
    match run.take_escape() {
        Some(stmt) => Err(ExploreError::OutOfBounds { span: stmt.span }),
        None => Ok(event),
    }
}

fn cut(a: &Range<u32>, b: &Range<u32>) -> Range<u32> {
    a.start.max(b.start)..a.end.min(b.end)
}
