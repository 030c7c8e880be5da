//! Tensors in memory of others, and memory of tensors for others.

use crate::error::Error;
use crate::tensor::{Element, OnDevice, OnHost, Storage, Tensor, kind};
use crate::world::{Backend, Rank};
use flux_runtime::{DeviceBuffer, DlForm, DlMatrix, DlPlace, DlTensor, HostSlice};

impl Rank {
    /// A tensor in memory of the caller's: `buffer` holds at least `rows · cols` elements, row by
    /// row without gaps. Work that writes it has to be ordered before this rank's stream.
    ///
    /// A kernel writes to any address. What it multiplies has to begin at a multiple of 16 bytes,
    /// as the tensor memory accelerator loads it; else the launch is refused.
    ///
    /// # Errors
    /// [`Error::DataLength`] where the buffer is too small; [`Error::Unsupported`] on the host, and
    /// for memory of another device.
    pub fn adopt<T: Element>(
        &self,
        rows: usize,
        cols: usize,
        buffer: DeviceBuffer,
    ) -> Result<Tensor<T>, Error> {
        let Backend::Gpu(gpu) = &self.shared.backend else {
            let problem = "device memory was given to a rank of the host".into();
            return Err(Error::Unsupported { kernel: "adopt".into(), problem });
        };
        let (own, theirs) = (gpu.device(self.index).ordinal(), buffer.device().ordinal());
        if own != theirs {
            let problem = format!("expected memory of device {own}, found some of device {theirs}");
            return Err(Error::Unsupported { kernel: "adopt".into(), problem });
        }
        let found = buffer.bytes() as usize / size_of::<T>();
        if rows.checked_mul(cols).is_none_or(|elements| found < elements) {
            return Err(Error::DataLength { rows, cols, found });
        }
        Ok(Tensor::new(rows, cols, Storage::Device(OnDevice::new(buffer, gpu, self.index))))
    }

    /// As [`Rank::adopt`], of a rank of the host: `data` holds `rows · cols` elements, row by row
    /// without gaps.
    ///
    /// ```
    /// use flux::prelude::*;
    /// use flux::runtime::HostSlice;
    ///
    /// let mut sums = [bf16::ZERO; 4];
    /// World::host(1)?.ranks().first().map_or(Ok(()), |rank| {
    ///     let a = rank.tensor(2, 1, &[bf16::ONE, bf16::from_f32(2.0)])?;
    ///     // SAFETY: the array is used through the tensor alone, which ends before it does.
    ///     let memory = unsafe { HostSlice::from_raw(sums.as_mut_ptr(), 4) }?;
    ///     let mut c = rank.adopt_host(2, 2, memory)?;
    ///     flux::kernels::gemm_bf16::load(rank)?.launch(&a, &a, &mut c)
    /// })?;
    /// assert_eq!(sums.map(bf16::to_f32), [1.0, 2.0, 2.0, 4.0]);
    /// # Ok::<(), flux::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DataLength`] where there are not so many elements; [`Error::Unsupported`] on a GPU.
    pub fn adopt_host<T: Element>(
        &self,
        rows: usize,
        cols: usize,
        data: HostSlice<T>,
    ) -> Result<Tensor<T>, Error> {
        if let Backend::Gpu(_) = &self.shared.backend {
            return Err(refused("adopt_host", "host memory was given to a rank of a GPU"));
        }
        if rows.checked_mul(cols) != Some(data.len()) {
            return Err(Error::DataLength { rows, cols, found: data.len() });
        }
        Ok(Tensor::new(rows, cols, Storage::Host(OnHost::Given(data))))
    }

    /// A tensor of another library, by way of DLPack, without a copy. A vector has one row. Work that
    /// writes it has to be ordered before this rank's stream.
    ///
    /// It is given back when the tensor has been dropped and this rank has been synchronized behind its
    /// last launch with it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another element type, another place than this rank's, and for
    /// tensors that must not be written; those of [`DlTensor::matrix`]. The tensor is given back.
    pub fn from_dlpack<T: Element>(&self, tensor: DlTensor) -> Result<Tensor<T>, Error> {
        let DlMatrix { element, rows, cols, read_only, .. } = tensor.matrix()?;
        if element != kind(T::KIND) {
            let problem = format!("expected elements of {}, found {element:?}", T::KIND);
            return Err(refused("from_dlpack", problem));
        }
        if read_only {
            return Err(refused("from_dlpack", "the tensor must not be written: copy it first"));
        }
        match &self.shared.backend {
            Backend::Gpu(gpu) => {
                let buffer = tensor.into_buffer(gpu.device(self.index))?;
                self.adopt(rows, cols, buffer)
            }
            Backend::Host { .. } => self.adopt_host(rows, cols, tensor.into_host()?),
        }
    }
}

