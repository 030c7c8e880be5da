//! Everything that can go wrong, as seen by a user of the library.

use flux_ir::Diagnostics;
use std::fmt;
use std::ops::Range;

/// An error of flux. A user's mistake is always one of these, never a panic.
///
/// What ranks find out together is told to each of them: extents that do not fit, for instance,
/// are the same error on every rank.
///
/// ```
/// use flux::prelude::*;
///
/// let error = World::host(2)?
///     .run(|rank| {
///         let (a, b) = (rank.zeros(2, 8)?, rank.zeros(16, 9)?);
///         flux::kernels::ag_gemm::load(rank)?.launch(&a, &b, &mut rank.zeros(4, 16)?)
///     })
///     .expect_err("8 is not 9");
/// assert_eq!(error.to_string(), "`a` has k = 8 (rank 0), `b` has k = 9 (rank 0)");
/// # Ok::<(), flux::Error>(())
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A world of no ranks, or of more than 64.
    #[error("a world has 1 to 64 ranks, found {0}")]
    WorldSize(u32),
    /// A world's name that is none.
    #[error("expected a world such as `host:8`, `gpu:4`, `devices:0,1` or `env`, found `{0}`")]
    WorldName(String),
    /// Ranks on two machines.
    #[error(
        "rank {own_rank} is on machine `{}`, rank {rank} on `{}`: ranks share memory, and so one \
         machine, unless collectives move what they have (`FLUX_PEERS=nccl`)", hosts[0], hosts[1]
    )]
    OtherMachine {
        /// This rank.
        own_rank: u32,
        /// A rank that is elsewhere.
        rank: u32,
        /// The names of both machines.
        hosts: [String; 2],
    },
    /// Data of another length than the tensor.
    #[error(
        "a tensor of {rows} x {cols} holds {} elements, found {found}",
        *rows as u128 * *cols as u128
    )]
    DataLength {
        /// Rows of the tensor.
        rows: usize,
        /// Columns of the tensor.
        cols: usize,
        /// Elements given.
        found: usize,
    },
    /// A tensor that lives elsewhere.
    #[error("`{param}` lives on {found}, the kernel was loaded on {expected}")]
    WrongPlace {
        /// The user's parameter.
        param: String,
        /// Where the kernel runs.
        expected: String,
        /// Where the tensor lives.
        found: String,
    },
    /// Two parameters, or two ranks, disagree about a dimension.
    #[error(
        "`{first}` has {dim} = {first_value} (rank {first_rank}), `{second}` has {dim} = {second_value} (rank {second_rank})"
    )]
    Extents {
        /// The dimension: m, n or k.
        dim: String,
        /// The parameter seen first.
        first: String,
        /// Its number.
        first_value: u64,
        /// The rank it was seen on.
        first_rank: u32,
        /// The parameter that disagrees.
        second: String,
        /// Its number.
        second_value: u64,
        /// The rank it was seen on.
        second_rank: u32,
    },
    /// A shard of the wrong size.
    #[error(
        "rank {rank} of {world} owns {expected} of {rows} rows of `{param}`, found a tensor of {found}{}",
        if *may_differ {
            ": where ranks own other numbers of rows, tell all of them with `launch_with_rows`"
        } else {
            ""
        }
    )]
    ShardRows {
        /// The user's parameter.
        param: String,
        /// The rank.
        rank: u32,
        /// The number of ranks.
        world: u32,
        /// Rows over all ranks.
        rows: u32,
        /// Rows this rank owns.
        expected: u32,
        /// Rows it passed.
        found: u64,
        /// Whether ranks of the kernel may own other numbers of rows.
        may_differ: bool,
    },
    /// A shard of another number of rows than the launch was told.
    #[error("`{param}` has {found} rows on rank {rank}, `launch_with_rows` was told {told}")]
    RowsOfRank {
        /// The user's parameter.
        param: String,
        /// The rank.
        rank: u32,
        /// Rows this rank owns.
        told: u32,
        /// Rows it passed.
        found: u64,
    },
    /// Rows of ranks that do not add up to the rows of what holds all of them.
    #[error(
        "`launch_with_rows` was told ranks of {rows:?} rows, {told} in all: `{param}` has {found}"
    )]
    RowsInAll {
        /// The user's parameter.
        param: String,
        /// Rows of each rank.
        rows: Vec<u32>,
        /// Their sum.
        told: u64,
        /// Rows it has.
        found: u64,
    },
    /// Rows of ranks for a world of another size.
    #[error(
        "`launch_with_rows` of `{kernel}` was told the rows of {found} ranks, the world has {world}"
    )]
    RowsOfRanks {
        /// The kernel.
        kernel: String,
        /// The number of ranks.
        world: u32,
        /// Of how many ranks it was told.
        found: usize,
    },
    /// A column shard of the wrong width.
    #[error(
        "`{param}` has {found} columns on rank {rank}, expected {expected}: its shard of {dim} = {extent} over {world} ranks"
    )]
    ShardColumns {
        /// The user's parameter.
        param: String,
        /// The rank.
        rank: u32,
        /// The number of ranks.
        world: u32,
        /// The dimension that its columns are.
        dim: String,
        /// Columns over all ranks.
        extent: u32,
        /// Columns this rank holds.
        expected: u32,
        /// Columns it passed.
        found: u32,
    },
    /// A matrix where a vector is read.
    #[error("`{param}` is read as a vector, found {rows} x {cols} on rank {rank}")]
    NotVector {
        /// The user's parameter.
        param: String,
        /// The rank.
        rank: u32,
        /// Rows found.
        rows: u64,
        /// Columns found.
        cols: u64,
    },
    /// A tensor that the host's memory does not hold.
    #[error("no memory on the host for a tensor of {rows} x {cols} elements of {bytes} bytes")]
    OutOfMemory {
        /// Rows of the tensor.
        rows: usize,
        /// Columns of the tensor.
        cols: usize,
        /// Bytes of an element.
        bytes: usize,
    },
    /// A rank for which the system gave no thread.
    #[error("no thread for rank {rank}: {reason}")]
    NoThread {
        /// The rank.
        rank: u32,
        /// What the system said.
        reason: String,
    },
    /// A dimension over the limit of 32-bit indexing.
    #[error("{dim} = {value} is over the limit of {}", i32::MAX)]
    TooLarge {
        /// The dimension: m, n or k, or rows or columns of a parameter.
        dim: String,
        /// Its number.
        value: u64,
    },
    /// A product over nothing: its result would be an epilogue of zeros nobody asked for.
    #[error("k = 0: a gemm needs at least one element to sum over")]
    EmptyReduction,
    /// Ranks that are not about to do the same.
    #[error(
        "rank {own_rank} is about to {ours}, rank {rank} to {theirs}: all ranks must load the same \
         kernels and launch the same shapes in the same order"
    )]
    RanksDisagree {
        /// This rank.
        own_rank: u32,
        /// What this rank is about to do: "load `gemm`".
        ours: String,
        /// The rank that differs.
        rank: u32,
        /// What it is about to do.
        theirs: String,
    },
    /// A schedule that was not compiled in.
    #[error(
        "kernel `{kernel}` has no machine code for the schedule ({schedule}); compiled in: {known}. \
         Add `#[schedule({schedule})]` to the kernel"
    )]
    NotCompiled {
        /// The kernel.
        kernel: String,
        /// The schedule asked for.
        schedule: String,
        /// What is there.
        known: String,
    },
    /// Macro and library disagree about a kernel.
    #[error(
        "the machine code of `{kernel}` was made from another Program; rebuild with one version of flux"
    )]
    StaleImage {
        /// The kernel.
        kernel: String,
    },
    /// A bundle that cannot be written or loaded.
    #[error("bundle {bundle}: {problem}")]
    Bundle {
        /// Its path, or the kernel's name.
        bundle: String,
        /// What is wrong, and what to do about it.
        problem: String,
    },
    /// A launch with too few arguments, or too many.
    #[error("`{kernel}` has {expected} parameters, found {found} arguments")]
    ArgumentCount {
        /// The kernel.
        kernel: String,
        /// Its parameters.
        expected: usize,
        /// Arguments given.
        found: usize,
    },
    /// An argument of another type than its parameter.
    #[error("`{param}` of `{kernel}` is {expected}, found {found}")]
    ArgumentType {
        /// The kernel.
        kernel: String,
        /// The user's parameter.
        param: String,
        /// What it takes.
        expected: String,
        /// What was given.
        found: String,
    },
    /// Something a kernel needs that the device's hardware does not allow.
    #[error("`{param}`: {problem}")]
    Unaligned {
        /// The user's parameter.
        param: String,
        /// What is expected and found.
        problem: String,
    },
    /// A Program that this world cannot run.
    #[error("`{kernel}` cannot run on this world: {problem}")]
    Unsupported {
        /// The kernel.
        kernel: String,
        /// What stands in the way.
        problem: String,
    },
    /// A wait that gave up.
    #[error(
        "rank {rank} stalled: CTA {cta} of `{kernel}` (`{role}`{}) waited at {file}:{line}:{column} for \
         signal {signal}[{slot}] to reach {wanted}, last seen {seen}, for {limit_ms} ms",
        at_tile(tile)
    )]
    Stalled {
        /// The rank, as the kernel numbers them: in a group, that of the group.
        rank: u32,
        /// The kernel.
        kernel: String,
        /// The CTA.
        cta: u32,
        /// The role that waited: an agent of the Program.
        role: Box<str>,
        /// Rows and columns, over all ranks, of the tile that it was at; `None` where it was at none,
        /// as at its end, or where CTAs share tiles.
        tile: Option<Box<[Range<u32>; 2]>>,
        /// The user's source file.
        file: &'static str,
        /// Line of the wait.
        line: u32,
        /// Column of the wait.
        column: u32,
        /// The signal array; `shared_sums` where CTAs that share a tile hand each other its sums,
        /// `bulk_copy` where a bulk copy does not reach the slot of its ring.
        signal: Box<str>,
        /// The slot.
        slot: u32,
        /// The value last seen.
        seen: u32,
        /// The value wanted.
        wanted: u32,
        /// The limit, in milliseconds.
        limit_ms: u64,
    },
    /// A host wait for a peer's signal that gave up before anything was sent.
    #[error(
        "rank {rank}: peer {peer} is not through with launch {wanted} of `{kernel}` after {limit_ms} ms \
         (last seen: launch {seen})"
    )]
    PeerBehind {
        /// This rank.
        rank: u32,
        /// The kernel.
        kernel: String,
        /// The peer.
        peer: u32,
        /// The launch waited for.
        wanted: u32,
        /// The launch last seen.
        seen: u32,
        /// The limit, in milliseconds.
        limit_ms: u64,
    },
    /// A peer's launch that gave up, and let go what it was to send.
    #[error(
        "rank {rank}: peer {peer} gave up a launch of `{kernel}` in which this rank took part, whose outputs \
         are not to be used; the peer's own error says what it waited for"
    )]
    PeerGaveUp {
        /// This rank.
        rank: u32,
        /// The kernel.
        kernel: String,
        /// The peer.
        peer: u32,
    },
    /// A rank that takes part in a launch, and whose process has ended.
    #[error("rank {rank}: `{kernel}` gave up as rank {peer} is gone: {reason}")]
    PeerGone {
        /// This rank.
        rank: u32,
        /// The kernel.
        kernel: String,
        /// The rank that is gone.
        peer: u32,
        /// What is known of it.
        reason: String,
    },
    /// A launch whose data collectives move, for which a peer does not come.
    #[error(
        "rank {rank}: the collectives of `{kernel}` came to nothing for {limit_ms} ms: a peer has not \
         launched it, or waits for something else; start the processes anew"
    )]
    CollectiveLate {
        /// This rank.
        rank: u32,
        /// The kernel.
        kernel: String,
        /// The limit.
        limit_ms: u64,
    },
    /// Launches that were under way when their rank recovered.
    #[error("rank {rank} recovered while launches of it were under way: they have no results")]
    Interrupted {
        /// The rank.
        rank: u32,
    },
    /// A kernel after one of its launches failed.
    #[error(
        "`{kernel}` cannot be launched again after a failed launch: every rank has to recover \
         (`Rank::recover`), or to load it anew"
    )]
    Poisoned {
        /// The kernel.
        kernel: String,
    },
    /// A launch while a rank that takes part in it recovers.
    #[error("rank {rank}: `{kernel}` cannot be launched while rank {peer} recovers")]
    Recovering {
        /// The rank that launches.
        rank: u32,
        /// The kernel.
        kernel: String,
        /// The rank that recovers.
        peer: u32,
    },
    /// A rank that could not begin anew.
    #[error("rank {rank} could not recover, so no rank has: {reason}")]
    NotRecovered {
        /// The rank.
        rank: u32,
        /// What it said.
        reason: String,
    },
    /// The kernel, its schedule or this launch breaks a rule of `docs/rules.md`.
    #[error("kernel `{kernel}` is rejected\n{}", found.in_file(file))]
    Rejected {
        /// The kernel.
        kernel: String,
        /// The user's source file, which positions are of.
        file: String,
        /// What was found.
        found: Diagnostics,
    },
    /// An error that one rank met while it prepared something for all, told to each of them.
    #[error(transparent)]
    Together(std::sync::Arc<Error>),
    /// The host executor: a launch that failed after its arguments were accepted.
    #[error(transparent)]
    Host(#[from] flux_sim::Error),
    /// Devices and their memory, and ranks that did not come to a meeting.
    #[error(transparent)]
    Runtime(#[from] flux_runtime::Error),
}

/// The tile of a stall.
fn at_tile(tile: &Option<Box<[Range<u32>; 2]>>) -> String {
    let said = |[rows, cols]: &[_; 2]| format!(", tile of rows {rows:?} and columns {cols:?}");
    tile.as_deref().map_or_else(String::new, said)
}

/// The same sentence as [`fmt::Display`]: it is what `fn main() -> Result<(), flux::Error>` prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
