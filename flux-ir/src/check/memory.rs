//! Memory that ranks share: which rectangles overlap, and who reads and writes each.

use super::effects::RankTrace;
use super::grouped::Grouped;
use super::machine::Run;
use super::trace::{Act, ActorTrace, Layout};
use crate::eval::Region;
use crate::program::ValueId;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Range;

/// A read or a write of a rectangle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pub(super) rect: u32,
    pub(super) actor: u32,
    pub(super) stamp: u32,
    pub(super) epoch: u32,
    /// When it happens in the greedy run. Accesses of one actor may share a time: see
    /// [`Access::moment`].
    pub(super) time: u32,
    /// The statement.
    pub(super) number: u32,
    /// Of a write: what a store writes, and the rank the data comes from.
    pub(super) value: Option<ValueId>,
    pub(super) origin: u16,
}

impl Access {
    /// A place in a trace that accesses nothing.
    pub(super) fn point(actor: u32, stamp: u32, epoch: u32, number: u32) -> Self {
        Access { rect: 0, actor, stamp, epoch, time: 0, number, value: None, origin: 0 }
    }

    /// Orders accesses as the greedy run did.
    pub(super) fn moment(&self) -> (u32, u32) {
        (self.time, self.stamp)
    }
}

/// Every rectangle of a launch, with its accesses and those it shares elements with.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) rects: Vec<Region>,
    neighbors: Grouped<u32>,
    writes: Grouped<Access>,
    reads: Grouped<Access>,
    /// Whether some element is written more than once in a launch.
    pub(super) rewritten: bool,
}

/// Joins the traces of all ranks: actors in the order of their numbers, and one numbering of
/// rectangles.
pub(super) fn join(ranks: Vec<RankTrace>) -> (Vec<ActorTrace>, Vec<Region>) {
    let mut numbers: FxHashMap<Region, u32> = FxHashMap::default();
    let (mut traces, mut rects) = (Vec::new(), Vec::new());
    for rank in ranks {
        let numbers: Vec<u32> = rank
            .rects
            .into_iter()
            .map(|region| {
                *numbers.entry(region).or_insert_with_key(|region| {
                    rects.push(region.clone());
                    rects.len() as u32 - 1
                })
            })
            .collect();
        for mut trace in rank.actors {
            for step in &mut trace.steps {
                match &mut step.act {
                    Act::Read { rect, .. }
                    | Act::Contribution { rect, .. }
                    | Act::Write { rect, .. } => *rect = numbers[*rect as usize],
                    Act::Wait { .. } | Act::Fence | Act::Raise { .. } => {}
                }
            }
            traces.push(trace);
        }
    }
    (traces, rects)
}

