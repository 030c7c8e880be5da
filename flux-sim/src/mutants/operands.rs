//! Operands of one statement changed.

use super::numbers::{Role, plus, variants};
use super::{Edit, Kind, statements};
use flux_ir::program::{
    At, Completion, Cond, Expr, Op, Place, Program, Range, Scope, SignalId, Stmt, Sym, Update,
};

/// A changed statement: what kind of change, its name, and the statement.
type Variant = (Kind, String, Op);

pub(super) fn edits(program: &Program) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (body, index, stmt) in statements::each(program) {
        for (kind, how, op) in changed(program, &stmt) {
            let mut program = program.clone();
            let point = format!("{} {how}", body.point(&program, index));
            body.of_mut(&mut program)[index].op = op;
            edits.push(Edit { kind, point, span: stmt.span, program });
        }
    }
    edits
}

fn changed(program: &Program, stmt: &Stmt) -> Vec<Variant> {
    let mut all = words(program, &stmt.op);
    let count = numbers(program, &mut stmt.op.clone()).len();
    for number in 0..count {
        let mut op = stmt.op.clone();
        let Number { what, role, expr } = numbers(program, &mut op).swap_remove(number);
        for (kind, how, changed) in variants(&role, &expr.get()) {
            let mut op = stmt.op.clone();
            numbers(program, &mut op)[number].expr.set(changed);
            all.push((kind, format!("{what} {how}"), op));
        }
    }
    all.extend(ranges(program, &stmt.op));
    all
}

/// What is no number.
fn words(program: &Program, op: &Op) -> Vec<Variant> {
    let mut all = Vec::new();
    let mut change = |kind, how: String, change: &dyn Fn(&mut Op)| {
        let mut op = op.clone();
        change(&mut op);
        all.push((kind, how, op));
    };
    if let Op::Wait { scope, .. } | Op::Signal { scope, .. } = op {
        for narrower in Scope::ALL.into_iter().filter(|narrower| narrower < scope) {
            change(Kind::Scope, format!("scope {}", narrower.name()), &|op| {
                if let Op::Wait { scope, .. } | Op::Signal { scope, .. } = op {
                    *scope = narrower;
                }
            });
        }
    }
    if let Op::Wait { signal, .. } | Op::Signal { signal, .. } = op {
        for other in program.signals.handles().filter(|other| other != signal) {
            let name = &program.signals[other].name;
            change(Kind::Array, format!("of {name}"), &|op| {
                if let Op::Wait { signal, .. } | Op::Signal { signal, .. } = op {
                    *signal = other;
                }
            });
        }
    }
    if let Op::Signal { after: now, .. } = op {
        let others: &[Completion] = match now {
            Completion::Performed => &[Completion::Read],
            Completion::Delivered => &[Completion::Read, Completion::Performed],
            Completion::Read => &[],
        };
        for &other in others {
            change(Kind::Completion, format!("after {}", other.name()), &|op| {
                if let Op::Signal { after, .. } = op {
                    *after = other;
                }
            });
        }
    }
    if let Op::Signal { update, .. } = op {
        let (how, other) = match update.clone() {
            Update::Add(count) => ("set", Update::Set(count)),
            Update::Set(value) => ("added", Update::Add(value)),
        };
        change(Kind::Count, how.into(), &|op| {
            if let Op::Signal { update, .. } = op {
                *update = other.clone();
            }
        });
    }
    for number in 0..homes(&mut op.clone()).len() {
        let mut of = op.clone();
        let at = homes(&mut of).swap_remove(number);
        let next = (Expr::from(Sym::Rank) + 1i64) % Sym::World;
        let others = match at {
            At::Own => vec![("on the next rank", At::Peer(next))],
            At::Peer(_) => vec![("on the own rank", At::Own)],
            At::Remote(rank) => {
                vec![("on the own rank", At::Own), ("as mapped memory", At::Peer(rank.clone()))]
            }
        };
        for (how, other) in others {
            change(Kind::Peer, format!("place {number} {how}"), &|op| {
                *homes(op).swap_remove(number) = other.clone();
            });
        }
    }
    if let Op::Row { vars, .. } = op {
        for first in 0..vars.len() - 1 {
            change(Kind::Order, format!("field {first} exchanged with the next"), &|op| {
                if let Op::Row { vars, .. } = op {
                    vars.swap(first, first + 1);
                }
            });
        }
    }
    all
}

