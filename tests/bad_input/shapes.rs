//! Extents that do not fit together, on one rank or between ranks.

use super::*;

#[test]
fn two_parameters_that_disagree_are_named_with_both_numbers() {
    let launch = |a: (usize, usize), b: (usize, usize), c: (usize, usize), says: &str| {
        all_say(&host(1), says, |rank| {
            let (a, b) = (rank.zeros(a.0, a.1)?, rank.zeros(b.0, b.1)?);
            gemm_bf16::load(rank)?.launch(&a, &b, &mut rank.zeros(c.0, c.1)?)
        });
    };
    launch((2, 3), (4, 5), (2, 4), "`a` has k = 3 (rank 0), `b` has k = 5 (rank 0)");
    launch((2, 3), (4, 3), (9, 4), "`a` has m = 2 (rank 0), `c` has m = 9 (rank 0)");
    launch((2, 3), (4, 3), (2, 7), "`b` has n = 4 (rank 0), `c` has n = 7 (rank 0)");
    launch((2, 3), (3, 4), (2, 4), "`a` has k = 3 (rank 0), `b` has k = 4 (rank 0)");
    launch((0, 3), (4, 3), (1, 4), "`a` has m = 0 (rank 0), `c` has m = 1 (rank 0)");
}

#[test]
fn ranks_that_disagree_are_named_with_both_numbers_on_every_rank() {
    let says = "`b` has n = 16 (rank 0), `b` has n = 24 (rank 2)";
    all_say(&host(4), says, |rank| {
        let n = if rank.index() == 2 { 24 } else { 16 };
        scatter(rank, &gemm_rs::load(rank)?, [8, n, 4])
    });
    let says = "`c` has m = 8 (rank 0), `c` has m = 9 (rank 1)";
    all_say(&host(2), says, |rank| {
        let m = 8 + rank.index() as usize;
        gather(rank, &ag_gemm::load(rank)?, [(4, 8), (16, 8), (m, 16)])
    });
}

#[test]
fn a_shard_of_the_wrong_size_is_told_the_rows_that_its_rank_owns() {
    let says = "rank 1 of 2 owns 4 of 8 rows of `a`, found a tensor of 3";
    all_say(&host(2), says, |rank| {
        let rows = if rank.index() == 1 { 3 } else { 4 };
        gather(rank, &ag_gemm::load(rank)?, [(rows, 8), (16, 8), (8, 16)])
    });
    let says = "rank 2 of 3 owns 1 of 7 rows of `c`, found a tensor of 3";
    all_say(&host(3), says, |rank| {
        let (a, b) = (rank.zeros(7, 8)?, rank.zeros(16, 8)?);
        gemm_rs::load(rank)?.launch(&a, &b, &mut rank.zeros(3, 16)?)
    });
    let says = "rank 0 of 2 owns 3 of 5 rows of `a`, found a tensor of 2";
    all_say(&host(2), says, |rank| {
        let rows = 2 + rank.index() as usize;
        let (a, b) = (rank.zeros(rows, 8)?, rank.zeros(16, 8)?);
        let kernel = kernels::gather_and_scatter::load(rank)?;
        kernel.launch(&a, &b, &mut rank.zeros(rows, 16)?)
    });
}

#[test]
fn a_matrix_is_no_vector_and_a_vector_has_a_length() {
    let launch = |bias: (usize, usize), says: &str| {
        all_say(&host(2), says, |rank| {
            let (a, b) = (rank.zeros(2, 8)?, rank.zeros(16, 8)?);
            let bias = rank.zeros(bias.0, bias.1)?;
            ag_gemm_bias_gelu::load(rank)?.launch(&a, &b, &bias, &mut rank.zeros(4, 16)?)
        });
    };
    launch((4, 4), "`bias` is read as a vector, found 4 x 4 on rank 0");
    launch((1, 15), "`b` has n = 16 (rank 0), `bias` has n = 15 (rank 0)");
    launch((17, 1), "`b` has n = 16 (rank 0), `bias` has n = 17 (rank 0)");
    launch((0, 16), "`b` has n = 16 (rank 0), `bias` has n = 0 (rank 0)");
}

#[test]
fn a_vector_may_stand_or_lie() -> Result<(), Error> {
    host(2).run(|rank| {
        let kernel = ag_gemm_bias_gelu::load(rank)?;
        for (rows, cols) in [(16, 1), (1, 16)] {
            let (a, b) = (rank.zeros(2, 8)?, rank.zeros(16, 8)?);
            kernel.launch(&a, &b, &rank.zeros(rows, cols)?, &mut rank.zeros(4, 16)?)?;
        }
        Ok(())
    })?;
    Ok(())
}

#[test]
fn extents_over_31_bits_are_refused_by_name() {
    let says = "rows of `a` = 2147483648 is over the limit of 2147483647";
    all_say(&host(1), says, |rank| {
        let (a, b) = (rank.zeros(1 << 31, 0)?, rank.zeros(4, 0)?);
        gemm_bf16::load(rank)?.launch(&a, &b, &mut rank.zeros(0, 4)?)
    });
    let says = "columns of `c` = 9223372036854775808 is over the limit of 2147483647";
    all_say(&host(1), says, |rank| {
        let (a, b) = (rank.zeros(0, 8)?, rank.zeros(4, 8)?);
        gemm_bf16::load(rank)?.launch(&a, &b, &mut rank.zeros(0, 1 << 63)?)
    });
}

#[test]
fn extents_over_31_bits_of_all_ranks_together_are_refused() {
    all_say(&host(2), "m = 2147483648 is over the limit of 2147483647", |rank| {
        let (a, b) = (rank.zeros(1 << 30, 0)?, rank.zeros(0, 0)?);
        let kernel = kernels::gather_and_scatter::load(rank)?;
        kernel.launch(&a, &b, &mut rank.zeros(1 << 30, 0)?)
    });
}
