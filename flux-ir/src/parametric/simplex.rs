//! Linear arithmetic: shows that facts contradict each other.
//!
//! A **refutation** of facts `f_i >= 0` is a choice of multipliers `l_i >= 0` for which
//! `sum l_i * f_i` is a negative number (every monomial cancels). [`System::refute`] searches one
//! by the simplex method, each monomial being a variable of its own; [`holds`] is all that has to
//! be trusted.

use super::poly::{Monomial, Poly};
use std::collections::{BTreeMap, HashMap};

/// Multipliers of facts, by their index.
pub(super) type Refutation = Vec<(usize, i128)>;

/// Whether `refutation` refutes `facts`.
pub(super) fn holds(facts: &[Poly], refutation: &Refutation) -> bool {
    let mut sum: BTreeMap<Monomial, i128> = BTreeMap::new();
    for &(index, multiplier) in refutation {
        let Some(fact) = facts.get(index) else { return false };
        if multiplier < 0 {
            return false;
        }
        for (monomial, coefficient) in fact.terms() {
            let entry = sum.entry(monomial).or_default();
            let term = coefficient.checked_mul(multiplier);
            match term.and_then(|term| entry.checked_add(term)) {
                Some(total) => *entry = total,
                None => return false,
            }
        }
    }
    let constant = sum.remove(&Monomial::ONE).unwrap_or(0);
    constant < 0 && sum.values().all(|&total| total == 0)
}

/// Facts, and their monomials numbered.
#[derive(Debug, Clone, Default)]
pub(super) struct System {
    facts: Vec<Poly>,
    /// Each fact as (number of a monomial, coefficient), without its constant.
    sparse: Vec<Vec<(usize, i128)>>,
    /// Only looked up, never iterated.
    numbers: HashMap<Monomial, usize>,
}

impl System {
    pub(super) fn push(&mut self, fact: Poly) {
        let terms = fact.terms().filter(|(monomial, _)| !monomial.is_one());
        let sparse = terms.map(|(monomial, coefficient)| {
            let next = self.numbers.len();
            (*self.numbers.entry(monomial).or_insert(next), coefficient)
        });
        self.sparse.push(sparse.collect());
        self.facts.push(fact);
    }

    pub(super) fn facts(&self) -> &[Poly] {
        &self.facts
    }

    /// Drops every fact but the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        self.facts.truncate(len);
        self.sparse.truncate(len);
    }

    /// Whether a refutation is found, and holds. Takes what the search costs from `fuel`.
    pub(super) fn is_refuted(&self, fuel: &mut u64) -> bool {
        self.refute(fuel).is_some_and(|refutation| holds(&self.facts, &refutation))
    }

    /// Searches a refutation.
    fn refute(&self, fuel: &mut u64) -> Option<Refutation> {
        burn(fuel, 16 * self.facts.len())?;
        let kept = cancelling(&self.sparse, self.numbers.len());
        // The columns of the monomials that are left.
        let (mut columns, mut width) = (vec![usize::MAX; self.numbers.len()], 0);
        for &(number, _) in kept.iter().flat_map(|&index| &self.sparse[index]) {
            if columns[number] == usize::MAX {
                columns[number] = width;
                width += 1;
            }
        }
        let rows = kept.iter().enumerate().map(|(row, &index)| {
            let mut factors = vec![0; width];
            for &(number, coefficient) in &self.sparse[index] {
                factors[columns[number]] = coefficient;
            }
            Row { var: width + row, scale: 1, factors, constant: self.facts[index].constant() }
        });
        let mut dictionary =
            Dictionary { monomials: width, nonbasic: (0..width).collect(), rows: rows.collect() };
        let multipliers = dictionary.conflict(fuel)?;
        Some(multipliers.into_iter().map(|(slack, by)| (kept[slack - width], by)).collect())
    }
}

/// Takes `cost` from `fuel`; `None` where it runs out.
fn burn(fuel: &mut u64, cost: usize) -> Option<()> {
    *fuel = fuel.saturating_sub(cost as u64);
    (*fuel > 0).then_some(())
}

/// The facts that a refutation can use: one with a monomial that no other fact cancels is out.
fn cancelling(facts: &[Vec<(usize, i128)>], monomials: usize) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..facts.len()).collect();
    loop {
        let mut signs = vec![(false, false); monomials];
        for &(column, coefficient) in kept.iter().flat_map(|&index| &facts[index]) {
            signs[column].0 |= coefficient > 0;
            signs[column].1 |= coefficient < 0;
        }
        let before = kept.len();
        kept.retain(|&index| facts[index].iter().all(|(column, _)| signs[*column] == (true, true)));
        if kept.len() == before {
            return kept;
        }
    }
}

/// `scale * var = factors · nonbasic + constant`, where `scale > 0`.
struct Row {
    var: usize,
    scale: i128,
    factors: Vec<i128>,
    constant: i128,
}

/// Slacks (variables from `monomials` on, each the value of a fact, at least 0) by the variables
/// that are held at 0. Monomials are free: once one has left for a row, its row is dropped.
struct Dictionary {
    monomials: usize,
    /// The variable of each column.
    nonbasic: Vec<usize>,
    rows: Vec<Row>,
}

