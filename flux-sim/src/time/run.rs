//! Walks the agents of all simulated ranks in the order of time.

use super::actor::{Moment, State};
use super::cost::Cost;
use super::fold::Fold;
use super::instant::Time;
use super::memory::DeviceMemory;
use super::network::{Network, Transfer};
use super::queue::{Item, Queue};
use super::record::{Actor, Kind, Lane, NONE, Op, Role, Timeline};
use super::signals::Raise;
use super::slots::Slots;
use super::{Error, Options};
use flux_ir::Target;
use flux_ir::arena::Handle;
use flux_ir::eval::{Action, Event, RankView, TileRange};
use flux_ir::program::{AgentId, Engine, Home, Program, SignalId};
use rustc_hash::FxHashMap;

/// Which parts of a launch take time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    /// All of it.
    All,
    /// The grid alone, with every signal there and nothing sent.
    Compute,
    /// Transfers alone, one behind the other as the launch issues them.
    Transfers,
}

/// Whom a wait of a CTA holds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// The loads of the next mainloop.
    Loads,
    /// The epilogue of the tile at hand.
    Epilogue,
    /// The whole CTA: it stands outside of the tile loop.
    Both,
}

#[derive(Debug, Default, Clone)]
struct Progress {
    epoch: u32,
    /// When the launch at hand began.
    begun: Moment,
    /// Bodies of each agent that are not through.
    bodies: Vec<u32>,
    /// Agents that are not through, exits included.
    agents: u32,
    /// When the last of them was.
    through: Moment,
}

pub(super) struct Run<'v, 'p> {
    pub(super) cost: &'v Cost<'v>,
    pub(super) parts: Parts,
    pub(super) program: &'p Program,
    pub(super) views: &'v [RankView<'p>],
    pub(super) fold: &'v Fold,
    options: Options,
    pub(super) actors: Vec<Actor>,
    pub(super) states: Vec<State<'v, 'p>>,
    /// Actors of each rank.
    pub(super) each: u32,
    ranks: Vec<Progress>,
    pub(super) slots: Slots,
    /// Where the slots of each array begin, of one rank; one more at the end.
    pub(super) bases: Vec<u64>,
    pub(super) waiting: FxHashMap<u64, Vec<u32>>,
    pub(super) queue: Queue,
    pub(super) raises: Vec<Raise>,
    pub(super) free_raises: Vec<u32>,
    pub(super) transfers: Vec<Option<Transfer>>,
    pub(super) free_transfers: Vec<u32>,
    pub(super) turn: u64,
    pub(super) network: Network,
    /// The same between nodes.
    pub(super) fabric: Network,
    pub(super) memories: Vec<DeviceMemory>,
    holds: Vec<Holds>,
    /// Whether ops are kept; without, they are counted.
    pub(super) keeps: bool,
    pub(super) ops: Vec<Op>,
    last: Moment,
    began: Time,
    fault: Option<Error>,
}

/// What an event led to.
pub(super) enum Step {
    /// It is done.
    Done,
    /// It waits for a slot.
    Blocked(u64),
    /// It waits for transfers of its own to get to the links they are for.
    Parked,
    /// It is done, and the actor waits for the transfer.
    Sent,
}

