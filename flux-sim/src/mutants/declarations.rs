//! Definitions, and what workspace, signals and tables are declared to be.
//!
//! Tensors of the launch are the caller's, and so is every definition that their extents rest on:
//! another extent is another kernel.

use super::numbers::{Role, variants};
use super::{Edit, Kind};
use flux_ir::Span;
use flux_ir::program::{BufferKind, Expr, Program, Sym, VarId};
use std::collections::HashSet;

pub(super) fn edits(program: &Program) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (what, number) in numbers(program) {
        for (_, how, changed) in variants(&Role::Definition, number(&mut program.clone())) {
            let mut program = program.clone();
            *number(&mut program) = changed;
            let (kind, point) = (Kind::Declaration, format!("{what} {how}"));
            edits.push(Edit { kind, point, span: Span::UNKNOWN, program });
        }
    }
    edits
}

/// Where a number of a Program stands.
type Number = Box<dyn Fn(&mut Program) -> &mut Expr>;

/// Every number of a declaration that is not the caller's.
fn numbers(program: &Program) -> Vec<(String, Number)> {
    let fixed = fixed_by_callers(program);
    let mut all: Vec<(String, Number)> = Vec::new();
    let mut add = |what: String, number: Number| all.push((what, number));
    for (index, (var, _)) in program.lets.iter().enumerate() {
        if !fixed.contains(var) {
            let what = format!("definition {}", program.vars[*var].name);
            add(what, Box::new(move |program| &mut program.lets[index].1));
        }
    }
    for (id, buffer) in program.buffers.iter().filter(|(_, b)| b.kind == BufferKind::Symmetric) {
        let name = &buffer.name;
        for plane in 0..buffer.planes.len() {
            let number: Number = Box::new(move |program| &mut program.buffers[id].planes[plane]);
            add(format!("{name} plane {plane}"), number);
        }
        add(format!("{name} rows"), Box::new(move |program| &mut program.buffers[id].rows));
        add(
            format!("{name} first row"),
            Box::new(move |program| &mut program.buffers[id].first_row),
        );
        if program.buffers[id].first_col != Expr::Int(0) {
            add(
                format!("{name} first column"),
                Box::new(move |program| &mut program.buffers[id].first_col),
            );
        }
        add(format!("{name} columns"), Box::new(move |program| &mut program.buffers[id].cols));
    }
    for (id, array) in program.signals.iter() {
        let what = format!("length of {}", array.name);
        add(what, Box::new(move |program| &mut program.signals[id].len));
    }
    for (id, table) in program.tables.iter() {
        let what = format!("length of {}", table.name);
        add(what, Box::new(move |program| &mut program.tables[id].len));
        if !table.tiled.is_up_to(&Sym::M.into()) {
            let what = format!("first row of {}", table.name);
            add(what, Box::new(move |program| &mut program.tables[id].tiled.lo));
            let what = format!("last row of {}", table.name);
            add(what, Box::new(move |program| &mut program.tables[id].tiled.hi));
        }
    }
    all
}

/// The definitions that extents of the launch's tensors rest on.
fn fixed_by_callers(program: &Program) -> HashSet<VarId> {
    let mut fixed = HashSet::new();
    for buffer in program.buffers.values().filter(|b| b.kind != BufferKind::Symmetric) {
        for expr in [&buffer.rows, &buffer.first_row, &buffer.cols, &buffer.first_col] {
            note_vars(expr, &mut fixed);
        }
    }
    // A definition rests on those before it.
    for (var, value) in program.lets.iter().rev() {
        if fixed.contains(var) {
            note_vars(value, &mut fixed);
        }
    }
    fixed
}

fn note_vars(expr: &Expr, into: &mut HashSet<VarId>) {
    match expr {
        Expr::Int(_) | Expr::Sym(_) => {}
        Expr::Var(var) => {
            into.insert(*var);
        }
        Expr::First(rank) => note_vars(rank, into),
        Expr::Bin(_, a, b) => {
            note_vars(a, into);
            note_vars(b, into);
        }
    }
}
