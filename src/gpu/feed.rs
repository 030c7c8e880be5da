//! Feeds the copy-engine agents of a rank: walks their events and enqueues copies and signals.
//!
//! A copy engine cannot give up a wait, so the host waits for peers, with a limit, before anything
//! that depends on it is enqueued. For CTAs of its own rank a stream waits itself: they have a
//! limit, and where they give up the host lets the stream go ([`GpuInstance::release`]).

use super::arguments::Operand;
use super::instance::GpuInstance;
use super::{Copier, Lane};
use crate::error::Error;
use crate::source::{Member, Source};
use flux_ir::eval::{Action, Change, Event, RankView, Region};
use flux_ir::program::{AgentId, BufferKind, Engine, Home, Program, SignalId};
use flux_runtime::{Rows, Span, Stream};
use std::iter::Peekable;
use std::time::{Duration, Instant};

/// When the host feeds a copy engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Ahead of the grid, which waits for it.
    Before,
    /// Behind the launch of the grid, for whose signals its stream waits: the signaller is
    /// enqueued before the waiter.
    WithGrid,
}

/// The copy engines that are fed then.
pub(super) fn engines(program: &Program, when: When) -> impl Iterator<Item = AgentId> {
    let engines = program.agents.iter().filter(|(_, agent)| agent.engine == Engine::CopyEngine);
    engines
        .filter(move |(_, agent)| program.beside_grid(agent) == (when == When::WithGrid))
        .map(|(id, _)| id)
}

/// One copy engine's agent, while its events are enqueued.
struct Feeder<'f> {
    instance: &'f GpuInstance,
    source: &'f Source,
    view: &'f RankView<'f>,
    operands: &'f [Operand<'f>],
    main: &'f Stream,
    copier: &'f Copier,
    copies_first: bool,
    /// What an agent copies to its own rank before anything else comes ahead of the kernel: beside
    /// it, copies within the device would need multiprocessors.
    is_ahead: bool,
    /// Signals that are raised together: those that follow small copies, or where nothing runs beside
    /// the copies, all of them behind the last.
    raised: Vec<(Span<'f>, u32)>,
    /// Bytes of the copies that they tell of.
    told_of: u64,
    /// How long the host waits for a peer.
    limit: Duration,
}

/// Bytes that take no longer than it takes to tell of them.
pub(super) const SMALL: u64 = 256 << 10;

impl<'f> Feeder<'f> {
    fn enqueue(&mut self, event: Event<'_>) -> Result<(), Error> {
        let Feeder { instance, main, copier, copies_first, .. } = *self;
        let leaves = match &event.action {
            Action::Copy { to, .. } => to.rank != instance.rank,
            Action::Signal { rank, .. } => *rank != instance.rank,
            _ => false,
        };
        if self.is_ahead && leaves {
            self.is_ahead = false;
            main.record(&instance.ahead)?;
            copier.words().wait(&instance.ahead)?;
        }
        let is_much = self.told_of >= SMALL && !copies_first;
        if !matches!(event.action, Action::Signal { .. }) && is_much {
            self.raise()?;
        }
        match event.action {
            Action::Wait { signal, slots, target, .. } => {
                for slot in slots {
                    match self.view.program.signals[signal].home {
                        Home::Host => {
                            // Nothing that peers wait for is held back while this rank waits.
                            if !instance.has_come(signal, slot, target)? {
                                self.raise()?;
                            }
                            let limit = self.limit;
                            instance.wait_on_host(self.source, (signal, slot, target), limit)?;
                        }
                        Home::Device => {
                            copier.copies.wait_u32(instance.word(signal, slot)?, target as u32)?;
                        }
                    }
                }
            }
            Action::Copy { from, to, adds: _ } => {
                let copies = if self.is_ahead { main } else { &copier.copies };
                self.told_of += instance.bytes(self.view, &from);
                instance.copy(self.view, (copies, !copies_first), self.operands, &from, &to)?;
            }
            Action::Signal { rank, signal, slot, change, .. } => {
                let Change::Set(value) = change else {
                    let problem = "a copy engine can set a signal, not add to it";
                    return Err(instance.unsupported(problem));
                };
                let offset = instance.workspace.signal(signal) + 4 * u64::from(slot);
                let heaps = &instance.workspace.heaps;
                let word = match self.view.program.signals[signal].home {
                    Home::Device => heaps.span(rank, offset, 4)?,
                    Home::Host => heaps.host(rank)?.span().part(offset, 4)?,
                };
                match self.is_ahead {
                    true => main.write_u32(word, value)?,
                    false => self.raised.push((word, value)),
                }
            }
            Action::FenceProxyAsync
            | Action::Mainloop { .. }
            | Action::Store { .. }
            | Action::Sum { .. } => {
                return Err(instance.unsupported("a copy engine copies and signals, nothing else"));
            }
        }
        Ok(())
    }

