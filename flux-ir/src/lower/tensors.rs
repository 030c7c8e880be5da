//! Declares the tensors of the launch and the arithmetic of their shards.

use super::build::Builder;
use super::usage::{Dim, Dims};
use crate::arena::Handle;
use crate::kernel::{Distribution, ParamId, ParamType};
use crate::program::{Buffer, BufferId, BufferKind, Expr, Sym, VarId};

/// Buffers of the parameters and the definitions they rest on.
pub(super) struct Tensors {
    buffers: Vec<Option<BufferId>>,
    /// Index of each scalar parameter among the Program's scalars.
    scalars: Vec<Option<u32>>,
    /// `S`: rows of a full shard.
    pub(super) shard: VarId,
    /// `own`: rows this rank owns.
    pub(super) own: VarId,
    /// Whether shards may have lengths of their own: tiles are of the rows that a rank owns.
    uneven: bool,
    /// How columns are cut, by dimension.
    columns: Vec<(Dim, Columns)>,
}

/// How the columns of an exchanged tensor are cut, or the rows of a gathered one that a product sums
/// over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    /// `NS`, `KS`: columns of a full shard.
    pub(super) part: VarId,
    /// `own_n`, `own_k`: columns this rank holds.
    pub(super) own: VarId,
}

impl Tensors {
    /// The buffer of a tensor parameter. Usage inference has shown that it is one.
    pub(super) fn buffer(&self, param: ParamId) -> BufferId {
        self.buffers[param.index()].expect("usage inference admits tensors only")
    }

    /// How the columns of exchanged tensors of this dimension are cut.
    pub(super) fn columns(&self, dim: Dim) -> Columns {
        let found = self.columns.iter().find(|(of, _)| *of == dim);
        found.expect("dimensions of exchanged tensors are cut when they are declared").1
    }

    /// The first row that a rank owns.
    pub(super) fn first_of(&self, rank: impl Into<Expr>) -> Expr {
        let rank = rank.into();
        if self.uneven { rank.first() } else { rank * self.shard }
    }

    /// Rows that a rank owns.
    pub(super) fn rows_of(&self, rank: impl Into<Expr>) -> Expr {
        rows_of(self.shard, self.uneven, rank.into())
    }

    /// Rows of this rank's part, and the row of the whole tensor that it begins with.
    fn rows(&self, distribution: Distribution, dims: Dims) -> (Expr, Expr) {
        if distribution.is_sharded() {
            (self.own.into(), self.first_of(Sym::Rank))
        } else {
            (extent(dims.rows), 0i64.into())
        }
    }

    /// The index of a scalar parameter. Usage inference has shown that it is one.
    pub(super) fn scalar(&self, param: ParamId) -> u32 {
        self.scalars[param.index()].expect("usage inference admits scalars only")
    }
}

pub(super) fn declare(b: &mut Builder<'_>) -> Tensors {
    let uneven = b.usage.own_rows();
    let longest = if uneven { Sym::Shard.into() } else { Expr::from(Sym::M).ceil_div(Sym::World) };
    let shard = b.define("S", longest);
    let own = b.define("own", rows_of(shard, uneven, Sym::Rank.into()));
    let (buffers, scalars, columns) = (Vec::new(), Vec::new(), Vec::new());
    let mut tensors = Tensors { buffers, scalars, shard, own, uneven, columns };
    let kernel = b.kernel;
    for (id, param) in kernel.params.iter() {
        let (mut buffer, mut scalar) = (None, None);
        match param.ty {
            ParamType::Tensor { distribution, element, written } => {
                let dims = b.usage.dims(id).expect("usage inference gives every tensor dimensions");
                let (mut rows, mut first_row) = tensors.rows(distribution, dims);
                let (mut cols, mut first_col) = (extent(dims.cols), Expr::from(0i64));
                if distribution == Distribution::Exchanged {
                    let columns = cut(b, &mut tensors, dims.cols);
                    cols = columns.own.into();
                    first_col = Expr::from(Sym::Rank) * columns.part;
                }
                if distribution.is_sharded() && dims.rows == Dim::K {
                    // What a product sums over is sharded instead.
                    let shards = cut(b, &mut tensors, Dim::K);
                    rows = shards.own.into();
                    first_row = Expr::from(Sym::Rank) * shards.part;
                }
                buffer = Some(b.program.buffers.push(Buffer {
                    name: param.name.clone(),
                    kind: if written { BufferKind::Output } else { BufferKind::Input },
                    sums: false,
                    element,
                    planes: Vec::new(),
                    rows,
                    first_row,
                    cols,
                    first_col,
                    span: param.span,
                }));
            }
            ParamType::Scalar => {
                scalar = Some(b.program.scalars.len() as u32);
                b.program.scalars.push(param.name.clone());
            }
        }
        tensors.buffers.push(buffer);
        tensors.scalars.push(scalar);
    }
    tensors
}

/// The shards of this dimension.
fn cut(b: &mut Builder<'_>, tensors: &mut Tensors, dim: Dim) -> Columns {
    if let Some((_, known)) = tensors.columns.iter().find(|(of, _)| *of == dim) {
        return *known;
    }
    let names = if dim == Dim::N { ["NS", "own_n"] } else { ["KS", "own_k"] };
    let part = b.define(names[0], extent(dim).ceil_div(Sym::World));
    let left = extent(dim) - Expr::from(Sym::Rank) * part;
    let own = b.define(names[1], Expr::from(part).min(left).max(0i64));
    tensors.columns.push((dim, Columns { part, own }));
    Columns { part, own }
}

/// A dimension as a number of the launch.
pub(super) fn extent(dim: Dim) -> Expr {
    match dim {
        Dim::M => Sym::M.into(),
        Dim::N => Sym::N.into(),
        Dim::K => Sym::K.into(),
        Dim::One => 1i64.into(),
    }
}

/// Rows that a rank owns, of shards of `shard` rows at most.
fn rows_of(shard: VarId, uneven: bool, rank: Expr) -> Expr {
    if uneven {
        // Never less than none: said for intervals, in which two first rows are unrelated.
        return ((rank.clone() + 1i64).first() - rank.first()).max(0i64);
    }
    let left = Expr::from(Sym::M) - rank * shard;
    Expr::from(shard).min(left).max(0i64)
}
