//! Plays passive peers: the copies and signals of their script, on streams of the active rank's
//! process.
//!
//! For each of a peer's agents one stream copies; signals go on another, behind events of the first,
//! so that the link does not stand still while a word is written. Words that lie beside each other travel as one copy of
//! prepared words.

use super::feed::SMALL;
use super::outbox::{Memory, Peers, Stock};
use super::script::{self, Part, Script, Value, Word, scripts};
use super::workspace::GpuWorkspace;
use super::{COPIERS, Gpu};
use crate::error::Error;
use flux_ir::eval::{Launch, RankView, Region};
use flux_ir::program::{BufferId, Home, Program, SignalId};
use flux_runtime::{Device, DeviceBuffer, Event, HostBuffer, Span, Stream, Timing};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The peers' part of one (kernel, shape).
#[derive(Debug)]
pub(super) struct Inbound {
    /// Of launches with odd and with even numbers.
    plans: [Plan; 2],
    pub(super) stocks: Vec<Stock>,
    /// The latest launch played.
    epoch: AtomicU32,
    /// Whether data that lies where it belongs is not sent again.
    stays: bool,
    /// Launches that send data however that may be.
    unsent: AtomicU32,
}

/// Launches after which data lies in every copy of a buffer: copies alternate.
const COPIES: u32 = 2;

/// A script, ready to be enqueued.
#[derive(Debug)]
struct Plan {
    segments: Vec<Segment>,
    last: Vec<Write>,
    /// What words become in the launch at hand, for those that are copied.
    values: HostBuffer,
    started: Event,
    /// What the second agents of peers have ended.
    second: Event,
    ended: Event,
}

#[derive(Debug)]
struct Segment {
    sender: usize,
    after: Option<Write>,
    copies: Vec<Copy>,
    writes: Vec<Write>,
    copied: Event,
}

#[derive(Debug)]
struct Copy {
    outbox: usize,
    part: Part,
}

/// Words beside each other: where the first lies, and their values.
#[derive(Debug)]
struct Write {
    rank: u32,
    home: Home,
    offset: u64,
    values: Vec<Value>,
    /// Where they are prepared, in words.
    prepared: usize,
}

impl Inbound {
    pub(super) fn new(
        gpu: &Gpu,
        peers: Peers,
        (program, copies_first): (&Program, bool),
        launch: Launch,
        active: u32,
        workspace: &GpuWorkspace,
    ) -> Result<Inbound, Error> {
        let device = gpu.device(active);
        let scripts = scripts(program, launch, active).map_err(|problem| Error::Unsupported {
            kernel: program.name.clone(),
            problem: format!("passive peers cannot play it: {problem}"),
        })?;
        let stocks = stocks(device, peers, program, &scripts)?;
        let [odd, even] = scripts;
        let plan = |script| Plan::new(device, program, workspace, &stocks, (script, copies_first));
        let plans = [plan(odd)?, plan(even)?];
        let (stays, unsent) = (peers == Peers::Resident, AtomicU32::new(COPIES));
        Ok(Inbound { plans, stocks, epoch: AtomicU32::new(0), stays, unsent })
    }

    /// The next launches send data even where it may lie already.
    pub(super) fn send_anew(&self) {
        self.unsent.store(COPIES, Ordering::Relaxed);
    }

    /// Whether the launch at hand sends data.
    fn sends(&self) -> bool {
        let left = |left: u32| left.checked_sub(1);
        self.unsent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok() || !self.stays
    }

    fn plan(&self, epoch: u32) -> &Plan {
        &self.plans[usize::from(epoch.is_multiple_of(2))]
    }

    /// Enqueues what the peers do in launch `epoch`, behind what `main` has done so far.
    pub(super) fn play(
        &self,
        view: &RankView<'_>,
        workspace: &GpuWorkspace,
        (main, senders): (&Stream, [[&Stream; 2]; COPIERS]),
        epoch: u32,
        limit: Duration,
    ) -> Result<(), Error> {
        let plan = self.plan(epoch);
        // The words prepared for the launch before last are about to be overwritten.
        plan.ended.synchronize(limit)?;
        self.epoch.store(epoch, Ordering::Relaxed);
        let sends = self.sends();
        if self.stays && sends {
            // Nothing is left for copies beside the kernel.
            for Copy { outbox, part } in plan.segments.iter().flat_map(|of| &of.copies) {
                self.copy(view, workspace, (main, false), &self.stocks[*outbox], part)?;
            }
        }
        main.record(&plan.started)?;
        let [first, second] = senders;
        let both = plan.segments.iter().any(|segment| segment.sender > 0);
        for stream in senders[..if both { COPIERS } else { 1 }].as_flattened() {
            stream.wait(&plan.started)?;
        }
        for segment in &plan.segments {
            let [copies, words] = senders[segment.sender];
            if let Some(after) = &segment.after {
                copies.wait_u32(after.span(workspace)?, after.values[0].at(epoch))?;
            }
            // Where signals have no stream of their own, nothing runs beside the copies.
            let beside = !std::ptr::eq(copies, words);
            for Copy { outbox, part } in segment.copies.iter().filter(|_| !self.stays) {
                self.copy(view, workspace, (copies, beside), &self.stocks[*outbox], part)?;
            }
            if beside {
                copies.record(&segment.copied)?;
                words.wait(&segment.copied)?;
            }
            for write in &segment.writes {
                plan.write(workspace, words, write, epoch)?;
            }
        }
        let [_, words] = first;
        if both {
            second[1].record(&plan.second)?;
            words.wait(&plan.second)?;
        }
        let mut last = Vec::new();
        for write in &plan.last {
            last.extend(write.each(workspace, epoch)?);
        }
        words.write_words(&last)?;
        words.record(&plan.ended)?;
        Ok(())
    }