impl Dictionary {
    /// Slacks with the multipliers that refute, or `None` where there are none (or numbers grow
    /// beyond 128 bits, or fuel runs out).
    fn conflict(&mut self, fuel: &mut u64) -> Option<Vec<(usize, i128)>> {
        loop {
            burn(fuel, self.rows.len() * (self.nonbasic.len() + 1))?;
            let violated = self.rows.iter().enumerate().filter(|(_, row)| row.constant < 0);
            let (leaving, row) = violated.min_by_key(|(_, row)| row.var)?;
            // Bland's rule: the least variable that can raise the row.
            let can_raise = |&column: &usize| {
                row.factors[column] > 0
                    || (row.factors[column] != 0 && self.nonbasic[column] < self.monomials)
            };
            let columns = (0..self.nonbasic.len()).filter(can_raise);
            match columns.min_by_key(|&column| self.nonbasic[column]) {
                Some(entering) => self.pivot(leaving, entering)?,
                None => {
                    let others = self.nonbasic.iter().zip(&row.factors);
                    let others = others.filter(|(_, factor)| **factor != 0);
                    let mut multipliers = vec![(row.var, row.scale)];
                    multipliers.extend(others.map(|(&var, &factor)| (var, -factor)));
                    return Some(multipliers);
                }
            }
        }
    }

    /// Solves row `leaving` for the variable of column `entering` and puts it into the others.
    fn pivot(&mut self, leaving: usize, entering: usize) -> Option<()> {
        let mut solved = self.rows.swap_remove(leaving);
        let sign = solved.factors[entering].signum();
        let by = solved.factors[entering].abs();
        for factor in &mut solved.factors {
            *factor *= -sign;
        }
        solved.factors[entering] = sign * solved.scale;
        solved.constant *= -sign;
        solved.scale = by;
        std::mem::swap(&mut solved.var, &mut self.nonbasic[entering]);
        for row in &mut self.rows {
            row.substitute(entering, &solved)?;
        }
        if solved.var >= self.monomials {
            self.rows.push(solved);
        }
        Some(())
    }
}

impl Row {
    /// Replaces the variable of `column` by what `solved` says it is.
    fn substitute(&mut self, column: usize, solved: &Row) -> Option<()> {
        let factor = std::mem::take(&mut self.factors[column]);
        if factor == 0 {
            return Some(());
        }
        let combine = |own: i128, other: i128| match (own, other) {
            (0, 0) => Some(0),
            _ => own.checked_mul(solved.scale)?.checked_add(other.checked_mul(factor)?),
        };
        for (own, &other) in self.factors.iter_mut().zip(&solved.factors) {
            *own = combine(*own, other)?;
        }
        self.constant = combine(self.constant, solved.constant)?;
        self.scale = self.scale.checked_mul(solved.scale)?;
        let nonzero = self.factors.iter().filter(|factor| **factor != 0);
        let common = nonzero.fold(gcd(self.scale, self.constant), |common, &f| {
            if common == 1 { 1 } else { gcd(common, f) }
        });
        if common > 1 {
            self.factors.iter_mut().for_each(|factor| *factor /= common);
            self.constant /= common;
            self.scale /= common;
        }
        Some(())
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a as i128
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refute(facts: &[Poly]) -> Option<Refutation> {
        let mut system = System::default();
        facts.iter().for_each(|fact| system.push(fact.clone()));
        system.refute(&mut u64::MAX.clone())
    }

    #[test]
    fn a_chain_of_bounds_is_refuted_and_a_consistent_one_is_not() {
        let [x, y] = [0, 1].map(Poly::atom);
        let facts = [&x - &y, &y.scale(2) - &Poly::int(6), &Poly::int(2) - &x];
        let refutation = refute(&facts).expect("x >= y >= 3 and x <= 2");
        assert!(holds(&facts, &refutation));
        assert!(!holds(&facts[..2], &refutation), "the third fact is needed");
        assert!(refute(&facts[..2]).is_none());
    }

    #[test]
    fn multipliers_below_zero_prove_nothing() {
        let x = Poly::atom(0);
        let facts = [x.clone(), &x + &Poly::int(1)];
        assert!(!holds(&facts, &vec![(0, 1), (1, -1)]));
        assert!(!holds(&facts, &Vec::new()));
    }

    /// Every system of three facts in two variables with small coefficients: a refutation is found
    /// only where no point satisfies it, and is missing only where a rational point does.
    #[test]
    fn small_systems_are_decided() {
        let [x, y] = [0, 1].map(Poly::atom);
        let fact = |code: i128| {
            let (a, b, c) = (code % 3 - 1, code / 3 % 3 - 1, code / 9 % 5 - 2);
            &(&x.scale(a) + &y.scale(b)) + &Poly::int(c)
        };
        for code in 0..45i128.pow(3) {
            let codes = [code % 45, code / 45 % 45, code / 2025];
            let facts = codes.map(fact);
            // Solutions, if there are any, lie on a grid of halves within ±6.
            let satisfied = (-12..=12i128).any(|x2| {
                (-12..=12i128).any(|y2| {
                    codes.iter().all(|code| {
                        let (a, b, c) = (code % 3 - 1, code / 3 % 3 - 1, code / 9 % 5 - 2);
                        a * x2 + b * y2 + 2 * c >= 0
                    })
                })
            });
            let refutation = refute(&facts);
            assert_eq!(refutation.is_none(), satisfied, "{facts:?}");
            assert!(refutation.is_none_or(|r| holds(&facts, &r)));
        }
    }
}
