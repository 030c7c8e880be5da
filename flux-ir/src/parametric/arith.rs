//! Integer arithmetic on normal forms: shows that a polynomial is never negative.
//!
//! A goal `p >= 0` is proved by refuting its negation `-p - 1 >= 0` together with the facts at
//! hand. The steps that have to be trusted are few, and sound for all integers:
//!
//! | step | gives |
//! |---|---|
//! | definition of `q = a / b`, `b >= 1` | `a - b q >= 0`, `b q + b - 1 - a >= 0` |
//! | definition of `v = min(a, b)` | `a - v >= 0`, `b - v >= 0` |
//! | definition of `v = max(a, b)` | `v - a >= 0`, `v - b >= 0` |
//! | product of facts | `p >= 0`, `q >= 0` give `p q >= 0` |
//! | case | `p >= 0` or `-p - 1 >= 0`; a minimum or maximum is one of its operands |
//! | refutation | multipliers that `simplex::holds` accepts |
//!
//! Which products and cases are tried is a matter of search and needs no trust.

use super::poly::{Atom, AtomKind, Atoms, Poly};
use super::simplex::System;

/// What holds in a context.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// Each is at least 0.
    pub(super) nonneg: Vec<Poly>,
    /// Each is not 0.
    pub(super) unequal: Vec<Poly>,
    /// Cases worth telling apart: at least 0, or less.
    pub(super) cases: Vec<Poly>,
    /// At least 0, and worth multiplying facts with.
    factors: Vec<Poly>,
}

/// At least 0 where `a < b`.
pub(super) fn below(a: &Poly, b: &Poly) -> Poly {
    &(b - a) - &Poly::int(1)
}

/// At least 0 where `fact` is not.
fn negation(fact: &Poly) -> Poly {
    &-fact - &Poly::int(1)
}

/// Cases of one goal.
const ATTEMPT_LIMIT: usize = 200;

/// Products of facts in one attempt.
const PRODUCT_LIMIT: usize = 4000;

/// Row operations of all searches for one Program: twenty times what a shipped kernel takes.
const FUEL: u64 = 500_000_000;

/// What each goal costs at least.
const GOAL_COST: u64 = 5000;

/// Proves goals and keeps what holds on every launch.
#[derive(Debug)]
pub(super) struct Prover {
    pub(super) atoms: Atoms,
    /// Facts of every launch: bounds of symbols, divisors that are positive.
    known: Vec<Poly>,
    /// Refutations that were found and checked.
    pub(super) refutations: usize,
    /// What is left for searches.
    pub(super) fuel: u64,
    attempts: usize,
}

impl Default for Prover {
    fn default() -> Self {
        Prover {
            atoms: Atoms::default(),
            known: Vec::new(),
            refutations: 0,
            fuel: FUEL,
            attempts: 0,
        }
    }
}

/// Two cases of which one holds.
type Split = (Poly, Poly);

impl Prover {
    /// A symbol that is at least `least`.
    pub(super) fn symbol(&mut self, name: &str, least: i128) -> Poly {
        let symbol = Poly::atom(self.atoms.name(name));
        self.know(&symbol - &Poly::int(least));
        symbol
    }

    /// Adds what holds on every launch. The caller has a reason.
    pub(super) fn know(&mut self, fact: Poly) {
        if !self.known.contains(&fact) {
            self.known.push(fact);
        }
    }

    /// Whether `goal >= 0` is one of the facts.
    pub(super) fn is_given(&self, goal: &Poly, facts: &Facts) -> bool {
        let trivial = goal.as_int().is_some_and(|value| value >= 0);
        trivial || facts.nonneg.contains(goal) || self.known.contains(goal)
    }

    /// Whether `goal >= 0` follows from `facts`.
    pub(super) fn prove(&mut self, goal: &Poly, facts: &Facts) -> bool {
        match goal.as_int() {
            Some(value) if value >= 0 => true,
            _ => self.refute(facts, vec![negation(goal)]),
        }
    }

    /// Whether `goal = 0` follows from `facts`.
    pub(super) fn prove_zero(&mut self, goal: &Poly, facts: &Facts) -> bool {
        goal.is_zero() || (self.prove(goal, facts) && self.prove(&-goal, facts))
    }

    /// Whether `goal != 0` follows from `facts`.
    pub(super) fn prove_unequal(&mut self, goal: &Poly, facts: &Facts) -> bool {
        match goal.as_int() {
            Some(value) => value != 0 || self.refute(facts, Vec::new()),
            None => self.refute(facts, vec![goal.clone(), -goal]),
        }
    }

    /// `a / b` rounded down, where `b >= 1` on every launch.
    pub(super) fn quotient(&mut self, a: Poly, b: Poly) -> Result<Poly, String> {
        let positive = &b - &Poly::int(1);
        if !self.known.contains(&positive) {
            if !self.prove(&positive, &Facts::default()) && !self.prove_product(&positive) {
                return Err(format!("the divisor {} may be 0", self.atoms.show(&b)));
            }
            if b.as_int().is_none() {
                self.know(positive);
            }
        }
        Ok(self.atoms.quotient(a, b))
    }

