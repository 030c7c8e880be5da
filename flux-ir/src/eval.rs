//! A Program on concrete numbers: the one interpreter of its control flow.
//!
//! Control flow does not depend on data, so an agent of a given launch is a finite sequence of
//! [`Event`]s. Checker, host executor and the host side of copy engines all walk it.
//!
//! Index arithmetic is total: a quotient or remainder by zero is 0, a step below 1 counts as 1.

mod fold;
mod walk;

pub use walk::AgentRun;

use crate::arena::Handle;
use crate::element::Element;
use crate::order::OrderError;
use crate::program::{
    AgentId, BufferId, Completion, Expr, Program, Scope, SignalId, Stmt, Sym, Table, TableId,
    Transposed, ValueId, ValueOp,
};
use crate::tile::{Grid, Ranks, Shape, TileCoord};
use fold::{Code, Folded, Folder, Inputs};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// The numbers of one launch that all ranks share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Launch {
    /// Extents of the problem.
    pub shape: Shape,
    /// The number of ranks.
    pub world: u32,
    /// CTAs of each rank's grid.
    pub ctas: u32,
}

/// A Program as one rank of a launch sees it: definitions evaluated, tables filled.
#[derive(Debug, Clone)]
pub struct RankView<'p> {
    /// The Program.
    pub program: &'p Program,
    /// The launch.
    pub launch: Launch,
    /// The rank.
    pub rank: u32,
    /// Values of the Program's definitions, by variable; others are 0.
    vars: Vec<i64>,
    tables: Vec<Vec<[u32; 4]>>,
    /// The rows of the output that the tiles of each table cover.
    tiled: Vec<Range<u32>>,
    /// How they are cut into tiles.
    grids: Vec<Grid>,
    /// By value, the loads it reads.
    loads: Vec<SmallVec<[u32; 1]>>,
    /// Body and exit of each agent.
    agents: Vec<[Vec<Code<'p>>; 2]>,
}

/// The extents of a buffer on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Matrices, one behind the other.
    pub planes: u64,
    /// Rows of each.
    pub rows: u64,
    /// Columns of each.
    pub cols: u64,
}

impl Extent {
    /// Elements in all.
    pub const fn elements(self) -> u64 {
        self.planes * self.rows * self.cols
    }
}

/// A rectangle of one plane of a buffer on one rank. Rows and columns count in the whole tensor;
/// [`RankView::first_row`] and [`RankView::first_col`] are those that its memory begins with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Region {
    /// The rank it lies on.
    pub rank: u32,
    /// The buffer.
    pub buffer: BufferId,
    /// The plane, leading dimensions flattened.
    pub plane: u32,
    /// Its rows.
    pub rows: Range<u32>,
    /// Its columns.
    pub cols: Range<u32>,
}

impl Region {
    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() || self.cols.is_empty()
    }
}

/// Regions that a value reads, with the number of the [`crate::program::ValueOp::Loaded`] each is.
pub type Loads = SmallVec<[(u32, Region); 1]>;

/// How a signal changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Adds so much.
    Add(u32),
    /// Becomes this.
    Set(u32),
}

/// One thing an agent does. Empty regions are left in: they touch nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Blocks until each own signal in `slots` has reached `target`.
    Wait {
        /// The array.
        signal: SignalId,
        /// The slots.
        slots: Range<u32>,
        /// The least value that ends the wait; 0 or less ends at once.
        target: i64,
        /// Who may have signalled.
        scope: Scope,
    },
    /// Orders acquires and generic writes before bulk accesses that follow.
    FenceProxyAsync,
    /// Computes the accumulators of a tile: operands `a` and `b` of each, and which of them are
    /// transposed. The first of a visit begins the sums, and so does the first behind a whole reduction; others
    /// add to them.
    Mainloop {
        /// One per accumulator.
        products: SmallVec<[(Region, Region, Transposed); 1]>,
    },
    /// Writes the part of the current tile that lies in `to`.
    Store {
        /// Where.
        to: Region,
        /// What.
        value: ValueId,
        /// What of workspace the value reads, by [`crate::program::Op::Load`]s: the elements of `to`.
        loads: Loads,
        /// Whether it is added to what lies there.
        adds: bool,
    },
    /// Sums contributions in the order of ranks.
    Sum {
        /// This rank's own contribution.
        own: ValueId,
        /// What contributions are rounded to.
        element: Element,
        /// The others', in the order of ranks.
        from: Vec<Region>,
        /// What of workspace the own contribution reads: the elements that are summed.
        loads: Loads,
    },
    /// Raises a signal.
    Signal {
        /// The rank it lies on.
        rank: u32,
        /// The array.
        signal: SignalId,
        /// Which one.
        slot: u32,
        /// How.
        change: Change,
        /// Who may wait.
        scope: Scope,
        /// What preceding puts and copies must have reached.
        after: Completion,
    },
    /// Copies a region.
    Copy {
        /// Source.
        from: Region,
        /// Destination.
        to: Region,
        /// Whether it is added to what lies there.
        adds: bool,
    },
}

