//! Every wait and every raise of a Program, with the set of instances it stands for.
//!
//! Expressions become normal forms with definitions and table fields put in. Loops become bounds
//! and conditions guards, so that the instances of a statement in one launch are exactly the
//! values within [`Site::bounds`] for which [`Site::guards`] hold, each once. The loop over a
//! rank's tiles becomes a bound for the tile ([`Lemma::Visits`]). Where a statement cannot be
//! described so, its site says why.

use super::arith::{Facts, Prover, below};
use super::poly::{Atom, Poly};
use super::{Lemma, Step};
use crate::arena::Handle;
use crate::program::{
    AgentId, At, BinOp, Cond, Expr, Op, Program, SignalId, Statements, Stmt, Sym, TableId, Update,
    VarId,
};
use std::collections::BTreeMap;

/// A variable of a site: every integer in `from..to`.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    pub(super) atom: Atom,
    pub(super) from: Poly,
    pub(super) to: Poly,
}

/// A condition on the variables of a site.
#[derive(Debug, Clone)]
pub(super) enum Guard {
    Equal(Poly, Poly),
    Unequal(Poly, Poly),
    Less(Poly, Poly),
}

/// How a signal changes.
#[derive(Debug, Clone)]
pub(super) enum Amount {
    Add(Poly),
    Set(Poly),
}

/// What happens at a site.
#[derive(Debug, Clone)]
pub(super) enum What {
    /// A wait for the slots `lo..hi`.
    Wait { lo: Poly, hi: Poly, target: Poly },
    /// A raise of one slot on rank `at`.
    Raise { at: Poly, slot: Poly, amount: Amount },
}

/// A wait or a raise.
#[derive(Debug, Clone)]
pub(super) struct Site<'p> {
    pub(super) stmt: &'p Stmt,
    pub(super) agent: AgentId,
    pub(super) signal: SignalId,
    /// Its variables, the rank first, then from the outermost loop inwards.
    pub(super) bounds: Vec<Bound>,
    pub(super) guards: Vec<Guard>,
    /// Lemmas that the description rests on.
    pub(super) steps: Vec<Step>,
    pub(super) what: Result<What, String>,
}

impl Site<'_> {
    /// What holds at every instance.
    pub(super) fn facts(&self) -> Facts {
        facts(&self.bounds, &self.guards)
    }
}

fn facts(bounds: &[Bound], guards: &[Guard]) -> Facts {
    let mut facts = Facts::default();
    for bound in bounds {
        let value = Poly::atom(bound.atom);
        facts.nonneg.extend([&value - &bound.from, below(&value, &bound.to)]);
    }
    for guard in guards {
        match guard {
            Guard::Equal(a, b) => facts.nonneg.extend([a - b, b - a]),
            Guard::Unequal(a, b) => facts.unequal.push(a - b),
            Guard::Less(a, b) => facts.nonneg.push(below(a, b)),
        }
    }
    facts
}

/// Symbols that have one value on all ranks.
#[derive(Debug)]
pub(super) struct Shared([(Sym, Poly); 5]);

impl Shared {
    pub(super) fn new(prover: &mut Prover) -> Shared {
        let of = |sym: Sym| (sym, prover.symbol(sym.name(), 1));
        Shared([Sym::M, Sym::N, Sym::K, Sym::World, Sym::Ctas].map(of))
    }

    pub(super) fn get(&self, sym: Sym) -> Option<&Poly> {
        self.0.iter().find(|(known, _)| *known == sym).map(|(_, poly)| poly)
    }

    /// The symbol that `atom` is.
    pub(super) fn symbol(&self, atom: Atom) -> Option<Sym> {
        self.0.iter().find(|(_, poly)| poly.as_atom() == Some(atom)).map(|(sym, _)| *sym)
    }
}

/// One end of an argument: the waiting or a raising rank, in a launch of its own.
#[derive(Debug)]
pub(super) struct End<'p> {
    program: &'p Program,
    /// Stands behind the names of its variables.
    mark: &'static str,
    pub(super) rank: Atom,
    pub(super) epoch: Atom,
    /// Definitions of the Program.
    lets: Env,
    world: Poly,
}

/// What variables stand for, or why that is not known.
type Env = BTreeMap<VarId, Result<Poly, String>>;

