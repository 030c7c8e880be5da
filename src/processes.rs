//! Worlds whose ranks are processes.

use crate::error::Error;
use crate::gpu::{Alone, Gpu, Site, alike};
use crate::meeting::Meeting;
use crate::session::Members;
use crate::world::{Backend, World};
use flux_ir::check::Verified;
use flux_ir::eval::Launch;
use flux_runtime::{JOIN_LIMIT, Job, Joined, Meet, Segment};
use flux_sim::{DEFAULT_LIMIT_BYTES, Parts, Workspace};
use std::env;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Chooses what the ranks are made of: `host` or `gpu`.
const BACKEND: &str = "FLUX_BACKEND";

/// What the rank of a process computes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Processor {
    /// Threads of its process.
    Host,
    /// A GPU: the one that has the number of the rank on its machine. Where there are fewer GPUs than ranks,
    /// they are counted on from the first: several processes share one, which then serves them in
    /// turns.
    Gpu,
}

/// How this process becomes a rank of a world of processes.
///
/// ```
/// use flux::prelude::*;
/// use flux::{Processes, Processor};
/// use std::time::Duration;
///
/// // The only rank of its world; others would be given rank 1, 2, … and the same address.
/// let world = Processes::new(0, 1, "127.0.0.1:0")
///     .on(Processor::Host)
///     .deadline(Duration::from_secs(30))
///     .join()?;
/// assert_eq!(world.run(|rank| Ok(rank.index()))?, [0]);
/// # Ok::<(), flux::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Processes {
    job: Job,
    on: Option<Processor>,
    deadline: Duration,
}

impl Processes {
    /// Rank `rank` of `size`. Rank 0 listens at `address` (`host:port`), the others connect to it.
    pub fn new(rank: u32, size: u32, address: &str) -> Processes {
        let meet = Meet::AtRank0(address.into());
        Processes::of(Job { rank, world: size, local_rank: rank, meet, token: None })
    }

    /// The rank that the environment names, and where it says that ranks meet: the variables of
    /// torchrun, Open MPI, MPICH and SLURM (`docs/multi-process.md` lists them, and which counts
    /// where several are set). `FLUX_BACKEND` is `host` or `gpu`.
    ///
    /// # Errors
    /// Variables that are missing, are no numbers, or contradict each other; each is named.
    pub fn from_env() -> Result<Processes, Error> {
        let on = match env::var(BACKEND).as_deref() {
            Ok("host") => Some(Processor::Host),
            Ok("gpu") => Some(Processor::Gpu),
            Err(env::VarError::NotPresent) | Ok("") => None,
            other => {
                let value = other.map_or_else(ToString::to_string, ToString::to_string);
                let expected = "`host` or `gpu`".into();
                return Err(flux_runtime::Error::Variable { name: BACKEND, value, expected }.into());
            }
        };
        Ok(Processes { on, ..Processes::of(Job::from_env()?) })
    }

    fn of(job: Job) -> Processes {
        Processes { job, on: None, deadline: JOIN_LIMIT }
    }

    /// What the rank computes on, the same on all of them. Where nothing is said, a GPU if there is
    /// one.
    #[must_use]
    pub fn on(self, processor: Processor) -> Processes {
        Processes { on: Some(processor), ..self }
    }

    /// How long the ranks wait for each other to start: two minutes where nothing is said.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Processes {
        Processes { deadline, ..self }
    }

    /// A secret that the ranks share. Who does not know it does not join.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Processes {
        self.job.token = Some(token.into());
        self
    }

    /// Joins the world. Returns when all ranks have come.
    ///
    /// # Errors
    /// [`Error::WorldSize`]; [`Error::Runtime`] where the ranks do not meet within the deadline, are
    /// not the same version, say different things, or have GPUs of several kinds, GPUs that do not
    /// reach each other's memory, or none; [`Error::OtherMachine`].
    pub fn join(self) -> Result<World, Error> {
        let Processes { job, on, deadline } = self;
        if !(1..=64).contains(&job.world) {
            return Err(Error::WorldSize(job.world));
        }
        let has_gpu = || flux_runtime::probe().is_ok();
        let on = on.unwrap_or_else(|| if has_gpu() { Processor::Gpu } else { Processor::Host });
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        // Its failure is told to the others, who would wait for this rank.
        let gpu = (on == Processor::Gpu).then(|| Gpu::alone(job.local_rank));
        let site = gpu.as_ref().map(|gpu| match gpu {
            Ok(gpu) => Ok(gpu.site.clone()),
            Err(error) => Err(error.to_string()),
        });
        let joined = Joined::new(&job, Introduction { on, cores, site }.encode(), deadline)?;
        let all: Vec<_> =
            joined.peers().iter().map(|p| Introduction::decode(&p.introduction)).collect();
        let differ = |(said, rank): (&Option<Introduction>, u32)| {
            (said.as_ref().map(|said| said.on) != all[0].as_ref().map(|said| said.on))
                .then_some(rank)
        };
        let ranks: Vec<u32> = all.iter().zip(0..).filter_map(differ).collect();
        if !ranks.is_empty() {
            let what = "whether they are on GPUs or on the host (`FLUX_BACKEND`)".into();
            return Err(flux_runtime::Error::RanksDisagree { what, ranks }.into());
        }
        let own = &joined.peers()[joined.rank() as usize];
        for (peer, rank) in joined.peers().iter().zip(0..) {
            if peer.machine != own.machine {
                let hosts = [own.host.clone(), peer.host.clone()];
                return Err(Error::OtherMachine { own_rank: joined.rank(), rank, hosts });
            }
        }
        if let Some(gpu) = gpu {
            return on_gpus(Arc::new(joined), gpu?, all, deadline);
        }
        // The same on every rank: a launch has as many CTAs on each.
        let cores = all.iter().flatten().map(|said| said.cores).min().unwrap_or(1);
        let ctas = (cores / job.world).max(1);
        Ok(World::joined(Arc::new(joined), Backend::Host { ctas }))
    }
}

