//! Which CTA takes which tiles, or which k-steps of them, where a schedule does not leave it at one
//! tile after the other.
//!
//! Stream-K: the tiles that do not fill a wave lie behind each other on a line of k-steps that is cut into
//! as many equal pieces as there are CTAs. A piece is the end of one tile, whole tiles, and the
//! beginning of another. Who has a tile's end stores it; the others send their sums there.
//!
//! A CTA sends before it adds, so nobody waits for one that waits. The two parts follow each
//! other, so that all CTAs walk along k together: what one loads, others find in the cache.

use std::collections::HashMap;
use std::ops::Range;

/// k-steps that are not worth a cut: a cut so near to the end of a tile moves there.
const LEAST: u64 = 4;

/// A tile, or a part of it, that one CTA takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The tile: a row of the tile table.
    pub tile: u32,
    /// Its k-steps.
    pub steps: Range<u32>,
    /// What becomes of the sums.
    pub part: Part,
}

/// What becomes of an item's sums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// They go to the CTA that has the tile's end, through this slot.
    Sent(u32),
    /// Those in these slots, none for a whole tile, are added in this order; the tile is stored.
    Stored(Range<u32>),
}

/// Deals `tiles` of `steps` k-steps each to `ctas` CTAs: for each CTA its items in order. Slots
/// are numbered from 0, no more of them than CTAs.
pub fn deal(tiles: u32, steps: u32, ctas: u32) -> Vec<Vec<Item>> {
    let (tiles, steps, ctas) = (u64::from(tiles), u64::from(steps), u64::from(ctas.max(1)));
    if steps == 0 {
        return vec![Vec::new(); ctas as usize];
    }
    let streamed = streamed(tiles, ctas);
    let cut = |cta: u64| {
        let at = cta * streamed * steps / ctas;
        match at % steps {
            into if into < LEAST => at - into,
            into if steps - into < LEAST => at - into + steps,
            _ => at,
        }
    };
    let item = |tile: u64, steps: Range<u64>, part| Item {
        tile: tile as u32,
        steps: steps.start as u32..steps.end as u32,
        part,
    };
    let (mut dealt, mut slots) = (Vec::new(), 0);
    // The slots of the tile whose beginning was dealt last.
    let mut open = 0..0;
    for cta in 0..ctas {
        let (from, to) = (cut(cta), cut(cta + 1));
        let (first, end) = (from.div_ceil(steps), to / steps);
        let mut items = Vec::new();
        let added = (from % steps != 0 && first <= end && from < to).then(|| {
            let slots = std::mem::take(&mut open);
            item(from / steps, from % steps..steps, Part::Stored(slots))
        });
        if from < to && to % steps != 0 {
            let begin = from.saturating_sub(end * steps);
            items.push(item(end, begin..to % steps, Part::Sent(slots)));
            open = if begin == 0 { slots..slots + 1 } else { open.start..slots + 1 };
            slots += 1;
        }
        items.extend(added);
        let beyond = (streamed + cta..tiles).step_by(ctas as usize);
        let whole = (first..end).chain(beyond);
        items.extend(whole.map(|tile| item(tile, 0..steps, Part::Stored(0..0))));
        dealt.push(items);
    }
    dealt
}

/// Tiles on the line, the first of the table. A last wave that is less than half full would be cut
/// into small pieces: the wave before is cut with it.
fn streamed(tiles: u64, ctas: u64) -> u64 {
    match tiles % ctas {
        0 => 0,
        rest if 2 * rest >= ctas || tiles < ctas => rest,
        rest => rest + ctas,
    }
}

/// Deals the tiles of `table` (row, column, and what else a row of the tile table says) to `ctas`
/// CTAs, of which two that follow each other are a cluster: two tiles below each other to the two,
/// whole. The pairs keep the order of their upper tiles. Below the last row of tiles lies one of
/// none, for the sake of the pair; yields the table with its rows behind, and for each CTA its
/// items in order.
pub fn deal_pairs(table: &[[u32; 4]], steps: u32, ctas: u32) -> (Vec<[u32; 4]>, Vec<Vec<Item>>) {
    let places: HashMap<[u32; 2], u32> =
        (0..).zip(table).map(|(tile, &[m, n, ..])| ([m, n], tile)).collect();
    let mut table = table.to_vec();
    let mut dealt = vec![Vec::new(); ctas.max(2).next_multiple_of(2) as usize];
    let clusters = dealt.len() / 2;
    let mut pair = 0;
    for upper in 0..table.len() {
        let [m, n, first, last] = table[upper];
        if m % 2 != 0 {
            continue;
        }
        let lower = places.get(&[m + 1, n]).copied().unwrap_or_else(|| {
            table.push([m + 1, n, first, last]);
            table.len() as u32 - 1
        });
        for (cta, tile) in [(0, upper as u32), (1, lower)] {
            let item = Item { tile, steps: 0..steps, part: Part::Stored(0..0) };
            dealt[2 * (pair % clusters) + cta].push(item);
        }
        pair += 1;
    }
    (table, dealt)
}

/// Words of an [`encode`]d item.
pub const ITEM_WORDS: usize = 8;

