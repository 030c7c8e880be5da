//! The launches every Program is checked on before it is compiled: few tiles, every kind of edge.

use super::{Findings, launch};
use crate::eval::Launch;
use crate::program::{Expr, Program, Sym};
use crate::tile::Shape;

/// Worlds of the family.
const WORLDS: [u32; 5] = [1, 2, 3, 4, 8];

/// CTAs of a rank: one that does all tiles in turn, and grids that split them evenly and not.
const CTAS: [u32; 3] = [1, 2, 3];

/// Checks `program` on the family. Needs a sound structure.
pub(super) fn check(program: &Program, found: &mut Findings) {
    for launch in family(program) {
        launch::check(program, launch, launch::FAMILY_STEP_LIMIT, found);
    }
}

/// Shapes in units of the tile, each for every world and grid:
///
/// | rows | what they bring about |
/// |---|---|
/// | 1 | fewer rows than ranks: most shards are empty |
/// | tile + 1 | a ragged last tile, tiles across shards, a short last shard |
/// | half a tile a rank, less 1 | one tile across two shards, a ragged last shard |
/// | a tile a rank | shards of whole tiles |
///
/// Two tile columns make a row of tiles more than one tile: the second is ragged, but whole where
/// rows are. The reduction is one element or a ragged number of k-steps, which changes nothing but
/// extents; where ranks hold shards of it, it takes lengths as rows do.
pub(super) fn family(program: &Program) -> impl Iterator<Item = Launch> {
    let tile = program.tile;
    let is_cut = cuts_reduction(program);
    WORLDS.into_iter().flat_map(move |world| {
        let mut rows = vec![1, tile.m + 1, (world * tile.m / 2).max(2) - 1, world * tile.m];
        rows.sort_unstable();
        rows.dedup();
        rows.into_iter().flat_map(move |m| {
            let (n, k) = match m {
                1 => (1, 1),
                _ if m == world * tile.m => {
                    (2 * tile.n, if is_cut { world * tile.k } else { tile.k })
                }
                _ if is_cut && m != tile.m + 1 => (tile.n + 1, (world * tile.k / 2).max(2) - 1),
                _ => (tile.n + 1, tile.k + 1),
            };
            CTAS.into_iter().map(move |ctas| Launch { shape: Shape { m, n, k }, world, ctas })
        })
    })
}

/// Whether ranks hold shards of what is summed over: a number of the Program is `ceil(K / world)`.
fn cuts_reduction(program: &Program) -> bool {
    let shard = Expr::from(Sym::K).ceil_div(Sym::World);
    program.lets.iter().any(|(_, value)| *value == shard)
}
