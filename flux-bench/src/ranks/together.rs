//! The time of work that all ranks do together.

use crate::device::LIMIT;
use crate::device::timer::behind_gate;
use crate::error::Error;
use flux::Rank;
use flux_runtime::{Device, Event, HostBuffer, Rendezvous, Stream, Timing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where ranks meet, and the gate of each.
///
/// The stream of every rank waits at its gate until all ranks have enqueued what is timed; then one
/// of them opens all gates, within a microsecond. A rank's time is that from its gate on, and the
/// time of the work that of the rank which took longest.
#[derive(Debug)]
pub(crate) struct Together {
    meeting: Rendezvous,
    gates: Vec<HostBuffer>,
}

impl Together {
    /// A gate for a rank on each of `devices`.
    pub(crate) fn new(devices: &[Arc<Device>]) -> Result<Together, Error> {
        let gates = devices.iter().map(|device| HostBuffer::alloc(device, 4));
        let meeting = Rendezvous::new(devices.len() as u32);
        Ok(Together { meeting, gates: gates.collect::<Result<_, _>>()? })
    }

    /// What every rank says, by rank.
    fn meet(&self, rank: u32, said: Vec<u8>) -> Result<Arc<[Vec<u8>]>, Error> {
        Ok(self.meeting.all_gather(rank, 0, said, LIMIT)?)
    }

    /// The greatest number of all ranks.
    fn greatest(&self, rank: u32, number: f64) -> Result<f64, Error> {
        let all = self.meet(rank, number.to_le_bytes().to_vec())?;
        let numbers = all.iter().filter_map(|said| said.as_slice().try_into().ok());
        Ok(numbers.map(f64::from_le_bytes).fold(0.0, f64::max))
    }

    fn open(&self, rank: u32, turn: u32) {
        self.gates[rank as usize].words()[0].store(turn, Ordering::Release);
    }
}

/// The clock of one rank.
#[derive(Debug)]
pub(crate) struct Clock<'t> {
    together: &'t Together,
    rank: u32,
    stream: Arc<Stream>,
    start: Event,
    end: Event,
    turn: AtomicU32,
}

impl<'t> Clock<'t> {
    pub(crate) fn new(together: &'t Together, rank: &Rank) -> Result<Clock<'t>, Error> {
        let stream = rank.stream().ok_or(Error::NoDevice)?;
        let device = stream.device();
        let (start, end) = (Event::new(device, Timing::On)?, Event::new(device, Timing::On)?);
        Ok(Clock { together, rank: rank.index(), start, end, turn: AtomicU32::new(0), stream })
    }

    /// Milliseconds that the slowest rank takes for what `enqueue` puts on the stream of each.
    ///
    /// # Errors
    /// Those of `enqueue`; [`Error::Held`]; a rank that does not come; work that does not end.
    pub(crate) fn time(&self, enqueue: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let (together, rank) = (self.together, self.rank);
        self.stream.wait_u32(together.gates[rank as usize].span(), turn)?;
        let outcome = behind_gate(
            || together.open(rank, turn),
            || {
                self.stream.record(&self.start)?;
                enqueue()?;
                Ok(self.stream.record(&self.end)?)
            },
        );
        let met = outcome.and_then(|()| together.meet(rank, Vec::new()).map(drop));
        match met {
            Ok(()) if rank == 0 => {
                (0..together.meeting.world()).for_each(|rank| together.open(rank, turn))
            }
            Ok(()) => {}
            // A closed gate would hold the stream for ever.
            Err(_) => together.open(rank, turn),
        }
        met?;
        self.end.synchronize(LIMIT)?;
        together.greatest(rank, self.end.ms_since(&self.start)?.into())
    }
}
