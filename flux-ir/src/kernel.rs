//! **Kernel IR**: what the user wrote, before any schedule.
//!
//! A kernel is one tile loop over its first output. Inside it every op yields a [`Value`] (a
//! tile of f32 held by the CTA, or rows that are ready to be multiplied) or stores one. Ops run
//! in order, there is no control flow, and every op is evaluated once per tile.
//!
//! ```text
//! kernel @ag_gemm_gelu(%a: &gathered<bf16>, %b: &global<bf16>, %bias: &global<f32>, %c: &mut global<bf16>) {
//!   for tile in %c {               @6:17
//!     %0 = wait %a                 @7:17
//!     %1 = gemm %0, %b.t           @8:19
//!     %2 = cols %bias              @9:36
//!     %3 = add %1, %2              @9:34
//!     %4 = gelu %3                 @9:23
//!     store %c, %4                 @9:9
//!   }
//! }
//! ```
//!
//! A kernel may bring a protocol of its own ([`Kernel::protocol`]): workspace, signals and roles that
//! run beside the tile loop, whose ops wait for them.

use crate::arena::{Arena, handles};
use crate::element::Element;
use crate::program::{BufferId, Expr, Program, Range, SignalId, Sym, Var, VarId};
use crate::schedule::Schedule;
use crate::span::Span;
use std::fmt;

handles! {
    /// A parameter of a kernel.
    ParamId;
    /// A value computed in the tile loop. Prints as `%7`.
    Value;
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// How a tensor's rows are distributed over the ranks of a world.
///
/// A shard is `ceil(rows / world)` consecutive rows; the last shards may be smaller or empty. Shards of
/// columns are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// This rank's own tensor, whole.
    Global,
    /// Each rank holds its row shard; rows of others are read through a wait.
    Gathered,
    /// Each rank holds its row shard, and reads or writes that alone.
    Sharded,
    /// Every rank contributes partial sums; each keeps its row shard of the total.
    Scattered,
    /// Every rank contributes partial sums; each gets the whole total.
    Reduced,
    /// Each rank holds all rows of its column shard. Read, a rank's own rows come from all of them;
    /// written, each rank computes its own rows and keeps its columns.
    Exchanged,
}

impl Distribution {
    /// Every distribution.
    pub const ALL: [Distribution; 6] = [
        Distribution::Global,
        Distribution::Gathered,
        Distribution::Sharded,
        Distribution::Scattered,
        Distribution::Reduced,
        Distribution::Exchanged,
    ];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Distribution::Global => "global",
            Distribution::Gathered => "gathered",
            Distribution::Sharded => "sharded",
            Distribution::Scattered => "scattered",
            Distribution::Reduced => "reduced",
            Distribution::Exchanged => "exchanged",
        }
    }

    /// Whether a rank's part of the tensor is its row shard and not the whole.
    pub const fn is_sharded(self) -> bool {
        match self {
            Distribution::Global | Distribution::Reduced | Distribution::Exchanged => false,
            Distribution::Gathered | Distribution::Sharded | Distribution::Scattered => true,
        }
    }
}

/// What a parameter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParamType {
    /// A matrix, or a vector where a kernel reads it by [`Op::Cols`] or [`Op::Rows`].
    Tensor {
        /// How rows are distributed.
        distribution: Distribution,
        /// Element type in memory.
        element: Element,
        /// Written (`&mut`) or read (`&`).
        written: bool,
    },
    /// An f32 passed at launch.
    Scalar,
}

/// A parameter with the user's name for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// The user's name.
    pub name: String,
    /// What it is.
    pub ty: ParamType,
    /// Where it was declared.
    pub span: Span,
}

