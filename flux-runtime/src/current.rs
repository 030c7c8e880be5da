//! What a caller's thread is set to.

use crate::driver::probe;
use crate::error::Error;
use cudarc::driver::sys;

/// The context that is current on this thread. It is made current again when the value is dropped: calls
/// of this crate make that of their device current, and a caller may have plans with another.
#[derive(Debug)]
pub struct CurrentContext {
    context: sys::CUcontext,
}

impl CurrentContext {
    /// Remembers it; also that there is none.
    ///
    /// # Errors
    ///
    /// Those of [`probe`]; [`Error::NoContext`] where the driver does not say.
    pub fn keep() -> Result<CurrentContext, Error> {
        probe()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: there is a driver, and the pointer is to a live handle.
        match unsafe { sys::cuCtxGetCurrent(&mut context) } {
            sys::CUresult::CUDA_SUCCESS => Ok(CurrentContext { context }),
            _ => Err(Error::NoContext),
        }
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        // SAFETY: whoever made it current on this thread keeps it meanwhile; none is null.
        let _ = unsafe { sys::cuCtxSetCurrent(self.context) };
    }
}
