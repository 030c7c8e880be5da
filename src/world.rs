//! Worlds and ranks: the same source runs over threads, over GPUs, over virtual ranks of one GPU, or
//! over processes.

use crate::error::Error;
use crate::gpu::{Gpu, Outbox, Peers};
use crate::meeting::Meeting;
use crate::processes::Processes;
use crate::session::{Members, Session};
use crate::tensor::{Element, OnDevice, OnHost, Storage, Tensor};
use flux_runtime::{Device, Joined, Rendezvous, Stream};
use flux_sim::time::Recording;
use std::any::Any;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a wait may take where nothing else was said.
const LIMIT: Duration = Duration::from_secs(10);

/// The longest limit: nothing waits for ever.
const LONGEST: Duration = Duration::from_secs(3600);

/// Ranks that run one program together.
///
/// ```
/// use flux::prelude::*;
///
/// let world = World::host(4)?;
/// let ranks = world.run(|rank| Ok(rank.index()))?;
/// assert_eq!(ranks, [0, 1, 2, 3]);
/// # Ok::<(), flux::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct World {
    shared: Arc<Shared>,
}

/// What the ranks of a world share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) size: u32,
    pub(crate) backend: Backend,
    pub(crate) limit: Duration,
    /// The numbers of these ranks in the world that they are of, or a group of.
    pub(crate) members: Members,
    pub(crate) session: Arc<Session>,
    /// What ties this process to the others, where each rank is one.
    pub(crate) joined: Option<Arc<Joined>>,
}

/// What ranks are made of.
#[derive(Debug, Clone)]
pub(crate) enum Backend {
    /// Threads of this process, with so many CTAs a rank.
    Host { ctas: u32 },
    /// Ranks on GPUs.
    Gpu(Gpu),
}

