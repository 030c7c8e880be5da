//! The name somebody meant.

use std::fmt::Display;

/// The one of `names` that `name` is most likely a misspelling of.
pub(crate) fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters may be wrong: beyond that a suggestion misleads.
    let limit = (name.chars().count() / 3).max(1);
    names
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `did you mean …?`, or all the choices there are.
pub(crate) fn did_you_mean(name: &str, names: &[&str]) -> String {
    match nearest(name, names.iter().copied()) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None => format!("there are {}", listed(names)),
    }
}

/// `` `a`, `b` and `c` ``.
pub(crate) fn listed<T: Display>(names: &[T]) -> String {
    match names {
        [] => "none".to_owned(),
        [one] => format!("`{one}`"),
        [rest @ .., last] => {
            let rest: Vec<_> = rest.iter().map(|name| format!("`{name}`")).collect();
            format!("{} and `{last}`", rest.join(", "))
        }
    }
}

/// Edits (insert, delete, replace, swap neighbors) that turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_found_and_a_far_one_is_not() {
        let names = ["relu", "gelu", "gelu_tanh", "silu"];
        assert_eq!(nearest("gleu", names), Some("gelu"));
        assert_eq!(nearest("gelu_tan", names), Some("gelu_tanh"));
        assert_eq!(nearest("softmax", names), None);
    }

    #[test]
    fn lists_read_as_english() {
        assert_eq!(listed(&["a"]), "`a`");
        assert_eq!(listed(&["a", "b", "c"]), "`a`, `b` and `c`");
        assert_eq!(did_you_mean("x", &["load", "rows"]), "there are `load` and `rows`");
    }
}
