//! DLPack tensors as arguments.

use crate::argument::{FLUX_HOST, flux_argument};
use crate::bundle::dtype;
use crate::status::{Failure, guarded, put};
use flux_dsl::ElementKind;
use flux_dsl::runtime::{DlForm, DlMatrix, DlPlace, DlTensor};
use std::ffi::c_void;

/// Which struct a number names.
pub(crate) fn form(versioned: i32) -> Result<DlForm, Failure> {
    match versioned {
        0 => Ok(DlForm::Legacy),
        1 => Ok(DlForm::Versioned),
        found => Err(Failure::invalid(format!("expected 0 or 1 in `versioned`, found {found}"))),
    }
}

/// Describes a DLPack tensor as an argument: its memory, no copy. It stays the caller's, who keeps it until
/// launches with it have ended. managed is a DLManagedTensorVersioned where versioned is 1, a
/// DLManagedTensor where it is 0; written is 1 for an output, which a tensor that must not be written
/// cannot be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_argument_of_dlpack(
    managed: *mut c_void,
    versioned: i32,
    written: i32,
    argument: *mut flux_argument,
) -> i32 {
    guarded(|| {
        // SAFETY: `flux.h` asks for such a tensor; it is not given back here, and so stays the caller's.
        let tensor = unsafe { DlTensor::borrow_raw(managed, form(versioned)?) }?;
        let tensor: &DlTensor = &tensor;
        let DlMatrix { element, rows, cols, address, place, read_only } = tensor.matrix()?;
        if written != 0 && read_only {
            return Err(Failure::invalid("the tensor must not be written, and is to be an output"));
        }
        let element = match element {
            flux_dsl::runtime::ElementKind::Bf16 => ElementKind::Bf16,
            flux_dsl::runtime::ElementKind::F16 => ElementKind::F16,
            flux_dsl::runtime::ElementKind::F32 => ElementKind::F32,
            _ => return Err(Failure::invalid("the tensor has elements that kernels do not take")),
        };
        let found = flux_argument {
            data: std::ptr::with_exposed_provenance_mut(address as usize),
            rows: rows as u64,
            cols: cols as u64,
            dtype: dtype(element),
            device: match place {
                DlPlace::Host => FLUX_HOST,
                DlPlace::Device(ordinal) => ordinal as i32,
            },
            value: 0.0,
            reserved: 0,
        };
        // SAFETY: it is null or the caller's, to be written.
        unsafe { put(argument, found, "argument") }
    })
}