/// Every rank that the statement names.
fn homes(op: &mut Op) -> Vec<&mut At> {
    match op {
        Op::Signal { at, .. } => vec![at],
        Op::Copy { from, to, adds: _ } => vec![&mut from.at, &mut to.at],
        Op::Store { to, .. } => vec![&mut to.at],
        Op::Sum { from, .. } | Op::Load { from, .. } => vec![&mut from.at],
        Op::Mainloop { products } => {
            products.iter_mut().flat_map(|p| [&mut p.a.at, &mut p.b.at]).collect()
        }
        Op::Let { .. }
        | Op::Row { .. }
        | Op::For { .. }
        | Op::If { .. }
        | Op::Wait { .. }
        | Op::FenceProxyAsync => Vec::new(),
    }
}

/// A number of a statement.
struct Number<'o> {
    what: String,
    role: Role,
    expr: Slot<'o>,
}

/// Where it stands.
enum Slot<'o> {
    Expr(&'o mut Expr),
    /// A range of one, which the text shows as its first.
    One(&'o mut Range),
}

impl Slot<'_> {
    fn get(&self) -> Expr {
        match self {
            Slot::Expr(expr) => (*expr).clone(),
            Slot::One(range) => range.lo.clone(),
        }
    }

    fn set(&mut self, expr: Expr) {
        match self {
            Slot::Expr(slot) => **slot = expr,
            Slot::One(range) => **range = Range::one(expr),
        }
    }
}

/// Every number of the statement, those of what it holds left out.
fn numbers<'o>(program: &Program, op: &'o mut Op) -> Vec<Number<'o>> {
    let mut all = Vec::new();
    let mut add = |what: &str, role, expr| {
        all.push(Number { what: what.into(), role, expr: Slot::Expr(expr) });
    };
    let below = |signal: SignalId| Role::Below(program.signals[signal].len.clone());
    match op {
        Op::Let { value, .. } => add("value", Role::Definition, value),
        Op::Row { table, index, .. } => {
            add("row", Role::Below(program.tables[*table].len.clone()), index);
        }
        Op::For { from, to, step, .. } => {
            add("from", Role::Loop, from);
            add("to", Role::Loop, to);
            add("step", Role::Loop, step);
        }
        Op::If { cond: Cond::Eq(a, b) | Cond::Ne(a, b) | Cond::Lt(a, b), .. } => {
            add("left", Role::Loop, a);
            add("right", Role::Loop, b);
        }
        Op::Wait { signal, slots, target, scope: _ } => {
            add("target", Role::Count, target);
            if *slots == Range::one(slots.lo.clone()) {
                let (what, role) = ("slot".into(), below(*signal));
                all.push(Number { what, role, expr: Slot::One(slots) });
            } else {
                add("first slot", below(*signal), &mut slots.lo);
                add("last slot", below(*signal), &mut slots.hi);
            }
        }
        Op::FenceProxyAsync => {}
        Op::Mainloop { products } => {
            for (number, product) in products.iter_mut().enumerate() {
                for (side, place) in [("a", &mut product.a), ("b", &mut product.b)] {
                    place_numbers(program, &format!("{side} {number}"), place, &mut all);
                }
            }
        }
        Op::Store { to, value: _, adds: _ } => place_numbers(program, "to", to, &mut all),
        Op::Sum { from, .. } | Op::Load { from, .. } => {
            place_numbers(program, "from", from, &mut all);
        }
        Op::Signal { at, signal, slot, update, .. } => {
            let (Update::Add(count) | Update::Set(count)) = update;
            add("count", Role::Count, count);
            add("slot", below(*signal), slot);
            if let Some(peer) = at.rank_mut() {
                add("peer", Role::Peer, peer);
            }
        }
        Op::Copy { from, to, adds: _ } => {
            place_numbers(program, "to", to, &mut all);
            place_numbers(program, "from", from, &mut all);
        }
    }
    all
}

