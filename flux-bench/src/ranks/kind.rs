//! Operators over ranks, by the names of the library's kernels.

use crate::shapes::Dims;
use flux::{Definition, kernels};
use flux_runtime::blas::Layout;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An operator whose ranks are all active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the kernel of `flux::kernels` with that name")]
pub enum Kind {
    AgGemm,
    AgGemmNn,
    GemmRs,
    GemmRsNn,
    GemmAr,
    GemmAgTn,
    AgGemmTn,
    GemmA2a,
    A2aGemm,
    AllGather,
    ReduceScatter,
    AllReduce,
    RowsToColumns,
    ColumnsToRows,
}

/// Which operand is gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// What stands ahead of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ahead {
    Nothing,
    Gather(Side),
    /// Columns of all rows become rows of all columns.
    Exchange,
}

/// What stands behind a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behind {
    Nothing,
    Scatter,
    Reduce,
    /// Rows of all columns become columns of all rows.
    Exchange,
}

/// Rows and columns of one rank's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extents {
    pub(crate) a: [usize; 2],
    /// Of collectives the same as `a`, and of no use.
    pub(crate) b: [usize; 2],
    pub(crate) c: [usize; 2],
    /// The product that each rank computes, where there is one.
    pub(crate) product: Dims,
    /// What is gathered or exchanged ahead of a product.
    pub(crate) arrived: [usize; 2],
    /// What is exchanged, the part of each rank behind that of the one before.
    pub(crate) blocks: [usize; 2],
    /// What is summed, all rows of it.
    pub(crate) whole: [usize; 2],
}

impl Kind {
    /// All of them: products with communication, then collectives.
    pub const ALL: [Kind; 14] = [
        Kind::AgGemm,
        Kind::AgGemmNn,
        Kind::GemmRs,
        Kind::GemmRsNn,
        Kind::GemmAr,
        Kind::GemmAgTn,
        Kind::AgGemmTn,
        Kind::GemmA2a,
        Kind::A2aGemm,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::AllReduce,
        Kind::RowsToColumns,
        Kind::ColumnsToRows,
    ];

    /// The kernel.
    pub fn definition(self) -> &'static Definition {
        match self {
            Kind::AgGemm => kernels::ag_gemm::definition(),
            Kind::AgGemmNn => kernels::ag_gemm_nn::definition(),
            Kind::GemmRs => kernels::gemm_rs::definition(),
            Kind::GemmRsNn => kernels::gemm_rs_nn::definition(),
            Kind::GemmAr => kernels::gemm_ar::definition(),
            Kind::GemmAgTn => kernels::gemm_ag_tn::definition(),
            Kind::AgGemmTn => kernels::ag_gemm_tn::definition(),
            Kind::GemmA2a => kernels::gemm_a2a::definition(),
            Kind::A2aGemm => kernels::a2a_gemm::definition(),
            Kind::AllGather => kernels::all_gather::definition(),
            Kind::ReduceScatter => kernels::reduce_scatter::definition(),
            Kind::AllReduce => kernels::all_reduce::definition(),
            Kind::RowsToColumns => kernels::rows_to_columns::definition(),
            Kind::ColumnsToRows => kernels::columns_to_rows::definition(),
        }
    }

    /// Whether nothing is multiplied.
    pub fn is_collective(self) -> bool {
        matches!(
            self,
            Kind::AllGather
                | Kind::ReduceScatter
                | Kind::AllReduce
                | Kind::RowsToColumns
                | Kind::ColumnsToRows
        )
    }

    pub(crate) fn layout(self) -> Layout {
        match self {
            Kind::AgGemmNn | Kind::GemmRsNn => Layout::Nn,
            Kind::GemmAgTn | Kind::AgGemmTn => Layout::Tn,
            _ => Layout::Nt,
        }
    }

    pub(crate) fn ahead(self) -> Ahead {
        match self {
            Kind::AgGemm | Kind::AgGemmNn | Kind::AgGemmTn | Kind::AllGather => {
                Ahead::Gather(Side::Left)
            }
            Kind::GemmAgTn => Ahead::Gather(Side::Right),
            Kind::A2aGemm | Kind::ColumnsToRows => Ahead::Exchange,
            _ => Ahead::Nothing,
        }
    }

    pub(crate) fn behind(self) -> Behind {
        match self {
            Kind::GemmRs | Kind::GemmRsNn | Kind::ReduceScatter => Behind::Scatter,
            Kind::GemmAr | Kind::AllReduce => Behind::Reduce,
            Kind::GemmA2a | Kind::RowsToColumns => Behind::Exchange,
            _ => Behind::Nothing,
        }
    }

    /// Whether rows of the result come from rows of the left operand, so that both can be cut into
    /// chunks of rows.
    pub(crate) fn has_chunks(self) -> bool {
        let exchanges = self.ahead() == Ahead::Exchange || self.behind() == Behind::Exchange;
        !exchanges && !self.is_collective() && self.layout() != Layout::Tn
    }

    /// What a rank of `world` holds. M is that of all ranks together, but for gradients of weights
    /// (Aᵀ · B), whose K is; of collectives M and N are those of the whole tensor.
    pub(crate) fn extents(self, Dims { m, n, k }: Dims, world: usize) -> Extents {
        let product = |rows| Dims { m: rows, n, k };
        let own = m / world;
        let (a, b, c, rows) = match self {
            Kind::AgGemm => ([own, k], [n, k], [m, n], m),
            Kind::AgGemmNn => ([own, k], [k, n], [m, n], m),
            Kind::GemmRs => ([m, k], [n, k], [own, n], m),
            Kind::GemmRsNn => ([m, k], [k, n], [own, n], m),
            Kind::GemmAr => ([m, k], [n, k], [m, n], m),
            Kind::GemmAgTn => ([k, m], [k / world, n], [m, n], m),
            Kind::AgGemmTn => ([k / world, m], [k, n], [m, n], m),
            Kind::GemmA2a => ([own, k], [n, k], [m, n / world], own),
            Kind::A2aGemm => ([m, k / world], [n, k], [own, n], own),
            Kind::AllGather => ([own, n], [own, n], [m, n], m),
            Kind::ReduceScatter => ([m, n], [m, n], [own, n], m),
            Kind::AllReduce => ([m, n], [m, n], [m, n], m),
            Kind::RowsToColumns => ([own, n], [own, n], [m, n / world], own),
            Kind::ColumnsToRows => ([m, n / world], [m, n / world], [own, n], own),
        };
        let arrived = match self.ahead() {
            _ if self.is_collective() => [0, 0],
            Ahead::Nothing => [0, 0],
            Ahead::Gather(Side::Left) => [a[0] * world, a[1]],
            Ahead::Gather(Side::Right) => [b[0] * world, b[1]],
            Ahead::Exchange => [rows, a[1] * world],
        };
        let blocks = match (self.ahead(), self.behind()) {
            (Ahead::Exchange, _) => a,
            (_, Behind::Exchange) => [rows, n],
            _ => [0, 0],
        };
        let sums = matches!(self.behind(), Behind::Scatter | Behind::Reduce);
        let whole = if sums { [rows, n] } else { [0, 0] };
        Extents { a, b, c, product: product(rows), arrived, blocks, whole }
    }

    /// GPT-3 175B's and Llama-2 70B's shapes of this operator on `world` ranks, for so many tokens.
    pub fn shapes(self, world: usize, tokens: &[usize]) -> Vec<Dims> {
        // Hidden size and inner size of both models' MLPs.
        let models = [(12288, 49152), (8192, 28672)];
        let of = |(hidden, inner): (usize, usize)| {
            let inner = inner / world;
            tokens.iter().map(move |&tokens| match self {
                Kind::AgGemm | Kind::AgGemmNn => Dims::new(tokens, inner, hidden),
                Kind::GemmRs | Kind::GemmRsNn | Kind::GemmAr => Dims::new(tokens, hidden, inner),
                Kind::GemmAgTn => Dims::new(inner, hidden, tokens),
                Kind::AgGemmTn => Dims::new(hidden, inner, tokens),
                _ => Dims::new(tokens, hidden, hidden),
            })
        };
        let all: Vec<Dims> = models.into_iter().flat_map(of).collect();
        // What is shared evenly: baselines want that.
        all.into_iter().filter(|&shape| self.is_even(shape, world)).collect()
    }

    /// Whether every rank gets as much of `shape`.
    pub(crate) fn is_even(self, Dims { m, n, k }: Dims, world: usize) -> bool {
        let shared: &[usize] = match self {
            Kind::GemmAgTn | Kind::AgGemmTn => &[k],
            Kind::GemmA2a | Kind::RowsToColumns | Kind::ColumnsToRows => &[m, n],
            Kind::A2aGemm => &[m, k],
            Kind::GemmAr | Kind::AllReduce => &[],
            _ => &[m],
        };
        shared.iter().all(|extent| extent.is_multiple_of(world))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.definition().name)
    }
}

