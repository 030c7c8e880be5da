//! Kernels: loaded on every rank of the process, launched on all of them or on one.

use crate::argument::{Adopted, Given, apart, flux_argument};
use crate::status::{Failure, guarded, put, require, slice, text};
use crate::table::{self, Object, flux_handle};
use crate::world::{FLUX_OWN_STREAM, OpenWorld};
use flux_dsl::{AnyKernel, Arg, Error, Param, ParamType, Schedule};
use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError};

/// A kernel, loaded on each rank of this process.
#[derive(Debug)]
pub(crate) struct OpenKernel {
    // Dropped ahead of the world, which they are of.
    ranks: Vec<AnyKernel>,
    name: String,
    parameters: Vec<Param>,
    world: Arc<OpenWorld>,
}

/// What one rank passes.
type Arguments = Mutex<Vec<Adopted>>;

impl OpenKernel {
    fn is_written(&self, index: usize) -> bool {
        let ty = self.parameters[index % self.parameters.len()].ty;
        matches!(ty, ParamType::Tensor { written: true, .. })
    }

    /// An argument in words; arguments of ranks from `first` on stand one behind the other.
    fn named(&self, first: usize, index: usize) -> String {
        let count = self.parameters.len();
        let rank = self.world.first() as usize + first + index / count;
        format!("`{}` (rank {rank})", self.parameters[index % count].name)
    }

    /// The arguments of so many ranks, from `first` on, if their kernels take them.
    fn adopt(
        &self,
        given: &[Given],
        rows: Option<&[usize]>,
        first: usize,
        ranks: usize,
    ) -> Result<Vec<Arguments>, Failure> {
        let count = self.parameters.len();
        let (expected, found) = (ranks * count, given.len());
        if ranks == 1 && expected != found {
            let kernel = self.name.clone();
            return Err(Error::ArgumentCount { kernel, expected, found }.into());
        }
        if expected != found {
            return Err(Failure::invalid(format!(
                "`{}` has {count} parameters, and this process {ranks} ranks: expected {expected} arguments, \
                 found {found}",
                self.name
            )));
        }
        apart(given, |index| self.is_written(index), |index| self.named(first, index))?;
        let mut arguments = Vec::with_capacity(ranks);
        for (rank, own) in given.chunks(count.max(1)).enumerate() {
            let member = self.world.member(first + rank);
            let adopt = |(index, given): (usize, &Given)| {
                let named = |failure: Failure| failure.of(&self.named(first + rank, index));
                Adopted::of(given, member).map_err(named)
            };
            let mut adopted = own.iter().enumerate().map(adopt).collect::<Result<Vec<_>, _>>()?;
            self.ranks[first + rank].accepts(&self.args(&mut adopted))?;
            arguments.push(adopted);
        }
        if let [kernel, ..] = &self.ranks[..]
            && ranks == self.world.world_size() as usize
        {
            let all: Vec<_> = arguments.iter_mut().map(|own| self.args(own)).collect();
            kernel.accepts_all(rows, &all)?;
        }
        Ok(arguments.into_iter().map(Mutex::new).collect())
    }

    fn args<'a>(&self, adopted: &'a mut [Adopted]) -> Vec<Arg<'a>> {
        let pairs = adopted.iter_mut().zip(&self.parameters);
        pairs.map(|(adopted, param)| adopted.arg(param.ty)).collect()
    }

    fn launch_on(
        &self,
        local: usize,
        rows: Option<&[usize]>,
        arguments: &Arguments,
    ) -> Result<(), Failure> {
        let mut adopted = arguments.lock().unwrap_or_else(PoisonError::into_inner);
        let mut args = self.args(&mut adopted);
        match rows {
            None => self.ranks[local].launch(&mut args)?,
            Some(rows) => self.ranks[local].launch_with_rows(rows, &mut args)?,
        }
        Ok(())
    }

    /// The rows that ranks own, where the caller says so.
    ///
    /// # Safety
    /// `rows` is null, or points to a number for each rank of the world.
    unsafe fn rows(&self, rows: *const u64) -> Result<Option<Vec<usize>>, Failure> {
        if rows.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller says so.
        let rows = unsafe { slice(rows, self.world.world_size() as usize, "rows") }?;
        Ok(Some(rows.iter().map(|&rows| usize::try_from(rows).unwrap_or(usize::MAX)).collect()))
    }
}