/// Where the walk is.
#[derive(Debug, Clone)]
struct Scope {
    env: Env,
    /// Variables of this run that are given a value in two places: not described.
    twice: Vec<VarId>,
    epoch: Option<Atom>,
    cta: Result<Poly, String>,
    bounds: Vec<Bound>,
    guards: Vec<Guard>,
    steps: Vec<Step>,
    /// Why instances are not described from here on.
    fault: Option<String>,
}

/// Collects the sites of one end.
struct Walk<'a, 'p> {
    prover: &'a mut Prover,
    shared: &'a Shared,
    end: &'a End<'p>,
    agent: AgentId,
    sites: Vec<Site<'p>>,
}

impl<'p> End<'p> {
    pub(super) fn new(
        program: &'p Program,
        mark: &'static str,
        prover: &mut Prover,
        shared: &Shared,
    ) -> Self {
        let rank = prover.symbol(&format!("rank{mark}"), 0);
        let epoch = prover.symbol(&format!("epoch{mark}"), 1);
        let world = shared.get(Sym::World).cloned().unwrap_or_default();
        prover.know(below(&rank, &world));
        let [Some(rank), Some(epoch)] = [rank, epoch].map(|symbol| symbol.as_atom()) else {
            unreachable!("a symbol is an atom");
        };
        let mut end = End { program, mark, rank, epoch, lets: Env::new(), world };
        for (var, value) in &program.lets {
            let scope = end.scope(end.lets.clone(), None);
            let value = convert(prover, shared, &end, &scope, value);
            if let Ok(value) = &value {
                let own = if prover.atoms.mentions(value, &[rank]) { mark } else { "" };
                prover.atoms.alias(value, format!("{}{own}", name(program, *var)));
            }
            if end.lets.insert(*var, value).is_some() {
                end.lets.insert(*var, Err(twice(program, *var)));
            }
        }
        end
    }

    /// The waits and raises of every agent.
    pub(super) fn sites(&self, prover: &mut Prover, shared: &Shared) -> Vec<Site<'p>> {
        let mut walk = Walk { prover, shared, end: self, agent: AgentId::new(0), sites: vec![] };
        for (id, agent) in self.program.agents.iter() {
            walk.agent = id;
            let grid = agent.engine.is_in_kernel();
            for (body, on_ctas) in [(&agent.body, grid), (&agent.exit, false)] {
                let mut scope = self.scope(self.lets.clone(), Some(self.epoch));
                scope.twice = assigned_twice(self.program, body);
                if on_ctas {
                    let ctas = shared.get(Sym::Ctas).cloned().unwrap_or_default();
                    let cta = walk.bind(&mut scope, "cta", Poly::default(), ctas);
                    scope.cta = Ok(Poly::atom(cta));
                }
                walk.body(body, &mut scope);
            }
        }
        walk.sites
    }

    fn scope(&self, env: Env, epoch: Option<Atom>) -> Scope {
        let rank = Bound { atom: self.rank, from: Poly::default(), to: self.world.clone() };
        Scope {
            env,
            twice: Vec::new(),
            epoch,
            // Exits and copy engines run once, as CTA 0.
            cta: match epoch {
                Some(_) => Ok(Poly::default()),
                None => Err("a definition or a table depends on cta".into()),
            },
            bounds: vec![rank],
            guards: Vec::new(),
            steps: Vec::new(),
            fault: None,
        }
    }
}

fn name(program: &Program, var: VarId) -> String {
    program.vars.get(var).map_or_else(|| "%?".into(), |var| format!("%{}", var.name))
}

fn twice(program: &Program, var: VarId) -> String {
    format!("{} is given a value in two places", name(program, var))
}

/// Variables that are given a value in more than one place of a run, definitions included.
fn assigned_twice(program: &Program, body: &[Stmt]) -> Vec<VarId> {
    let mut seen: Vec<VarId> = program.lets.iter().map(|(var, _)| *var).collect();
    let mut again = Vec::new();
    for stmt in Statements::of(body) {
        let vars: &[VarId] = match &stmt.op {
            Op::Let { var, .. } | Op::For { var, .. } | Op::Sum { var, .. } => {
                std::slice::from_ref(var)
            }
            Op::Row { vars, .. } => vars,
            Op::If { .. }
            | Op::Wait { .. }
            | Op::FenceProxyAsync
            | Op::Mainloop { .. }
            | Op::Store { .. }
            | Op::Load { .. }
            | Op::Signal { .. }
            | Op::Copy { .. } => &[],
        };
        for &var in vars {
            if seen.contains(&var) {
                again.push(var);
            }
            seen.push(var);
        }
    }
    again
}

