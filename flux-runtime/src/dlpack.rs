//! Matrices shared with other libraries by DLPack (`dlpack.h`, ABI 1): PyTorch, JAX, NumPy, candle.

use crate::device::Device;
use crate::error::Error;
use crate::host_slice::HostSlice;
use crate::memory::{DeviceBuffer, Owner};
use crate::tensor_map::ElementKind;
use bytemuck::Pod;
use dlpark::DlpackFlags;
use dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
    DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION, DLPackVersion, DLTensor,
};
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// The two structs that libraries hand each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DlForm {
    /// `DLManagedTensor`: in Python a capsule named `dltensor`.
    Legacy,
    /// `DLManagedTensorVersioned`: a capsule named `dltensor_versioned`.
    Versioned,
}

/// Where numbers lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DlPlace {
    /// In memory of the host, pinned or not.
    Host,
    /// In memory of the device of this number.
    Device(u32),
}

/// A row-major matrix without gaps between rows. A vector is a matrix of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DlMatrix {
    /// Format of the elements.
    pub element: ElementKind,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Address of the first element.
    pub address: u64,
    /// Where it lies.
    pub place: DlPlace,
    /// Whether whoever gave it forbids to write.
    pub read_only: bool,
}

impl DlMatrix {
    /// Number of elements, where they can be counted.
    fn elements(&self) -> Result<usize, Error> {
        let elements = self.rows.checked_mul(self.cols);
        let bytes = |elements: &usize| elements.checked_mul(self.element.bytes() as usize);
        let countable = elements.filter(|elements| bytes(elements).is_some());
        countable
            .ok_or_else(|| wrong(format!("{} x {} elements are too many", self.rows, self.cols)))
    }
}

fn wrong(problem: impl Into<String>) -> Error {
    Error::DlPack { problem: problem.into() }
}

/// A tensor that is owned by way of DLPack: dropping it tells whoever made it that it is not needed
/// any more.
pub struct DlTensor {
    raw: Raw,
}

enum Raw {
    Legacy(NonNull<DLManagedTensor>),
    Versioned(NonNull<DLManagedTensorVersioned>),
}

// SAFETY: DLPack hands ownership from library to library, on whatever thread; who makes a tensor has
// to provide for a deleter that may be called on any.
unsafe impl Send for DlTensor {}
// SAFETY: a shared borrow reads the description alone.
unsafe impl Sync for DlTensor {}

/// What an exported tensor rests on. `managed` comes first, so one address is that of both.
#[repr(C)]
struct Exported<M> {
    managed: M,
    shape: [i64; 2],
    strides: [i64; 2],
    owner: Box<dyn Any + Send + Sync>,
}

impl DlTensor {
    /// Describes memory that lives as long as `owner` does, which is dropped when whoever has the
    /// tensor in the end is through with it, on whatever thread that happens.
    pub fn export(matrix: &DlMatrix, owner: Box<dyn Any + Send + Sync>, form: DlForm) -> DlTensor {
        let (shape, strides) = layout(matrix);
        let raw = match form {
            DlForm::Legacy => {
                let managed = DLManagedTensor {
                    dl_tensor: described(matrix),
                    manager_ctx: std::ptr::null_mut(),
                    deleter: Some(delete_legacy),
                };
                let exported = Box::leak(Box::new(Exported { managed, shape, strides, owner }));
                exported.managed.dl_tensor.shape = exported.shape.as_mut_ptr();
                exported.managed.dl_tensor.strides = exported.strides.as_mut_ptr();
                exported.managed.manager_ctx = std::ptr::from_mut(exported).cast();
                Raw::Legacy(NonNull::from(exported).cast())
            }
            DlForm::Versioned => {
                let mut flags = DlpackFlags::empty();
                flags.set(DlpackFlags::READ_ONLY, matrix.read_only);
                let managed = DLManagedTensorVersioned {
                    version: DLPackVersion {
                        major: DLPACK_MAJOR_VERSION,
                        minor: DLPACK_MINOR_VERSION,
                    },
                    manager_ctx: std::ptr::null_mut(),
                    deleter: Some(delete_versioned),
                    flags,
                    dl_tensor: described(matrix),
                };
                let exported = Box::leak(Box::new(Exported { managed, shape, strides, owner }));
                exported.managed.dl_tensor.shape = exported.shape.as_mut_ptr();
                exported.managed.dl_tensor.strides = exported.strides.as_mut_ptr();
                exported.managed.manager_ctx = std::ptr::from_mut(exported).cast();
                Raw::Versioned(NonNull::from(exported).cast())
            }
        };
        DlTensor { raw }
    }

