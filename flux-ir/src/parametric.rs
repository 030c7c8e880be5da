//! Signal counts for **all** launches: every M, N, K, world, grid and epoch at once.
//!
//! The exact check of a launch decides what that launch does. Here a wait is proved once and for
//! all to count right: at any launch, the raises that reach a slot it waits for, in the launches up
//! to the one it asks for, add up to its target exactly. [`prove`] says so of every wait of a
//! Program, or says why it cannot; it never says so wrongly. It reads the Program alone, not how
//! it was lowered. `docs/parametric.md` states and proves each [`Lemma`].
//!
//! | module | gives |
//! |---|---|
//! | `poly` | normal forms of index expressions |
//! | `simplex` | contradictions between linear facts, each checked |
//! | `arith` | goals `p >= 0` over integers, with quotients, minima, maxima, products |
//! | `context` | waits and raises as sets of instances |
//! | `count` | how many instances of a raise reach a waited slot |

mod arith;
mod context;
mod count;
#[cfg(test)]
mod lemmas;
mod poly;
mod simplex;

use crate::program::{AgentId, At, Expr, Op, Program, Range, SignalId, Stmt, Sym, Update};
use crate::text::show_expr;
use arith::Prover;
use context::{Amount, End, Shared, Site, What};
use count::{Argument, Slot};
use poly::{Atom, AtomKind, Poly};
use std::fmt;

/// What a step of a proof rests on; the anchors of `docs/parametric.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lemma {
    /// `(u + h) % w` takes each value once while `h` runs over `0..w`.
    Rotation,
    /// The loop over a rank's tiles visits each tile once.
    Visits,
    /// A number has one quotient and one remainder.
    Digits,
    /// Linear facts, definitions of quotients, minima and maxima, products and cases.
    Arithmetic,
    /// What is raised alike in every launch grows with the epoch.
    Epochs,
}

impl Lemma {
    /// The name in proofs.
    pub const fn name(self) -> &'static str {
        match self {
            Lemma::Rotation => "rotation",
            Lemma::Visits => "visits",
            Lemma::Digits => "digits",
            Lemma::Arithmetic => "arithmetic",
            Lemma::Epochs => "epochs",
        }
    }
}

/// A step of a proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What it rests on; nothing where it only names the raise that the next ones are about.
    pub lemma: Option<Lemma>,
    /// What it says. Names of the raising rank and of its launch bear a `'`.
    pub text: String,
}

/// That a wait counts right in every launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Proof {
    /// What the raises of one launch add to each slot that is waited for (or, where the signal is
    /// set, by what its value grows with each launch): an expression of M, N, K, world and ctas.
    pub per_launch: Expr,
    /// How many raises of one launch reach each slot that is waited for.
    pub raises: Expr,
    /// The wait asks for all raises of launches up to this many before its own.
    pub lag: u32,
    /// What is proved, as a sentence.
    pub claim: String,
    /// Why.
    pub steps: Vec<Step>,
    /// Contradictions that were found and checked on the way.
    pub refutations: usize,
}

/// Why nothing is proved of a wait. It may well count right: the exact check of each launch says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not proved for all launches: {why}")]
pub struct Unproved {
    /// What is missing.
    pub why: String,
}

/// What is known of a wait.
#[derive(Debug, Clone)]
pub struct Verdict<'p> {
    /// The agent that waits.
    pub agent: AgentId,
    /// The wait.
    pub wait: &'p Stmt,
    /// The array.
    pub signal: SignalId,
    /// The wait as text.
    pub text: String,
    /// Whether it is proved.
    pub outcome: Result<Proof, Unproved>,
}

impl fmt::Display for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text)?;
        match &self.outcome {
            Ok(proof) => write!(f, ": {proof}"),
            Err(unproved) => write!(f, ": {unproved}"),
        }
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.claim)?;
        for step in &self.steps {
            writeln!(f, "  {:<10} {}", step.lemma.map_or("raise", Lemma::name), step.text)?;
        }
        write!(f, "  ({} contradictions checked)", self.refutations)
    }
}

/// Statements and definitions that are argued about; a lowered kernel has some thirty.
const STATEMENT_LIMIT: usize = 2000;

/// A verdict on every wait of `program`, in the order of its text.
///
/// A proof holds for all launches that the checker lets through (index arithmetic in 31 bits, tile
/// orders that are permutations) with M, N and K of 1 or more.
pub fn prove(program: &Program) -> Vec<Verdict<'_>> {
    let statements = program.statements().count() + program.lets.len();
    if statements > STATEMENT_LIMIT {
        return all_unproved(program, &format!("{statements} statements are too many"));
    }
    let mut prover = Prover::default();
    let shared = Shared::new(&mut prover);
    let here = End::new(program, "", &mut prover, &shared);
    let there = End::new(program, "'", &mut prover, &shared);
    let waits = here.sites(&mut prover, &shared);
    let raises = there.sites(&mut prover, &shared);
    let mut proving =
        Proving { program, prover, shared, rank: here.rank, epoch: here.epoch, there, raises };
    let waits = waits.iter().filter(|site| is_wait(site.stmt));
    waits.map(|site| proving.verdict(site)).collect()
}