/// An action with the statement it comes from.
#[derive(Debug, Clone)]
pub struct Event<'p> {
    /// The statement.
    pub stmt: &'p Stmt,
    /// Its number among [`Program::statements`].
    pub number: u32,
    /// The tile the agent is at: rows and columns of the whole output. Empty before the first.
    pub tile: TileRange,
    /// How many tiles the agent has come to, this one included.
    pub visit: u32,
    /// What is done.
    pub action: Action,
}

/// The rows and columns of the whole output that a tile covers, cut at the edges.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct TileRange {
    /// Rows of the output over all ranks.
    pub rows: Range<u32>,
    /// Columns.
    pub cols: Range<u32>,
}

impl<'p> RankView<'p> {
    /// Evaluates definitions and fills the tables of `rank`.
    ///
    /// # Errors
    /// A tile order that is no permutation of the launch's grid.
    pub fn new(program: &'p Program, launch: Launch, rank: u32) -> Result<Self, OrderError> {
        let mut view = RankView::definitions(program, launch, rank);
        let ranks = Ranks { rank, world: launch.world };
        for (table, grid) in program.tables.values().zip(view.grids.clone()) {
            let tiles = table.order.table(&grid, ranks)?;
            let mut fields = Fields::new(&view, table);
            let rows = tiles.into_iter().map(|tile| {
                let [first, second] = fields.of(tile);
                [tile.m, tile.n, first, second]
            });
            view.tables.push(rows.collect());
        }
        Ok(view)
    }

    /// Evaluates definitions alone: enough for extents, and for agents that read no table. Every
    /// table is empty.
    pub fn definitions(program: &'p Program, launch: Launch, rank: u32) -> Self {
        let folder = Folder::new(program, launch, rank);
        let vars = folder.values();
        let (loads, tables, tiled, grids) = (loads(program), Vec::new(), Vec::new(), Vec::new());
        let agents = folder.agents();
        let mut view =
            RankView { program, launch, rank, vars, tables, tiled, grids, loads, agents };
        let tiled = program.tables.values().map(|table| {
            let [lo, hi] = [&table.tiled.lo, &table.tiled.hi].map(|end| clamp(view.constant(end)));
            lo..hi.max(lo)
        });
        view.tiled = tiled.collect();
        let scattered = program.scatters();
        let grids = program.tables.values().zip(&view.tiled).map(|(table, rows)| {
            let shape = Shape { m: rows.len() as u32, ..launch.shape };
            let grid = Grid::new(shape, program.tile, launch.world, scattered);
            if table.by_shard { grid.by_shard() } else { grid }
        });
        view.grids = grids.collect();
        view
    }

    /// The rows of a table, in the order of the schedule: m, n and the two fields.
    pub fn table(&self, table: TableId) -> &[[u32; 4]] {
        self.tables.get(table.index()).map_or(&[], Vec::as_slice)
    }

    /// The rows of the output that the tiles of a table cover.
    pub fn tiled(&self, table: TableId) -> Range<u32> {
        self.tiled.get(table.index()).cloned().unwrap_or_default()
    }

    /// The grid of tiles of a table.
    pub fn grid(&self, table: TableId) -> Option<&Grid> {
        self.grids.get(table.index())
    }

    /// An expression of symbols and definitions alone.
    pub fn constant(&self, expr: &Expr) -> i64 {
        self.constant_on(self.rank, expr)
    }

    /// An expression of symbols and definitions alone, with another rank's number for the own.
    fn constant_on(&self, rank: u32, expr: &Expr) -> i64 {
        let of = |expr| self.constant_on(rank, expr);
        match expr {
            Expr::Int(value) => *value,
            Expr::Var(var) => self.vars[var.index()],
            Expr::Sym(sym) => i64::from(match sym {
                Sym::M => self.launch.shape.m,
                Sym::N => self.launch.shape.n,
                Sym::K => self.launch.shape.k,
                Sym::Shard => self.program.longest_shard(self.launch.shape.m, self.launch.world),
                Sym::World => self.launch.world,
                Sym::Rank => rank,
                Sym::Ctas => self.launch.ctas,
                Sym::Epoch | Sym::Cta => 0,
            }),
            Expr::First(rank) => {
                let Launch { shape, world, .. } = self.launch;
                self.program.first_row(shape.m, world, of(rank))
            }
            Expr::Bin(op, a, b) => fold::apply(*op, of(a), of(b)),
        }
    }

