//! Virtual ranks of one GPU: streams, shares of the multiprocessors, loaded code.
//!
//! The kernels of all ranks must be resident at once, as they wait for each other. So each rank
//! has its own streams on its own hardware queues, and a grid no larger than its share. A copy
//! within the device may itself need a multiprocessor, so some are kept back where copies feed
//! kernels.
//!
//! Or one active rank among passive peers, which are memory and nothing else: what they would send
//! is played by copy engines.

mod arguments;
mod arrival;
mod choose;
mod departure;
mod feed;
mod inbound;
mod instance;
mod outbox;
mod record;
mod script;
mod watch;
mod workspace;

pub(crate) use instance::GpuInstance;
pub use outbox::{Outbox, Peers};

use crate::definition::Image;
use crate::error::Error;
use crate::tensor::Element;
use flux_runtime::{Architecture, Device, DeviceBuffer, Event, Module, Stream, Timing};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use watch::Watch;

/// Multiprocessors kept back for copies within the device.
const COPY_SMS: u32 = 4;

/// How often a rank that waits looks for launches that have given up.
const RESCUE_INTERVAL: Duration = Duration::from_millis(200);

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
    passive: Option<Passive>,
    /// Ends what other streams wait for in vain.
    rescue: Stream,
    /// Loaded machine code, by the address of its PTX.
    modules: Mutex<HashMap<usize, Arc<Module>>>,
    /// Memory of dropped tensors: freeing waits for the whole device, so it is freed when no rank
    /// can be spinning.
    dropped: Mutex<Vec<DeviceBuffer>>,
    /// Everything prepared, for the same reason: a rank that is through with a kernel must not
    /// free what it rests on while its peers still wait for each other.
    instances: Mutex<Vec<Arc<GpuInstance>>>,
}

/// The peers of a world with one active rank.
#[derive(Debug)]
pub(crate) struct Passive {
    /// Where their memory lies.
    peers: Peers,
    /// What they copy.
    copies: Stream,
    /// What they signal.
    words: Stream,
}

/// The streams of one rank, and what reports its stalls.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Kernels, and everything the caller orders behind them; the caller's own where given.
    main: Mutex<Arc<Stream>>,
    /// Copies to peers.
    pub(crate) copy: Stream,
    /// Signals that follow copies. On a stream of their own the link does not stand still while a
    /// word is written; `None` where ranks are so many that they share queues, and signals go
    /// between the copies.
    words: Option<Stream>,
    /// A recorded point is taken when a wait for it is enqueued, so one event serves all.
    tick: Event,
    watches: Mutex<Vec<Arc<Watch>>>,
}

impl Lane {
    pub(crate) fn main(&self) -> Arc<Stream> {
        Arc::clone(&self.main.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_main(&self, stream: Arc<Stream>) {
        *self.main.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }

    /// The stream of signals.
    fn words(&self) -> &Stream {
        self.words.as_ref().unwrap_or(&self.copy)
    }

    /// The stream of a signal that follows all copies enqueued so far.
    pub(crate) fn signals(&self) -> Result<&Stream, Error> {
        let Some(words) = &self.words else { return Ok(&self.copy) };
        self.copy.record(&self.tick)?;
        words.wait(&self.tick)?;
        Ok(words)
    }

    fn watches(&self) -> MutexGuard<'_, Vec<Arc<Watch>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device of this number, which has to run what is compiled for Hopper.
fn hopper(ordinal: u32) -> Result<Arc<Device>, Error> {
    let device = Device::open(ordinal)?;
    device.require_architecture(Architecture::Sm90a)?;
    Ok(device)
}

impl Gpu {
    pub(crate) fn open(ordinal: u32, ranks: u32) -> Result<Gpu, Error> {
        let device = hopper(ordinal)?;
        device.require_connections(2 * ranks + 1)?;
        let apart = device.require_connections(3 * ranks + 1).is_ok();
        Gpu::new(device, ranks, apart, None)
    }

    /// One active rank among peers that are nothing but memory.
    pub(crate) fn open_passive(ordinal: u32, peers: Peers) -> Result<Gpu, Error> {
        let device = hopper(ordinal)?;
        // The rank's streams and the peers'.
        device.require_connections(6)?;
        let (copies, words) = (Stream::new(&device)?, Stream::new(&device)?);
        Gpu::new(device, 1, true, Some(Passive { peers, copies, words }))
    }

    /// Signals have a stream of their own where they stand `apart`.
    fn new(
        device: Arc<Device>,
        ranks: u32,
        apart: bool,
        passive: Option<Passive>,
    ) -> Result<Gpu, Error> {
        let lanes = (0..ranks)
            .map(|_| {
                let (main, copy) = (Stream::new(&device)?, Stream::new(&device)?);
                let main = Mutex::new(Arc::new(main));
                let words = apart.then(|| Stream::new(&device)).transpose()?;
                let tick = Event::new(&device, Timing::Off)?;
                Ok(Lane { main, copy, words, tick, watches: Mutex::default() })
            })
            .collect::<Result<_, Error>>()?;
        let rescue = Stream::new(&device)?;
        let inner = Inner {
            device,
            lanes,
            passive,
            rescue,
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

    /// The passive peers, where all but rank 0 are.
    pub(crate) fn passive(&self) -> Option<&Passive> {
        self.inner.passive.as_ref()
    }

    /// What passive peers send in the kernel and shape prepared last.
    pub(crate) fn outboxes(&self) -> Vec<Outbox> {
        let instances = self.instances();
        let Some(instance) = instances.last() else { return Vec::new() };
        let indices = 0..instance.stocks().len();
        indices.map(|index| Outbox::new(Arc::clone(instance), index)).collect()
    }

    fn instances(&self) -> MutexGuard<'_, Vec<Arc<GpuInstance>>> {
        self.inner.instances.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Frees the memory of dropped tensors and of dropped kernels. No rank may be spinning.
    pub(crate) fn collect(&self) {
        self.instances().retain(|instance| Arc::strong_count(instance) > 1);
        let mut dropped = self.inner.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.clear();
    }

    /// Keeps an instance until the next collection, however soon its kernel is dropped.
    fn keep(&self, instance: Arc<GpuInstance>) {
        self.instances().push(instance);
    }

    /// Waits for everything `rank` enqueued, then says whether one of its launches stalled, or
    /// rests on one of a peer's that did.
    pub(crate) fn synchronize(&self, rank: u32) -> Result<(), Error> {
        let lane = self.lane(rank);
        self.await_main(rank)?;
        lane.signals()?.synchronize(SYNCHRONIZE_LIMIT)?;
        if let Some(stalled) = lane.watches().iter().find_map(|watch| watch.take_stall()) {
            return Err(stalled);
        }
        let instances = self.instances();
        let own = || instances.iter().filter(|instance| instance.rank == rank);
        if let Some(abandoned) = own().find_map(|instance| instance.take_abandoned()) {
            return Err(abandoned);
        }
        own().for_each(|instance| instance.settle());
        Ok(())
    }

    /// Waits for the rank's stream. It may wait for streams that in turn wait for a launch which
    /// has given up; they cannot give up themselves.
    fn await_main(&self, rank: u32) -> Result<(), Error> {
        loop {
            match self.lane(rank).main().synchronize(RESCUE_INTERVAL) {
                Err(flux_runtime::Error::Timeout { .. }) => {}
                ended => return Ok(ended?),
            }
            let instances = self.instances();
            let own = instances.iter().filter(|instance| instance.rank == rank);
            for instance in own.filter(|instance| instance.has_stalled()) {
                instance.release(&self.inner.rescue)?;
            }
        }
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