    /// Lets the rank's stream go on only when the peers are through with launch `epoch`.
    pub(super) fn join(&self, main: &Stream, epoch: u32) -> Result<(), Error> {
        Ok(main.wait(&self.plan(epoch).ended)?)
    }

    fn copy(
        &self,
        view: &RankView<'_>,
        workspace: &GpuWorkspace,
        (copies, beside): (&Stream, bool),
        outbox: &Stock,
        part: &Part,
    ) -> Result<(), Error> {
        let Region { rank, buffer, plane, rows, cols } = &part.to;
        let Some(symmetric) = workspace.buffer(*buffer) else { return Ok(()) };
        let first = u64::from(rows.start - view.first_row(*buffer, *rank));
        let element = u64::from(outbox.element.bytes());
        let column = u64::from(cols.start - view.first_col(*buffer, *rank)) * element;
        let to = workspace.rows(symmetric, *rank, *plane, first, column)?;
        let from = outbox.rows(part.plane, rows.start, cols.start)?;
        let row_bytes = u64::from(cols.end - cols.start) * element;
        let height = u64::from(rows.end - rows.start);
        match outbox.memory {
            Memory::Device(_) if beside => copies.copy_2d_beside(to, from, row_bytes, height)?,
            Memory::Host(_) | Memory::Device(_) => copies.copy_2d(to, from, row_bytes, height)?,
        }
        Ok(())
    }

    /// Ends the waits of the streams for an active rank that has given up: raises whatever the
    /// latest launch was to raise.
    pub(super) fn release(&self, workspace: &GpuWorkspace, rescue: &Stream) -> Result<(), Error> {
        let epoch = self.epoch.load(Ordering::Relaxed);
        for after in self.plan(epoch).segments.iter().filter_map(|segment| segment.after.as_ref()) {
            rescue.write_u32(after.span(workspace)?, after.values[0].at(epoch))?;
        }
        Ok(())
    }
}

impl Plan {
    fn new(
        device: &Arc<Device>,
        program: &Program,
        workspace: &GpuWorkspace,
        stocks: &[Stock],
        (script, copies_first): (Script, bool),
    ) -> Result<Plan, Error> {
        let mut prepared = 0;
        let segments = joined(script.segments, program, copies_first).into_iter().map(|parts| {
            let after = parts.iter().find_map(|segment| segment.after);
            let sender = parts.first().map_or(0, |segment| segment.sender);
            let mut copies = Vec::new();
            let mut words = Vec::new();
            for segment in parts {
                for part in segment.parts {
                    let of = (segment.peer, part.to.buffer);
                    let same = |found: &Stock| (found.peer, found.buffer) == of;
                    if let Some(outbox) = stocks.iter().position(same) {
                        copies.push(Copy { outbox, part });
                    }
                }
                words.extend(segment.words);
            }
            Ok(Segment {
                sender,
                after: after.map(|word| Write::one(program, workspace, &word)),
                copies,
                writes: writes(program, workspace, &words, &mut prepared),
                copied: Event::new(device, Timing::Off)?,
            })
        });
        let segments = segments.collect::<Result<Vec<_>, Error>>()?;
        let last = writes(program, workspace, &script.last, &mut prepared);
        Ok(Plan {
            segments,
            last,
            values: HostBuffer::alloc(device, 4 * prepared as u64)?,
            started: Event::new(device, Timing::Off)?,
            second: Event::new(device, Timing::Off)?,
            ended: Event::new(device, Timing::Off)?,
        })
    }

    fn write(
        &self,
        workspace: &GpuWorkspace,
        stream: &Stream,
        write: &Write,
        epoch: u32,
    ) -> Result<(), Error> {
        // A copy between two places of the host would make this thread wait for the stream; one to the
        // device would stand behind the data of another stream.
        if write.home == Home::Host || write.values.len() <= FEW {
            return Ok(stream.write_words(&write.each(workspace, epoch)?)?);
        }
        let to = write.span(workspace)?;
        let words = &self.values.words()[write.prepared..];
        for (word, value) in words.iter().zip(&write.values) {
            word.store(value.at(epoch), Ordering::Relaxed);
        }
        let from = self.values.span().part(4 * write.prepared as u64, to.bytes())?;
        Ok(stream.copy(to, from)?)
    }
}

