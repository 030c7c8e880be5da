//! **Program**: what will happen, on every rank.
//!
//! A Program has buffers, signals, tables and **agents**. An agent is a sequential actor: one CTA
//! of a rank's grid, or a copy engine fed by the host. Agents run structured loops over index
//! expressions. Everything that decides correctness across CTAs and ranks is explicit here:
//! waits and their targets, scopes, proxy fences, completions, epochs. What lives inside one CTA
//! (the mbarrier ring, register split, swizzles) is code generation's.
//!
//! Checker, host executor, code generation and runtime consume this one value, so each fact
//! (order, slot, target count) is written once.
//!
//! Every rank runs the same Program; `rank` and `epoch` are symbols. The **epoch** counts the
//! launches of one kernel instance, from 1. A **signal** is a 32-bit counter in symmetric memory
//! that only grows; a wait compares `signal >= target`, wrap-safe.
//!
//! The agents of one launch start together. An agent on CTAs has an `exit` list that the last
//! CTA to finish runs once. A launch is over when all its agents are; the next launch of the
//! same rank starts after that.

mod expr;
mod place;
mod statement;

pub use expr::{BinOp, Expr, Sym};
pub use place::{At, Place, Range};
pub use statement::{
    Completion, Cond, LOADS, Op, Product, Scope, Statements, Stmt, Transposed, Update,
};

use crate::arena::{Arena, handles};
use crate::element::Element;
use crate::kernel::{Binary, Unary};
use crate::order::Order;
use crate::schedule::{Balance, Cache, Consumers, Schedule};
use crate::span::Span;
use crate::target::Target;
use crate::tile::TileShape;
use std::fmt;

handles! {
    /// A tensor of the launch, or a workspace buffer.
    BufferId;
    /// A signal array.
    SignalId;
    /// A host-made table.
    TableId;
    /// An integer variable: a definition, a loop variable or a field of a table row.
    VarId;
    /// A node of the epilogue's dataflow. Prints as `%e7`.
    ValueId;
    /// An agent.
    AgentId;
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%e{}", self.0)
    }
}

/// Where a buffer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferKind {
    /// A tensor of the launch that is read.
    Input,
    /// A tensor of the launch that is read, by peers too: its owner may change it between launches.
    Exposed,
    /// A tensor of the launch that is written.
    Output,
    /// Workspace of the kernel instance at the same offset on every rank.
    Symmetric,
}

impl BufferKind {
    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            BufferKind::Input => "in",
            BufferKind::Exposed => "exposed",
            BufferKind::Output => "out",
            BufferKind::Symmetric => "symmetric",
        }
    }
}

/// A tensor or a workspace buffer: `planes` matrices of `rows × cols`, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Buffer {
    /// Its name; inputs and outputs bear the user's.
    pub name: String,
    /// Where it comes from.
    pub kind: BufferKind,
    /// Whether ranks add up in it: what is loaded of it holds the contribution of every other rank.
    pub sums: bool,
    /// Element type.
    pub element: Element,
    /// Extents of the leading dimensions, outermost first; a [`Place`] gives an index for each.
    pub planes: Vec<Expr>,
    /// Rows of this rank's part.
    pub rows: Expr,
    /// The row of the whole tensor that this rank's part begins with: `rank * S` for a shard.
    pub first_row: Expr,
    /// Columns of this rank's part.
    pub cols: Expr,
    /// The column of the whole tensor that this rank's part begins with: 0, but for a column shard.
    pub first_col: Expr,
    /// Where the user declared it.
    pub span: Span,
}

/// Which memory a signal array lives in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Home {
    /// The waiting rank's device: waited for by CTAs, or by a copy engine in its stream.
    Device,
    /// The waiting rank's host: waited for by the host before it feeds a copy engine.
    Host,
}

impl Home {
    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Home::Device => "device",
            Home::Host => "host",
        }
    }
}

/// An array of signals, one on every rank.
#[derive(Debug, Clone, PartialEq)]
pub struct SignalArray {
    /// Its name.
    pub name: String,
    /// The number of signals.
    pub len: Expr,
    /// Which memory it lives in.
    pub home: Home,
    /// The workspace whose data stand for it, if any. Each element of such a buffer tells by itself that it
    /// has been stored, so nothing is raised and nothing polled beside it: a raise says what the stores before
    /// it do, a wait what the sum behind it waits for. It orders the data of this buffer and nothing else.
    pub carrier: Option<BufferId>,
}

/// A table made on the host for each (shape, rank) and read by the kernel: one row per tile, in
/// the order of the schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// The number of rows.
    pub len: Expr,
    /// What orders the rows.
    pub order: Order,
    /// The rows of the output that its tiles cover: all, or those this rank owns.
    pub tiled: Range,
    /// Whether tiles begin anew with each rank's shard of these rows, so that none is of two.
    pub by_shard: bool,
    /// Stands for the tile row in `fields`.
    pub m: VarId,
    /// Stands for the tile column in `fields`.
    pub n: VarId,
    /// Two further fields of a row, as expressions of `m` and `n`: 16 bytes a row in all.
    pub fields: [Expr; 2],
}