fn place_numbers<'o>(
    program: &Program,
    what: &str,
    place: &'o mut Place,
    all: &mut Vec<Number<'o>>,
) {
    let mut add = |part: &str, role, expr| {
        all.push(Number { what: format!("{what} {part}"), role, expr: Slot::Expr(expr) });
    };
    if let Some(peer) = place.at.rank_mut() {
        add("peer", Role::Peer, peer);
    }
    let extents = &program.buffers[place.buffer].planes;
    for (number, (plane, extent)) in place.planes.iter_mut().zip(extents).enumerate() {
        add(&format!("plane {number}"), Role::Below(extent.clone()), plane);
    }
    let tile = program.tile;
    add("first row", Role::Line(tile.m), &mut place.rows.lo);
    add("last row", Role::Line(tile.m), &mut place.rows.hi);
    add("first column", Role::Line(tile.n), &mut place.cols.lo);
    add("last column", Role::Line(tile.n), &mut place.cols.hi);
}

/// Both ends of a range shifted.
fn ranges(program: &Program, op: &Op) -> Vec<Variant> {
    let mut all = Vec::new();
    for number in 0..each_range(program, &mut op.clone()).len() {
        for (how, sign, whole) in [
            ("+ 1", 1i64, false),
            ("- 1", -1, false),
            ("+ a tile", 1, true),
            ("- a tile", -1, true),
        ] {
            let mut op = op.clone();
            let (what, kind, tile, lo, hi) = each_range(program, &mut op).swap_remove(number);
            let by = match (whole, tile) {
                (false, _) => sign,
                (true, Some(tile)) => sign * i64::from(tile),
                (true, None) => continue,
            };
            for end in [lo, hi] {
                *end = plus(end, by);
            }
            all.push((kind, format!("{what} both ends {how}"), op));
        }
    }
    all
}

/// What a range is called, what a shift of it is, in tiles of how many, and its ends.
type Ends<'o> = (String, Kind, Option<u32>, &'o mut Expr, &'o mut Expr);

fn each_range<'o>(program: &Program, op: &'o mut Op) -> Vec<Ends<'o>> {
    let tile = program.tile;
    let of_place = |what: String, place: &'o mut Place| -> [Ends<'o>; 2] {
        let Place { rows, cols, .. } = place;
        [
            (format!("{what} rows"), Kind::Region, Some(tile.m), &mut rows.lo, &mut rows.hi),
            (format!("{what} columns"), Kind::Region, Some(tile.n), &mut cols.lo, &mut cols.hi),
        ]
    };
    match op {
        Op::For { from, to, .. } => vec![("bounds".into(), Kind::Loop, None, from, to)],
        Op::Wait { slots, .. } if *slots != Range::one(slots.lo.clone()) => {
            vec![("slots".into(), Kind::Index, None, &mut slots.lo, &mut slots.hi)]
        }
        Op::Store { to, .. } => of_place("to".into(), to).into(),
        Op::Sum { from, .. } | Op::Load { from, .. } => of_place("from".into(), from).into(),
        Op::Copy { from, to, adds: _ } => {
            let places = [of_place("to".into(), to), of_place("from".into(), from)];
            places.into_iter().flatten().collect()
        }
        Op::Mainloop { products } => {
            let sides = products.iter_mut().enumerate().flat_map(|(number, product)| {
                [(format!("a {number}"), &mut product.a), (format!("b {number}"), &mut product.b)]
            });
            sides.flat_map(|(what, place)| of_place(what, place)).collect()
        }
        Op::Let { .. }
        | Op::Row { .. }
        | Op::If { .. }
        | Op::Wait { .. }
        | Op::FenceProxyAsync
        | Op::Signal { .. } => Vec::new(),
    }
}
