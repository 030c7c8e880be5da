//! Single changes of a Program: what breaks a protocol, or leaves it as it was.

use crate::programs::NOWHERE;
use crate::random::Random;
use flux_ir::program::{
    At, Completion, Cond, Expr, Op, Place, Program, Range, Scope, Stmt, Sym, Update,
};

/// A body of an agent: the agent's number, and whether it is the exit.
type Body = (usize, bool);

/// The bodies of a Program that hold a statement.
fn bodies(program: &Program) -> Vec<Body> {
    let agents = program.agents.values().enumerate();
    let bodies = agents.flat_map(|(index, agent)| {
        [((index, false), agent.body.len()), ((index, true), agent.exit.len())]
    });
    bodies.filter(|(_, len)| *len > 0).map(|(body, _)| body).collect()
}

fn body_mut(program: &mut Program, (index, exit): Body) -> &mut Vec<Stmt> {
    let handles: Vec<_> = program.agents.handles().collect();
    let agent = &mut program.agents[handles[index]];
    if exit { &mut agent.exit } else { &mut agent.body }
}

/// Runs `change` on the body that holds statement `index` of `body`, in the order of the text, and
/// the statement's place in it.
fn at(
    body: &mut Vec<Stmt>,
    index: &mut usize,
    change: &mut dyn FnMut(&mut Vec<Stmt>, usize),
) -> bool {
    for place in 0..body.len() {
        if *index == 0 {
            change(body, place);
            return true;
        }
        *index -= 1;
        if let Op::For { body, .. } | Op::If { body, .. } = &mut body[place].op
            && at(body, index, change)
        {
            return true;
        }
    }
    false
}

fn count(body: &[Stmt]) -> usize {
    body.iter().map(|stmt| 1 + count(stmt.op.body())).sum()
}

/// `program` without one statement, for each statement, and with the body of one in its place.
pub(crate) fn smaller(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    for body in bodies(program) {
        let statements = count(body_mut(&mut program.clone(), body));
        for index in 0..statements {
            let mut without = program.clone();
            at(body_mut(&mut without, body), &mut index.clone(), &mut |body, place| {
                body.remove(place);
            });
            all.push(without);
            let mut bare = program.clone();
            at(body_mut(&mut bare, body), &mut index.clone(), &mut |body, place| {
                let inner = body[place].op.body().to_vec();
                if !inner.is_empty() {
                    body.splice(place..=place, inner);
                }
            });
            if bare != *program {
                all.push(bare);
            }
        }
    }
    all
}

fn each(body: &mut [Stmt], change: &mut dyn FnMut(&mut Op)) {
    for stmt in body {
        change(&mut stmt.op);
        if let Op::For { body, .. } | Op::If { body, .. } = &mut stmt.op {
            each(body, change);
        }
    }
}

/// Shifts or doubles what one array is set to and waited for, everywhere: in later launches nothing
/// changes, in the first ones it may.
pub(crate) fn renumber(program: &mut Program, random: &mut Random) {
    let arrays: Vec<_> = program.signals.handles().collect();
    let array = arrays[random.below(arrays.len())];
    let (times, plus) = [(1i64, 1i64), (1, 2), (1, -1), (2, 0), (2, 1)][random.below(5)];
    let number = |expr: &mut Expr| *expr = expr.clone() * times + plus;
    for body in bodies(program) {
        each(body_mut(program, body), &mut |op| match op {
            Op::Wait { signal, target, .. } if *signal == array => number(target),
            Op::Signal { signal, update: Update::Set(value), .. } if *signal == array => {
                number(value);
            }
            _ => {}
        });
    }
}

/// Changes one statement.
pub(crate) fn edit(program: &mut Program, random: &mut Random) {
    let bodies = bodies(program);
    let body = bodies[random.below(bodies.len())];
    let body = body_mut(program, body);
    let mut index = random.below(count(body));
    let changed = at(body, &mut index, &mut |body, place| change(body, place, random));
    assert!(changed, "a statement of the body");
}

