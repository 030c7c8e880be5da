//! Worlds, and what all ranks of a process do together.

use crate::crew::Crew;
use crate::status::{Failure, guarded, put, text};
use crate::table::{self, Object, flux_handle};
use flux_dsl::runtime::{CurrentContext, Device, Event, Stream, Timing};
use flux_dsl::{Rank, World};
use std::ffi::c_char;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// In place of a stream: the stream that each rank has of its own.
pub const FLUX_OWN_STREAM: u64 = 0xffff_ffff_ffff_ffff;

/// A world, and the ranks of it that are of this process.
pub(crate) struct OpenWorld {
    /// Empty once it has ended.
    ranks: Vec<Member>,
    crew: Crew,
    world: World,
    /// Locked while streams fork to those of ranks and join: other launches' forks stay out.
    forking: Mutex<()>,
}

/// A rank and its streams.
pub(crate) struct Member {
    pub(crate) rank: Rank,
    /// Of a rank on a GPU.
    on: Option<OnDevice>,
}

struct OnDevice {
    device: Arc<Device>,
    own: Arc<Stream>,
    /// The caller's stream that launches go to, [`FLUX_OWN_STREAM`] for the own one.
    current: Mutex<u64>,
    tick: Event,
}

/// What the ranks of a world are.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct flux_ranks {
    /// Ranks of the world.
    pub world: u32,
    /// The first rank of this process.
    pub first: u32,
    /// Ranks of this process, numbered on from the first.
    pub count: u32,
}

impl OpenWorld {
    fn open(world: World) -> Result<OpenWorld, Failure> {
        let ranks = world.ranks();
        let first = ranks.first().map_or(0, Rank::index);
        let crew = Crew::start(first, ranks.len())?;
        let ranks = ranks.into_iter().map(Member::of).collect::<Result<_, _>>()?;
        Ok(OpenWorld { ranks, crew, world, forking: Mutex::new(()) })
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.world.size()
    }

    /// The first rank of this process.
    pub(crate) fn first(&self) -> u32 {
        self.ranks.first().map_or(0, |member| member.rank.index())
    }

    /// Ranks of this process.
    pub(crate) fn count(&self) -> usize {
        self.ranks.len()
    }

    /// A rank of this process, by its index among them.
    pub(crate) fn member(&self, local: usize) -> &Member {
        &self.ranks[local]
    }

    /// The index of rank `rank` among those of this process.
    pub(crate) fn local(&self, rank: u32) -> Result<usize, Failure> {
        let local = rank.checked_sub(self.first()).map(|local| local as usize);
        local.filter(|&local| local < self.count()).ok_or_else(|| {
            let (first, last) = (self.first(), self.first() as usize + self.count() - 1);
            Failure::invalid(format!(
                "rank {rank} is not of this process, which has {first} to {last}"
            ))
        })
    }

    /// What `work` says for each rank of this process.
    pub(crate) fn each<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Fn(&OpenWorld, usize) -> Result<T, Failure> + Send + Sync + 'static,
    ) -> Result<Vec<T>, Failure> {
        let _kept = self.keep_context()?;
        let own = Arc::clone(self);
        self.crew.each(self.count(), move |local| work(&own, local))
    }

    /// Whatever context is current on this thread, to be current again: the caller has plans with it.
    pub(crate) fn keep_context(&self) -> Result<Option<CurrentContext>, Failure> {
        let on_gpu = self.ranks.iter().any(|member| member.on.is_some());
        Ok(on_gpu.then(CurrentContext::keep).transpose()?)
    }

    /// Lets the streams of all ranks wait for `stream`, which is of the first one's device, runs `launch`,
    /// and lets it wait for them.
    pub(crate) fn around<T>(
        &self,
        stream: u64,
        launch: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(first) = self.ranks.first().and_then(|member| member.on.as_ref()) else {
            return launch();
        };
        if stream == FLUX_OWN_STREAM {
            return launch();
        }
        let _kept = self.keep_context()?;
        let _forking: MutexGuard<'_, ()> =
            self.forking.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = stream_of(&first.device, stream);
        let on = || self.ranks.iter().filter_map(|member| member.on.as_ref());
        theirs.record(&first.tick)?;
        on().try_for_each(|on| on.own.wait(&first.tick))?;
        let outcome = launch();
        // Also behind launches of which one failed: the others are under way.
        on().try_for_each(|on| {
            on.own.record(&on.tick)?;
            theirs.wait(&on.tick)
        })?;
        outcome
    }
}

impl Drop for OpenWorld {
    fn drop(&mut self) {
        let ranks = self.ranks.drain(..).map(|member| member.rank).collect();
        self.world.leave(ranks);
    }
}

impl fmt::Debug for OpenWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenWorld").field(&self.world).finish()
    }
}

impl Member {
    fn of(rank: Rank) -> Result<Member, Failure> {
        let on = match (rank.device(), rank.stream()) {
            (Some(device), Some(own)) => {
                let tick = Event::new(&device, Timing::Off)?;
                Some(OnDevice { device, own, current: Mutex::new(FLUX_OWN_STREAM), tick })
            }
            _ => None,
        };
        Ok(Member { rank, on })
    }

    /// The device of a rank on a GPU.
    pub(crate) fn device(&self) -> Option<&Arc<Device>> {
        self.on.as_ref().map(|on| &on.device)
    }