/// The normal form of `expr` in `scope`.
fn convert(
    prover: &mut Prover,
    shared: &Shared,
    end: &End<'_>,
    scope: &Scope,
    expr: &Expr,
) -> Result<Poly, String> {
    let poly = match expr {
        Expr::Int(value) if value.unsigned_abs() <= 1 << 31 => Poly::int((*value).into()),
        Expr::Int(value) => return Err(format!("{value} is beyond 31 bits")),
        Expr::Sym(Sym::Rank) => Poly::atom(end.rank),
        Expr::Sym(Sym::Epoch) => match scope.epoch {
            Some(epoch) => Poly::atom(epoch),
            None => return Err("a definition or a table depends on the epoch".into()),
        },
        Expr::Sym(Sym::Cta) => scope.cta.clone()?,
        Expr::Sym(sym) => match shared.get(*sym) {
            Some(symbol) => symbol.clone(),
            None => return Err(format!("{} is not described", sym.name())),
        },
        Expr::Var(var) if scope.twice.contains(var) => return Err(twice(end.program, *var)),
        Expr::Var(var) => match scope.env.get(var) {
            Some(value) => value.clone()?,
            None => return Err(format!("{} has no value here", name(end.program, *var))),
        },
        Expr::First(_) => return Err("shards have lengths of their own".into()),
        Expr::Bin(op, a, b) => {
            let a = convert(prover, shared, end, scope, a)?;
            let b = convert(prover, shared, end, scope, b)?;
            match op {
                BinOp::Add => &a + &b,
                BinOp::Sub => &a - &b,
                BinOp::Mul => a.times(&b).ok_or_else(too_large)?,
                BinOp::Div => prover.quotient(a, b)?,
                BinOp::CeilDiv => prover.quotient(&(&a + &b) - &Poly::int(1), b)?,
                BinOp::Rem => {
                    let quotient = prover.quotient(a.clone(), b.clone())?;
                    &a - &b.times(&quotient).ok_or_else(too_large)?
                }
                BinOp::Min => prover.atoms.min(a, b),
                BinOp::Max => prover.atoms.max(a, b),
            }
        }
    };
    match poly.bounded() {
        Some(poly) if prover.atoms.depth(&poly) <= DEPTH_LIMIT => Ok(poly),
        _ => Err(too_large()),
    }
}

/// Nesting of quotients, minima and maxima.
const DEPTH_LIMIT: usize = 64;

pub(super) fn too_large() -> String {
    "an expression grows too large".into()
}