impl World {
    /// A world of `n` ranks, each a few threads of this process: the cores are shared out evenly,
    /// and a rank has one thread at least.
    ///
    /// # Errors
    /// [`Error::WorldSize`] unless 1 ≤ n ≤ 64.
    pub fn host(n: u32) -> Result<World, Error> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let ctas = (cores / n.max(1)).max(1);
        World::new(n, Backend::Host { ctas })
    }

    /// A world of `n` ranks that share the GPU numbered `gpu`: each has its own streams and its
    /// share of the multiprocessors, so that the kernels of all ranks are resident at once.
    ///
    /// ```
    /// use flux::prelude::*;
    ///
    /// match World::virtual_ranks(0, 4) {
    ///     Ok(world) => println!("running on {world}"),
    ///     Err(reason) => println!("no such world here: {reason}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::WorldSize`] unless 1 ≤ n ≤ 64; no driver, no such device, a device that is no
    /// Hopper, or too few hardware queues for n ranks (`CUDA_DEVICE_MAX_CONNECTIONS`).
    pub fn virtual_ranks(gpu: u32, n: u32) -> Result<World, Error> {
        if !(1..=64).contains(&n) {
            return Err(Error::WorldSize(n));
        }
        World::devices(&vec![gpu; n as usize])
    }

    /// A world with a rank for each entry of `gpus`, on the GPU of that number: rank 0 on the
    /// first. GPUs are peers, whose kernels store straight into each other's memory, and a rank
    /// has the whole of its GPU. A number that comes several times is a GPU that as many ranks
    /// share, as those of [`World::virtual_ranks`] do.
    ///
    /// ```
    /// use flux::prelude::*;
    ///
    /// match World::devices(&[0, 1]) {
    ///     Ok(world) => println!("running on {world}"),
    ///     Err(reason) => println!("no such world here: {reason}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::WorldSize`] unless `gpus` has 1 to 64 entries; those of [`World::virtual_ranks`]
    /// for each GPU; two GPUs that do not reach each other's memory, atomic operations included,
    /// as those that NVLink connects do.
    pub fn devices(gpus: &[u32]) -> Result<World, Error> {
        if !(1..=64).contains(&gpus.len()) {
            return Err(Error::WorldSize(u32::try_from(gpus.len()).unwrap_or(u32::MAX)));
        }
        World::new(gpus.len() as u32, Backend::Gpu(Gpu::open(gpus)?))
    }

    /// A world of `n` ranks of which only rank 0 computes, on the GPU numbered `gpu`. Its peers are
    /// passive: memory that lies where `peers` says. Rank 0 does exactly what it would do among
    /// real ones; what they would send it ([`Rank::outboxes`]) is played by copy engines, so
    /// both directions of the link are loaded. This measures overlap with one GPU.
    ///
    /// ```
    /// use flux::Peers;
    /// use flux::prelude::*;
    ///
    /// match World::passive(0, 8, Peers::Host) {
    ///     Ok(world) => assert_eq!(world.ranks().len(), 1, "the active one"),
    ///     Err(reason) => println!("no such world here: {reason}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`World::virtual_ranks`].
    pub fn passive(gpu: u32, n: u32, peers: Peers) -> Result<World, Error> {
        if !(1..=64).contains(&n) {
            return Err(Error::WorldSize(n));
        }
        World::new(n, Backend::Gpu(Gpu::open_passive(gpu, peers)?))
    }

    fn new(size: u32, backend: Backend) -> Result<World, Error> {
        if !(1..=64).contains(&size) {
            return Err(Error::WorldSize(size));
        }
        Ok(World { shared: Arc::new(Shared::new(size, backend, LIMIT, None)) })
    }

    /// The world of which this process is one rank, as the launcher that started it says in the
    /// environment: torchrun, mpirun, srun, `flux launch`. Returns when all ranks have come;
    /// [`Processes`] has other deadlines, addresses and processors.
    ///
    /// [`World::run`] then runs this process's rank alone, and gives what it returned.
    ///
    /// ```
    /// use flux::prelude::*;
    ///
    /// match World::from_env() {
    ///     Ok(world) => println!("one of {} ranks", world.size()),
    ///     Err(reason) => println!("not started by a launcher: {reason}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`Processes::from_env`] and [`Processes::join`].
    pub fn from_env() -> Result<World, Error> {
        Processes::from_env()?.join()
    }

    /// The world that a process has joined.
    pub(crate) fn joined(joined: Arc<Joined>, backend: Backend) -> World {
        let shared = Shared::new(joined.world(), backend, LIMIT, Some(joined));
        World { shared: Arc::new(shared) }
    }

    /// The same ranks, with another limit on how long any wait may take before its launch fails
    /// (10 seconds where nothing is said; an hour at most). Ranks that exist already keep theirs.
    ///
    /// ```
    /// use flux::prelude::*;
    /// use std::time::Duration;
    ///
    /// let world = World::host(2)?.with_limit(Duration::from_millis(100));
    /// let outcome = world.run(|rank| match rank.index() {
    ///     0 => flux::kernels::gemm_rs::load(rank).map(drop),
    ///     _ => Ok(()), // never loads it
    /// });
    /// assert!(outcome.is_err(), "and does not hang");
    /// # Ok::<(), flux::Error>(())
    /// ```
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> World {
        let limit = limit.min(LONGEST);
        let Shared { size, ref backend, ref joined, .. } = *self.shared;
        World { shared: Arc::new(Shared::new(size, backend.clone(), limit, joined.clone())) }
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.shared.size
    }

    /// The ranks that live in this process (all, the one that is active, or the one that the process
    /// is), to be run on threads of one's own. Operations that
    /// concern all ranks (loading, the first launch of a shape) wait for each other, so no two
    /// ranks may share a thread.
    pub fn ranks(&self) -> Vec<Rank> {
        let active = match &self.shared.backend {
            Backend::Gpu(gpu) => gpu.ranks(),
            Backend::Host { .. } => self.shared.size,
        };
        let Shared { size, backend, limit, joined, .. } = &*self.shared;
        let shared = Arc::new(Shared::new(*size, backend.clone(), *limit, joined.clone()));
        if let Some(joined) = joined {
            let rendezvous = Arc::new(joined.meet());
            return vec![Rank { shared, rendezvous, index: joined.rank() }];
        }
        let rendezvous = Arc::new(Rendezvous::new(active));
        let rank = |index| {
            let (shared, rendezvous) = (Arc::clone(&shared), Arc::clone(&rendezvous));
            Rank { shared, rendezvous, index }
        };
        (0..active).map(rank).collect()
    }

    /// Runs `program` on every rank of this process, each on a thread of its own, and gathers what
    /// they return: where ranks are processes, one. Rank 0's process then waits for the others to
    /// end too, for as long as a wait may take, as they may meet in it.
    ///
    /// # Errors
    /// The error of the rank that failed first. Its peers are told where ranks meet (loading, the
    /// first launch of a shape); inside a launch they find out when their wait reaches its limit. A
    /// kernel that outlives the run has lost its peers, and says so when it is launched again.
    ///
    /// # Panics
    /// Where `program` panics on a rank.
    pub fn run<T, F>(&self, program: F) -> Result<Vec<T>, Error>
    where
        T: Send,
        F: Fn(&Rank) -> Result<T, Error> + Sync,
    {
        let program = &program;
        let ended: Vec<(Result<T, Error>, Instant)> = std::thread::scope(|scope| {
            let start = |rank: Rank| {
                let index = rank.index;
                let leaving = Leaving(rank);
                let thread = std::thread::Builder::new().name(format!("rank {index}"));
                // The rank leaves when the thread ends, or is not started.
                let work = move || (program(&leaving.0), Instant::now());
                thread.spawn_scoped(scope, work).map_err(|error| (index, error, Instant::now()))
            };
            let threads: Vec<_> = self.ranks().into_iter().map(start).collect();
            let ended = threads.into_iter().map(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or_else(resume),
                Err((rank, error, at)) => {
                    (Err(Error::NoThread { rank, reason: error.to_string() }), at)
                }
            });
            ended.collect()
        });
        self.end();
        all_or_first(ended)
    }

    /// Ends ranks that [`World::ranks`] made, as [`World::run`] does with its own: whoever still waits
    /// for one of them is told. Where ranks are processes, rank 0's then waits for the others.
    pub fn leave(&self, ranks: Vec<Rank>) {
        ranks.into_iter().map(Leaving).for_each(drop);
        self.end();
    }

    fn end(&self) {
        if let Some(joined) = &self.shared.joined {
            joined.wait_idle(self.shared.limit);
        }
    }
}