/// An integer variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Var {
    /// Its name, unique in the Program.
    pub name: String,
}

/// A node of the epilogue: a tile of f32 values.
#[derive(Debug, Clone, PartialEq)]
pub enum ValueOp {
    /// Accumulator `index` of the mainloop.
    Acc(u32),
    /// The result of the enclosing [`Op::Sum`].
    Sum,
    /// A number.
    Const(f32),
    /// A number passed at launch: index into [`Program::scalars`].
    Scalar(u32),
    /// A vector over the columns.
    Cols(BufferId),
    /// A vector over the rows.
    Rows(BufferId),
    /// The tile of a matrix.
    Load(BufferId),
    /// The tile of a matrix in workspace: what the last [`Op::Load`] of this number named.
    Loaded(u32),
    /// An elementwise function.
    Unary(Unary, ValueId),
    /// An elementwise function.
    Binary(Binary, ValueId, ValueId),
    /// Rounds to an element type.
    Cast(ValueId, Element),
}

/// A node with the user's token.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueEntry {
    /// What it is.
    pub op: ValueOp,
    /// The user's token.
    pub span: Span,
}

/// Where an agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// A copy engine of the rank, fed by the host.
    CopyEngine,
    /// Every CTA of the rank's grid, each with its own `cta`.
    Ctas,
    /// The warps of every CTA that neither load operands nor compute ([`crate::abi::COPY_WARPS`] of
    /// them, acting as one), with its own `cta`: they copy and signal beside the CTA's tiles.
    CopyWarps,
    /// The TMA unit of every CTA's multiprocessor, which one of these warps feeds: bulk copies
    /// through shared memory. They are asynchronous, and go by the async proxy.
    Tma,
}

impl Engine {
    /// Every engine.
    pub const ALL: [Engine; 4] = [Engine::CopyEngine, Engine::Ctas, Engine::CopyWarps, Engine::Tma];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::CopyEngine => "copy_engine",
            Engine::Ctas => "ctas",
            Engine::CopyWarps => "copy_warps",
            Engine::Tma => "tma",
        }
    }

    /// How many actors run an agent's body on one rank, whose grid has `ctas` CTAs.
    pub const fn bodies(self, ctas: u32) -> u32 {
        match self {
            Engine::CopyEngine => 1,
            Engine::Ctas | Engine::CopyWarps | Engine::Tma => ctas,
        }
    }

    /// Whether it is part of the rank's kernel.
    pub const fn is_in_kernel(self) -> bool {
        self.bodies(2) == 2
    }

    /// Whether it copies beside the tiles of a CTA.
    pub const fn is_beside_tiles(self) -> bool {
        match self {
            Engine::CopyEngine | Engine::Ctas => false,
            Engine::CopyWarps | Engine::Tma => true,
        }
    }

    /// The warps of a CTA that raise a signal together where it copies beside tiles, each its share;
    /// 1 elsewhere.
    pub const fn raisers(self) -> u32 {
        match self {
            Engine::CopyWarps => crate::abi::COPY_WARPS,
            Engine::CopyEngine | Engine::Ctas | Engine::Tma => 1,
        }
    }
}

/// A sequential actor of every rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// Where it runs.
    pub engine: Engine,
    /// What it does.
    pub body: Vec<Stmt>,
    /// What is done once when all its CTAs are through.
    pub exit: Vec<Stmt>,
}

/// What will happen on every rank. Made by [`crate::lower`] or read from text.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// The kernel's name.
    pub name: String,
    /// The architecture.
    pub target: Target,
    /// Tile rows, columns and k-step.
    pub tile: TileShape,
    /// Pipeline stages of the mainloop.
    pub stages: u32,
    /// How consumer warpgroups divide tiles.
    pub consumers: Consumers,
    /// Multiprocessors that share the k-steps of a tile: each `cta` is a cluster of so many.
    pub split_k: u32,
    /// How CTAs divide the tiles of an output.
    pub balance: Balance,
    /// What the L2 cache is told of the operands.
    pub cache: Cache,
    /// The longest of the pauses that threads make now and then, in µs; 0 for none.
    pub jitter: u32,
    /// Ranks of a node, in the order of ranks: memory of these is mapped on each other. 0 where all ranks are of one.
    pub node: u32,
    /// Tensors and workspace.
    pub buffers: Arena<BufferId, Buffer>,
    /// Names of the scalars passed at launch, in order.
    pub scalars: Vec<String>,
    /// Signal arrays.
    pub signals: Arena<SignalId, SignalArray>,
    /// Every variable.
    pub vars: Arena<VarId, Var>,
    /// Definitions that hold everywhere, in order of use.
    pub lets: Vec<(VarId, Expr)>,
    /// Rows that each rank owns, where a launch has lengths of its own; empty where shards are even.
    pub lengths: Vec<u32>,
    /// Host-made tables.
    pub tables: Arena<TableId, Table>,
    /// The epilogue's dataflow; operands precede their users.
    pub values: Arena<ValueId, ValueEntry>,
    /// The actors.
    pub agents: Arena<AgentId, Agent>,
}

