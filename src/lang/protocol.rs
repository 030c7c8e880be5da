//! Protocols of one's own: workspace, signals, and roles that move bytes beside the tile loop.

use super::{Element, Fragment, Global, Never, Ready, Rows, Sharded, Tile, sealed::Sealed};
use std::marker::PhantomData;
use std::ops::Range;

/// An extent of the problem: what a workspace has as many rows or columns as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Rows of the whole output.
    M,
    /// Columns of the output.
    N,
    /// Length of the reduction.
    K,
}

/// Workspace of the same shape on every rank, made by [`symmetric`]. Peers write it by
/// [`put`](Symmetric::put), or add to it by [`reduce_add`](Symmetric::reduce_add); what they wrote is read as what [`ready`](Symmetric::ready) gives.
///
/// It exists twice, for launches with odd and with even numbers, and a role that writes to peers first
/// waits until they are through with the launch before last: nobody's data is overwritten while it is
/// read, and no launch begins with a barrier.
///
/// ```
/// # use flux::prelude::*;
/// /// C = all_gather(A) · Bᵀ around a ring: each rank hands on what reached it.
/// #[flux::kernel]
/// pub fn ring_ag_gemm(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
///     let all = symmetric::<bf16>(Extent::M, Extent::K);
///     let arrived = signals(world());
///     role("forward", || {
///         let own = all.put(rank(), a.part(shard(rank())));
///         arrived.signal(rank(), rank(), own);
///         let next = (rank() + world() - 1) % world();
///         for hop in 0..world() - 1 {
///             let source = (rank() + hop) % world();
///             let here = all.ready(shard(source), arrived.wait(source));
///             let sent = all.put(next, here);
///             arrived.signal(next, source, sent);
///         }
///     });
///     for tile in c.tiles() {
///         let rows = tile.rows();
///         let a = all.ready(rows, arrived.wait(owners(rows)));
///         c.store(tile, gemm(a, b.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct Symmetric<T> {
    never: Never,
    element: PhantomData<T>,
}

/// Workspace of `rows × cols` on every rank.
pub fn symmetric<T: Element>(rows: Extent, cols: Extent) -> Symmetric<T> {
    let _ = (rows, cols);
    unreachable!("{ONLY_READ}")
}

impl<T: Element> Symmetric<T> {
    /// Copies `source` to the same rows and columns on rank `to`, which may be this one. What it
    /// gives is passed to [`Signals::signal`]: a put that nobody is told of is an error.
    pub fn put(&self, to: u32, source: impl Source<T>) -> Put {
        let _ = (to, source);
        match self.never {}
    }

    /// Adds `source` to the same rows and columns on rank `to`, in place: each element is rounded once.
    /// `after` says that what it is added to lies there; of several ranks that add to one place, each
    /// waits for the one before it, so a sum has one order. Roles that add run on copy warps, or in bulk copies.
    pub fn reduce_add(&self, to: u32, source: impl Source<T>, after: Arrived) -> Put {
        let _ = (to, source, after);
        match self.never {}
    }

    /// Copies rows of rank `from`'s workspace, which are there, to the same rows here.
    pub fn get(&self, from: u32, rows: impl RowRange, after: Arrived) -> Put {
        let _ = (from, rows, after);
        match self.never {}
    }

    /// Rows of this rank's workspace, once `after` says that they are there.
    pub fn ready(&self, rows: impl RowRange, after: Arrived) -> Ready<T> {
        let _ = (rows, after);
        match self.never {}
    }
}

