//! Rectangles that lie beside each other become one.

use super::Part;
use flux_ir::eval::Region;

/// Joins parts side by side, then one above the other, then side by side again: tiles in any
/// order become few rectangles.
pub(super) fn merge(parts: &mut Vec<Part>) {
    for across in [true, false, true] {
        let key = |region: &Region| {
            let Region { buffer, plane, rows, cols, .. } = region;
            let (first, second) = if across { (rows, cols) } else { (cols, rows) };
            (*buffer, *plane, first.start, first.end, second.start)
        };
        parts.sort_by_key(|part| key(&part.to));
        parts.dedup_by(|part, before| {
            let (to, before) = (&part.to, &mut before.to);
            let same = to.buffer == before.buffer && to.plane == before.plane;
            if across && same && to.rows == before.rows && to.cols.start == before.cols.end {
                before.cols.end = to.cols.end;
                return true;
            }
            if !across && same && to.cols == before.cols && to.rows.start == before.rows.end {
                before.rows.end = to.rows.end;
                return true;
            }
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, merge};
    use flux_ir::arena::Handle;
    use flux_ir::eval::Region;
    use flux_ir::program::BufferId;

    fn part(plane: u32, m: u32, n: u32) -> Part {
        let rows = m * 128..(m + 1) * 128;
        let cols = n * 256..(n + 1) * 256;
        Part { to: Region { rank: 0, buffer: BufferId::new(0), plane, rows, cols }, plane: 0 }
    }

    #[test]
    fn a_grid_in_any_order_is_one_rectangle() {
        for by_column in [true, false] {
            let mut parts: Vec<Part> = (0..12)
                .map(|i| if by_column { part(0, i % 3, i / 3) } else { part(0, i / 4, i % 4) })
                .collect();
            merge(&mut parts);
            assert_eq!(parts.len(), 1);
            assert_eq!((parts[0].to.rows.clone(), parts[0].to.cols.clone()), (0..384, 0..1024));
        }
    }

    #[test]
    fn a_cut_grid_is_few_and_planes_stay_apart() {
        // Two full columns of four tiles, and three tiles of the third.
        let mut parts: Vec<Part> = (0..11).map(|i| part(0, i % 4, i / 4)).collect();
        parts.push(part(1, 3, 2));
        merge(&mut parts);
        let area: u32 =
            parts.iter().map(|part| (part.to.rows.len() * part.to.cols.len()) as u32).sum();
        assert_eq!(area, 12 * 128 * 256);
        assert!(parts.len() <= 3, "{}", parts.len());
    }
}