fn all_unproved<'p>(program: &'p Program, why: &str) -> Vec<Verdict<'p>> {
    let waits = program.agents.iter().flat_map(|(agent, declared)| {
        let waits = declared.statements().filter_map(move |stmt| match stmt.op {
            Op::Wait { signal, .. } => Some((agent, stmt, signal)),
            _ => None,
        });
        waits.collect::<Vec<_>>()
    });
    let verdict = |(agent, wait, signal)| Verdict {
        agent,
        wait,
        signal,
        text: wait_text(program, wait),
        outcome: Err(Unproved { why: why.into() }),
    };
    waits.map(verdict).collect()
}

fn is_wait(stmt: &Stmt) -> bool {
    matches!(stmt.op, Op::Wait { .. })
}

fn signal_name(program: &Program, signal: SignalId) -> &str {
    program.signals.get(signal).map_or("?", |array| array.name.as_str())
}

fn wait_text(program: &Program, stmt: &Stmt) -> String {
    let Op::Wait { signal, slots, target, .. } = &stmt.op else { return String::new() };
    let name = signal_name(program, *signal);
    format!("wait %{name}[{}] >= {}", slots_text(program, slots), show_expr(program, target))
}

fn slots_text(program: &Program, slots: &Range) -> String {
    let lo = show_expr(program, &slots.lo);
    match slots.hi == slots.lo.clone() + 1i64 {
        true => lo,
        false => format!("{lo}..{}", show_expr(program, &slots.hi)),
    }
}

fn raise_text(program: &Program, site: &Site<'_>) -> String {
    let Op::Signal { at, signal, slot, update, .. } = &site.stmt.op else { return String::new() };
    let show = |expr| show_expr(program, expr);
    let at = match at {
        At::Own => String::new(),
        At::Peer(rank) => format!("peer({}).", show(rank)),
        At::Remote(rank) => format!("remote({}).", show(rank)),
    };
    let (how, amount) = match update {
        Update::Set(value) => ("=", value),
        Update::Add(count) => ("+=", count),
    };
    let (name, slot) = (signal_name(program, *signal), show(slot));
    let agent = &program.agents[site.agent].name;
    format!("signal {at}%{name}[{slot}] {how} {} by `{agent}`", show(amount))
}

/// What the arguments for all waits share.
struct Proving<'p> {
    program: &'p Program,
    prover: Prover,
    shared: Shared,
    /// The waiting rank, and the launch that waits.
    rank: Atom,
    epoch: Atom,
    /// A raising rank, in any launch.
    there: End<'p>,
    raises: Vec<Site<'p>>,
}

