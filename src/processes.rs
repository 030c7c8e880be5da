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

/// Chooses how data come to ranks on GPUs: `mapped` or `nccl`.
const PEERS: &str = "FLUX_PEERS";

/// How a rank on a GPU gets what its peers have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerAccess {
    /// Their memory is mapped, and kernels reach it: all GPUs are in one machine and reach each other.
    #[default]
    Mapped,
    /// It is not: collectives of NCCL go ahead of a kernel and behind it, and nothing overlaps. GPUs may be
    /// anywhere. Kernels that do more with their peers than gather, exchange, and add up what they store
    /// are refused when they are loaded.
    Nccl,
}

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
    peers: PeerAccess,
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
    /// where several are set). `FLUX_BACKEND` is `host` or `gpu`, `FLUX_PEERS` is `mapped` or `nccl`.
    ///
    /// # Errors
    /// Variables that are missing, are no numbers, or contradict each other; each is named.
    pub fn from_env() -> Result<Processes, Error> {
        let on = choice(BACKEND, [("host", Processor::Host), ("gpu", Processor::Gpu)])?;
        let peers = choice(PEERS, [("mapped", PeerAccess::Mapped), ("nccl", PeerAccess::Nccl)])?;
        let peers = peers.unwrap_or_default();
        Ok(Processes { on, peers, ..Processes::of(Job::from_env()?) })
    }

    fn of(job: Job) -> Processes {
        Processes { job, on: None, peers: PeerAccess::default(), deadline: JOIN_LIMIT }
    }

    /// What the rank computes on, the same on all of them. Where nothing is said, a GPU if there is
    /// one.
    #[must_use]
    pub fn on(self, processor: Processor) -> Processes {
        Processes { on: Some(processor), ..self }
    }

    /// How ranks on GPUs get what their peers have, the same on all of them.
    #[must_use]
    pub fn peers(self, peers: PeerAccess) -> Processes {
        Processes { peers, ..self }
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
        let Processes { job, on, peers, deadline } = self;
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
        let own = Introduction { on, peers, cores, site };
        let joined = Joined::new(&job, own.encode(), deadline)?;
        let all: Vec<_> =
            joined.peers().iter().map(|p| Introduction::decode(&p.introduction)).collect();
        let what = "whether they are on GPUs or on the host (`FLUX_BACKEND`)";
        agreed(&all, what, |said| said.on)?;
        let what = "how they get what their peers have (`FLUX_PEERS`)";
        agreed(&all, what, |said| said.peers)?;
        if peers == PeerAccess::Nccl && on == Processor::Host {
            let problem =
                "NCCL moves data between GPUs: leave `FLUX_PEERS` out, or say `FLUX_BACKEND=gpu`";
            return Err(Error::Unsupported { kernel: "join".into(), problem: problem.into() });
        }
        let own = &joined.peers()[joined.rank() as usize];
        for (peer, rank) in joined.peers().iter().zip(0..) {
            if peer.machine != own.machine && peers == PeerAccess::Mapped {
                let hosts = [own.host.clone(), peer.host.clone()];
                return Err(Error::OtherMachine { own_rank: joined.rank(), rank, hosts });
            }
        }
        if let Some(gpu) = gpu {
            return on_gpus(Arc::new(joined), (gpu?, peers), all, deadline);
        }
        // The same on every rank: a launch has as many CTAs on each.
        let cores = all.iter().flatten().map(|said| said.cores).min().unwrap_or(1);
        let ctas = (cores / job.world).max(1);
        Ok(World::joined(Arc::new(joined), Backend::Host { ctas }))
    }
}

/// What a variable chooses, if it is set.
fn choice<T: Copy>(name: &'static str, known: [(&str, T); 2]) -> Result<Option<T>, Error> {
    let value = match env::var(name) {
        Err(env::VarError::NotPresent) => return Ok(None),
        Ok(value) if value.is_empty() => return Ok(None),
        Ok(value) => value,
        Err(other) => other.to_string(),
    };
    if let Some((_, chosen)) = known.iter().find(|(text, _)| *text == value) {
        return Ok(Some(*chosen));
    }
    let expected = known.map(|(text, _)| format!("`{text}`")).join(" or ");
    Err(flux_runtime::Error::Variable { name, value, expected }.into())
}

/// Checks that all ranks say the same of `what`.
fn agreed<T: PartialEq>(
    all: &[Option<Introduction>],
    what: &str,
    of: impl Fn(&Introduction) -> T,
) -> Result<(), Error> {
    let said = |rank: usize| all.get(rank).and_then(Option::as_ref).map(&of);
    let differ = |rank: &u32| said(*rank as usize) != said(0);
    let ranks: Vec<u32> = (0..all.len() as u32).filter(differ).collect();
    if ranks.is_empty() {
        return Ok(());
    }
    Err(flux_runtime::Error::RanksDisagree { what: what.into(), ranks }.into())
}

/// The world of a rank on a GPU, whose peers have introduced themselves.
fn on_gpus(
    joined: Arc<Joined>,
    (gpu, peers): (Alone, PeerAccess),
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
    let join = match peers {
        PeerAccess::Mapped => Gpu::join,
        PeerAccess::Nccl => Gpu::join_apart,
    };
    let gpu = joined.settle(join(gpu, Arc::clone(&joined), sites), limit)?;
    Ok(World::joined(joined, Backend::Gpu(gpu)))
}

/// What ranks tell each other of themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Introduction {
    on: Processor,
    peers: PeerAccess,
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
        let peers = match self.peers {
            PeerAccess::Mapped => 0,
            PeerAccess::Nccl => 1,
        };
        [&[on, peers][..], &self.cores.to_le_bytes(), &site].concat()
    }

    /// `None` where it is from another version.
    fn decode(bytes: &[u8]) -> Option<Introduction> {
        let ([on, peers], rest) = bytes.split_first_chunk::<2>()?;
        let (cores, rest) = rest.split_first_chunk::<4>()?;
        let (on, site) = match on {
            0 if rest.is_empty() => (Processor::Host, None),
            1 => (Processor::Gpu, Some(Ok(Site::decode(rest)?))),
            2 => (Processor::Gpu, Some(Err(String::from_utf8_lossy(rest).into_owned()))),
            _ => return None,
        };
        let peers = match peers {
            0 => PeerAccess::Mapped,
            1 => PeerAccess::Nccl,
            _ => return None,
        };
        Some(Introduction { on, peers, cores: u32::from_le_bytes(*cores), site })
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
    use super::{Introduction, PeerAccess, Processor, Site};
    use flux_runtime::Uuid;

    #[test]
    fn introductions_come_back_as_they_were_told() {
        let site =
            Site { uuid: Uuid([9; 16]), sms: 132, name: "NVIDIA H200".into(), ways: Vec::new() };
        for (on, site) in [
            (Processor::Host, None),
            (Processor::Gpu, Some(Ok(site))),
            (Processor::Gpu, Some(Err("no device".into()))),
        ] {
            for peers in [PeerAccess::Mapped, PeerAccess::Nccl] {
                let told = Introduction { on, peers, cores: 70_000, site: site.clone() };
                assert_eq!(Introduction::decode(&told.encode()).as_ref(), Some(&told));
            }
        }
        for odd in [
            &[][..],
            &[0, 0, 1, 0, 0],
            &[3, 0, 1, 0, 0, 0],
            &[0, 2, 1, 0, 0, 0],
            &[0, 0, 1, 0, 0, 0, 0],
            &[1, 0, 1, 0, 0, 0],
        ] {
            assert_eq!(Introduction::decode(odd), None, "{odd:?}");
        }
    }
}