/// Loads the kernel of a bundle on every rank of this process: lowers it, checks it, and on GPUs takes
/// the machine code that belongs to it. Processes load the same kernels in the same order. schedule is
/// NULL for all schedules of the bundle, of which the fitting one is chosen, or one of them in words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_kernel_load(
    world: flux_handle,
    bundle: flux_handle,
    schedule: *const c_char,
    kernel: *mut flux_handle,
) -> i32 {
    guarded(|| {
        let (world, bundle) = (table::world(world)?, table::bundle(bundle)?);
        // SAFETY: it is null or the caller's, to be written.
        unsafe { require(kernel, "kernel") }?;
        let schedule = if schedule.is_null() {
            None
        } else {
            // SAFETY: `flux.h` asks for text.
            let words = unsafe { text(schedule, "schedule") }?;
            let parsed = words.parse::<Schedule>();
            Some(parsed.map_err(|found| Failure::invalid(format!("schedule ({words}): {found}")))?)
        };
        let definition = bundle.definition();
        let ranks = world.each(move |world, local| {
            Ok(AnyKernel::load(definition, &world.member(local).rank, schedule.as_ref())?)
        })?;
        let parameters = ranks.first().map(|kernel| kernel.parameters().cloned().collect());
        let (name, parameters) = (definition.name.to_owned(), parameters.unwrap_or_default());
        let loaded = OpenKernel { ranks, name, parameters, world };
        // SAFETY: it is the caller's, to be written.
        unsafe { put(kernel, table::open(Object::Kernel(Arc::new(loaded))), "kernel") }
    })
}

/// Launches a kernel on every rank of this process. Arguments stand rank behind rank: those of the first
/// rank in the order of its parameters, then those of the next.
///
/// On the host the launch is done when this returns. On GPUs it is enqueued: behind what is on stream,
/// and what is enqueued on stream later comes behind it. stream is a CUstream or cudaStream_t of the
/// device of this process's first rank, as a number (0 is the default stream), and lives as long as the
/// world; FLUX_OWN_STREAM is the stream that each rank has of its own, and orders nothing else. On the
/// host it says nothing.
///
/// rows is NULL where ranks own shards as flux_own_rows has them. A kernel of own rows (FLUX_EXCHANGED beside
/// FLUX_SHARDED) may be launched over ranks of other numbers: then rows has one for each rank of the world,
/// the same on all of them.
///
/// Outputs share no memory with any other argument. Memory stays as it is until the launch has ended;
/// what is read may be read by others meanwhile. Rows that are multiplied should begin at multiples of
/// 16 bytes, and a tensor has to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_launch(
    kernel: flux_handle,
    arguments: *const flux_argument,
    count: usize,
    rows: *const u64,
    stream: u64,
) -> i32 {
    guarded(|| {
        let kernel = table::kernel(kernel)?;
        // SAFETY: `flux.h` asks for so many arguments.
        let given = given(unsafe { slice(arguments, count, "arguments") }?);
        // SAFETY: `flux.h` asks for a number for each rank.
        let rows = unsafe { kernel.rows(rows) }?;
        let world = Arc::clone(&kernel.world);
        let _kept = world.keep_context()?;
        let arguments = kernel.adopt(&given, rows.as_deref(), 0, world.count())?;
        if world.count() == 1 {
            world.member(0).use_stream(stream)?;
            return kernel.launch_on(0, rows.as_deref(), &arguments[0]);
        }
        world.around(stream, || {
            let launch = move |world: &OpenWorld, local: usize| {
                world.member(local).use_stream(FLUX_OWN_STREAM)?;
                kernel.launch_on(local, rows.as_deref(), &arguments[local])
            };
            world.each(launch).map(drop)
        })
    })
}

/// Launches a kernel on one rank, from a thread of that rank's own: launches of new shapes wait for those
/// of the other ranks. Ranks that share a GPU take streams of their own, as their kernels run at once.
/// All else is as of flux_launch, of which stream is of this rank's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_launch_rank(
    kernel: flux_handle,
    rank: u32,
    arguments: *const flux_argument,
    count: usize,
    rows: *const u64,
    stream: u64,
) -> i32 {
    guarded(|| {
        let kernel = table::kernel(kernel)?;
        // SAFETY: `flux.h` asks for so many arguments.
        let given = given(unsafe { slice(arguments, count, "arguments") }?);
        // SAFETY: `flux.h` asks for a number for each rank.
        let rows = unsafe { kernel.rows(rows) }?;
        let local = kernel.world.local(rank)?;
        let _kept = kernel.world.keep_context()?;
        let arguments = kernel.adopt(&given, rows.as_deref(), local, 1)?;
        kernel.world.member(local).use_stream(stream)?;
        kernel.launch_on(local, rows.as_deref(), &arguments[0])
    })
}

fn given(arguments: &[flux_argument]) -> Vec<Given> {
    arguments.iter().copied().map(Given).collect()
}