    /// Whether what an event waits for on the host has come.
    fn is_there(&self, event: &Event<'_>) -> Result<bool, Error> {
        let Action::Wait { signal, slots, target, .. } = &event.action else { return Ok(true) };
        if self.view.program.signals[*signal].home == Home::Device {
            return Ok(true);
        }
        for slot in slots.clone() {
            if !self.instance.has_come(*signal, slot, *target)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Raises what is to be raised behind all copies so far, when they are performed.
    fn raise(&mut self) -> Result<(), Error> {
        if self.raised.is_empty() {
            return Ok(());
        }
        let words = if self.copies_first { &self.copier.copies } else { self.copier.signals()? };
        match *self.raised.as_slice() {
            [(word, value)] => words.write_u32(word, value)?,
            _ => words.write_words(&self.raised)?,
        }
        self.raised.clear();
        self.told_of = 0;
        Ok(())
    }
}

impl GpuInstance {
    /// Enqueues what copy engines of this rank do in launch `epoch`: ahead of the grid those that wait
    /// for nothing of this launch, one behind the other, and of the others what comes before their first
    /// such wait; behind its launch the rest, each agent on streams of its own.
    pub(super) fn feed(
        &self,
        source: &Source,
        member: &Member,
        (lane, main): (&Lane, &Stream),
        (epoch, when): (u32, When),
        operands: &[Operand<'_>],
    ) -> Result<(), Error> {
        let program = member.verified.program();
        // Most launches have none of one kind, and products alone have none at all.
        let is_of = |of| engines(program, of).next().is_some();
        if !is_of(When::WithGrid) && (when == When::WithGrid || !is_of(When::Before)) {
            return Ok(());
        }
        let view = RankView::definitions(program, self.launch, self.rank);
        let copies_first = member.copies_first();
        let feeder = |copier| Feeder {
            instance: self,
            source,
            view: &view,
            operands,
            main,
            copier,
            copies_first,
            is_ahead: when == When::Before && !copies_first,
            raised: Vec::new(),
            told_of: 0,
            limit: self.watch.limit,
        };
        // What the waits of an agent are for: something of this launch, or of one that has been.
        let waits = |event: &Event<'_>| match &event.action {
            Action::Wait { signal, .. } => match program.signals[*signal].home {
                Home::Device => true,
                Home::Host => program.is_raised_by_copies(*signal),
            },
            _ => false,
        };
        let beside = || engines(program, When::WithGrid).zip(&lane.copiers);
        if when == When::Before {
            for id in engines(program, When::Before) {
                let mut feeder = feeder(&lane.copiers[0]);
                for event in view.agent(id, 0, epoch) {
                    feeder.enqueue(event)?;
                }
                feeder.raise()?;
            }
            for (id, copier) in beside() {
                let mut feeder = feeder(copier);
                for event in view.agent(id, 0, epoch).take_while(|event| !waits(event)) {
                    feeder.enqueue(event)?;
                }
                feeder.raise()?;
            }
            return Ok(());
        }
        let agents = beside().map(|(id, copier)| {
            let rest = view.agent(id, 0, epoch).skip_while(|event| !waits(event));
            (rest.peekable(), feeder(copier))
        });
        self.feed_in_turn(&mut agents.collect::<Vec<_>>())
    }

    /// Feeds several agents in turn, from wait to wait, so that no stream is empty while the host fills
    /// another; an agent that waits for what has not come is passed over while others go on.
    fn feed_in_turn<'f, E: Iterator<Item = Event<'f>>>(
        &self,
        agents: &mut [(Peekable<E>, Feeder<'_>)],
    ) -> Result<(), Error> {
        let begin = Instant::now();
        while agents.iter_mut().any(|(events, _)| events.peek().is_some()) {
            let mut rests = true;
            // Past the limit the first wait is made all the same: it says what did not come.
            let is_late = begin.elapsed() > self.watch.limit;
            for (events, feeder) in &mut *agents {
                let Some(first) = events.peek() else { continue };
                if !is_late && !feeder.is_there(first)? {
                    continue;
                }
                rests = false;
                feeder.limit = if is_late { Duration::ZERO } else { self.watch.limit };
                let Some(first) = events.next() else { continue };
                feeder.enqueue(first)?;
                let goes_on = |event: &Event<'_>| !matches!(event.action, Action::Wait { .. });
                while let Some(event) = events.next_if(goes_on) {
                    feeder.enqueue(event)?;
                }
                feeder.raise()?;
            }
            if rests {
                if let Some(gone) = self.gone() {
                    return Err(gone);
                }
                if let Some(stall) = self.take_stall() {
                    return Err(stall);
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Lets streams go that wait for a launch which has given up. What they send then is not what
    /// it should be, and whoever takes it is told so.
    pub(super) fn release(&self, rescue: &Stream) -> Result<(), Error> {
        self.release_peers(rescue)?;
        if !self.waiting {
            return Ok(());
        }
        let program = &self.program;
        // Told first: what is sent wrongly arrives later.
        self.workspace.abandon(self.rank, self.unsettled());
        let epoch = self.launched();
        let view = RankView::definitions(program, self.launch, self.rank);
        for id in engines(program, When::WithGrid) {
            for event in view.agent(id, 0, epoch) {
                let Action::Wait { signal, slots, target, .. } = event.action else { continue };
                if program.signals[signal].home == Home::Host {
                    continue;
                }
                for slot in slots {
                    rescue.write_u32(self.word(signal, slot)?, target as u32)?;
                }
            }
        }
        Ok(())
    }

    /// A signal of this rank, on its device.
    fn word(&self, signal: SignalId, slot: u32) -> Result<Span<'_>, Error> {
        let offset = self.workspace.signal(signal) + 4 * u64::from(slot);
        Ok(self.workspace.heaps.span(self.rank, offset, 4)?)
    }

    fn bytes(&self, view: &RankView<'_>, region: &Region) -> u64 {
        let element = u64::from(view.program.buffers[region.buffer].element.bytes());
        region.rows.len() as u64 * region.cols.len() as u64 * element
    }

    fn copy(
        &self,
        view: &RankView<'_>,
        (copies, beside): (&Stream, bool),
        operands: &[Operand<'_>],
        from: &Region,
        to: &Region,
    ) -> Result<(), Error> {
        if from.is_empty() || to.is_empty() {
            return Ok(());
        }
        let element = u64::from(view.program.buffers[from.buffer].element.bytes());
        let row_bytes = u64::from(from.cols.end - from.cols.start) * element;
        let rows = u64::from(from.rows.end - from.rows.start);
        let (source, target) = (self.rows(view, operands, from)?, self.rows(view, operands, to)?);
        // Between devices copy engines are all there is.
        let within = from.rank != to.rank && self.workspace.heaps.is_on(to.rank, copies.device());
        if within && beside {
            copies.copy_2d_beside(target, source, row_bytes, rows)?;
        } else {
            copies.copy_2d(target, source, row_bytes, rows)?;
        }
        Ok(())
    }

    /// The memory of a region.
    fn rows<'a>(
        &'a self,
        view: &RankView<'_>,
        operands: &'a [Operand<'_>],
        region: &Region,
    ) -> Result<Rows<'a>, Error> {
        let buffer = &view.program.buffers[region.buffer];
        let first = u64::from(region.rows.start - view.first_row(region.buffer, region.rank));
        let column = region.cols.start - view.first_col(region.buffer, region.rank);
        let column = u64::from(column) * u64::from(buffer.element.bytes());
        match (buffer.kind, self.workspace.buffer(region.buffer)) {
            (BufferKind::Symmetric, Some(symmetric)) => {
                self.workspace.rows(symmetric, region.rank, region.plane, first, column)
            }
            _ => {
                let operand = self.operand(operands, region.buffer)?;
                let start = first * operand.pitch_bytes + column;
                let length = operand.span.bytes().saturating_sub(start);
                let span = operand.span.part(start, length)?;
                Ok(Rows { span, pitch_bytes: operand.pitch_bytes })
            }
        }
    }
}
