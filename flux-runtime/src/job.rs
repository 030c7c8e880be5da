//! What a launcher tells a process of its rank, in the environment.

use crate::error::Error;
use std::env;
use std::fmt;
use std::str::FromStr;

/// Which rank a process is, and where the ranks meet.
///
/// | launcher | rank | ranks | rank on its machine | ranks on its machine |
/// |---|---|---|---|---|
/// | torchrun, `flux launch` | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` | `LOCAL_WORLD_SIZE` |
/// | Open MPI | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` | `OMPI_COMM_WORLD_LOCAL_SIZE` |
/// | MPICH, Intel MPI | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALRANKID` | `MPI_LOCALNRANKS` |
/// | SLURM | `SLURM_PROCID` | `SLURM_NTASKS` | `SLURM_LOCALID` | |
///
/// The first row whose rank is set counts. Where another row names another rank or number of ranks,
/// that is an error, but for SLURM's, which speaks of the launcher where one was started by `srun`,
/// and under torchrun (`TORCHELASTIC_RUN_ID`), which others may start once for each machine.
///
/// Ranks meet where `FLUX_COORDINATOR` (`host:port`) says, as `flux launch` sets it: there somebody
/// listens already. Else rank 0 listens at `MASTER_ADDR` and `MASTER_PORT`. `MASTER_ADDR` is
/// 127.0.0.1 where nothing is said and all ranks are on one machine; with
/// `TORCHELASTIC_USE_AGENT_STORE=True`, `MASTER_PORT` is torchrun's own and the port behind it is
/// taken. A world of one rank needs neither. `FLUX_TOKEN` is a secret that the ranks share.
#[derive(Debug, Clone)]
pub struct Job {
    /// This process's rank.
    pub rank: u32,
    /// The number of ranks.
    pub world: u32,
    /// This process's number on its machine; what it is where the launcher does not say so is the
    /// rank.
    pub local_rank: u32,
    /// Where the ranks meet.
    pub meet: Meet,
    /// A secret that the ranks share.
    pub token: Option<String>,
}

/// Where ranks meet: `host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meet {
    /// Rank 0 listens there.
    AtRank0(String),
    /// Somebody else does: a [`crate::Coordinator`].
    At(String),
}

impl fmt::Display for Meet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Meet::AtRank0(address) | Meet::At(address)) = self;
        f.write_str(address)
    }
}

/// The variables of one launcher.
struct Launcher {
    rank: &'static str,
    world: &'static str,
    local_rank: &'static str,
    local_world: Option<&'static str>,
}

const TORCHRUN: Launcher = Launcher {
    rank: "RANK",
    world: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_world: Some("LOCAL_WORLD_SIZE"),
};

const OPEN_MPI: Launcher = Launcher {
    rank: "OMPI_COMM_WORLD_RANK",
    world: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_world: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
};

const HYDRA: Launcher = Launcher {
    rank: "PMI_RANK",
    world: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_world: Some("MPI_LOCALNRANKS"),
};

const SLURM: Launcher = Launcher {
    rank: "SLURM_PROCID",
    world: "SLURM_NTASKS",
    local_rank: "SLURM_LOCALID",
    local_world: None,
};

/// In the order in which they are asked.
const LAUNCHERS: [Launcher; 4] = [TORCHRUN, OPEN_MPI, HYDRA, SLURM];

const COORDINATOR: &str = "FLUX_COORDINATOR";
const TOKEN: &str = "FLUX_TOKEN";
const ADDRESS: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";
const TORCH_RUN: &str = "TORCHELASTIC_RUN_ID";
const TORCH_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

const LOOPBACK: &str = "127.0.0.1";

/// Looks a variable up: the environment, or what stands for it.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Job {
    /// What the environment says.
    ///
    /// # Errors
    ///
    /// [`Error::NoLauncher`], [`Error::VariableMissing`], [`Error::Variable`],
    /// [`Error::VariablesContradict`].
    pub fn from_env() -> Result<Job, Error> {
        Job::from_variables(&|name| env::var_os(name).map(|text| text.to_string_lossy().into()))
    }

    /// What some variables say.
    ///
    /// # Errors
    ///
    /// Those of [`Job::from_env`].
    pub fn from_variables(variable: Lookup<'_>) -> Result<Job, Error> {
        // A variable that was emptied is one that was taken back.
        let variable = &|name: &str| variable(name).filter(|text| !text.trim().is_empty());
        let mut found = LAUNCHERS.iter().filter(|launcher| variable(launcher.rank).is_some());
        let Some(launcher) = found.next() else {
            let names = LAUNCHERS
                .iter()
                .map(|launcher| format!("{} and {}", launcher.rank, launcher.world));
            return Err(Error::NoLauncher { expected: names.collect::<Vec<_>>().join(", or ") });
        };
        let (rank, world) = launcher.numbers(variable)?;
        let nested = variable(TORCH_RUN).is_some();
        for other in found.filter(|other| other.rank != SLURM.rank && !nested) {
            let (other_rank, other_world) = other.numbers(variable)?;
            agree((launcher.rank, rank), (other.rank, other_rank))?;
            agree((launcher.world, world), (other.world, other_world))?;
        }
        let (local_rank, local_world) = launcher.local(variable, world)?;
        let meet = meet(variable, world, local_world)?;
        let local_rank = local_rank.unwrap_or(rank);
        Ok(Job { rank, world, local_rank, meet, token: variable(TOKEN) })
    }
}