impl Shared {
    /// All ranks of a world, in a session of their own.
    fn new(size: u32, backend: Backend, limit: Duration, joined: Option<Arc<Joined>>) -> Shared {
        let (members, session) = (Members::new(0..size), Arc::new(Session::new(size)));
        let backend = match backend {
            Backend::Host { ctas } => Backend::Host { ctas },
            Backend::Gpu(gpu) => Backend::Gpu(gpu.of(&members, &session)),
        };
        Shared { size, backend, limit, members, session, joined }
    }
}

/// Every result, or the error that came first.
fn all_or_first<T>(ended: Vec<(Result<T, Error>, Instant)>) -> Result<Vec<T>, Error> {
    let mut results = Vec::with_capacity(ended.len());
    let mut first: Option<(Error, Instant)> = None;
    for (outcome, at) in ended {
        match outcome {
            Ok(value) => results.push(value),
            Err(error) => {
                if first.as_ref().is_none_or(|(_, earliest)| at < *earliest) {
                    first = Some((error, at));
                }
            }
        }
    }
    first.map_or(Ok(results), |(error, _)| Err(error))
}

/// A rank that has left its program, by returning, failing or panicking: whoever still waits for
/// it is told.
struct Leaving(Rank);

impl Drop for Leaving {
    fn drop(&mut self) {
        // The rank exists, which is all that could be wrong.
        let _ = self.0.rendezvous.abandon(self.0.index, "its program has ended");
    }
}

fn resume<T>(panic: Box<dyn Any + Send>) -> T {
    std::panic::resume_unwind(panic)
}

impl FromStr for World {
    type Err = Error;

