//! What a machine is to the time model: a file of numbers with units, each with its source.
//!
//! Numbers are checked where they are read, so that an error names line and column.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Machines that come with the library, by name.
const BUILT_IN: [(&str, &str); 3] = [
    ("h200-nvlink", include_str!("../../../machines/h200-nvlink.json")),
    ("h200-pcie", include_str!("../../../machines/h200-pcie.json")),
    ("h200-ib", include_str!("../../../machines/h200-ib.json")),
];

/// A machine: one kind of GPU, and the links between as many of it as there are ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What it is called.
    pub name: String,
    /// What it is, in a sentence.
    pub about: String,
    /// Multiprocessors and what a tile costs on one.
    pub compute: Compute,
    /// The memory of a GPU.
    pub memory: Memory,
    /// The link of each GPU to all others of its node.
    pub link: Link,
    /// The network between nodes, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Fabric>,
    /// Where the numbers are from, by their path in this file.
    pub sources: BTreeMap<String, String>,
}

/// Multiprocessors and what a tile costs on one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compute {
    /// Multiprocessors.
    pub sms: Count,
    /// Of these, how many a grid leaves free where a copy engine copies within the device.
    pub copy_sms: u32,
    /// The clock by how long the tensor cores have been busy in this launch.
    pub clock: Curve<ClockPoint>,
    /// Multiply-adds of an SM's tensor cores a cycle, by element type.
    pub mac_per_cycle: BTreeMap<String, Count>,
    /// By tile columns, how many times its tensor-core cycles a mainloop takes.
    pub narrow_tiles: Curve<NarrowPoint>,
    /// Cycles from the start of a grid to its first mainloop, and after its last epilogue.
    pub start_cycles: Cycles,
    /// The same where the consumers' form is ping-pong.
    pub start_cycles_ping_pong: Cycles,
    /// Cycles from the last product of a tile to the end of its stores.
    pub epilogue_cycles: Cycles,
    /// Cycles between two tiles in which the tensor cores of a ping-pong CTA idle.
    pub turn_cycles: Cycles,
    /// From a raised signal that a producer polls to its first loaded stage.
    pub fill_us: Micros,
    /// Bytes of contributions that one SM reads, adds and stores.
    pub sum_gbps_per_sm: Gbps,
}

/// The memory of a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// What reads of device memory reach.
    pub hbm_gbps: Gbps,
    /// Bytes that stay in the L2 cache.
    pub l2_bytes: Count,
    /// A copy engine within the device: bytes copied.
    pub local_copy_gbps: Gbps,
}

/// The link of each GPU to all others, full duplex.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// A first copy in an idle stream, before its bytes move.
    pub copy_start_us: Micros,
    /// Between a copy and the next of its stream.
    pub copy_gap_us: Micros,
    /// What the bytes of one copy take.
    pub copy_wire: Curve<WirePoint>,
    /// How many times longer bytes of rows take that do not follow each other in memory.
    pub copy_rows: Curve<RowPoint>,
    /// How many times longer bytes take while the other direction is loaded as well.
    pub both_ways: Factor,
    /// What each further copy then takes of its link beyond its bytes, in place of a gap in its stream.
    pub both_ways_us: Micros,
    /// A stream's write of a signal behind a copy, until it can be seen.
    pub flag_us: Micros,
    /// Which stream writes it.
    pub flag_stream: FlagStream,
    /// A stream's wait for a signal that CTAs raise, from the raise to its next operation.
    pub stream_wait_us: Micros,
    /// Stores of SMs into a peer's memory.
    pub put_gbps: Gbps,
    /// Bulk copies of SMs into a peer's memory or out of it; as stores where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulk_gbps: Option<Gbps>,
    /// From the last store to its completion.
    pub put_us: Micros,
    /// A signal that a CTA raises on a peer, until it can be seen.
    pub signal_us: Micros,
    /// A signal that a CTA raises on its own rank, until it can be seen.
    pub own_signal_us: Micros,
}

