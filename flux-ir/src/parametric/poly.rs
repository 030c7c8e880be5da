//! Polynomials with integer coefficients over atoms: the normal form of index expressions.
//!
//! An **atom** is a symbol, a variable, or a quotient, minimum or maximum of polynomials. Equal
//! atoms are one (they are interned), so two expressions with one normal form are equal for all
//! values of their variables. Remainders and quotients rounded up are written by quotients
//! rounded down.

use std::collections::BTreeMap;
use std::ops::{Add, Neg, Sub};

/// A handle of an atom.
pub(super) type Atom = u32;

/// A product of at most [`DEGREE_LIMIT`] atoms: each atom's successor, in falling order, then
/// zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Monomial([u32; DEGREE_LIMIT]);

impl Monomial {
    /// The empty product.
    pub(super) const ONE: Monomial = Monomial([0; DEGREE_LIMIT]);

    pub(super) fn is_one(&self) -> bool {
        self.0[0] == 0
    }

    pub(super) fn degree(&self) -> usize {
        self.0.iter().take_while(|&&factor| factor != 0).count()
    }

    pub(super) fn atoms(&self) -> impl Iterator<Item = Atom> + Clone {
        self.0.into_iter().take_while(|&factor| factor != 0).map(|factor| factor - 1)
    }

    /// `None` where there would be too many atoms.
    fn times(&self, other: &Monomial) -> Option<Monomial> {
        let mut product = Monomial::ONE;
        let (mut left, mut right) = (self.atoms().peekable(), other.atoms().peekable());
        for slot in &mut product.0 {
            let next = if left.peek() >= right.peek() { left.next() } else { right.next() };
            match next {
                Some(atom) => *slot = atom + 1,
                None => return Some(product),
            }
        }
        (left.next().is_none() && right.next().is_none()).then_some(product)
    }

    /// Without one factor `atom`, if it is there.
    fn without(&self, atom: Atom) -> Option<Monomial> {
        let at = self.0.iter().position(|&factor| factor == atom + 1)?;
        let mut rest = *self;
        rest.0[at..].rotate_left(1);
        rest.0[DEGREE_LIMIT - 1] = 0;
        Some(rest)
    }
}

/// What an atom stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AtomKind {
    /// A symbol or a variable. Interned by number: two variables may share a name.
    Name(String),
    /// Quotient rounded down, the divisor at least 1.
    Div(Poly, Poly),
    /// The smaller.
    Min(Poly, Poly),
    /// The larger.
    Max(Poly, Poly),
}

/// A sum of monomials in rising order, with coefficients other than 0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Poly(Vec<(Monomial, i128)>);

/// Coefficients stay below this, polynomials within this many terms: sums of products of two then
/// fit 128 bits with much to spare, and a hostile expression stays small.
const COEFFICIENT_LIMIT: i128 = 1 << 40;
const TERM_LIMIT: usize = 96;
const DEGREE_LIMIT: usize = 8;

impl Poly {
    pub(super) fn int(value: i128) -> Poly {
        Poly::term(value, Monomial::ONE)
    }

    pub(super) fn atom(atom: Atom) -> Poly {
        let mut monomial = Monomial::ONE;
        monomial.0[0] = atom + 1;
        Poly::term(1, monomial)
    }

    pub(super) fn term(coefficient: i128, monomial: Monomial) -> Poly {
        Poly::collect(vec![(monomial, coefficient)])
    }

    /// The sum of `terms`.
    fn collect(mut terms: Vec<(Monomial, i128)>) -> Poly {
        terms.sort_unstable_by_key(|(monomial, _)| *monomial);
        terms.dedup_by(|next, sum| {
            let same = next.0 == sum.0;
            sum.1 += if same { next.1 } else { 0 };
            same
        });
        terms.retain(|(_, coefficient)| *coefficient != 0);
        Poly(terms)
    }

    /// Monomials and coefficients, the constant first.
    pub(super) fn terms(&self) -> impl Iterator<Item = (Monomial, i128)> {
        self.0.iter().copied()
    }

    pub(super) fn constant(&self) -> i128 {
        self.0.first().filter(|(monomial, _)| monomial.is_one()).map_or(0, |(_, number)| *number)
    }

    /// The number this is, if it is one.
    pub(super) fn as_int(&self) -> Option<i128> {
        let is_int = self.0.iter().all(|(monomial, _)| monomial.is_one());
        is_int.then(|| self.constant())
    }