    /// Takes over a tensor of another library: a `DLManagedTensor *` or a `DLManagedTensorVersioned *`,
    /// as `form` says.
    ///
    /// # Errors
    ///
    /// [`Error::DlPack`] for null, and for an ABI that is not version 1; the tensor has then been given
    /// back.
    ///
    /// # Safety
    ///
    /// `raw` is null or such a tensor, which nobody else owns from now on. Its memory is valid until
    /// its deleter has been called, and may be written unless its flags say otherwise.
    pub unsafe fn from_raw(raw: *mut c_void, form: DlForm) -> Result<DlTensor, Error> {
        let tensor = DlTensor::of(raw, form)?;
        // SAFETY: the caller says what it is.
        unsafe { tensor.require_version() }?;
        Ok(tensor)
    }

    /// Looks at a tensor that stays whose it is.
    ///
    /// # Errors
    ///
    /// [`Error::DlPack`], as of [`DlTensor::from_raw`].
    ///
    /// # Safety
    ///
    /// As of [`DlTensor::from_raw`], but that others may own it: it lives as long as the value does.
    pub unsafe fn borrow_raw(
        raw: *mut c_void,
        form: DlForm,
    ) -> Result<ManuallyDrop<DlTensor>, Error> {
        let tensor = ManuallyDrop::new(DlTensor::of(raw, form)?);
        // SAFETY: the caller says what it is.
        unsafe { tensor.require_version() }?;
        Ok(tensor)
    }

    fn of(raw: *mut c_void, form: DlForm) -> Result<DlTensor, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| wrong("expected a tensor, found null"))?;
        let raw = match form {
            DlForm::Legacy => Raw::Legacy(raw.cast()),
            DlForm::Versioned => Raw::Versioned(raw.cast()),
        };
        Ok(DlTensor { raw })
    }

    /// Refuses another ABI.
    ///
    /// # Safety
    /// It is such a tensor.
    unsafe fn require_version(&self) -> Result<(), Error> {
        let Raw::Versioned(managed) = self.raw else { return Ok(()) };
        // SAFETY: the version is at the same place in all of them.
        let DLPackVersion { major, minor } = unsafe { managed.as_ref() }.version;
        if major != DLPACK_MAJOR_VERSION {
            return Err(wrong(format!(
                "expected version {DLPACK_MAJOR_VERSION} of its ABI, found {major}.{minor}"
            )));
        }
        Ok(())
    }

    /// Which struct it is.
    pub fn form(&self) -> DlForm {
        match self.raw {
            Raw::Legacy(_) => DlForm::Legacy,
            Raw::Versioned(_) => DlForm::Versioned,
        }
    }

    /// Gives it away: a `DLManagedTensor *` or a `DLManagedTensorVersioned *`, as [`DlTensor::form`]
    /// says. Whoever takes it calls its deleter once.
    pub fn into_raw(self) -> *mut c_void {
        match ManuallyDrop::new(self).raw {
            Raw::Legacy(managed) => managed.as_ptr().cast(),
            Raw::Versioned(managed) => managed.as_ptr().cast(),
        }
    }

    /// The matrix that it describes.
    ///
    /// # Errors
    ///
    /// [`Error::DlPack`] for more than two dimensions, gaps between rows, element types that kernels do
    /// not take, and memory that is neither of the host nor of a CUDA device.
    pub fn matrix(&self) -> Result<DlMatrix, Error> {
        let (tensor, read_only) = match self.raw {
            // SAFETY: the tensor is owned, and so alive.
            Raw::Legacy(managed) => (&unsafe { managed.as_ref() }.dl_tensor, false),
            Raw::Versioned(managed) => {
                // SAFETY: as above.
                let managed = unsafe { managed.as_ref() };
                (&managed.dl_tensor, managed.flags.contains(DlpackFlags::READ_ONLY))
            }
        };
        // SAFETY: shape and strides belong to a tensor that is owned.
        unsafe { matrix_of(tensor, read_only) }
    }

    /// Its memory on `device`, held as long as the buffer lives.
    ///
    /// # Errors
    ///
    /// As [`DlTensor::matrix`]; [`Error::DlPack`] for memory that is not `device`'s.
    pub fn into_buffer(self, device: &Arc<Device>) -> Result<DeviceBuffer, Error> {
        let matrix = self.matrix()?;
        let elements = matrix.elements()?;
        if matrix.place != DlPlace::Device(device.ordinal()) {
            let (own, found) = (device.ordinal(), matrix.place);
            return Err(wrong(format!("expected memory of device {own}, found {found}")));
        }
        let bytes = elements as u64 * u64::from(matrix.element.bytes());
        let owner = Owner::Shared(Arc::new(self));
        Ok(DeviceBuffer::owned_by(Arc::clone(device), matrix.address, bytes, owner))
    }

    /// Its numbers in memory of the host, held as long as the slice lives.
    ///
    /// # Errors
    ///
    /// As [`DlTensor::matrix`]; [`Error::DlPack`] for memory of a device, and for elements of another
    /// size than `T`; [`Error::HostAddress`].
    pub fn into_host<T: Pod>(self) -> Result<HostSlice<T>, Error> {
        let matrix = self.matrix()?;
        let elements = matrix.elements()?;
        if matrix.place != DlPlace::Host {
            return Err(wrong(format!("expected memory of the host, found {}", matrix.place)));
        }
        if matrix.element.bytes() as usize != size_of::<T>() {
            let (expected, found) = (size_of::<T>(), matrix.element.bytes());
            return Err(wrong(format!("expected elements of {expected} bytes, found {found}")));
        }
        let data = std::ptr::with_exposed_provenance_mut::<T>(matrix.address as usize);
        // SAFETY: whoever made the tensor promised so many elements there until it is given back, which
        // the slice does when it is dropped; any bits are a value of `T`.
        let slice = unsafe { HostSlice::from_raw(data, elements) }?;
        Ok(slice.with_owner(Box::new(self)))
    }
}