impl<T: Element> Tensor<T> {
    /// Its memory on a device as a tensor of DLPack, without a copy: both are the same elements. Whoever
    /// takes it has to order what it does behind this rank's stream, and this rank's launches behind
    /// that. The memory lives as long as one of the two does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the host, where [`Tensor::into_dlpack`] gives the tensor itself away.
    pub fn to_dlpack(&self, form: DlForm) -> Result<DlTensor, Error> {
        match &self.storage {
            Storage::Device(device) => Ok(self.exported(device.again(), form)),
            Storage::Host(_) => {
                let problem = "elements on the host have one owner: give it away by `into_dlpack`";
                Err(refused("to_dlpack", problem))
            }
        }
    }

    /// The tensor itself as a tensor of DLPack, without a copy, on the host or on a device.
    pub fn into_dlpack(mut self, form: DlForm) -> DlTensor {
        let (rows, cols) = (self.rows(), self.cols());
        let data = match &mut self.storage {
            Storage::Device(device) => {
                let device = device.again();
                return self.exported(device, form);
            }
            Storage::Host(data) => data.as_mut_ptr().expose_provenance() as u64,
        };
        let (element, place) = (kind(T::KIND), DlPlace::Host);
        let matrix = DlMatrix { element, rows, cols, address: data, place, read_only: false };
        DlTensor::export(&matrix, Box::new(self), form)
    }

    fn exported(&self, device: OnDevice, form: DlForm) -> DlTensor {
        let buffer = device.buffer();
        let (address, place) = (buffer.address(), DlPlace::Device(buffer.device().ordinal()));
        let (element, rows, cols) = (kind(T::KIND), self.rows(), self.cols());
        let matrix = DlMatrix { element, rows, cols, address, place, read_only: false };
        DlTensor::export(&matrix, Box::new(device), form)
    }
}

fn refused(function: &str, problem: impl Into<String>) -> Error {
    Error::Unsupported { kernel: function.into(), problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use crate::prelude::*;
    use flux_runtime::{DlForm, DlTensor};

    fn on_host<T: Send>(program: impl Fn(&Rank) -> Result<T, crate::Error> + Sync) -> T {
        let results = World::host(1).and_then(|world| world.run(program));
        results.expect("no failure").pop().expect("one rank")
    }

    #[test]
    fn tensors_go_out_and_come_back_by_dlpack() {
        on_host(|rank| {
            for form in [DlForm::Legacy, DlForm::Versioned] {
                let tensor = rank.tensor(2, 3, &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
                let mut back = rank.from_dlpack::<f32>(tensor.into_dlpack(form))?;
                assert_eq!((back.rows(), back.cols()), (2, 3));
                assert_eq!(back.to_vec()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
                back.write(&[7.0; 6])?;
                assert_eq!(back.to_vec()?, [7.0; 6]);
            }
            Ok(())
        });
    }

    #[test]
    fn a_kernel_reads_and_writes_what_came_by_dlpack() {
        on_host(|rank| {
            let tensor = |rows, cols| rank.tensor(rows, cols, &vec![bf16::ONE; rows * cols]);
            let there = |tensor: Tensor<bf16>| rank.from_dlpack(tensor.into_dlpack(DlForm::Legacy));
            let (a, b, mut c) =
                (there(tensor(3, 8)?)?, there(tensor(5, 8)?)?, there(tensor(3, 5)?)?);
            crate::kernels::gemm_rs::load(rank)?.launch(&a, &b, &mut c)?;
            assert_eq!(c.to_vec()?, [bf16::from_f32(8.0); 15]);
            Ok(())
        });
    }

    #[test]
    fn what_a_rank_cannot_use_is_refused() {
        on_host(|rank| {
            let tensor = || {
                Ok::<DlTensor, crate::Error>(rank.zeros::<f16>(2, 2)?.into_dlpack(DlForm::Legacy))
            };
            let error = rank.from_dlpack::<bf16>(tensor()?).expect_err("f16").to_string();
            assert!(error.contains("expected elements of bf16, found F16"), "{error}");
            let shared = rank.zeros::<f16>(1, 1)?.to_dlpack(DlForm::Legacy);
            assert!(shared.expect_err("on the host").to_string().contains("into_dlpack"));
            let slice = rank.zeros::<f32>(1, 3)?.into_dlpack(DlForm::Legacy).into_host::<f32>()?;
            let error = rank.adopt_host(2, 2, slice).expect_err("3 of 4").to_string();
            assert_eq!(error, "a tensor of 2 x 2 holds 4 elements, found 3");
            Ok(())
        });
    }
}
