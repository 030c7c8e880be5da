//! Operands on a device: drawn there, and rotated so that none is found in the L2 cache.

use super::{LIMIT, Number};
use crate::error::Error;
use crate::shapes::Dims;
use flux::{Rank, Tensor};
use flux_runtime::numbers::{Bound, Numbers};
use flux_runtime::{Span, Stream};

/// Operands are reused only after this many times the L2 cache has passed through it.
const L2_TIMES: u64 = 2;

/// How many sets of `set_bytes` bytes rotate so that more than twice `l2_bytes` lie between two
/// uses of one, and two at least.
pub(crate) fn sets(set_bytes: u64, l2_bytes: u64) -> usize {
    (L2_TIMES * l2_bytes / set_bytes.max(1) + 2) as usize
}

/// The memory of a tensor.
pub(crate) fn span<T: Number>(tensor: &Tensor<T>) -> Result<Span<'_>, Error> {
    Ok(tensor.buffer().ok_or(Error::NoDevice)?.span())
}

/// A matrix of random normal numbers.
pub(crate) fn normal<T: Number>(
    rank: &Rank,
    numbers: &Numbers,
    stream: &Stream,
    [rows, cols]: [usize; 2],
    seed: u64,
) -> Result<Tensor<T>, Error> {
    let tensor = rank.zeros(rows, cols)?;
    numbers.normal(stream, span(&tensor)?, seed, 1.0)?;
    Ok(tensor)
}

/// The part of operands that is not 0 where sums of `k` products of -1, 0 and 1 stay below what
/// bf16 holds exactly (256): a standard deviation of 20, so that none of a billion is beyond.
pub(crate) fn exact_density(k: usize) -> f32 {
    (20.0 / (k as f32).sqrt()).min(1.0)
}

/// How far two sums of `k` products of normal numbers may lie apart when each was made in f32, in
/// whatever order, and rounded once: a neighbor of the format, and what 23 bits lose when each of
/// the tensor cores' steps over 16 products cuts a running sum of six standard deviations.
pub(crate) fn sum_bound<T: Number>(k: usize) -> Bound {
    let k = k as f32;
    let absolute = 2.0 * (k / 16.0).ceil() * 6.0 * k.sqrt() * 2f32.powi(-23);
    Bound { relative: T::ULP, absolute }
}

/// As [`sum_bound`] for a library that may cut sums along K and keep the parts (up to eight, of six
/// standard deviations) in the format of the result. Of integers this costs nothing.
pub(crate) fn baseline_bound<T: Number>(bound: Bound, k: usize) -> Bound {
    if bound == Bound::EXACT {
        return bound;
    }
    let part = 0.5 * T::ULP * 6.0 * (k as f32).sqrt();
    Bound { absolute: bound.absolute + 8.0 * part, ..bound }
}

/// Compares a result with the reference.
pub(crate) fn require_same(
    numbers: &Numbers,
    stream: &Stream,
    (who, shape, data): (&str, Dims, &'static str),
    found: Span<'_>,
    expected: Span<'_>,
    bound: Bound,
) -> Result<f32, Error> {
    let difference = numbers.compare(stream, found, expected, bound, LIMIT)?;
    if difference.wrong == 0 {
        return Ok(difference.largest);
    }
    let (wrong, largest) = (difference.wrong.into(), difference.largest);
    Err(Error::Wrong { who: who.into(), shape, wrong, largest, data })
}

#[cfg(test)]
mod tests {
    use super::{exact_density, sets, sum_bound};
    use half::{bf16, f16};

    #[test]
    fn more_than_twice_the_cache_lies_between_two_uses() {
        for set in [1 << 10, 10 << 20, 60 << 20, 500 << 20] {
            let l2 = 60 << 20;
            assert!((sets(set, l2) as u64 - 1) * set >= 2 * l2 || sets(set, l2) == 2);
            assert!(sets(set, l2) >= 2);
        }
        assert_eq!(sets(500 << 20, 60 << 20), 2, "one set alone is more than that");
    }

    #[test]
    fn sums_of_integers_stay_exact_and_are_not_all_zero() {
        for k in [1, 64, 400, 3584, 12288, 49152] {
            let deviation = exact_density(k) * (k as f32).sqrt();
            assert!(6.0 * deviation <= 128.0, "k {k}: {deviation}");
            assert!(exact_density(k) > 0.0);
        }
    }

    #[test]
    fn the_bound_is_a_neighbor_and_little_more() {
        let typical = (12288f32).sqrt();
        assert!(sum_bound::<bf16>(12288).absolute < 0.002 * typical);
        assert!(sum_bound::<f16>(64).relative < sum_bound::<bf16>(64).relative);
    }
}
