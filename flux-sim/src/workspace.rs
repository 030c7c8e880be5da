//! What the ranks share: symmetric buffers, signals, and how far each rank has come.

use crate::error::Error;
use crate::sheet::{CELL_OVERHEAD, Sheet};
use crate::tensor::Values;
use crate::totals::Totals;
use flux_ir::arena::Handle;
use flux_ir::check::Verified;
use flux_ir::eval::{Extent, Launch, RankView};
use flux_ir::program::{BufferId, BufferKind, Expr, Op, Program, Range, SignalId};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes a workspace may take unless another limit is given: 8 GiB.
pub const DEFAULT_LIMIT_BYTES: u64 = 8 << 30;

/// Symmetric buffers and signals of all ranks, for the launches of one kernel at one shape.
///
/// The ranks share it by reference or in an `Arc`. It remembers how many launches each rank has
/// completed, and is lost for further ones once a launch has failed.
pub struct Workspace {
    program: Program,
    launch: Launch,
    ranks: Vec<RankMemory>,
    failed: AtomicBool,
    first_failure: Mutex<Option<Error>>,
}

/// One rank's part.
struct RankMemory {
    extents: Vec<BufferExtent>,
    symmetric: Vec<Option<Sheet<Values>>>,
    signals: Vec<Box<[AtomicU32]>>,
    progress: Mutex<Progress>,
}

/// How far a rank has come.
#[derive(Debug, Default)]
struct Progress {
    completed: u32,
    running: bool,
}

/// A buffer's extents on one rank, and the row its memory begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferExtent {
    pub(crate) planes: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) first_row: u32,
    pub(crate) first_col: u32,
}