impl FromStr for Kind {
    type Err = String;

    /// The name of the kernel.
    fn from_str(text: &str) -> Result<Kind, String> {
        let found = Kind::ALL.into_iter().find(|kind| kind.definition().name == text);
        found.ok_or_else(|| {
            let names = Kind::ALL.map(|kind| kind.to_string()).join(", ");
            format!("expected one of {names}, found `{text}`")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Ahead, Behind, Kind};
    use crate::shapes::Dims;

    #[test]
    fn kinds_are_read_as_they_are_printed() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "gemm".parse::<Kind>().unwrap_err();
        assert!(error.contains("found `gemm`") && error.contains("ag_gemm_tn"), "{error}");
    }

    #[test]
    fn the_models_shapes_are_shared_evenly() {
        for kind in Kind::ALL {
            assert_eq!(kind.shapes(2, &[2048, 8192]).len(), 4, "{kind}");
        }
        assert_eq!(Kind::GemmRs.shapes(2, &[1]), []);
        assert_eq!(Kind::GemmAr.shapes(2, &[1])[1], Dims::new(1, 8192, 14336));
    }

    #[test]
    fn every_operator_communicates_once_and_shares_what_it_says() {
        let shape = Dims::new(12, 20, 28);
        for kind in Kind::ALL {
            assert_eq!(
                (kind.ahead() == Ahead::Nothing) as u8 + (kind.behind() == Behind::Nothing) as u8,
                1,
                "{kind}"
            );
            assert!(kind.is_even(shape, 4), "{kind}");
            let shares = kind.behind() != Behind::Reduce;
            assert_eq!(kind.is_even(Dims::new(13, 21, 29), 4), !shares, "{kind}");
            // What all ranks hold together is no less than the product's operands and result.
            let extents = kind.extents(shape, 4);
            let Dims { m, n, .. } = extents.product;
            assert!(extents.c.iter().product::<usize>() * 4 >= m * n, "{kind}");
            // Of an exchange as much arrives as was there.
            let moved: usize = extents.blocks.iter().product();
            let exchanges = [kind.ahead() == Ahead::Exchange, kind.behind() == Behind::Exchange];
            let given = [extents.a.iter().product(), m * n];
            let expected =
                given.into_iter().zip(exchanges).find(|(_, is)| *is).map_or(0, |(of, _)| of);
            assert_eq!(moved, expected, "{kind}");
        }
    }
}
