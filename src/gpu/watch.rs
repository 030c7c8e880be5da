//! What a stalled kernel reports, as an error that names rank, signal, seen and wanted.

use crate::error::Error;
use crate::source::Source;
use flux_ir::abi::{BULK_COPY, NETWORK_FLUSH, SHARED_SUMS};
use flux_ir::program::Program;
use flux_runtime::{Device, HostBuffer, StallReport};
use flux_sim::TileRanges;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The report of a kernel's stall, and what is needed to make a sentence of it.
#[derive(Debug)]
pub(crate) struct Watch {
    report: HostBuffer,
    /// Whether the failure of a launch has been told: nothing is launched any more.
    taken: AtomicBool,
    /// Whether launches were told to end.
    ended: AtomicBool,
    rank: u32,
    pub(super) kernel: String,
    file: &'static str,
    signals: Vec<String>,
    pub(super) limit: Duration,
}

impl Watch {
    pub(super) fn new(
        device: &Arc<Device>,
        source: &Source,
        program: &Program,
        rank: u32,
        limit: Duration,
    ) -> Result<Watch, Error> {
        Ok(Watch {
            report: HostBuffer::alloc(device, flux_ir::abi::REPORT_BYTES.into())?,
            taken: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            rank,
            kernel: source.definition.name.into(),
            file: source.definition.file,
            signals: program.signals.values().map(|signal| signal.name.clone()).collect(),
            limit,
        })
    }

    /// Whether a launch has given up.
    pub(super) fn is_stalled(&self) -> bool {
        StallReport::read(self.report.words()).is_some()
    }

    /// The stall, the first time it is asked for; `place` finds the role and the tile.
    pub(super) fn take_stall(
        &self,
        place: impl FnOnce(&StallReport) -> (String, Option<TileRanges>),
    ) -> Option<Error> {
        let report = StallReport::read(self.report.words())?;
        if self.taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        let signal: String = match report.signal {
            SHARED_SUMS => "shared_sums".into(),
            BULK_COPY => "bulk_copy".into(),
            NETWORK_FLUSH => "network_flush".into(),
            index => self.signals.get(index as usize).cloned().unwrap_or(format!("#{index}")),
        };
        let (role, tile) = place(&report);
        Some(Error::Stalled {
            rank: self.rank,
            kernel: self.kernel.clone(),
            cta: report.cta,
            role: role.into(),
            tile: tile.map(Box::new),
            file: self.file,
            line: report.line,
            column: report.column,
            signal: signal.into(),
            slot: report.slot,
            seen: report.seen,
            wanted: report.wanted,
            limit_ms: self.limit.as_millis() as u64,
        })
    }

    /// Notes that launches are told to end; whether they were before.
    pub(super) fn end(&self) -> bool {
        self.ended.swap(true, Ordering::Relaxed)
    }

    /// Whether launches were told to end, or have given up.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || self.is_stalled()
    }

    /// Forgets what failed.
    pub(super) fn clear(&self) {
        StallReport::clear(self.report.words());
        self.ended.store(false, Ordering::Relaxed);
        self.taken.store(false, Ordering::Relaxed);
    }

    /// The address of the report, for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.report.address()
    }

    /// Notes that a launch failed before it ran.
    pub(super) fn poison(&self) {
        self.taken.store(true, Ordering::Relaxed);
    }

    /// Whether a launch has failed and this has been told.
    pub(super) fn is_poisoned(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }
}
