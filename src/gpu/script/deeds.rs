//! What one rank does to others.

use super::{Value, Word};
use flux_ir::eval::{Action, Change, Event, RankView, Region};
use flux_ir::program::{Agent, Engine, Home, SignalId};

/// A put to another rank, and the signals that follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deed {
    /// Step of the agent, then CTA: CTAs take their steps together.
    order: (u64, u32),
    /// Where it goes; nothing for signals without a put.
    pub(super) region: Option<Region>,
    pub(super) bytes: u64,
    /// What the rank's own CTAs had to raise before it: the last thing that its stream waits for.
    pub(super) awaited: Option<Word>,
    pub(super) raises: Vec<Raise>,
}

/// A signal raised on another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Raise {
    pub(super) rank: u32,
    signal: SignalId,
    slot: u32,
    change: Change,
}

impl Raise {
    /// The word, and what it is after the launch `epoch` and others.
    pub(super) fn word(&self, epoch: u32) -> Word {
        let Raise { rank, signal, slot, change } = *self;
        Word { rank, signal, slot, value: Value::of(change, epoch) }
    }
}

/// What one agent does.
#[derive(Debug)]
pub(super) struct Deeds {
    pub(super) engine: Engine,
    /// Its number among the copy engines that wait for CTAs; 0 for all others.
    pub(super) sender: usize,
    /// In the order of progress.
    pub(super) items: Vec<Deed>,
    /// What is raised when all its CTAs are through.
    pub(super) last: Vec<Raise>,
}

/// What every agent of a rank does in launch `epoch`.
pub(super) fn deeds(view: &RankView<'_>, epoch: u32) -> Vec<Deeds> {
    let waits =
        |agent: &Agent| agent.engine == Engine::CopyEngine && view.program.beside_grid(agent);
    let mut senders = 0;
    let agents = view.program.agents.iter().map(|(id, agent)| {
        let sender = if waits(agent) { senders } else { 0 };
        senders += usize::from(waits(agent));
        let mut items = Vec::new();
        for cta in 0..agent.engine.bodies(view.launch.ctas) {
            note(view, (cta, epoch), view.agent(id, cta, epoch), &mut items);
        }
        items.sort_by_key(|item| item.order);
        let mut last = Vec::new();
        note(view, (0, epoch), view.exit(id, epoch), &mut last);
        let last = last.into_iter().flat_map(|item| item.raises).collect();
        Deeds { engine: agent.engine, sender, items, last }
    });
    agents.collect()
}

/// Adds what one sequence of events of launch `epoch` does to other ranks.
fn note<'p>(
    view: &RankView<'_>,
    (cta, epoch): (u32, u32),
    events: impl Iterator<Item = Event<'p>>,
    items: &mut Vec<Deed>,
) {
    let (mut step, first) = (0, items.len());
    let mut awaited = None;
    for event in events {
        match event.action {
            Action::Copy { to: region, .. } | Action::Store { to: region, .. }
                if region.rank != view.rank && !region.is_empty() =>
            {
                step += 1;
                let element = view.program.buffers[region.buffer].element;
                let bytes = area(&region) * u64::from(element.bytes());
                let (region, awaited) = (Some(region), awaited.take());
                items.push(Deed { order: (step, cta), region, bytes, awaited, raises: vec![] });
            }
            Action::Signal { rank, signal, slot, change, .. } if rank != view.rank => {
                if items.len() == first {
                    let order = (0, cta);
                    items.push(Deed {
                        order,
                        region: None,
                        bytes: 0,
                        awaited: None,
                        raises: vec![],
                    });
                }
                if let Some(item) = items.last_mut() {
                    item.raises.push(Raise { rank, signal, slot, change });
                }
            }
            Action::Wait { signal, slots, target, .. }
                if view.program.signals[signal].home == Home::Device && !slots.is_empty() =>
            {
                let value = Value::reached(target, epoch);
                awaited = Some(Word { rank: view.rank, signal, slot: slots.end - 1, value });
            }
            Action::Copy { .. }
            | Action::Store { .. }
            | Action::Signal { .. }
            | Action::Wait { .. }
            | Action::FenceProxyAsync
            | Action::Mainloop { .. }
            | Action::Sum { .. } => {}
        }
    }
}

/// Whether a rank copies out of others' memory.
pub(super) fn reads_peers(view: &RankView<'_>) -> bool {
    let mut events = view.program.agents.iter().flat_map(|(id, agent)| {
        (0..agent.engine.bodies(view.launch.ctas)).flat_map(move |cta| view.agent(id, cta, 1))
    });
    events.any(|event| match event.action {
        Action::Copy { from, .. } => from.rank != view.rank && !from.is_empty(),
        Action::Store { .. }
        | Action::Signal { .. }
        | Action::Wait { .. }
        | Action::FenceProxyAsync
        | Action::Mainloop { .. }
        | Action::Sum { .. } => false,
    })
}

/// Elements of a region.
pub(super) fn area(region: &Region) -> u64 {
    u64::from(region.rows.end - region.rows.start) * u64::from(region.cols.end - region.cols.start)
}
