//! Tensors whose rows are distributed over the ranks.
//!
//! A shard is `ceil(rows / world)` consecutive rows; the last shards may be smaller or empty.

use super::{
    Element, Fragment, Global, Never, Reduction, Rows, Tile, Tiles, Transposed, sealed::Sealed,
};
use std::marker::PhantomData;

/// Rows that arrive from their owners: each rank has a row shard, and every rank reads all rows.
///
/// Nothing of it can be read before [`wait`](Gathered::wait), which yields rows that are
/// [`Ready`] to be multiplied.
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn ag_gemm(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
///     for tile in c.tiles() {
///         let a = a.wait(tile.rows());
///         c.store(tile, gemm(a, b.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
///
/// Without the wait it does not compile:
///
/// ```compile_fail
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn ag_gemm(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
///     for tile in c.tiles() {
///         c.store(tile, gemm(a, b.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct Gathered<T> {
    never: Never,
    element: PhantomData<T>,
}

impl<T: Element> Gathered<T> {
    /// Waits until the tile's rows have arrived from their owners; of
    /// [`tile.reduction()`](Tile::reduction), until each part of it has that a product comes to.
    pub fn wait<P: Awaited>(&self, part: P) -> P::Arrived<T> {
        let _ = part;
        match self.never {}
    }

    /// Writes the rows of every rank to `output`, which has the columns of this tensor and the rows of all
    /// ranks: what a backward pass, a second projection or a residual needs of what was gathered for the
    /// product.
    ///
    /// It stands beside the loop over tiles, whose products use the tensor: rows are copied as they arrive, once
    /// each, while tiles are multiplied.
    ///
    /// ```
    /// # use flux::prelude::*;
    /// /// X = all_gather(A), and C = X · Bᵀ
    /// #[flux::kernel]
    /// fn ag_gemm_gathered(
    ///     a: &Gathered<bf16>,
    ///     b: &Global<bf16>,
    ///     x: &mut Global<bf16>,
    ///     c: &mut Global<bf16>,
    /// ) {
    ///     a.all_gather_into(x);
    ///     for tile in c.tiles() {
    ///         let a = a.wait(tile.rows());
    ///         c.store(tile, gemm(a, b.t(), tile));
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    pub fn all_gather_into(&self, output: &mut Global<T>) {
        let _ = output;
        match self.never {}
    }
}

/// What a tile waits for of a [`Gathered`] tensor: [`tile.rows()`](Tile::rows) or
/// [`tile.reduction()`](Tile::reduction).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no part of a gathered tensor",
    label = "expected `tile.rows()`, or `tile.reduction()` for what a product sums over"
)]
pub trait Awaited: Sealed {
    /// What has arrived then.
    type Arrived<T: Element>;
}

impl Sealed for Reduction {}

impl Awaited for Rows {
    type Arrived<T: Element> = Ready<T>;
}

impl Awaited for Reduction {
    type Arrived<T: Element> = Summed<T>;
}

/// A [`Gathered`] tensor whose rows a product sums over: its right operand, or [`t`](Summed::t)ransposed
/// its left one.
///
/// ```
/// # use flux::prelude::*;
/// /// The gradient of weights: dW = dYᵀ · all_gather(X), summed over the tokens of all ranks.
/// #[flux::kernel]
/// fn gradient(dy: &Global<bf16>, x: &Gathered<bf16>, dw: &mut Global<f32>) {
///     for tile in dw.tiles() {
///         let x = x.wait(tile.reduction());
///         dw.store(tile, gemm(dy.t(), x, tile));
///     }
/// }
/// # fn main() {}
/// ```
#[must_use = "rows are waited for to be used: pass them to `gemm`"]
#[derive(Debug, Clone, Copy)]
pub struct Summed<T> {
    never: Never,
    element: PhantomData<T>,
}

impl<T: Element> Summed<T> {
    /// Transposed, as a left operand.
    pub fn t(self) -> Transposed<T> {
        let _ = self.element;
        match self.never {}
    }
}

/// Rows of a [`Gathered`] tensor that have arrived: the left operand of [`gemm`](super::gemm), or
/// read by [`load`](Ready::load).
///
/// ```
/// # use flux::prelude::*;
/// /// Two products of the same rows: one wait.
/// #[flux::kernel]
/// fn swiglu(x: &Gathered<bf16>, w1: &Global<bf16>, w3: &Global<bf16>, y: &mut Global<bf16>) {
///     for tile in y.tiles() {
///         let x = x.wait(tile.rows());
///         y.store(tile, silu(gemm(x, w1.t(), tile)) * gemm(x, w3.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
#[must_use = "rows are waited for to be used: pass them to `gemm`, or `load` them"]
#[derive(Debug, Clone, Copy)]
pub struct Ready<T> {
    element: PhantomData<T>,
}