impl<'v, 'p> Run<'v, 'p> {
    pub(super) fn new(
        cost: &'v Cost<'v>,
        parts: Parts,
        views: &'v [RankView<'p>],
        fold: &'v Fold,
        options: Options,
    ) -> Self {
        let program = views[0].program;
        let actors = actors(program, views[0].launch.ctas, fold.classes());
        let mut bases = vec![0];
        for signal in program.signals.handles() {
            let len = u64::from(views[0].signal_len(signal));
            bases.push(bases.last().copied().unwrap_or(0) + len);
        }
        let slots = bases.last().copied().unwrap_or(0) * u64::from(fold.classes());
        Run {
            cost,
            parts,
            program,
            views,
            fold,
            options,
            states: actors.iter().map(|_| State::new()).collect(),
            each: actors.len() as u32 / fold.classes(),
            ranks: vec![Progress::default(); fold.classes() as usize],
            slots: Slots::new(slots),
            bases,
            waiting: FxHashMap::default(),
            queue: Queue::default(),
            raises: Vec::new(),
            free_raises: Vec::new(),
            transfers: Vec::new(),
            free_transfers: Vec::new(),
            turn: 0,
            network: Network::new(fold.classes()),
            fabric: Network::new(fold.classes()),
            memories: (0..fold.classes()).map(|_| DeviceMemory::default()).collect(),
            holds: super::cta::holds(program),
            keeps: parts == Parts::All,
            ops: Vec::new(),
            last: Moment::START,
            began: Time::ZERO,
            fault: None,
            actors,
        }
    }

    /// Runs all launches.
    pub(super) fn run(mut self) -> Result<Timeline, Error> {
        for rank in 0..self.fold.classes() {
            self.begin(rank, Moment::START);
        }
        while let Some((now, item)) = self.queue.pop() {
            match item {
                Item::Seen(raise) => self.see(raise, now),
                Item::Go(actor) => self.advance(actor, now),
                Item::Leaves(_, _, transfer) => self.land(transfer, now),
            }
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
        }
        if let Some(deadlock) = self.deadlock() {
            return Err(deadlock);
        }
        Ok(Timeline {
            world: self.fold.world(),
            classes: self.fold.classes(),
            actors: self.actors,
            ops: self.ops,
            begins: self.began,
            ends: self.last.at,
            last: self.last.cause,
        })
    }

    /// Starts the next launch of a rank, or ends its part.
    fn begin(&mut self, rank: u32, at: Moment) {
        let epoch = self.ranks[rank as usize].epoch + 1;
        if epoch > self.options.launches {
            return;
        }
        let bodies: Vec<u32> = self
            .program
            .agents
            .values()
            .map(|agent| agent.engine.bodies(self.views[0].launch.ctas))
            .collect();
        let agents = bodies.len() as u32;
        self.ranks[rank as usize] = Progress { epoch, begun: at, bodies, agents, through: at };
        if epoch == self.options.launches && rank == 0 {
            self.began = at.at;
        }
        for index in rank * self.each..(rank + 1) * self.each {
            if self.actors[index as usize].role == Role::Host {
                self.start(index, at);
            }
        }
        match self.program.target {
            Target::Sm90a => {
                self.start_engine(rank, 0, at, false);
                for index in rank * self.each..(rank + 1) * self.each {
                    let role = self.actors[index as usize].role;
                    if matches!(role, Role::Engine(agent) if self.has_a_stream(agent)) {
                        self.start(index, at);
                    }
                }
            }
            Target::Host => {
                for index in rank * self.each..(rank + 1) * self.each {
                    if matches!(self.actors[index as usize].role, Role::Engine(_)) {
                        self.start(index, at);
                    }
                }
            }
        }
    }

    /// Whether an agent on a copy engine has a stream of its own: it waits for CTAs. The host feeds
    /// the others through one stream, one agent behind the other.
    fn has_a_stream(&self, agent: u32) -> bool {
        self.program.beside_grid(&self.program.agents[AgentId(agent)])
    }

    /// Starts the first agent without a stream of its own from number `from` on; `copied` says whether
    /// the stream of those has copied before.
    fn start_engine(&mut self, rank: u32, from: u32, at: Moment, copied: bool) {
        let mut own = rank * self.each..(rank + 1) * self.each;
        let role = |index: &u32| self.actors[*index as usize].role;
        let first = own.find(|index| {
            matches!(role(index), Role::Engine(agent)
                if agent >= from && !self.has_a_stream(agent))
        });
        if let Some(index) = first {
            self.start(index, at);
            self.states[index as usize].copied = copied;
        }
    }

    /// Starts an actor's walk of the launch at hand.
    fn start(&mut self, index: u32, at: Moment) {
        let Actor { rank, role } = self.actors[index as usize];
        let (view, epoch) = (&self.views[rank as usize], self.ranks[rank as usize].epoch);
        let agent = |number: u32| AgentId(number);
        let run = match role {
            Role::Host => None,
            Role::Engine(number) => Some(view.agent(agent(number), 0, epoch)),
            Role::Cta(number, cta) => Some(view.agent(agent(number), cta, epoch)),
            Role::Exit(number) => Some(view.exit(agent(number), epoch)),
        };
        let mut state = State::new();
        state.run = run;
        state.busy_until = at;
        state.operands = at;
        state.lanes = [at; 2];
        if role == Role::Host {
            // Walks the copy engines' agents one behind the other, for their waits on the host.
            state.lane = 0;
        }
        self.states[index as usize] = state;
        self.queue.push(at.at, Item::Go(index));
    }

    /// Walks an actor on until it blocks, is through, or others come first.
    fn advance(&mut self, index: u32, mut now: Time) {
        loop {
            let pending = self.states[index as usize].pending.take();
            let Some(event) = pending.or_else(|| self.next(index)) else {
                let state = &mut self.states[index as usize];
                state.parked = state.on_their_way != [0; 2];
                if !state.parked {
                    self.finish(index);
                }
                return;
            };
            // Whatever begins later than others do waits for them: they may use the same links.
            let due = self.due(index, &event);
            if due > now && self.queue.before(due) {
                self.states[index as usize].pending = Some(event);
                return self.queue.push(due, Item::Go(index));
            }
            now = now.max(due);
            let step = self.step(index, &event);
            if self.fault.is_some() {
                return;
            }
            let state = &mut self.states[index as usize];
            match step {
                Step::Done => {}
                Step::Blocked(slot) => {
                    state.pending = Some(event);
                    return self.waiting.entry(slot).or_default().push(index);
                }
                Step::Parked => {
                    state.pending = Some(event);
                    state.parked = true;
                    return;
                }
                Step::Sent => {
                    state.parked = true;
                    return;
                }
            }
        }
    }

    fn step(&mut self, index: u32, event: &Event<'p>) -> Step {
        match self.actors[index as usize].role {
            Role::Host => self.host(index, event),
            Role::Engine(_) => self.engine(index, event),
            Role::Cta(..) => self.cta(index, event),
            Role::Exit(_) => self.exit(index, event),
        }
    }

    /// The next event of an actor; the host's are those of all copy engines of its rank.
    fn next(&mut self, index: u32) -> Option<Event<'p>> {
        let Actor { rank, role } = self.actors[index as usize];
        loop {
            let state = &mut self.states[index as usize];
            if let Some(event) = state.run.as_mut().and_then(Iterator::next) {
                return Some(event);
            }
            if role != Role::Host {
                return None;
            }
            let mut engines = self.program.agents.iter().skip(state.lane);
            // It feeds those that run beside the grid when that has been launched.
            let found = engines.position(|(_, agent)| {
                agent.engine == Engine::CopyEngine && !self.program.beside_grid(agent)
            })?;
            let agent = state.lane + found;
            state.lane = agent + 1;
            let epoch = self.ranks[rank as usize].epoch;
            state.run = Some(self.views[rank as usize].agent(AgentId(agent as u32), 0, epoch));
        }
    }

    /// When an event begins, as far as it matters to others.
    fn due(&self, index: u32, event: &Event<'p>) -> Time {
        let state = &self.states[index as usize];
        match self.actors[index as usize].role {
            Role::Host | Role::Engine(_) | Role::Exit(_) => state.busy_until.at,
            Role::Cta(..) => match event.action {
                Action::Store { .. }
                | Action::Signal { .. }
                | Action::Sum { .. }
                | Action::Copy { .. } => state.lanes[state.lane].at,
                // Loads of all CTAs share device memory.
                Action::Mainloop { .. } => {
                    let lane = self.lane_of(state, event);
                    state.busy_until.max(state.lanes[lane]).max(state.operands).at
                }
                Action::Wait { .. } | Action::FenceProxyAsync => Time::ZERO,
            },
        }
    }

    fn finish(&mut self, index: u32) {
        let Actor { rank, role } = self.actors[index as usize];
        let through = self.states[index as usize].through();
        self.states[index as usize].run = None;
        match role {
            Role::Host => {
                let grid = through.max(self.ranks[rank as usize].begun);
                return self.start_grids(rank, grid);
            }
            Role::Engine(agent) | Role::Cta(agent, _) => {
                let exit = self.exit_of(rank, agent);
                let progress = &mut self.ranks[rank as usize];
                let left = &mut progress.bodies[agent as usize];
                *left -= 1;
                let last = *left == 0;
                let latest = self.states[exit as usize].busy_until.max(through);
                self.states[exit as usize].busy_until = latest;
                if last {
                    self.start(exit, latest);
                }
                let is_fed = matches!(role, Role::Engine(_)) && !self.has_a_stream(agent);
                if is_fed && self.program.target == Target::Sm90a {
                    let copied = self.states[index as usize].copied;
                    self.start_engine(rank, agent + 1, through, copied);
                }
                return;
            }
            Role::Exit(_) => {}
        }
        let progress = &mut self.ranks[rank as usize];
        progress.agents -= 1;
        progress.through = progress.through.max(through);
        if progress.agents == 0 {
            let over = progress.through;
            self.last = self.last.max(over);
            self.begin(rank, over);
        }
    }

    fn exit_of(&self, rank: u32, agent: u32) -> u32 {
        let first = rank * self.each;
        let own = &self.actors[first as usize..(first + self.each) as usize];
        let at = own.iter().position(|actor| actor.role == Role::Exit(agent));
        first + at.unwrap_or_default() as u32
    }

    fn start_grids(&mut self, rank: u32, launched: Moment) {
        let takes = match self.parts {
            Parts::Transfers => Time::ZERO,
            Parts::All | Parts::Compute => self.cost.start(),
        };
        for index in rank * self.each..(rank + 1) * self.each {
            if let Role::Cta(..) = self.actors[index as usize].role {
                let op = self.record(Op {
                    kind: Kind::Start,
                    actor: index,
                    start: launched.at,
                    end: launched.at + takes,
                    cause: launched.cause,
                    crosses: launched.crosses,
                    ..self.blank(index)
                });
                self.start(index, Moment::of(launched.at + takes, op));
            }
        }
    }

    /// An op of an actor, to be filled in.
    pub(super) fn blank(&self, actor: u32) -> Op {
        Op {
            kind: Kind::Wait,
            actor,
            lane: Lane::Main,
            start: Time::ZERO,
            end: Time::ZERO,
            cause: NONE,
            crosses: false,
            tile: TileRange::default(),
            peer: self.actors[actor as usize].rank,
            bytes: 0,
            stmt: 0,
        }
    }

    /// Keeps an op; gives its number.
    pub(super) fn record(&mut self, op: Op) -> u32 {
        if !self.keeps {
            return NONE;
        }
        self.ops.push(op);
        self.ops.len() as u32 - 1
    }

    pub(super) fn holds(&self, stmt: u32) -> Holds {
        self.holds.get(stmt as usize).copied().unwrap_or(Holds::Both)
    }

    pub(super) fn home(&self, signal: SignalId) -> Home {
        self.program.signals[signal].home
    }

    fn exit(&mut self, index: u32, event: &Event<'p>) -> Step {
        let Action::Signal { rank, signal, slot, change, .. } = event.action else {
            return Step::Done;
        };
        if self.parts == Parts::All {
            let now = self.states[index as usize].busy_until;
            self.signal(index, event, (rank, signal, slot, change), now);
        }
        Step::Done
    }

    pub(super) fn unsound(&mut self, index: u32, event: &Event<'p>) {
        self.fault = Some(Error::Unsound { who: self.name(index), span: event.stmt.span });
    }

    /// The first actor that waits for good.
    fn deadlock(&self) -> Option<Error> {
        let blocked = |index: &usize| self.states[*index].pending.is_some();
        let index = (0..self.states.len()).find(blocked)?;
        let event = self.states[index].pending.as_ref()?;
        let Action::Wait { signal, ref slots, target, .. } = event.action else { return None };
        let name = &self.program.signals[signal].name;
        let signal = match slots.len() {
            1 => format!("%{name}[{}]", slots.start),
            _ => format!("%{name}[{}..{}]", slots.start, slots.end),
        };
        let span = event.stmt.span;
        Some(Error::Deadlock { who: self.name(index as u32), signal, target, span })
    }

    fn name(&self, index: u32) -> String {
        let Actor { rank, role } = self.actors[index as usize];
        format!("rank {rank}, {}", role_name(self.program, role))
    }
}