/// The network between nodes: each GPU has an adapter of its own, full duplex.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Puts of one GPU.
    pub put_gbps: Gbps,
    /// What a message takes of the adapter beyond its bytes.
    pub message_us: Micros,
    /// From the last byte of a put to where it lies.
    pub put_us: Micros,
    /// A signal behind it, until it can be seen.
    pub signal_us: Micros,
}

/// Which stream writes the signal of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlagStream {
    /// The copies' own: the link idles meanwhile.
    Same,
    /// One of its own: the next copy starts at once.
    Own,
}

/// The clock from a point on; linear between points, constant beyond.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockPoint {
    /// How long tensor cores have been busy.
    pub busy_us: f64,
    /// The clock.
    pub mhz: f64,
}

/// What narrow tiles cost; linear between points, constant beyond.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NarrowPoint {
    /// Columns of a tile.
    pub columns: f64,
    /// Mainloop time over tensor-core time.
    pub factor: f64,
}

/// What rows apart cost; linear between points, constant beyond.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowPoint {
    /// Bytes of one row.
    pub row_bytes: f64,
    /// Time of a copy over that of one without gaps.
    pub factor: f64,
}

/// What a copy takes; linear between points and from nothing to the first, and on at the rate of
/// the last two.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WirePoint {
    /// Bytes of one copy.
    pub bytes: f64,
    /// What they take.
    pub us: f64,
}

/// A point of a [`Curve`].
pub trait Point: Copy {
    /// Where, and how much.
    fn pair(self) -> (f64, f64);
    /// What is wrong with two points that follow each other.
    fn fault(before: Self, after: Self) -> Option<&'static str>;
    /// What is wrong with a point.
    fn wrong(self) -> Option<String>;
}

impl Point for ClockPoint {
    fn pair(self) -> (f64, f64) {
        (self.busy_us, self.mhz)
    }

    fn fault(_: Self, _: Self) -> Option<&'static str> {
        None
    }

    fn wrong(self) -> Option<String> {
        out_of("mhz", "MHz", self.mhz, 1.0, 1e5)
            .or_else(|| out_of("busy_us", "µs", self.busy_us, 0.0, 1e9))
    }
}

impl Point for NarrowPoint {
    fn pair(self) -> (f64, f64) {
        (self.columns, self.factor)
    }

    fn fault(before: Self, after: Self) -> Option<&'static str> {
        (after.factor > before.factor).then_some("wider tiles have no larger `factor`")
    }

    fn wrong(self) -> Option<String> {
        out_of("factor", "times", self.factor, 1.0, 100.0)
            .or_else(|| out_of("columns", "columns", self.columns, 1.0, 1024.0))
    }
}

impl Point for RowPoint {
    fn pair(self) -> (f64, f64) {
        (self.row_bytes, self.factor)
    }

    fn fault(before: Self, after: Self) -> Option<&'static str> {
        (after.factor > before.factor).then_some("longer rows have no larger `factor`")
    }

    fn wrong(self) -> Option<String> {
        out_of("factor", "times", self.factor, 1.0, 100.0)
            .or_else(|| out_of("row_bytes", "bytes", self.row_bytes, 1.0, 1e9))
    }
}

impl Point for WirePoint {
    fn pair(self) -> (f64, f64) {
        (self.bytes, self.us)
    }

    fn fault(before: Self, after: Self) -> Option<&'static str> {
        (after.us <= before.us).then_some("more bytes take longer: `us` has to grow")
    }

    fn wrong(self) -> Option<String> {
        out_of("bytes", "bytes", self.bytes, 1.0, 1e15)
            .or_else(|| out_of("us", "µs", self.us, 1e-6, 1e12))
    }
}

fn out_of(name: &str, unit: &str, found: f64, least: f64, most: f64) -> Option<String> {
    let inside = (least..=most).contains(&found);
    (!inside).then(|| format!("expected `{name}` from {least} to {most} {unit}, found {found}"))
}

