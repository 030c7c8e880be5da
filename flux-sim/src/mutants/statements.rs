//! Statements dropped, moved and swapped.

use super::{Edit, Kind};
use flux_ir::program::{AgentId, Op, Program, Stmt};

/// A list of statements: a body of an agent, or that of one of its loops and conditions.
#[derive(Debug, Clone)]
pub(super) struct Body {
    agent: AgentId,
    exit: bool,
    /// In each list the position of the statement that holds the next one.
    within: Vec<usize>,
}

impl Body {
    fn of(&self, program: &Program) -> Vec<Stmt> {
        let agent = &program.agents[self.agent];
        let outer = if self.exit { &agent.exit } else { &agent.body };
        self.within.iter().fold(outer.as_slice(), |body, &index| body[index].op.body()).to_vec()
    }

    pub(super) fn of_mut<'p>(&self, program: &'p mut Program) -> &'p mut Vec<Stmt> {
        let agent = &mut program.agents[self.agent];
        let mut body = if self.exit { &mut agent.exit } else { &mut agent.body };
        for &index in &self.within {
            body = match &mut body[index].op {
                Op::For { body, .. } | Op::If { body, .. } => body,
                _ => unreachable!("only loops and conditions hold statements"),
            };
        }
        body
    }

    /// The list that holds the statement this list belongs to, and its position there.
    fn outer(&self) -> Option<(Body, usize)> {
        let mut outer = self.clone();
        let index = outer.within.pop()?;
        Some((outer, index))
    }

    fn is_inside(&self, outer: &Body) -> bool {
        self.agent == outer.agent
            && self.exit == outer.exit
            && self.within.len() > outer.within.len()
            && self.within.starts_with(&outer.within)
    }

    fn whole(&self, exit: bool) -> Body {
        Body { agent: self.agent, exit, within: Vec::new() }
    }

    /// The statement at `index`, the same for every schedule of a kernel.
    pub(super) fn point(&self, program: &Program, index: usize) -> String {
        let list = if self.exit { "exit" } else { "body" };
        let path = self.within.iter().chain([&index]).map(|index| format!(".{index}"));
        format!("{} {list}{}", program.agents[self.agent].name, path.collect::<String>())
    }
}

/// Every list of statements, outer ones first.
pub(super) fn bodies(program: &Program) -> Vec<Body> {
    fn nested(body: &Body, stmts: &[Stmt], into: &mut Vec<Body>) {
        into.push(body.clone());
        for (index, stmt) in stmts.iter().enumerate() {
            if !stmt.op.body().is_empty() {
                let mut inner = body.clone();
                inner.within.push(index);
                nested(&inner, stmt.op.body(), into);
            }
        }
    }
    let mut all = Vec::new();
    for (agent, entry) in program.agents.iter() {
        for (exit, stmts) in [(false, &entry.body), (true, &entry.exit)] {
            nested(&Body { agent, exit, within: Vec::new() }, stmts, &mut all);
        }
    }
    all
}

/// Every statement with its list and position.
pub(super) fn each(program: &Program) -> Vec<(Body, usize, Stmt)> {
    let all = bodies(program).into_iter();
    all.flat_map(|body| {
        let stmts = body.of(program).into_iter().enumerate();
        stmts.map(|(index, stmt)| (body.clone(), index, stmt)).collect::<Vec<_>>()
    })
    .collect()
}

pub(super) fn edits(program: &Program) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (body, index, stmt) in each(program) {
        let mut add = |kind, how: &str, change: &dyn Fn(&mut Program)| {
            let mut program = program.clone();
            let point = format!("{} {how}", body.point(&program, index));
            change(&mut program);
            edits.push(Edit { kind, point, span: stmt.span, program });
        };
        add(Kind::Drop, "dropped", &|program| {
            body.of_mut(program).remove(index);
        });
        if let Op::If { body: guarded, .. } = &stmt.op {
            add(Kind::Drop, "without its condition", &|program| {
                body.of_mut(program).splice(index..=index, guarded.iter().cloned());
            });
        }
        if index + 1 < body.of(program).len() {
            add(Kind::Swap, "swapped with the next", &|program| {
                body.of_mut(program).swap(index, index + 1);
            });
        }
        if matches!(stmt.op, Op::Wait { .. } | Op::Signal { .. } | Op::FenceProxyAsync) {
            for (how, target) in elsewhere(program, &body, index) {
                add(Kind::Move, how, &|program| moved(program, &body, index, &target));
            }
        }
        if let Op::For { body: inner, .. } = &stmt.op
            && matches!(inner[..], [Stmt { op: Op::Signal { .. } | Op::Wait { .. }, .. }])
        {
            for (how, target) in elsewhere(program, &body, index) {
                add(Kind::Move, how, &|program| moved(program, &body, index, &target));
            }
        }
    }
    edits
}

/// Where a statement can go.
enum Target {
    /// Into a list, first or last.
    First(Body),
    Last(Body),
    /// Before or behind what holds its own list.
    Before(Body, usize),
    Behind(Body, usize),
}

/// Where the statement at `index` of `body` could stand by mistake.
fn elsewhere(program: &Program, body: &Body, index: usize) -> Vec<(&'static str, Target)> {
    let mut targets = vec![
        ("moved to the front", Target::First(body.clone())),
        ("moved to the end", Target::Last(body.clone())),
    ];
    if let Some((outer, index)) = body.outer() {
        targets.push(("moved before what holds it", Target::Before(outer.clone(), index)));
        targets.push(("moved behind what holds it", Target::Behind(outer, index)));
    }
    if body.exit {
        targets.push(("moved from the exit to the body's end", Target::Last(body.whole(false))));
        targets.push(("moved from the exit to the body's front", Target::First(body.whole(false))));
    } else {
        targets.push(("moved from the body to the exit", Target::Last(body.whole(true))));
    }
    // An entry handshake of every turn.
    let is_loop = |(at, stmt): &(usize, &Stmt)| *at != index && matches!(stmt.op, Op::For { .. });
    if let Some((index, _)) = body.of(program).iter().enumerate().find(is_loop) {
        let mut inner = body.clone();
        inner.within.push(index);
        targets.push(("moved into the loop beside it", Target::First(inner)));
    }
    targets
}

/// Takes the statement at `index` of `body` and puts it down at `target`.
fn moved(program: &mut Program, body: &Body, index: usize, target: &Target) {
    let stmt = body.of(program)[index].clone();
    match target {
        // A list inside of this one is found by positions that a removal would shift.
        Target::First(list) if list.is_inside(body) => {
            list.of_mut(program).insert(0, stmt);
            body.of_mut(program).remove(index);
        }
        Target::First(list) => {
            body.of_mut(program).remove(index);
            list.of_mut(program).insert(0, stmt);
        }
        Target::Last(list) => {
            body.of_mut(program).remove(index);
            list.of_mut(program).push(stmt);
        }
        Target::Before(list, at) => {
            body.of_mut(program).remove(index);
            list.of_mut(program).insert(*at, stmt);
        }
        Target::Behind(list, at) => {
            body.of_mut(program).remove(index);
            list.of_mut(program).insert(at + 1, stmt);
        }
    }
}
