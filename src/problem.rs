//! From the tensors of all ranks to M, N and K: every disagreement is an error that names both
//! parameters and both numbers.

use crate::error::Error;
use flux_ir::arena::Handle;
use flux_ir::kernel::{Distribution, Op, ParamId};
use flux_ir::lower::usage::{Dim, Usage};
use flux_ir::tile::{Ranks, own_rows};
use flux_ir::{Kernel, Shape};

/// Rows and columns of each parameter of one rank; zeros for a scalar.
pub(crate) type Extents = Vec<[u32; 2]>;

/// A number and where it was seen.
#[derive(Clone, Copy)]
struct Seen {
    value: u64,
    param: ParamId,
    rank: u32,
}

/// The extents of the problem, from what every rank passed. `lengths` are the rows that ranks own,
/// where the launch says so.
///
/// # Errors
/// Extents that do not fit together, on one rank or between ranks.
pub(crate) fn shape(
    kernel: &Kernel,
    usage: &Usage,
    ranks: &[Extents],
    lengths: &[u32],
) -> Result<Shape, Error> {
    let mut found = Found { kernel, dims: [None; 3] };
    for (rank, extents) in ranks.iter().enumerate() {
        for (param, _) in kernel.params.iter() {
            found.rank_param(usage, rank as u32, param, extents)?;
        }
    }
    let m = match (found.dims[0], lengths) {
        (Some(seen), _) => seen.value,
        (None, []) => sharded_rows(kernel, usage, ranks, Dim::M),
        (None, lengths) => lengths.iter().copied().map(u64::from).sum(),
    };
    let exchanged = |dim| exchanged_columns(kernel, usage, ranks, dim);
    let n = found.dims[1].map_or_else(|| exchanged(Dim::N), |seen| seen.value);
    // Without a product nothing is summed over: one step that nobody takes.
    let k = if usage.multiplies() {
        let parts = || sharded_rows(kernel, usage, ranks, Dim::K).max(exchanged(Dim::K));
        found.dims[2].map_or_else(parts, |seen| seen.value)
    } else {
        1
    };
    let shape = Shape { m: fit("m", m)?, n: fit("n", n)?, k: fit("k", k)? };
    check_lengths(&found, shape.m, lengths)?;
    check_shards(kernel, usage, ranks, (shape, lengths))?;
    check_columns(kernel, usage, ranks, shape)?;
    Ok(shape)
}

/// Whether a rank's own tensors tell M and K, that is, whether some hold all of each. Where all are
/// shards, only the ranks together can tell.
pub(crate) fn rows_are_known(kernel: &Kernel, usage: &Usage) -> bool {
    let tells = |param, dim| {
        let Some((dims, (distribution, ..))) = usage.dims(param).zip(kernel.tensor(param)) else {
            return false;
        };
        dims.rows == dim && !distribution.is_sharded()
            || dims.cols == dim && distribution != Distribution::Exchanged
    };
    let known = |dim| kernel.params.handles().any(|param| tells(param, dim));
    let has = |dim| {
        let of = |param| usage.dims(param).is_some_and(|dims| dims.rows == dim || dims.cols == dim);
        kernel.params.handles().any(of)
    };
    [Dim::M, Dim::N, Dim::K].into_iter().all(|dim| known(dim) || !has(dim))
}

struct Found<'k> {
    kernel: &'k Kernel,
    /// M, N, K.
    dims: [Option<Seen>; 3],
}

