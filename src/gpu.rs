//! Virtual ranks of one GPU: streams, shares of the multiprocessors, loaded code.
//!
//! The kernels of all ranks must be resident at once, as they wait for each other. So each rank
//! has its own streams on its own hardware queues, and a grid no larger than its share. A copy
//! within the device may itself need a multiprocessor, so some are kept back where copies feed
//! kernels.

mod arguments;
mod choose;
mod feed;
mod instance;
mod watch;
mod workspace;

pub(crate) use instance::GpuInstance;

use crate::definition::Image;
use crate::error::Error;
use crate::tensor::Element;
use flux_runtime::{Architecture, Device, DeviceBuffer, Module, Stream};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use watch::Watch;

/// Multiprocessors kept back for copies within the device.
const COPY_SMS: u32 = 4;

/// No queue of finite work lasts this long: every wait in a kernel has its own, shorter limit.
const SYNCHRONIZE_LIMIT: Duration = Duration::from_secs(3600);

/// One GPU and the ranks that share it.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Arc<Device>,
    lanes: Vec<Lane>,
    /// Loaded machine code, by the address of its PTX.
    modules: Mutex<HashMap<usize, Arc<Module>>>,
    /// Memory of dropped tensors: freeing waits for the whole device, so it is freed when no rank
    /// can be spinning.
    dropped: Mutex<Vec<DeviceBuffer>>,
    /// Everything prepared, for the same reason: a rank that is through with a kernel must not
    /// free what it rests on while its peers still wait for each other.
    instances: Mutex<Vec<Arc<GpuInstance>>>,
}

/// The streams of one rank, and what reports its stalls.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Kernels, and everything the caller orders behind them; the caller's own where given.
    main: Mutex<Arc<Stream>>,
    /// Copies to peers.
    pub(crate) copy: Stream,
    watches: Mutex<Vec<Arc<Watch>>>,
}

impl Lane {
    pub(crate) fn main(&self) -> Arc<Stream> {
        Arc::clone(&self.main.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_main(&self, stream: Arc<Stream>) {
        *self.main.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }

    fn watches(&self) -> MutexGuard<'_, Vec<Arc<Watch>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gpu {
    pub(crate) fn open(ordinal: u32, ranks: u32) -> Result<Gpu, Error> {
        let device = Device::open(ordinal)?;
        device.require_architecture(Architecture::Sm90a)?;
        device.require_connections(2 * ranks)?;
        let lanes = (0..ranks)
            .map(|_| {
                let (main, copy) = (Stream::new(&device)?, Stream::new(&device)?);
                let main = Mutex::new(Arc::new(main));
                Ok(Lane { main, copy, watches: Mutex::default() })
            })
            .collect::<Result<_, Error>>()?;
        let inner = Inner {
            device,
            lanes,
            modules: Mutex::default(),
            dropped: Mutex::default(),
            instances: Mutex::default(),
        };
        Ok(Gpu { inner: Arc::new(inner) })
    }

    pub(crate) fn name(&self) -> &str {
        &self.device().properties().name
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.inner.device
    }

    pub(crate) fn lane(&self, rank: u32) -> &Lane {
        &self.inner.lanes[rank as usize]
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.inner.lanes.len() as u32
    }

    pub(crate) fn zeros<T: Element>(&self, elements: usize) -> Result<DeviceBuffer, Error> {
        let bytes = (elements * size_of::<T>()) as u64;
        Ok(DeviceBuffer::alloc_zeroed(self.device(), bytes)?)
    }

    pub(crate) fn upload<T: Element>(&self, data: &[T]) -> Result<DeviceBuffer, Error> {
        let buffer = DeviceBuffer::alloc(self.device(), size_of_val(data) as u64)?;
        buffer.copy_from(0, data)?;
        Ok(buffer)
    }

    /// Keeps the memory of a dropped tensor until it can be freed.
    pub(crate) fn bury(&self, buffer: DeviceBuffer) {
        self.inner.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    /// Frees the memory of dropped tensors. No rank may be spinning.
    pub(crate) fn collect(&self) {
        let mut dropped = self.inner.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.clear();
    }

    /// Keeps an instance for as long as the world lives.
    fn keep(&self, instance: Arc<GpuInstance>) {
        self.inner.instances.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
    }

    /// Waits for everything `rank` enqueued, then says whether one of its launches stalled.
    pub(crate) fn synchronize(&self, rank: u32) -> Result<(), Error> {
        let lane = self.lane(rank);
        lane.main().synchronize(SYNCHRONIZE_LIMIT)?;
        lane.copy.synchronize(SYNCHRONIZE_LIMIT)?;
        let watches = lane.watches();
        let stalled = watches.iter().find_map(|watch| watch.take_stall());
        stalled.map_or(Ok(()), Err)
    }

    /// The loaded code of an image.
    fn module(&self, image: &'static Image) -> Result<Arc<Module>, Error> {
        let mut modules = self.inner.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let key = image.ptx.as_ptr() as usize;
        if let Some(module) = modules.get(&key) {
            return Ok(Arc::clone(module));
        }
        let module = Module::load(self.device(), image.ptx)?;
        modules.insert(key, Arc::clone(&module));
        Ok(module)
    }
}
