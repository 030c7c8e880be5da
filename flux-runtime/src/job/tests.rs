use super::*;

/// A job of variables that are written as they are for `env`.
fn job(variables: &str) -> Result<Job, Error> {
    let pairs: Vec<_> =
        variables.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
    let find = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned());
    Job::from_variables(&find)
}

/// Rank, ranks, number on the machine, where they meet.
fn told(variables: &str) -> (u32, u32, u32, String) {
    let job = job(variables).unwrap();
    (job.rank, job.world, job.local_rank, format!("{:?}", job.meet))
}

fn error(variables: &str) -> String {
    job(variables).unwrap_err().to_string()
}

#[test]
fn every_launcher_is_understood() {
    let torchrun =
        "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=4711";
    assert_eq!(told(torchrun), (5, 8, 1, "AtRank0(\"node0:4711\")".into()));
    let store = format!("{torchrun} TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=none");
    assert_eq!(told(&store), (5, 8, 1, "AtRank0(\"node0:4712\")".into()));
    let mpirun = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 \
                  OMPI_COMM_WORLD_LOCAL_SIZE=4 MASTER_PORT=4711";
    assert_eq!(told(mpirun), (2, 4, 2, "AtRank0(\"127.0.0.1:4711\")".into()));
    let by_core = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 \
                   OMPI_COMM_WORLD_LOCAL_SIZE=4 MASTER_PORT=4711";
    assert_eq!(told(by_core), (1, 4, 2, "AtRank0(\"127.0.0.1:4711\")".into()));
    let hydra =
        "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MASTER_PORT=1 MASTER_ADDR=::1";
    assert_eq!(told(hydra), (1, 2, 1, "AtRank0(\"[::1]:1\")".into()));
    let srun = "SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 MASTER_ADDR=a MASTER_PORT=2";
    assert_eq!(told(srun), (3, 4, 1, "AtRank0(\"a:2\")".into()));
    let ours = "RANK=0 WORLD_SIZE=2 FLUX_COORDINATOR=127.0.0.1:99 FLUX_TOKEN=t MASTER_PORT=1";
    assert_eq!(told(ours), (0, 2, 0, "At(\"127.0.0.1:99\")".into()));
    assert_eq!(job(ours).unwrap().token.as_deref(), Some("t"));
    assert_eq!(told("RANK=0 WORLD_SIZE=1"), (0, 1, 0, "AtRank0(\"127.0.0.1:0\")".into()));
}

#[test]
fn what_launchers_start_each_other_is_no_contradiction() {
    let slurm = "SLURM_PROCID=0 SLURM_NTASKS=1 RANK=3 WORLD_SIZE=4 FLUX_COORDINATOR=a:1";
    assert_eq!(told(slurm), (3, 4, 3, "At(\"a:1\")".into()));
    let mpi =
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 RANK=3 WORLD_SIZE=4 FLUX_COORDINATOR=a:1";
    assert!(job(&format!("{mpi} TORCHELASTIC_RUN_ID=7")).is_ok());
    assert!(job(mpi).is_err());
    let both =
        "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 RANK=3 WORLD_SIZE=4 FLUX_COORDINATOR=a:1";
    assert!(job(both).is_ok());
}

#[test]
fn what_is_wrong_is_named() {
    assert!(error("").contains("RANK and WORLD_SIZE, or OMPI_COMM_WORLD_RANK"));
    assert!(error("RANK=").contains("no launcher"));
    assert_eq!(error("RANK=0"), "RANK is set and WORLD_SIZE is not: a launcher sets both");
    assert_eq!(error("RANK=x WORLD_SIZE=2"), "RANK is `x`, expected a number");
    assert_eq!(error("RANK=-1 WORLD_SIZE=2"), "RANK is `-1`, expected a number");
    let counted = "RANK is 2 and WORLD_SIZE is 2: ranks are counted from 0";
    assert_eq!(error("RANK=2 WORLD_SIZE=2"), counted);
    let two = "RANK is 1 and PMI_RANK is 0: unset those that are not this process's";
    assert_eq!(error("RANK=1 WORLD_SIZE=2 PMI_RANK=0 PMI_SIZE=2"), two);
    let sizes = "WORLD_SIZE is 2 and PMI_SIZE is 3: unset those that are not this process's";
    assert_eq!(error("RANK=1 WORLD_SIZE=2 PMI_RANK=1 PMI_SIZE=3"), sizes);
    assert!(error("RANK=1 WORLD_SIZE=2").contains("MASTER_PORT is not"));
    assert!(error("RANK=1 WORLD_SIZE=2 MASTER_PORT=1").contains("MASTER_ADDR is not"));
    assert!(error("RANK=1 WORLD_SIZE=2 MASTER_PORT=65536").contains("expected a port"));
    assert!(error("RANK=1 WORLD_SIZE=2 MASTER_PORT=0").contains("from 1 to"));
    let last = "RANK=1 WORLD_SIZE=2 MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True";
    assert!(error(last).contains("from 1 to 65534"));
    assert!(error("RANK=1 WORLD_SIZE=2 FLUX_COORDINATOR=a").contains("expected host:port"));
    let beyond = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=2";
    assert!(error(beyond).contains("LOCAL_RANK is 2 and WORLD_SIZE is 2"));
    let more = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4";
    assert!(error(more).contains("LOCAL_WORLD_SIZE is 4 and WORLD_SIZE is 2"));
    let local = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2";
    assert!(error(local).contains("LOCAL_RANK is 2 and LOCAL_WORLD_SIZE is 2"));
}
