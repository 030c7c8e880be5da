//! What the ranks share: symmetric buffers, signals, and how far each rank has come.

use crate::error::Error;
use crate::given::{self, Given, Parts, Words};
use crate::sheet::{CELL_OVERHEAD, Sheet};
use crate::tensor::Values;
use crate::totals::Totals;
use flux_ir::arena::Handle;
use flux_ir::check::Verified;
use flux_ir::eval::{Extent, Launch, RankView};
use flux_ir::program::{BufferId, BufferKind, Expr, Op, Program, Range, SignalId, Sym};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Where buffers and signals are, if not in `ranks`.
    given: Option<Given>,
    failed: AtomicBool,
    first_failure: Mutex<Option<Error>>,
}

/// One rank's part. Where memory is given, it has neither buffers nor signals.
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

/// Where a symmetric buffer is.
#[derive(Debug)]
pub(crate) enum Place<'w> {
    Sheet(&'w Sheet<Values>),
    Words(Words<'w>),
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
        Ok(Workspace::of(program, launch, ranks, None))
    }

    /// The workspace of `verified` for `launch` in memory that is given: words which others may have
    /// mapped as well, and launch their ranks on, each with a workspace of its own over the same
    /// words. What each rank has completed is known only to the workspace that launches it.
    ///
    /// # Errors
    /// [`Error::TooFewWords`], [`Error::NoCtas`], or a tile order that is no permutation.
    pub fn over(verified: &Verified, launch: Launch, parts: Arc<dyn Parts>) -> Result<Self, Error> {
        if launch.ctas == 0 {
            return Err(Error::NoCtas);
        }
        let program = verified.program();
        let views = (0..launch.world)
            .map(|rank| {
                let view = RankView::new(program, launch, rank)?;
                let extents = extents(&view);
                Ok((view, extents))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let given = Given::new(parts, &views)?;
        let ranks = views.into_iter().map(|(_, extents)| RankMemory::elsewhere(extents)).collect();
        Ok(Workspace::of(program, launch, ranks, Some(given)))
    }

    /// The 32-bit words of memory that `rank` needs where it is given ([`Workspace::over`]).
    ///
    /// # Errors
    /// A tile order that is no permutation.
    pub fn words(verified: &Verified, launch: Launch, rank: u32) -> Result<u64, Error> {
        let view = RankView::new(verified.program(), launch, rank)?;
        Ok(given::words(&view, &extents(&view)))
    }

    fn of(
        program: &Program,
        launch: Launch,
        ranks: Vec<RankMemory>,
        given: Option<Given>,
    ) -> Workspace {
        let (program, failed) = (program.clone(), AtomicBool::new(false));
        Workspace { program, launch, ranks, given, failed, first_failure: Mutex::new(None) }
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
        let ranks = 0..self.launch.world;
        ranks.clone().try_for_each(|rank| self.require_rest(rank))?;
        ranks.for_each(|rank| self.restart_at(rank, &totals, launches));
        self.forgive();
        Ok(())
    }

    /// As [`Workspace::restart`], for the part of one rank, where memory is given and each rank's is
    /// restarted by who launches it. No rank of them all is in a launch.
    ///
    /// # Errors
    /// [`Error::Running`] where the rank has not left its launch; [`Error::NoSuchRank`].
    pub fn restart_rank(&self, rank: u32, launches: u32) -> Result<(), Error> {
        let totals = Totals::after(&self.program, self.launch, launches)?;
        self.require_rest(rank)?;
        self.restart_at(rank, &totals, launches);
        self.forgive();
        Ok(())
    }

    fn require_rest(&self, rank: u32) -> Result<(), Error> {
        let progress = lock(&self.rank(rank)?.progress);
        if progress.running {
            return Err(Error::Running { rank, epoch: progress.completed.wrapping_add(1) });
        }
        Ok(())
    }

    fn restart_at(&self, rank: u32, totals: &Totals, launches: u32) {
        let Ok(memory) = self.rank(rank) else { return };
        match &self.given {
            Some(given) => given.zero(rank),
            None => memory.symmetric.iter().flatten().for_each(Sheet::zero),
        }
        for id in self.program.signals.handles() {
            for (word, value) in self.signals(rank, id).iter().zip(totals.of(rank, id.index())) {
                word.store(*value, Ordering::Release);
            }
        }
        lock(&memory.progress).completed = launches;
    }

    fn forgive(&self) {
        *lock(&self.first_failure) = None;
        self.failed.store(false, Ordering::Release);
    }

    /// What every signal is at.
    pub fn totals(&self) -> Totals {
        let words = |array: &[AtomicU32]| -> Vec<u32> {
            array.iter().map(|word| word.load(Ordering::Acquire)).collect()
        };
        let arrays = |rank| {
            let signals = self.program.signals.handles();
            signals.map(|id| words(self.signals(rank, id))).collect()
        };
        Totals::of_words((0..self.launch.world).map(arrays).collect())
    }

    /// Notes that `rank` has left a launch that failed.
    pub(crate) fn leave(&self, rank: u32) {
        if let Ok(memory) = self.rank(rank) {
            lock(&memory.progress).running = false;
        }
    }

    /// Marks the workspace as lost, by a failure of `rank`; the first is the one that is told.
    pub(crate) fn fail(&self, rank: u32, error: &Error) {
        lock(&self.first_failure).get_or_insert_with(|| error.clone());
        self.failed.store(true, Ordering::Release);
        if let Some(given) = &self.given {
            given.fail(rank);
        }
    }

    /// Whether some launch has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire) || self.given.as_ref().is_some_and(Given::has_failed)
    }

    /// The first failure.
    pub(crate) fn failure(&self) -> Option<Error> {
        let own = lock(&self.first_failure).clone();
        own.or_else(|| self.given.as_ref()?.failure())
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
    pub(crate) fn symmetric(&self, rank: u32, buffer: BufferId) -> Option<Place<'_>> {
        match &self.given {
            Some(given) => given.buffer(rank, buffer).map(Place::Words),
            None => {
                let buffers = &self.ranks.get(rank as usize)?.symmetric;
                buffers.get(buffer.index())?.as_ref().map(Place::Sheet)
            }
        }
    }

    /// A signal on `rank`.
    pub(crate) fn signal(&self, rank: u32, signal: SignalId, slot: u32) -> Option<&AtomicU32> {
        self.signals(rank, signal).get(slot as usize)
    }

    /// The words of an array of signals on `rank`; none of what there is not.
    fn signals(&self, rank: u32, signal: SignalId) -> &[AtomicU32] {
        let array = match &self.given {
            Some(given) => given.signals(rank, signal),
            None => {
                let memory = self.ranks.get(rank as usize);
                memory.and_then(|memory| memory.signals.get(signal.index())).map(|array| &**array)
            }
        };
        array.unwrap_or(&[])
    }
}

/// The extents of all buffers on a rank.
fn extents(view: &RankView<'_>) -> Vec<BufferExtent> {
    let extent = |id| {
        let Extent { planes, rows, cols } = view.extent(id);
        let first_row = view.first_row(id, view.rank);
        let first_col = view.first_col(id, view.rank);
        let [planes, rows, cols] = [planes, rows, cols].map(|extent| extent as usize);
        BufferExtent { planes, rows, cols, first_row, first_col }
    };
    view.program.buffers.handles().map(extent).collect()
}

impl RankMemory {
    fn new(view: &RankView<'_>) -> Self {
        let program = view.program;
        let extents = extents(view);
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

    fn elsewhere(extents: Vec<BufferExtent>) -> Self {
        let (symmetric, signals) = (Vec::new(), Vec::new());
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
/// those of a tile, or as many as divide a tile, the column shards that tensors have and, in a buffer
/// that is summed over, a k-step.
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
    // Along the sum, accesses end between k-steps.
    let step = if *cols == Expr::from(Sym::K) { program.tile.k } else { 0 };
    let tile = divisor(program.tile.n.max(1), step);
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

#[cfg(test)]
mod tests {
    use super::*;
    use flux_ir::lower::lower;
    use flux_ir::{Schedule, Shape};

    /// Slices of 16 columns arrive while others are read: a lock of 24 columns would take both for one.
    #[test]
    fn a_lock_guards_no_more_than_one_slice_of_what_arrives_along_k() {
        let text = include_str!("../../examples/protocols.rs");
        let found = flux_syntax::read_file(text).expect("a source text").into_iter();
        let sliced =
            found.filter_map(|found| found.kernel.ok()).find(|kernel| kernel.name == "sliced");
        let schedule = Schedule::host().tile(16, 24, 16);
        let program = lower(&sliced.expect("the protocol"), &schedule).expect("a Program");
        let named = |name: &str| {
            let mut buffers = program.buffers.iter();
            buffers.find(|(_, buffer)| buffer.name == name).expect("a buffer of this name").0
        };
        let launch = Launch { shape: Shape { m: 17, n: 48, k: 70 }, world: 2, ctas: 1 };
        assert_eq!(band(&program, launch, named("all")), 8, "divides 24 and 16");
        assert_eq!(band(&program, launch, named("c")), 24, "stored tile by tile");
    }
}
