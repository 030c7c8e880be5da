//! Counts the raises that reach a waited slot.
//!
//! An instance of a raise reaches slot `x` of the waiting rank where its destination is that rank
//! and its slot is `x`: two equations in the variables of the raise. They are solved for one
//! variable after the other, each by a rule under which at most one value is possible
//! ([`Argument::solve`]); then the only candidate is shown to be an instance, or to be none.

use super::arith::{Facts, Prover, below};
use super::context::{Amount, Bound, Guard, Site, What, too_large};
use super::poly::{Atom, AtomKind, Poly};
use super::{Lemma, Step};
use std::collections::BTreeMap;

/// The values that variables of a raise must have.
type Solution = BTreeMap<Atom, Poly>;

/// What one raise does to a waited slot in every launch.
#[derive(Debug)]
pub(super) struct Count {
    /// How often it reaches the slot.
    pub(super) times: Poly,
    /// What it does each time.
    pub(super) amount: Amount,
    pub(super) steps: Vec<Step>,
}

/// The slot that is argued about, of all that a wait waits for.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) x: Poly,
    /// Where it is any of a range: its atom, the first and the last.
    pub(super) range: Option<(Atom, Poly, Poly)>,
}

/// The argument for one wait and one raise.
pub(super) struct Argument<'a> {
    pub(super) prover: &'a mut Prover,
    /// The waiting rank.
    pub(super) rank: Atom,
    pub(super) world: Poly,
    pub(super) slot: &'a Slot,
    /// What holds where the wait waits for the slot.
    pub(super) facts: Facts,
}

/// A raise that is being counted.
struct Raise<'a> {
    site: &'a Site<'a>,
    at: Poly,
    slot: Poly,
    amount: Amount,
    /// What holds at every instance.
    facts: Facts,
    unknown: Vec<Atom>,
    solution: Solution,
    /// Variables that [`Lemma::Rotation`] solved.
    rotated: Vec<Atom>,
    steps: Vec<Step>,
}