    /// `host:8`, `gpu:4` (virtual ranks of the first GPU), `devices:0,1`, or `env`: one rank for each
    /// process, as a launcher started them ([`World::from_env`]).
    fn from_str(name: &str) -> Result<World, Error> {
        if name == "env" {
            return World::from_env();
        }
        let unknown = || Error::WorldName(name.to_owned());
        let number = |text: &str| text.parse::<u32>().map_err(|_| unknown());
        let (kind, given) = name.split_once(':').ok_or_else(unknown)?;
        match kind {
            "host" => World::host(number(given)?),
            "gpu" => World::virtual_ranks(0, number(given)?),
            "devices" => {
                World::devices(&given.split(',').map(number).collect::<Result<Vec<_>, _>>()?)
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shared.backend {
            Backend::Host { .. } => match &self.shared.joined {
                None => write!(f, "host:{}", self.shared.size),
                Some(joined) => {
                    write!(f, "rank {} of {} processes", joined.rank(), self.shared.size)
                }
            },
            Backend::Gpu(gpu) if let Some(joined) = &self.shared.joined => {
                let (rank, size, name) = (joined.rank(), self.shared.size, gpu.name());
                let by = if gpu.comms().is_some() { ", by NCCL" } else { "" };
                write!(f, "rank {rank} of {size} processes ({name}{by})")
            }
            Backend::Gpu(gpu) => match (gpu.passive(), gpu.ordinals()) {
                (Some(_), _) => write!(f, "gpu:1 of {} ({})", self.shared.size, gpu.name()),
                (None, None) => write!(f, "gpu:{} ({})", self.shared.size, gpu.name()),
                (None, Some(ordinals)) => {
                    let ordinals: Vec<_> = ordinals.iter().map(u32::to_string).collect();
                    write!(f, "devices:{} ({})", ordinals.join(","), gpu.name())
                }
            },
        }
    }
}

/// One rank of a [`World`]: kernels are loaded on it, and it makes their tensors.
///
/// ```
/// use flux::prelude::*;
///
/// let shards = World::host(3)?.run(|rank| Ok(rank.own_range(7)))?;
/// assert_eq!(shards, [0..3, 3..6, 6..7]);
/// # Ok::<(), flux::Error>(())
/// ```
#[derive(Debug)]
pub struct Rank {
    pub(crate) shared: Arc<Shared>,
    pub(crate) rendezvous: Arc<Rendezvous>,
    pub(crate) index: u32,
}

impl Rank {
    /// This rank's number, below [`Rank::world_size`].
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u32 {
        self.shared.size
    }

    /// Rows of an `m`-row tensor that this rank owns: `ceil(m / world)`, fewer (or none) on the
    /// last ranks.
    pub fn own_rows(&self, m: usize) -> usize {
        self.own_range(m).len()
    }

    /// The rows of an `m`-row tensor that this rank owns: [`Rank::own_rows`] of them, rank 0's
    /// first.
    pub fn own_range(&self, m: usize) -> std::ops::Range<usize> {
        let shard = m.div_ceil(self.shared.size as usize);
        let first = (self.index as usize).saturating_mul(shard).min(m);
        first..first.saturating_add(shard).min(m)
    }

    /// A tensor of zeros where this rank computes.
    ///
    /// # Errors
    /// Out of memory.
    pub fn zeros<T: Element>(&self, rows: usize, cols: usize) -> Result<Tensor<T>, Error> {
        let elements = elements::<T>(rows, cols)?;
        let storage = match &self.shared.backend {
            Backend::Host { .. } => {
                let mut data = Vec::new();
                let reserved = data.try_reserve_exact(elements);
                reserved.map_err(|_| out_of_memory::<T>(rows, cols))?;
                data.resize(elements, T::default());
                Storage::Host(OnHost::Own(data))
            }
            Backend::Gpu(gpu) => {
                let buffer = gpu.zeros::<T>(self.index, elements)?;
                Storage::Device(OnDevice::new(buffer, gpu, self.index))
            }
        };
        Ok(Tensor::new(rows, cols, storage))
    }

    /// A tensor with a copy of `data`, row by row.
    ///
    /// # Errors
    /// [`Error::DataLength`] unless `data` holds `rows · cols` elements; out of memory.
    pub fn tensor<T: Element>(
        &self,
        rows: usize,
        cols: usize,
        data: &[T],
    ) -> Result<Tensor<T>, Error> {
        if rows.checked_mul(cols) != Some(data.len()) {
            return Err(Error::DataLength { rows, cols, found: data.len() });
        }
        let storage = match &self.shared.backend {
            Backend::Host { .. } => Storage::Host(OnHost::Own(data.to_vec())),
            Backend::Gpu(gpu) => {
                let buffer = gpu.upload(self.index, data)?;
                Storage::Device(OnDevice::new(buffer, gpu, self.index))
            }
        };
        Ok(Tensor::new(rows, cols, storage))
    }

    /// The stream this rank's launches are ordered on; `None` on the host, where a launch returns
    /// when it is done.
    pub fn stream(&self) -> Option<Arc<Stream>> {
        match &self.shared.backend {
            Backend::Host { .. } => None,
            Backend::Gpu(gpu) => Some(gpu.stream(self.index)),
        }
    }

    /// Orders this rank's launches on a stream of the caller's from now on. Streams of different
    /// ranks have to be different ones, as their kernels wait for each other. The stream is held
    /// as long as work may be in it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the host, for a stream of another device, and during a capture.
    pub fn use_stream(&self, stream: impl Into<Arc<Stream>>) -> Result<(), Error> {
        self.gpu("use_stream")?.set_stream(self.index, stream.into())
    }

    /// This rank once more, with a stream of its own: kernels that are loaded on it are launched there, and
    /// run beside those of this rank's other streams. Each has its own signals and counts its own
    /// launches. Where kernels do not fit on the rank's multiprocessors at once (`ctas` in the
    /// schedule says how many each takes), the later one waits for the earlier, as do launches of
    /// one kernel and shape. Every rank loads the same kernels in the same order, on whatever stream.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the host, where threads do as much, and for a stream of another device.
    pub fn on(&self, stream: Stream) -> Result<Rank, Error> {
        let gpu = self.gpu("on")?.on(self.index, stream)?;
        let Shared { size, limit, members, session, joined, .. } = &*self.shared;
        let (members, session, joined) = (members.clone(), Arc::clone(session), joined.clone());
        let (size, limit, backend) = (*size, *limit, Backend::Gpu(gpu));
        let shared = Arc::new(Shared { size, backend, limit, members, session, joined });
        Ok(Rank { shared, ..self.again() })
    }

    /// This rank as the only one of a world of its own, where the memory of its peers is not mapped.
    pub(crate) fn solo(&self) -> Option<Rank> {
        let Backend::Gpu(gpu) = &self.shared.backend else { return None };
        let backend = Backend::Gpu(gpu.solo()?.clone());
        let shared = Arc::new(Shared::new(1, backend, self.shared.limit, None));
        Some(Rank { shared, rendezvous: Arc::new(Rendezvous::new(1)), index: 0 })
    }

    /// The GPUs, for a function that the host does not have.
    pub(crate) fn gpu(&self, function: &str) -> Result<&Gpu, Error> {
        match &self.shared.backend {
            Backend::Gpu(gpu) => Ok(gpu),
            Backend::Host { .. } => {
                let problem = "a rank of the host has no stream".into();
                Err(Error::Unsupported { kernel: function.into(), problem })
            }
        }
    }

    /// What passive peers send to this rank, one box for each of them and each tensor they fill: of
    /// the kernel and shape whose first launch came last, and none before that or among real
    /// ranks.
    pub fn outboxes(&self) -> Vec<Outbox> {
        match &self.shared.backend {
            Backend::Host { .. } => Vec::new(),
            Backend::Gpu(gpu) => gpu.outboxes(),
        }
    }

    /// When the tiles of this rank waited, computed and stored, in the latest launch of the
    /// instrumented kernel whose first launch came last; `None` where no such kernel was launched
    /// ([`crate::Image::recorded`]). Blocks until everything this rank launched is done.
    ///
    /// # Errors
    /// The stall of a launch; those of the driver.
    pub fn recording(&self) -> Result<Option<Recording>, Error> {
        match &self.shared.backend {
            Backend::Host { .. } => Ok(None),
            Backend::Gpu(gpu) => gpu.recording(self.index),
        }
    }

    /// The device this rank computes on; `None` on the host.
    pub fn device(&self) -> Option<Arc<Device>> {
        match &self.shared.backend {
            Backend::Host { .. } => None,
            Backend::Gpu(gpu) => Some(Arc::clone(gpu.device(self.index))),
        }
    }

    /// Blocks until everything this rank launched is done.
    ///
    /// # Errors
    /// A launch of this rank that failed since the last call: [`Error::Stalled`]. What was launched
    /// since then has no results, and the kernel that failed is launched no more before
    /// [`Rank::recover`].
    pub fn synchronize(&self) -> Result<(), Error> {
        match &self.shared.backend {
            Backend::Host { .. } => Ok(()),
            Backend::Gpu(gpu) => gpu.synchronize(self.index),
        }
    }

    /// The number of the next kernel loaded on this rank: the same on every rank, so it names a
    /// kernel among them.
    pub(crate) fn next_load(&self) -> Result<u64, Error> {
        Ok(self.rendezvous.next_number(self.index)?)
    }

    /// This rank once more.
    pub(crate) fn again(&self) -> Rank {
        let (shared, rendezvous) = (Arc::clone(&self.shared), Arc::clone(&self.rendezvous));
        Rank { shared, rendezvous, index: self.index }
    }

    /// Where the ranks meet that loaded the kernel numbered `load`.
    pub(crate) fn meeting(&self, load: u64) -> Meeting {
        Meeting::new(Arc::clone(&self.rendezvous), self.index, load, self.shared.limit)
    }
}

/// The elements of a matrix whose bytes can be counted.
fn elements<T>(rows: usize, cols: usize) -> Result<usize, Error> {
    let elements = rows.checked_mul(cols);
    let countable = elements.filter(|elements| elements.checked_mul(size_of::<T>()).is_some());
    countable.ok_or_else(|| out_of_memory::<T>(rows, cols))
}

fn out_of_memory<T>(rows: usize, cols: usize) -> Error {
    Error::OutOfMemory { rows, cols, bytes: size_of::<T>() }
}