impl Agent {
    /// Every statement, those of `exit` last.
    pub fn statements(&self) -> impl Iterator<Item = &Stmt> {
        Statements::of(&self.body).chain(Statements::of(&self.exit))
    }
}

impl Program {
    /// A Program that does nothing, under the choices of a schedule.
    pub fn empty(name: &str, schedule: &Schedule) -> Program {
        Program {
            name: name.into(),
            target: schedule.target,
            tile: schedule.tile,
            stages: schedule.stages,
            consumers: schedule.consumers,
            split_k: schedule.split_k,
            balance: schedule.balance,
            cache: schedule.cache,
            jitter: schedule.jitter,
            node: schedule.node,
            buffers: Arena::new(),
            scalars: Vec::new(),
            signals: Arena::new(),
            vars: Arena::new(),
            lets: Vec::new(),
            lengths: Vec::new(),
            tables: Arena::new(),
            values: Arena::new(),
            agents: Arena::new(),
        }
    }

    /// Every statement of every agent.
    pub fn statements(&self) -> impl Iterator<Item = &Stmt> {
        self.agents.values().flat_map(Agent::statements)
    }

    /// The first row of the `m` that `rank` of `world` owns; `m` for the number of ranks and beyond it.
    pub fn first_row(&self, m: u32, world: u32, rank: i64) -> i64 {
        let rank = rank.clamp(0, world.into());
        match self.lengths.as_slice() {
            [] => (rank * i64::from(m.div_ceil(world.max(1)))).min(m.into()),
            lengths => lengths.iter().take(rank as usize).map(|&rows| i64::from(rows)).sum(),
        }
    }

    /// Whether shards may have lengths of their own: a definition is [`Sym::Shard`], and statements may
    /// name [`Expr::First`].
    pub fn has_own_lengths(&self) -> bool {
        self.lets.iter().any(|(_, value)| *value == Sym::Shard.into())
    }

    /// Rows of the longest shard of the `m`.
    pub fn longest_shard(&self, m: u32, world: u32) -> u32 {
        self.lengths.iter().max().copied().unwrap_or_else(|| m.div_ceil(world.max(1)))
    }

    /// The number of accumulators a tile has.
    pub fn accumulators(&self) -> u32 {
        let products = self.statements().map(|stmt| match &stmt.op {
            Op::Mainloop { products } => products.len() as u32,
            _ => 0,
        });
        products.max().unwrap_or(0)
    }

    /// Whether the output is scattered: some agent sums contributions of ranks.
    pub fn scatters(&self) -> bool {
        self.statements().any(|stmt| matches!(stmt.op, Op::Sum { .. }))
    }

    /// Whether an agent runs beside the grid: it is the grid, or a copy engine that waits for what is
    /// signalled in the same launch, itself (by CTAs) or through the host that feeds it (by copy
    /// engines). Other copy engines wait for nothing once the host has fed them.
    pub fn beside_grid(&self, agent: &Agent) -> bool {
        let waits = |stmt: &Stmt| match &stmt.op {
            Op::Wait { signal, .. } => match self.signals.get(*signal).map(|signal| signal.home) {
                Some(Home::Device) => true,
                Some(Home::Host) => self.is_raised_by_copies(*signal),
                None => false,
            },
            _ => false,
        };
        agent.engine.is_in_kernel() || agent.statements().any(waits)
    }

    /// Whether copy engines raise an array: what it says is then of the launch at hand.
    pub fn is_raised_by_copies(&self, array: SignalId) -> bool {
        let raises = |stmt: &Stmt| matches!(stmt.op, Op::Signal { signal, .. } if signal == array);
        let copies = self.agents.values().filter(|agent| agent.engine == Engine::CopyEngine);
        copies.flat_map(Agent::statements).any(raises)
    }

    /// Whether data of `buffer` carry their own flag: an element that is negative zero has not been stored.
    pub fn is_flagged(&self, buffer: BufferId) -> bool {
        self.signals.values().any(|signal| signal.carrier == Some(buffer))
    }

    /// Whether two ranks are of one node: each has the other's memory mapped.
    pub const fn is_mapped(&self, one: u32, other: u32) -> bool {
        match self.node {
            0 => true,
            ranks => one / ranks == other / ranks,
        }
    }

    /// Whether something goes over the network.
    pub fn is_networked(&self) -> bool {
        self.statements().any(|stmt| match &stmt.op {
            Op::Copy { to, .. } => to.at.is_remote(),
            Op::Signal { at, .. } => at.is_remote(),
            _ => false,
        })
    }

    /// Whether ranks of other nodes raise an array.
    pub fn is_raised_remotely(&self, array: SignalId) -> bool {
        self.statements().any(
            |stmt| matches!(&stmt.op, Op::Signal { at, signal, .. } if *signal == array && at.is_remote()),
        )
    }

    /// Whether ranks meet at all: a Program without signals never touches a peer.
    pub fn communicates(&self) -> bool {
        !self.signals.is_empty()
    }
}
