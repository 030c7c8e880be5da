//! From arguments to tensors in place.

use crate::status::Failure;
use crate::world::Member;
use flux_dsl::runtime::{Device, DeviceBuffer, HostSlice};
use flux_dsl::{Arg, Element, ParamType, Tensor};
use half::{bf16, f16};
use std::ffi::c_void;
use std::sync::Arc;

/// A number, not a tensor.
pub const FLUX_SCALAR: i32 = 0;
/// 1 sign, 8 exponent, 7 fraction bits.
pub const FLUX_BF16: i32 = 1;
/// IEEE half precision.
pub const FLUX_F16: i32 = 2;
/// IEEE single precision.
pub const FLUX_F32: i32 = 3;

/// In place of the number of a device: memory of the host.
pub const FLUX_HOST: i32 = -1;

/// An argument of a launch: a row-major matrix without gaps between rows, or a number. A vector has one
/// row or one column.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct flux_argument {
    /// The first element, on the host or on a device; NULL for a number, and where there is no element.
    pub data: *mut c_void,
    /// Rows: those that this rank passes.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// FLUX_BF16, FLUX_F16, FLUX_F32 or FLUX_SCALAR.
    pub dtype: i32,
    /// The number of the device that the memory is of, or FLUX_HOST.
    pub device: i32,
    /// The number, where it is one.
    pub value: f32,
    /// 0.
    pub reserved: u32,
}

/// An argument that goes from thread to thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given(pub(crate) flux_argument);

// SAFETY: an address; `flux.h` says who may use what it points to, and when.
unsafe impl Send for Given {}
// SAFETY: as above.
unsafe impl Sync for Given {}

impl Given {
    fn bytes_of_element(&self) -> u64 {
        match self.0.dtype {
            FLUX_BF16 | FLUX_F16 => 2,
            FLUX_F32 => 4,
            _ => 0,
        }
    }

    /// The bytes that it takes; none where they cannot be counted, which is refused elsewhere.
    fn span(&self) -> std::ops::Range<u64> {
        let elements = self.0.rows.checked_mul(self.0.cols);
        let bytes = elements.and_then(|elements| elements.checked_mul(self.bytes_of_element()));
        let start = self.0.data as u64;
        start..start.saturating_add(bytes.unwrap_or(0))
    }
}

/// A tensor in memory of the caller's, or a number.
#[derive(Debug)]
pub(crate) enum Adopted {
    Bf16(Tensor<bf16>),
    F16(Tensor<f16>),
    F32(Tensor<f32>),
    Scalar(f32),
}

impl Adopted {
    pub(crate) fn of(given: &Given, member: &Member) -> Result<Adopted, Failure> {
        if given.0.reserved != 0 {
            return Err(Failure::invalid(format!(
                "expected 0 in `reserved`, found {}",
                given.0.reserved
            )));
        }
        Ok(match given.0.dtype {
            FLUX_SCALAR => Adopted::Scalar(given.0.value),
            FLUX_BF16 => Adopted::Bf16(tensor(given, member)?),
            FLUX_F16 => Adopted::F16(tensor(given, member)?),
            FLUX_F32 => Adopted::F32(tensor(given, member)?),
            found => {
                let known = "FLUX_SCALAR, FLUX_BF16, FLUX_F16 or FLUX_F32";
                return Err(Failure::invalid(format!(
                    "expected {known} (0 to 3), found type {found}"
                )));
            }
        })
    }

    /// It as the argument of a parameter.
    pub(crate) fn arg(&mut self, ty: ParamType) -> Arg<'_> {
        let written = matches!(ty, ParamType::Tensor { written: true, .. });
        match self {
            Adopted::Bf16(tensor) => arg(tensor, written),
            Adopted::F16(tensor) => arg(tensor, written),
            Adopted::F32(tensor) => arg(tensor, written),
            Adopted::Scalar(value) => Arg::scalar(*value),
        }
    }
}

fn arg<T: Element>(tensor: &mut Tensor<T>, written: bool) -> Arg<'_> {
    if written { Arg::output(tensor) } else { Arg::input(tensor) }
}

fn tensor<T: Element>(given: &Given, member: &Member) -> Result<Tensor<T>, Failure> {
    let flux_argument { data, rows, cols, device: found, .. } = given.0;
    let too_large = || Failure::invalid(format!("{rows} x {cols} elements are too many"));
    let extent = |extent: u64| usize::try_from(extent).map_err(|_| too_large());
    let (rows, cols) = (extent(rows)?, extent(cols)?);
    let elements = rows.checked_mul(cols).filter(|elements| *elements < isize::MAX as usize / 8);
    let elements = elements.ok_or_else(too_large)?;
    let rank = &member.rank;
    match member.device() {
        None => {
            if found != FLUX_HOST {
                return Err(elsewhere("the host", found));
            }
            // SAFETY: `flux.h` asks for so many elements, which nobody else writes during the launch, or
            // reads if the kernel writes them.
            let memory = unsafe { HostSlice::from_raw(data.cast::<T>(), elements) }?;
            Ok(rank.adopt_host(rows, cols, memory)?)
        }
        Some(device) => {
            if found != device.ordinal() as i32 {
                return Err(elsewhere(&format!("device {}", device.ordinal()), found));
            }
            let buffer = on_device(device, data as u64, (elements * size_of::<T>()) as u64)?;
            Ok(rank.adopt(rows, cols, buffer)?)
        }
    }
}