impl Drop for DlTensor {
    fn drop(&mut self) {
        match self.raw {
            Raw::Legacy(managed) => {
                // SAFETY: it is owned, and given back once; no deleter means that nothing is to be
                // done.
                if let Some(delete) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: as above.
                    unsafe { delete(managed.as_ptr()) };
                }
            }
            Raw::Versioned(managed) => {
                // SAFETY: as above.
                if let Some(delete) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: as above.
                    unsafe { delete(managed.as_ptr()) };
                }
            }
        }
    }
}

/// A deleter of what [`DlTensor::export`] made.
unsafe extern "C" fn delete_legacy(managed: *mut DLManagedTensor) {
    if !managed.is_null() {
        // SAFETY: `export` leaked such a box at this address, which whoever owns it frees once.
        drop(unsafe { Box::from_raw(managed.cast::<Exported<DLManagedTensor>>()) });
    }
}

/// Likewise.
unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    if !managed.is_null() {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(managed.cast::<Exported<DLManagedTensorVersioned>>()) });
    }
}

fn layout(matrix: &DlMatrix) -> ([i64; 2], [i64; 2]) {
    ([matrix.rows as i64, matrix.cols as i64], [matrix.cols as i64, 1])
}

/// The description, but for shape and strides.
fn described(matrix: &DlMatrix) -> DLTensor {
    let (code, bits) = match matrix.element {
        ElementKind::Bf16 => (DLDataTypeCode::BFLOAT, 16),
        ElementKind::F16 => (DLDataTypeCode::FLOAT, 16),
        ElementKind::F32 => (DLDataTypeCode::FLOAT, 32),
    };
    let device = match matrix.place {
        DlPlace::Host => DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
        DlPlace::Device(ordinal) => {
            DLDevice { device_type: DLDeviceType::CUDA, device_id: ordinal as i32 }
        }
    };
    let is_empty = matrix.rows == 0 || matrix.cols == 0;
    let address = if is_empty { 0 } else { matrix.address as usize };
    DLTensor {
        data: std::ptr::with_exposed_provenance_mut(address),
        device,
        ndim: 2,
        dtype: DLDataType { code, bits, lanes: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

/// The matrix that a tensor is.
///
/// # Safety
/// Shape and strides point to as many numbers as there are dimensions; strides may be null.
unsafe fn matrix_of(tensor: &DLTensor, read_only: bool) -> Result<DlMatrix, Error> {
    let ndim = match tensor.ndim {
        1 | 2 if !tensor.shape.is_null() => tensor.ndim as usize,
        found => return Err(wrong(format!("expected 1 or 2 dimensions, found {found}"))),
    };
    // SAFETY: the caller says so.
    let shape = unsafe { std::slice::from_raw_parts(tensor.shape, ndim) };
    let extent = |extent: i64| {
        usize::try_from(extent).map_err(|_| wrong(format!("an extent of {extent} is none")))
    };
    let (rows, cols) = match *shape {
        [rows, cols] => (extent(rows)?, extent(cols)?),
        _ => (1, extent(shape[0])?),
    };
    if !tensor.strides.is_null() {
        // SAFETY: the caller says so.
        let strides = unsafe { std::slice::from_raw_parts(tensor.strides, ndim) };
        if !is_dense(rows, cols, strides) {
            return Err(wrong(format!(
                "expected rows of {cols} elements without gaps, found strides of {strides:?}: make it \
                 contiguous first"
            )));
        }
    }
    described_by(tensor, (rows, cols), read_only)
}

/// Whether elements follow each other, row by row. Strides of what there is one of do not matter.
fn is_dense(rows: usize, cols: usize, strides: &[i64]) -> bool {
    let steps = |extent: usize, found: i64, dense: usize| extent <= 1 || found == dense as i64;
    let follow = match *strides {
        [row, column] => steps(cols, column, 1) && steps(rows, row, cols),
        [column] => steps(cols, column, 1),
        _ => false,
    };
    follow || rows == 0 || cols == 0
}

/// Type, place and address of a tensor.
fn described_by(
    tensor: &DLTensor,
    (rows, cols): (usize, usize),
    read_only: bool,
) -> Result<DlMatrix, Error> {
    let DLDataType { code, bits, lanes } = tensor.dtype;
    let element = match (code, bits, lanes) {
        (DLDataTypeCode::BFLOAT, 16, 1) => ElementKind::Bf16,
        (DLDataTypeCode::FLOAT, 16, 1) => ElementKind::F16,
        (DLDataTypeCode::FLOAT, 32, 1) => ElementKind::F32,
        (DLDataTypeCode(code), ..) => {
            return Err(wrong(format!(
                "expected elements of bf16, f16 or f32, found type code {code} of {bits} bits and \
                 {lanes} lanes"
            )));
        }
    };
    let DLDevice { device_type, device_id } = tensor.device;
    let place = match (device_type, u32::try_from(device_id)) {
        (DLDeviceType::CPU | DLDeviceType::CUDAHOST, _) => DlPlace::Host,
        (DLDeviceType::CUDA, Ok(ordinal)) => DlPlace::Device(ordinal),
        (DLDeviceType(kind), _) => {
            return Err(wrong(format!(
                "expected memory of the host (1 or 3) or of CUDA (2), found device type {kind}, \
                 number {device_id}"
            )));
        }
    };
    let address = (tensor.data.expose_provenance() as u64).wrapping_add(tensor.byte_offset);
    let matrix = DlMatrix { element, rows, cols, address, place, read_only };
    if matrix.elements()? > 0 && tensor.data.is_null() {
        return Err(wrong("expected data, found null"));
    }
    Ok(matrix)
}

impl fmt::Display for DlPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DlPlace::Host => f.write_str("memory of the host"),
            DlPlace::Device(ordinal) => write!(f, "memory of device {ordinal}"),
        }
    }
}

