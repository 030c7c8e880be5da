//! When the tiles of an instrumented kernel waited, computed and stored.

use super::Gpu;
use super::instance::GpuInstance;
use crate::error::Error;
use flux_ir::abi::{RECORD_BYTES, Stamp};
use flux_ir::eval::{Launch, RankView};
use flux_ir::program::Program;
use flux_runtime::{Device, DeviceBuffer};
use flux_sim::time::{RECORDING_VERSION, RankRecord, Recording, TileRecord};
use std::sync::Arc;

/// Words of a tile's record.
const WORDS: usize = RECORD_BYTES as usize / 8;

/// Where an instrumented kernel writes, and what it is a record of.
#[derive(Debug)]
pub(super) struct Record {
    times: DeviceBuffer,
    program: String,
    split_k: u32,
    /// The tile table: m, n and two fields a row.
    tiles: Vec<[u32; 4]>,
}

impl Record {
    pub(super) fn new(device: &Arc<Device>, view: &RankView<'_>) -> Result<Record, Error> {
        let program: &Program = view.program;
        let table = program.tables.handles().next();
        let tiles = table.map_or(&[][..], |table| view.table(table)).to_vec();
        let bytes = u64::from(RECORD_BYTES) * tiles.len() as u64;
        let times = DeviceBuffer::alloc_zeroed(device, bytes)?;
        Ok(Record { times, program: program.to_string(), split_k: program.split_k, tiles })
    }

    /// Where the kernel writes.
    pub(super) fn address(&self) -> u64 {
        self.times.address()
    }

    /// What it wrote in the launch that came last.
    fn read(&self, rank: u32, launch: Launch, origin: &str) -> Result<Recording, Error> {
        let mut words = vec![0u64; WORDS * self.tiles.len()];
        self.times.copy_to(0, &mut words)?;
        let times = words.chunks_exact(WORDS);
        let started = times.clone().map(|of| of[Stamp::Started as usize]).min();
        // Of a CTA in the order in which it did them.
        let mut all: Vec<(&[u32; 4], &[u64])> = self.tiles.iter().zip(times).collect();
        all.sort_by_key(|(_, of)| [Stamp::Cta, Stamp::Began].map(|stamp| of[stamp as usize]));
        let mut tiles = Vec::with_capacity(all.len());
        let mut before: Option<TileRecord> = None;
        for (tile, of) in all {
            let record = self.tile(tile, of, before);
            tiles.push(record);
            before = Some(record);
        }
        let record = RankRecord { rank, started_ns: started.unwrap_or(0), tiles };
        Ok(Recording {
            version: RECORDING_VERSION,
            origin: origin.into(),
            program: self.program.clone(),
            m: launch.shape.m,
            n: launch.shape.n,
            k: launch.shape.k,
            world: launch.world,
            ctas: launch.ctas,
            ranks: vec![record],
        })
    }

    /// A tile's record; `before` is that of the tile that its CTA, or another one, did before it.
    fn tile(&self, &[m, n, ..]: &[u32; 4], of: &[u64], before: Option<TileRecord>) -> TileRecord {
        let at = |stamp: Stamp| of[stamp as usize];
        let cta = at(Stamp::Cta) as u32 / self.split_k;
        let began_ns = at(Stamp::Began);
        // Mainloops of a CTA follow each other: so long the tensor cores had other work.
        let busy = before.filter(|before| before.cta == cta).map(|before| before.computed_ns);
        let ready = busy.unwrap_or(0).max(at(Stamp::Waits)).min(began_ns);
        // Where everything was there by then, what it waited for are loads.
        let waited_ns = if at(Stamp::Arrived) > ready { ready } else { began_ns };
        let (computed_ns, stored_ns) = (at(Stamp::Computed), at(Stamp::Stored));
        TileRecord { cta, m, n, waited_ns, began_ns, computed_ns, stored_ns }
    }
}

impl Gpu {
    /// What the instrumented kernel launched first most recently recorded of `rank`; `None` where
    /// there is none.
    pub(crate) fn recording(&self, rank: u32) -> Result<Option<Recording>, Error> {
        self.synchronize(rank)?;
        let instances = self.instances();
        let of_rank = |instance: &&Arc<GpuInstance>| instance.rank == rank;
        let recorded = instances.iter().rev().filter(of_rank);
        let found = recorded.filter_map(|instance| Some((instance.record.as_ref()?, instance)));
        let read = |(record, instance): (&Record, &Arc<GpuInstance>)| {
            record.read(rank, instance.launch, self.name())
        };
        found.map(read).next().transpose()
    }
}
