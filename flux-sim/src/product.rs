//! The product of two matrices through the `gemm` crate. The crate's one `unsafe` block.

/// A matrix of f32 in memory: element (i, j) at `i * row_stride + j * col_stride`, inside `data`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `rows × cols`, row-major with `stride` elements from one row to the next. `None` where
    /// `data` is too short, or where an offset leaves what a pointer can address.
    pub(crate) fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Option<Self> {
        let end = if rows == 0 || cols == 0 {
            0
        } else {
            (rows - 1).checked_mul(stride)?.checked_add(cols)?
        };
        isize::try_from(stride).ok()?;
        (end <= data.len()).then_some(Matrix {
            data,
            rows,
            cols,
            row_stride: stride,
            col_stride: 1,
        })
    }

    /// The transpose, in the same memory.
    pub(crate) fn t(self) -> Self {
        Matrix {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }
}

/// What becomes of what a product's place held before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// It is written over.
    Lost,
    /// The product is added to it.
    Kept,
}

/// Writes `a · b`, row-major without gaps, to `into`, or adds it. `false`, and nothing is
/// written, where the extents do not fit each other or `into`.
pub(crate) fn multiply(
    into: &mut [f32],
    before: Before,
    a: Matrix<'_>,
    b: Matrix<'_>,
    threads: usize,
) -> bool {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    if b.rows != k || m.checked_mul(n) != Some(into.len()) {
        return false;
    }
    let parallelism =
        if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
    if m == 0 || n == 0 || k == 0 {
        if before == Before::Lost {
            into.fill(0.0);
        }
        return true;
    }
    let kept = before == Before::Kept;
    // SAFETY: `into` holds exactly m × n elements and is borrowed exclusively; a `Matrix` of k
    // columns or rows with at least one element lies inside its slice, whose strides fit isize.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            into.as_mut_ptr(),
            1,
            n as isize,
            kept,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            if kept { 1.0 } else { 0.0 },
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
    true
}

/// The whole product `a · bᵀ` by one call of the GEMM crate on `threads` threads: the baseline
/// that benchmarks of the executor compare with. `a` is `[m, k]`, `b` is `[n, k]`, `into` is
/// `[m, n]`, all row-major. `false`, and nothing is written, where a length does not fit.
pub fn baseline_product(into: &mut [f32], a: &[f32], b: &[f32], k: usize, threads: usize) -> bool {
    let rows = |data: &[f32]| data.len().checked_div(k).unwrap_or(0);
    let (m, n) = (rows(a), rows(b));
    match (Matrix::new(a, m, k, k), Matrix::new(b, n, k, k)) {
        (Some(a), Some(b)) => multiply(into, Before::Lost, a, b.t(), threads),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7 + seed * 3) % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn products_of_any_extent_are_exact_transposed_or_not() {
        let extents = [1, 2, 3, 5, 8, 17, 33];
        for (m, n, k) in triples(&extents) {
            let (a, b) = (numbers(m * (k + 3), 1), numbers(n * k, 2));
            let a = Matrix::new(&a, m, k, k + 3).expect("fits");
            for transposed in [false, true] {
                let rhs = if transposed {
                    Matrix::new(&b, n, k, k).expect("fits").t()
                } else {
                    Matrix::new(&b, k, n, n).expect("fits")
                };
                let mut c = vec![f32::NAN; m * n];
                assert!(multiply(&mut c, Before::Lost, a, rhs, 1));
                let mut twice = c.clone();
                assert!(multiply(&mut twice, Before::Kept, a, rhs, 1));
                assert!(twice.iter().zip(&c).all(|(twice, once)| *twice == 2.0 * once));
                for i in 0..m {
                    for j in 0..n {
                        let b = |l| if transposed { b[j * k + l] } else { b[l * n + j] };
                        let sum: f32 = (0..k).map(|l| a.data[i * (k + 3) + l] * b(l)).sum();
                        assert_eq!(c[i * n + j], sum, "{m} {n} {k} at ({i}, {j})");
                    }
                }
            }
        }
    }

    fn triples(extents: &[usize]) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        extents.iter().flat_map(move |&m| {
            extents.iter().flat_map(move |&n| extents.iter().map(move |&k| (m, n, k)))
        })
    }

    #[test]
    fn a_matrix_beyond_its_slice_is_refused() {
        let data = [0.0; 12];
        assert!(Matrix::new(&data, 3, 4, 4).is_some());
        assert!(Matrix::new(&data, 3, 2, 5).is_some(), "the last row may be cut");
        assert!(Matrix::new(&data, 3, 3, 5).is_none());
        assert!(Matrix::new(&data, 2, 2, usize::MAX).is_none());
        let (a, b) = (Matrix::new(&data, 3, 4, 4), Matrix::new(&data, 3, 4, 4));
        let (a, b) = (a.expect("fits"), b.expect("fits"));
        assert!(!multiply(&mut [0.0; 9], Before::Lost, a, b, 1), "4 columns against 3 rows");
        assert!(!multiply(&mut [0.0; 8], Before::Lost, a, b.t(), 1), "9 elements into 8");
        assert!(multiply(&mut [0.0; 9], Before::Lost, a, b.t(), 1));
    }

    #[test]
    fn an_empty_reduction_gives_zeros() {
        let (a, b) = (Matrix::new(&[], 2, 0, 0), Matrix::new(&[], 0, 3, 3));
        let mut c = [f32::NAN; 6];
        assert!(multiply(&mut c, Before::Lost, a.expect("empty"), b.expect("empty"), 1));
        assert_eq!(c, [0.0; 6]);
        c.fill(1.0);
        assert!(multiply(&mut c, Before::Kept, a.expect("empty"), b.expect("empty"), 1));
        assert_eq!(c, [1.0; 6]);
    }
}