    /// [`Prover::prove`] on every launch, for a product of what is positive.
    fn prove_product(&mut self, goal: &Poly) -> bool {
        let mut facts = Facts::default();
        for atom in self.atoms.closure([goal]) {
            let atom = Poly::atom(atom);
            let positive = &atom - &Poly::int(1);
            if self.prove(&positive, &Facts::default()) {
                facts.nonneg.push(positive);
                facts.factors.push(atom);
            }
        }
        self.prove(goal, &facts)
    }

    /// Adds to `facts` that each atom of `poly` is at least 0 where that can be shown; products
    /// of such atoms are then known to be so, too.
    pub(super) fn note_signs(&mut self, poly: &Poly, facts: &mut Facts) {
        let cases = std::mem::take(&mut facts.cases);
        for atom in self.atoms.closure([poly]) {
            let fact = Poly::atom(atom);
            if facts.nonneg.contains(&fact) || self.known.contains(&fact) {
                continue;
            }
            let plausible = match self.atoms.kind(atom).clone() {
                AtomKind::Name(_) => false,
                AtomKind::Div(a, _) => self.prove(&a, facts),
                AtomKind::Min(..) | AtomKind::Max(..) => true,
            };
            if plausible && self.prove(&fact, facts) {
                facts.nonneg.push(fact);
            }
        }
        facts.cases = cases;
    }

    /// Lets facts be multiplied by `factor` where that can be shown to be at least 0.
    pub(super) fn add_factor(&mut self, factor: Poly, facts: &mut Facts) {
        let useful = factor.as_int().is_none() && !facts.factors.contains(&factor);
        if useful && self.prove(&factor, facts) {
            facts.factors.push(factor);
        }
    }

    /// Whether the facts and `hypothesis` contradict each other.
    fn refute(&mut self, facts: &Facts, hypothesis: Vec<Poly>) -> bool {
        let mut splits: Vec<Split> = Vec::new();
        let less = |p: &Poly| &-p - &Poly::int(1);
        splits.extend(facts.cases.iter().map(|p| (p.clone(), less(p))));
        splits.extend(facts.unequal.iter().map(|p| (p - &Poly::int(1), less(p))));
        let near = self.atoms.closure(&hypothesis);
        let far = self.atoms.closure(self.known.iter().chain(&facts.nonneg));
        let far = far.into_iter().rev().filter(|atom| !near.contains(atom));
        // Newer atoms are made of older ones.
        let atoms = near.iter().rev().copied().chain(far);
        splits.extend(atoms.filter_map(|atom| self.operands(atom)));
        splits.reverse();
        self.fuel = self.fuel.saturating_sub(GOAL_COST);
        if self.fuel == 0 {
            return false;
        }
        let mut plain = self.plain(facts, &hypothesis);
        if plain.system.is_refuted(&mut self.fuel) {
            self.refutations += 1;
            return true;
        }
        [false, true].into_iter().filter(|far| !far || !facts.cases.is_empty()).any(|far| {
            self.attempts = ATTEMPT_LIMIT;
            plain.far = far;
            let mut search = plain.clone();
            search.scale_all(facts, &hypothesis);
            self.refute_cases(&mut search, &splits)
        })
    }

    /// Collects what a refutation may use, without products.
    fn plain(&self, facts: &Facts, hypothesis: &[Poly]) -> Search {
        let mut system = System::default();
        for fact in self.known.iter().chain(hypothesis).chain(&facts.nonneg) {
            system.push(fact.clone());
        }
        let mut divisors = facts.factors.clone();
        let mut definitions = Vec::new();
        for atom in self.atoms.closure(system.facts()) {
            self.define(atom, &mut definitions, &mut divisors);
        }
        for definition in &definitions {
            system.push(definition.clone());
        }
        let signs = system.facts().iter().filter_map(at_least_zero).collect();
        Search { system, definitions, divisors, far: false, signs }
    }

    /// A minimum or maximum is one of its operands.
    fn operands(&self, atom: Atom) -> Option<Split> {
        let value = Poly::atom(atom);
        match self.atoms.kind(atom) {
            AtomKind::Min(a, b) => Some((&value - a, &value - b)),
            AtomKind::Max(a, b) => Some((a - &value, b - &value)),
            AtomKind::Name(_) | AtomKind::Div(..) => None,
        }
    }

    /// Refutes the facts of `search` in all cases, the last split first.
    fn refute_cases(&mut self, search: &mut Search, splits: &[Split]) -> bool {
        if self.attempts == 0 || self.fuel == 0 {
            return false;
        }
        self.attempts -= 1;
        if search.system.is_refuted(&mut self.fuel) {
            self.refutations += 1;
            return true;
        }
        let Some(((first, second), splits)) = splits.split_last() else { return false };
        let len = search.system.facts().len();
        [first, second].into_iter().all(|case| {
            search.system.push(case.clone());
            search.scale(std::slice::from_ref(case), search.far);
            let refuted = self.refute_cases(search, splits);
            search.system.truncate(len);
            refuted
        })
    }

