//! Code on a device.

use crate::device::Device;
use crate::driver::{name_of, parameter_sizes};
use crate::error::Error;
use cudarc::driver::sys::{self, CUfunction_attribute, CUjit_option, CUresult};
use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::sync::Arc;

/// Bytes of the compiler's log that are kept.
const LOG_BYTES: usize = 16 << 10;

/// PTX, compiled and loaded by the driver.
pub struct Module {
    device: Arc<Device>,
    raw: sys::CUmodule,
}

// SAFETY: a module handle may be used by any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Compiles and loads `ptx`. Load all modules before the first launch that waits for a peer:
    /// loading may wait for the device.
    ///
    /// # Errors
    ///
    /// [`Error::Jit`] with the compiler's log, [`Error::Driver`].
    pub fn load(device: &Arc<Device>, ptx: &str) -> Result<Arc<Module>, Error> {
        let Ok(text) = CString::new(ptx) else {
            let log = "it contains a zero byte".into();
            return Err(Error::Jit { name: "invalid text".into(), log });
        };
        device.bind()?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // A value that is a number stands in the place of the pointer.
        let mut values = [log.as_mut_ptr().cast(), LOG_BYTES as *mut c_void];
        let mut raw = std::ptr::null_mut();
        // SAFETY: the text ends with a zero; the two options have two values, of which the first
        // points to as many bytes as the second says; `drop` unloads the module.
        let result = unsafe {
            sys::cuModuleLoadDataEx(
                &mut raw,
                text.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let log = until_zero(&log);
        match result {
            CUresult::CUDA_SUCCESS => Ok(Arc::new(Module { device: device.clone(), raw })),
            other if log.is_empty() => {
                device.check("cuModuleLoadDataEx", other)?;
                Err(Error::Jit { name: name_of(other), log })
            }
            other => Err(Error::Jit { name: name_of(other), log }),
        }
    }

    /// The device it is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The kernel called `name`, for launches with up to `shared_bytes` of dynamic shared memory.
    ///
    /// # Errors
    ///
    /// [`Error::NoFunction`]; [`Error::OutOfRange`] where the device has less shared memory;
    /// [`Error::Driver`].
    pub fn function(self: &Arc<Self>, name: &str, shared_bytes: u32) -> Result<Function, Error> {
        let high = u64::from(self.device.properties().shared_bytes);
        let found = u64::from(shared_bytes);
        if found > high {
            let what = "dynamic shared memory of a CTA, in bytes";
            return Err(Error::OutOfRange { what, low: 0, high, found });
        }
        let missing = || Error::NoFunction { name: name.into() };
        let text = CString::new(name).map_err(|_| missing())?;
        self.device.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is loaded, since the value is borrowed; the text ends with a zero.
        match unsafe { sys::cuModuleGetFunction(&mut raw, self.raw, text.as_ptr()) } {
            CUresult::CUDA_ERROR_NOT_FOUND => return Err(missing()),
            result => self.device.check("cuModuleGetFunction", result)?,
        }
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to a loaded module.
        let result = unsafe { sys::cuFuncSetAttribute(raw, attribute, shared_bytes as c_int) };
        self.device.check("cuFuncSetAttribute", result)?;
        // SAFETY: as above.
        let parameters = unsafe { parameter_sizes(raw) }.map(Into::into);
        let module = self.clone();
        let (name, most_threads) = (name.into(), 0);
        let function = Function { module, raw, name, shared_bytes, most_threads, parameters };
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        Ok(Function { most_threads: function.attribute(attribute)?, ..function })
    }
}

/// The text in front of the first zero.
fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the module was loaded by `load` and is unloaded once; its functions hold it.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("device", &self.device.ordinal())
            .field("raw", &self.raw)
            .finish()
    }
}

/// A kernel of a module.
#[derive(Clone)]
pub struct Function {
    module: Arc<Module>,
    raw: sys::CUfunction,
    name: Arc<str>,
    shared_bytes: u32,
    most_threads: u32,
    parameters: Option<Arc<[u64]>>,
}

// SAFETY: a function handle may be used by any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device it is on.
    pub fn device(&self) -> &Arc<Device> {
        self.module.device()
    }

    /// The most dynamic shared memory that a launch may ask for, in bytes.
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Bytes of each parameter, where the driver can tell.
    pub fn parameters(&self) -> Option<&[u64]> {
        self.parameters.as_deref()
    }

    pub(crate) fn raw(&self) -> sys::CUfunction {
        self.raw
    }

    /// Registers of a thread.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn registers(&self) -> Result<u32, Error> {
        self.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    /// Bytes of local memory of a thread: spilled registers and arrays.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn local_bytes(&self) -> Result<u32, Error> {
        self.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
    }

    /// The most threads of a CTA.
    pub fn most_threads(&self) -> u32 {
        self.most_threads
    }

    /// CTAs that fit on one SM.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn ctas_per_sm(&self, threads: u32, shared_bytes: u32) -> Result<u32, Error> {
        self.device().bind()?;
        let mut ctas: c_int = 0;
        let (threads, shared) = (threads as c_int, shared_bytes as usize);
        // SAFETY: the pointer is to a live integer; the module is held.
        let result = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut ctas, self.raw, threads, shared)
        };
        self.device().check("cuOccupancyMaxActiveBlocksPerMultiprocessor", result)?;
        Ok(ctas.unsigned_abs())
    }

    /// Checks that `grids` grids of `ctas` CTAs are resident at once on an otherwise idle device,
    /// as they must be when they wait for each other.
    ///
    /// # Errors
    ///
    /// [`Error::NotResident`], [`Error::Driver`].
    pub fn require_resident(
        &self,
        grids: u32,
        ctas: u32,
        threads: u32,
        shared_bytes: u32,
    ) -> Result<(), Error> {
        let per_sm = self.ctas_per_sm(threads, shared_bytes)?;
        let sms = self.device().properties().sms;
        let fit = per_sm.saturating_mul(sms);
        if u64::from(grids) * u64::from(ctas) <= u64::from(fit) {
            return Ok(());
        }
        let function = self.name.to_string();
        Err(Error::NotResident { function, grids, ctas, fit, per_sm, sms, threads, shared_bytes })
    }

    fn attribute(&self, which: CUfunction_attribute) -> Result<u32, Error> {
        self.device().bind()?;
        let mut value: c_int = 0;
        // SAFETY: the pointer is to a live integer; the module is held.
        let result = unsafe { sys::cuFuncGetAttribute(&mut value, which, self.raw) };
        self.device().check("cuFuncGetAttribute", result)?;
        Ok(value.unsigned_abs())
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("name", &self.name)
            .field("module", &self.module)
            .field("shared_bytes", &self.shared_bytes)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::until_zero;

    #[test]
    fn a_log_ends_at_its_zero() {
        assert_eq!(until_zero(b"line 1: no\n\0garbage"), "line 1: no");
        assert_eq!(until_zero(b"full"), "full");
        assert_eq!(until_zero(b"\0"), "");
    }
}