/// Items as the machine reads them: every CTA has as many rows, those behind its last have no
/// steps. A row is the tile, its first k-step, its number of steps, what becomes of the sums, and
/// the tile's row of `table`. Yields the rows and how many a CTA has.
///
/// What becomes of the sums: bit 0 whether they are sent, from bit 1 the number of slots to add,
/// from bit 16 the first slot.
pub fn encode(dealt: &[Vec<Item>], table: &[[u32; 4]]) -> (Vec<[u32; ITEM_WORDS]>, u32) {
    let width = dealt.iter().map(Vec::len).max().unwrap_or(0) + 1;
    let mut rows = vec![[0; ITEM_WORDS]; width * dealt.len()];
    for (items, rows) in dealt.iter().zip(rows.chunks_mut(width)) {
        for (item, row) in items.iter().zip(rows) {
            let part = match &item.part {
                Part::Sent(slot) => 1 | slot << 16,
                Part::Stored(slots) => (slots.len() as u32) << 1 | slots.start << 16,
            };
            let [m, n, first, last] = table[item.tile as usize];
            let Range { start, end } = item.steps;
            *row = [item.tile, start, end - start, part, m, n, first, last];
        }
    }
    (rows, width as u32)
}

#[cfg(test)]
mod tests {
    use super::{Part, deal, deal_pairs, encode};
    use std::collections::HashSet;

    /// Every k-step of every tile is taken once; a tile's sender slots are those its end adds, in
    /// the order of k; what is sent is sent first.
    #[test]
    fn every_step_is_dealt_once_and_every_part_is_added_once() {
        for ctas in [1, 2, 3, 4, 7, 12, 132] {
            for tiles in (1..40).chain([63, 127, 131, 133, 200, 263, 264, 265, 512]) {
                for steps in [1, 2, 3, 5, 8, 9, 30, 96] {
                    check(tiles, steps, ctas);
                }
            }
        }
    }

    fn check(tiles: u32, steps: u32, ctas: u32) {
        let what = format!("{tiles} tiles of {steps} steps on {ctas}");
        let dealt = deal(tiles, steps, ctas);
        assert_eq!(dealt.len(), ctas as usize);
        let mut taken = vec![0_u32; (tiles * steps) as usize];
        let mut sent = Vec::new();
        for items in &dealt {
            let sends = |part: &Part| matches!(part, Part::Sent(_));
            assert!(items.iter().skip(1).all(|item| !sends(&item.part)), "{what}");
            for item in items {
                assert!(!item.steps.is_empty(), "{what}");
                for step in item.steps.clone() {
                    taken[(item.tile * steps + step) as usize] += 1;
                }
                if let Part::Sent(slot) = item.part {
                    assert_eq!(slot as usize, sent.len(), "{what}");
                    assert!(item.steps.end < steps, "{what}");
                    sent.push((item.tile, item.steps.clone()));
                }
            }
        }
        assert!(taken.iter().all(|&count| count == 1), "{what}");
        assert!(sent.len() <= ctas as usize, "{what}");
        let mut added = 0;
        for item in dealt.iter().flatten() {
            let Part::Stored(slots) = &item.part else { continue };
            assert_eq!(item.steps.end, steps, "{what}");
            let mut at = 0;
            for slot in slots.clone() {
                let (tile, part) = &sent[slot as usize];
                assert_eq!((*tile, part.start), (item.tile, at), "{what}");
                at = part.end;
                added += 1;
            }
            assert_eq!(at, item.steps.start, "{what}");
        }
        assert_eq!(added, sent.len(), "{what}");
    }

    #[test]
    fn shares_differ_by_no_more_than_the_cuts_moved() {
        for (tiles, steps, ctas) in [(512, 192, 132), (1024, 96, 132), (70, 192, 132)] {
            let dealt = deal(tiles, steps, ctas);
            let share = |items: &Vec<super::Item>| -> u32 {
                items.iter().map(|item| item.steps.end - item.steps.start).sum()
            };
            let (least, most) = (dealt.iter().map(share).min(), dealt.iter().map(share).max());
            let spread = most.unwrap_or(0) - least.unwrap_or(0);
            assert!(spread <= 8, "{tiles} tiles of {steps} steps: {spread}");
        }
    }

    #[test]
    fn pairs_lie_below_each_other_and_every_tile_is_dealt_once() {
        for (rows, cols) in [(1, 1), (1, 5), (2, 3), (5, 4), (16, 9), (33, 2)] {
            for ctas in [2, 4, 6, 132] {
                // Column by column backwards: any order will do.
                let tile = |at: u32| [at % rows, cols - 1 - at / rows, 7, 8];
                let table: Vec<_> = (0..rows * cols).map(tile).collect();
                let (all, dealt) = deal_pairs(&table, 9, ctas);
                assert_eq!(all[..table.len()], table);
                assert_eq!(dealt.len(), ctas as usize);
                let mut seen = HashSet::new();
                for pair in dealt.chunks(2) {
                    assert_eq!(pair[0].len(), pair[1].len());
                    for (upper, lower) in pair[0].iter().zip(&pair[1]) {
                        let [[m, n, ..], below] =
                            [upper, lower].map(|item| all[item.tile as usize]);
                        assert_eq!([below[0], below[1]], [m + 1, n]);
                        assert!(seen.insert(upper.tile) && seen.insert(lower.tile));
                        assert!(upper.steps == (0..9) && lower.steps == (0..9));
                    }
                }
                assert!((0..rows * cols).all(|tile| seen.contains(&tile)));
            }
        }
    }

    #[test]
    fn rows_end_with_one_that_has_no_steps() {
        let table: Vec<_> = (0..5).map(|tile| [tile, 10 + tile, 0, 0]).collect();
        let (rows, width) = encode(&deal(5, 30, 4), &table);
        assert_eq!(rows.len(), 4 * width as usize);
        for items in rows.chunks(width as usize) {
            let last = items.iter().position(|row| row[2] == 0).expect("a row without steps");
            assert!(items[..last].iter().all(|row| row[4] == row[0] && row[5] == 10 + row[0]));
            assert!(items[last..].iter().all(|row| row[2] == 0));
        }
    }
}