impl Found<'_> {
    fn rank_param(
        &mut self,
        usage: &Usage,
        rank: u32,
        param: ParamId,
        extents: &Extents,
    ) -> Result<(), Error> {
        let (Some(dims), Some((distribution, ..))) = (usage.dims(param), self.kernel.tensor(param))
        else {
            return Ok(());
        };
        let [rows, cols] = extents[param.index()].map(u64::from);
        match (dims.rows, dims.cols) {
            (Dim::One, dim) | (dim, Dim::One) => {
                if rows != 1 && cols != 1 && rows * cols != 0 {
                    let name = self.kernel.params[param].name.clone();
                    return Err(Error::NotVector { param: name, rank, rows, cols });
                }
                if dim != Dim::M || !distribution.is_sharded() {
                    self.unify(dim, Seen { value: rows * cols, param, rank })?;
                }
            }
            (row_dim, col_dim) => {
                if !(distribution.is_sharded() && matches!(row_dim, Dim::M | Dim::K)) {
                    self.unify(row_dim, Seen { value: rows, param, rank })?;
                }
                if distribution != Distribution::Exchanged {
                    self.unify(col_dim, Seen { value: cols, param, rank })?;
                }
            }
        }
        Ok(())
    }

    fn unify(&mut self, dim: Dim, seen: Seen) -> Result<(), Error> {
        let slot = match dim {
            Dim::M => &mut self.dims[0],
            Dim::N => &mut self.dims[1],
            Dim::K => &mut self.dims[2],
            Dim::One => return Ok(()),
        };
        let first = *slot.get_or_insert(seen);
        if first.value == seen.value {
            return Ok(());
        }
        let name = |seen: Seen| self.kernel.params[seen.param].name.clone();
        Err(Error::Extents {
            dim: dim.to_string(),
            first: name(first),
            first_value: first.value,
            first_rank: first.rank,
            second: name(seen),
            second_value: seen.value,
            second_rank: seen.rank,
        })
    }
}

/// The rows of a parameter's part, of a matrix or of a vector over the rows.
fn part_rows(usage: &Usage, param: ParamId, extents: &Extents) -> u64 {
    let [rows, cols] = extents[param.index()].map(u64::from);
    match usage.dims(param) {
        Some(dims) if dims.cols == Dim::One => rows * cols,
        Some(_) | None => rows,
    }
}

/// A dimension of rows where every tensor that has it is sharded: the sum of the parts of the first
/// one.
fn sharded_rows(kernel: &Kernel, usage: &Usage, ranks: &[Extents], dim: Dim) -> u64 {
    let mut shards = shards(kernel, usage).filter(|(_, of)| *of == dim);
    let sharded = shards.next().map(|(param, _)| param);
    sharded.map_or(0, |param| ranks.iter().map(|extents| part_rows(usage, param, extents)).sum())
}

/// The extents of every rank where rank 0, whose are `own`, is the only active one: the tensors of
/// passive peers would be like its own, and shards as long as theirs have to be.
pub(crate) fn among_passive(
    kernel: &Kernel,
    usage: &Usage,
    own: &Extents,
    world: u32,
) -> Vec<Extents> {
    let mut found = Found { kernel, dims: [None; 3] };
    for (param, _) in kernel.params.iter() {
        if found.rank_param(usage, 0, param, own).is_err() {
            // Whoever compares the ranks says so.
            return vec![own.clone(); world as usize];
        }
    }
    let all = || vec![own.clone(); world as usize];
    let extent = |seen: Option<Seen>, dim| {
        let parts = || sharded_rows(kernel, usage, &all(), dim);
        u32::try_from(seen.map_or_else(parts, |seen| seen.value)).unwrap_or(u32::MAX)
    };
    let (m, k) = (extent(found.dims[0], Dim::M), extent(found.dims[2], Dim::K));
    let mut ranks = all();
    for (param, dim) in shards(kernel, usage) {
        let whole = if dim == Dim::K { k } else { m };
        for (rank, extents) in ranks.iter_mut().enumerate().skip(1) {
            let rows = own_rows(whole, Ranks { rank: rank as u32, world });
            extents[param.index()] = match usage.dims(param) {
                Some(dims) if dims.cols == Dim::One => [rows, 1],
                Some(_) | None => [rows, own[param.index()][1]],
            };
        }
    }
    ranks
}

/// An output that keeps what is gathered and has elements where `shape` has no tiles.
pub(crate) fn kept_without_tiles<'k>(
    kernel: &'k Kernel,
    usage: &Usage,
    shape: Shape,
) -> Option<&'k str> {
    let extent = |dim| match dim {
        Dim::M => shape.m,
        Dim::N => shape.n,
        Dim::K => shape.k,
        Dim::One => 1,
    };
    let mut kept = kernel.ops.values().filter_map(|entry| match entry.op {
        Op::Keep { output, .. } => Some(output),
        _ => None,
    });
    let holds = |&param: &ParamId| {
        usage.dims(param).is_some_and(|dims| extent(dims.rows) > 0 && extent(dims.cols) > 0)
    };
    kept.find(holds).map(|param| kernel.params[param].name.as_str())
}