/// Elementwise functions of one operand, evaluated in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unary {
    /// `-x`.
    Neg,
    /// `max(x, 0)`.
    Relu,
    /// `x/2 · (1 + erf(x/√2))`.
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³)))`.
    GeluTanh,
    /// `x / (1 + e⁻ˣ)`.
    Silu,
    /// `eˣ`.
    Exp,
    /// Hyperbolic tangent.
    Tanh,
}

impl Unary {
    /// Every unary function.
    pub const ALL: [Unary; 7] = [
        Unary::Neg,
        Unary::Relu,
        Unary::Gelu,
        Unary::GeluTanh,
        Unary::Silu,
        Unary::Exp,
        Unary::Tanh,
    ];

    /// The name in kernels and in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Unary::Neg => "neg",
            Unary::Relu => "relu",
            Unary::Gelu => "gelu",
            Unary::GeluTanh => "gelu_tanh",
            Unary::Silu => "silu",
            Unary::Exp => "exp",
            Unary::Tanh => "tanh",
        }
    }
}

/// Elementwise functions of two operands, evaluated in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Binary {
    /// `x + y`.
    Add,
    /// `x - y`.
    Sub,
    /// `x · y`.
    Mul,
    /// `x / y`, correctly rounded.
    Div,
    /// The larger; a NaN operand gives the other one.
    Max,
    /// The smaller; a NaN operand gives the other one.
    Min,
}

impl Binary {
    /// Every binary function.
    pub const ALL: [Binary; 6] =
        [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::Max => "max",
            Binary::Min => "min",
        }
    }
}

/// The left operand of a [`Op::Gemm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lhs {
    /// A local tensor, `[rows, k]`.
    Param(ParamId),
    /// A local tensor, `[k, rows]`, whose transpose is multiplied.
    Transposed(ParamId),
    /// Rows a [`Op::Wait`] or an [`Op::Ready`] made ready.
    Ready(Value),
}

/// What an op does. Values are tiles of f32 unless said otherwise.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// The tile's rows of a gathered tensor, once they have arrived. Yields ready rows.
    Wait {
        /// The gathered tensor.
        tensor: ParamId,
    },
    /// Blocks until every own signal of a range of slots has been raised `times` times in this
    /// launch. Yields what [`Op::Ready`] needs. Slots are expressions of [`Protocol::TILE`] and,
    /// where the products are cut along k, of [`Protocol::SLICE`].
    Await {
        /// An array of the protocol.
        signal: SignalId,
        /// The slots.
        slots: Range,
        /// How often a slot is raised in a launch.
        times: Expr,
    },
    /// The tile's rows of a workspace of the protocol, once something has been waited for. Yields
    /// ready rows.
    Ready {
        /// A workspace of the protocol.
        buffer: BufferId,
        /// An [`Op::Await`].
        after: Value,
    },
    /// The tile of `a · b`, accumulated in f32.
    Gemm {
        /// `[m, k]`.
        a: Lhs,
        /// `[n, k]` where `transposed`, else `[k, n]`.
        b: ParamId,
        /// Whether the product is `a · bᵀ`.
        transposed: bool,
    },
    /// A vector over the columns (length n), repeated on every row.
    Cols {
        /// A tensor of n elements.
        tensor: ParamId,
    },
    /// A vector over the rows (length m, or the shard's rows), repeated on every column.
    Rows {
        /// A tensor of m elements.
        tensor: ParamId,
    },
    /// The tile of a matrix of the output's shape.
    Load {
        /// `[m, n]`, or the rank's row shard of it.
        tensor: ParamId,
    },
    /// The tile of a gathered matrix of the output's shape, in rows that a [`Op::Wait`] made ready.
    LoadReady {
        /// What the wait yielded.
        ready: Value,
    },
    /// A number.
    Const(f32),
    /// A number passed at launch.
    Scalar {
        /// A scalar parameter.
        param: ParamId,
    },
    /// An elementwise function of one operand.
    Unary {
        /// Which.
        op: Unary,
        /// The operand.
        x: Value,
    },
    /// An elementwise function of two operands.
    Binary {
        /// Which.
        op: Binary,
        /// The left operand.
        x: Value,
        /// The right operand.
        y: Value,
    },
    /// Rounds to an element type, and goes on in f32.
    Cast {
        /// The operand.
        x: Value,
        /// The type rounded to, to nearest even.
        to: Element,
    },
    /// Contributes `x` to the sum over ranks; yields that sum, in the rows this rank owns of a
    /// scattered output, in every row of a reduced one.
    Reduce {
        /// A scattered or reduced output.
        output: ParamId,
        /// This rank's contribution.
        x: Value,
    },
    /// Puts a tile to this rank's plane of a workspace whose data carry their own flag, on one rank for each
    /// number of a range. Yields nothing.
    Put {
        /// A workspace of the protocol.
        buffer: BufferId,
        /// The numbers.
        hops: Range,
        /// The rank, from the number [`Protocol::HOP`].
        to: Expr,
        /// What is put; rounded to the workspace's element type.
        x: Value,
    },
    /// The sum over ranks of what each put to this one, in the order of ranks, this one's `own` in its place: once
    /// all of it has come.
    Total {
        /// A workspace of the protocol.
        buffer: BufferId,
        /// This rank's own contribution.
        own: Value,
    },
    /// Writes a tile of an output. Yields nothing.
    Store {
        /// An output.
        output: ParamId,
        /// What to write; rounded to the output's element type.
        x: Value,
    },
    /// Writes an output of the extents of a gathered tensor: all rows that ranks own of it, each once,
    /// whichever tiles wait for them. Yields nothing.
    Keep {
        /// An output of the element type of what is kept.
        output: ParamId,
        /// An [`Op::Wait`] or an [`Op::Ready`], which says when rows are there.
        rows: Value,
    },
}