impl Workspace {
    /// The workspace of `verified` for `launch`, of at most [`DEFAULT_LIMIT_BYTES`].
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NoCtas`], or a tile order that is no permutation.
    pub fn new(verified: &Verified, launch: Launch) -> Result<Self, Error> {
        Workspace::with_limit(verified, launch, DEFAULT_LIMIT_BYTES)
    }

    /// The workspace of `verified` for `launch`, of at most `limit` bytes.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NoCtas`], or a tile order that is no permutation.
    pub fn with_limit(verified: &Verified, launch: Launch, limit: u64) -> Result<Self, Error> {
        if launch.ctas == 0 {
            return Err(Error::NoCtas);
        }
        let program = verified.program();
        let bytes = Workspace::bytes(verified, launch)?;
        if bytes > limit {
            let (shape, world) = (launch.shape, launch.world);
            return Err(Error::TooLarge { bytes, limit, shape, world });
        }
        let ranks = (0..launch.world)
            .map(|rank| Ok(RankMemory::new(&RankView::new(program, launch, rank)?)))
            .collect::<Result<_, Error>>()?;
        Ok(Workspace {
            program: program.clone(),
            launch,
            ranks,
            failed: AtomicBool::new(false),
            first_failure: Mutex::new(None),
        })
    }

    /// Bytes that a workspace takes, of all ranks together. Allocates nothing of that size.
    ///
    /// # Errors
    /// A tile order that is no permutation.
    pub fn bytes(verified: &Verified, launch: Launch) -> Result<u64, Error> {
        let program = verified.program();
        let mut total = 0_u64;
        for rank in 0..launch.world {
            let view = RankView::new(program, launch, rank)?;
            for (id, buffer) in program.buffers.iter() {
                if buffer.kind == BufferKind::Symmetric {
                    let Extent { planes, rows, cols } = view.extent(id);
                    let rows = planes.saturating_mul(rows);
                    let cells = cols.div_ceil(band(program, launch, id) as u64) * CELL_OVERHEAD;
                    let row = cols.saturating_mul(buffer.element.bytes().into());
                    total = total.saturating_add(rows.saturating_mul(row.saturating_add(cells)));
                }
            }
            let signals = program.signals.handles().map(|id| u64::from(view.signal_len(id)) * 4);
            total = signals.fold(total, u64::saturating_add);
        }
        Ok(total)
    }

    /// The launch the workspace was made for.
    pub fn launch(&self) -> Launch {
        self.launch
    }

    /// The number of launches that `rank` has completed.
    ///
    /// # Errors
    /// A rank outside of the world.
    pub fn completed(&self, rank: u32) -> Result<u32, Error> {
        Ok(lock(&self.rank(rank)?.progress).completed)
    }

    /// Refuses a launch that the workspace was not made for.
    pub(crate) fn accepts(
        &self,
        verified: &Verified,
        launch: Launch,
        rank: u32,
    ) -> Result<(), Error> {
        self.rank(rank)?;
        let describe = |program: &Program, Launch { shape, world, ctas }: Launch| {
            format!("`{}` at {shape} with {world} ranks of {ctas} CTAs", program.name)
        };
        if launch != self.launch || verified.program().name != self.program.name {
            let expected = describe(&self.program, self.launch);
            return Err(Error::OtherLaunch {
                expected,
                found: describe(verified.program(), launch),
            });
        }
        if *verified.program() != self.program {
            let expected = describe(&self.program, self.launch);
            return Err(Error::OtherLaunch { expected, found: "another Program of it".into() });
        }
        Ok(())
    }

    /// Notes that `rank` begins launch `epoch`.
    pub(crate) fn begin(&self, rank: u32, epoch: u32) -> Result<(), Error> {
        if let Some(first) = self.failure() {
            return Err(Error::Lost { first: Box::new(first) });
        }
        let mut progress = lock(&self.rank(rank)?.progress);
        let expected = progress.completed.wrapping_add(1);
        if progress.running {
            return Err(Error::Running { rank, epoch: expected });
        }
        if epoch != expected {
            return Err(Error::Epoch { rank, expected, found: epoch });
        }
        progress.running = true;
        Ok(())
    }

    /// Notes that `rank` has completed its launch.
    pub(crate) fn complete(&self, rank: u32) {
        if let Ok(memory) = self.rank(rank) {
            let mut progress = lock(&memory.progress);
            progress.completed = progress.completed.wrapping_add(1);
            progress.running = false;
        }
    }

    /// Makes the workspace what it is when every rank has completed so many launches, whatever failed
    /// before: a lost one can be used again.
    ///
    /// # Errors
    /// [`Error::Running`] where a rank has not left its launch.
    pub fn restart(&self, launches: u32) -> Result<(), Error> {
        let totals = Totals::after(&self.program, self.launch, launches)?;
        let ranks = (0..).zip(&self.ranks);
        for (rank, memory) in ranks.clone() {
            let progress = lock(&memory.progress);
            if progress.running {
                return Err(Error::Running { rank, epoch: progress.completed.wrapping_add(1) });
            }
        }
        for (rank, memory) in ranks {
            memory.symmetric.iter().flatten().for_each(Sheet::zero);
            for (index, array) in memory.signals.iter().enumerate() {
                for (word, value) in array.iter().zip(totals.of(rank, index)) {
                    word.store(*value, Ordering::Release);
                }
            }
            lock(&memory.progress).completed = launches;
        }
        *lock(&self.first_failure) = None;
        self.failed.store(false, Ordering::Release);
        Ok(())
    }

    /// What every signal is at.
    pub fn totals(&self) -> Totals {
        let words =
            |array: &[AtomicU32]| array.iter().map(|word| word.load(Ordering::Acquire)).collect();
        let arrays =
            |memory: &RankMemory| memory.signals.iter().map(|array| words(array)).collect();
        Totals::of_words(self.ranks.iter().map(arrays).collect())
    }

    /// Notes that `rank` has left a launch that failed.
    pub(crate) fn leave(&self, rank: u32) {
        if let Ok(memory) = self.rank(rank) {
            lock(&memory.progress).running = false;
        }
    }

    /// Marks the workspace as lost; the first failure is the one that is told.
    pub(crate) fn fail(&self, error: &Error) {
        lock(&self.first_failure).get_or_insert_with(|| error.clone());
        self.failed.store(true, Ordering::Release);
    }

    /// Whether some launch has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The first failure.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.first_failure).clone()
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    fn rank(&self, rank: u32) -> Result<&RankMemory, Error> {
        let world = self.launch.world;
        self.ranks.get(rank as usize).ok_or(Error::NoSuchRank { rank, world })
    }

    /// The extents of a buffer on `rank`.
    pub(crate) fn extent(&self, rank: u32, buffer: BufferId) -> Option<BufferExtent> {
        self.ranks.get(rank as usize)?.extents.get(buffer.index()).copied()
    }

    /// A symmetric buffer on `rank`.
    pub(crate) fn sheet(&self, rank: u32, buffer: BufferId) -> Option<&Sheet<Values>> {
        self.ranks.get(rank as usize)?.symmetric.get(buffer.index())?.as_ref()
    }

    /// A signal on `rank`.
    pub(crate) fn signal(&self, rank: u32, signal: SignalId, slot: u32) -> Option<&AtomicU32> {
        self.ranks.get(rank as usize)?.signals.get(signal.index())?.get(slot as usize)
    }
}

