//! The lemmas of `docs/parametric.md`, each by brute force.

use super::arith::{Facts, Prover};
use super::poly::{AtomKind, Poly};
use crate::order::Order;
use crate::tile::{Grid, Ranks, Shape, TileShape, own_rows, shard_rows};
use proptest::prelude::*;

#[test]
fn rotation_takes_each_value_once() {
    for w in 1..=9i64 {
        for u in -20..=20i64 {
            for target in 0..w {
                for direction in [1, -1] {
                    let value = (direction * (target - u)).rem_euclid(w);
                    for (from, to) in (0..=w).flat_map(|from| (from..=w).map(move |to| (from, to)))
                    {
                        let found: Vec<i64> = (from..to)
                            .filter(|h| (u + direction * h).rem_euclid(w) == target)
                            .collect();
                        let within = (from..to).contains(&value);
                        assert_eq!(found, if within { vec![value] } else { vec![] });
                    }
                }
            }
        }
    }
}

#[test]
fn shared_steps_visit_each_tile_once() {
    for ctas in 1..=5u32 {
        for (m, n, world) in [(1, 1, 1), (5, 3, 2), (7, 4, 3), (12, 2, 5), (9, 9, 8)] {
            let shape = Shape { m, n, k: 1 };
            let grid = Grid::new(shape, TileShape { m: 2, n: 2, k: 1 }, world, world % 2 == 0);
            for order in Order::BUILT_IN {
                let table = order.table(&grid, Ranks { rank: world - 1, world }).expect("built in");
                let mut visited = Vec::new();
                for cta in 0..ctas {
                    let steps = (cta..grid.tiles()).step_by(ctas as usize);
                    visited.extend(steps.map(|step| table[step as usize]));
                }
                visited.sort();
                let tiles = (0..grid.rows).flat_map(|m| (0..grid.cols).map(move |n| (m, n)));
                let tiles: Vec<_> = tiles.map(|(m, n)| crate::tile::TileCoord { m, n }).collect();
                assert_eq!(visited, tiles, "{order}");
            }
        }
    }
}

#[test]
fn digits_are_quotients_and_remainders() {
    for stride in 1..=7i64 {
        for x in 0..=60i64 {
            let pairs = (0..=60).flat_map(|digit| (0..stride).map(move |rest| (digit, rest)));
            let found: Vec<_> = pairs.filter(|(digit, rest)| digit * stride + rest == x).collect();
            assert_eq!(found, [(x / stride, x % stride)]);
        }
    }
}

/// The slots `first..last` of a tile are slots of chunks that exist on their source rank, and those
/// chunks hold every row of the tile: whole and ragged shards, fewer rows than ranks.
#[test]
fn chunks_of_a_tile_exist_and_hold_its_rows() {
    for (m, world) in (1..=40u32).flat_map(|m| (1..=9).map(move |world| (m, world))) {
        let shard = shard_rows(m, world);
        for chunk_rows in [1, 2, 3, 5, 64] {
            let rows = chunk_rows.min(shard).max(1);
            let count = shard.div_ceil(rows);
            let chunk = |row: u32| row / shard * count + row % shard / rows;
            for tile in [1, 2, 3, 7] {
                for m0 in (0..m).step_by(tile as usize) {
                    let m1 = (m0 + tile).min(m);
                    let slots = chunk(m0)..chunk(m1 - 1) + 1;
                    for x in slots.clone() {
                        let (source, chunk) = (x / count, x % count);
                        assert!(source < world);
                        assert!(chunk < own_rows(m, Ranks { rank: source, world }).div_ceil(rows));
                    }
                    assert!((m0..m1).all(|row| slots.contains(&chunk(row))));
                }
            }
        }
    }
}

/// The loop over owners on the source's side and the condition on the owner's side name the same
/// pairs of owner and tile.
#[test]
fn owners_are_those_with_rows_of_the_tile() {
    for (m, world) in (1..=40u32).flat_map(|m| (1..=9).map(move |world| (m, world))) {
        let shard = shard_rows(m, world);
        for tile in [1, 2, 3, 7] {
            for m0 in (0..m).step_by(tile as usize) {
                let m1 = (m0 + tile).min(m);
                for rank in 0..world {
                    let named = (m0 / shard..(m1 - 1) / shard + 1).contains(&rank);
                    let (lo, hi) = ((rank * shard).max(m0), (rank * shard + shard).min(m1));
                    assert_eq!(named, lo < hi);
                }
            }
        }
    }
}

