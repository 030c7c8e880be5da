//! Bundles, and what they say of their kernels.

use crate::argument::{FLUX_BF16, FLUX_F16, FLUX_F32, FLUX_SCALAR};
use crate::status::{Failure, guarded, put, require, slice, text};
use crate::table::{self, Object, flux_handle};
use flux_dsl::{Bundle, Definition, Distribution, ElementKind, Param, ParamType};
use std::ffi::{CString, c_char};
use std::sync::Arc;

/// A bundle, with its names as C has text.
#[derive(Debug)]
pub(crate) struct OpenBundle {
    definition: &'static Definition,
    name: CString,
    schedules: Vec<CString>,
    parameters: Vec<(CString, Param)>,
}

/// Each rank has its own tensor.
pub const FLUX_GLOBAL: i32 = 0;
/// Each rank passes its shard of the rows, and all of them are read.
pub const FLUX_GATHERED: i32 = 1;
/// Each rank passes its shard of the rows.
pub const FLUX_SHARDED: i32 = 2;
/// Every rank adds to all rows, and gets its shard of the sum.
pub const FLUX_SCATTERED: i32 = 3;
/// Every rank adds to all rows, and gets the sum.
pub const FLUX_REDUCED: i32 = 4;
/// Each rank passes all rows of its shard of the columns.
pub const FLUX_EXCHANGED: i32 = 5;

/// A parameter of a kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct flux_parameter {
    /// The name that it has in the source; valid as long as the bundle is open.
    pub name: *const c_char,
    /// FLUX_BF16, FLUX_F16 or FLUX_F32; FLUX_SCALAR for a number.
    pub dtype: i32,
    /// FLUX_GLOBAL and so on: how the tensor lies over the ranks. 0 for a number.
    pub distribution: i32,
    /// 1 for an output.
    pub written: i32,
}

impl OpenBundle {
    fn of(bundle: Bundle) -> Result<OpenBundle, Failure> {
        let definition = bundle.definition();
        let c = |text: &str| {
            CString::new(text)
                .map_err(|_| Failure::invalid("a name in the bundle has a zero in it"))
        };
        let schedules = (definition.schedules)();
        let schedules = schedules.iter().map(|schedule| c(&schedule.to_string()));
        let kernel = definition.kernel()?;
        let parameters = kernel.params.values().map(|param| Ok((c(&param.name)?, param.clone())));
        Ok(OpenBundle {
            definition,
            name: c(definition.name)?,
            schedules: schedules.collect::<Result<_, _>>()?,
            parameters: parameters.collect::<Result<_, Failure>>()?,
        })
    }

    pub(crate) fn definition(&self) -> &'static Definition {
        self.definition
    }
}

/// The number of an element type.
pub(crate) fn dtype(element: ElementKind) -> i32 {
    match element {
        ElementKind::Bf16 => FLUX_BF16,
        ElementKind::F16 => FLUX_F16,
        ElementKind::F32 => FLUX_F32,
    }
}

fn distribution(distribution: Distribution) -> i32 {
    match distribution {
        Distribution::Global => FLUX_GLOBAL,
        Distribution::Gathered => FLUX_GATHERED,
        Distribution::Sharded => FLUX_SHARDED,
        Distribution::Scattered => FLUX_SCATTERED,
        Distribution::Reduced => FLUX_REDUCED,
        Distribution::Exchanged => FLUX_EXCHANGED,
    }
}

/// Opens a file that `flux build --bundle` wrote.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_bundle_open(path: *const c_char, bundle: *mut flux_handle) -> i32 {
    guarded(|| {
        // SAFETY: `flux.h` asks for text, and for somewhere to write.
        let path = unsafe { text(path, "path") }?;
        // SAFETY: as above.
        unsafe { require(bundle, "bundle") }?;
        let object = Object::Bundle(Arc::new(OpenBundle::of(Bundle::open(path)?)?));
        // SAFETY: as above.
        unsafe { put(bundle, table::open(object), "bundle") }
    })
}

/// The same from memory, which is not needed afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_bundle_read(
    bytes: *const u8,
    count: usize,
    bundle: *mut flux_handle,
) -> i32 {
    guarded(|| {
        // SAFETY: `flux.h` asks for so many bytes, and for somewhere to write.
        let bytes = unsafe { slice(bytes, count, "bytes") }?;
        // SAFETY: as above.
        unsafe { require(bundle, "bundle") }?;
        let object = Object::Bundle(Arc::new(OpenBundle::of(Bundle::decode(bytes)?)?));
        // SAFETY: as above.
        unsafe { put(bundle, table::open(object), "bundle") }
    })
}

/// The name of the kernel of a bundle, valid as long as that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_bundle_name(bundle: flux_handle, name: *mut *const c_char) -> i32 {
    guarded(|| {
        let bundle = table::bundle(bundle)?;
        // SAFETY: it is null or the caller's, to be written.
        unsafe { put(name, bundle.name.as_ptr(), "name") }
    })
}

/// The number of parameters: of arguments that a rank passes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_bundle_parameters(bundle: flux_handle, count: *mut usize) -> i32 {
    guarded(|| {
        let bundle = table::bundle(bundle)?;
        // SAFETY: it is null or the caller's, to be written.
        unsafe { put(count, bundle.parameters.len(), "count") }
    })
}

/// The parameter numbered index, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_bundle_parameter(
    bundle: flux_handle,
    index: usize,
    parameter: *mut flux_parameter,
) -> i32 {
    guarded(|| {
        let bundle = table::bundle(bundle)?;
        let (name, param) = entry(&bundle.parameters, index, "parameters")?;
        let name = name.as_ptr();
        let found = match param.ty {
            ParamType::Scalar => {
                flux_parameter { name, dtype: FLUX_SCALAR, distribution: FLUX_GLOBAL, written: 0 }
            }
            ParamType::Tensor { distribution: found, element, written } => flux_parameter {
                name,
                dtype: dtype(element),
                distribution: distribution(found),
                written: written.into(),
            },
        };
        // SAFETY: it is null or the caller's, to be written.
        unsafe { put(parameter, found, "parameter") }
    })
}

/// The number of schedules that a bundle has machine code for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_bundle_schedules(bundle: flux_handle, count: *mut usize) -> i32 {
    guarded(|| {
        let bundle = table::bundle(bundle)?;
        // SAFETY: it is null or the caller's, to be written.
        unsafe { put(count, bundle.schedules.len(), "count") }
    })
}

/// The schedule numbered index, from 0, in words that flux_kernel_load takes; valid as long as the
/// bundle is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_bundle_schedule(
    bundle: flux_handle,
    index: usize,
    schedule: *mut *const c_char,
) -> i32 {
    guarded(|| {
        let bundle = table::bundle(bundle)?;
        let found = entry(&bundle.schedules, index, "schedules")?;
        // SAFETY: it is null or the caller's, to be written.
        unsafe { put(schedule, found.as_ptr(), "schedule") }
    })
}

fn entry<'t, T>(entries: &'t [T], index: usize, what: &str) -> Result<&'t T, Failure> {
    let none = || {
        Failure::invalid(format!("the kernel has {} {what}, found index {index}", entries.len()))
    };
    entries.get(index).ok_or_else(none)
}