impl<'p> Proving<'p> {
    fn verdict(&mut self, site: &Site<'p>) -> Verdict<'p> {
        let before = self.prover.refutations;
        let argued = match self.prover.fuel {
            0 => Err(String::new()),
            _ => self.argue(site),
        };
        let outcome = match argued {
            Ok(proof) => Ok(Proof { refutations: self.prover.refutations - before, ..proof }),
            Err(_) if self.prover.fuel == 0 => {
                Err(Unproved { why: "the search for a proof ran out of steps".into() })
            }
            Err(why) => Err(Unproved { why }),
        };
        let text = wait_text(self.program, site.stmt);
        Verdict { agent: site.agent, wait: site.stmt, signal: site.signal, text, outcome }
    }

    fn argue(&mut self, site: &Site<'p>) -> Result<Proof, String> {
        let What::Wait { lo, hi, target } = site.what.clone()? else {
            return Err("a raise waits for nothing".into());
        };
        let mut facts = site.facts();
        for poly in [&lo, &hi] {
            self.prover.note_signs(poly, &mut facts);
        }
        if !self.prover.prove(&lo, &facts) {
            return Err(format!("{} is not shown to be a slot", self.prover.atoms.show(&lo)));
        }
        let last = &hi - &Poly::int(1);
        let slot = if last == lo {
            Slot { x: lo, range: None }
        } else {
            let atom = self.prover.atoms.name("x");
            let x = Poly::atom(atom);
            facts.nonneg.extend([&x - &lo, &last - &x, x.clone()]);
            Slot { x, range: Some((atom, lo, last)) }
        };
        let mut steps = Vec::new();
        let total = self.total(site, &slot, &facts, &mut steps)?;
        let raises = self.constant(&total.times, "the number of raises")?;
        let per_launch = self.constant(&total.per_launch, "what a launch adds")?;
        let lag = self.lag(&target, &total.per_launch)?;
        let [target, growth] = [&target, &total.per_launch].map(|p| self.prover.atoms.show(p));
        let claim = self.claim(site, &total, &growth, lag);
        let since = if lag == 0 { "epoch".into() } else { format!("epoch - {lag}") };
        let text = format!("after launch {since} the slot is at {target}, the target");
        steps.push(Step { lemma: Some(Lemma::Epochs), text });
        Ok(Proof { per_launch, raises, lag, claim, steps, refutations: 0 })
    }

    fn claim(&self, site: &Site<'_>, total: &Total, growth: &str, lag: u32) -> String {
        let slots = match &site.stmt.op {
            Op::Wait { slots, .. } => slots_text(self.program, slots),
            _ => String::new(),
        };
        let every = if slots.contains("..") { "every slot x of" } else { "slot" };
        let does = match (total.sets, total.times.as_int()) {
            (true, _) if growth == "1" => "is set once a launch, to its epoch".into(),
            (true, _) => format!("is set once a launch, to {growth} times its epoch"),
            (false, Some(1)) => format!("is raised once a launch, by {growth}"),
            (false, _) => {
                let times = self.prover.atoms.show(&total.times);
                format!("is raised {times} times a launch, by {growth} in all")
            }
        };
        let until = match lag {
            0 => "this launch".into(),
            1 => "the launch before".into(),
            lag => format!("the launch {lag} before"),
        };
        format!("{every} {slots} {does}; the target is the total up to {until}")
    }
}

/// What reaches a slot in one launch.
struct Total {
    times: Poly,
    /// The sum, or how much the value that is set grows with each launch.
    per_launch: Poly,
    sets: bool,
}

impl<'p> Proving<'p> {
    /// Adds up every raise of the array.
    fn total(
        &mut self,
        wait: &Site<'p>,
        slot: &Slot,
        facts: &arith::Facts,
        steps: &mut Vec<Step>,
    ) -> Result<Total, String> {
        let (mut times, mut added, mut set) = (Poly::default(), Poly::default(), None);
        let raises: Vec<&Site<'p>> = self
            .raises
            .iter()
            .filter(|site| site.signal == wait.signal && !is_wait(site.stmt))
            .collect();
        if raises.is_empty() {
            return Err("nothing raises it".into());
        }
        let world = self.shared.get(Sym::World).cloned().unwrap_or_default();
        for site in raises {
            let mut argument = Argument {
                prover: &mut self.prover,
                rank: self.rank,
                world: world.clone(),
                slot,
                facts: facts.clone(),
            };
            let raise = raise_text(self.program, site);
            let count = argument.count(site).map_err(|why| format!("{raise}: {why}"))?;
            steps.push(Step { lemma: None, text: raise });
            steps.extend(count.steps);
            if count.times.is_zero() {
                continue;
            }
            times = &times + &count.times;
            match count.amount {
                Amount::Add(amount) => {
                    let sum = amount.times(&count.times).ok_or_else(context::too_large)?;
                    added = &added + &sum;
                }
                Amount::Set(value) => set = Some(value),
            }
        }
        let Some(value) = set else {
            return Ok(Total { times, per_launch: added, sets: false });
        };
        if times != Poly::int(1) {
            return Err("it is set, and raised more than once a launch".into());
        }
        match value.linear_in(self.there.epoch) {
            Some((growth, rest)) if rest.is_zero() => {
                Ok(Total { times, per_launch: growth, sets: true })
            }
            _ => Err("it is set to what is no multiple of the epoch".into()),
        }
    }

    /// `poly` as an expression of what all ranks and launches share.
    fn constant(&self, poly: &Poly, what: &str) -> Result<Expr, String> {
        let varies = || format!("{what} varies: {}", self.prover.atoms.show(poly));
        let mut sum: Option<Expr> = None;
        for (monomial, coefficient) in poly.terms() {
            let number = i64::try_from(coefficient).map_err(|_| context::too_large())?;
            let mut term = Expr::Int(number);
            for atom in monomial.atoms() {
                let factor = match self.prover.atoms.kind(atom) {
                    AtomKind::Name(_) => self.shared.symbol(atom).ok_or_else(varies)?.into(),
                    AtomKind::Div(a, b) => self.constant(a, what)? / self.constant(b, what)?,
                    AtomKind::Min(a, b) => self.constant(a, what)?.min(self.constant(b, what)?),
                    AtomKind::Max(a, b) => self.constant(a, what)?.max(self.constant(b, what)?),
                };
                term = if term == Expr::Int(1) { factor } else { term * factor };
            }
            sum = Some(match sum {
                Some(sum) => sum + term,
                None => term,
            });
        }
        Ok(sum.unwrap_or(Expr::Int(0)))
    }

    /// `lag` where `target = per_launch * (epoch - lag)`.
    fn lag(&self, target: &Poly, per_launch: &Poly) -> Result<u32, String> {
        let differs = || {
            let [target, per_launch] = [target, per_launch].map(|p| self.prover.atoms.show(p));
            format!("a launch adds {per_launch}, the target is {target}")
        };
        let all = per_launch.times(&Poly::atom(self.epoch)).ok_or_else(context::too_large)?;
        let missing = &all - target;
        // missing = lag * per_launch: the lag is the ratio of any two coefficients.
        let Some((monomial, unit)) = per_launch.terms().next() else { return Err(differs()) };
        let of = missing.terms().find(|(other, _)| *other == monomial).map_or(0, |(_, of)| of);
        let lag = of / unit;
        match u32::try_from(lag) {
            Ok(whole) if missing == per_launch.scale(lag) => Ok(whole),
            _ => Err(differs()),
        }
    }
}