/// Workspace of the output's shape, with a plane for each rank, on every rank, made by [`flagged`]. Tiles are put
/// to it, and each element tells by itself that it has come: no signal travels behind the data, and the
/// [`sum`](Flagged::sum) of what was put polls the data. One step of latency is all that such an exchange takes.
///
/// Each rank puts to the plane of its own number, once an element; each sum takes every other rank's, once. What is not
/// so is refused by the checker, as is what rests on more than the data themselves: that they have come
/// orders them alone. Negative zeros travel as positive ones, as negative zero is what says "not yet".
///
/// Every rank sums, and a kernel does so once: a sum that one rank alone takes cannot be written. All ranks come to tiles in
/// one order (`grouped`, which is taken without a choice, `row_major` or `column_major`).
///
/// ```
/// # use flux::prelude::*;
/// /// C = all_reduce(A · Bᵀ) for few rows: each rank puts its contribution to all others, and all add up.
/// #[flux::kernel]
/// #[schedule(sm_90a, tile = (16, 64, 64), stages = 16, consumers = single)]
/// pub fn low_latency(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
///     let parts = flagged::<bf16>(Extent::M, Extent::N);
///     for tile in c.tiles() {
///         let part = gemm(a, b.t(), tile);
///         for hop in 1..world() {
///             parts.put((rank() + hop) % world(), tile, part);
///         }
///         c.store(tile, parts.sum(tile, part));
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct Flagged<T> {
    never: Never,
    element: PhantomData<T>,
}

/// Workspace of `rows × cols` for each rank, on every rank, whose data carry their own flag.
pub fn flagged<T: Element>(rows: Extent, cols: Extent) -> Flagged<T> {
    let _ = (rows, cols);
    unreachable!("{ONLY_READ}")
}

impl<T: Element> Flagged<T> {
    /// Puts `x`, rounded to the element type, to this rank's plane on rank `to`: in a tile, or in a loop over ranks
    /// in it that puts and does nothing else; ahead of the sum. `to` is never this rank itself: its own part is what the
    /// [`sum`](Flagged::sum) is given.
    pub fn put(&self, to: u32, tile: Tile, x: Fragment) {
        let _ = (to, tile, x);
        match self.never {}
    }

    /// The sum over ranks of what each put to this one, once all of it has come: in the order of ranks and in f32, with
    /// this rank's `own` in its place, rounded as if it had traveled. The same bits on every rank.
    pub fn sum(&self, tile: Tile, own: Fragment) -> Fragment {
        let _ = (tile, own);
        match self.never {}
    }
}

/// An array of signals on every rank, made by [`signals`]: counters that start a launch at none and
/// only grow.
#[derive(Debug)]
pub struct Signals(Never);

/// `len` signals on every rank.
pub fn signals(len: u32) -> Signals {
    let _ = len;
    unreachable!("{ONLY_READ}")
}

impl Signals {
    /// Raises slot `slot` on rank `to`, when what was put has been written there: `after` is what one
    /// or several [`put`](Symmetric::put)s gave, or `()`.
    pub fn signal(&self, to: u32, slot: u32, after: impl Sent) {
        let _ = (to, slot, after);
        match self.0 {}
    }

    /// Waits until a slot, or each of a range of slots, has been raised in this launch.
    pub fn wait(&self, slots: impl Slots) -> Arrived {
        let _ = slots;
        match self.0 {}
    }

    /// Waits until a slot, or each of a range, has been raised `times` times in this launch.
    pub fn wait_for(&self, slots: impl Slots, times: u32) -> Arrived {
        let _ = (slots, times);
        match self.0 {}
    }
}

/// Runs beside the loop over tiles, on the engine that the schedule's `transport` names: a copy engine,
/// or the kernel's own copy warps (`put`) or bulk copies (`tma`), over which each copy is split.
///
/// A role is a sequence of `let`, `for` over ranges, `if`, [`put`](Symmetric::put),
/// [`reduce_add`](Symmetric::reduce_add), [`get`](Symmetric::get),
/// [`signal`](Signals::signal) and [`wait`](Signals::wait), with ordinary integer arithmetic: `+`, `-`, `*`, `/`, `%`, and the
/// methods `min`, `max` and `div_ceil`.
pub fn role<F: FnOnce()>(name: &str, body: F) {
    let _ = (name, body);
    unreachable!("{ONLY_READ}")
}

