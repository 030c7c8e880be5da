//! What a device says of itself: clocks, power, temperature, and what holds its clocks down.
//!
//! NVIDIA's management library is loaded at run time; where it is missing, nothing is told and
//! measurements go on without it.

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::time::{Duration, Instant};

/// What the driver installs; the name without a version is for those who link against it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// The device at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Clock of the multiprocessors, MHz.
    pub sm_mhz: u32,
    /// Clock of the memory, MHz.
    pub memory_mhz: u32,
    /// Power drawn, watts.
    pub watts: f64,
    /// The most power that may be drawn, watts.
    pub limit_watts: f64,
    /// Degrees Celsius.
    pub celsius: u32,
    /// What holds the clocks down, in the driver's words.
    pub held_by: Vec<String>,
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reading { sm_mhz, memory_mhz, watts, limit_watts, celsius, held_by } = self;
        write!(
            f,
            "{sm_mhz} MHz (memory {memory_mhz}), {watts:.0} of {limit_watts:.0} W, {celsius} °C"
        )?;
        if !held_by.is_empty() {
            write!(f, ", held by {}", held_by.join(" and "))?;
        }
        Ok(())
    }
}

/// The management library, opened for one device.
#[derive(Debug)]
pub struct Telemetry {
    library: Nvml,
    device: u32,
}

impl Telemetry {
    /// Opens the library for the device numbered `device`; `None` where it cannot be had.
    pub fn open(device: u32) -> Option<Telemetry> {
        let library = Nvml::builder().lib_path(OsStr::new(LIBRARY)).init().ok()?;
        library.device_by_index(device).ok()?;
        Some(Telemetry { library, device })
    }

    /// The device now; `None` where it does not tell all of it.
    pub fn read(&self) -> Option<Reading> {
        self.try_read().ok()
    }

    fn try_read(&self) -> Result<Reading, NvmlError> {
        let device = self.library.device_by_index(self.device)?;
        Ok(Reading {
            sm_mhz: device.clock_info(Clock::SM)?,
            memory_mhz: device.clock_info(Clock::Memory)?,
            watts: f64::from(device.power_usage()?) / 1e3,
            limit_watts: f64::from(device.enforced_power_limit()?) / 1e3,
            celsius: device.temperature(TemperatureSensor::Gpu)?,
            held_by: held_by(&device)?,
        })
    }

    /// Lets the device cool between shapes: for `least`, and on until it is at `celsius` or
    /// `most` has passed.
    pub fn cool_down(&self, celsius: u32, least: Duration, most: Duration) {
        let start = Instant::now();
        std::thread::sleep(least);
        while start.elapsed() < most {
            match self.read() {
                Some(reading) if reading.celsius > celsius => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Some(_) | None => break,
            }
        }
    }
}

/// The reasons that are no plain idleness.
fn held_by(device: &Device<'_>) -> Result<Vec<String>, NvmlError> {
    let names = [
        (ThrottleReasons::SW_POWER_CAP, "the power cap"),
        (ThrottleReasons::HW_SLOWDOWN, "the hardware"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "heat (hardware)"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "heat"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "the power brake"),
        (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, "a clock setting"),
        (ThrottleReasons::SYNC_BOOST, "a group of devices"),
    ];
    let reasons = device.current_throttle_reasons()?;
    let found = names.into_iter().filter(|(reason, _)| reasons.contains(*reason));
    Ok(found.map(|(_, name)| name.to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::{Reading, Telemetry};

    #[test]
    fn a_machine_without_the_library_says_nothing() {
        // Where there is a device, the first one has a number below a million.
        assert!(Telemetry::open(1_000_000).is_none());
    }

    #[test]
    fn a_reading_is_one_line() {
        let mut reading = Reading {
            sm_mhz: 1980,
            memory_mhz: 3201,
            watts: 123.4,
            limit_watts: 700.0,
            celsius: 31,
            held_by: vec![],
        };
        assert_eq!(reading.to_string(), "1980 MHz (memory 3201), 123 of 700 W, 31 °C");
        reading.held_by = vec!["the power cap".into(), "heat".into()];
        assert!(reading.to_string().ends_with("held by the power cap and heat"));
    }
}