impl Launcher {
    /// The rank and the number of ranks.
    fn numbers(&self, variable: Lookup<'_>) -> Result<(u32, u32), Error> {
        let rank = number(variable, self.rank)?.unwrap_or(0);
        let hint = "a launcher sets both";
        let missing = || Error::VariableMissing { present: self.rank, missing: self.world, hint };
        let world = number(variable, self.world)?.ok_or_else(missing)?;
        if rank < world {
            return Ok((rank, world));
        }
        let reason = "ranks are counted from 0";
        Err(contradiction((self.rank, rank), (self.world, world), reason))
    }

    /// The number of the rank on its machine, and how many ranks that has, where they are told.
    fn local(&self, variable: Lookup<'_>, world: u32) -> Result<(Option<u32>, Option<u32>), Error> {
        let local_rank = number(variable, self.local_rank)?;
        let more = "a machine has no more ranks than there are";
        // Ranks of a machine may be numbered in another order there: Open MPI 5 counts them by core.
        if let Some(local_rank) = local_rank.filter(|&local_rank| local_rank >= world) {
            return Err(contradiction((self.local_rank, local_rank), (self.world, world), more));
        }
        let Some(name) = self.local_world else { return Ok((local_rank, None)) };
        let local_world = number(variable, name)?;
        if let Some(local_world) = local_world.filter(|&local_world| local_world > world) {
            return Err(contradiction((name, local_world), (self.world, world), more));
        }
        if let (Some(rank), Some(world)) = (local_rank, local_world)
            && rank >= world
        {
            let reason = "ranks are counted from 0";
            return Err(contradiction((self.local_rank, rank), (name, world), reason));
        }
        Ok((local_rank, local_world))
    }
}

fn meet(variable: Lookup<'_>, world: u32, local_world: Option<u32>) -> Result<Meet, Error> {
    if let Some(address) = variable(COORDINATOR) {
        let is_address = address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if !is_address {
            let expected = "host:port".into();
            return Err(Error::Variable { name: COORDINATOR, value: address, expected });
        }
        return Ok(Meet::At(address));
    }
    let Some(port) = parsed::<u16>(variable, PORT, "a port")? else {
        if world == 1 {
            return Ok(Meet::AtRank0(format!("{LOOPBACK}:0")));
        }
        let hint = "give every rank one port that no other job uses, such as MASTER_PORT=29400; rank 0 \
                    listens there";
        return Err(Error::VariableMissing { present: "the number of ranks", missing: PORT, hint });
    };
    let is_agents = variable(TORCH_STORE).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let behind = port.checked_add(is_agents.into()).filter(|port| *port > 0);
    let port = behind.ok_or_else(|| Error::Variable {
        name: PORT,
        value: port.to_string(),
        expected: "a port from 1 to 65534".into(),
    })?;
    let address = match variable(ADDRESS) {
        Some(address) => address,
        None if world == 1 || local_world == Some(world) => LOOPBACK.into(),
        None => {
            let hint = "not all ranks are known to be on this machine: give every rank the address of \
                        rank 0's, or 127.0.0.1";
            return Err(Error::VariableMissing { present: PORT, missing: ADDRESS, hint });
        }
    };
    // An address of IPv6 has colons of its own.
    let address = if address.contains(':') { format!("[{address}]") } else { address };
    Ok(Meet::AtRank0(format!("{address}:{port}")))
}

fn agree(first: (&'static str, u32), second: (&'static str, u32)) -> Result<(), Error> {
    if first.1 == second.1 {
        return Ok(());
    }
    Err(contradiction(first, second, "unset those that are not this process's"))
}

fn contradiction(
    (first, first_value): (&'static str, u32),
    (second, second_value): (&'static str, u32),
    reason: &'static str,
) -> Error {
    let [first_value, second_value] = [first_value, second_value].map(|value| value.to_string());
    Error::VariablesContradict { first, first_value, second, second_value, reason }
}

fn number(variable: Lookup<'_>, name: &'static str) -> Result<Option<u32>, Error> {
    parsed(variable, name, "a number")
}

fn parsed<T: FromStr>(
    variable: Lookup<'_>,
    name: &'static str,
    expected: &str,
) -> Result<Option<T>, Error> {
    let Some(value) = variable(name) else { return Ok(None) };
    match value.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(Error::Variable { name, value, expected: expected.into() }),
    }
}

#[cfg(test)]
mod tests;
