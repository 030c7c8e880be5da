//! Draws a tile order as a grid: one cell per tile, the step at which it is visited.

use crate::LaunchOptions;
use flux_ir::eval::{Launch, RankView};
use flux_ir::order::OrderError;
use flux_ir::{Grid, Program, Shape};
use std::error::Error;
use std::fmt::Write;

/// Cells that fit a screen; larger grids are cut, and say so.
const MOST_ROWS: u32 = 40;
const MOST_COLS: u32 = 16;
/// Tiles that are put in order for a drawing.
const MOST_TILES: u32 = 1 << 20;

pub(crate) fn draw(program: &Program, options: &LaunchOptions) -> Result<String, Box<dyn Error>> {
    if !(1..=64).contains(&options.world) || options.rank >= options.world {
        let (rank, world) = (options.rank, options.world);
        return Err(format!("a world has 1 to 64 ranks, found rank {rank} of {world}").into());
    }
    for (name, extent) in [("m", options.m), ("n", options.n)] {
        if extent > i32::MAX as u32 {
            return Err(format!("{name} = {extent} is over the limit of {}", i32::MAX).into());
        }
    }
    let shape = Shape { m: options.m, n: options.n, k: options.k };
    let launch = Launch { shape, world: options.world, ctas: options.ctas };
    let grid = Grid::new(shape, program.tile, options.world, program.scatters());
    if grid.tiles() > MOST_TILES {
        return Err(format!("{} x {} tiles are too many to draw", grid.rows, grid.cols).into());
    }
    let view = RankView::new(program, launch, options.rank).map_err(|error| match error {
        OrderError::NoFunction(name) => format!(
            "order `{name}` is a function of the program, which this command does not run; draw a \
             built-in one with --by"
        ),
        error => error.to_string(),
    })?;
    let mut text = String::new();
    for (id, table) in program.tables.iter() {
        let rows = view.table(id);
        let tiled = view.tiled(id);
        let of_all = tiled == (0..shape.m);
        let Some(grid) = view.grid(id) else { continue };
        writeln!(
            text,
            "order {} of {} x {} tiles, rank {} of {}: step of each tile, owners of its rows at the right",
            table.order, grid.rows, grid.cols, options.rank, options.world
        )?;
        let mut steps = vec![0; rows.len()];
        for (step, [m, n, ..]) in rows.iter().enumerate() {
            steps[(m * grid.cols + n) as usize] = step;
        }
        let width = rows.len().to_string().len() + 1;
        for m in 0..grid.rows.min(MOST_ROWS) {
            for n in 0..grid.cols.min(MOST_COLS) {
                write!(text, "{:>width$}", steps[(m * grid.cols + n) as usize])?;
            }
            let own = (options.rank, options.rank);
            let (first, last) = if of_all { grid.owners(m) } else { own };
            let owners = if first == last { format!("{first}") } else { format!("{first}-{last}") };
            let own = (first..=last).contains(&options.rank);
            let cut = if grid.cols > MOST_COLS { " …" } else { "" };
            writeln!(text, "{cut}  | rank {owners}{}", if own { " (own)" } else { "" })?;
        }
        if grid.rows > MOST_ROWS {
            writeln!(text, "  … {} more rows of tiles", grid.rows - MOST_ROWS)?;
        }
    }
    Ok(text)
}