impl Argument<'_> {
    /// Counts the instances of `site` that reach the slot.
    pub(super) fn count(&mut self, site: &Site<'_>) -> Result<Count, String> {
        let What::Raise { at, slot, amount } = site.what.clone()? else {
            return Err("a wait raises nothing".into());
        };
        let mut raise = Raise {
            site,
            at,
            slot,
            amount,
            facts: site.facts(),
            unknown: site.bounds.iter().map(|bound| bound.atom).collect(),
            solution: Solution::new(),
            rotated: Vec::new(),
            steps: site.steps.clone(),
        };
        self.stays_in_range(&mut raise)?;
        let residual = self.solve(&mut raise)?;
        self.compare_with_range(&mut raise);
        let times = self.free(&mut raise, &residual)?;
        let exists = self.exists(&mut raise, &residual)?;
        let times = if exists { times } else { Poly::default() };
        let amount = match raise.amount.clone() {
            Amount::Add(count) => Amount::Add(self.put(&raise, &count)?),
            Amount::Set(value) => Amount::Set(self.put(&raise, &value)?),
        };
        Ok(Count { times, amount, steps: raise.steps })
    }

    fn show(&self, poly: &Poly) -> String {
        self.prover.atoms.show(poly)
    }

    /// Index arithmetic never leaves what it indexes, so what is evaluated is what is written.
    fn stays_in_range(&mut self, raise: &mut Raise<'_>) -> Result<(), String> {
        let (Amount::Add(amount) | Amount::Set(amount)) = &raise.amount;
        for poly in [&raise.at, &raise.slot, amount] {
            self.prover.note_signs(poly, &mut raise.facts);
        }
        let goals = [
            ("rank", raise.at.clone()),
            ("rank", below(&raise.at, &self.world)),
            ("slot", raise.slot.clone()),
            ("amount", amount.clone()),
        ];
        for (what, goal) in goals {
            if !self.prover.prove(&goal, &raise.facts) {
                return Err(format!("the raise's {what} is not shown to be in range"));
            }
        }
        Ok(())
    }

    /// `poly` with the solution put in.
    fn put(&mut self, raise: &Raise<'_>, poly: &Poly) -> Result<Poly, String> {
        substitute(self.prover, &raise.solution, poly)
    }

    /// Unknown variables that `poly` depends on.
    fn unknown_in(&self, raise: &Raise<'_>, poly: &Poly) -> Vec<Atom> {
        let unknown = raise.unknown.iter().copied();
        unknown.filter(|&atom| self.prover.atoms.mentions(poly, &[atom])).collect()
    }

    /// Solves the equations, and returns those that are left: each without unknowns, to be 0.
    fn solve(&mut self, raise: &mut Raise<'_>) -> Result<Vec<Poly>, String> {
        let mut equations = vec![&raise.at - &Poly::atom(self.rank), &raise.slot - &self.slot.x];
        for guard in &raise.site.guards {
            if let Guard::Equal(a, b) = guard {
                equations.push(a - b);
            }
        }
        loop {
            let mut solved = false;
            let mut left = Vec::new();
            for equation in std::mem::take(&mut equations) {
                let equation = self.put(raise, &equation)?;
                let unknown = self.unknown_in(raise, &equation);
                let before = raise.unknown.len();
                if let [atom] = unknown[..] {
                    if self.solve_linear(raise, &equation, atom) {
                        solved = true;
                        continue;
                    }
                    if self.solve_rotation(raise, &equation, atom)? {
                        solved = true;
                        continue;
                    }
                }
                match self.solve_digit(raise, &equation, &unknown)? {
                    Some(rest) => left.push(rest),
                    None => left.push(equation),
                }
                solved |= raise.unknown.len() < before;
            }
            equations = left;
            if !solved {
                break;
            }
        }
        for equation in &equations {
            if !self.unknown_in(raise, equation).is_empty() {
                let equation = self.show(equation);
                return Err(format!("{equation} = 0 is not solved for the raise's variables"));
            }
        }
        Ok(equations)
    }

    /// Notes that `atom` can only be `value`.
    fn settle(
        &mut self,
        raise: &mut Raise<'_>,
        atom: Atom,
        value: Poly,
        lemma: Lemma,
        why: String,
    ) {
        let name = self.show(&Poly::atom(atom));
        let text = format!("{name} = {}, {why}", self.show(&value));
        raise.steps.push(Step { lemma: Some(lemma), text });
        self.prover.atoms.alias(&value, name);
        raise.unknown.retain(|&unknown| unknown != atom);
        raise.solution.insert(atom, value);
    }

    /// `±atom + rest = 0` has one solution.
    fn solve_linear(&mut self, raise: &mut Raise<'_>, equation: &Poly, atom: Atom) -> bool {
        let Some((factor, rest)) = equation.linear_in(atom) else { return false };
        let sign = match factor.as_int() {
            Some(sign @ (1 | -1)) => sign,
            _ => return false,
        };
        if self.prover.atoms.mentions(&rest, &[atom]) {
            return false;
        }
        let value = rest.scale(-sign);
        self.settle(raise, atom, value, Lemma::Arithmetic, "the only solution".into());
        true
    }

    /// `(u ± atom) % w = target` where `atom` runs within `0..w`: one value is congruent.
    fn solve_rotation(
        &mut self,
        raise: &mut Raise<'_>,
        equation: &Poly,
        atom: Atom,
    ) -> Result<bool, String> {
        let quotients = self.prover.atoms.closure([equation]);
        for quotient in quotients {
            let AtomKind::Div(inner, w) = self.prover.atoms.kind(quotient).clone() else {
                continue;
            };
            let Some(multiple) = w.times(&Poly::atom(quotient)) else { continue };
            let remainder = &inner - &multiple;
            for sign in [1, -1] {
                // sign * equation = remainder - target
                let target = &remainder - &equation.scale(sign);
                if !self.unknown_in(raise, &target).is_empty() {
                    continue;
                }
                let Some((factor, u)) = inner.linear_in(atom) else { continue };
                let (Some(direction @ (1 | -1)), true) =
                    (factor.as_int(), self.unknown_in(raise, &u).is_empty())
                else {
                    continue;
                };
                if !self.unknown_in(raise, &w).is_empty() {
                    continue;
                }
                let Some(bound) = raise.site.bounds.iter().find(|bound| bound.atom == atom) else {
                    continue;
                };
                let (from, to) = (bound.from.clone(), bound.to.clone());
                let (from, to) = (self.put(raise, &from)?, self.put(raise, &to)?);
                let goals = [target.clone(), below(&target, &w), from.clone(), &w - &to];
                if !goals.iter().all(|goal| self.prover.prove(goal, &self.facts)) {
                    continue;
                }
                let offset = (&target - &u).scale(direction);
                let quotient = self.prover.quotient(offset.clone(), w.clone())?;
                let value = &offset - &w.times(&quotient).ok_or_else(too_large)?;
                if !from.is_zero() {
                    // Where a value is left out, whether the quotient is 0 decides.
                    self.facts.cases.extend([quotient.clone(), &quotient - &Poly::int(1)]);
                }
                let text = format!(
                    "the one value of 0..{} for which ({}) % {} is {}",
                    self.show(&w),
                    self.show(&inner),
                    self.show(&w),
                    self.show(&target)
                );
                self.settle(raise, atom, value, Lemma::Rotation, text);
                raise.rotated.push(atom);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// `stride * digit + rest = known` where `0 <= rest < stride` at every instance: the digit is
    /// the quotient. Returns what is left of the equation.
    fn solve_digit(
        &mut self,
        raise: &mut Raise<'_>,
        equation: &Poly,
        unknown: &[Atom],
    ) -> Result<Option<Poly>, String> {
        let mut open = Poly::default();
        for (monomial, coefficient) in equation.terms() {
            let term = Poly::term(coefficient, monomial);
            if !self.unknown_in(raise, &term).is_empty() {
                open = &open + &term;
            }
        }
        let known = &open - equation;
        for &digit in unknown {
            let Some((stride, rest)) = open.linear_in(digit) else { continue };
            let settled = stride.is_zero()
                || !self.unknown_in(raise, &stride).is_empty()
                || self.prover.atoms.mentions(&rest, &[digit]);
            if settled || !self.is_remainder(raise, &rest, &stride) {
                continue;
            }
            let value = self.quotient_of(&known, &stride)?;
            let shown = [&open, &known, &rest, &stride].map(|poly| self.show(poly));
            let why = match &shown {
                [open, known, ..] if rest.is_zero() => {
                    format!("the only solution of {open} = {known}")
                }
                [open, known, rest, stride] => {
                    format!("as {open} is {known} and 0 <= {rest} < {stride}")
                }
            };
            let multiple = stride.times(&value).ok_or_else(too_large)?;
            self.settle(raise, digit, value, Lemma::Digits, why);
            return Ok(Some(&(&rest + &multiple) - &known));
        }
        Ok(None)
    }

    /// Whether `0 <= rest < stride` at every instance of the raise.
    fn is_remainder(&mut self, raise: &Raise<'_>, rest: &Poly, stride: &Poly) -> bool {
        let facts = raise.facts.clone();
        self.is_remainder_given(facts, rest, stride)
    }

    fn is_remainder_given(&mut self, mut facts: Facts, rest: &Poly, stride: &Poly) -> bool {
        self.prover.note_signs(rest, &mut facts);
        self.prover.note_signs(stride, &mut facts);
        // Digits inside `rest` have strides of their own.
        for atom in rest.atoms() {
            if let Some((factor, _)) = rest.linear_in(atom) {
                self.prover.add_factor(factor, &mut facts);
            }
        }
        self.prover.prove(rest, &facts) && self.prover.prove(&below(rest, stride), &facts)
    }

    /// `known / stride`, without a quotient where the parts of `known` show it.
    fn quotient_of(&mut self, known: &Poly, stride: &Poly) -> Result<Poly, String> {
        if let Some(parts) = self.parts(known, stride) {
            return Ok(parts);
        }
        self.prover.quotient(known.clone(), stride.clone())
    }

    /// `q` where `poly = stride * q + rest` with `0 <= rest < stride` by the waiting end's facts.
    fn parts(&mut self, poly: &Poly, stride: &Poly) -> Option<Poly> {
        let quotient = poly.leading_quotient(stride);
        let rest = poly - &stride.times(&quotient)?;
        let found = self.is_remainder_given(self.facts.clone(), &rest, stride);
        found.then_some(quotient)
    }

    /// Where a digit is a quotient of any slot of a range, bounds it by those of the ends.
    fn compare_with_range(&mut self, raise: &mut Raise<'_>) {
        let Some((atom, lo, hi)) = &self.slot.range else { return };
        let quotients: Vec<Atom> = raise.solution.values().filter_map(Poly::as_atom).collect();
        for quotient in quotients {
            let AtomKind::Div(a, stride) = self.prover.atoms.kind(quotient).clone() else {
                continue;
            };
            if !self.prover.atoms.mentions(&a, &[*atom]) {
                continue;
            }
            let digit = Poly::atom(quotient);
            for (end, last) in [(lo, false), (hi, true)] {
                let ends = BTreeMap::from([(*atom, end.clone())]);
                let Ok(at_end) = substitute(self.prover, &ends, &a) else { continue };
                let Some(limit) = self.parts(&at_end, &stride) else { continue };
                let Some(multiple) = stride.times(&limit) else { continue };
                let rest = &at_end - &multiple;
                self.facts.nonneg.extend([rest.clone(), below(&rest, &stride)]);
                let cut = if last { &limit - &digit } else { &digit - &limit };
                if self.prover.prove(&cut, &self.facts) {
                    let [digit, limit] = [&digit, &limit].map(|poly| self.show(poly));
                    let order = if last { "<=" } else { ">=" };
                    let text = format!("{digit} {order} {limit}");
                    raise.steps.push(Step { lemma: Some(Lemma::Arithmetic), text });
                    if last {
                        self.facts.cases.push(&cut - &Poly::int(1));
                    }
                    self.facts.nonneg.push(cut);
                }
            }
        }
    }

    /// How often the solution is an instance: variables that nothing depends on are free.
    fn free(&mut self, raise: &mut Raise<'_>, residual: &[Poly]) -> Result<Poly, String> {
        let mut times = Poly::int(1);
        for atom in raise.unknown.clone() {
            let name = self.show(&Poly::atom(atom));
            let (Amount::Add(amount) | Amount::Set(amount)) = &raise.amount;
            let mut users: Vec<&Poly> = residual.iter().chain([amount]).collect();
            users.extend(raise.solution.values());
            for Bound { from, to, .. } in &raise.site.bounds {
                users.extend([from, to]);
            }
            for guard in &raise.site.guards {
                let (Guard::Equal(a, b) | Guard::Unequal(a, b) | Guard::Less(a, b)) = guard;
                users.extend([a, b]);
            }
            if users.iter().any(|poly| self.prover.atoms.mentions(poly, &[atom])) {
                return Err(format!("{name} is not determined by rank and slot"));
            }
            let Some(bound) = raise.site.bounds.iter().find(|bound| bound.atom == atom) else {
                return Err(format!("{name} has no bounds"));
            };
            let trips = &bound.to - &bound.from;
            let trips = self.put(raise, &trips)?;
            if !self.prover.prove(&trips, &self.facts) {
                return Err(format!("the range of {name} may be empty"));
            }
            times = times.times(&trips).ok_or_else(too_large)?;
            let text = format!("{name} is any of {} values", self.show(&trips));
            raise.steps.push(Step { lemma: Some(Lemma::Arithmetic), text });
        }
        Ok(times)
    }

    /// Whether the solution is within bounds and guards: it always is, or it never is.
    fn exists(&mut self, raise: &mut Raise<'_>, residual: &[Poly]) -> Result<bool, String> {
        let mut goals = Vec::new();
        for bound in &raise.site.bounds {
            let Some(value) = raise.solution.get(&bound.atom).cloned() else { continue };
            let (from, to) = (self.put(raise, &bound.from)?, self.put(raise, &bound.to)?);
            let [low, shown, high] = [&from, &value, &to].map(|poly| self.show(poly));
            // Where the range is whole, the solution says that it is within.
            let whole = raise.rotated.contains(&bound.atom) && from.is_zero();
            let text = |text: String| if whole { String::new() } else { text };
            let below = text(format!("{low} <= {shown}"));
            goals.push((Goal::AtMost(from, value.clone()), below));
            goals.push((Goal::Less(value, to), text(format!("{shown} < {high}"))));
        }
        for guard in &raise.site.guards {
            let (Guard::Equal(a, b) | Guard::Unequal(a, b) | Guard::Less(a, b)) = guard;
            let (a, b) = (self.put(raise, a)?, self.put(raise, b)?);
            let (left, right) = (self.show(&a), self.show(&b));
            goals.push(match guard {
                Guard::Equal(..) => (Goal::Equal(a, b), format!("{left} = {right}")),
                Guard::Unequal(..) => (Goal::Unequal(a, b), format!("{left} != {right}")),
                Guard::Less(..) => (Goal::Less(a, b), format!("{left} < {right}")),
            });
        }
        for equation in residual {
            let text = format!("{} = 0", self.show(equation));
            goals.push((Goal::Equal(equation.clone(), Poly::default()), text));
        }
        let (mut shown, mut missing) = (Vec::new(), None);
        for (goal, text) in goals {
            let mut facts = self.facts.clone();
            for poly in goal.sides() {
                self.prover.note_signs(poly, &mut facts);
            }
            if goal.holds(self.prover, &facts) {
                if !text.is_empty() && !goal.is_given(self.prover, &self.facts) {
                    shown.push(text);
                }
            } else if goal.fails(self.prover, &facts) {
                let text = format!("it never reaches the slot: {text} never holds");
                raise.steps.push(Step { lemma: Some(Lemma::Arithmetic), text });
                return Ok(false);
            } else {
                missing.get_or_insert(text);
            }
        }
        if let Some(text) = missing {
            return Err(format!("{text} is not shown"));
        }
        if !shown.is_empty() {
            let text = format!("it is there: {}", shown.join(", "));
            raise.steps.push(Step { lemma: Some(Lemma::Arithmetic), text });
        }
        Ok(true)
    }
}

/// What has to be shown.
enum Goal {
    AtMost(Poly, Poly),
    Less(Poly, Poly),
    Equal(Poly, Poly),
    Unequal(Poly, Poly),
}

impl Goal {
    fn sides(&self) -> [&Poly; 2] {
        let (Goal::AtMost(a, b) | Goal::Less(a, b) | Goal::Equal(a, b) | Goal::Unequal(a, b)) =
            self;
        [a, b]
    }

    /// Whether it needs no argument.
    fn is_given(&self, prover: &Prover, facts: &Facts) -> bool {
        match self {
            Goal::AtMost(a, b) => prover.is_given(&(b - a), facts),
            Goal::Less(a, b) => prover.is_given(&below(a, b), facts),
            Goal::Equal(a, b) => a == b,
            Goal::Unequal(..) => false,
        }
    }

    fn holds(&self, prover: &mut Prover, facts: &Facts) -> bool {
        match self {
            Goal::AtMost(a, b) => prover.prove(&(b - a), facts),
            Goal::Less(a, b) => prover.prove(&below(a, b), facts),
            Goal::Equal(a, b) => prover.prove_zero(&(a - b), facts),
            Goal::Unequal(a, b) => prover.prove_unequal(&(a - b), facts),
        }
    }

    fn fails(&self, prover: &mut Prover, facts: &Facts) -> bool {
        match self {
            Goal::AtMost(a, b) => prover.prove(&below(b, a), facts),
            Goal::Less(a, b) => prover.prove(&(a - b), facts),
            Goal::Equal(a, b) => prover.prove_unequal(&(a - b), facts),
            Goal::Unequal(a, b) => prover.prove_zero(&(a - b), facts),
        }
    }
}

/// `poly` with atoms replaced, inside others too.
fn substitute(prover: &mut Prover, by: &Solution, poly: &Poly) -> Result<Poly, String> {
    let atoms: Vec<Atom> = by.keys().copied().collect();
    let mut done = by.clone();
    // Atoms are older than those they are part of.
    for atom in prover.atoms.closure([poly]) {
        if done.contains_key(&atom) {
            continue;
        }
        let value = match prover.atoms.kind(atom).clone() {
            AtomKind::Name(_) => continue,
            _ if !prover.atoms.mentions(&Poly::atom(atom), &atoms) => continue,
            AtomKind::Div(a, b) => {
                let (a, b) = (replace(&done, &a)?, replace(&done, &b)?);
                prover.quotient(a, b)?
            }
            AtomKind::Min(a, b) => prover.atoms.min(replace(&done, &a)?, replace(&done, &b)?),
            AtomKind::Max(a, b) => prover.atoms.max(replace(&done, &a)?, replace(&done, &b)?),
        };
        done.insert(atom, value);
    }
    replace(&done, poly)
}

/// `poly` with atoms replaced where they are factors.
fn replace(by: &Solution, poly: &Poly) -> Result<Poly, String> {
    let mut sum = Poly::default();
    for (monomial, coefficient) in poly.terms() {
        let mut term = Poly::int(coefficient);
        for atom in monomial.atoms() {
            let factor = by.get(&atom).cloned().unwrap_or_else(|| Poly::atom(atom));
            term = term.times(&factor).ok_or_else(too_large)?;
        }
        sum = &sum + &term;
    }
    sum.bounded().ok_or_else(too_large)
}