    /// The atom this is, if it is one.
    pub(super) fn as_atom(&self) -> Option<Atom> {
        match self.0[..] {
            [(monomial, 1)] if monomial.degree() == 1 => monomial.atoms().next(),
            _ => None,
        }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Every atom of a monomial, with repetition.
    pub(super) fn atoms(&self) -> impl Iterator<Item = Atom> {
        self.0.iter().flat_map(|(monomial, _)| monomial.atoms())
    }

    /// `factor * self`, for a factor of moderate size.
    pub(super) fn scale(&self, factor: i128) -> Poly {
        match factor {
            0 => Poly::default(),
            _ => Poly(self.terms().map(|(monomial, number)| (monomial, number * factor)).collect()),
        }
    }

    /// The product; `None` where it grows beyond the limits.
    pub(super) fn times(&self, other: &Poly) -> Option<Poly> {
        let mut product = Vec::with_capacity(self.0.len() * other.0.len());
        for (left, a) in self.terms() {
            for (right, b) in other.terms() {
                product.push((left.times(&right)?, a * b));
            }
        }
        Poly::collect(product).bounded()
    }

    /// This, if it is within the limits.
    pub(super) fn bounded(self) -> Option<Poly> {
        let small = |(_, coefficient): (Monomial, i128)| coefficient.abs() < COEFFICIENT_LIMIT;
        (self.0.len() <= TERM_LIMIT && self.terms().all(small)).then_some(self)
    }

    /// `(c, rest)` with `self = c * atom + rest`, `atom` in neither monomials of `c` nor of
    /// `rest`; `None` where a power of it occurs.
    pub(super) fn linear_in(&self, atom: Atom) -> Option<(Poly, Poly)> {
        let (mut factor, mut rest) = (Vec::new(), Vec::new());
        for (monomial, coefficient) in self.terms() {
            match monomial.without(atom) {
                None => rest.push((monomial, coefficient)),
                Some(others) if others.without(atom).is_none() => {
                    factor.push((others, coefficient));
                }
                Some(_) => return None,
            }
        }
        Some((Poly::collect(factor), Poly::collect(rest)))
    }

    /// What the terms of `self` that the leading term of `by` divides give when divided by it.
    /// Untrusted: a candidate for a quotient.
    pub(super) fn leading_quotient(&self, by: &Poly) -> Poly {
        let Some((lead, scale)) = by.terms().max_by_key(|(monomial, _)| monomial.degree()) else {
            return Poly::default();
        };
        let divided = self.terms().filter_map(|(monomial, coefficient)| {
            let left = lead.atoms().try_fold(monomial, |left, atom| left.without(atom))?;
            (coefficient % scale == 0).then_some((left, coefficient / scale))
        });
        Poly::collect(divided.collect())
    }
}

impl Add for &Poly {
    type Output = Poly;
    fn add(self, other: &Poly) -> Poly {
        Poly::collect(self.terms().chain(other.terms()).collect())
    }
}

impl Sub for &Poly {
    type Output = Poly;
    fn sub(self, other: &Poly) -> Poly {
        self + &-other
    }
}

impl Neg for &Poly {
    type Output = Poly;
    fn neg(self) -> Poly {
        self.scale(-1)
    }
}

/// Every atom in use, and the names that atoms are shown by.
#[derive(Debug, Default)]
pub(super) struct Atoms {
    kinds: Vec<AtomKind>,
    depths: Vec<usize>,
    interned: BTreeMap<AtomKind, Atom>,
    /// Definitions of the Program: what is shown instead of a polynomial.
    aliases: BTreeMap<Poly, String>,
}

impl Atoms {
    /// A new symbol or variable.
    pub(super) fn name(&mut self, name: impl Into<String>) -> Atom {
        self.push(AtomKind::Name(name.into()))
    }

    pub(super) fn kind(&self, atom: Atom) -> &AtomKind {
        &self.kinds[atom as usize]
    }

    fn push(&mut self, kind: AtomKind) -> Atom {
        self.depths.push(match &kind {
            AtomKind::Name(_) => 0,
            AtomKind::Div(a, b) | AtomKind::Min(a, b) | AtomKind::Max(a, b) => {
                1 + self.depth(a).max(self.depth(b))
            }
        });
        self.kinds.push(kind);
        (self.kinds.len() - 1) as Atom
    }

    fn intern(&mut self, kind: AtomKind) -> Poly {
        let atom = match self.interned.get(&kind) {
            Some(&atom) => atom,
            None => {
                let atom = self.push(kind.clone());
                self.interned.insert(kind, atom);
                atom
            }
        };
        Poly::atom(atom)
    }

    /// `floor(a / b)`. The caller has shown `b >= 1`.
    pub(super) fn quotient(&mut self, a: Poly, b: Poly) -> Poly {
        match (a.as_int(), b.as_int()) {
            (_, Some(1)) => a,
            (Some(a), Some(b)) => Poly::int(a.div_euclid(b)),
            _ => self.intern(AtomKind::Div(a, b)),
        }
    }

    pub(super) fn min(&mut self, a: Poly, b: Poly) -> Poly {
        match (&a - &b).as_int() {
            Some(difference) if difference <= 0 => a,
            Some(_) => b,
            None => {
                let (a, b) = if a <= b { (a, b) } else { (b, a) };
                self.intern(AtomKind::Min(a, b))
            }
        }
    }

