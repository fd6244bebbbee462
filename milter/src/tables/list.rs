//! `csl:a,b` and bare lists: entries in the option's value itself, separated by commas, with values as `key=value`.

use super::Findings;
use super::source::{DataSet, Entry, Source, Visitor};

/// The source `csl:`.
pub(super) struct List;

impl Source for List {
    fn name(&self) -> &'static str {
        "csl"
    }

    fn has_patterns(&self) -> bool {
        false
    }

    fn read(
        &self,
        set: &DataSet<'_>,
        rest: &str,
        findings: &mut Findings,
        visit: &mut Visitor<'_>,
    ) {
        for element in rest.split(',') {
            let (key, value) = match element.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim())),
                None => (element.trim(), None),
            };
            // An empty element is a comma too many; it can mean nothing else.
            if !element.trim().is_empty() {
                let origin = set.origin.clone();
                visit(Entry { key, value, origin }, findings);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Origin;

    #[test]
    fn elements_are_trimmed_and_split_at_the_first_equals_sign() {
        let set = DataSet {
            option: "Test",
            text: "",
            origin: Origin::Default,
            base: "/".as_ref(),
        };
        let mut seen = Vec::new();
        List.read(
            &set,
            " a , b=c=d ,, e=",
            &mut Findings::default(),
            &mut |entry, _| {
                seen.push((entry.key.to_owned(), entry.value.map(str::to_owned)));
            },
        );
        let value = |text: &str| Some(text.to_owned());
        assert_eq!(
            seen,
            [
                ("a".into(), None),
                ("b".into(), value("c=d")),
                ("e".into(), value(""))
            ]
        );
    }
}
