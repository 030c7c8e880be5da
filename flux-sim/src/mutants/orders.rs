//! Tile orders, and the two fields of a table row: the chunk map.

use super::numbers::{Role, variants};
use super::{Edit, Kind};
use flux_ir::program::{Expr, Program, TableId, VarId};
use flux_ir::{Departure, Grid, Order, Ranks, Span, TileCoord};

pub(super) fn edits(program: &Program) -> Vec<Edit> {
    program.tables.handles().flat_map(|table| of_table(program, table)).collect()
}

fn of_table(program: &Program, table: TableId) -> Vec<Edit> {
    let mut edits = Vec::new();
    let name = &program.tables[table].name;
    let mut add = |kind, how: String, change: &dyn Fn(&mut Program)| {
        let mut changed = program.clone();
        change(&mut changed);
        let point = format!("table {name} {how}");
        edits.push(Edit { kind, point, span: Span::UNKNOWN, program: changed });
    };
    for order in others(&program.tables[table].order) {
        add(Kind::Order, format!("order {order}"), &|program| {
            program.tables[table].order = order.clone();
        });
    }
    for field in 0..2 {
        for (kind, how, expr) in variants(&Role::Field, &program.tables[table].fields[field]) {
            add(kind, format!("field {field} {how}"), &|program| {
                program.tables[table].fields[field] = expr.clone();
            });
        }
    }
    add(Kind::Order, "fields exchanged".into(), &|program| {
        program.tables[table].fields.swap(0, 1);
    });
    for (m, n) in [(1, 0), (-1, 0), (0, 1), (0, -1)] {
        add(Kind::Order, format!("fields of the tile ({m:+}, {n:+}) away"), &|program| {
            let table = &mut program.tables[table];
            let moved = [(table.m, m), (table.n, n)];
            for field in &mut table.fields {
                for (var, by) in moved {
                    *field = shifted(field, var, by);
                }
            }
        });
    }
    edits
}

/// `expr` with `var + by` for `var`.
fn shifted(expr: &Expr, var: VarId, by: i64) -> Expr {
    match expr {
        Expr::Var(found) if *found == var && by != 0 => Expr::Var(var) + by,
        Expr::Int(_) | Expr::Sym(_) | Expr::Var(_) => expr.clone(),
        Expr::First(rank) => shifted(rank, var, by).first(),
        Expr::Bin(op, a, b) => {
            Expr::Bin(*op, Box::new(shifted(a, var, by)), Box::new(shifted(b, var, by)))
        }
    }
}

/// Every other built-in order, one of each rank's own, and changes of `order` itself.
fn others(order: &Order) -> Vec<Order> {
    // Tile row by tile row, so that it differs from others in small tiles too.
    let row_by_row = Order::Departure(Departure { rows: 1, shards: 2 });
    let built_in = Order::BUILT_IN.into_iter().map(|built_in| match built_in {
        Order::Departure(_) => row_by_row.clone(),
        other => other,
    });
    let mut others: Vec<_> = built_in.filter(|other| other != order).collect();
    others.push(Order::custom("another_on_each_rank", |step, grid, rank, world| {
        let order = &Order::BUILT_IN[rank as usize % Order::BUILT_IN.len()];
        tile(order, step, grid, Ranks { rank, world })
    }));
    let mut steps = |name: &str, change: fn(u32, u32) -> u32| {
        let order = order.clone();
        others.push(Order::custom(name, move |step, grid, rank, world| {
            tile(&order, change(step, grid.tiles()), grid, Ranks { rank, world })
        }));
    };
    steps("first_two_swapped", |step, tiles| match step {
        0 | 1 if tiles > 1 => 1 - step,
        _ => step,
    });
    steps("last_two_swapped", |step, tiles| match tiles - 1 - step {
        end @ (0 | 1) if tiles > 1 => tiles - 2 + end,
        _ => step,
    });
    steps("one_further", |step, tiles| (step + 1) % tiles);
    steps("backward", |step, tiles| tiles - 1 - step);
    steps("first_twice", |step, _| step.saturating_sub(1));
    steps("beyond_the_end", |step, _| step + 1);
    others
}

/// What `order` visits at `step`; outside of the grid where it has no such step.
fn tile(order: &Order, step: u32, grid: &Grid, ranks: Ranks) -> TileCoord {
    let outside = TileCoord { m: grid.rows, n: grid.cols };
    let table = order.table(grid, ranks);
    table.ok().and_then(|table| table.get(step as usize).copied()).unwrap_or(outside)
}