fn change(body: &mut Vec<Stmt>, place: usize, random: &mut Random) {
    match random.below(8) {
        0 => {
            body.remove(place);
        }
        1 => {
            let copy = body[place].clone();
            body.insert(place, copy);
        }
        2 => {
            let other = (place + 1).min(body.len() - 1);
            body.swap(place, other);
        }
        3 => {
            let stmt = body.remove(place);
            body.insert(random.below(body.len() + 1), stmt);
        }
        4 => {
            let parity = Expr::from(Sym::Epoch) % 2i64;
            let of = [Sym::Rank.into(), Sym::Rank.into(), Sym::Cta.into(), parity];
            let of = of[random.below(4)].clone();
            let cond = Cond::Eq(of, Expr::from(random.between(0, 2)));
            let stmt = body.remove(place);
            body.insert(place, Stmt { op: Op::If { cond, body: vec![stmt] }, span: NOWHERE });
        }
        _ => inside(&mut body[place].op, random),
    }
}

fn shift(expr: &mut Expr, random: &mut Random) {
    let by = [-2i64, -1, 1, 1][random.below(4)];
    *expr = expr.clone() + by;
}

fn scope(random: &mut Random) -> Scope {
    Scope::ALL[random.below(3)]
}

fn place(place: &mut Place, random: &mut Random) {
    match random.below(4) {
        0 => place.at = other_rank(&place.at, random),
        1 if !place.planes.is_empty() => {
            let index = random.below(place.planes.len());
            let plane = &mut place.planes[index];
            *plane = (plane.clone() + 1i64) % 2i64;
        }
        2 => place.rows = Range::new(0i64, 1i64),
        _ => place.rows = Range::new(1i64, 2i64),
    }
}

fn other_rank(at: &At, random: &mut Random) -> At {
    let rank = match at {
        At::Own => Expr::from(Sym::Rank),
        At::Peer(rank) | At::Remote(rank) => rank.clone(),
    };
    match random.below(3) {
        0 => At::Own,
        1 => At::Peer((rank + 1i64) % Sym::World),
        _ => At::Peer(0i64.into()),
    }
}

/// Changes a number, a scope or a place of a statement.
fn inside(op: &mut Op, random: &mut Random) {
    match op {
        Op::Wait { slots, target, scope: of, .. } => match random.below(4) {
            0 => *of = scope(random),
            1 => shift(&mut slots.lo, random),
            2 => shift(&mut slots.hi, random),
            _ => shift(target, random),
        },
        Op::Signal { at, slot, update, scope: of, after, .. } => match random.below(5) {
            0 => *of = scope(random),
            1 => shift(slot, random),
            2 => *at = other_rank(at, random),
            3 => {
                *after = match after {
                    Completion::Read | Completion::Delivered => Completion::Performed,
                    Completion::Performed => Completion::Read,
                }
            }
            _ => match update {
                Update::Add(value) | Update::Set(value) => shift(value, random),
            },
        },
        Op::Store { to, value, adds: _ } => {
            if random.one_in(5) {
                value.0 = 1 - value.0.min(1);
            } else {
                place(to, random);
            }
        }
        Op::Copy { from, to, adds: _ } => match random.below(3) {
            0 => place(from, random),
            1 => place(to, random),
            _ => {
                let rows = Range::new(0i64, 1i64);
                (from.rows, to.rows) = (rows.clone(), rows);
            }
        },
        Op::Mainloop { products } => {
            let index = random.below(products.len());
            place(&mut products[index].a, random);
        }
        Op::Sum { from, .. } | Op::Load { from, .. } => place(from, random),
        Op::For { from, to, .. } => shift(if random.one_in(2) { from } else { to }, random),
        Op::If { cond, .. } => {
            if let Cond::Eq(a, b) = cond {
                *cond = Cond::Ne(a.clone(), b.clone());
            } else if let Cond::Ne(a, b) = cond {
                *cond = Cond::Eq(a.clone(), b.clone());
            }
        }
        Op::Let { value, .. } => shift(value, random),
        Op::Row { .. } | Op::FenceProxyAsync => {}
    }
}
