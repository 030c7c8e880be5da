//! One launch of a kernel.

use crate::error::Error;
use crate::module::Function;
use crate::stream::Stream;
use crate::tensor_map::TensorMap;
use cudarc::driver::sys;
use std::ffi::c_void;

/// The most bytes of all parameters together (PTX ISA, "Kernel function parameters").
pub const PARAMETER_BYTES: u64 = 32_764;

/// Whether the CTAs of a grid wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Residency {
    /// They do not: they may run one after another.
    Independent,
    /// They do: the driver starts all of them together, or refuses the launch.
    Cooperative,
}

/// A launch: the kernel's parameters are its tensor maps, one parameter each, and then all words
/// in one parameter.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub function: &'a Function,
    /// CTAs; none is no launch.
    pub ctas: u32,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA, in bytes.
    pub shared_bytes: u32,
    /// Whether the CTAs wait for each other.
    pub residency: Residency,
    /// Tensor maps.
    pub maps: &'a [TensorMap],
    /// Words.
    pub words: &'a [u64],
}

impl Launch<'_> {
    /// Enqueues the kernel on `stream`. All parameters are copied before this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Parameters`] where the function takes others; [`Error::OutOfRange`];
    /// [`Error::OtherDevice`]; [`Error::Driver`], which for a cooperative grid may be
    /// `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`.
    ///
    /// # Safety
    ///
    /// The kernel means what its parameters say: each address among the words, and each matrix
    /// behind a map, is memory of the extent that the kernel uses, and stays valid until the
    /// kernel has finished; nothing else uses it meanwhile but as the kernel's protocol allows.
    pub unsafe fn enqueue(&self, stream: &Stream) -> Result<(), Error> {
        self.require()?;
        stream.device().require_same("the function", self.function.device())?;
        if self.ctas == 0 {
            return Ok(());
        }
        stream.device().bind()?;
        // The driver reads each parameter through its pointer, and writes none.
        let mut parameters: Vec<*mut c_void> =
            self.maps.iter().map(|map| std::ptr::from_ref(map).cast_mut().cast()).collect();
        if !self.words.is_empty() {
            parameters.push(self.words.as_ptr().cast_mut().cast());
        }
        let mut attributes = [sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                cooperative: match self.residency {
                    Residency::Independent => 0,
                    Residency::Cooperative => 1,
                },
            },
        }];
        let config = sys::CUlaunchConfig {
            gridDimX: self.ctas,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            hStream: stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let (function, none) = (self.function.raw(), std::ptr::null_mut());
        // SAFETY: the configuration, its attributes and the parameters outlive the call; number
        // and sizes of the parameters were checked where the driver can tell, and what they mean
        // is this function's contract.
        let result =
            unsafe { sys::cuLaunchKernelEx(&config, function, parameters.as_mut_ptr(), none) };
        stream.device().check("cuLaunchKernelEx", result)
    }

    fn require(&self) -> Result<(), Error> {
        let given = parameters(self.maps.len(), self.words.len());
        require_parameters(self.function.name(), self.function.parameters(), given)?;
        let (high, found) = (self.function.shared_bytes().into(), self.shared_bytes.into());
        if found > high {
            let what = "dynamic shared memory of the launch, in bytes";
            return Err(Error::OutOfRange { what, low: 0, high, found });
        }
        let (high, found) = (u64::from(self.function.most_threads()), u64::from(self.threads));
        if !(1..=high).contains(&found) {
            return Err(Error::OutOfRange { what: "threads of a CTA", low: 1, high, found });
        }
        Ok(())
    }
}

/// Bytes of each parameter of a launch.
fn parameters(maps: usize, words: usize) -> Vec<u64> {
    let mut sizes = vec![TensorMap::BYTES; maps];
    if words > 0 {
        sizes.push(8 * words as u64);
    }
    sizes
}

fn require_parameters(name: &str, need: Option<&[u64]>, found: Vec<u64>) -> Result<(), Error> {
    let total: u64 = found.iter().sum();
    if total > PARAMETER_BYTES {
        let what = "the parameters of a launch, in bytes";
        return Err(Error::OutOfRange { what, low: 0, high: PARAMETER_BYTES, found: total });
    }
    match need {
        Some(need) if need != found => {
            Err(Error::Parameters { function: name.into(), need: need.to_vec(), found })
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{parameters, require_parameters};
    use crate::Error;

    #[test]
    fn words_are_one_parameter_behind_the_maps() {
        assert_eq!(parameters(2, 3), [128, 128, 24]);
        assert_eq!(parameters(0, 1), [8]);
        assert_eq!(parameters(0, 0), []);
    }

    #[test]
    fn other_parameters_than_the_function_has_are_refused() {
        let found = || parameters(1, 3);
        assert_eq!(require_parameters("k", Some(&[128, 24]), found()), Ok(()));
        assert_eq!(require_parameters("k", None, found()), Ok(()));
        let error = require_parameters("k", Some(&[128, 32]), found()).unwrap_err();
        let said = "function `k` takes parameters of [128, 32] bytes, the launch gives [128, 24]";
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn too_many_parameters_are_refused() {
        let error = require_parameters("k", None, parameters(300, 1)).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { found: 38_408, .. }));
    }
}