    /// Sends what this rank launches from now on to `stream`.
    pub(crate) fn use_stream(&self, stream: u64) -> Result<(), Failure> {
        let Some(on) = &self.on else {
            // A launch on the host ends before it returns: any order is kept.
            return Ok(());
        };
        let mut current = on.current.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != stream {
            match stream {
                FLUX_OWN_STREAM => self.rank.use_stream(Arc::clone(&on.own))?,
                theirs => self.rank.use_stream(stream_of(&on.device, theirs))?,
            }
            *current = stream;
        }
        Ok(())
    }
}

/// A stream of the caller.
fn stream_of(device: &Arc<Device>, stream: u64) -> Stream {
    let raw = std::ptr::with_exposed_provenance_mut(stream as usize);
    // SAFETY: `flux.h` says that streams are of this device and outlive the world.
    unsafe { Stream::from_raw(device, raw) }
}

/// Opens a world: "host:4" for four ranks on threads of the host, "gpu:4" for four that share the first
/// GPU, "devices:0,1" for a rank on each of these GPUs, "env" for the rank that a launcher (torchrun,
/// mpirun, srun, flux launch) made of this process. No wait takes longer than limit_ms, 0 for 10 seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_world_open(
    name: *const c_char,
    limit_ms: u64,
    world: *mut flux_handle,
) -> i32 {
    guarded(|| {
        // SAFETY: `flux.h` asks for text.
        let name = unsafe { text(name, "name") }?;
        let on_host = name.starts_with("host");
        let _kept = if on_host { None } else { CurrentContext::keep().ok() };
        let mut opened: World = name.parse()?;
        if limit_ms > 0 {
            opened = opened.with_limit(Duration::from_millis(limit_ms));
        }
        // SAFETY: it is null or the caller's, to be written.
        unsafe { crate::status::require(world, "world") }?;
        let object = Object::World(Arc::new(OpenWorld::open(opened)?));
        // SAFETY: as above.
        unsafe { put(world, table::open(object), "world") }
    })
}

/// The ranks of a world.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_world_ranks(world: flux_handle, ranks: *mut flux_ranks) -> i32 {
    guarded(|| {
        let world = table::world(world)?;
        let (first, count) = (world.first(), world.count() as u32);
        let found = flux_ranks { world: world.world_size(), first, count };
        // SAFETY: it is null or the caller's, to be written.
        unsafe { put(ranks, found, "ranks") }
    })
}

/// The number of the device that a rank of this process computes on, FLUX_HOST for the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_rank_device(world: flux_handle, rank: u32, device: *mut i32) -> i32 {
    guarded(|| {
        let world = table::world(world)?;
        let member = world.member(world.local(rank)?);
        let found =
            member.device().map_or(crate::argument::FLUX_HOST, |device| device.ordinal() as i32);
        // SAFETY: it is null or the caller's, to be written.
        unsafe { put(device, found, "device") }
    })
}

/// The rows that a rank of the world owns of so many in all: ceil(rows / ranks), fewer (or none) on the last
/// ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_own_rows(
    world: flux_handle,
    rank: u32,
    rows: u64,
    own: *mut u64,
) -> i32 {
    guarded(|| {
        let world = table::world(world)?;
        let size = world.world_size();
        if rank >= size {
            return Err(Failure::invalid(format!("rank {rank} is none of {size}")));
        }
        let shard = rows.div_ceil(size.into());
        let first = shard.saturating_mul(rank.into()).min(rows);
        let end = first.saturating_add(shard).min(rows);
        // SAFETY: it is null or the caller's, to be written.
        unsafe { put(own, end - first, "own") }
    })
}

/// Waits for what the ranks of this process have launched, on whatever stream. FLUX_STALLED where a
/// launch gave up.
#[unsafe(no_mangle)]
pub extern "C" fn flux_synchronize(world: flux_handle) -> i32 {
    guarded(|| {
        let world = table::world(world)?;
        world.each(|world, local| Ok(world.member(local).rank.synchronize()?)).map(drop)
    })
}

/// As flux_synchronize, of one rank.
#[unsafe(no_mangle)]
pub extern "C" fn flux_synchronize_rank(world: flux_handle, rank: u32) -> i32 {
    guarded(|| {
        let world = table::world(world)?;
        let local = world.local(rank)?;
        let _kept = world.keep_context()?;
        Ok(world.member(local).rank.synchronize()?)
    })
}

/// Makes a world usable again after launches have failed: every rank of it, also those of other
/// processes, recovers. Kernels stay loaded; outputs of failed launches are not to be used.
#[unsafe(no_mangle)]
pub extern "C" fn flux_recover(world: flux_handle) -> i32 {
    guarded(|| {
        let world = table::world(world)?;
        world.each(|world, local| Ok(world.member(local).rank.recover()?)).map(drop)
    })
}

/// As flux_recover, of one rank: each recovers on a thread of its own.
#[unsafe(no_mangle)]
pub extern "C" fn flux_recover_rank(world: flux_handle, rank: u32) -> i32 {
    guarded(|| {
        let world = table::world(world)?;
        let local = world.local(rank)?;
        let _kept = world.keep_context()?;
        Ok(world.member(local).rank.recover()?)
    })
}
