//! What looks wrong and is fine: nothing to do, and fewer rows than ranks.

use super::*;

#[test]
fn an_output_without_elements_is_done_at_once() -> Result<(), Error> {
    host(3).run(|rank| {
        let (up, down) = (ag_gemm::load(rank)?, gemm_rs::load(rank)?);
        for _ in 0..2 {
            gather(rank, &up, [(0, 8), (16, 8), (0, 16)])?;
            gather(rank, &up, [(2, 8), (0, 8), (6, 0)])?;
            scatter(rank, &down, [0, 16, 8])?;
            scatter(rank, &down, [6, 0, 8])?;
            scatter(rank, &down, [0, 0, 0])?;
        }
        Ok(())
    })?;
    Ok(())
}

#[test]
fn a_sum_over_nothing_is_refused_on_every_rank_and_costs_nothing() -> Result<(), Error> {
    host(2).run(|rank| {
        let kernel = gemm_rs::load(rank)?;
        let refused = scatter(rank, &kernel, [4, 8, 0]);
        assert!(matches!(refused, Err(Error::EmptyReduction)), "{refused:?}");
        scatter(rank, &kernel, [4, 8, 1])
    })?;
    all_say(&host(2), "k = 0: a gemm needs at least one element to sum over", |rank| {
        gather(rank, &ag_gemm::load(rank)?, [(2, 0), (16, 0), (4, 16)])
    });
    Ok(())
}

#[test]
fn rows_are_gathered_beside_tiles_alone() -> Result<(), Error> {
    let launch = |rank: &Rank, [m, n, k]: [usize; 3]| {
        let kernel = ag_gemm_gathered::load(rank)?;
        let a = rank.zeros(rank.own_range(m).len(), k)?;
        let (mut x, mut c) = (rank.zeros(m, k)?, rank.zeros(m, n)?);
        kernel.launch(&a, &rank.zeros(n, k)?, &mut x, &mut c)
    };
    for error in errors(&host(2), |rank| launch(rank, [4, 0, 8])) {
        let says = error.to_string();
        assert!(says.contains("`x` keeps what is gathered, and m or n is 0"), "{says}");
    }
    host(2).run(|rank| {
        launch(rank, [0, 4, 8])?;
        launch(rank, [4, 1, 8])
    })?;
    Ok(())
}

#[test]
fn fewer_rows_than_ranks_are_right() -> Result<(), Error> {
    let (n, k) = (3, 5);
    for m in [1, 2, 3, 5] {
        let part = |rank: u32| -> (Vec<bf16>, Vec<bf16>) {
            let seed = u64::from(rank);
            (Draw::Integers.rows(seed, 0..m, k), Draw::Integers.rows(9 + seed, 0..n, k))
        };
        let a = part(0).0;
        let world = host(4);
        let results = world.run(|rank| {
            let (own_a, b) = part(rank.index());
            let rows = rank.own_range(m);
            let shard = rank.tensor(rows.len(), k, &a[rows.start * k..rows.end * k])?;
            let b = rank.tensor(n, k, &b)?;
            let mut gathered = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
            let mut scattered = rank.tensor(rows.len(), n, &vec![bf16::NAN; rows.len() * n])?;
            let (up, down) = (ag_gemm::load(rank)?, gemm_rs::load(rank)?);
            for _ in 0..3 {
                up.launch(&shard, &b, &mut gathered)?;
                down.launch(&rank.tensor(m, k, &own_a)?, &b, &mut scattered)?;
            }
            Ok((gathered.to_vec()?, scattered.to_vec()?))
        })?;
        let rows: Vec<usize> = (0..m).collect();
        let mut sum = vec![0.0; m * n];
        for (rank, (gathered, _)) in results.iter().enumerate() {
            let (own_a, b) = part(rank as u32);
            assert_eq!(as_f64(gathered), product(&a, &b, k, &rows), "m = {m}, rank {rank}");
            let own = product(&own_a, &b, k, &rows);
            sum.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
        }
        let scattered: Vec<bf16> = results.into_iter().flat_map(|(_, part)| part).collect();
        assert_eq!(as_f64(&scattered), sum, "m = {m}");
    }
    Ok(())
}

#[test]
fn a_shape_that_differs_on_another_rank_alone_is_another_shape() -> Result<(), Error> {
    let (n, k) = (3, 4);
    // Rank 0 owns two rows of three as of four.
    for m in [4, 3, 4, 3] {
        host(2).run(|rank| {
            let kernel = kernels::gather_and_scatter::load(rank)?;
            for m in [m, 7 - m, m] {
                let rows = rank.own_rows(m);
                let a = rank.tensor(rows, k, &vec![bf16::ONE; rows * k])?;
                let b = rank.tensor(n, k, &vec![bf16::ONE; n * k])?;
                let mut c = rank.tensor(rows, n, &vec![bf16::NAN; rows * n])?;
                kernel.launch(&a, &b, &mut c)?;
                assert_eq!(as_f64(&c.to_vec()?), vec![8.0; rows * n]);
            }
            Ok(())
        })?;
    }
    Ok(())
}