#[test]
fn totals_are_linear_in_the_epoch() {
    for (growth, lag) in (1..=4i64).flat_map(|growth| (0..=3).map(move |lag| (growth, lag))) {
        let (mut added, mut totals) = (0, vec![0]);
        for _ in 1..=6 {
            added += growth;
            totals.push(added);
        }
        for epoch in 1..=6i64 {
            let until = usize::try_from(epoch - lag).unwrap_or(0);
            assert_eq!(totals[until], (growth * (epoch - lag)).max(0));
        }
    }
}

/// Three symbols: `a`, `b` of 0 or more, `c` of 1 or more.
const LEAST: [i128; 3] = [0, 0, 1];

/// A random polynomial with quotients, minima and maxima, made as the bytes say.
fn made(
    prover: &mut Prover,
    symbols: &[Poly; 3],
    bytes: &mut impl Iterator<Item = u8>,
    depth: u32,
) -> Poly {
    let mut next = || bytes.next().unwrap_or(0);
    let (how, which) = (next(), next());
    if depth == 0 || how % 8 < 2 {
        return match which % 5 {
            3 => Poly::int((which / 5).into()),
            4 => Poly::int(-i128::from(which / 50)),
            symbol => symbols[usize::from(symbol)].clone(),
        };
    }
    let a = made(prover, symbols, bytes, depth - 1);
    let b = made(prover, symbols, bytes, depth - 1);
    match how % 8 {
        2 => &a + &b,
        3 => &a - &b,
        4 => a.times(&b).unwrap_or(a),
        5 => prover.atoms.min(a, b),
        6 => prover.atoms.max(a, b),
        _ => match prover.quotient(a.clone(), b.clone()) {
            Ok(quotient) => quotient,
            Err(_) => prover.quotient(a, symbols[2].clone()).expect("c is positive"),
        },
    }
}

fn value(prover: &Prover, poly: &Poly, symbols: &[Poly; 3], values: [i128; 3]) -> i128 {
    let atom = |atom| {
        let of = |poly| value(prover, poly, symbols, values);
        match prover.atoms.kind(atom) {
            AtomKind::Name(_) => {
                let at = symbols.iter().position(|symbol| symbol.as_atom() == Some(atom));
                values[at.expect("one of three symbols")]
            }
            AtomKind::Div(a, b) => of(a).div_euclid(of(b)),
            AtomKind::Min(a, b) => of(a).min(of(b)),
            AtomKind::Max(a, b) => of(a).max(of(b)),
        }
    };
    poly.terms()
        .map(|(monomial, number)| number * monomial.atoms().map(atom).product::<i128>())
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// 3000 random goals under random facts: what is proved holds wherever the facts do.
    #[test]
    fn what_is_proved_holds(bytes in proptest::collection::vec(any::<u8>(), 64), hinted: bool) {
        let mut prover = Prover::default();
        let names = ["a", "b", "c"];
        let symbols = [0, 1, 2].map(|at| prover.symbol(names[at], LEAST[at]));
        let mut bytes = bytes.into_iter();
        let mut facts = Facts::default();
        facts.nonneg.push(made(&mut prover, &symbols, &mut bytes, 2));
        facts.unequal.push(made(&mut prover, &symbols, &mut bytes, 1));
        if hinted {
            facts.cases.push(made(&mut prover, &symbols, &mut bytes, 1));
        }
        let goal = made(&mut prover, &symbols, &mut bytes, 3);
        let factor = made(&mut prover, &symbols, &mut bytes, 1);
        prover.note_signs(&goal, &mut facts);
        prover.add_factor(factor, &mut facts);
        let proved = prover.prove(&goal, &facts);
        let unequal = prover.prove_unequal(&goal, &facts);
        let shown = prover.atoms.show(&goal);
        for code in 0..6 * 6 * 5 {
            let values = [code % 6, code / 6 % 6, code / 36 + 1];
            let of = |poly: &Poly| value(&prover, poly, &symbols, values);
            if of(&facts.nonneg[0]) >= 0 && of(&facts.unequal[0]) != 0 {
                prop_assert!(facts.nonneg.iter().all(|fact| of(fact) >= 0), "signs at {values:?}");
                prop_assert!(!proved || of(&goal) >= 0, "{shown} at {values:?}");
                prop_assert!(!unequal || of(&goal) != 0, "{shown} at {values:?}");
            }
        }
    }
}