fn on_device(device: &Arc<Device>, address: u64, bytes: u64) -> Result<DeviceBuffer, Failure> {
    // SAFETY: `flux.h` asks for so many bytes, until the launch has ended on its stream.
    Ok(unsafe { DeviceBuffer::from_raw(device, address, bytes) }?)
}

fn elsewhere(expected: &str, found: i32) -> Failure {
    let found = match found {
        FLUX_HOST => "the host".to_owned(),
        device => format!("device {device}"),
    };
    Failure::invalid(format!(
        "expected memory of {expected}, where its rank computes, found {found}"
    ))
}

/// Where the argument that reaches furthest so far ends, and its index.
type Reach = Option<(u64, usize)>;

/// Refuses outputs that share memory with another argument: ranks write as others read. `named` says
/// what to call an argument, by its index.
pub(crate) fn apart(
    arguments: &[Given],
    is_written: impl Fn(usize) -> bool,
    named: impl Fn(usize) -> String,
) -> Result<(), Failure> {
    let mut spans: Vec<_> = (0..arguments.len())
        .map(|index| (arguments[index].span(), index))
        .filter(|(span, _)| !span.is_empty())
        .collect();
    spans.sort_by_key(|(span, index)| (span.start, *index));
    // Of those written, and of all.
    let (mut written, mut any): (Reach, Reach) = (None, None);
    for (span, index) in spans {
        let before = if is_written(index) { any } else { written };
        if let Some((_, other)) = before.filter(|(end, _)| *end > span.start) {
            let (output, other) = if is_written(index) { (index, other) } else { (other, index) };
            return Err(Failure::invalid(format!(
                "{} is an output and shares memory with {}",
                named(output),
                named(other)
            )));
        }
        let further = |reach: &Reach| reach.is_none_or(|(end, _)| span.end > end);
        if further(&any) {
            any = Some((span.end, index));
        }
        if is_written(index) && further(&written) {
            written = Some((span.end, index));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{FLUX_F32, FLUX_HOST, Given, apart, flux_argument};

    /// A vector of so many f32 at an address.
    fn at(address: usize, cols: u64) -> Given {
        let data = std::ptr::without_provenance_mut(address);
        let (dtype, device) = (FLUX_F32, FLUX_HOST);
        Given(flux_argument { data, rows: 1, cols, dtype, device, value: 0.0, reserved: 0 })
    }

    /// Whether arguments, with whether they are written, may be passed together.
    fn pass(arguments: &[(Given, bool)]) -> bool {
        let given: Vec<_> = arguments.iter().map(|(given, _)| *given).collect();
        apart(&given, |index| arguments[index].1, |index| index.to_string()).is_ok()
    }

    #[test]
    fn only_inputs_may_share_memory() {
        assert!(pass(&[(at(0x100, 8), false), (at(0x100, 8), false), (at(0x120, 8), true)]));
        assert!(!pass(&[(at(0x100, 9), false), (at(0x120, 8), true)]));
        assert!(!pass(&[(at(0x120, 8), true), (at(0x100, 9), false)]));
        assert!(!pass(&[(at(0x100, 64), true), (at(0x108, 1), false)]));
        assert!(!pass(&[(at(0x100, 64), false), (at(0x104, 1), false), (at(0x108, 1), true)]));
        assert!(!pass(&[(at(0x100, 8), true), (at(0x100, 8), true)]));
        assert!(pass(&[(at(0x100, 0), true), (at(0x100, 8), true)]));
    }

    /// Every placement of three vectors on a short line, against what is meant.
    #[test]
    fn sharing_is_found_wherever_it_is() {
        let overlap = |a: (usize, u64), b: (usize, u64)| {
            a.1 > 0 && b.1 > 0 && a.0 < b.0 + b.1 as usize && b.0 < a.0 + a.1 as usize
        };
        let places: Vec<_> = (0..4).flat_map(|start| (0..4).map(move |len| (start, len))).collect();
        for &a in &places {
            for &b in &places {
                for &c in &places {
                    for written in 0..8_u32 {
                        let is = |index: u32| written >> index & 1 == 1;
                        let made = |(start, len): (usize, u64)| at(0x1000 + 4 * start, len);
                        let all = [(made(a), is(0)), (made(b), is(1)), (made(c), is(2))];
                        let shares = overlap(a, b) && (is(0) || is(1))
                            || overlap(a, c) && (is(0) || is(2))
                            || overlap(b, c) && (is(1) || is(2));
                        assert_eq!(pass(&all), !shares, "{a:?} {b:?} {c:?} {written:03b}");
                    }
                }
            }
        }
    }
}
