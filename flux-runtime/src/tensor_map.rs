//! Tensor maps: how TMA sees a matrix (PTX ISA, "Tensors").

use crate::device::Device;
use crate::error::Error;
use bytemuck::Zeroable;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::fmt;

/// Formats of a matrix's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementKind {
    /// 1 sign, 8 exponent, 7 fraction bits.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl ElementKind {
    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            ElementKind::Bf16 | ElementKind::F16 => 2,
            ElementKind::F32 => 4,
        }
    }

    fn code(self) -> sys::CUtensorMapDataType {
        match self {
            ElementKind::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            ElementKind::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            ElementKind::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        }
    }
}

/// A row-major matrix in global memory and the boxes that are moved at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tensor2d {
    /// Format of the elements.
    pub element: ElementKind,
    /// Address of the first element.
    pub address: u64,
    /// Rows; reads beyond them give zeros, writes beyond them do nothing.
    pub rows: u64,
    /// Columns; likewise.
    pub cols: u64,
    /// Bytes from one row to the next.
    pub pitch_bytes: u64,
    /// Rows of a box.
    pub box_rows: u32,
    /// Columns of a box; one row of it is at most 128 bytes, the period of the swizzle.
    pub box_cols: u32,
}

/// Bytes of a line of the L2 cache.
const LINE_BYTES: u64 = 128;

/// Bytes of a box's row: what the 128-byte swizzle repeats after.
const SWIZZLE_BYTES: u64 = 128;

impl Tensor2d {
    /// Checks what the hardware demands (CUDA driver API, `cuTensorMapEncodeTiled`).
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`], [`Error::OutOfRange`]; both name the quantity.
    pub fn require(&self) -> Result<(), Error> {
        let multiple = |what, multiple, found: u64| match found.is_multiple_of(multiple) {
            true => Ok(()),
            false => Err(Error::Misaligned { what, multiple, found }),
        };
        let range = |what, low, high, found| match (low..=high).contains(&found) {
            true => Ok(()),
            false => Err(Error::OutOfRange { what, low, high, found }),
        };
        let element = u64::from(self.element.bytes());
        range("the address of a matrix moved by TMA", 1, u64::MAX, self.address)?;
        multiple("the address of a matrix moved by TMA", 16, self.address)?;
        range("rows of a matrix moved by TMA", 1, 1 << 32, self.rows)?;
        range("columns of a matrix moved by TMA", 1, 1 << 32, self.cols)?;
        multiple("the pitch of a matrix moved by TMA, in bytes", 16, self.pitch_bytes)?;
        let (what, dense) = ("the pitch of a matrix moved by TMA, in bytes", self.cols * element);
        range(what, dense, (1 << 40) - 1, self.pitch_bytes)?;
        range("rows of a box moved by TMA", 1, 256, self.box_rows.into())?;
        let box_bytes = u64::from(self.box_cols) * element;
        range("a row of a box moved by TMA, in bytes", 16, SWIZZLE_BYTES, box_bytes)?;
        multiple("a row of a box moved by TMA, in bytes", 16, box_bytes)
    }
}

/// A tensor map, to be passed to a kernel by value: 128 bytes, aligned to 64 and more.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct TensorMap(sys::CUtensorMap);

impl TensorMap {
    /// Bytes of a tensor map.
    pub const BYTES: u64 = size_of::<TensorMap>() as u64;

    /// Encodes a matrix: 128-byte swizzle, zeros outside; 256 bytes at a time are fetched into L2, or
    /// 128 where rows do not begin at multiples of 128 bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Tensor2d::require`]; [`Error::Driver`].
    pub fn encode_2d(device: &Device, tensor: &Tensor2d) -> Result<TensorMap, Error> {
        tensor.require()?;
        device.bind()?;
        let mut map = sys::CUtensorMap { opaque: Zeroable::zeroed() };
        // The innermost dimension comes first, and its stride is implied.
        let dims = [tensor.cols, tensor.rows];
        let strides = [tensor.pitch_bytes];
        let boxes = [tensor.box_cols, tensor.box_rows];
        let steps = [1, 1];
        // A row of 128 bytes that lies across two lines of the cache asks for both, and would ask for
        // twice as much again.
        let promotion = if tensor.pitch_bytes.is_multiple_of(LINE_BYTES) {
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B
        } else {
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B
        };
        // SAFETY: the map is alive and aligned, and each array has the length that the rank of 2
        // asks for. The address is only encoded, not read.
        let result = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                tensor.element.code(),
                2,
                tensor.address as *mut c_void,
                dims.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                promotion,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        device.check("cuTensorMapEncodeTiled", result)?;
        Ok(TensorMap(map))
    }
}

impl fmt::Debug for TensorMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TensorMap").field(&self.0.opaque).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{ElementKind, Tensor2d, TensorMap};
    use crate::Error;

    const GOOD: Tensor2d = Tensor2d {
        element: ElementKind::Bf16,
        address: 0x7f00_0000_0000,
        rows: 200,
        cols: 72,
        pitch_bytes: 144,
        box_rows: 128,
        box_cols: 64,
    };

    #[test]
    fn a_map_has_the_size_and_alignment_of_its_parameter() {
        assert_eq!(TensorMap::BYTES, 128);
        assert!(align_of::<TensorMap>().is_multiple_of(64));
    }

    #[test]
    fn what_the_hardware_takes_is_taken() {
        assert_eq!(GOOD.require(), Ok(()));
        assert_eq!(Tensor2d { rows: 1, ..GOOD }.require(), Ok(()));
        let wide = Tensor2d { element: ElementKind::F32, box_cols: 32, pitch_bytes: 288, ..GOOD };
        assert_eq!(wide.require(), Ok(()));
    }

    #[test]
    fn each_demand_is_named() {
        let cases = [
            (Tensor2d { address: 0, ..GOOD }, "address of a matrix"),
            (Tensor2d { address: GOOD.address + 8, ..GOOD }, "multiple of 16"),
            (
                Tensor2d { pitch_bytes: 146, ..GOOD },
                "pitch of a matrix moved by TMA, in bytes must",
            ),
            (Tensor2d { pitch_bytes: 128, ..GOOD }, "144..=1099511627775, it is 128"),
            (Tensor2d { pitch_bytes: 1 << 40, ..GOOD }, "pitch of a matrix"),
            (Tensor2d { rows: 0, ..GOOD }, "rows of a matrix"),
            (Tensor2d { cols: 0, ..GOOD }, "columns of a matrix"),
            (Tensor2d { box_rows: 257, ..GOOD }, "rows of a box"),
            (Tensor2d { box_cols: 72, ..GOOD }, "row of a box moved by TMA, in bytes must be in"),
            (Tensor2d { box_cols: 12, ..GOOD }, "multiple of 16, it is 24"),
        ];
        for (tensor, said) in cases {
            let error = tensor.require().unwrap_err();
            assert!(error.to_string().contains(said), "{tensor:?}: {error}");
        }
        assert!(matches!(
            Tensor2d { address: GOOD.address + 8, ..GOOD }.require(),
            Err(Error::Misaligned { multiple: 16, .. })
        ));
    }
}
