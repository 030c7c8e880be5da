//! One active rank among passive peers: results are those of what the peers send.

use crate::data::{Draw, product};
use flux::prelude::*;
use flux::{Error, Outbox, Peers};
use libtest_mimic::{Failed, Trial};

/// Fewer rows than ranks, ragged, straddling tiles, several tiles for each peer.
const SHAPES: [[usize; 3]; 7] = [
    [1, 8, 8],
    [17, 520, 1000],
    [129, 257, 264],
    [300, 333, 77],
    [1000, 264, 1000],
    [1023, 129, 65],
    [2048, 1536, 256],
];

/// Launches of each shape, of which every fourth is followed by other data: both parities of the
/// epoch with data that is new, and both with data that has stayed.
const LAUNCHES: u64 = 8;
const FILLED: u64 = 4;

pub(crate) fn trials(ignored: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (peers, place) in
        [(Peers::Host, "host"), (Peers::Device, "device"), (Peers::Resident, "resident")]
    {
        for ranks in [2, 8] {
            let gather = move || gathers(peers, ranks);
            trials.push(Trial::test(format!("passive_gather_{place}_{ranks}"), gather));
            let scatter = move || scatters(peers, ranks);
            trials.push(Trial::test(format!("passive_scatter_{place}_{ranks}"), scatter));
        }
    }
    trials.into_iter().map(|trial| trial.with_ignored_flag(ignored)).collect()
}

/// Small integers for every peer; what was sent, by peer.
fn fill(rank: &Rank, seed: u64) -> Result<Vec<(Outbox, Vec<bf16>)>, Error> {
    let mut sent = Vec::new();
    for outbox in rank.outboxes() {
        let (rows, cols) = (outbox.rows().len(), outbox.cols().len());
        let data: Vec<bf16> = Draw::Integers.rows(seed + u64::from(outbox.peer()), 0..rows, cols);
        outbox.write(&data)?;
        assert!(outbox.write(&data[1..]).is_err(), "an element is missing");
        sent.push((outbox, data));
    }
    Ok(sent)
}

fn gathers(peers: Peers, ranks: u32) -> Result<(), Failed> {
    World::passive(0, ranks, peers)?.run(|rank| {
        for [m, n, k] in SHAPES {
            let kernel = flux::kernels::ag_gemm::load(rank)?;
            let own: Vec<bf16> = Draw::Integers.rows(1, rank.own_range(m), k);
            let b: Vec<bf16> = Draw::Integers.rows(2, 0..n, k);
            let a = rank.tensor(rank.own_rows(m), k, &own)?;
            let b_here = rank.tensor(n, k, &b)?;
            let mut all = vec![bf16::ZERO; m * k];
            all[..own.len()].copy_from_slice(&own);
            for launch in 0..LAUNCHES {
                let mut c = rank.tensor(m, n, &vec![bf16::NAN; m * n])?;
                kernel.launch(&a, &b_here, &mut c)?;
                let what = format!("gather {m}x{n}x{k}, {ranks} ranks, launch {launch}");
                let rows: Vec<usize> = (0..m).collect();
                same(&what, &c.to_vec()?, &product(&all, &b, k, &rows));
                if !launch.is_multiple_of(FILLED) {
                    continue;
                }
                // Peers send zeros until they are given something, and something else each time.
                for (outbox, data) in fill(rank, 100 * (launch + 1))? {
                    let rows = outbox.rows();
                    assert_eq!((rows.clone(), outbox.cols()), (peer_rows(&outbox, m, ranks), 0..k));
                    all[rows.start * k..rows.end * k].copy_from_slice(&data);
                }
            }
        }
        Ok(())
    })?;
    Ok(())
}

fn peer_rows(outbox: &Outbox, m: usize, ranks: u32) -> std::ops::Range<usize> {
    let shard = m.div_ceil(ranks as usize);
    let first = outbox.peer() as usize * shard;
    first..(first + shard).min(m)
}

fn scatters(peers: Peers, ranks: u32) -> Result<(), Failed> {
    World::passive(0, ranks, peers)?.run(|rank| {
        for [m, n, k] in SHAPES {
            let kernel = flux::kernels::gemm_rs::load(rank)?;
            let a: Vec<bf16> = Draw::Integers.rows(1, 0..m, k);
            let b: Vec<bf16> = Draw::Integers.rows(2, 0..n, k);
            let (a_here, b_here) = (rank.tensor(m, k, &a)?, rank.tensor(n, k, &b)?);
            let rows: Vec<usize> = rank.own_range(m).collect();
            let own = product(&a, &b, k, &rows);
            let mut expected = own.clone();
            for launch in 0..LAUNCHES {
                let mut c = rank.tensor(rows.len(), n, &vec![bf16::NAN; rows.len() * n])?;
                kernel.launch(&a_here, &b_here, &mut c)?;
                let what = format!("scatter {m}x{n}x{k}, {ranks} ranks, launch {launch}");
                same(&what, &c.to_vec()?, &expected);
                if !launch.is_multiple_of(FILLED) {
                    continue;
                }
                expected.clone_from(&own);
                for (outbox, data) in fill(rank, 100 * (launch + 1))? {
                    assert_eq!((outbox.rows().len(), outbox.cols()), (rows.len(), 0..n));
                    for (sum, x) in expected.iter_mut().zip(data) {
                        *sum += f64::from(x.to_f32());
                    }
                }
            }
        }
        Ok(())
    })?;
    Ok(())
}

fn same(what: &str, found: &[bf16], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, &expected)) in found.iter().zip(expected).enumerate() {
        let expected = bf16::from_f32(expected as f32);
        assert!(*found == expected, "{what}: element {index} is {found}, expected {expected}");
    }
}
