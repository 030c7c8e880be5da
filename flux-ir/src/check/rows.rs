//! Whether an agent uses fields of the table row that it read last.
//!
//! A row holds a tile and what its waits derive from. Fields of an earlier row, or of another
//! table, belong to another tile than the one at hand.

use super::Findings;
use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Rule};
use crate::program::{At, Cond, Expr, Op, Place, Program, Range, Stmt, TableId, Update};

/// Checks every agent.
pub(super) fn check(program: &Program, found: &mut Findings) {
    for agent in program.agents.values() {
        for body in [&agent.body, &agent.exit] {
            let of = vec![None; program.vars.len()];
            Rows { program, of, rows: Vec::new(), current: None, found }.body(body);
        }
    }
}

/// Rows are one where table and index are.
type Row<'p> = (TableId, &'p Expr, &'p Stmt);

struct Rows<'a, 'p> {
    program: &'p Program,
    /// The row a variable derives from.
    of: Vec<Option<usize>>,
    rows: Vec<Row<'p>>,
    current: Option<usize>,
    found: &'a mut Findings,
}

impl<'p> Rows<'_, 'p> {
    fn body(&mut self, body: &'p [Stmt]) {
        let outer = self.current;
        for stmt in body {
            self.stmt(stmt);
        }
        self.current = outer;
    }

    fn stmt(&mut self, stmt: &'p Stmt) {
        match &stmt.op {
            Op::Let { var, value } => self.of[var.index()] = self.uses(stmt, value),
            Op::Row { table, index, vars } => {
                self.uses(stmt, index);
                let same = |&(of, at, _): &Row<'_>| of == *table && at == index;
                let row = self.rows.iter().position(same).unwrap_or_else(|| {
                    self.rows.push((*table, index, stmt));
                    self.rows.len() - 1
                });
                vars.iter().for_each(|var| self.of[var.index()] = Some(row));
                self.current = Some(row);
            }
            Op::For { var: _, from, to, step, body } => {
                [from, to, step].into_iter().for_each(|expr| _ = self.uses(stmt, expr));
                self.body(body);
            }
            Op::If { cond: Cond::Eq(a, b) | Cond::Ne(a, b) | Cond::Lt(a, b), body } => {
                [a, b].into_iter().for_each(|expr| _ = self.uses(stmt, expr));
                self.body(body);
            }
            Op::Wait { signal: _, slots, target, scope: _ } => {
                self.range(stmt, slots);
                self.uses(stmt, target);
            }
            Op::FenceProxyAsync => {}
            Op::Mainloop { products } => {
                for product in products {
                    self.place(stmt, &product.a);
                    self.place(stmt, &product.b);
                }
            }
            Op::Store { to, value: _, adds: _ } => self.place(stmt, to),
            Op::Sum { var: _, own: _, from } | Op::Load { index: _, from } => {
                self.place(stmt, from)
            }
            Op::Signal { at, signal: _, slot, update, scope: _, after: _ } => {
                self.at(stmt, at);
                self.uses(stmt, slot);
                match update {
                    Update::Add(value) | Update::Set(value) => _ = self.uses(stmt, value),
                }
            }
            Op::Copy { from, to, adds: _ } => {
                self.place(stmt, from);
                self.place(stmt, to);
            }
        }
    }

    fn at(&mut self, stmt: &'p Stmt, at: &'p At) {
        match at {
            At::Own => {}
            At::Peer(rank) | At::Remote(rank) => _ = self.uses(stmt, rank),
        }
    }

    fn range(&mut self, stmt: &'p Stmt, range: &'p Range) {
        self.uses(stmt, &range.lo);
        self.uses(stmt, &range.hi);
    }

    fn place(&mut self, stmt: &'p Stmt, place: &'p Place) {
        self.at(stmt, &place.at);
        place.planes.iter().for_each(|index| _ = self.uses(stmt, index));
        self.range(stmt, &place.rows);
        self.range(stmt, &place.cols);
    }

    /// The row an expression derives from; one that is not at hand is an error.
    fn uses(&mut self, stmt: &'p Stmt, expr: &Expr) -> Option<usize> {
        match expr {
            Expr::Int(_) | Expr::Sym(_) => None,
            Expr::First(rank) => self.uses(stmt, rank),
            Expr::Bin(_, a, b) => {
                let (a, b) = (self.uses(stmt, a), self.uses(stmt, b));
                a.or(b)
            }
            Expr::Var(var) => {
                let row = self.of[var.index()]?;
                if Some(row) != self.current {
                    self.differs(stmt, row, &self.program.vars[*var].name);
                }
                Some(row)
            }
        }
    }

    fn differs(&mut self, stmt: &'p Stmt, row: usize, name: &str) {
        let (table, _, read) = self.rows[row];
        let table = &self.program.tables[table].name;
        let message = format!("`%{name}` is of a row of `%{table}` that is not the tile at hand");
        let last = self.current.map(|current| self.rows[current]);
        self.found.once(Rule::OrderDiffers, stmt, || {
            let diagnostic = Diagnostic::new(Rule::OrderDiffers, stmt.span, message)
                .note(read.span, "that row is read here");
            let diagnostic = match last {
                Some((table, _, last)) => {
                    let table = &self.program.tables[table].name;
                    diagnostic.note(last.span, format!("the tile at hand is of `%{table}`, here"))
                }
                None => diagnostic,
            };
            diagnostic.help("derive waits and regions from the row of the tile they are for")
        });
    }
}
