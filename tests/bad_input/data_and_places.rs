//! Data of the wrong length, memory that is not there, numbers that are none.

use super::*;

#[test]
fn data_of_another_length_is_refused_and_changes_nothing() {
    all_say(&host(1), "a tensor of 3 x 5 holds 15 elements, found 14", |rank| {
        rank.tensor(3, 5, &[0.0_f32; 14])
    });
    all_say(&host(1), "a tensor of 2 x 2 holds 4 elements, found 5", |rank| {
        let mut tensor = rank.tensor(2, 2, &[7.0_f32; 4])?;
        let written = tensor.write(&[0.0; 5]);
        assert_eq!(tensor.to_vec()?, [7.0; 4]);
        written
    });
}

#[test]
fn a_tensor_beyond_memory_is_an_error() {
    let says = "a tensor of 18446744073709551615 x 2 holds 36893488147419103230 elements, found 0";
    all_say(&host(1), says, |rank| rank.tensor::<f32>(usize::MAX, 2, &[]));
    for (rows, cols) in [(usize::MAX, 2), (usize::MAX / 2, 1), (1 << 40, 1 << 16)] {
        let says =
            format!("no memory on the host for a tensor of {rows} x {cols} elements of 4 bytes");
        all_say(&host(1), &says, |rank| rank.zeros::<f32>(rows, cols));
    }
}

#[test]
fn rows_of_any_matrix_can_be_shared_out() -> Result<(), Error> {
    let parts = host(3).run(|rank| Ok([0, 1, 2, 7, usize::MAX].map(|m| rank.own_range(m))))?;
    for (index, m) in [0, 1, 2, 7, usize::MAX].into_iter().enumerate() {
        assert_eq!(parts.iter().map(|part| part[index].len()).sum::<usize>(), m);
        assert_eq!(parts[2][index].end, m);
    }
    Ok(())
}

#[test]
fn a_rank_of_the_host_has_no_stream_and_no_device() -> Result<(), Error> {
    host(1).run(|rank| {
        assert!(rank.stream().is_none() && rank.device().is_none());
        assert!(rank.zeros::<f32>(1, 1)?.buffer().is_none());
        rank.synchronize()
    })?;
    Ok(())
}

#[test]
fn not_a_number_passes_through_and_stays_in_its_rows() -> Result<(), Error> {
    let (m, n, k) = (5, 6, 7);
    host(1).run(|rank| {
        let mut a = vec![bf16::ONE; m * k];
        a[2 * k + 3] = bf16::NAN;
        a[4 * k] = bf16::INFINITY;
        let (a, b) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &vec![bf16::ONE; n * k])?);
        let mut c = rank.tensor(m, n, &vec![9.0; m * n])?;
        let plain = kernels::scaled::load(rank)?;
        plain.launch(&a, &b, &mut c, 1.0)?;
        check_rows(&c.to_vec()?, n, f32::is_nan);
        // The larger of a NaN and 0 is 0, as documented.
        kernels::clamped::load(rank)?.launch(&a, &b, &mut c)?;
        check_rows(&c.to_vec()?, n, |x| x == 0.0);
        plain.launch(&a, &b, &mut c, f32::NAN)?;
        assert!(c.to_vec()?.iter().all(|x| x.is_nan()), "a scalar that is not a number");
        Ok(())
    })?;
    Ok(())
}

/// Row 2 is as `special` says, row 4 infinite, all others are 7.
fn check_rows(values: &[f32], cols: usize, special: impl Fn(f32) -> bool) {
    for (row, values) in values.chunks(cols).enumerate() {
        let fits = |x: f32| match row {
            2 => special(x),
            4 => x == f32::INFINITY,
            _ => x == 7.0,
        };
        assert!(values.iter().all(|&x| fits(x)), "row {row}: {values:?}");
    }
}
