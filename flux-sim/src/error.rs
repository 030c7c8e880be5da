//! What can go wrong when a Program runs on the host.

use crate::stall::Stall;
use flux_ir::order::OrderError;
use flux_ir::{Element, Shape, Span};

/// Why a launch was refused, or ended without a result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The workspace would not fit.
    #[error(
        "the workspace of {shape} over {world} ranks needs {bytes} bytes, the limit is {limit}"
    )]
    TooLarge {
        /// Bytes that the workspace of all ranks needs.
        bytes: u64,
        /// Bytes that were allowed.
        limit: u64,
        /// The shape it was asked for.
        shape: Shape,
        /// The number of ranks.
        world: u32,
    },
    /// Memory that was given for a workspace and is too small.
    #[error("rank {rank} needs {expected} words of memory, {found} are given")]
    TooFewWords {
        /// The rank.
        rank: u32,
        /// The words that it needs.
        expected: u64,
        /// The words that it has.
        found: u64,
    },
    /// A rank whose launch failed, on a workspace of its own over the same memory.
    #[error("rank {rank} failed; its own error says why")]
    PeerFailed {
        /// The rank.
        rank: u32,
    },
    /// A rank that will do nothing more.
    #[error("rank {rank} is gone: {reason}")]
    PeerLost {
        /// The rank.
        rank: u32,
        /// What is known of it.
        reason: String,
    },
    /// The tile order gave no table.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A workspace was used for another kernel or another launch than it was made for.
    #[error("the workspace was made for {expected}, found {found}")]
    OtherLaunch {
        /// What the workspace was made for.
        expected: String,
        /// What it was used for.
        found: String,
    },
    /// A launch without CTAs would compute nothing.
    #[error("a launch needs at least 1 CTA, found 0")]
    NoCtas,
    /// A rank outside of the world.
    #[error("expected a rank below {world}, found {rank}")]
    NoSuchRank {
        /// The rank asked for.
        rank: u32,
        /// The number of ranks.
        world: u32,
    },
    /// Arguments of the wrong number of ranks.
    #[error("expected the arguments of {expected} ranks, found those of {found}")]
    RankCount {
        /// The number of ranks.
        expected: u32,
        /// The number of arguments.
        found: usize,
    },
    /// Launches of one workspace are numbered from 1 without gaps, on every rank.
    #[error("rank {rank}: expected the launch numbered {expected}, found {found}")]
    Epoch {
        /// The rank.
        rank: u32,
        /// The number that is due.
        expected: u32,
        /// The number given.
        found: u32,
    },
    /// The rank's previous launch is still running.
    #[error("rank {rank} is still running launch {epoch} on this workspace")]
    Running {
        /// The rank.
        rank: u32,
        /// The launch that runs.
        epoch: u32,
    },
    /// A tensor of the kernel was not passed.
    #[error("rank {rank}: expected {what} `{buffer}`, found none")]
    Missing {
        /// The rank.
        rank: u32,
        /// "input" or "output".
        what: &'static str,
        /// The tensor.
        buffer: String,
    },
    /// A tensor was passed that the kernel has not, or twice, or as the wrong kind.
    #[error("rank {rank}: expected each {what} of the kernel once, found `{buffer}`")]
    Unexpected {
        /// The rank.
        rank: u32,
        /// "input" or "output".
        what: &'static str,
        /// The tensor.
        buffer: String,
    },
    /// A tensor of the wrong element type.
    #[error("rank {rank}: expected `{buffer}` of {expected}, found {found}")]
    Element {
        /// The rank.
        rank: u32,
        /// The tensor.
        buffer: String,
        /// The element type the kernel was compiled for.
        expected: Element,
        /// The element type passed.
        found: Element,
    },
    /// A tensor of the wrong length.
    #[error(
        "rank {rank}: expected `{buffer}` of {rows} x {cols} = {expected} elements, found {found}"
    )]
    Length {
        /// The rank.
        rank: u32,
        /// The tensor.
        buffer: String,
        /// Rows of this rank's part.
        rows: u64,
        /// Columns.
        cols: u64,
        /// Elements of this rank's part.
        expected: u64,
        /// Elements passed.
        found: u64,
    },
    /// The wrong number of scalars.
    #[error("rank {rank}: expected {expected} scalars, found {found}")]
    Scalars {
        /// The rank.
        rank: u32,
        /// The number the kernel takes.
        expected: usize,
        /// The number passed.
        found: usize,
    },
    /// The system gave no thread.
    #[error("rank {rank}: no thread for agent `{agent}`: {reason}")]
    Spawn {
        /// The rank.
        rank: u32,
        /// The agent.
        agent: String,
        /// What the system said.
        reason: String,
    },
    /// A wait was not answered within the limit.
    #[error(transparent)]
    Stalled(Box<Stall>),
    /// A wait was given up because another one had failed.
    #[error("{stall}; it gave up as {first}")]
    Abandoned {
        /// The wait.
        stall: Box<Stall>,
        /// What failed first.
        first: Box<Error>,
    },
    /// An earlier launch failed, so signals and buffers of the workspace are in no known state.
    #[error("the workspace is lost, since an earlier launch on it failed: {first}")]
    Lost {
        /// What failed.
        first: Box<Error>,
    },
    /// Two actors touched the same elements at once, and one of them wrote.
    #[error(
        "rank {rank}: agent `{agent}`, CTA {cta}, at {span}: `{buffer}` of rank {on} is in use \
         by another actor at row {row}"
    )]
    Race {
        /// The rank that found it.
        rank: u32,
        /// The agent that found it.
        agent: String,
        /// The CTA that found it.
        cta: u32,
        /// What it was doing, in the user's source.
        span: Span,
        /// The buffer.
        buffer: String,
        /// The rank on which the buffer lies.
        on: u32,
        /// The row in memory, planes one behind the other.
        row: usize,
    },
    /// The Program asks for something it cannot have.
    #[error("rank {rank}: agent `{agent}`, CTA {cta}, at {span}: {reason}")]
    Malformed {
        /// The rank.
        rank: u32,
        /// The agent.
        agent: String,
        /// The CTA.
        cta: u32,
        /// The statement in the user's source.
        span: Span,
        /// What is wrong, expected before found.
        reason: String,
    },
    /// A worker panicked: a bug of the executor.
    #[error("rank {rank}: agent `{agent}`, CTA {cta}, panicked: {message}")]
    Panicked {
        /// The rank.
        rank: u32,
        /// The agent.
        agent: String,
        /// The CTA.
        cta: u32,
        /// What the panic said.
        message: String,
    },
}

/// Who acts, for errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Actor<'p> {
    pub(crate) rank: u32,
    pub(crate) agent: &'p str,
    pub(crate) cta: u32,
}

/// What the layers below an actor find wrong.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    /// Another actor holds the row.
    Race { buffer: String, on: u32, row: usize },
    /// The Program is not executable.
    Malformed(String),
}

impl Actor<'_> {
    /// The error of a fault that this actor found at `span`.
    pub(crate) fn error(&self, span: Span, fault: Fault) -> Error {
        let (rank, agent, cta) = (self.rank, self.agent.to_string(), self.cta);
        match fault {
            Fault::Race { buffer, on, row } => {
                Error::Race { rank, agent, cta, span, buffer, on, row }
            }
            Fault::Malformed(reason) => Error::Malformed { rank, agent, cta, span, reason },
        }
    }
}
