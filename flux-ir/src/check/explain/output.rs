//! Elements of outputs: who stores one, and where what it is made of comes from.

use super::super::launch::bodies;
use super::super::memory::Access;
use super::super::trace::{Act, name};
use super::element::{Argument, Element, Pair, QueryError};
use super::stage::Stage;
use super::table::{Row, Table};
use crate::eval::{Action, Loads, RankView, Region};
use crate::program::{AgentId, Buffer, BufferKind};

/// The store of an output element.
#[derive(Debug)]
struct Store {
    actor: u32,
    rank: u32,
    agent: AgentId,
    cta: u32,
    number: u32,
    /// Steps of its tile that come before.
    inputs: std::ops::Range<u32>,
}

impl<'p> Stage<'p> {
    /// An element of an output: who stores it, and where what it is made of comes from.
    pub(super) fn argue_output(
        &self,
        element: &Element,
        buffer: &Buffer,
        rank: Option<u32>,
        epoch: u32,
    ) -> Result<Argument, QueryError> {
        let untouched = || QueryError::Untouched {
            verb: "writes",
            element: element.to_string(),
            launch: epoch,
        };
        let launch = self.layout.launch;
        for rank in rank.map_or(0..launch.world, |rank| rank..rank + 1) {
            let Ok(view) = RankView::new(self.program(), launch, rank) else { continue };
            for (agent, entry) in self.program().agents.iter() {
                for cta in 0..bodies(entry, launch) {
                    let Some(store) = self.store_of(&view, agent, cta, epoch, element) else {
                        continue;
                    };
                    return Ok(self.output_argument(store, element, buffer, epoch));
                }
            }
        }
        Err(untouched())
    }

    /// The store of an output element by one body, if it is its.
    fn store_of(
        &self,
        view: &RankView<'p>,
        agent: AgentId,
        cta: u32,
        epoch: u32,
        element: &Element,
    ) -> Option<Store> {
        let actor = self.layout.bodies(self.layout.exit(view.rank, agent)).start + cta;
        let mut stamp = self.traces[actor as usize].starts[epoch as usize - 1];
        let run = view.agent(agent, cta, epoch);
        let (mut tile, mut begin) = (None, stamp);
        for event in run {
            if tile.as_ref() != Some(&event.tile) {
                (tile, begin) = (Some(event.tile.clone()), stamp);
            }
            let to = match &event.action {
                Action::Store { to, .. } | Action::Copy { to, .. } => Some(to),
                Action::Wait { .. }
                | Action::FenceProxyAsync
                | Action::Signal { .. }
                | Action::Mainloop { .. }
                | Action::Sum { .. } => None,
            };
            if let Some(to) = to
                && self.holds(to, element)
            {
                let (number, rank) = (event.number, view.rank);
                return Some(Store { actor, rank, agent, cta, number, inputs: begin..stamp });
            }
            stamp += self.steps_of(&event.action);
        }
        None
    }

    /// How many steps of a trace an action makes.
    pub(super) fn steps_of(&self, action: &Action) -> u32 {
        let shared = |region: &Region| {
            let kind = self.program().buffers[region.buffer].kind;
            let shared = matches!(kind, BufferKind::Symmetric | BufferKind::Exposed);
            u32::from(shared && !region.is_empty())
        };
        let reads = |loads: &Loads| loads.iter().map(|(_, region)| shared(region)).sum::<u32>();
        match action {
            Action::Wait { slots, .. } => u32::from(!slots.is_empty()),
            Action::FenceProxyAsync | Action::Signal { .. } => 1,
            Action::Mainloop { products } => {
                products.iter().map(|(a, b, _)| shared(a) + shared(b)).sum()
            }
            Action::Store { to, loads, adds, .. } => {
                shared(to) * (1 + u32::from(*adds)) + reads(loads)
            }
            Action::Sum { from, loads, .. } => {
                let read = if from.is_empty() { 0 } else { reads(loads) };
                from.iter().map(shared).sum::<u32>() + read
            }
            Action::Copy { from, to, adds } => shared(from) + shared(to) * (1 + u32::from(*adds)),
        }
    }

    fn output_argument(
        &self,
        store: Store,
        element: &Element,
        buffer: &Buffer,
        epoch: u32,
    ) -> Argument {
        let Store { actor, rank, agent, cta, number, inputs } = store;
        let span = self.layout.stmts[number as usize].span;
        let text = format!("store %{}[{}, {}]", buffer.name, element.row, element.col);
        let stored = Row { span, ..self.event(actor, epoch, text, "the store") };
        let reads = inputs.filter_map(|at| {
            let (stamp, step) = (at + 1, self.step(actor, at + 1));
            let (Act::Read { rect, .. } | Act::Contribution { rect, .. }) = step.act else {
                return None;
            };
            let region = &self.memory.rects[rect as usize];
            let inside = |range: &std::ops::Range<u32>, at: u32| {
                if range.contains(&at) { at } else { range.start }
            };
            let all = self.memory.reads(rect);
            let read = all.iter().find(|read| read.actor == actor && read.stamp == stamp)?;
            // A sum takes the element itself; a product takes its row and its column.
            let col = match step.act {
                Act::Contribution { .. } => inside(&region.cols, element.col),
                _ => region.cols.start,
            };
            Some((*read, inside(&region.rows, element.row), col))
        });
        let reads: Vec<(Access, u32, u32)> = reads.collect();
        let from_peer = |(read, row, col): &&(Access, u32, u32)| {
            let write = self.write_for(read, *row, *col);
            write.is_none_or(|write| self.layout.actor(write.actor).rank != rank)
        };
        let chosen = reads.iter().find(from_peer).or(reads.first()).copied();
        let name = name(self.program(), rank, agent, Some(cta));
        let mut tables = vec![Table::new(format!("{name} stores it"), vec![stored])];
        let (mut holds, mut steps) = (true, Vec::new());
        let element = element.clone();
        let Some((read, row, col)) = chosen else {
            let title = "It is made of inputs of the launch alone: no other actor has a part in it";
            tables.push(Table::new(title, Vec::new()));
            return Argument { element, rank, launch: epoch, tables, holds, steps };
        };
        let region = &self.memory.rects[read.rect as usize];
        let input = Element {
            buffer: self.program().buffers[region.buffer].name.clone(),
            planes: self.plane(region),
            row,
            col,
        };
        let more = match reads.len() - 1 {
            0 => String::new(),
            more => format!(", and of {more} more such regions"),
        };
        let write = if self.is_exposed(region) { None } else { self.write_for(&read, row, col) };
        let inner = self.argument(Pair { write, read }, input.clone(), epoch);
        let mut first = true;
        for mut table in inner.tables {
            if std::mem::take(&mut first) {
                let on = region.rank;
                table.title = format!("It is made of {input} on rank {on}{more}. {}", table.title);
            }
            tables.push(table);
        }
        holds &= inner.holds;
        steps.extend(inner.steps);
        Argument { element, rank, launch: epoch, tables, holds, steps }
    }
}
