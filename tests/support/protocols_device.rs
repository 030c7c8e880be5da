//! The protocols of `examples/` on virtual ranks of a GPU: every element that of the plain
//! product, by copy engines and by copy warps.

use crate::{protocols, sum_ahead};
use flux::Error;
use flux::prelude::*;
use libtest_mimic::{Failed, Trial};

/// Smaller than a tile and than the world; ragged; tiles that straddle shards; several waves.
const SHAPES: [[usize; 3]; 4] = [[1, 8, 8], [5, 130, 72], [301, 264, 200], [700, 520, 328]];

/// Launches: both parities of the epoch, and the first again.
const LAUNCHES: usize = 3;

pub(crate) fn trials(ignored: bool) -> Vec<Trial> {
    let engines = [(0, "copy_engine"), (1, "put")];
    let worlds = [1, 2, 4, 8].into_iter().flat_map(|ranks| engines.map(|engine| (ranks, engine)));
    let trials = worlds.map(|(ranks, (schedule, engine))| {
        let run = move || exact(ranks, schedule, protocols::count_wrong);
        Trial::test(format!("protocols_{engine}_{ranks}"), run).with_ignored_flag(ignored)
    });
    let members = [1, 2, 4, 8].into_iter().flat_map(|ranks| [(ranks, 0), (ranks, 1)]);
    let sums = members.map(|(ranks, schedule)| {
        let run = move || exact(ranks, schedule, sum_ahead::count_wrong);
        Trial::test(format!("sum_ahead_{schedule}_{ranks}"), run).with_ignored_flag(ignored)
    });
    trials.chain(sums).collect()
}

/// Launches on a rank, of rows, columns and reduction, under a schedule by number: wrong elements.
type CountWrong = fn(&Rank, [usize; 3], usize, Option<usize>) -> Result<usize, Error>;

fn exact(ranks: u32, schedule: usize, count_wrong: CountWrong) -> Result<(), Failed> {
    for shape in SHAPES {
        let world = World::virtual_ranks(0, ranks)?;
        let wrong = world.run(|rank| count_wrong(rank, shape, LAUNCHES, Some(schedule)))?;
        assert_eq!(wrong, vec![0; ranks as usize], "{shape:?} over {ranks}");
    }
    Ok(())
}
