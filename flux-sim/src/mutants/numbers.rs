//! One number changed: shifted as a whole, or in one of its terms.

use super::Kind;
use flux_ir::program::{BinOp, Expr, Sym};

/// What a number stands for, which decides how it is worth changing.
#[derive(Debug, Clone)]
pub(super) enum Role {
    /// The value of a signal, or the target of a wait.
    Count,
    /// An index below a bound: a slot, a plane, the row of a table.
    Below(Expr),
    /// A rank.
    Peer,
    /// A bound of rows or columns that come in tiles of this many.
    Line(u32),
    /// A bound or the step of a loop, or an operand of a condition.
    Loop,
    /// A number that gets a name.
    Definition,
    /// A field of a table row.
    Field,
}

impl Role {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Role::Count => Kind::Count,
            Role::Below(_) => Kind::Index,
            Role::Peer => Kind::Peer,
            Role::Line(_) => Kind::Region,
            Role::Loop => Kind::Loop,
            Role::Definition => Kind::Definition,
            Role::Field => Kind::Order,
        }
    }
}

/// A changed number: what kind of change, its name, and the number.
pub(super) type Variant = (Kind, String, Expr);

fn bin(op: BinOp, a: &Expr, b: &Expr) -> Expr {
    Expr::Bin(op, Box::new(a.clone()), Box::new(b.clone()))
}

/// `expr + by`.
pub(super) fn plus(expr: &Expr, by: i64) -> Expr {
    match (expr, by) {
        (Expr::Int(value), _) => Expr::Int(value + by),
        (_, 0..) => bin(BinOp::Add, expr, &Expr::Int(by)),
        (_, _) => bin(BinOp::Sub, expr, &Expr::Int(-by)),
    }
}

/// `expr` one further and one back, around the end.
fn around(expr: &Expr, bound: &Expr) -> [(String, Expr); 2] {
    let up = bin(BinOp::Rem, &plus(expr, 1), bound);
    let down = bin(BinOp::Rem, &plus(&bin(BinOp::Add, expr, bound), -1), bound);
    [("+ 1, around".into(), up), ("- 1, around".into(), down)]
}

/// Every change of `expr`.
pub(super) fn variants(role: &Role, expr: &Expr) -> Vec<Variant> {
    let mut all = whole(role, expr);
    terms(role.kind(), "", expr, &|expr| expr, &mut all);
    all
}

/// The number as a whole.
fn whole(role: &Role, expr: &Expr) -> Vec<Variant> {
    let mut changed = vec![("+ 1".to_owned(), plus(expr, 1)), ("- 1".to_owned(), plus(expr, -1))];
    match role {
        Role::Count => {
            let positive = match expr {
                Expr::Bin(BinOp::Sub, ..) => expr.clone().max(0i64),
                _ => expr.clone(),
            };
            changed.push(("doubled".into(), bin(BinOp::Mul, expr, &Expr::Int(2))));
            changed.push(("halved".into(), bin(BinOp::Div, &positive, &Expr::Int(2))));
        }
        Role::Below(bound) => changed.extend(around(expr, bound)),
        Role::Peer => changed.extend(around(expr, &Sym::World.into())),
        Role::Line(tile) => {
            changed.push(("+ a tile".into(), plus(expr, (*tile).into())));
            changed.push(("- a tile".into(), plus(expr, -i64::from(*tile))));
        }
        Role::Loop => changed.push(("doubled".into(), bin(BinOp::Mul, expr, &Expr::Int(2)))),
        Role::Definition | Role::Field => {}
    }
    let kind = role.kind();
    let changed = changed.into_iter().map(|(how, expr)| (kind, how, expr));
    let constants = [0i64, 1].map(|value| {
        let fixed = expr.substitute(Sym::Epoch, &Expr::Int(value));
        (Kind::Epoch, format!("with epoch {value}"), fixed)
    });
    changed.chain(constants).collect()
}

/// Each term: variables, symbols and literals shifted, operators left out. `within` puts a
/// changed term back.
fn terms(
    kind: Kind,
    path: &str,
    expr: &Expr,
    within: &dyn Fn(Expr) -> Expr,
    all: &mut Vec<Variant>,
) {
    let of_epoch = |kind, expr: &Expr| if has_epoch(expr) { Kind::Epoch } else { kind };
    let mut add = |kind, how: String, term| all.push((kind, format!("{path}{how}"), within(term)));
    match expr {
        Expr::Int(_) | Expr::Var(_) | Expr::Sym(_) => {
            let kind = of_epoch(kind, expr);
            add(kind, "+ 1".into(), plus(expr, 1));
            add(kind, "- 1".into(), plus(expr, -1));
            if *expr == Expr::Sym(Sym::Rank) {
                for (how, changed) in around(expr, &Sym::World.into()) {
                    add(kind, how, changed);
                }
            }
        }
        Expr::First(rank) => {
            let kind = of_epoch(kind, expr);
            add(kind, "the rank alone".into(), (**rank).clone());
            let inside = |term: Expr| within(term.first());
            terms(kind, &format!("{path}first of "), rank, &inside, all);
        }
        Expr::Bin(op, a, b) => {
            let kind = of_epoch(kind, expr);
            add(kind, "left operand only".into(), (**a).clone());
            add(kind, "right operand only".into(), (**b).clone());
            let left = |term| within(Expr::Bin(*op, Box::new(term), b.clone()));
            let right = |term| within(Expr::Bin(*op, a.clone(), Box::new(term)));
            terms(kind, &format!("{path}left "), a, &left, all);
            terms(kind, &format!("{path}right "), b, &right, all);
        }
    }
}

fn has_epoch(expr: &Expr) -> bool {
    match expr {
        Expr::Sym(sym) => *sym == Sym::Epoch,
        Expr::Int(_) | Expr::Var(_) => false,
        Expr::First(rank) => has_epoch(rank),
        Expr::Bin(_, a, b) => has_epoch(a) || has_epoch(b),
    }
}
