//! What the agents of a launch read and write: regions lie in their buffers, operands fit, and
//! every element of an output is written once. Waits play no part, so ranks are checked apart.

use super::Findings;
use super::coverage::{Coverage, Fault};
use super::launch::{bodies, describe};
use super::regions::Regions;
use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Rule};
use crate::eval::{Action, AgentRun, Event, RankView, Region};
use crate::program::{AgentId, Buffer, BufferId, BufferKind, Stmt};
use crate::span::Span;
use std::ops::Range;

/// Walks what `rank` does in its launches up to number `epochs`.
pub(super) fn check(regions: &Regions<'_, '_>, rank: u32, epochs: u32, found: &mut Findings) {
    for epoch in 1..=epochs {
        let mut walk = Walk::new(regions, rank, epoch, found);
        let (view, program) = (walk.view, walk.view.program);
        for (agent, entry) in program.agents.iter() {
            for cta in 0..bodies(entry, view.launch) {
                walk.run(agent, Some(cta), view.agent(agent, cta, epoch));
            }
            walk.run(agent, None, view.exit(agent, epoch));
        }
        walk.report_coverage();
    }
}

struct Walk<'a, 'p> {
    regions: &'a Regions<'a, 'p>,
    view: &'a RankView<'p>,
    epoch: u32,
    /// Of each buffer that is an output.
    coverages: Vec<Option<Coverage<'p>>>,
    /// A contribution to the last sum: all are of the same elements.
    summed: Option<Region>,
    sound: bool,
    found: &'a mut Findings,
}

impl<'a, 'p> Walk<'a, 'p> {
    fn new(regions: &'a Regions<'a, 'p>, rank: u32, epoch: u32, found: &'a mut Findings) -> Self {
        let view = regions.view(rank);
        let coverage = |(id, buffer): (BufferId, &Buffer)| {
            (buffer.kind == BufferKind::Output).then(|| {
                Coverage::new(view.extent(id), view.first_row(id, rank), view.program.tile)
            })
        };
        let coverages = view.program.buffers.iter().map(coverage).collect();
        Walk { regions, view, epoch, coverages, summed: None, sound: true, found }
    }

    fn run(&mut self, agent: AgentId, cta: Option<u32>, mut run: AgentRun<'_, 'p>) {
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
        }
    }

    fn event(&mut self, event: Event<'p>) -> Result<(), (Rule, String)> {
        let rank = self.view.rank;
        match event.action {
            Action::Wait { .. } | Action::Signal { .. } | Action::FenceProxyAsync => Ok(()),
            Action::Mainloop { products } => self.regions.mainloop(&event.tile, &products),
            Action::Store { to, value } => {
                let to = to_tile(to, &event.tile.rows, &event.tile.cols);
                self.regions.inside(&to)?;
                self.regions.operands(rank, value, &to)?;
                self.regions.store_of_sum(value, &to, self.summed.as_ref())?;
                self.write(event.stmt, &to);
                Ok(())
            }
            Action::Sum { own, from } => {
                self.regions.sum(rank, own, &from)?;
                self.summed = from.into_iter().next();
                Ok(())
            }
            Action::Copy { from, to } => {
                self.regions.copy(&from, &to)?;
                self.write(event.stmt, &to);
                Ok(())
            }
        }
    }

    /// Notes what is written of an output. No peer can reach one.
    fn write(&mut self, stmt: &'p Stmt, to: &Region) {
        if let Some(coverage) = &mut self.coverages[to.buffer.index()]
            && !to.is_empty()
        {
            coverage.add(self.regions.memory_rows(to), to.cols.clone(), stmt);
        }
    }

    fn moment(&self) -> String {
        format!("{}, launch {}", describe(self.view.launch), self.epoch)
    }

    fn fault(&mut self, agent: AgentId, cta: Option<u32>, stmt: &Stmt, rule: Rule, what: &str) {
        self.sound = false;
        let (view, moment) = (self.view, self.moment());
        self.found.once(rule, stmt, || {
            let actor = super::machine::name(view.program, view.rank, agent, cta);
            Diagnostic::new(rule, stmt.span, format!("{actor} {what}")).note(Span::UNKNOWN, moment)
        });
    }

    fn report_coverage(self) {
        if !self.sound {
            return;
        }
        let (rank, moment) = (self.view.rank, self.moment());
        for ((id, buffer), coverage) in self.view.program.buffers.iter().zip(&self.coverages) {
            let Some(fault) = coverage.as_ref().and_then(Coverage::fault) else { continue };
            let first = self.view.first_row(id, rank);
            let at = |row: u32, col: u32| {
                format!("element ({}, {col}) of `%{}` on rank {rank}", row + first, buffer.name)
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

/// The part of `to` that lies in the tile.
fn to_tile(to: Region, rows: &Range<u32>, cols: &Range<u32>) -> Region {
    let cut = |a: &Range<u32>, b: &Range<u32>| a.start.max(b.start)..a.end.min(b.end);
    Region { rows: cut(&to.rows, rows), cols: cut(&to.cols, cols), ..to }
}