    pub(super) fn max(&mut self, a: Poly, b: Poly) -> Poly {
        match (&a - &b).as_int() {
            Some(difference) if difference >= 0 => a,
            Some(_) => b,
            None => {
                let (a, b) = if a <= b { (a, b) } else { (b, a) };
                self.intern(AtomKind::Max(a, b))
            }
        }
    }

    /// Whether `poly` depends on any of `wanted`.
    pub(super) fn mentions(&self, poly: &Poly, wanted: &[Atom]) -> bool {
        self.closure([poly]).iter().any(|atom| wanted.contains(atom))
    }

    /// How deep quotients, minima and maxima are nested in `poly`.
    pub(super) fn depth(&self, poly: &Poly) -> usize {
        poly.atoms().map(|atom| self.depths[atom as usize]).max().unwrap_or(0)
    }

    /// Every atom that `polys` are made of, those inside others too, in order of creation.
    pub(super) fn closure<'p>(&self, polys: impl IntoIterator<Item = &'p Poly>) -> Vec<Atom> {
        let mut seen = vec![false; self.kinds.len()];
        let mut pending: Vec<Atom> = polys.into_iter().flat_map(Poly::atoms).collect();
        while let Some(atom) = pending.pop() {
            if std::mem::replace(&mut seen[atom as usize], true) {
                continue;
            }
            match self.kind(atom) {
                AtomKind::Name(_) => {}
                AtomKind::Div(a, b) | AtomKind::Min(a, b) | AtomKind::Max(a, b) => {
                    pending.extend(a.atoms().chain(b.atoms()));
                }
            }
        }
        (0..seen.len() as Atom).filter(|&atom| seen[atom as usize]).collect()
    }

    /// Shows `poly` as `name` from now on.
    pub(super) fn alias(&mut self, poly: &Poly, name: String) {
        if poly.as_int().is_none() && poly.as_atom().is_none_or(|atom| !self.is_name(atom)) {
            self.aliases.entry(poly.clone()).or_insert(name);
        }
    }

    fn is_name(&self, atom: Atom) -> bool {
        matches!(self.kind(atom), AtomKind::Name(_))
    }

    /// `poly` as text, cut where it grows long.
    pub(super) fn show(&self, poly: &Poly) -> String {
        let mut text = String::new();
        self.write(poly, &mut text);
        text
    }

    fn write(&self, poly: &Poly, text: &mut String) {
        if let Some(name) = self.aliases.get(poly) {
            return text.push_str(name);
        }
        // Positive terms first, the constant last.
        let mut terms: Vec<_> = poly.terms().collect();
        terms.sort_by_key(|(monomial, coefficient)| (monomial.is_one(), *coefficient < 0));
        for (at, (monomial, coefficient)) in terms.iter().enumerate() {
            if text.len() > TEXT_LIMIT {
                return text.push('…');
            }
            text.push_str(match (*coefficient < 0, at == 0) {
                (true, true) => "-",
                (false, true) => "",
                (true, false) => " - ",
                (false, false) => " + ",
            });
            for (nth, atom) in monomial.atoms().enumerate() {
                text.push_str(if nth == 0 { "" } else { " * " });
                self.write_atom(atom, text);
            }
            let number = coefficient.unsigned_abs();
            if monomial.is_one() {
                text.push_str(&number.to_string());
            } else if number != 1 {
                text.push_str(&format!(" * {number}"));
            }
        }
        if terms.is_empty() {
            text.push('0');
        }
    }

    fn write_atom(&self, atom: Atom, text: &mut String) {
        if let Some(name) = self.aliases.get(&Poly::atom(atom)) {
            return text.push_str(name);
        }
        let (open, a, between, b) = match self.kind(atom) {
            AtomKind::Name(name) => return text.push_str(name),
            AtomKind::Min(a, b) => ("min(", a, ", ", b),
            AtomKind::Max(a, b) => ("max(", a, ", ", b),
            AtomKind::Div(a, b) => {
                let up = &(a - b) + &Poly::int(1);
                let rounds_up = b.as_int().is_none_or(|b| a.constant() % b == b - 1);
                if rounds_up && up.terms().count() < a.terms().count().max(2) {
                    text.push_str("ceil(");
                    self.write(&up, text);
                    text.push_str(" / ");
                    self.write_operand(b, text);
                } else {
                    text.push('(');
                    self.write_operand(a, text);
                    text.push_str(" / ");
                    self.write_operand(b, text);
                }
                return text.push(')');
            }
        };
        text.push_str(open);
        self.write(a, text);
        text.push_str(between);
        self.write(b, text);
        text.push(')');
    }

    /// As an operand of a quotient.
    fn write_operand(&self, poly: &Poly, text: &mut String) {
        let one = poly.terms().count() <= 1 && poly.atoms().count() <= 1;
        if one || self.aliases.contains_key(poly) {
            return self.write(poly, text);
        }
        text.push('(');
        self.write(poly, text);
        text.push(')');
    }
}

/// Texts end soon after so many bytes.
const TEXT_LIMIT: usize = 400;