/// The parameters that are sharded by rows, and what their rows are: those of the output, or what is
/// summed over.
fn shards(kernel: &Kernel, usage: &Usage) -> impl Iterator<Item = (ParamId, Dim)> {
    kernel.params.handles().filter_map(|param| {
        let (distribution, ..) = kernel.tensor(param)?;
        let rows = usage.dims(param)?.rows;
        let cut = distribution.is_sharded() && matches!(rows, Dim::M | Dim::K);
        cut.then_some((param, rows))
    })
}

/// Lengths of shards add up to the rows of what holds all of them.
fn check_lengths(found: &Found<'_>, m: u32, lengths: &[u32]) -> Result<(), Error> {
    let told: u64 = lengths.iter().copied().map(u64::from).sum();
    match found.dims[0] {
        Some(seen) if !lengths.is_empty() && told != u64::from(m) => {
            let param = found.kernel.params[seen.param].name.clone();
            Err(Error::RowsInAll { param, rows: lengths.to_vec(), told, found: seen.value })
        }
        _ => Ok(()),
    }
}

fn check_shards(
    kernel: &Kernel,
    usage: &Usage,
    ranks: &[Extents],
    (shape, lengths): (Shape, &[u32]),
) -> Result<(), Error> {
    let world = ranks.len() as u32;
    for (param, dim) in shards(kernel, usage) {
        let rows = if dim == Dim::K { shape.k } else { shape.m };
        for (rank, extents) in ranks.iter().enumerate() {
            let even = || own_rows(rows, Ranks { rank: rank as u32, world });
            let expected = lengths.get(rank).copied().unwrap_or_else(even);
            let found = part_rows(usage, param, extents);
            if u64::from(expected) != found {
                let param = kernel.params[param].name.clone();
                let rank = rank as u32;
                if !lengths.is_empty() {
                    return Err(Error::RowsOfRank { param, rank, told: expected, found });
                }
                let may_differ = usage.own_rows();
                return Err(Error::ShardRows {
                    param,
                    rank,
                    world,
                    rows,
                    expected,
                    found,
                    may_differ,
                });
            }
        }
    }
    Ok(())
}

/// Columns over all ranks where only column shards have this dimension: the sum of the first one's.
fn exchanged_columns(kernel: &Kernel, usage: &Usage, ranks: &[Extents], dim: Dim) -> u64 {
    let mut exchanged = exchanged(kernel, usage).filter(|(_, cols)| *cols == dim);
    exchanged.next().map_or(0, |(param, _)| {
        ranks.iter().map(|extents| u64::from(extents[param.index()][1])).sum()
    })
}

/// The exchanged parameters, and what their columns are.
fn exchanged(kernel: &Kernel, usage: &Usage) -> impl Iterator<Item = (ParamId, Dim)> {
    kernel.params.handles().filter_map(|param| {
        let (distribution, ..) = kernel.tensor(param)?;
        (distribution == Distribution::Exchanged).then_some((param, usage.dims(param)?.cols))
    })
}

/// Whether a kernel has an exchanged parameter.
pub(crate) fn exchanges(kernel: &Kernel) -> bool {
    let found = |param| kernel.tensor(param).is_some_and(|(d, ..)| d == Distribution::Exchanged);
    kernel.params.handles().any(found)
}

fn check_columns(
    kernel: &Kernel,
    usage: &Usage,
    ranks: &[Extents],
    shape: Shape,
) -> Result<(), Error> {
    let world = ranks.len() as u32;
    for (param, cols) in exchanged(kernel, usage) {
        let extent = if cols == Dim::N { shape.n } else { shape.k };
        for (rank, extents) in (0..).zip(ranks) {
            let expected = own_rows(extent, Ranks { rank, world });
            let found = extents[param.index()][1];
            if expected != found {
                let (param, dim) = (kernel.params[param].name.clone(), cols.to_string());
                return Err(Error::ShardColumns {
                    param,
                    rank,
                    world,
                    dim,
                    extent,
                    expected,
                    found,
                });
            }
        }
    }
    Ok(())
}

/// `value` as an extent that index arithmetic can take.
///
/// # Errors
/// [`Error::TooLarge`], naming `dim`.
pub(crate) fn fit(dim: &str, value: u64) -> Result<u32, Error> {
    match u32::try_from(value) {
        Ok(value) if value <= i32::MAX as u32 => Ok(value),
        _ => Err(Error::TooLarge { dim: dim.into(), value }),
    }
}