impl<T: Element> Ready<T> {
    /// The tile of a gathered matrix of the output's shape.
    ///
    /// ```
    /// # use flux::prelude::*;
    /// /// C = all_gather(X): every rank gets all rows.
    /// #[flux::kernel]
    /// fn all_gather(x: &Gathered<bf16>, c: &mut Global<bf16>) {
    ///     for tile in c.tiles() {
    ///         let rows = x.wait(tile.rows());
    ///         c.store(tile, rows.load(tile));
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    pub fn load(&self, tile: Tile) -> Fragment {
        let _ = self.element;
        match tile.0 {}
    }
}

/// A row shard that its own rank alone reads: the residual of a [`Scattered`] output, or the left
/// operand where the output is of this rank's rows. Written, it is such an output.
///
/// ```
/// # use flux::prelude::*;
/// /// C = reduce_scatter(A · Bᵀ) + residual
/// #[flux::kernel]
/// fn gemm_rs_residual(
///     a: &Global<bf16>,
///     b: &Global<bf16>,
///     residual: &Sharded<bf16>,
///     c: &mut Scattered<bf16>,
/// ) {
///     for tile in c.tiles() {
///         let total = c.reduce(tile, gemm(a, b.t(), tile));
///         c.store(tile, total + residual.load(tile));
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct Sharded<T> {
    pub(super) never: Never,
    element: PhantomData<T>,
}

impl<T: Element> Sharded<T> {
    /// The tile of the rank's row shard of a matrix of the output's shape.
    pub fn load(&self, tile: Tile) -> Fragment {
        let _ = tile;
        match self.never {}
    }

    /// The rank's shard of a vector over the rows, repeated on every column.
    pub fn rows(&self, tile: Tile) -> Fragment {
        let _ = tile;
        match self.never {}
    }

    /// The tiles of the rows that this rank owns.
    pub fn tiles(&self) -> Tiles {
        match self.never {}
    }

    /// Writes a tile of the rows that this rank owns, rounded to `T`.
    pub fn store(&mut self, tile: Tile, x: Fragment) {
        let _ = (tile, x);
        match self.never {}
    }
}

/// An all-to-all between rows and columns: each rank holds all rows of its column shard, and works on
/// the rows that it owns. With the heads of attention as columns it is the exchange of sequence
/// parallelism.
///
/// A shard is `ceil(columns / world)` consecutive columns; the last shards may be smaller or empty.
///
/// Read, the rank's own rows arrive from all ranks, the columns of each:
///
/// ```
/// # use flux::prelude::*;
/// /// The rows of this rank of A · Bᵀ: A holds heads as columns, C the rank's part of the sequence.
/// #[flux::kernel]
/// fn a2a_gemm(a: &Exchanged<bf16>, b: &Global<bf16>, c: &mut Sharded<bf16>) {
///     for tile in c.tiles() {
///         let a = a.wait(tile.rows());
///         c.store(tile, gemm(a, b.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
///
/// Written, each rank computes its own rows, and every tile goes to the ranks that own its columns:
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn gemm_a2a(a: &Sharded<bf16>, b: &Global<bf16>, c: &mut Exchanged<bf16>) {
///     for tile in c.tiles() {
///         c.store(tile, gemm(a, b.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
///
/// Ranks own `ceil(rows / world)` rows each. Where they own other numbers of them, each passes what it has
/// and tells those of all ranks:
///
/// ```
/// use flux::prelude::*;
///
/// // Sequences of 5, 0 and 9 tokens, 12 columns: 4 a rank.
/// let rows = [5, 0, 9];
/// let sums = World::host(3)?.run(|rank| {
///     let own = rows[rank.index() as usize];
///     let x = rank.tensor(own, 12, &vec![bf16::ONE; own * 12])?;
///     let mut c = rank.zeros::<bf16>(14, 4)?;
///     let kernel = flux::kernels::rows_to_columns::load(rank)?;
///     kernel.launch_with_rows(&rows, &x, &mut c)?;
///     Ok(c.to_vec()?.iter().map(|x| x.to_f32()).sum::<f32>())
/// })?;
/// assert_eq!(sums, [56.0; 3]);
/// # Ok::<(), flux::Error>(())
/// ```
#[derive(Debug)]
pub struct Exchanged<T> {
    never: Never,
    element: PhantomData<T>,
}

impl<T: Element> Exchanged<T> {
    /// Waits until the tile's rows have arrived, the columns of every rank.
    pub fn wait(&self, rows: Rows) -> Ready<T> {
        let _ = rows;
        match self.never {}
    }

    /// The tiles of the rows that this rank owns, in all columns.
    pub fn tiles(&self) -> Tiles {
        match self.never {}
    }

    /// Writes a tile of the rows that this rank owns, rounded to `T`: each rank gets its columns.
    pub fn store(&mut self, tile: Tile, x: Fragment) {
        let _ = (tile, x);
        match self.never {}
    }
}

/// An output that is summed over the ranks: each contributes every tile, and each keeps the
/// total of its own row shard.
///
/// ```
/// # use flux::prelude::*;
/// /// C = reduce_scatter(A · Bᵀ)
/// #[flux::kernel]
/// fn gemm_rs(a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>) {
///     for tile in c.tiles() {
///         c.add(tile, gemm(a, b.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct Scattered<T> {
    never: Never,
    element: PhantomData<T>,
}

