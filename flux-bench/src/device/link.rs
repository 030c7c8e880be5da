//! Streams of one rank beside its main one, and memory of its passive peers.

use crate::error::Error;
use flux::{Outbox, Peers};
use flux_runtime::{Device, DeviceBuffer, Event, HostBuffer, Rows, Span, Stream, Timing};
use std::ops::Range;
use std::sync::Arc;

/// The streams that baselines run on. Everything forks from the main stream and joins it again.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) main: Arc<Stream>,
    /// Products of every second chunk.
    pub(crate) side: Stream,
    /// To the peers.
    pub(crate) out: Stream,
    /// From the peers.
    pub(crate) inbound: Stream,
    /// A recorded point is taken when a wait for it is enqueued, so one event serves all.
    tick: Event,
}

impl Link {
    pub(crate) fn new(main: Arc<Stream>) -> Result<Link, Error> {
        let device = Arc::clone(main.device());
        let stream = || Stream::new(&device);
        let (side, out, inbound) = (stream()?, stream()?, stream()?);
        Ok(Link { main, side, out, inbound, tick: Event::new(&device, Timing::Off)? })
    }

    /// Lets `later` go on when all that `earlier` has been given so far is done.
    pub(crate) fn order(&self, earlier: &Stream, later: &Stream) -> Result<(), Error> {
        earlier.record(&self.tick)?;
        Ok(later.wait(&self.tick)?)
    }

    /// Lets the other streams begin where the main one is.
    pub(crate) fn fork(&self) -> Result<(), Error> {
        self.main.record(&self.tick)?;
        for stream in [&self.side, &self.out, &self.inbound] {
            stream.wait(&self.tick)?;
        }
        Ok(())
    }

    /// Lets the main stream go on when the other ones are done.
    pub(crate) fn join(&self) -> Result<(), Error> {
        for stream in [&self.side, &self.out, &self.inbound] {
            self.order(stream, &self.main)?;
        }
        Ok(())
    }

    /// The stream of product number `index`: two that alternate.
    pub(crate) fn product(&self, index: usize) -> &Stream {
        if index.is_multiple_of(2) { &self.main } else { &self.side }
    }
}

/// Memory of passive peers that baselines send to.
#[derive(Debug)]
pub(crate) enum Sink {
    Host(HostBuffer),
    Device(DeviceBuffer),
}

impl Sink {
    pub(crate) fn new(device: &Arc<Device>, peers: Peers, bytes: u64) -> Result<Sink, Error> {
        Ok(match peers {
            Peers::Host => Sink::Host(HostBuffer::alloc(device, bytes)?),
            Peers::Device | Peers::Resident => Sink::Device(DeviceBuffer::alloc(device, bytes)?),
        })
    }

    pub(crate) fn span(&self) -> Span<'_> {
        match self {
            Sink::Host(buffer) => buffer.span(),
            Sink::Device(buffer) => buffer.span(),
        }
    }
}

/// Rows without gaps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dense<'a> {
    pub(crate) span: Span<'a>,
    pub(crate) row_bytes: u64,
}

impl<'a> Dense<'a> {
    pub(crate) fn rows(&self, rows: Range<usize>) -> Result<Span<'a>, Error> {
        let (start, length) = (rows.start as u64, rows.len() as u64);
        Ok(self.span.part(start * self.row_bytes, length * self.row_bytes)?)
    }
}

/// What peers send, one box each, in the order of the peers.
#[derive(Debug)]
pub(crate) struct Boxes(Vec<Outbox>);

impl Boxes {
    /// The boxes of `rank`'s latest launch, one for each of its peers.
    pub(crate) fn of(rank: &flux::Rank) -> Result<Boxes, Error> {
        let mut boxes = rank.outboxes();
        boxes.sort_by_key(Outbox::peer);
        let peers = rank.world_size() as usize - 1;
        if boxes.len() != peers {
            return Err(Error::Boxes { found: boxes.len(), peers });
        }
        Ok(Boxes(boxes))
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Outbox> {
        self.0.iter()
    }

    /// Copies rows of what the peers send, one peer's behind the other's in `shard` rows each, to
    /// where those rows belong in `to`.
    pub(crate) fn copy_rows(
        &self,
        stream: &Stream,
        to: Dense<'_>,
        shard: usize,
        rows: Range<usize>,
    ) -> Result<(), Error> {
        let mut next = rows.start;
        while next < rows.end {
            let (peer, within) = (next / shard, next % shard);
            let count = (shard - within).min(rows.end - next);
            let outbox = &self.0[peer];
            let pitch_bytes = outbox.pitch_bytes();
            let start = within as u64 * pitch_bytes;
            let span = outbox.span().part(start, outbox.span().bytes() - start)?;
            let target = Rows { span: to.rows(next..next + count)?, pitch_bytes: to.row_bytes };
            stream.copy_2d(target, Rows { span, pitch_bytes }, to.row_bytes, count as u64)?;
            next += count;
        }
        Ok(())
    }
}

/// The parts of `0..rows` cut into `chunks` equal ones; `None` where they cannot be equal.
pub(crate) fn parts(rows: usize, chunks: u32) -> Option<Vec<Range<usize>>> {
    let chunks = chunks as usize;
    if chunks == 0 || !rows.is_multiple_of(chunks) || rows < chunks {
        return None;
    }
    let each = rows / chunks;
    Some((0..chunks).map(|index| index * each..(index + 1) * each).collect())
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn parts_are_equal_or_none() {
        assert_eq!(parts(8, 4), Some(vec![0..2, 2..4, 4..6, 6..8]));
        assert_eq!(parts(8, 3), None);
        assert_eq!(parts(8, 16), None);
        assert_eq!(parts(8, 0), None);
    }
}