    /// The facts that define `atom`, and its divisor where that is no number.
    fn define(&self, atom: Atom, facts: &mut Vec<Poly>, divisors: &mut Vec<Poly>) {
        let value = Poly::atom(atom);
        match self.atoms.kind(atom) {
            AtomKind::Name(_) => {}
            AtomKind::Min(a, b) => facts.extend([a - &value, b - &value]),
            AtomKind::Max(a, b) => facts.extend([&value - a, &value - b]),
            AtomKind::Div(a, b) => {
                if let Some(multiple) = b.times(&value) {
                    facts.extend([a - &multiple, &(&multiple - a) + &(b - &Poly::int(1))]);
                }
                if b.as_int().is_none() && !divisors.contains(b) {
                    divisors.push(b.clone());
                }
            }
        }
    }
}

/// What a refutation may use.
#[derive(Clone)]
struct Search {
    /// Facts, the cases at hand, definitions of all atoms, and products.
    system: System,
    definitions: Vec<Poly>,
    /// Each is at least 0.
    divisors: Vec<Poly>,
    /// Whether definitions are multiplied, too, and hypothesis and cases once more.
    far: bool,
    /// Atoms that are at least 0.
    signs: Vec<Atom>,
}

impl Search {
    /// Adds products of hypothesis, facts and, far off, definitions.
    fn scale_all(&mut self, facts: &Facts, hypothesis: &[Poly]) {
        let definitions = if self.far { self.definitions.clone() } else { Vec::new() };
        let many = facts.nonneg.len() + definitions.len() + hypothesis.len();
        if self.divisors.len() * many <= PRODUCT_LIMIT {
            self.scale(hypothesis, self.far);
            self.scale(&facts.nonneg, false);
            self.scale(&definitions, false);
        }
    }

    /// Adds products of facts with divisors, and `again` of these with divisors.
    fn scale(&mut self, facts: &[Poly], again: bool) {
        let products = |facts: &[Poly]| -> Vec<Poly> {
            let pairs = facts.iter().flat_map(|fact| self.divisors.iter().map(move |d| (fact, d)));
            pairs.filter_map(|(fact, divisor)| fact.times(divisor)).collect()
        };
        let mut scaled = products(facts);
        if again {
            scaled.extend(products(&scaled));
        }
        // A monomial whose atoms are all at least 0 is so, too.
        let monomials = facts.iter().chain(&scaled).flat_map(|p| p.terms().map(|(m, _)| m));
        let mut monomials: Vec<_> = monomials.filter(|m| m.degree() > 1).collect();
        monomials.retain(|m| m.atoms().all(|atom| self.signs.contains(&atom)));
        scaled.extend(monomials.into_iter().map(|m| Poly::term(1, m)));
        scaled.sort_unstable();
        scaled.dedup();
        scaled.into_iter().for_each(|fact| self.system.push(fact));
    }
}

/// The atom that `fact` alone shows to be at least 0.
fn at_least_zero(fact: &Poly) -> Option<Atom> {
    let constant = fact.constant();
    (fact + &Poly::int(-constant)).as_atom().filter(|_| constant <= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_obey_their_definition() {
        let mut prover = Prover::default();
        let [m, world] = ["M", "world"].map(|name| prover.symbol(name, 1));
        let up = &(&m + &world) - &Poly::int(1);
        let shard = prover.quotient(up, world.clone()).expect("world >= 1");
        let none = Facts::default();
        assert!(prover.prove(&(&shard - &Poly::int(1)), &none), "ceil(M / world) >= 1");
        let all = shard.times(&world).expect("small");
        assert!(prover.prove(&(&all - &m), &none), "the shards hold all rows");
        assert!(!prover.prove(&(&m - &all), &none), "and may hold more");
        let zero = prover.quotient(m.clone(), &m - &world);
        assert_eq!(zero.expect_err("M may be world"), "the divisor M - world may be 0");
    }

    #[test]
    fn a_minimum_is_one_of_its_operands() {
        let mut prover = Prover::default();
        let [a, b] = ["a", "b"].map(|name| prover.symbol(name, 2));
        let least = prover.atoms.min(a.clone(), b.clone());
        let none = Facts::default();
        assert!(prover.prove(&(&least - &Poly::int(2)), &none));
        assert!(prover.prove(&(&a - &least), &none));
        assert!(!prover.prove(&(&least - &a), &none));
        let apart = Facts { unequal: vec![&a - &b], ..Facts::default() };
        assert!(prover.prove_unequal(&(&b - &a), &apart));
        assert!(!prover.prove_unequal(&(&b - &a), &none));
    }
}