/// An op with the place it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct OpEntry {
    /// What it does.
    pub op: Op,
    /// The user's token.
    pub span: Span,
}

/// What a kernel says beside its tile loop: workspace on every rank, signals, and roles that move
/// bytes, each a sequence of loops, waits, copies and signals.
///
/// Statements are those of a Program, in its terms: what the user cannot choose is added by lowering
/// (the copies of a workspace by parity of the epoch, credits, the engine of a role).
#[derive(Debug, Clone, PartialEq)]
pub struct Protocol {
    /// Buffers (workspace, and parameters under their names), signals, variables, and an agent for
    /// each role. Nothing else of it is used.
    pub parts: Program,
    /// Slices along k of the kernel's products, each of which waits by itself; `None` where they
    /// are computed in one.
    pub slices: Option<Expr>,
}

impl Protocol {
    /// The first and the end of the tile's rows and columns, as every protocol numbers them.
    pub const TILE: [VarId; 4] = [VarId(0), VarId(1), VarId(2), VarId(3)];

    /// The number of the slice of k at hand.
    pub const SLICE: VarId = VarId(4);

    /// What a step along k spans.
    pub const K_STEP: VarId = VarId(5);

    /// Runs over the ranks that a tile is put to.
    pub const HOP: VarId = VarId(6);

    /// Names of these variables, in their order.
    pub const RESERVED: [&'static str; 7] =
        ["tile.row0", "tile.row1", "tile.col0", "tile.col1", "slice", "k.step", "put.hop"];

    /// Nothing yet, of a kernel called `name`.
    pub fn new(name: &str) -> Protocol {
        let mut parts = Program::empty(name, &Schedule::host());
        for name in Protocol::RESERVED {
            parts.vars.push(Var { name: name.into() });
        }
        Protocol { parts, slices: None }
    }

    /// The columns of slice `index` of `slices`: whole steps along k.
    pub fn slice(index: &Expr, slices: &Expr) -> Range {
        let steps = Expr::from(Sym::K).ceil_div(Protocol::K_STEP).ceil_div(slices.clone());
        let cols = steps * Protocol::K_STEP;
        let from = |index: Expr| (index * cols.clone()).min(Sym::K);
        Range::new(from(index.clone()), from(index.clone() + 1i64))
    }
}

/// A kernel as the user wrote it.
#[derive(Debug, Clone, PartialEq)]
pub struct Kernel {
    /// The function's name.
    pub name: String,
    /// Parameters, in the user's order.
    pub params: Arena<ParamId, Param>,
    /// The output whose tiles are iterated.
    pub tiles_of: ParamId,
    /// The `for` token.
    pub loop_span: Span,
    /// The ops of the tile loop, in order; a [`Value`] is the index of the op that yields it.
    pub ops: Arena<Value, OpEntry>,
    /// Workspace, signals and roles of its own.
    pub protocol: Option<Box<Protocol>>,
    /// The function's name token.
    pub span: Span,
}

impl Kernel {
    /// The parameter called `name`.
    pub fn param(&self, name: &str) -> Option<ParamId> {
        self.params.iter().find(|(_, p)| p.name == name).map(|(id, _)| id)
    }

    /// Distribution, element type and whether written, of a tensor parameter.
    pub fn tensor(&self, param: ParamId) -> Option<(Distribution, Element, bool)> {
        match self.params.get(param)?.ty {
            ParamType::Tensor { distribution, element, written } => {
                Some((distribution, element, written))
            }
            ParamType::Scalar => None,
        }
    }
}