/// The world of a rank on a GPU, whose peers have introduced themselves.
fn on_gpus(
    joined: Arc<Joined>,
    gpu: Alone,
    all: Vec<Option<Introduction>>,
    limit: Duration,
) -> Result<World, Error> {
    let mut sites = Vec::with_capacity(all.len());
    for (said, rank) in all.into_iter().zip(0..) {
        match said.and_then(|said| said.site) {
            Some(Ok(site)) => sites.push(site),
            Some(Err(reason)) => return Err(flux_runtime::Error::OnRank { rank, reason }.into()),
            None => {
                let reason = "it has not said which GPU it has".into();
                return Err(flux_runtime::Error::OnRank { rank, reason }.into());
            }
        }
    }
    alike(&sites)?;
    let gpu = joined.settle(Gpu::join(gpu, Arc::clone(&joined), sites), limit)?;
    Ok(World::joined(joined, Backend::Gpu(gpu)))
}

/// What ranks tell each other of themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Introduction {
    on: Processor,
    cores: u32,
    /// Its GPU, where it is on one, or why it has none.
    site: Option<Result<Site, String>>,
}

impl Introduction {
    fn encode(&self) -> Vec<u8> {
        let (on, site) = match (self.on, &self.site) {
            (Processor::Host, _) | (Processor::Gpu, None) => (0, Vec::new()),
            (Processor::Gpu, Some(Ok(site))) => (1, site.encode()),
            (Processor::Gpu, Some(Err(reason))) => (2, reason.as_bytes().to_vec()),
        };
        [&[on][..], &self.cores.to_le_bytes(), &site].concat()
    }

    /// `None` where it is from another version.
    fn decode(bytes: &[u8]) -> Option<Introduction> {
        let (on, rest) = bytes.split_first()?;
        let (cores, rest) = rest.split_first_chunk::<4>()?;
        let (on, site) = match on {
            0 if rest.is_empty() => (Processor::Host, None),
            1 => (Processor::Gpu, Some(Ok(Site::decode(rest)?))),
            2 => (Processor::Gpu, Some(Err(String::from_utf8_lossy(rest).into_owned()))),
            _ => return None,
        };
        Some(Introduction { on, cores: u32::from_le_bytes(*cores), site })
    }
}

/// The parts of a workspace that the processes of its ranks have mapped.
#[derive(Debug)]
struct Shards {
    segments: Vec<Segment>,
    joined: Arc<Joined>,
    members: Members,
}

impl Parts for Shards {
    fn words(&self, rank: u32) -> &[AtomicU32] {
        self.segments.get(rank as usize).map_or(&[], Segment::words)
    }

    fn lost(&self) -> Option<(u32, String)> {
        let (rank, reason) = self.joined.lost()?;
        Some((self.members.position(rank)?, reason))
    }
}

/// A workspace of which every rank has a part, mapped by all.
///
/// # Errors
/// Memory or descriptors that ran out on one rank, told to all.
pub(crate) fn workspace(
    joined: &Arc<Joined>,
    (meeting, members): (&Meeting, &Members),
    verified: &Verified,
    launch: Launch,
) -> Result<Workspace, Error> {
    let words = (0..launch.world).map(|rank| Workspace::words(verified, launch, rank));
    let words = words.collect::<Result<Vec<_>, _>>()?;
    let bytes = words.iter().fold(0, |sum: u64, words| sum.saturating_add(words.saturating_mul(4)));
    if bytes > DEFAULT_LIMIT_BYTES {
        let (shape, world, limit) = (launch.shape, launch.world, DEFAULT_LIMIT_BYTES);
        return Err(flux_sim::Error::TooLarge { bytes, limit, shape, world }.into());
    }
    let segments = meeting.segments(joined, members, &words)?;
    let (joined, members) = (Arc::clone(joined), members.clone());
    let parts = Arc::new(Shards { segments, joined, members });
    Ok(Workspace::over(verified, launch, parts)?)
}

#[cfg(test)]
mod tests {
    use super::{Introduction, Processor, Site};
    use flux_runtime::Uuid;

    #[test]
    fn introductions_come_back_as_they_were_told() {
        let site = Site { uuid: Uuid([9; 16]), sms: 132, name: "NVIDIA H200".into() };
        for (on, site) in [
            (Processor::Host, None),
            (Processor::Gpu, Some(Ok(site))),
            (Processor::Gpu, Some(Err("no device".into()))),
        ] {
            let told = Introduction { on, cores: 70_000, site };
            assert_eq!(Introduction::decode(&told.encode()).as_ref(), Some(&told));
        }
        for odd in [&[][..], &[0, 1, 0, 0], &[3, 1, 0, 0, 0], &[0, 1, 0, 0, 0, 0], &[1, 1, 0, 0, 0]]
        {
            assert_eq!(Introduction::decode(odd), None, "{odd:?}");
        }
    }
}