/// This rank's number.
pub fn rank() -> u32 {
    unreachable!("{ONLY_READ}")
}

/// The number of ranks.
pub fn world() -> u32 {
    unreachable!("{ONLY_READ}")
}

/// Rows of a full shard: `ceil(m / world)`.
pub fn shard_rows() -> u32 {
    unreachable!("{ONLY_READ}")
}

/// The rows that a rank owns.
pub fn shard(rank: u32) -> Range<u32> {
    let _ = rank;
    unreachable!("{ONLY_READ}")
}

/// The ranks that own `rows`, which are not empty.
pub fn owners<R: RowRange>(rows: R) -> Range<u32> {
    let _ = rows;
    unreachable!("{ONLY_READ}")
}

/// The columns of slice `index` of `slices` along k: whole steps of the schedule, those that
/// [`Tile::k_slices`](super::Tile::k_slices) multiplies.
pub fn k_slice(index: u32, slices: u32) -> Range<u32> {
    let _ = (index, slices);
    unreachable!("{ONLY_READ}")
}

const ONLY_READ: &str = "kernels are read by the macro and never called";

/// That data has been sent: told of by [`Signals::signal`].
#[must_use = "nobody knows of a put until it is signalled: `arrived.signal(to, slot, sent)`"]
#[derive(Debug, Clone, Copy)]
pub struct Put(Never);

/// That something has been waited for: what [`Symmetric::ready`] needs.
#[derive(Debug, Clone, Copy)]
pub struct Arrived(Never);

/// Rows of an input that this rank holds, made by [`Sharded::part`] or [`Global::part`].
#[derive(Debug, Clone, Copy)]
pub struct Part<T> {
    never: Never,
    element: PhantomData<T>,
}

impl<T: Element> Global<T> {
    /// Some of its rows, to be copied.
    pub fn part(&self, rows: impl RowRange) -> Part<T> {
        let _ = rows;
        match self.never {}
    }
}

impl<T: Element> Sharded<T> {
    /// Rows of the shard, in the numbers of the whole tensor, to be copied.
    pub fn part(&self, rows: impl RowRange) -> Part<T> {
        let _ = rows;
        match self.never {}
    }
}

impl<T> Part<T> {
    /// Some of its columns.
    #[must_use]
    pub fn cols(self, cols: Range<u32>) -> Part<T> {
        let _ = cols;
        match self.never {}
    }
}

impl<T> Ready<T> {
    /// Some of its columns, to be copied.
    pub fn cols(self, cols: Range<u32>) -> Ready<T> {
        let _ = cols;
        self
    }
}

impl Rows {
    /// The first row, in the numbers of the whole output.
    pub fn start(self) -> u32 {
        match self.0 {}
    }

    /// One past the last row.
    pub fn end(self) -> u32 {
        match self.0 {}
    }
}

/// What [`Symmetric::put`] copies: a [`Part`] of a shard, or rows that are [`Ready`].
pub trait Source<T>: Sealed {}

/// Rows: a range of numbers, or those of a tile.
pub trait RowRange: Sealed {}

/// One slot, or a range of them.
pub trait Slots: Sealed {}

/// What has to be written before a signal is raised: one [`Put`], several, or `()`.
pub trait Sent: Sealed {}

impl<T> Sealed for Part<T> {}
impl Sealed for Range<u32> {}
impl Sealed for u32 {}
impl Sealed for Rows {}
impl Sealed for Put {}
impl Sealed for (Put, Put) {}
impl Sealed for () {}

impl<T> Source<T> for Part<T> {}
impl<T> Source<T> for Ready<T> {}
impl RowRange for Range<u32> {}
impl RowRange for Rows {}
impl Slots for u32 {}
impl Slots for Range<u32> {}
impl Sent for Put {}
impl Sent for (Put, Put) {}
impl Sent for () {}
