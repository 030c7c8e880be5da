//! The operators on threads of the host: the results alone, on small integers, exactly. No time is
//! taken, so this runs anywhere.

use crate::error::Error;
use crate::shapes::Dims;
use flux::{Rank, World};
use half::bf16;
use std::ops::Range;

/// Smaller than a tile, ragged, more than a tile, more rows than columns; M below the world.
pub const SHAPES: [Dims; 5] = [
    Dims::new(64, 64, 64),
    Dims::new(130, 72, 40),
    Dims::new(512, 264, 128),
    Dims::new(3, 16, 24),
    Dims::new(257, 8, 8),
];

/// Which operator runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// The product alone.
    Gemm,
    /// All-gather, then the product.
    Gather,
    /// The product, then the reduce-scatter.
    Scatter,
}

/// Runs `operator` on `world` ranks of the host and compares every element with sums of integers.
///
/// # Errors
/// [`Error::Wrong`]; errors of the ranks.
pub fn run(operator: Operator, world: u32, shape: Dims) -> Result<(), Error> {
    let results = World::host(world)?.run(|rank| result(operator, rank, shape))?;
    for (rank, found) in results.iter().enumerate() {
        compare(operator, rank, results.len(), shape, found)?;
    }
    Ok(())
}

/// An element of A or B on a rank: -1, 0 or 1.
fn element(seed: usize, row: usize, col: usize) -> f32 {
    let mixed = (row * 31 + col * 17 + seed * 101).wrapping_mul(0x9e37_79b9) >> 7;
    (mixed % 3) as f32 - 1.0
}

fn matrix(seed: usize, rows: Range<usize>, cols: usize) -> Vec<bf16> {
    let each = rows.flat_map(|row| (0..cols).map(move |col| element(seed, row, col)));
    each.map(bf16::from_f32).collect()
}

/// Operands differ from rank to rank where ranks have their own: B always, A of a scattered
/// product.
fn seeds(operator: Operator, rank: usize) -> [usize; 2] {
    match operator {
        Operator::Gemm | Operator::Gather => [0, 1 + rank],
        Operator::Scatter => [100 + rank, 1 + rank],
    }
}

fn result(operator: Operator, rank: &Rank, shape: Dims) -> Result<Vec<bf16>, flux::Error> {
    let Dims { m, n, k } = shape;
    let [seed_a, seed_b] = seeds(operator, rank.index() as usize);
    let b = rank.tensor(n, k, &matrix(seed_b, 0..n, k))?;
    let own = rank.own_range(m);
    let rows = if operator == Operator::Gather { own.clone() } else { 0..m };
    let a = rank.tensor(rows.len(), k, &matrix(seed_a, rows.clone(), k))?;
    let out = if operator == Operator::Scatter { own.len() } else { m };
    let mut c = rank.tensor(out, n, &vec![bf16::NAN; out * n])?;
    match operator {
        Operator::Gemm => flux::kernels::gemm_bf16::load(rank)?.launch(&a, &b, &mut c)?,
        Operator::Gather => flux::kernels::ag_gemm::load(rank)?.launch(&a, &b, &mut c)?,
        Operator::Scatter => flux::kernels::gemm_rs::load(rank)?.launch(&a, &b, &mut c)?,
    }
    c.to_vec()
}

fn compare(
    operator: Operator,
    rank: usize,
    world: usize,
    shape: Dims,
    found: &[bf16],
) -> Result<(), Error> {
    let Dims { m, n, k } = shape;
    let shard = m.div_ceil(world);
    let rows = match operator {
        Operator::Gemm | Operator::Gather => 0..m,
        Operator::Scatter => (rank * shard).min(m)..((rank + 1) * shard).min(m),
    };
    let addends = match operator {
        Operator::Gemm | Operator::Gather => rank..rank + 1,
        Operator::Scatter => 0..world,
    };
    let (mut wrong, mut largest) = (0, 0f32);
    let places = rows.flat_map(|row| (0..n).map(move |col| (row, col)));
    let mut found = found.iter();
    for (row, col) in places {
        let product = |rank: usize| {
            let [a, b] = seeds(operator, rank);
            (0..k).map(|i| element(a, row, i) * element(b, col, i)).sum::<f32>()
        };
        // Contributions travel in bf16, which holds these integers exactly.
        let expected: f32 = addends.clone().map(product).sum();
        let difference = match found.next() {
            Some(found) => (found.to_f32() - bf16::from_f32(expected).to_f32()).abs(),
            None => f32::NAN,
        };
        if difference != 0.0 {
            wrong += 1;
            largest = largest.max(difference);
        }
    }
    wrong += found.len() as u64;
    if wrong == 0 {
        return Ok(());
    }
    let who = format!("{operator:?} on rank {rank} of {world}");
    Err(Error::Wrong { who, shape, wrong, largest, data: "small integers" })
}

#[cfg(test)]
mod tests {
    use super::{Operator, compare, element, matrix, run};
    use crate::Error;
    use crate::shapes::Dims;
    use half::bf16;

    #[test]
    fn operators_are_right_and_a_wrong_element_is_found() {
        let shape = Dims::new(5, 16, 8);
        for operator in [Operator::Gemm, Operator::Gather, Operator::Scatter] {
            run(operator, 2, shape).unwrap();
        }
        // The product of rank 0, by hand, with one element off, one missing, one too many.
        let product = |row, col| (0..8).map(|i| element(0, row, i) * element(1, col, i)).sum();
        let right: Vec<bf16> =
            (0..5 * 16).map(|i| bf16::from_f32(product(i / 16, i % 16))).collect();
        let check = |found: &[bf16]| compare(Operator::Gemm, 0, 1, shape, found);
        check(&right).unwrap();
        let mut off = right.clone();
        off[37] += bf16::ONE;
        assert!(matches!(check(&off), Err(Error::Wrong { wrong: 1, .. })));
        off[37] = bf16::NAN;
        assert!(matches!(check(&off), Err(Error::Wrong { wrong: 1, .. })));
        assert!(check(&right[1..]).is_err());
        assert!(check(&[right, matrix(0, 0..1, 1)].concat()).is_err());
    }

    #[test]
    fn operands_have_all_three_values() {
        for value in [-1.0, 0.0, 1.0] {
            assert!(matrix(3, 0..9, 9).contains(&bf16::from_f32(value)));
        }
    }
}