impl Write {
    /// Its words with what they become in launch `epoch`.
    fn each<'w>(
        &self,
        workspace: &'w GpuWorkspace,
        epoch: u32,
    ) -> Result<Vec<(Span<'w>, u32)>, Error> {
        let to = self.span(workspace)?;
        let words = self.values.iter().enumerate();
        words.map(|(word, value)| Ok((to.part(4 * word as u64, 4)?, value.at(epoch)))).collect()
    }

    fn one(program: &Program, workspace: &GpuWorkspace, word: &Word) -> Write {
        let offset = workspace.signal(word.signal) + 4 * u64::from(word.slot);
        let home = program.signals[word.signal].home;
        Write { rank: word.rank, home, offset, values: vec![word.value], prepared: 0 }
    }

    fn span<'w>(&self, workspace: &'w GpuWorkspace) -> Result<Span<'w>, Error> {
        let bytes = 4 * self.values.len() as u64;
        Ok(match self.home {
            Home::Device => workspace.heaps.span(self.rank, self.offset, bytes)?,
            Home::Host => workspace.heaps.host(self.rank)?.span().part(self.offset, bytes)?,
        })
    }
}

/// Segments that follow each other and wait for nothing, as many together as are small: peers send
/// at once, and one stream that plays them all would tell of them one by one.
fn joined(
    segments: Vec<script::Segment>,
    program: &Program,
    copies_first: bool,
) -> Vec<Vec<script::Segment>> {
    // Where copies come first, nobody looks before all is there.
    let small = if copies_first { u64::MAX } else { SMALL };
    let mut all: Vec<(u64, Vec<script::Segment>)> = Vec::new();
    for segment in segments {
        let bytes = segment.parts.iter().map(|part| {
            let Region { rows, cols, buffer, .. } = &part.to;
            let element = u64::from(program.buffers[*buffer].element.bytes());
            rows.len() as u64 * cols.len() as u64 * element
        });
        let bytes: u64 = bytes.sum();
        match all.last_mut() {
            Some((before, joined))
                if *before + bytes <= small
                    && segment.after.is_none()
                    && joined.iter().all(|other| other.sender == segment.sender) =>
            {
                *before += bytes;
                joined.push(segment);
            }
            _ => all.push((bytes, vec![segment])),
        }
    }
    all.into_iter().map(|(_, joined)| joined).collect()
}

/// Words that are written one by one: those of a chunk, where another chunk travels meanwhile.
const FEW: usize = 32;

/// The words of one moment, those beside each other together.
fn writes(
    program: &Program,
    workspace: &GpuWorkspace,
    words: &[Word],
    prepared: &mut usize,
) -> Vec<Write> {
    let mut sorted: Vec<&Word> = words.iter().collect();
    sorted.sort_by_key(|word| (word.rank, word.signal, word.slot));
    let mut found: Vec<Write> = Vec::new();
    let mut before: Option<(u32, SignalId, u32)> = None;
    for word in sorted {
        let beside = before == Some((word.rank, word.signal, word.slot.wrapping_sub(1)));
        match found.last_mut() {
            Some(write) if beside => write.values.push(word.value),
            _ => found.push(Write::one(program, workspace, word)),
        }
        before = Some((word.rank, word.signal, word.slot));
    }
    for write in &mut found {
        write.prepared = *prepared;
        *prepared += write.values.len();
    }
    found
}

/// Memory for everything peers send: for each peer and buffer the rectangle that holds all of it.
fn stocks(
    device: &Arc<Device>,
    peers: Peers,
    program: &Program,
    scripts: &[Script; 2],
) -> Result<Vec<Stock>, Error> {
    let mut extents: BTreeMap<(u32, BufferId), Part> = BTreeMap::new();
    for segment in scripts.iter().flat_map(|script| &script.segments) {
        for part in &segment.parts {
            let found =
                extents.entry((segment.peer, part.to.buffer)).or_insert_with(|| part.clone());
            let hull = |a: &std::ops::Range<u32>, b: &std::ops::Range<u32>| {
                a.start.min(b.start)..a.end.max(b.end)
            };
            found.to.rows = hull(&found.to.rows, &part.to.rows);
            found.to.cols = hull(&found.to.cols, &part.to.cols);
            found.plane = found.plane.max(part.plane);
        }
    }
    let stocks = extents.into_iter().map(|((peer, buffer), part)| {
        let Region { rows, cols, .. } = part.to;
        let declared = &program.buffers[buffer];
        let row_bytes = u64::from(cols.end - cols.start) * u64::from(declared.element.bytes());
        let mut found = Stock {
            peer,
            buffer,
            name: declared.name.clone(),
            element: declared.element,
            planes: part.plane + 1,
            rows,
            cols,
            // As the workspace has it, so that whole rows are one copy without gaps.
            pitch_bytes: row_bytes.next_multiple_of(128),
            memory: Memory::Host(HostBuffer::alloc(device, 0)?),
        };
        found.memory = match peers {
            Peers::Host => Memory::Host(HostBuffer::alloc(device, found.bytes())?),
            Peers::Device | Peers::Resident => {
                Memory::Device(DeviceBuffer::alloc_zeroed(device, found.bytes())?)
            }
        };
        Ok(found)
    });
    stocks.collect()
}