/// A function given by points, ordered by where they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    try_from = "Vec<P>",
    into = "Vec<P>",
    bound(serialize = "P: Point + Serialize", deserialize = "P: Point + Deserialize<'de>")
)]
pub struct Curve<P>(Vec<P>);

impl<P: Point> TryFrom<Vec<P>> for Curve<P> {
    type Error = String;

    fn try_from(points: Vec<P>) -> Result<Self, String> {
        if points.is_empty() {
            return Err("expected at least one point".into());
        }
        for (index, point) in points.iter().enumerate() {
            if let Some(wrong) = point.wrong() {
                return Err(format!("point {index}: {wrong}"));
            }
        }
        for (index, pair) in points.windows(2).enumerate() {
            if pair[0].pair().0 >= pair[1].pair().0 {
                let (at, next) = (index, index + 1);
                return Err(format!("points {at} and {next} are out of order: sort them"));
            }
            if let Some(fault) = P::fault(pair[0], pair[1]) {
                return Err(format!("point {}: {fault}", index + 1));
            }
        }
        Ok(Curve(points))
    }
}

impl<P: Point> From<Curve<P>> for Vec<P> {
    fn from(curve: Curve<P>) -> Self {
        curve.0
    }
}

impl<P: Point> Curve<P> {
    /// Between points linear, beyond them constant.
    pub fn at(&self, x: f64) -> f64 {
        let after = self.0.partition_point(|point| point.pair().0 <= x);
        match (after.checked_sub(1).map(|i| self.0[i].pair()), self.0.get(after)) {
            (Some(before), Some(point)) => between(before, point.pair(), x),
            (Some((_, y)), None) => y,
            (None, Some(point)) => point.pair().1,
            (None, None) => 0.0,
        }
    }
}

impl Curve<WirePoint> {
    /// What the bytes of a copy take, in µs: from nothing through the points, and on.
    pub fn wire_us(&self, bytes: f64) -> f64 {
        let after = self.0.partition_point(|point| point.bytes <= bytes).min(self.0.len() - 1);
        let before = after.checked_sub(1).map_or((0.0, 0.0), |i| self.0[i].pair());
        between(before, self.0[after].pair(), bytes)
    }
}

fn between((x0, y0): (f64, f64), (x1, y1): (f64, f64), x: f64) -> f64 {
    y0 + (y1 - y0) * (x - x0) / (x1 - x0)
}

/// A number of a machine's file with its range; anything else is refused where it stands.
macro_rules! quantity {
    ($(#[$about:meta])* $name:ident($unit:literal, $least:literal ..= $most:literal)) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl TryFrom<f64> for $name {
            type Error = String;

            fn try_from(found: f64) -> Result<Self, String> {
                if ($least..=$most).contains(&found) {
                    return Ok($name(found));
                }
                let (least, most, unit): (f64, f64, _) = ($least, $most, $unit);
                Err(format!("expected {least} to {most} {unit}, found {found}"))
            }
        }

        impl From<$name> for f64 {
            fn from(quantity: $name) -> f64 {
                quantity.0
            }
        }

        impl $name {
            /// The number.
            pub const fn get(self) -> f64 {
                self.0
            }
        }
    };
}

quantity!(
    /// A time in µs.
    Micros("µs", 0.0..=1e6)
);
quantity!(
    /// A rate in 10⁹ bytes a second.
    Gbps("GB/s", 1e-3..=1e6)
);
quantity!(
    /// Clock cycles.
    Cycles("cycles", 0.0..=1e9)
);
quantity!(
    /// A number of things, at least one.
    Count("(at least one)", 1.0..=1e15)
);
quantity!(
    /// How many times longer.
    Factor("times", 1.0..=1e3)
);

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// No built-in machine, and no file.
    #[error("no machine `{name}`; there are: {known}. A machine of your own is a file: FILE.json")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The machines there are.
        known: String,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The text is no machine.
    #[error("{origin}: {error}")]
    Json {
        /// File or name.
        origin: String,
        /// With line and column.
        error: serde_json::Error,
    },
    /// A number without a source, or a source without its number.
    #[error("{origin}: {message}")]
    Source {
        /// File or name.
        origin: String,
        /// What is missing.
        message: String,
    },
}