    /// The number of signals in an array.
    pub fn signal_len(&self, signal: SignalId) -> u32 {
        clamp(self.constant(&self.program.signals[signal].len))
    }

    /// The extents of this rank's part of a buffer.
    pub fn extent(&self, buffer: BufferId) -> Extent {
        let buffer = &self.program.buffers[buffer];
        let size = |expr| self.constant(expr).max(0) as u64;
        Extent {
            planes: buffer.planes.iter().map(size).product(),
            rows: size(&buffer.rows),
            cols: size(&buffer.cols),
        }
    }

    /// The row of the whole tensor that the part of `buffer` on `rank` begins with.
    pub fn first_row(&self, buffer: BufferId, rank: u32) -> u32 {
        let first = &self.program.buffers[buffer].first_row;
        clamp(self.constant_on(rank, first))
    }

    /// The column of the whole tensor that the part of `buffer` on `rank` begins with.
    pub fn first_col(&self, buffer: BufferId, rank: u32) -> u32 {
        let first = &self.program.buffers[buffer].first_col;
        clamp(self.constant_on(rank, first))
    }

    /// What `agent` does in the launch numbered `epoch`, on CTA `cta` (0 for a copy engine).
    pub fn agent(&self, agent: AgentId, cta: u32, epoch: u32) -> AgentRun<'_, 'p> {
        AgentRun::new(self, &self.agents[agent.index()][0], cta, epoch)
    }

    /// What the last CTA of `agent` does when all are through.
    pub fn exit(&self, agent: AgentId, epoch: u32) -> AgentRun<'_, 'p> {
        AgentRun::new(self, &self.agents[agent.index()][1], 0, epoch)
    }
}

/// The loads that each value of a Program reads.
fn loads(program: &Program) -> Vec<SmallVec<[u32; 1]>> {
    let mut all: Vec<SmallVec<[u32; 1]>> = Vec::with_capacity(program.values.len());
    for entry in program.values.values() {
        let of = |id: &ValueId| all.get(id.index()).cloned().unwrap_or_default();
        let mut loads = match &entry.op {
            ValueOp::Loaded(index) => smallvec![*index],
            ValueOp::Unary(_, x) | ValueOp::Cast(x, _) => of(x),
            ValueOp::Binary(_, x, y) => of(x).into_iter().chain(of(y)).collect(),
            ValueOp::Acc(_)
            | ValueOp::Sum
            | ValueOp::Const(_)
            | ValueOp::Scalar(_)
            | ValueOp::Cols(_)
            | ValueOp::Rows(_)
            | ValueOp::Load(_) => SmallVec::new(),
        };
        loads.sort_unstable();
        loads.dedup();
        all.push(loads);
    }
    all
}

/// The two further fields of a table's rows.
struct Fields {
    exprs: [Folded; 2],
    vars: Vec<i64>,
    m: usize,
    n: usize,
    /// By tile row, where the fields do not depend on the tile column.
    by_row: Option<Vec<Option<[u32; 2]>>>,
}

impl Fields {
    fn new(view: &RankView<'_>, table: &Table) -> Self {
        let folder = Folder::new(view.program, view.launch, view.rank);
        let exprs = [&table.fields[0], &table.fields[1]].map(|field| folder.expr(field));
        let (m, n) = (table.m.index(), table.n.index());
        let by_row = exprs.iter().all(|expr| !expr.mentions(n)).then(Vec::new);
        Fields { exprs, vars: view.vars.clone(), m, n, by_row }
    }

    fn of(&mut self, tile: TileCoord) -> [u32; 2] {
        let row = tile.m as usize;
        if let Some(known) = self.by_row.as_ref().and_then(|rows| *rows.get(row)?) {
            return known;
        }
        self.vars[self.m] = tile.m.into();
        self.vars[self.n] = tile.n.into();
        let inputs = Inputs { vars: &self.vars, cta: 0, epoch: 0 };
        let fields = [0, 1].map(|index: usize| clamp(self.exprs[index].eval(inputs)));
        if let Some(rows) = &mut self.by_row {
            rows.resize(rows.len().max(row + 1), None);
            rows[row] = Some(fields);
        }
        fields
    }
}

/// The nearest index a 32-bit word can hold.
fn clamp(value: i64) -> u32 {
    value.clamp(0, u32::MAX.into()) as u32
}