/// Everyone of `ranks` ranks: of each its host, its copy engines, its CTAs and its exits.
fn actors(program: &Program, ctas: u32, ranks: u32) -> Vec<Actor> {
    let mut actors = Vec::new();
    for rank in 0..ranks {
        actors.push(Actor { rank, role: Role::Host });
        for (agent, entry) in program.agents.iter() {
            let number = agent.index() as u32;
            match entry.engine {
                Engine::CopyEngine => actors.push(Actor { rank, role: Role::Engine(number) }),
                Engine::Ctas | Engine::CopyWarps | Engine::Tma => {
                    actors.extend((0..ctas).map(|cta| Actor { rank, role: Role::Cta(number, cta) }))
                }
            }
            actors.push(Actor { rank, role: Role::Exit(number) });
        }
    }
    actors
}

/// `cta 3 of gemm`.
pub(super) fn role_name(program: &Program, role: Role) -> String {
    let name = |agent: u32| &program.agents[AgentId(agent)].name;
    match role {
        Role::Host => "host".into(),
        Role::Engine(agent) => format!("copy engine of {}", name(agent)),
        Role::Cta(agent, cta) => format!("cta {cta} of {}", name(agent)),
        Role::Exit(agent) => format!("exit of {}", name(agent)),
    }
}