impl Machine {
    /// The names of the machines that come with the library.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.into_iter().map(|(name, _)| name)
    }

    /// The machine called `name`, or described by the file of that name.
    ///
    /// # Errors
    /// Neither is there, or the file describes no machine: line, column, name, unit and range.
    pub fn find(name: &str) -> Result<Machine, MachineError> {
        if let Some((_, text)) = BUILT_IN.into_iter().find(|(built_in, _)| *built_in == name) {
            return Machine::read(name, text);
        }
        let path = Path::new(name);
        if !name.contains('/') && path.extension().is_none_or(|extension| extension != "json") {
            let known = Machine::names().collect::<Vec<_>>().join(", ");
            return Err(MachineError::Unknown { name: name.into(), known });
        }
        let text = fs::read_to_string(path)
            .map_err(|error| MachineError::Read { path: path.into(), error })?;
        Machine::read(name, &text)
    }

    /// Reads a machine; `origin` is what errors call the text.
    ///
    /// # Errors
    /// The text is no JSON, or a name, unit or range is wrong, or a number has no source.
    pub fn read(origin: &str, text: &str) -> Result<Machine, MachineError> {
        let machine: Machine = serde_json::from_str(text)
            .map_err(|error| MachineError::Json { origin: origin.into(), error })?;
        let refuse = |message| MachineError::Source { origin: origin.into(), message };
        let paths = machine.paths();
        if let Some(path) = paths.iter().find(|path| !machine.sources.contains_key(*path)) {
            return Err(refuse(format!(
                "`{path}` has no source: say in `sources` what it was measured or derived from"
            )));
        }
        if let Some(path) = machine.sources.keys().find(|path| !paths.contains(*path)) {
            return Err(refuse(format!("`sources` names `{path}`, which is no number here")));
        }
        let (sms, copies) = (machine.compute.sms.get(), machine.compute.copy_sms);
        if f64::from(copies) >= sms {
            return Err(refuse(format!(
                "expected `compute.copy_sms` below the {sms} of `compute.sms`, found {copies}"
            )));
        }
        Ok(machine)
    }

    /// The path of every number.
    fn paths(&self) -> Vec<String> {
        let value = serde_json::to_value(self).unwrap_or_default();
        let mut paths = Vec::new();
        for section in ["compute", "memory", "link", "network"] {
            let fields = value.get(section).and_then(serde_json::Value::as_object);
            for field in fields.into_iter().flat_map(serde_json::Map::keys) {
                paths.push(format!("{section}.{field}"));
            }
        }
        paths
    }

    /// Multiprocessors.
    pub fn sms(&self) -> u32 {
        self.compute.sms.get() as u32
    }

    /// The machine with every link `factor` times as fast: copies, puts and their rates.
    ///
    /// # Errors
    /// The rates leave their range.
    pub fn with_link_speed(mut self, factor: f64) -> Result<Machine, String> {
        let scale = |point: &WirePoint| WirePoint { us: point.us / factor, ..*point };
        let points: Vec<WirePoint> = self.link.copy_wire.0.iter().map(scale).collect();
        self.link.copy_wire = Curve::try_from(points)?;
        let scale = |rate: Gbps| Gbps::try_from(rate.get() * factor);
        self.link.put_gbps = scale(self.link.put_gbps)?;
        self.link.bulk_gbps = self.link.bulk_gbps.map(scale).transpose()?;
        if let Some(network) = &mut self.network {
            network.put_gbps = scale(network.put_gbps)?;
        }
        Ok(self)
    }

    /// The machine with one direction of each link loaded alone, as where peers are passive
    /// memory.
    pub fn one_way(mut self) -> Machine {
        self.link.both_ways = Factor(1.0);
        self.link.both_ways_us = self.link.copy_gap_us;
        self
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.about)
    }
}
