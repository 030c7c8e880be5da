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
fn what_was_gathered_has_all_rows_and_the_columns_of_a_shard() {
    let launch = |x: (usize, usize), says: &str| {
        all_say(&host(2), says, |rank| {
            let (a, b, mut c) = (rank.zeros(2, 8)?, rank.zeros(16, 8)?, rank.zeros(4, 16)?);
            ag_gemm_gathered::load(rank)?.launch(&a, &b, &mut rank.zeros(x.0, x.1)?, &mut c)
        });
    };
    launch((4, 16), "`a` has k = 8 (rank 0), `x` has k = 16 (rank 0)");
    launch((2, 8), "`x` has m = 2 (rank 0), `c` has m = 4 (rank 0)");
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

/// Launches an exchange of zeros over ranks that own so many rows, as this rank says.
fn exchange(rank: &Rank, [own, m]: [usize; 2], told: Option<&[usize]>) -> Result<(), Error> {
    let kernel = rows_to_columns::load(rank)?;
    let (x, mut c) = (rank.zeros(own, 4)?, rank.zeros(m, rank.own_rows(4))?);
    match told {
        Some(rows) => kernel.launch_with_rows(rows, &x, &mut c),
        None => kernel.launch(&x, &mut c),
    }
}

#[test]
fn rows_that_ranks_own_are_those_of_their_tensors() {
    let rows = [5, 0, 2];
    let own = |rank: &Rank| rows[rank.index() as usize];
    let world = host(3);
    world.run(|rank| exchange(rank, [own(rank), 7], Some(&rows))).expect("they fit");
    let says = "rank 0 of 3 owns 3 of 7 rows of `x`, found a tensor of 5: where ranks own other \
                numbers of rows, tell all of them with `launch_with_rows`";
    all_say(&world, says, |rank| exchange(rank, [own(rank), 7], None));
    let says = "`x` has 0 rows on rank 1, `launch_with_rows` was told 2";
    all_say(&world, says, |rank| exchange(rank, [own(rank), 7], Some(&[5, 2, 0])));
    let says = "`launch_with_rows` was told ranks of [5, 0, 2] rows, 7 in all: `c` has 8";
    all_say(&world, says, |rank| exchange(rank, [own(rank), 8], Some(&rows)));
    let says =
        "`launch_with_rows` of `rows_to_columns` was told the rows of 2 ranks, the world has 3";
    all_say(&world, says, |rank| exchange(rank, [own(rank), 7], Some(&[5, 2])));
    let most = u32::MAX as usize;
    let says = "`launch_with_rows`: rows of rank 1 = 4294967295 is over the limit of 2147483647";
    all_say(&world, says, |rank| exchange(rank, [own(rank), 7], Some(&[5, most, 2])));
}

/// Rows that one rank alone has wrong: every rank hears of it, and the next launch is everybody's again.
#[test]
fn rows_that_one_rank_refuses_are_refused_by_all() {
    let rows = [5, 0, 2];
    let wrong: [&[usize]; 3] = [&[5, 2], &[5, 0, 2, 0], &[5, usize::MAX, 2]];
    for wrong in wrong {
        let found = host(3).run(|rank| {
            let kernel = rows_to_columns::load(rank)?;
            let own = rows[rank.index() as usize];
            let x = rank.tensor(own, 4, &vec![bf16::ONE; own * 4])?;
            let launch = |rows: &[usize]| {
                let mut c = rank.zeros::<bf16>(7, rank.own_rows(4))?;
                kernel.launch_with_rows(rows, &x, &mut c)?;
                Ok::<_, Error>(c.to_vec()?.iter().map(|x| x.to_f32()).sum::<f32>())
            };
            let first = launch(if rank.index() == 1 { wrong } else { &rows });
            let first = first.expect_err("rank 1 is told other rows").to_string();
            let sum = launch(&rows)?;
            assert_eq!(sum, 7.0 * rank.own_rows(4) as f32);
            Ok((first, launch(&rows)?))
        });
        let found = found.expect("the launches behind it");
        for (rank, (says, _)) in found.iter().enumerate() {
            match rank {
                1 => assert!(says.contains("`launch_with_rows`"), "{says}"),
                _ => assert!(
                    says.starts_with(&format!(
                        "rank {rank} is about to launch `rows_to_columns` over ranks of [5, 0, 2] rows, rank 1"
                    )),
                    "{says}"
                ),
            }
        }
    }
}

#[test]
fn ranks_that_are_told_other_rows_name_both() {
    let found = errors(&host(2), |rank| {
        let told = if rank.index() == 0 { [3, 4] } else { [4, 3] };
        exchange(rank, [told[rank.index() as usize], 7], Some(&told))
    });
    let says = "rank 0 is about to launch `rows_to_columns` over ranks of [3, 4] rows, rank 1 to \
                launch `rows_to_columns` over ranks of [4, 3] rows: ";
    assert!(found[0].to_string().starts_with(says), "{}", found[0]);
    assert!(matches!(found[1], Error::RanksDisagree { own_rank: 1, rank: 0, .. }));
}