impl Memory {
    /// Collects the accesses of a run.
    pub(super) fn new(
        layout: &Layout<'_>,
        traces: &[ActorTrace],
        rects: Vec<Region>,
        run: &Run,
    ) -> Self {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (actor, trace) in traces.iter().enumerate() {
            let mut times = Times::new(&run.segments[actor]);
            for epoch in 1..=layout.epochs {
                for at in trace.launch(epoch) {
                    let step = trace.steps[at];
                    let access = |rect, value, origin, times: &mut Times<'_>| Access {
                        rect,
                        actor: actor as u32,
                        stamp: at as u32 + 1,
                        epoch,
                        time: times.at(at as u32),
                        number: step.number,
                        value,
                        origin,
                    };
                    match step.act {
                        Act::Read { rect, .. } | Act::Contribution { rect, .. } => {
                            reads.push(access(rect, None, 0, &mut times));
                        }
                        Act::Write { rect, value, origin } => {
                            writes.push(access(rect, value, origin, &mut times));
                        }
                        Act::Wait { .. } | Act::Fence | Act::Raise { .. } => {}
                    }
                }
            }
        }
        let count = rects.len();
        let mut writes = Grouped::new(count, &writes, |write| write.rect);
        writes.sort_each(Access::moment);
        let pairs = overlaps(&rects, |rect| !writes.of(rect).is_empty());
        let is_written = |rect| !writes.of(rect).is_empty();
        let rewritten = pairs.iter().any(|&(a, b)| is_written(a) && is_written(b))
            || (0..count as u32).any(|rect| {
                let epochs = writes.of(rect).iter().map(|write| write.epoch);
                let mut seen = 0u64;
                epochs.into_iter().any(|epoch| {
                    let bit = 1 << (epoch % 64);
                    let again = seen & bit != 0;
                    seen |= bit;
                    again
                })
            });
        let both: Vec<(u32, u32)> = pairs.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect();
        let by_rect = Grouped::new(count, &both, |pair| pair.0);
        let neighbors = by_rect.map(|pair| pair.1);
        let mut reads = Grouped::new(count, &reads, |read| read.rect);
        reads.sort_each(Access::moment);
        Memory { rects, neighbors, writes, reads, rewritten }
    }

    /// `rect`, and the rectangles it shares elements with.
    pub(super) fn around(&self, rect: u32) -> impl Iterator<Item = u32> + use<'_> {
        std::iter::once(rect).chain(self.neighbors.of(rect).iter().copied())
    }

    /// Writes of exactly `rect`, in the order of the run.
    pub(super) fn writes(&self, rect: u32) -> &[Access] {
        self.writes.of(rect)
    }

    /// Reads of exactly `rect`, in the order of the run.
    pub(super) fn reads(&self, rect: u32) -> &[Access] {
        self.reads.of(rect)
    }

    /// Elements two rectangles share.
    pub(super) fn shared(&self, a: u32, b: u32) -> u64 {
        let (a, b) = (&self.rects[a as usize], &self.rects[b as usize]);
        len(&common(&a.rows, &b.rows)) * len(&common(&a.cols, &b.cols))
    }

    pub(super) fn elements(&self, rect: u32) -> u64 {
        let rect = &self.rects[rect as usize];
        len(&rect.rows) * len(&rect.cols)
    }

    /// An element of `rect` that none of `parts` holds.
    pub(super) fn gap(&self, rect: u32, parts: &[u32]) -> Option<(u32, u32)> {
        let Region { rows, cols, .. } = &self.rects[rect as usize];
        self.uncovered(rows.clone(), cols.clone(), parts)
    }

    /// Whether `rect` and `part` share an element that none of `newer` holds.
    pub(super) fn shows(&self, rect: u32, part: u32, newer: &[u32]) -> bool {
        let (a, b) = (&self.rects[rect as usize], &self.rects[part as usize]);
        self.uncovered(common(&a.rows, &b.rows), common(&a.cols, &b.cols), newer).is_some()
    }

    /// An element of these rows and columns that none of `parts` holds.
    fn uncovered(&self, rows: Range<u32>, cols: Range<u32>, parts: &[u32]) -> Option<(u32, u32)> {
        let parts: Vec<&Region> = parts.iter().map(|&part| &self.rects[part as usize]).collect();
        let mut starts: Vec<u32> = parts.iter().flat_map(|p| [p.rows.start, p.rows.end]).collect();
        starts.push(rows.start);
        starts.retain(|row| rows.contains(row));
        starts.sort_unstable();
        starts.dedup();
        starts.into_iter().find_map(|row| {
            let mut spans: Vec<&Range<u32>> =
                parts.iter().filter(|p| p.rows.contains(&row)).map(|p| &p.cols).collect();
            spans.sort_unstable_by_key(|span| span.start);
            let mut col = cols.start;
            for span in spans {
                if span.start > col {
                    break;
                }
                col = col.max(span.end);
            }
            (col < cols.end).then_some((row, col))
        })
    }
}

fn common(a: &Range<u32>, b: &Range<u32>) -> Range<u32> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn len(range: &Range<u32>) -> u64 {
    range.len() as u64
}

/// When steps of one actor happen; asked in ascending order.
struct Times<'a> {
    segments: &'a [(u32, u32)],
    at: usize,
}

impl<'a> Times<'a> {
    fn new(segments: &'a [(u32, u32)]) -> Self {
        Times { segments, at: 0 }
    }

    fn at(&mut self, step: u32) -> u32 {
        while self.segments.get(self.at + 1).is_some_and(|&(from, _)| from <= step) {
            self.at += 1;
        }
        self.segments.get(self.at).map_or(0, |&(_, time)| time)
    }
}

/// Pairs of different rectangles that share an element, of which one at least is written.
///
/// A sweep over rows; rectangles that cross the row at hand are kept by first column. What
/// shares a column with a new one begins less than the widest one's width before it.
fn overlaps(rects: &[Region], written: impl Fn(u32) -> bool) -> Vec<(u32, u32)> {
    let mut order: Vec<u32> = (0..rects.len() as u32).collect();
    let key = |rect: u32| {
        let Region { rank, buffer, plane, rows, cols: _ } = &rects[rect as usize];
        (*rank, *buffer, *plane, rows.start)
    };
    order.sort_unstable_by_key(|&rect| key(rect));
    let mut pairs = Vec::new();
    let mut active: BTreeSet<(u32, u32)> = BTreeSet::new();
    let mut ends: BinaryHeap<Reverse<(u32, u32)>> = BinaryHeap::new();
    let (mut widest, mut plane) = (0, None);
    for rect in order {
        let (rank, buffer, at, _) = key(rect);
        if plane.replace((rank, buffer, at)) != Some((rank, buffer, at)) {
            active.clear();
            ends.clear();
            widest = 0;
        }
        let Region { rows, cols, .. } = &rects[rect as usize];
        while let Some(&Reverse((end, over))) = ends.peek()
            && end <= rows.start
        {
            ends.pop();
            active.remove(&(rects[over as usize].cols.start, over));
        }
        let from = cols.start.saturating_sub(widest);
        for &(_, other) in active.range((from, 0)..(cols.end, 0)) {
            if rects[other as usize].cols.end > cols.start && (written(rect) || written(other)) {
                pairs.push((rect, other));
            }
        }
        active.insert((cols.start, rect));
        ends.push(Reverse((rows.end, rect)));
        widest = widest.max(cols.end - cols.start);
    }
    pairs
}
