//! Named sets of shapes: those of the models and tables that the project measures itself by.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Extents of a product: C\[m, n\] = A\[m, k\] · B\[n, k\]ᵀ. Of an operator over ranks, n and k are
/// one rank's and m is that of all ranks together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dims {
    /// Rows of A and C.
    pub m: usize,
    /// Rows of B, columns of C.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
}

impl Dims {
    /// These extents.
    pub const fn new(m: usize, n: usize, k: usize) -> Dims {
        Dims { m, n, k }
    }

    /// Operations of the product: a multiplication and an addition each.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }
}

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} x {}", self.m, self.n, self.k)
    }
}

impl FromStr for Dims {
    type Err = String;

    /// `M,N,K`.
    fn from_str(text: &str) -> Result<Dims, String> {
        let numbers: Result<Vec<usize>, _> =
            text.split(',').map(|part| part.trim().parse()).collect();
        match numbers.as_deref() {
            Ok(&[m, n, k]) if m >= 1 && n >= 1 && k >= 1 => Ok(Dims { m, n, k }),
            _ => Err(format!(
                "expected M,N,K such as 8192,6144,12288, each 1 or more, found `{text}`"
            )),
        }
    }
}

/// (n, k) of GPT-3 175B and Llama-2 70B, divided by eight ranks where the operator divides.
const LARGE: [(usize, usize); 5] =
    [(6144, 12288), (12288, 6144), (7168, 8192), (8192, 3584), (24576, 12288)];

/// Products that the tensor cores bound: M 512 … 8192 by the models' (n, k), and two cubes.
pub fn large() -> Vec<Dims> {
    let rows = [512, 1024, 2048, 4096, 8192];
    let models = LARGE.iter().flat_map(|&(n, k)| rows.map(|m| Dims::new(m, n, k)));
    models.chain([Dims::new(4096, 4096, 4096), Dims::new(8192, 8192, 8192)]).collect()
}

/// Products that memory bounds: M 1 … 256 by the models' (n, k).
pub fn small() -> Vec<Dims> {
    let rows = [1, 16, 64, 128, 256];
    LARGE.iter().flat_map(|&(n, k)| rows.map(|m| Dims::new(m, n, k))).collect()
}

/// Extents that fit nothing: M between tiles, unaligned N, K that is no multiple of 64.
pub fn ragged() -> Vec<Dims> {
    vec![
        Dims::new(4000, 6144, 12288),
        Dims::new(4224, 7168, 8192),
        Dims::new(8192, 6136, 12288),
        Dims::new(8192, 6143, 12288),
        Dims::new(8192, 7168, 8200),
        Dims::new(4096, 8192, 3592),
        Dims::new(8191, 8191, 8191),
    ]
}

/// Where layouts and epilogues are compared: many rows and few by the models' (n, k).
pub fn chosen() -> Vec<Dims> {
    let models = LARGE.iter().flat_map(|&(n, k)| [2048, 8192].map(|m| Dims::new(m, n, k)));
    models.chain([Dims::new(4096, 4096, 4096)]).collect()
}

/// The rows of the all-gather table at world 8; at other worlds those of the same table.
pub fn gathers(world: u32) -> Vec<Dims> {
    let rows: &[(&[usize], usize, usize)] = match world {
        8 => &[
            (&[8192, 4096, 2048, 512], 6144, 12288),
            (&[8192, 4096, 2048, 512], 24576, 12288),
            (&[8192, 4096, 2048, 512], 3584, 8192),
        ],
        _ => &[(&[8192, 4096, 2048, 512], 6144, 12288), (&[8192, 2048, 512], 24576, 12288)],
    };
    expand(rows)
}

/// The rows of the reduce-scatter table at world 8; at other worlds those of the same table.
pub fn scatters(world: u32) -> Vec<Dims> {
    let rows: &[(&[usize], usize, usize)] = match world {
        8 => &[
            (&[8192, 4096, 2048, 512], 12288, 6144),
            (&[8192, 4096, 2048], 12288, 24576),
            (&[8192, 4096, 2048, 512], 8192, 3584),
        ],
        _ => &[(&[8192, 4096, 2048, 512], 12288, 6144), (&[8192, 2048], 12288, 24576)],
    };
    expand(rows)
}

fn expand(rows: &[(&[usize], usize, usize)]) -> Vec<Dims> {
    rows.iter().flat_map(|&(all, n, k)| all.iter().map(move |&m| Dims::new(m, n, k))).collect()
}

#[cfg(test)]
mod tests {
    use super::{Dims, chosen, gathers, large, ragged, scatters, small};
    use std::collections::HashSet;

    #[test]
    fn shapes_are_read_as_they_are_printed_on_a_command_line() {
        assert_eq!("8192, 6144,12288".parse(), Ok(Dims::new(8192, 6144, 12288)));
        for wrong in ["", "1,2", "1,2,3,4", "1,2,x", "0,2,3", "-1,2,3"] {
            let error = wrong.parse::<Dims>().unwrap_err();
            assert!(error.contains(&format!("found `{wrong}`")), "{error}");
        }
    }

    #[test]
    fn sets_have_the_rows_of_their_tables_once() {
        let sets = [
            (large(), 27),
            (small(), 25),
            (ragged(), 7),
            (chosen(), 11),
            (gathers(8), 12),
            (gathers(2), 7),
            (scatters(8), 11),
            (scatters(2), 6),
        ];
        for (set, rows) in sets {
            assert_eq!(set.len(), rows);
            assert_eq!(set.iter().collect::<HashSet<_>>().len(), rows);
        }
        assert_eq!(gathers(8).len() + gathers(2).len(), 19);
        assert_eq!(scatters(8).len() + scatters(2).len(), 17);
    }
}
