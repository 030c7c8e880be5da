//! What a stalled kernel reports, as an error that names rank, signal, seen and wanted.

use crate::error::Error;
use crate::source::Source;
use flux_ir::abi::SHARED_SUMS;
use flux_ir::program::Program;
use flux_runtime::{Device, HostBuffer, StallReport};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The report of a kernel's stall, and what is needed to make a sentence of it.
#[derive(Debug)]
pub(crate) struct Watch {
    report: HostBuffer,
    /// Whether the failure of a launch has been told: nothing is launched any more.
    taken: AtomicBool,
    rank: u32,
    pub(super) kernel: String,
    file: String,
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
            rank,
            kernel: source.definition.name.into(),
            file: source.definition.file.into(),
            signals: program.signals.values().map(|signal| signal.name.clone()).collect(),
            limit,
        })
    }

    /// The stall, if there was one.
    pub(super) fn stall(&self) -> Option<Error> {
        let report = StallReport::read(self.report.words())?;
        let signal = match report.signal {
            SHARED_SUMS => "shared_sums".into(),
            index => self.signals.get(index as usize).cloned().unwrap_or(format!("#{index}")),
        };
        Some(Error::Stalled {
            rank: self.rank,
            kernel: self.kernel.clone(),
            cta: report.cta,
            file: self.file.clone(),
            line: report.line,
            column: report.column,
            signal,
            slot: report.slot,
            seen: report.seen,
            wanted: report.wanted,
            limit_ms: self.limit.as_millis() as u64,
        })
    }

    /// The stall, the first time it is asked for.
    pub(super) fn take_stall(&self) -> Option<Error> {
        let stall = self.stall()?;
        (!self.taken.swap(true, Ordering::Relaxed)).then_some(stall)
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
