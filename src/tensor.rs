//! Tensors of a rank: row-major matrices on the host or on a device.

use crate::error::Error;
use crate::gpu::{Gpu, LaunchId};
use flux_ir::Element as ElementKind;
use flux_runtime::{DeviceBuffer, HostSlice};
use flux_sim::{Input, Output};
use half::{bf16, f16};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod sealed {
    pub trait Sealed {}
}

/// An element type of tensors: [`bf16`](struct@bf16), [`f16`](struct@f16) or `f32`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the element of a tensor",
    label = "expected bf16, f16 or f32"
)]
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + bytemuck::Pod + 'static {
    /// The element type as the compiler knows it.
    const KIND: ElementKind;
    /// Elements that a launch on the host reads.
    #[doc(hidden)]
    fn input(data: &[Self]) -> Input<'_>;
    /// Elements that a launch on the host writes.
    #[doc(hidden)]
    fn output(data: &mut [Self]) -> Output<'_>;
}

macro_rules! element {
    ($($type:ty => $kind:ident;)*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const KIND: ElementKind = ElementKind::$kind;
            fn input(data: &[Self]) -> Input<'_> {
                Input::$kind(data)
            }
            fn output(data: &mut [Self]) -> Output<'_> {
                Output::$kind(data)
            }
        }
    )*};
}

element! {
    bf16 => Bf16;
    f16 => F16;
    f32 => F32;
}

/// A row-major matrix of one rank, without gaps between rows. A vector is a matrix of one row or
/// one column. [`Rank`](crate::Rank) makes tensors: on the host or on the device where it computes.
///
/// ```
/// use flux::prelude::*;
///
/// World::host(1)?.run(|rank| {
///     let mut tensor = rank.tensor(2, 3, &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
///     assert_eq!((tensor.rows(), tensor.cols()), (2, 3));
///     assert!(tensor.write(&[0.0; 5]).is_err(), "it holds 6 elements");
///     assert_eq!(tensor.to_vec()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
///     Ok(())
/// })?;
/// # Ok::<(), flux::Error>(())
/// ```
#[derive(Debug)]
pub struct Tensor<T> {
    rows: usize,
    cols: usize,
    pub(crate) storage: Storage<T>,
}

/// Where a tensor lives.
#[derive(Debug)]
pub(crate) enum Storage<T> {
    Host(OnHost<T>),
    Device(OnDevice),
}

/// Memory of the host.
#[derive(Debug)]
pub(crate) enum OnHost<T> {
    Own(Vec<T>),
    /// The caller's.
    Given(HostSlice<T>),
}

impl<T> Deref for OnHost<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            OnHost::Own(data) => data,
            OnHost::Given(data) => data,
        }
    }
}

impl<T> DerefMut for OnHost<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            OnHost::Own(data) => data,
            OnHost::Given(data) => data,
        }
    }
}

/// Memory of a device, and the rank whose work uses it.
#[derive(Debug)]
pub(crate) struct OnDevice {
    memory: Arc<Memory>,
    gpu: Gpu,
    rank: u32,
}

/// The memory of a tensor, and of graphs that use it.
#[derive(Debug)]
pub(crate) struct Memory {
    buffer: DeviceBuffer,
    /// The launch that wrote it last ([`LaunchId`]); 0 where none did.
    written: AtomicU64,
}

impl Memory {
    pub(crate) fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    /// Notes which launch writes it.
    pub(crate) fn mark(&self, launch: LaunchId) {
        self.written.store(launch.0, Ordering::Relaxed);
    }
}

impl OnDevice {
    pub(crate) fn new(buffer: DeviceBuffer, gpu: &Gpu, rank: u32) -> Self {
        let memory = Arc::new(Memory { buffer, written: AtomicU64::new(0) });
        OnDevice { memory, gpu: gpu.clone(), rank }
    }