impl<T: Element> Scattered<T> {
    /// The tiles of the whole output, those of other owners included.
    pub fn tiles(&self) -> Tiles {
        match self.never {}
    }

    /// Contributes a tile to the sum over the ranks, and stores the sum in the rows that this
    /// rank owns. Contributions travel as `T` and are added in f32.
    ///
    /// ```
    /// # use flux::prelude::*;
    /// /// C = reduce_scatter(X), of a matrix that is there already.
    /// #[flux::kernel]
    /// fn reduce_scatter(x: &Global<bf16>, c: &mut Scattered<bf16>) {
    ///     for tile in c.tiles() {
    ///         c.add(tile, x.load(tile));
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    pub fn add(&mut self, tile: Tile, x: Fragment) {
        let _ = (tile, x);
        match self.never {}
    }

    /// Contributes a tile to the sum over the ranks, and yields that sum in the rows that this
    /// rank owns: what is done with it is done there alone, and [`store`](Scattered::store)d.
    ///
    /// ```
    /// # use flux::prelude::*;
    /// /// The bias is added once, to the sum, and not by every rank.
    /// #[flux::kernel]
    /// fn row_parallel(
    ///     x: &Global<bf16>,
    ///     w: &Global<bf16>,
    ///     bias: &Global<f32>,
    ///     y: &mut Scattered<bf16>,
    /// ) {
    ///     for tile in y.tiles() {
    ///         let total = y.reduce(tile, gemm(x, w.t(), tile));
    ///         y.store(tile, total + bias.cols(tile));
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    #[must_use = "the sum over the ranks is lost unless it is stored"]
    pub fn reduce(&mut self, tile: Tile, x: Fragment) -> Fragment {
        let _ = (tile, x);
        match self.never {}
    }

    /// Writes what was made of the sum over the ranks, in the rows that this rank owns, rounded
    /// to `T`.
    pub fn store(&mut self, tile: Tile, x: Fragment) {
        let _ = (tile, x);
        match self.never {}
    }
}

/// An output that is summed over the ranks and that every rank gets whole: each contributes every
/// tile, and all hold the same bits afterwards.
///
/// ```
/// # use flux::prelude::*;
/// /// C = all_reduce(A · Bᵀ)
/// #[flux::kernel]
/// fn gemm_ar(a: &Global<bf16>, b: &Global<bf16>, c: &mut Reduced<bf16>) {
///     for tile in c.tiles() {
///         c.add(tile, gemm(a, b.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
///
/// A schedule says how: `all_reduce = two_shot` sums each row on the rank that owns it, from which the
/// others bring it; `all_reduce = one_shot` sends every contribution to every rank, in one step, which
/// is faster for few rows.
#[derive(Debug)]
pub struct Reduced<T> {
    never: Never,
    element: PhantomData<T>,
}

impl<T: Element> Reduced<T> {
    /// The tiles of the output.
    pub fn tiles(&self) -> Tiles {
        match self.never {}
    }

    /// Contributes a tile to the sum over the ranks, and stores that sum. Contributions travel as
    /// `T` and are added in f32, in the order of ranks.
    pub fn add(&mut self, tile: Tile, x: Fragment) {
        let _ = (tile, x);
        match self.never {}
    }

    /// Contributes a tile to the sum over the ranks, and yields that sum, to be
    /// [`store`](Reduced::store)d to a `Reduced` output.
    ///
    /// What the sum is joined with has to be the same on every rank, as a bias or a residual is that
    /// each rank holds a copy of: where one rank sums for all, it is that rank's that counts.
    ///
    /// ```
    /// # use flux::prelude::*;
    /// /// C = all_reduce(A · Bᵀ) + bias + residual
    /// #[flux::kernel]
    /// fn row_parallel(
    ///     a: &Global<bf16>,
    ///     b: &Global<bf16>,
    ///     bias: &Global<f32>,
    ///     residual: &Global<bf16>,
    ///     c: &mut Reduced<bf16>,
    /// ) {
    ///     for tile in c.tiles() {
    ///         let total = c.reduce(tile, gemm(a, b.t(), tile));
    ///         c.store(tile, total + bias.cols(tile) + residual.load(tile));
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    #[must_use = "the sum over the ranks is lost unless it is stored"]
    pub fn reduce(&mut self, tile: Tile, x: Fragment) -> Fragment {
        let _ = (tile, x);
        match self.never {}
    }

    /// Writes what was made of the sum over the ranks, rounded to `T`.
    pub fn store(&mut self, tile: Tile, x: Fragment) {
        let _ = (tile, x);
        match self.never {}
    }
}
