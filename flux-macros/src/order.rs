//! A user's tile order that rustc can run: a `const fn` of the same `#[flux::module]`.
//!
//! Every order is checked on the exact grid before a launch. One that is const is tried already
//! while the kernel compiles, so that a wrong formula is an error at its name in the schedule.

use flux_syntax::{ModuleScope, OrderSyntax, ScheduleSyntax};
use proc_macro2::TokenStream;
use quote::quote_spanned;
use syn::spanned::Spanned;

/// Rows, columns and tile rows of the grids an order is tried on: one tile, more rows than
/// columns and the reverse, a ragged last row.
const GRIDS: [(u32, u32, u32); 4] = [(1, 1, 1), (6, 2, 1), (4, 5, 2), (7, 3, 2)];

/// An assertion that the order of `schedule` is a permutation of small grids, where it is a
/// `const fn` that the module shows.
pub(crate) fn assertion(schedule: &ScheduleSyntax, scope: &ModuleScope) -> Option<TokenStream> {
    let OrderSyntax::Custom { name, tokens, .. } = &schedule.order else {
        return None;
    };
    let path: syn::Path = syn::parse2(tokens.clone()).ok()?;
    let order = path.get_ident()?;
    scope.function(name)?.sig.constness?;
    let shapes = GRIDS.map(|(m, n, tile_m)| quote_spanned!(tokens.span()=> (#m, #n, #tile_m)));
    let twice = format!("order `{name}` is no permutation: two steps give one tile");
    let outside = format!("order `{name}` leaves the grid");
    Some(quote_spanned! {tokens.span()=>
        const _: () = {
            const SHAPES: [(u32, u32, u32); 4] = [#(#shapes),*];
            let mut shape = 0;
            while shape < SHAPES.len() {
                let (m, n, tile_m) = SHAPES[shape];
                let mut world = 1;
                while world <= 4 {
                    let grid = ::flux::Grid::new(
                        ::flux::Shape { m, n, k: 1 },
                        ::flux::TileShape { m: tile_m, n: 1, k: 1 },
                        world,
                        false,
                    );
                    let mut rank = 0;
                    while rank < world {
                        // No grid above has more than 64 tiles: a bit for each.
                        let mut visited = 0_u64;
                        let mut step = 0;
                        while step < grid.tiles() {
                            let ::flux::TileCoord { m, n } = #order(step, &grid, rank, world);
                            ::core::assert!(m < grid.rows && n < grid.cols, #outside);
                            let tile = 1 << (m * grid.cols + n);
                            ::core::assert!(visited & tile == 0, #twice);
                            visited |= tile;
                            step += 1;
                        }
                        rank += 1;
                    }
                    world += 1;
                }
                shape += 1;
            }
        };
    })
}