    /// The same memory once more.
    pub(crate) fn again(&self) -> OnDevice {
        OnDevice { memory: Arc::clone(&self.memory), gpu: self.gpu.clone(), rank: self.rank }
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn buffer(&self) -> &DeviceBuffer {
        &self.memory.buffer
    }

    /// Waits for the rank's work, so that a copy sees it or does not disturb it.
    fn at_rest(&self) -> Result<&DeviceBuffer, Error> {
        self.gpu.synchronize(self.rank)?;
        Ok(self.buffer())
    }

    /// The same for one who reads: refuses what a failed launch wrote.
    fn results(&self) -> Result<&DeviceBuffer, Error> {
        let buffer = self.at_rest()?;
        let written = LaunchId(self.memory.written.load(Ordering::Relaxed));
        self.gpu.why_spoiled(written).map_or(Ok(buffer), Err)
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        // Nothing is freed of what the caller lent.
        if !self.buffer().is_lent() {
            self.gpu.bury(self.rank, Arc::clone(&self.memory));
        }
    }
}

impl<T: Element> Tensor<T> {
    pub(crate) fn new(rows: usize, cols: usize, storage: Storage<T>) -> Self {
        Tensor { rows, cols, storage }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns: consecutive elements in memory.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The device memory behind the tensor; `None` on the host.
    pub fn buffer(&self) -> Option<&DeviceBuffer> {
        match &self.storage {
            Storage::Host(_) => None,
            Storage::Device(device) => Some(device.buffer()),
        }
    }

    /// A copy of the elements, row by row. On a device this waits for the work of the rank.
    ///
    /// # Errors
    /// A launch of the rank that failed since it was last asked, or the failure of one that wrote
    /// this tensor, as its results would be wrong; a failed copy.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        match &self.storage {
            Storage::Host(data) => Ok(data.to_vec()),
            Storage::Device(device) => {
                let mut data = vec![T::default(); self.rows * self.cols];
                device.results()?.copy_to(0, &mut data)?;
                Ok(data)
            }
        }
    }

    /// Overwrites the elements, row by row.
    ///
    /// # Errors
    /// [`Error::DataLength`] unless `data` holds `rows · cols` elements; a failed copy.
    pub fn write(&mut self, data: &[T]) -> Result<(), Error> {
        if data.len() != self.rows * self.cols {
            let (rows, cols) = (self.rows, self.cols);
            return Err(Error::DataLength { rows, cols, found: data.len() });
        }
        match &mut self.storage {
            Storage::Host(own) => own.copy_from_slice(data),
            Storage::Device(device) => {
                device.at_rest()?.copy_from(0, data)?;
                device.memory.mark(LaunchId::NONE);
            }
        }
        Ok(())
    }
}

/// An argument of a launch, of a parameter that is known when the program runs
/// ([`AnyKernel`](crate::AnyKernel)).
#[derive(Debug)]
pub enum Arg<'a> {
    /// A tensor.
    Tensor(TensorArg<'a>),
    /// A number.
    Scalar(f32),
}

/// A tensor without its element type.
#[derive(Debug)]
#[doc(hidden)]
pub struct TensorArg<'a> {
    pub(crate) element: ElementKind,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) data: Data<'a>,
}

#[derive(Debug)]
pub(crate) enum Data<'a> {
    Read(Input<'a>),
    Write(Output<'a>),
    Device(&'a OnDevice),
    /// One that the launch writes.
    Target(&'a OnDevice),
}

impl<'a> Arg<'a> {
    /// A tensor that is read.
    pub fn input<T: Element>(tensor: &'a Tensor<T>) -> Self {
        let data = match &tensor.storage {
            Storage::Host(data) => Data::Read(T::input(data)),
            Storage::Device(device) => Data::Device(device),
        };
        let (rows, cols) = (tensor.rows, tensor.cols);
        Arg::Tensor(TensorArg { element: T::KIND, rows, cols, data })
    }

    /// A tensor that is written.
    pub fn output<T: Element>(tensor: &'a mut Tensor<T>) -> Self {
        let (rows, cols) = (tensor.rows, tensor.cols);
        let data = match &mut tensor.storage {
            Storage::Host(data) => Data::Write(T::output(data)),
            Storage::Device(device) => Data::Target(device),
        };
        Arg::Tensor(TensorArg { element: T::KIND, rows, cols, data })
    }

    /// A number.
    pub fn scalar(value: f32) -> Self {
        Arg::Scalar(value)
    }
}

/// The element type as the runtime knows it.
pub(crate) fn kind(element: ElementKind) -> flux_runtime::ElementKind {
    match element {
        ElementKind::Bf16 => flux_runtime::ElementKind::Bf16,
        ElementKind::F16 => flux_runtime::ElementKind::F16,
        ElementKind::F32 => flux_runtime::ElementKind::F32,
    }
}

/// The same output for a shorter time.
pub(crate) fn reborrow<'b>(output: &'b mut Output<'_>) -> Output<'b> {
    match output {
        Output::Bf16(data) => Output::Bf16(data),
        Output::F16(data) => Output::F16(data),
        Output::F32(data) => Output::F32(data),
    }
}
