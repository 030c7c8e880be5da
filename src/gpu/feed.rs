//! Feeds the copy-engine agents of a rank: walks their events and enqueues copies and signals.
//!
//! A copy engine cannot give up a wait, so the host waits for it, with a limit, before anything
//! that depends on it is enqueued.

use super::Lane;
use super::arguments::Operand;
use super::instance::GpuInstance;
use crate::error::Error;
use crate::source::{Member, Source};
use flux_ir::Transport;
use flux_ir::eval::{Action, Change, RankView, Region};
use flux_ir::program::{BufferKind, Engine};
use flux_runtime::{Rows, Stream};

impl GpuInstance {
    /// Enqueues everything the copy-engine agents of this rank do in launch `epoch`.
    pub(super) fn feed(
        &self,
        source: &Source,
        member: &Member,
        lane: &Lane,
        epoch: u32,
        operands: &[Operand<'_>],
    ) -> Result<(), Error> {
        let main = lane.main();
        let program = member.verified.program();
        let view = RankView::definitions(program, self.launch, self.rank);
        for (id, agent) in program.agents.iter() {
            if agent.engine != Engine::CopyEngine {
                continue;
            }
            // What an agent copies to its own rank before anything else comes ahead of the kernel:
            // beside it, copies within the device would need multiprocessors.
            let transport = member.transport();
            let mut is_ahead = transport == Transport::CopyEngine;
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
                            self.wait_on_host(source, signal, slot, target)?;
                        }
                    }
                    Action::Copy { from, to } => {
                        let beside = transport == Transport::CopyEngine;
                        self.copy(&view, (copies, beside), operands, &from, &to)?;
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
                        match transport {
                            _ if is_ahead => main.write_u32(word, value)?,
                            Transport::CopyEngine => lane.signals()?.write_u32(word, value)?,
                            Transport::CopyFirst => raised.push((word, value)),
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
        let within = from.rank != to.rank && self.workspace.heaps.is_on_device(to.rank);
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
