//! Worlds whose ranks are processes.

use crate::error::Error;
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
    /// A GPU: the one that has the number of the rank on its machine.
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
    /// not the same version, or say different things; [`Error::OtherMachine`];
    /// [`Error::Unsupported`] on GPUs, where ranks are not processes yet.
    pub fn join(self) -> Result<World, Error> {
        let Processes { job, on, deadline } = self;
        if !(1..=64).contains(&job.world) {
            return Err(Error::WorldSize(job.world));
        }
        let has_gpu = || flux_runtime::probe().is_ok();
        let on = on.unwrap_or_else(|| if has_gpu() { Processor::Gpu } else { Processor::Host });
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let joined = Joined::new(&job, Introduction { on, cores }.encode(), deadline)?;
        let all: Vec<_> =
            joined.peers().iter().map(|p| Introduction::decode(&p.introduction)).collect();
        let differ = |(said, rank): (&Option<Introduction>, u32)| {
            (said.map(|said| said.on) != all[0].map(|said| said.on)).then_some(rank)
        };
        let ranks: Vec<u32> = all.iter().zip(0..).filter_map(differ).collect();
        if !ranks.is_empty() {
            let what = "whether they are on GPUs or on the host (`FLUX_BACKEND`)".into();
            return Err(flux_runtime::Error::RanksDisagree { what, ranks }.into());
        }
        if on == Processor::Gpu {
            let problem = "ranks on GPUs are threads of one process so far (`World::devices`): \
                           FLUX_BACKEND=host runs processes on the host";
            return Err(Error::Unsupported { kernel: "a process".into(), problem: problem.into() });
        }
        let own = &joined.peers()[joined.rank() as usize];
        for (peer, rank) in joined.peers().iter().zip(0..) {
            if peer.machine != own.machine {
                let hosts = [own.host.clone(), peer.host.clone()];
                return Err(Error::OtherMachine { own_rank: joined.rank(), rank, hosts });
            }
        }
        // The same on every rank: a launch has as many CTAs on each.
        let cores = all.iter().flatten().map(|said| said.cores).min().unwrap_or(1);
        let ctas = (cores / job.world).max(1);
        Ok(World::joined(Arc::new(joined), Backend::Host { ctas }))
    }
}

/// What ranks tell each other of themselves.
#[derive(Debug, Clone, Copy)]
struct Introduction {
    on: Processor,
    cores: u32,
}

impl Introduction {
    fn encode(self) -> Vec<u8> {
        let on = match self.on {
            Processor::Host => 0,
            Processor::Gpu => 1,
        };
        [&[on][..], &self.cores.to_le_bytes()].concat()
    }

    /// `None` where it is from another version.
    fn decode(bytes: &[u8]) -> Option<Introduction> {
        let (on, cores) = bytes.split_first()?;
        let on = match on {
            0 => Processor::Host,
            1 => Processor::Gpu,
            _ => return None,
        };
        Some(Introduction { on, cores: u32::from_le_bytes(cores.try_into().ok()?) })
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
