//! A workspace in memory of the caller's: words that others may have mapped as well.
//!
//! Every element takes a word of 32 bits, as the f32 that it is exactly. Words are read and written
//! one by one, as atomics, so nobody needs a lock; that two actors do not meet at an element is what
//! the checker has proven, and what [`crate::sheet`] looks for where memory is the workspace's own.

use crate::error::Error;
use crate::workspace::BufferExtent;
use flux_ir::Element;
use flux_ir::arena::Handle;
use flux_ir::eval::RankView;
use flux_ir::program::{BufferId, BufferKind, SignalId};
use half::{bf16, f16};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory of all ranks of a workspace, which lies where the caller says.
pub trait Parts: fmt::Debug + Send + Sync {
    /// The words of one rank, zero at first: [`crate::Workspace::words`] of them at least.
    fn words(&self, rank: u32) -> &[AtomicU32];

    /// A rank that will do nothing more, and why. Asked again and again while a launch waits.
    fn lost(&self) -> Option<(u32, String)>;
}

/// The memory, and where everything lies in it.
#[derive(Debug)]
pub(crate) struct Given {
    parts: Arc<dyn Parts>,
    maps: Vec<Map>,
}

/// Where one rank's things lie among its words.
#[derive(Debug, Default)]
struct Map {
    signals: Vec<Range<usize>>,
    /// By buffer: where it begins, and its columns; `None` for what is no workspace buffer.
    buffers: Vec<Option<Placed>>,
    words: usize,
}

#[derive(Debug, Clone)]
struct Placed {
    element: Element,
    cols: usize,
    words: Range<usize>,
}

/// The word that is not zero once the rank's launch has failed.
const FAILED: usize = 0;

impl Map {
    fn new(view: &RankView<'_>, extents: &[BufferExtent]) -> Map {
        let mut map = Map { words: FAILED + 1, ..Map::default() };
        let mut take = |words: usize| {
            let start = map.words;
            map.words = start.saturating_add(words);
            start..map.words
        };
        let program = view.program;
        let signals = program.signals.handles().map(|id| take(view.signal_len(id) as usize));
        let signals = signals.collect();
        let buffers = program.buffers.iter().map(|(id, buffer)| {
            let BufferExtent { planes, rows, cols, .. } = extents[id.index()];
            (buffer.kind == BufferKind::Symmetric).then(|| {
                let words = planes.saturating_mul(rows).saturating_mul(cols);
                Placed { element: buffer.element, cols, words: take(words) }
            })
        });
        let buffers = buffers.collect();
        Map { signals, buffers, ..map }
    }
}

/// The words that a rank needs.
pub(crate) fn words(view: &RankView<'_>, extents: &[BufferExtent]) -> u64 {
    Map::new(view, extents).words as u64
}

impl Given {
    /// # Errors
    /// A rank with fewer words than it needs.
    pub(crate) fn new(
        parts: Arc<dyn Parts>,
        views: &[(RankView<'_>, Vec<BufferExtent>)],
    ) -> Result<Given, Error> {
        let maps: Vec<_> = views.iter().map(|(view, extents)| Map::new(view, extents)).collect();
        for (map, rank) in maps.iter().zip(0..) {
            let found = parts.words(rank).len() as u64;
            if found < map.words as u64 {
                return Err(Error::TooFewWords { rank, expected: map.words as u64, found });
            }
        }
        Ok(Given { parts, maps })
    }

    pub(crate) fn signals(&self, rank: u32, signal: SignalId) -> Option<&[AtomicU32]> {
        let range = self.maps.get(rank as usize)?.signals.get(signal.index())?.clone();
        self.parts.words(rank).get(range)
    }

    pub(crate) fn buffer(&self, rank: u32, buffer: BufferId) -> Option<Words<'_>> {
        let placed = self.maps.get(rank as usize)?.buffers.get(buffer.index())?.as_ref()?;
        let Placed { element, cols, ref words } = *placed;
        Some(Words { element, cols, words: self.parts.words(rank).get(words.clone())? })
    }

    /// Makes all buffers of a rank zero, and forgets its failure.
    pub(crate) fn zero(&self, rank: u32) {
        let Some(map) = self.maps.get(rank as usize) else { return };
        let words = self.parts.words(rank);
        let buffers = map.buffers.iter().flatten().map(|placed| placed.words.clone());
        for word in buffers.filter_map(|range| words.get(range)).flatten().chain(words.get(FAILED))
        {
            word.store(0, Ordering::Release);
        }
    }

    /// Notes that the launch of `rank` has failed, for all who have its memory.
    pub(crate) fn fail(&self, rank: u32) {
        if let Some(word) = self.parts.words(rank).get(FAILED) {
            word.store(1, Ordering::Release);
        }
    }

    /// Whether some rank has failed, or is lost.
    pub(crate) fn has_failed(&self) -> bool {
        self.first_failed().is_some() || self.parts.lost().is_some()
    }

    /// What some rank has failed of.
    pub(crate) fn failure(&self) -> Option<Error> {
        match self.parts.lost() {
            Some((rank, reason)) => Some(Error::PeerLost { rank, reason }),
            None => self.first_failed().map(|rank| Error::PeerFailed { rank }),
        }
    }

    fn first_failed(&self) -> Option<u32> {
        let has_failed = |rank: &u32| {
            let word = self.parts.words(*rank).get(FAILED);
            word.is_some_and(|word| word.load(Ordering::Acquire) != 0)
        };
        (0..self.maps.len() as u32).find(has_failed)
    }
}

/// A matrix in memory of the caller's, planes one behind the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words<'m> {
    element: Element,
    cols: usize,
    words: &'m [AtomicU32],
}

impl<'m> Words<'m> {
    fn row(&self, row: usize, cols: Range<usize>) -> &'m [AtomicU32] {
        &self.words[row * self.cols..][cols]
    }

    /// Reads the elements `cols` of a row.
    pub(crate) fn load(&self, row: usize, cols: Range<usize>, into: &mut [f32]) {
        for (word, value) in self.row(row, cols).iter().zip(into) {
            // Signals order what they guard; an element by itself needs no more.
            *value = f32::from_bits(word.load(Ordering::Relaxed));
        }
    }

    /// Writes the elements `cols` of a row, rounded to nearest even.
    pub(crate) fn store(&self, row: usize, cols: Range<usize>, from: &[f32]) {
        for (word, value) in self.row(row, cols).iter().zip(from) {
            let rounded = match self.element {
                Element::Bf16 => bf16::from_f32(*value).to_f32(),
                Element::F16 => f16::from_f32(*value).to_f32(),
                Element::F32 => *value,
            };
            word.store(rounded.to_bits(), Ordering::Relaxed);
        }
    }
}
