//! Feeds the copy-engine agents of a rank: walks their events and enqueues copies and signals.
//!
//! A copy engine cannot give up a wait, so the host waits for peers, with a limit, before anything
//! that depends on it is enqueued. For CTAs of its own rank a stream waits itself: they have a
//! limit, and where they give up the host lets the stream go ([`GpuInstance::release`]).

use super::Lane;
use super::arguments::Operand;
use super::instance::GpuInstance;
use crate::error::Error;
use crate::source::{Member, Source};
use flux_ir::eval::{Action, Change, RankView, Region};
use flux_ir::program::{AgentId, BufferKind, Engine, Home, Program, SignalId};
use flux_runtime::{Rows, Span, Stream};

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

impl GpuInstance {
    /// Enqueues everything that copy engines of this rank do in launch `epoch`: those that wait for
    /// its CTAs, or the others.
    pub(super) fn feed(
        &self,
        source: &Source,
        member: &Member,
        lane: &Lane,
        (epoch, when): (u32, When),
        operands: &[Operand<'_>],
    ) -> Result<(), Error> {
        let program = member.verified.program();
        let mut engines = engines(program, when).peekable();
        // Most launches have none of one kind, and products alone have none at all.
        if engines.peek().is_none() {
            return Ok(());
        }
        let main = lane.main();
        let view = RankView::definitions(program, self.launch, self.rank);
        for id in engines {
            // What an agent copies to its own rank before anything else comes ahead of the kernel:
            // beside it, copies within the device would need multiprocessors.
            let copies_first = member.copies_first();
            let mut is_ahead = when == When::Before && !copies_first;
            // Where nothing runs beside the copies, signals are raised together behind them.
            let mut raised = Vec::new();
            for event in view.agent(id, 0, epoch) {
                let leaves = match &event.action {
                    Action::Copy { to, .. } => to.rank != self.rank,
                    Action::Signal { rank, .. } => *rank != self.rank,
                    _ => false,
                };
                if is_ahead && leaves {
                    is_ahead = false;
                    main.record(&self.ahead)?;
                    lane.words().wait(&self.ahead)?;
                }
                let copies = if is_ahead { &*main } else { &lane.copy };
                match event.action {
                    Action::Wait { signal, slots, target, .. } => {
                        for slot in slots {
                            match program.signals[signal].home {
                                Home::Host => self.wait_on_host(source, signal, slot, target)?,
                                Home::Device => {
                                    lane.copy.wait_u32(self.word(signal, slot)?, target as u32)?;
                                }
                            }
                        }
                    }
                    Action::Copy { from, to } => {
                        self.copy(&view, (copies, !copies_first), operands, &from, &to)?;
                    }
                    Action::Signal { rank, signal, slot, change, .. } => {
                        let Change::Set(value) = change else {
                            return Err(
                                self.unsupported("a copy engine can set a signal, not add to it")
                            );
                        };
                        let offset = self.workspace.signal(signal) + 4 * u64::from(slot);
                        let word = self.workspace.heaps.span(rank, offset, 4)?;
                        // The write follows the copies before it, all performed.
                        match copies_first {
                            _ if is_ahead => main.write_u32(word, value)?,
                            false => lane.signals()?.write_u32(word, value)?,
                            true => raised.push((word, value)),
                        }
                    }
                    Action::FenceProxyAsync
                    | Action::Mainloop { .. }
                    | Action::Store { .. }
                    | Action::Sum { .. } => {
                        return Err(
                            self.unsupported("a copy engine copies and signals, nothing else")
                        );
                    }
                }
            }
            lane.copy.write_words(&raised)?;
        }
        Ok(())
    }

    /// Lets streams go that wait for a launch which has given up. What they send then is not what
    /// it should be, and whoever takes it is told so.
    pub(super) fn release(&self, rescue: &Stream) -> Result<(), Error> {
        self.release_peers(rescue)?;
        let Some(program) = &self.waiting else { return Ok(()) };
        // Told first: what is sent wrongly arrives later.
        self.workspace.abandon(self.rank, self.unsettled());
        let epoch = self.launched();
        let view = RankView::definitions(program, self.launch, self.rank);
        for id in engines(program, When::WithGrid) {
            for event in view.agent(id, 0, epoch) {
                let Action::Wait { signal, slots, target, .. } = event.action else { continue };
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
        let column = u64::from(region.cols.start) * u64::from(buffer.element.bytes());
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
