//! Measurements on a GPU.

mod calibrate;
mod epilogue;
mod family;
pub(crate) mod fused;
mod fused_report;
mod gather;
mod gemm;
mod gemm_report;
pub(crate) mod link;
pub(crate) mod operands;
mod record;
mod scatter;
mod share;
pub(crate) mod timer;

pub use calibrate::{Costs, calibrate};
pub use epilogue::epilogues;
pub use fused::{Kind, OverlapOptions, OverlapRow, overlap};
pub use fused_report::{overlap_chart, overlap_table};
pub use gemm::{GemmOptions, GemmRow, Members, Section, gemm};
pub use gemm_report::{gemm_chart, gemm_table};
pub use record::record;
pub use share::{ShareRow, share, share_table};
pub use timer::Timer;

use crate::error::Error;
use crate::report::Conditions;
use crate::rotation::Rounds;
use crate::telemetry::{Reading, Telemetry};
use flux::World;
use flux_runtime::{Device, ElementKind, probe};
use std::time::Duration;

/// No work that is measured here takes as long: what does is stuck.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A 16-bit format that tensors and products are measured in.
pub trait Number: flux::Element {
    /// The format, as the runtime names it.
    const ELEMENT: ElementKind;
    /// The name in tables and on the command line.
    const NAME: &'static str;
    /// The distance of two neighbors relative to the larger, at most.
    const ULP: f32;
}

impl Number for half::bf16 {
    const ELEMENT: ElementKind = ElementKind::Bf16;
    const NAME: &'static str = "bf16";
    const ULP: f32 = 1.0 / 128.0;
}

impl Number for half::f16 {
    const ELEMENT: ElementKind = ElementKind::F16;
    const NAME: &'static str = "f16";
    const ULP: f32 = 1.0 / 1024.0;
}

/// Whether there is a device that measures.
///
/// # Errors
/// Why there is none.
pub fn available() -> Result<(), Error> {
    World::virtual_ranks(0, 1)?;
    Ok(())
}

/// Under which conditions rows are measured on `device`.
pub fn conditions(device: &Device, command: &str, rounds: Rounds) -> Conditions {
    let properties = device.properties();
    Conditions {
        command: command.to_owned(),
        device: properties.name.clone(),
        sms: properties.sms,
        l2_bytes: properties.l2_bytes,
        driver: probe().map_or_else(|_| "unknown".into(), |info| info.version.to_string()),
        rounds: rounds.measured,
        warm_up: rounds.warm_up,
        pause: rounds.pause,
    }
}

/// How the device rests between shapes: until it is as cool as it was at first, or nearly.
pub(crate) struct Resting {
    telemetry: Option<Telemetry>,
    celsius: u32,
    least: Duration,
}

impl Resting {
    /// Degrees above the first reading that count as cool.
    const WARMER: u32 = 5;

    pub(crate) fn open(device: &Device, least: Duration) -> Resting {
        let telemetry = Telemetry::open(device.ordinal());
        let now = telemetry.as_ref().and_then(Telemetry::read);
        Resting { telemetry, celsius: now.map_or(0, |now| now.celsius + Self::WARMER), least }
    }

    pub(crate) fn reading(&self) -> Option<Reading> {
        self.telemetry.as_ref().and_then(Telemetry::read)
    }

    pub(crate) fn rest(&self) {
        match &self.telemetry {
            Some(telemetry) => telemetry.cool_down(self.celsius, self.least, 4 * self.least),
            None => std::thread::sleep(self.least),
        }
    }
}
