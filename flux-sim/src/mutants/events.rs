//! Shows that two Programs do the same things: every actor has the same events in the same
//! sequence, so whatever one does in some interleaving, the other does in the same one.

use flux_ir::arena::Handle;
use flux_ir::eval::{Launch, RankView};
use flux_ir::program::Program;
use flux_ir::{Shape, TileShape};

/// Consecutive launches that are compared: two more than the checker runs.
const EPOCHS: u32 = 5;

/// Whether every actor of `a` and of `b` has the same events in `launch`. `b` is `a` but for what
/// agents do and how tables are filled.
pub(super) fn same(a: &Program, b: &Program, launch: Launch) -> bool {
    (0..launch.world).all(|rank| {
        match (RankView::new(a, launch, rank), RankView::new(b, launch, rank)) {
            (Ok(a), Ok(b)) => same_on(&a, &b),
            _ => false,
        }
    })
}

fn same_on(a: &RankView<'_>, b: &RankView<'_>) -> bool {
    let agents = a.program.agents.iter().zip(b.program.agents.iter());
    let mut agents = agents.flat_map(|((id, a), (_, b))| {
        debug_assert_eq!((&a.name, a.engine), (&b.name, b.engine), "agent {}", id.index());
        (1..=EPOCHS).map(move |epoch| (id, a.engine, epoch))
    });
    agents.all(|(id, engine, epoch)| {
        let ctas = engine.bodies(a.launch.ctas);
        let runs = (0..ctas).map(|cta| (a.agent(id, cta, epoch), b.agent(id, cta, epoch)));
        runs.chain([(a.exit(id, epoch), b.exit(id, epoch))]).all(|(a, b)| {
            let done = |event: flux_ir::eval::Event<'_>| (event.tile, event.action);
            a.map(done).eq(b.map(done))
        })
    })
}

/// Launches of every kind of edge, many more than the checker's own family: each quarter of a tile
/// up to more than a tile for each rank, and shards of about a half, a whole and more of a tile, with
/// a last one that is whole, a row short, or as short as it can be. One column of tiles on one CTA,
/// which does them in turn, and one or two, whole and ragged, on two or three; the reduction in one
/// k-step, in several, and in a ragged number of them.
pub(super) fn launches(tile: TileShape) -> impl Iterator<Item = Launch> {
    let (half, whole) = (tile.m / 2, tile.m);
    let shards = [1, half / 2 + 1, half - 1, half + 1, whole - 1, whole + 1, whole + half + 1];
    [1, 2, 3, 5].into_iter().flat_map(move |world| {
        let mut rows: Vec<u32> =
            (1..=4 * (world + 1)).map(|quarter| quarter * tile.m / 4).collect();
        for shard in shards {
            rows.extend([1, 2, world].map(|short| (shard * world + 1).saturating_sub(short)));
        }
        rows.retain(|&rows| rows > 0);
        rows.sort_unstable();
        rows.dedup();
        let columns = [(2, tile.n + 1), (3, 2 * tile.n), (2, tile.n), (3, 2 * tile.n - 1)];
        let depths = [1, 4 * tile.k, tile.k + 1];
        let rest = columns.into_iter().cycle().zip(depths.into_iter().cycle());
        rows.into_iter().zip(rest).flat_map(move |(m, ((ctas, n), k))| {
            let launch = |n, ctas| Launch { shape: Shape { m, n, k }, world, ctas };
            [launch(1, 1), launch(n, ctas)]
        })
    })
}

/// Launches with shards of every length up to two tiles, and one of twice as many tiles as a tile
/// has rows, and twice as many k-steps as one has columns; and shards around one and two chunks; one column of
/// tiles and one CTA.
pub(super) fn all_shards(tile: TileShape, chunk_rows: Option<u32>) -> impl Iterator<Item = Launch> {
    let few = (1..=2 * tile.m).flat_map(move |shard| {
        [2, 3, 5]
            .into_iter()
            .flat_map(move |world| [0, 1, world - 1].map(|short| (shard * world - short, 1, world)))
    });
    let long = (4 * tile.m * tile.m, 2 * tile.k * tile.k, 2);
    // Shards of one chunk and a little, of nearly two, of two, and of two and a half.
    let chunk = chunk_rows.unwrap_or(0);
    let chunked = [chunk + 1, 2 * chunk - chunk.min(1), 2 * chunk, 2 * chunk + chunk / 2]
        .into_iter()
        .filter(move |_| chunk > 0)
        .flat_map(move |shard| {
            [2, 3, 5].into_iter().flat_map(move |world| {
                [0, 1, world - 1].map(|short| (shard * world - short, 4 * tile.k, world))
            })
        });
    let all = few.chain([long]).chain(chunked);
    all.map(|(m, k, world)| Launch { shape: Shape { m, n: 1, k }, world, ctas: 1 })
}
