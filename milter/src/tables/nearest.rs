//! The nearest of the names that could have been meant, for messages about a name that is not known.

/// The name in `names` that `typed` most likely stands for, if any is near: one edit for short names, up to three for
/// long ones, where an edit is a letter added, left out or changed, or two neighbours exchanged. Case does not count.
pub(crate) fn nearest<'n>(typed: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    if typed.len() > MAX_TYPED {
        return None;
    }
    let typed: Vec<char> = typed.to_lowercase().chars().collect();
    let allowed = (typed.len() / 4).clamp(1, 3);
    names
        // Each letter more or less is an edit.
        .filter(|name| name.len().abs_diff(typed.len()) <= allowed)
        .map(|name| {
            (
                distance(&typed, &name.to_lowercase().chars().collect::<Vec<_>>()),
                name,
            )
        })
        .filter(|&(distance, _)| distance <= allowed)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name)
}

/// Longer than any name; keeps the work small for junk.
const MAX_TYPED: usize = 40;

/// Edits between `a` and `b`: the optimal string alignment distance, row by row.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = changed.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised() {
        let names = [
            "Canonicalization",
            "Mode",
            "MTA",
            "KeyFile",
            "KeyTable",
            "Socket",
        ];
        for (typed, wanted) in [
            ("Canonicalizaton", Some("Canonicalization")),
            ("Canonicalisation", Some("Canonicalization")),
            ("Cannonicalisaton", Some("Canonicalization")),
            ("keyflie", Some("KeyFile")),
            ("Sokcet", Some("Socket")),
            ("Moed", Some("Mode")),
            ("Elephant", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, names.into_iter()), wanted, "{typed}");
        }
        assert_eq!(nearest(&"x".repeat(1 << 20), names.into_iter()), None);
    }

    #[test]
    fn distances_are_those_of_the_textbook() {
        for (a, b, wanted) in [
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("ab", "ba", 1),
            ("abc", "abc", 0),
            ("abcd", "acbd", 1),
        ] {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            assert_eq!(distance(&chars(a), &chars(b)), wanted, "{a} {b}");
        }
    }
}