impl fmt::Debug for DlTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlTensor")
            .field("form", &self.form())
            .field("matrix", &self.matrix())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{DlForm, DlMatrix, DlPlace, DlTensor};
    use crate::tensor_map::ElementKind;
    use dlpark::ffi::{
        DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned, DLTensor,
    };
    use std::sync::Arc;

    const FORMS: [DlForm; 2] = [DlForm::Legacy, DlForm::Versioned];

    fn matrix(numbers: &[f32], rows: usize, cols: usize) -> DlMatrix {
        let address = numbers.as_ptr().expose_provenance() as u64;
        let (element, place) = (ElementKind::F32, DlPlace::Host);
        DlMatrix { element, rows, cols, address, place, read_only: false }
    }

    /// What [`DlTensor::matrix`] says of a 2 x 3 matrix whose description was changed.
    fn changed(change: impl Fn(&mut DLTensor)) -> Result<DlMatrix, String> {
        let matrix = matrix(&[0.0; 6], 2, 3);
        let outcomes = FORMS.map(|form| {
            let tensor = DlTensor::export(&matrix, Box::new(()), form);
            let raw = tensor.into_raw();
            // SAFETY: it was given away, and is taken back below.
            unsafe {
                change(match form {
                    DlForm::Legacy => &mut (*raw.cast::<DLManagedTensor>()).dl_tensor,
                    DlForm::Versioned => &mut (*raw.cast::<DLManagedTensorVersioned>()).dl_tensor,
                });
            }
            // SAFETY: as above; the memory of a matrix that is only described is not reached.
            let tensor = unsafe { DlTensor::from_raw(raw, form) }.expect("a tensor");
            tensor.matrix().map_err(|error| error.to_string())
        });
        assert_eq!(outcomes[0], outcomes[1]);
        outcomes.into_iter().next().expect("two of them")
    }

    fn strides(tensor: &mut DLTensor, [row, column]: [i64; 2]) {
        // SAFETY: an exported tensor has two.
        unsafe { *tensor.strides.cast::<[i64; 2]>() = [row, column] };
    }

    #[test]
    fn what_is_exported_is_imported_and_its_owner_is_told_once() {
        let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        for form in FORMS {
            let owner = Arc::new(());
            let matrix = matrix(&numbers, 2, 3);
            let tensor = DlTensor::export(&matrix, Box::new(Arc::clone(&owner)), form);
            // SAFETY: it was just given away.
            let back = unsafe { DlTensor::from_raw(tensor.into_raw(), form) }.expect("a tensor");
            assert_eq!((back.form(), back.matrix()), (form, Ok(matrix)));
            let slice = back.into_host::<f32>().expect("numbers of the host");
            assert_eq!((&*slice, Arc::strong_count(&owner)), (&numbers[..], 2));
            drop(slice);
            assert_eq!(Arc::strong_count(&owner), 1);
        }
    }

    #[test]
    fn refused_tensors_are_given_back() {
        let owner = Arc::new(());
        let elsewhere = DlMatrix { place: DlPlace::Device(0), ..matrix(&[0.0; 6], 2, 3) };
        let tensor = DlTensor::export(&elsewhere, Box::new(Arc::clone(&owner)), DlForm::Legacy);
        let error = tensor.into_host::<f32>().unwrap_err().to_string();
        assert_eq!(error, "DLPack: expected memory of the host, found memory of device 0");
        let tensor = DlTensor::export(
            &matrix(&[0.0; 6], 2, 3),
            Box::new(Arc::clone(&owner)),
            DlForm::Versioned,
        );
        assert!(tensor.into_host::<u16>().unwrap_err().to_string().contains("of 2 bytes, found 4"));
        let tensor = DlTensor::export(&elsewhere, Box::new(Arc::clone(&owner)), DlForm::Versioned);
        let raw = tensor.into_raw();
        // SAFETY: it was given away, and is taken back below.
        unsafe { (*raw.cast::<DLManagedTensorVersioned>()).version.major = 2 };
        // SAFETY: as above.
        let error = unsafe { DlTensor::from_raw(raw, DlForm::Versioned) }.unwrap_err().to_string();
        assert!(error.contains("expected version 1 of its ABI, found 2."), "{error}");
        assert_eq!(Arc::strong_count(&owner), 1);
        // SAFETY: null is refused.
        unsafe { DlTensor::from_raw(std::ptr::null_mut(), DlForm::Legacy) }.expect_err("null");
    }

    #[test]
    fn strides_of_dense_matrices_and_vectors_are_read_and_gaps_refused() {
        assert!(changed(|tensor| tensor.strides = std::ptr::null_mut()).is_ok());
        let vector = changed(|tensor| tensor.ndim = 1);
        assert!(vector.expect_err("a stride of 3").contains("strides of [3]"));
        let vector = changed(|tensor| {
            tensor.ndim = 1;
            strides(tensor, [1, 1]);
        });
        assert_eq!(vector.map(|vector| (vector.rows, vector.cols)), Ok((1, 2)));
        for gaps in [[4, 1], [1, 2], [3, 2], [-3, 1]] {
            let error = changed(|tensor| strides(tensor, gaps)).expect_err("gaps");
            assert!(error.contains("make it contiguous first"), "{error}");
        }
        let of_one_column = changed(|tensor| {
            // SAFETY: an exported tensor has two extents.
            unsafe { *tensor.shape.add(1) = 1 };
            strides(tensor, [1, 77]);
        });
        assert!(of_one_column.is_ok());
    }

    #[test]
    fn what_kernels_do_not_take_is_named() {
        type Change = fn(&mut DLTensor);
        let changes: [(Change, &str); 7] = [
            (|tensor| tensor.ndim = 3, "expected 1 or 2 dimensions, found 3"),
            (|tensor| tensor.dtype.bits = 64, "found type code 2 of 64 bits"),
            (|tensor| tensor.dtype.code = DLDataTypeCode::INT, "found type code 0 of 32 bits"),
            (|tensor| tensor.dtype.lanes = 2, "2 lanes"),
            (|tensor| tensor.data = std::ptr::null_mut(), "expected data, found null"),
            (
                |tensor| {
                    tensor.device = DLDevice { device_type: DLDeviceType::ROCM, device_id: 1 };
                },
                "found device type 10, number 1",
            ),
            // SAFETY: an exported tensor has two extents.
            (|tensor| unsafe { *tensor.shape = -1 }, "an extent of -1 is none"),
        ];
        for (change, told) in changes {
            let error = changed(change).expect_err(told);
            assert!(error.contains(told), "{error}");
        }
    }
}
