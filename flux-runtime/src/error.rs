//! Everything that can go wrong at run time, as sentences: one enum, so one file, however many they are.

use crate::device::{Architecture, Capability};
use crate::driver::DriverVersion;
use std::time::Duration;

/// An error of the runtime.
///
/// It is `Clone` because a failure that concerns all ranks is handed to each of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver library cannot be loaded.
    #[error("no CUDA driver: libcuda cannot be loaded, or is a stub without a driver behind it")]
    NoDriver,
    /// The driver library lacks functions that every driver since [`crate::OLDEST_DRIVER`] has.
    #[error("the CUDA driver library lacks {}", symbols.join(", "))]
    DriverIncomplete {
        /// The missing functions.
        symbols: Vec<&'static str>,
    },
    /// The driver is older than the kernels need.
    #[error("a CUDA driver of version {need} or later is needed, this one is {found}")]
    DriverTooOld {
        /// The oldest that will do.
        need: DriverVersion,
        /// The one installed.
        found: DriverVersion,
    },
    /// NCCL cannot be loaded, or is too old.
    #[error(
        "the network between nodes is set up through NCCL, and it is not there: {problem}; install the package \
         nvidia-nccl-cu13 (2.32.3 or later) and let `FLUX_NCCL` name its libnccl.so.2"
    )]
    NoNetworkLibrary {
        /// What the loader said, or the version found.
        problem: String,
    },
    /// A call of NCCL failed, or was not over in time.
    #[error("{call} gave {status}")]
    Network {
        /// NCCL's function.
        call: &'static str,
        /// What it said.
        status: String,
    },
    /// A driver without a usable GPU.
    #[error("the CUDA driver sees no device")]
    NoDevice,
    /// An ordinal beyond the last device.
    #[error(
        "device {ordinal} does not exist, the driver sees {count}, numbered from 0 \
         (`CUDA_VISIBLE_DEVICES` says which)"
    )]
    NoSuchDevice {
        /// The one asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The driver is there and does not start.
    #[error("the CUDA driver does not start: {call} gave {name} ({text})")]
    DriverStart {
        /// The driver's function.
        call: &'static str,
        /// Name of its error.
        name: String,
        /// The driver's own explanation.
        text: String,
    },
    /// The driver does not say which context is current.
    #[error("the CUDA driver does not say which context is current on this thread")]
    NoContext,
    /// Code for one architecture on a device of another.
    #[error("code for {need} needs compute capability {}, {device} has {found}", need.requirement())]
    WrongArchitecture {
        /// What the code was compiled for.
        need: Architecture,
        /// What the device is.
        found: Capability,
        /// Name of the device.
        device: String,
    },
    /// More streams than hardware queues: streams that share a queue can deadlock.
    #[error(
        "{wanted} streams that wait for each other need as many hardware queues, there are \
         {found}: set CUDA_DEVICE_MAX_CONNECTIONS to at least {wanted} before the process starts \
         (the driver allows at most 32)"
    )]
    TooFewConnections {
        /// Streams wanted.
        wanted: u32,
        /// Queues there are.
        found: u32,
    },
    /// A call of the driver failed.
    #[error("{call} on device {device} gave {name} ({text})")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// Ordinal of the device.
        device: u32,
        /// Name of its error.
        name: String,
        /// The driver's own explanation.
        text: String,
    },
    /// Device or pinned memory ran out.
    #[error("{bytes} bytes of {kind} memory wanted on device {device}, {free} are free")]
    OutOfMemory {
        /// "device" or "pinned host".
        kind: &'static str,
        /// Ordinal of the device.
        device: u32,
        /// Bytes asked for.
        bytes: u64,
        /// Free bytes of device memory at that moment.
        free: u64,
    },
    /// An address the driver does not know.
    #[error("address {address:#x} is not memory that CUDA knows")]
    ForeignAddress {
        /// The address.
        address: u64,
    },
    /// An address at which no numbers of the host lie.
    #[error("expected host memory at a multiple of {align} bytes, found address {address:#x}")]
    HostAddress {
        /// The address.
        address: u64,
        /// What it has to be a multiple of.
        align: usize,
    },
    /// Memory of the host that would reach beyond the last address.
    #[error(
        "expected host memory that ends before the last address, found {bytes} bytes at {address:#x}"
    )]
    HostRange {
        /// The address.
        address: u64,
        /// Bytes from there on.
        bytes: u64,
    },
    /// A tensor of another library that is no matrix of numbers that kernels take.
    #[error("DLPack: {problem}")]
    DlPack {
        /// What was expected and found.
        problem: String,
    },
    /// Access beyond the end of some memory.
    #[error("bytes {offset}..{} are outside of {what}, which has {bytes} bytes", offset + length)]
    OutOfBounds {
        /// What was accessed.
        what: &'static str,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Bytes there are.
        bytes: u64,
    },
    /// Kernels over 16-bit numbers were asked for `f32`.
    #[error("these kernels take numbers of 16 bits, f32 has 32")]
    NotSixteenBits,
    /// A quantity that must be a multiple of another, and is not.
    #[error("{what} must be a multiple of {multiple}, it is {found}")]
    Misaligned {
        /// The quantity, with its unit.
        what: &'static str,
        /// What it must be a multiple of.
        multiple: u64,
        /// What it is.
        found: u64,
    },
    /// A quantity outside of its range.
    #[error("{what} must be in {low}..={high}, it is {found}")]
    OutOfRange {
        /// The quantity, with its unit.
        what: &'static str,
        /// The least value.
        low: u64,
        /// The greatest value.
        high: u64,
        /// What it is.
        found: u64,
    },
    /// Two things that must live on one device.
    #[error("{what} is on device {found}, device {need} is needed")]
    OtherDevice {
        /// What is on the other device.
        what: &'static str,
        /// The device needed.
        need: u32,
        /// The device it is on.
        found: u32,
    },
    /// Two devices that cannot reach each other's memory.
    #[error(
        "device {device} cannot reach the memory of device {peer}: nothing that links them lets it \
         (`nvidia-smi topo -p2p r` shows the pairs that can). Virtual ranks of one device, ranks of the \
         host, and processes whose data NCCL moves (`FLUX_PEERS=nccl`) need none"
    )]
    NoPeerAccess {
        /// The device that would reach out.
        device: u32,
        /// The device whose memory it would use.
        peer: u32,
    },
    /// Two devices whose link carries copies and stores, but not the additions that signals are.
    #[error(
        "device {device} reaches the memory of device {peer} without atomic operations, which \
         signals are (`nvidia-smi topo -p2p a` shows the pairs that have them: those that NVLink \
         connects). Virtual ranks of one device, ranks of the host, and processes whose data NCCL moves \
         (`FLUX_PEERS=nccl`) need no link"
    )]
    NoPeerAtomics {
        /// The device that would raise a signal.
        device: u32,
        /// The device whose memory it would raise it in.
        peer: u32,
    },
    /// The GPU of a peer's process that this process does not see.
    #[error(
        "{uuid} is a peer's GPU, and this process does not see it: let `CUDA_VISIBLE_DEVICES` show \
         every process the GPUs of all ranks of its machine, or NCCL move their data (`FLUX_PEERS=nccl`)"
    )]
    HiddenDevice {
        /// The GPU, as `nvidia-smi -L` lists it.
        uuid: String,
    },
    /// PTX that the driver's compiler rejects.
    #[error("the driver rejects the PTX ({name}): {log}")]
    Jit {
        /// Name of the driver's error.
        name: String,
        /// The compiler's own log.
        log: String,
    },
    /// A module without the function asked for.
    #[error("the module has no function `{name}`")]
    NoFunction {
        /// Name of the function.
        name: String,
    },
    /// A launch with other parameters than the function has.
    #[error("function `{function}` takes parameters of {need:?} bytes, the launch gives {found:?}")]
    Parameters {
        /// Name of the function.
        function: String,
        /// Bytes of each parameter of the function.
        need: Vec<u64>,
        /// Bytes of each parameter given.
        found: Vec<u64>,
    },
    /// A grid that must be resident at once and is not.
    #[error(
        "{grids} grids of {ctas} CTAs of `{function}` must be resident at once, {fit} CTAs fit: \
         {per_sm} on each of {sms} SMs with {threads} threads and {shared_bytes} bytes of shared \
         memory"
    )]
    NotResident {
        /// Name of the function.
        function: String,
        /// Grids that wait for each other.
        grids: u32,
        /// CTAs of each.
        ctas: u32,
        /// CTAs that fit on the device.
        fit: u32,
        /// CTAs that fit on one SM.
        per_sm: u32,
        /// SMs of the device.
        sms: u32,
        /// Threads of a CTA.
        threads: u32,
        /// Dynamic shared memory of a CTA.
        shared_bytes: u32,
    },
    /// Too many ranks for the SMs of a device.
    #[error("{ranks} ranks need a CTA each, {sms} SMs less {reserve} in reserve leave too few")]
    NoRoom {
        /// Ranks on the device.
        ranks: u32,
        /// SMs of the device.
        sms: u32,
        /// SMs kept for copies.
        reserve: u32,
    },
    /// Work on a stream, or a word in memory, did not come within the limit.
    #[error("{what} did not finish within {limit:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// A word that did not reach its value within the limit.
    #[error("word {index} did not reach {wanted} within {limit:?}, it is {seen}")]
    WordTimeout {
        /// Index of the 32-bit word.
        index: u64,
        /// The value wanted, or a later one.
        wanted: u32,
        /// The value last seen.
        seen: u32,
        /// The limit.
        limit: Duration,
    },
    /// Two events of which one was made without timing.
    #[error("time between events needs both made with Timing::On")]
    Untimed,
    /// A rank outside of the world.
    #[error("rank {rank} is outside of a world of {world}")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// Size of the world.
        world: u32,
    },
    /// Ranks that did not come to a meeting.
    #[error("ranks {missing:?} did not come within {waited:?}{}", elsewhere_note(elsewhere))]
    RankMissing {
        /// Those that did not come.
        missing: Vec<u32>,
        /// Those of them that wait at a meeting of another key.
        elsewhere: Vec<u32>,
        /// How long the others waited.
        waited: Duration,
    },
    /// The rank that calls came after the others had given up.
    #[error("rank {rank} came after the others had given up waiting for it ({waited:?})")]
    RankLate {
        /// The rank that calls.
        rank: u32,
        /// How long the others had waited.
        waited: Duration,
    },
    /// A rank has said that it will not come any more.
    #[error("rank {rank} has given up: {reason}")]
    RankAbandoned {
        /// The rank.
        rank: u32,
        /// What it said.
        reason: String,
    },
    /// A rank begins anew, so nothing else can be done with it.
    #[error("rank {rank} recovers: every rank has to, before anything else")]
    RankRecovers {
        /// The rank.
        rank: u32,
    },
    /// A second thread of a rank came to make a group or to recover.
    #[error("rank {rank} makes a group or recovers already, on another thread")]
    RankTwice {
        /// The rank.
        rank: u32,
    },
    /// A group without the rank that wants it.
    #[error("rank {rank} is not in the group of ranks {members:?} that it wants")]
    NotInGroup {
        /// The rank.
        rank: u32,
        /// The group.
        members: Vec<u32>,
    },
    /// A group that names a rank twice.
    #[error("rank {rank} stands twice in the group of ranks {members:?}")]
    TwiceInGroup {
        /// The rank.
        rank: u32,
        /// The group.
        members: Vec<u32>,
    },
    /// Two ranks that want different groups with each other.
    #[error(
        "rank {rank} wants a group of ranks {ours:?}, rank {other} one of {theirs:?}: all members \
         must name the same ranks in the same order"
    )]
    GroupsDiffer {
        /// The rank that calls.
        rank: u32,
        /// Its group.
        ours: Vec<u32>,
        /// The rank that differs.
        other: u32,
        /// Its group.
        theirs: Vec<u32>,
    },
    /// More meetings at once than are kept.
    #[error("more than {most} meetings are open that some rank has still to come to")]
    TooManyMeetings {
        /// How many may be open.
        most: u64,
    },
    /// A rank that another process speaks for.
    #[error("this process is rank {own}, and cannot act for rank {rank}")]
    OtherRank {
        /// The rank of this process.
        own: u32,
        /// The rank asked for.
        rank: u32,
    },
    /// More bytes than a rank may give to a meeting of processes.
    #[error("{bytes} bytes for a meeting, where {most} are allowed")]
    PayloadTooLarge {
        /// The bytes given.
        bytes: u64,
        /// The bytes allowed.
        most: u64,
    },
    /// The address at which ranks are to meet cannot be listened at.
    #[error(
        "cannot listen at {address}, where the ranks are to meet: {reason}. Every job on a machine \
         needs a port of its own (`MASTER_PORT`)"
    )]
    CannotListen {
        /// The address.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// Nobody listens where the ranks are to meet.
    #[error("no rank 0 at {address} within {limit:?}: {reason}")]
    NoCoordinator {
        /// The address.
        address: String,
        /// What the system said last.
        reason: String,
        /// How long it was tried.
        limit: Duration,
    },
    /// Whoever listens there is no coordinator of ours.
    #[error("what listens at {address} is something else: the address belongs to another program")]
    NotCoordinator {
        /// The address.
        address: String,
    },
    /// The connection to the coordinator has ended.
    #[error("the coordinator at {address} is gone: {reason}")]
    CoordinatorLost {
        /// The address.
        address: String,
        /// How it ended.
        reason: String,
    },
    /// This rank and the coordinator do not know the same token.
    #[error(
        "this rank's token is not the one that {address} expects: it belongs to another job, or \
         `FLUX_TOKEN` differs"
    )]
    TokenRejected {
        /// The address.
        address: String,
    },
    /// Another version of the rendezvous.
    #[error(
        "this rank speaks version {ours} of the rendezvous, the coordinator {theirs}: all ranks need \
         the same version of flux"
    )]
    OtherVersion {
        /// This rank's.
        ours: u32,
        /// The coordinator's.
        theirs: u32,
    },
    /// Another number of ranks.
    #[error("this rank was started for a world of {ours}, the coordinator for one of {theirs}")]
    OtherWorld {
        /// This rank's.
        ours: u32,
        /// The coordinator's.
        theirs: u32,
    },
    /// A second process of the same rank.
    #[error(
        "rank {rank} is here already: this process has joined before (keep its `World`, and clone it or \
         pass it on), another job uses the same address, or two processes were started with the same rank"
    )]
    RankTaken {
        /// The rank.
        rank: u32,
    },
    /// The coordinator refused a call.
    #[error("the coordinator refused: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// What failed on one rank, told to all.
    #[error("rank {rank}: {reason}")]
    OnRank {
        /// The rank.
        rank: u32,
        /// What it said.
        reason: String,
    },
    /// A process that no launcher started.
    #[error(
        "no launcher started this process: expected {expected}. `flux launch -n 4 -- PROGRAM` starts \
         four ranks on this machine"
    )]
    NoLauncher {
        /// The variables looked for.
        expected: String,
    },
    /// A variable of the environment that is missing beside others.
    #[error("{present} is set and {missing} is not: {hint}")]
    VariableMissing {
        /// What is set.
        present: &'static str,
        /// What is not.
        missing: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// A variable of the environment with a value that is none.
    #[error("{name} is `{value}`, expected {expected}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: String,
    },
    /// Two variables of the environment of which one must be wrong.
    #[error("{first} is {first_value} and {second} is {second_value}: {reason}")]
    VariablesContradict {
        /// A variable.
        first: &'static str,
        /// Its value.
        first_value: String,
        /// The other one.
        second: &'static str,
        /// Its value.
        second_value: String,
        /// Why both cannot be.
        reason: &'static str,
    },
    /// Memory that processes share could not be had.
    #[error("{what} for {bytes} bytes of memory shared between processes: {reason}")]
    SharedMemory {
        /// What was tried.
        what: &'static str,
        /// The bytes wanted.
        bytes: u64,
        /// What the system said.
        reason: String,
    },
    /// A descriptor could not be had from a peer, or offered to it.
    #[error("{what} between processes of this machine: {reason}")]
    Handover {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
    /// Ranks that say different things where all must say the same.
    #[error("ranks {ranks:?} disagree with rank 0 on {what}")]
    RanksDisagree {
        /// What they disagree on.
        what: String,
        /// Those that differ from rank 0.
        ranks: Vec<u32>,
    },
    /// A value shared between ranks could not be built.
    #[error("a value that the ranks share could not be built: {reason}")]
    Shared {
        /// Why.
        reason: String,
    },
    /// cuBLASLt is not installed where the loader finds it.
    #[error("libcublasLt cannot be loaded, or lacks {symbol}")]
    NoBlas {
        /// The function looked for.
        symbol: &'static str,
    },
    /// A call of cuBLASLt failed.
    #[error("{call} gave {status}")]
    Blas {
        /// The function.
        call: &'static str,
        /// Its status.
        status: String,
    },
    /// NCCL is not installed where the loader finds it.
    #[error(
        "libnccl.so cannot be loaded, or lacks {symbol}: a Python package brings it as libnccl.so.2, to \
         which a link of that name in a folder of LD_LIBRARY_PATH leads"
    )]
    NoNccl {
        /// The function looked for.
        symbol: &'static str,
    },
    /// A call of NCCL failed.
    #[error("{call} failed: {status}")]
    Nccl {
        /// The function.
        call: &'static str,
        /// Its status, and what the library says beyond that.
        status: String,
    },
}

/// The second half of [`Error::RankMissing`].
fn elsewhere_note(elsewhere: &[u32]) -> String {
    match elsewhere {
        [] => String::new(),
        ranks => format!(
            ", of which {ranks:?} wait for something else: all ranks must make the same calls in \
             the same order"
        ),
    }
}
