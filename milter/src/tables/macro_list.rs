//! The macro list: macros of the MTA that mark mail as to be signed.
//!
//! An entry is the name of a macro, in braces or not; with values, separated by `|`, the macro must have one of them,
//! without it must be there and not empty. Case counts in both.

use super::source::Entry;
use super::{DataSet, Findings};

/// The macro list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MacroList {
    /// The entries, in order.
    pub rules: Vec<MacroRule>,
}

/// One macro, and the values that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacroRule {
    /// Its name without braces, as `daemon_name`.
    pub name: String,
    /// The values; none means any that is not empty.
    pub values: Vec<String>,
}

impl MacroList {
    /// Reads `set`, which may be no `refile:`.
    pub fn open(set: &DataSet<'_>, findings: &mut Findings) -> Self {
        let mut rules = Vec::new();
        set.read_plain(findings, &mut |entry, _| {
            if !matches!(entry.key, "-" | ".") {
                rules.push(read_rule(&entry));
            }
        });
        Self { rules }
    }

    /// Whether a macro of the list has a value that counts; `value_of` tells the value of the macro of a name without
    /// braces.
    pub fn matches<'m>(&self, value_of: impl Fn(&str) -> Option<&'m [u8]>) -> bool {
        self.rules.iter().any(|rule| {
            value_of(&rule.name).is_some_and(|value| match &rule.values[..] {
                [] => !value.is_empty(),
                values => values.iter().any(|wanted| wanted.as_bytes() == value),
            })
        })
    }
}

fn read_rule(entry: &Entry<'_>) -> MacroRule {
    let bare = entry
        .key
        .strip_prefix('{')
        .and_then(|name| name.strip_suffix('}'));
    let values = entry.value.unwrap_or_default().split('|').map(str::trim);
    MacroRule {
        name: bare.unwrap_or(entry.key).to_owned(),
        values: values
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Origin;

    #[test]
    fn a_macro_counts_by_its_values_or_by_being_there() {
        let set = DataSet {
            option: "MacroList",
            text: "{auth_type}, daemon_name = ORIGINATING|submission",
            origin: Origin::Default,
            base: "/".as_ref(),
        };
        let list = MacroList::open(&set, &mut Findings::default());
        for (name, value, wanted) in [
            ("auth_type", &b"PLAIN"[..], true),
            ("auth_type", b"", false),
            ("daemon_name", b"submission", true),
            ("daemon_name", b"ORIGINATING", true),
            ("daemon_name", b"originating", false),
            ("daemon_name", b"MTA", false),
            ("other", b"x", false),
        ] {
            assert_eq!(
                list.matches(|asked| (asked == name).then_some(value)),
                wanted,
                "{name}"
            );
        }
    }

    #[test]
    fn a_refile_is_refused() {
        let set = DataSet {
            option: "MacroList",
            text: "refile:/x",
            origin: Origin::Default,
            base: "/".as_ref(),
        };
        let mut findings = Findings::default();
        assert_eq!(MacroList::open(&set, &mut findings), MacroList::default());
        let (errors, _) = findings.finish(|_| Origin::Default);
        assert!(
            errors[0]
                .to_string()
                .starts_with("default: MacroList: \"refile:\" cannot be used here")
        );
    }
}