impl<'p> Walk<'_, 'p> {
    fn convert(&mut self, scope: &Scope, expr: &Expr) -> Result<Poly, String> {
        convert(self.prover, self.shared, self.end, scope, expr)
    }

    /// A new variable of the scope, in `from..to`.
    fn bind(&mut self, scope: &mut Scope, name: &str, from: Poly, to: Poly) -> Atom {
        let atom = self.prover.atoms.name(format!("{name}{}", self.end.mark));
        scope.bounds.push(Bound { atom, from, to });
        atom
    }

    /// Shows `value` as the variable that holds it.
    fn show_as(&mut self, var: VarId, value: &Result<Poly, String>) {
        if let Ok(value) = value {
            let name = format!("{}{}", name(self.end.program, var), self.end.mark);
            self.prover.atoms.alias(value, name);
        }
    }

    fn body(&mut self, body: &'p [Stmt], scope: &mut Scope) {
        for stmt in body {
            match &stmt.op {
                Op::Let { var, value } => {
                    let value = self.convert(scope, value);
                    self.show_as(*var, &value);
                    scope.env.insert(*var, value);
                }
                Op::Row { table, index, vars } => self.row(scope, *table, index, vars),
                Op::For { var, from, to, step, body } => {
                    let mut inner = scope.clone();
                    if let Err(fault) = self.enter(&mut inner, *var, [from, to, step]) {
                        inner.fault.get_or_insert(fault);
                    }
                    self.body(body, &mut inner);
                }
                Op::If { cond, body } => {
                    let mut inner = scope.clone();
                    match self.guard(scope, cond) {
                        Ok(guard) => inner.guards.push(guard),
                        Err(fault) => {
                            inner.fault.get_or_insert(fault);
                        }
                    }
                    self.body(body, &mut inner);
                }
                Op::Wait { signal, slots, target, .. } => {
                    let what = self.wait(scope, [&slots.lo, &slots.hi, target]);
                    self.site(stmt, *signal, scope, what);
                }
                Op::Signal { at, signal, slot, update, .. } => {
                    let what = self.raise(scope, at, slot, update);
                    self.site(stmt, *signal, scope, what);
                }
                Op::FenceProxyAsync
                | Op::Mainloop { .. }
                | Op::Store { .. }
                | Op::Sum { .. }
                | Op::Load { .. }
                | Op::Copy { .. } => {}
            }
        }
    }

    fn site(
        &mut self,
        stmt: &'p Stmt,
        signal: SignalId,
        scope: &Scope,
        what: Result<What, String>,
    ) {
        self.sites.push(Site {
            stmt,
            agent: self.agent,
            signal,
            bounds: scope.bounds.clone(),
            guards: scope.guards.clone(),
            steps: scope.steps.clone(),
            what: scope.fault.clone().map_or(what, Err),
        });
    }

    fn wait(&mut self, scope: &Scope, exprs: [&Expr; 3]) -> Result<What, String> {
        let [lo, hi, target] = exprs.map(|expr| self.convert(scope, expr));
        Ok(What::Wait { lo: lo?, hi: hi?, target: target? })
    }

    fn raise(
        &mut self,
        scope: &Scope,
        at: &At,
        slot: &Expr,
        update: &Update,
    ) -> Result<What, String> {
        let at = match at {
            At::Own => Poly::atom(self.end.rank),
            At::Peer(rank) | At::Remote(rank) => self.convert(scope, rank)?,
        };
        let slot = self.convert(scope, slot)?;
        let amount = match update {
            Update::Add(count) => Amount::Add(self.convert(scope, count)?),
            Update::Set(value) => Amount::Set(self.convert(scope, value)?),
        };
        Ok(What::Raise { at, slot, amount })
    }

    fn guard(&mut self, scope: &Scope, cond: &Cond) -> Result<Guard, String> {
        let (Cond::Eq(a, b) | Cond::Ne(a, b) | Cond::Lt(a, b)) = cond;
        let (a, b) = (self.convert(scope, a)?, self.convert(scope, b)?);
        Ok(match cond {
            Cond::Eq(..) => Guard::Equal(a, b),
            Cond::Ne(..) => Guard::Unequal(a, b),
            Cond::Lt(..) => Guard::Less(a, b),
        })
    }

    /// Enters a loop by 1, or the loop that shares steps among the CTAs.
    fn enter(&mut self, scope: &mut Scope, var: VarId, exprs: [&Expr; 3]) -> Result<(), String> {
        let name = name(self.end.program, var);
        if scope.twice.contains(&var) {
            return Err(twice(self.end.program, var));
        }
        let [from, to, step] = exprs.map(|expr| self.convert(scope, expr));
        let (mut from, to, step) = (from?, to?, step?);
        if step.as_int() != Some(1) {
            let cta = scope.cta.clone().ok().and_then(|cta| cta.as_atom());
            let shares = from.as_atom() == cta && Some(&step) == self.shared.get(Sym::Ctas);
            let Some(cta) = cta.filter(|_| shares) else {
                return Err(format!("{name} runs by {}", self.prover.atoms.show(&step)));
            };
            if self.prover.atoms.mentions(&to, &[cta]) {
                return Err(format!("the end of the loop of {name} depends on cta"));
            }
            self.forget(scope, cta, &format!("cta inside the loop of {name}"))?;
            scope.cta = Err(format!("cta is used inside the loop of {name}"));
            let all = self.prover.atoms.show(&to);
            let text = format!("over all CTAs of a rank, {name} takes each value of 0..{all} once");
            scope.steps.push(Step { lemma: Some(Lemma::Visits), text });
            from = Poly::default();
        }
        let atom = self.bind(scope, &name, from, to);
        scope.env.insert(var, Ok(Poly::atom(atom)));
        Ok(())
    }

    /// Takes the variable `atom` out of the scope: others are about to stand for it.
    fn forget(&mut self, scope: &mut Scope, atom: Atom, name: &str) -> Result<(), String> {
        let atoms = &self.prover.atoms;
        let uses = |poly: &Poly| atoms.mentions(poly, &[atom]);
        let in_guard = scope.guards.iter().any(|guard| {
            let (Guard::Equal(a, b) | Guard::Unequal(a, b) | Guard::Less(a, b)) = guard;
            uses(a) || uses(b)
        });
        let in_bound = scope.bounds.iter().any(|bound| uses(&bound.from) || uses(&bound.to));
        if in_guard || in_bound {
            return Err(format!("a loop or a condition depends on {name}"));
        }
        scope.bounds.retain(|bound| bound.atom != atom);
        for value in scope.env.values_mut() {
            if value.as_ref().is_ok_and(uses) {
                *value = Err(format!("a number depends on {name}"));
            }
        }
        Ok(())
    }

    /// Reads a table row: where the steps of all CTAs read each row once, the tile takes the
    /// place of the step.
    fn row(&mut self, scope: &mut Scope, table: TableId, index: &Expr, vars: &[VarId; 4]) {
        let tile = self.tile_of_step(scope, table, index, vars);
        let tile = match tile {
            Ok(tile) => tile.map(Ok),
            Err(why) => [Err(why.clone()), Err(why.clone()), Err(why.clone()), Err(why)],
        };
        for (var, value) in vars.iter().zip(tile) {
            self.show_as(*var, &value);
            scope.env.insert(*var, value);
        }
    }

    fn tile_of_step(
        &mut self,
        scope: &mut Scope,
        table: TableId,
        index: &Expr,
        vars: &[VarId; 4],
    ) -> Result<[Poly; 4], String> {
        let Some(declared) = self.end.program.tables.get(table) else {
            return Err("a row of no table".into());
        };
        let other = || format!("a row of %{} that is not the step's", declared.name);
        let step = self.convert(scope, index)?.as_atom().ok_or_else(other)?;
        let bound = scope.bounds.iter().find(|bound| bound.atom == step).ok_or_else(other)?;
        let steps = bound.to.clone();
        let from_zero = bound.from.is_zero();
        let shape = self.end.program.tile;
        let (rows, cols) = match (shape.m, shape.n) {
            (0, _) | (_, 0) => return Err("tiles without extent".into()),
            (m, n) => {
                let (m, n) = (Expr::from(m), Expr::from(n));
                let rows = self.convert(scope, &Expr::from(Sym::M).ceil_div(m))?;
                (rows, self.convert(scope, &Expr::from(Sym::N).ceil_div(n))?)
            }
        };
        if !from_zero || rows.times(&cols).as_ref() != Some(&steps) {
            let all = self.prover.atoms.show(&steps);
            return Err(format!("the loop runs to {all}, not over all tiles"));
        }
        let step_name = self.prover.atoms.show(&Poly::atom(step));
        self.forget(scope, step, &step_name)?;
        let [m_name, n_name] = [vars[0], vars[1]].map(|var| name(self.end.program, var));
        let text = format!(
            "%{} is a permutation: each tile ({m_name}, {n_name}) is visited once on a rank",
            declared.name
        );
        scope.steps.push(Step { lemma: Some(Lemma::Visits), text });
        let m = Poly::atom(self.bind(scope, &m_name, Poly::default(), rows));
        let n = Poly::atom(self.bind(scope, &n_name, Poly::default(), cols));
        // The host fills the table in a scope of its own.
        let mut made = self.end.scope(self.end.lets.clone(), None);
        made.env.insert(declared.m, Ok(m.clone()));
        made.env.insert(declared.n, Ok(n.clone()));
        let [first, second] = &declared.fields;
        let [first, second] = [first, second].map(|field| {
            let field = self.convert(&made, field)?;
            let mut facts = facts(&scope.bounds, &scope.guards);
            self.prover.note_signs(&field, &mut facts);
            match self.prover.prove(&field, &facts) {
                true => Ok(field),
                false => Err(format!("a field of %{} may be negative", declared.name)),
            }
        });
        Ok([m, n, first?, second?])
    }
}