#[cfg(test)]
mod tests {
    use super::{Extents, among_passive, shape};
    use flux_ir::Shape;
    use flux_ir::lower::usage;

    /// The ranks of a world whose rank 0 has tensors of these extents, and the shape they make.
    fn world(definition: &crate::Definition, own: Extents, world: u32) -> (Vec<Extents>, Shape) {
        let kernel = definition.kernel().unwrap();
        let usage = usage::infer(&kernel).unwrap();
        let ranks = among_passive(&kernel, &usage, &own, world);
        let shape = shape(&kernel, &usage, &ranks, &[]).unwrap();
        (ranks, shape)
    }

    #[test]
    fn passive_peers_have_the_shards_that_are_left() {
        let gather = crate::kernels::ag_gemm::definition();
        let (ranks, shape) = world(gather, vec![[3, 8], [16, 8], [10, 16]], 4);
        assert_eq!(shape, Shape { m: 10, n: 16, k: 8 });
        let rows: Vec<u32> = ranks.iter().map(|extents| extents[0][0]).collect();
        assert_eq!(rows, [3, 3, 3, 1]);
        assert!(ranks.iter().all(|extents| extents[1..] == [[16, 8], [10, 16]]));
        let scatter = crate::kernels::gemm_rs_bias_residual::definition();
        let own = vec![[2, 8], [16, 8], [1, 16], [1, 16], [1, 16]];
        let (ranks, shape) = world(scatter, own, 4);
        assert_eq!(shape, Shape { m: 2, n: 16, k: 8 });
        let rows: Vec<u32> = ranks.iter().map(|extents| extents[3][0]).collect();
        assert_eq!(rows, [1, 1, 0, 0], "fewer rows than ranks");
        // What is summed over is sharded, in one operand.
        let gradient = crate::kernels::gemm_ag_tn::definition();
        let (ranks, shape) = world(gradient, vec![[10, 8], [3, 16], [8, 16]], 4);
        assert_eq!(shape, Shape { m: 8, n: 16, k: 10 });
        let rows: Vec<u32> = ranks.iter().map(|extents| extents[1][0]).collect();
        assert_eq!(rows, [3, 3, 3, 1]);
    }

    #[test]
    fn what_does_not_fit_is_told_as_among_real_ranks() {
        let kernel = crate::kernels::ag_gemm::definition().kernel().unwrap();
        let usage = usage::infer(&kernel).unwrap();
        // K of one operand is 8, of the other 9.
        let own = vec![[3, 8], [16, 9], [10, 16]];
        let ranks = among_passive(&kernel, &usage, &own, 4);
        let error = shape(&kernel, &usage, &ranks, &[]).unwrap_err().to_string();
        assert_eq!(error, "`a` has k = 8 (rank 0), `b` has k = 9 (rank 0)");
        // A shard of the wrong length.
        let ranks = among_passive(&kernel, &usage, &vec![[4, 8], [16, 8], [10, 16]], 4);
        assert!(shape(&kernel, &usage, &ranks, &[]).is_err());
    }
    #[test]
    fn ranks_may_own_rows_of_their_own_number() {
        let kernel = crate::kernels::gemm_a2a::definition().kernel().unwrap();
        let usage = usage::infer(&kernel).unwrap();
        let rank = |rows, cols| -> Extents { vec![[rows, 8], [16, 8], [10, cols]] };
        let ranks = [rank(7, 6), rank(0, 6), rank(3, 4)];
        let shape = |lengths: &[u32]| shape(&kernel, &usage, &ranks, lengths);
        assert_eq!(shape(&[7, 0, 3]).unwrap(), Shape { m: 10, n: 16, k: 8 });
        let refused = |lengths: &[u32]| shape(lengths).unwrap_err().to_string();
        assert_eq!(
            refused(&[]),
            "rank 0 of 3 owns 4 of 10 rows of `a`, found a tensor of 7: where ranks own other numbers of \
             rows, tell all of them with `launch_with_rows`"
        );
        assert_eq!(refused(&[3, 0, 7]), "`a` has 7 rows on rank 0, `launch_with_rows` was told 3");
        assert_eq!(
            refused(&[7, 0, 4]),
            "`launch_with_rows` was told ranks of [7, 0, 4] rows, 11 in all: `c` has 10"
        );
    }
}