impl RankMemory {
    fn new(view: &RankView<'_>) -> Self {
        let program = view.program;
        let extents: Vec<_> = program
            .buffers
            .handles()
            .map(|id| {
                let Extent { planes, rows, cols } = view.extent(id);
                let first_row = view.first_row(id, view.rank);
                let first_col = view.first_col(id, view.rank);
                let [planes, rows, cols] = [planes, rows, cols].map(|extent| extent as usize);
                BufferExtent { planes, rows, cols, first_row, first_col }
            })
            .collect();
        let symmetric = program
            .buffers
            .iter()
            .map(|(id, buffer)| {
                let BufferExtent { planes, rows, cols, .. } = extents[id.index()];
                (buffer.kind == BufferKind::Symmetric).then(|| {
                    let band = band(program, view.launch, id);
                    Sheet::zeroed(buffer.element, planes * rows, cols, band)
                })
            })
            .collect();
        let signals = program
            .signals
            .handles()
            .map(|id| (0..view.signal_len(id)).map(|_| AtomicU32::new(0)).collect())
            .collect();
        RankMemory { extents, symmetric, signals, progress: Mutex::default() }
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace")
            .field("program", &self.program.name)
            .field("launch", &self.launch)
            .field("failed", &self.has_failed())
            .finish_non_exhaustive()
    }
}

/// The lock of data that stays whole whatever happens to its holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Columns of a buffer that one lock guards: all of them where every write takes whole rows, else
/// those of a tile, or as many as divide both a tile and the column shards that tensors have.
pub(crate) fn band(program: &Program, launch: Launch, buffer: BufferId) -> usize {
    let cols = &program.buffers[buffer].cols;
    let whole = program.statements().all(|stmt| match &stmt.op {
        Op::Store { to, .. } | Op::Copy { to, .. } => {
            let Range { lo, hi } = &to.cols;
            to.buffer != buffer || (*lo == Expr::Int(0) && hi == cols)
        }
        Op::Let { .. }
        | Op::Row { .. }
        | Op::For { .. }
        | Op::If { .. }
        | Op::Wait { .. }
        | Op::FenceProxyAsync
        | Op::Mainloop { .. }
        | Op::Sum { .. }
        | Op::Load { .. }
        | Op::Signal { .. } => true,
    });
    if whole {
        return u32::MAX as usize;
    }
    let tile = program.tile.n.max(1);
    let mut shards = program.buffers.iter().filter(|(_, b)| b.first_col != Expr::Int(0)).peekable();
    if shards.peek().is_none() {
        return tile as usize;
    }
    let view = RankView::definitions(program, launch, 0);
    shards.fold(tile, |band, (id, _)| divisor(band, view.first_col(id, 1))) as usize
}

/// The greatest common divisor; `a` where `b` is 0.
const fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}
