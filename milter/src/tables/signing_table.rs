//! The signing table: which key, or keys, sign for an author, and with which identity.
//!
//! An entry is `address key-name[:identity]`. In a `refile:` the address is a pattern and the first one in the file
//! that matches counts. In any other data set it is sought in OpenDKIM's order: `user@host`, `host`, for each domain
//! above the host `user@.domain` and `.domain`, then `user@*`, then `*`. Case never counts. What is found is the name
//! of a key; the [`KeyTable`] knows the rest.

use std::borrow::Cow;
use std::collections::HashMap;

use super::domain::{climb, is_host_name, to_ascii};
use super::pattern_index::{Address, PatternIndex};
use super::source::Entry;
use super::text_lines::shown;
use super::{DataSet, Findings, KeyTable, Origin, TableFault, TableNote};

/// The signing table, read and indexed.
#[derive(Debug)]
pub struct SigningTable {
    rules: Vec<Rule>,
    index: Index,
    /// Use every entry that matches, not only the first.
    multiple: bool,
}

/// What an entry asks for, for one author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerChoice<'t> {
    /// The name of the key, to be looked up in the key table.
    pub key_name: Cow<'t, str>,
    /// What the signature's `i=` shall say: `[local-part]@domain`. It may lie outside the signing domain, and is then
    /// to be left out.
    pub identity: Option<Cow<'t, str>>,
    /// Where the entry stands.
    pub origin: &'t Origin,
}

#[derive(Debug)]
struct Rule {
    /// `%` for the author's domain.
    key_name: Box<str>,
    /// Each `%` in it stands for the author's domain.
    identity: Option<Box<str>>,
    origin: Origin,
}

#[derive(Debug)]
enum Index {
    Exact(HashMap<Box<str>, Vec<u32>>),
    Patterns(PatternIndex),
}

impl SigningTable {
    /// Reads and checks `set`; with `multiple`, a look-up finds all entries that match, else the first.
    ///
    /// `has_stand_in` says of a key by its name whether the next one signs when it cannot: that is then no odd entry.
    /// What is wrong or odd goes to `findings`; with an error among it, the table must not be used.
    pub fn open(
        set: &DataSet<'_>,
        multiple: bool,
        has_stand_in: &dyn Fn(&str) -> bool,
        findings: &mut Findings,
    ) -> Self {
        let mut table = Self {
            rules: Vec::new(),
            index: Index::Exact(HashMap::new()),
            multiple,
        };
        if let Some(opened) = set.find_source(findings) {
            if opened.has_patterns() {
                table.index = Index::Patterns(PatternIndex::default());
            }
            // Only to tell of entries that an earlier one hides; in an exact table the index knows.
            let mut patterns = HashMap::new();
            opened.read(findings, &mut |entry, findings| {
                table.add(set.option, &entry, &mut patterns, has_stand_in, findings);
            });
        }
        table
    }

    /// The entries for the author `local_part@domain`, in the order in which they apply; none for a `domain` that is no
    /// host name in lower case.
    ///
    /// `local_part` is as it stands in the address, octets of any kind; its ASCII case does not count. One that is
    /// longer than any mail address finds nothing.
    pub fn look_up(&self, local_part: &[u8], domain: &str) -> Vec<SignerChoice<'_>> {
        self.matching(local_part, domain, self.multiple)
    }

    /// The entries beyond those that [`look_up`](Self::look_up) finds, which would sign if those were not there.
    pub fn further(&self, local_part: &[u8], domain: &str) -> Vec<SignerChoice<'_>> {
        if self.multiple {
            return Vec::new();
        }
        let mut matching = self.matching(local_part, domain, true);
        if !matching.is_empty() {
            matching.remove(0);
        }
        matching
    }

    fn matching(&self, local_part: &[u8], domain: &str, all: bool) -> Vec<SignerChoice<'_>> {
        if !is_host_name(domain) || local_part.len() > MAX_LOCAL_PART {
            return Vec::new();
        }
        let local_part = local_part.to_ascii_lowercase();
        let numbers = match &self.index {
            Index::Patterns(patterns) => {
                let address = Address {
                    local_part: &local_part,
                    domain,
                };
                if all {
                    patterns.all(address)
                } else {
                    patterns.first(address).into_iter().collect()
                }
            }
            Index::Exact(index) => {
                let local_part = String::from_utf8_lossy(&local_part);
                let found = exact_forms(&local_part, domain)
                    .filter_map(|form| index.get(&*form))
                    .flatten()
                    .copied();
                found.take(if all { usize::MAX } else { 1 }).collect()
            }
        };
        numbers
            .into_iter()
            .filter_map(|number| self.rules.get(number as usize))
            .map(|rule| rule.choice(domain))
            .collect()
    }

    /// Warns of entries whose key is not in `keys`; `option` is the signing table's.
    pub fn check_keys(&self, option: &'static str, keys: &KeyTable, findings: &mut Findings) {
        for rule in &self.rules {
            if &*rule.key_name != AUTHOR_DOMAIN && keys.look_up(&rule.key_name).is_none() {
                let name = shown(&rule.key_name);
                findings.warning(option, rule.origin.clone(), TableNote::UnknownKey { name });
            }
        }
    }

    fn add(
        &mut self,
        option: &'static str,
        entry: &Entry<'_>,
        patterns: &mut HashMap<Box<str>, u32>,
        has_stand_in: &dyn Fn(&str) -> bool,
        findings: &mut Findings,
    ) {
        let (key_name, identity) = match parse_value(entry) {
            Ok(value) => value,
            Err(fault) => return findings.error(option, entry.origin.clone(), fault),
        };
        let Ok(number) = u32::try_from(self.rules.len()) else {
            return;
        };
        let form = normalize(entry.key);
        let earlier = match &mut self.index {
            Index::Exact(index) => {
                if form.contains('*')
                    && form != "*"
                    && form
                        .strip_suffix("@*")
                        .is_none_or(|user| user.contains('*'))
                {
                    let pattern = shown(entry.key);
                    findings.warning(
                        option,
                        entry.origin.clone(),
                        TableNote::WildcardWithoutPatterns { pattern },
                    );
                }
                let numbers = index.entry(form.into()).or_default();
                numbers.push(number);
                numbers.first().copied()
            }
            Index::Patterns(index) => {
                if !form.contains(['*', '@']) {
                    let pattern = shown(entry.key);
                    findings.warning(
                        option,
                        entry.origin.clone(),
                        TableNote::NotAnAddress { pattern },
                    );
                }
                index.insert(number, &form);
                Some(*patterns.entry(form.into()).or_insert(number))
            }
        };
        let has_no_use = |earlier: &u32| {
            *earlier != number
                && !self.multiple
                && !has_stand_in(&self.rules[*earlier as usize].key_name)
        };
        if let Some(earlier) = earlier.filter(has_no_use) {
            let note = TableNote::Twice {
                key: shown(entry.key),
                first: self.rules[earlier as usize].origin.clone(),
                by_multiple: true,
            };
            findings.warning(option, entry.origin.clone(), note);
        }
        self.rules.push(Rule {
            key_name: key_name.into(),
            identity: identity.map(Into::into),
            origin: entry.origin.clone(),
        });
    }
}

impl Rule {
    fn choice(&self, author_domain: &str) -> SignerChoice<'_> {
        SignerChoice {
            key_name: if &*self.key_name == AUTHOR_DOMAIN {
                Cow::Owned(author_domain.to_owned())
            } else {
                Cow::Borrowed(&*self.key_name)
            },
            identity: self.identity.as_deref().map(|identity| {
                if identity.contains(AUTHOR_DOMAIN) {
                    Cow::Owned(identity.replace(AUTHOR_DOMAIN, author_domain))
                } else {
                    Cow::Borrowed(identity)
                }
            }),
            origin: &self.origin,
        }
    }
}

/// RFC 5321 section 4.5.3.1.1 allows 64 octets; far more than that is no address, only work.
const MAX_LOCAL_PART: usize = 512;

/// What stands for the author's domain: as the whole of a key name, anywhere in an identity.
const AUTHOR_DOMAIN: &str = "%";

/// The key name and the identity of an entry.
fn parse_value<'e>(entry: &Entry<'e>) -> Result<(&'e str, Option<&'e str>), TableFault> {
    let value = entry.value.unwrap_or_default();
    let (key_name, identity) = match value.split_once(':') {
        Some((key_name, identity)) => (key_name.trim(), Some(identity.trim())),
        None => (value, None),
    };
    if key_name.is_empty() {
        let pattern = shown(entry.key);
        return Err(TableFault::NoKeyName { pattern });
    }
    if key_name.contains([' ', '\t']) {
        let value = shown(value);
        return Err(TableFault::NotOneKeyName { value });
    }
    if let Some(identity) = identity.filter(|identity| !is_identity(identity)) {
        let identity = shown(identity);
        return Err(TableFault::BadIdentity { identity });
    }
    Ok((key_name, identity))
}

/// Whether `text` can be an `i=` (RFC 6376 section 3.5), `%` standing for a domain.
fn is_identity(text: &str) -> bool {
    let is_label_octet =
        |o: u8| o.is_ascii_alphanumeric() || matches!(o, b'-' | b'_' | b'.' | b'%');
    text.rsplit_once('@').is_some_and(|(local, domain)| {
        !domain.is_empty()
            && domain.bytes().all(is_label_octet)
            && !local.contains([' ', '\t', ';'])
    })
}

/// An address or pattern in lower case, with its domain in A-labels.
fn normalize(key: &str) -> String {
    match key.rsplit_once('@') {
        Some((local, domain)) if !key.is_ascii() => {
            format!("{}@{}", local.to_ascii_lowercase(), to_ascii(domain))
        }
        _ => to_ascii(key),
    }
}

/// What is sought in a table without patterns, in order.
fn exact_forms<'a>(local_part: &'a str, domain: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    let whole = [
        Cow::Owned(format!("{local_part}@{domain}")),
        Cow::Borrowed(domain),
    ];
    let above = climb(domain).skip(1).flat_map(move |above| {
        [
            Cow::Owned(format!("{local_part}@.{above}")),
            Cow::Owned(format!(".{above}")),
        ]
    });
    let any = [Cow::Owned(format!("{local_part}@*")), Cow::Borrowed("*")];
    whole.into_iter().chain(above).chain(any)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::test_dir::TestDir;
    use std::fmt::Write;

    const OPTION: &str = "SigningTable";

    fn open_at(
        dir: &TestDir,
        text: &str,
        multiple: bool,
    ) -> (SigningTable, Vec<String>, Vec<String>) {
        let mut findings = Findings::default();
        let set = DataSet {
            option: OPTION,
            text,
            origin: Origin::CommandLine("test".into()),
            base: dir.root(),
        };
        let table = SigningTable::open(&set, multiple, &|_| false, &mut findings);
        let (errors, warnings) = findings.finish(|_| Origin::Default);
        (
            table,
            errors.iter().map(ToString::to_string).collect(),
            warnings.iter().map(ToString::to_string).collect(),
        )
    }

    fn open(kind: &str, content: &str, multiple: bool) -> (SigningTable, Vec<String>, Vec<String>) {
        let dir = TestDir::new("signing");
        dir.write("T", content);
        open_at(&dir, &format!("{kind}:T"), multiple)
    }

    /// The key names found, and the identities behind a colon.
    fn found(table: &SigningTable, local_part: &str, domain: &str) -> String {
        let told = |choice: &SignerChoice<'_>| match &choice.identity {
            Some(identity) => format!("{}:{identity}", choice.key_name),
            None => choice.key_name.to_string(),
        };
        let all: Vec<String> = table
            .look_up(local_part.as_bytes(), domain)
            .iter()
            .map(told)
            .collect();
        all.join(" ")
    }

    #[test]
    fn the_first_pattern_in_the_file_that_matches_counts() {
        let content = "boss@shop.example b\n*@shop.example s\n*@*.shop.example sub\nann*@* a\n*@eu.*.example e\n\
                       *@first.shop.example never\n* rest:postmaster@%\n";
        let (table, errors, warnings) = open("refile", content, false);
        assert_eq!((errors, warnings), (vec![], vec![]));
        for (local_part, domain, wanted) in [
            ("boss", "shop.example", "b"),
            ("BOSS", "shop.example", "b"),
            ("bo", "shop.example", "s"),
            ("bo", "a.b.shop.example", "sub"),
            ("bo", "first.shop.example", "sub"),
            ("annabel", "other.example", "a"),
            ("annabel", "shop.example", "s"),
            ("bo", "eu.x.example", "e"),
            ("bo", "notshop.example", "rest:postmaster@notshop.example"),
            ("bo@shop.example", "x.example", "rest:postmaster@x.example"),
        ] {
            assert_eq!(
                found(&table, local_part, domain),
                wanted,
                "{local_part}@{domain}"
            );
        }
    }

    #[test]
    fn multiple_signatures_take_every_match_in_order() {
        let content =
            "*@a.example one\n* two\n*@a.example three\nx@a.example four\n*@b.example five\n";
        let (table, _, warnings) = open("refile", content, true);
        assert_eq!(found(&table, "x", "a.example"), "one two three four");
        assert_eq!(warnings, [""; 0]);
        let (table, _, _) = open(
            "file",
            "a.example one\na.example two\n* three\nx@a.example zero\n",
            true,
        );
        assert_eq!(found(&table, "x", "a.example"), "zero one two three");
    }

    /// Each step of the order was confirmed with opendkim 2.11.0; an entry for a superdomain is not for the domain
    /// itself.
    #[test]
    fn without_patterns_the_forms_are_sought_from_narrow_to_wide() {
        let all = [
            "Ann@a.b.example",
            "a.b.example",
            "ann@.b.example",
            ".B.example",
            "ann@.example",
            ".example",
            "ann@*",
            "*",
        ];
        for first in 0..all.len() {
            let content = all[first..]
                .iter()
                .rev()
                .fold(String::new(), |mut content, key| {
                    let _ = writeln!(content, "{key} {key}");
                    content
                });
            let (table, errors, warnings) = open("file", &content, false);
            assert_eq!((errors, warnings), (vec![], vec![]));
            assert_eq!(found(&table, "ann", "a.b.example"), all[first]);
        }
        let (table, ..) = open("file", ".b.example k\n", false);
        assert_eq!(found(&table, "ann", "b.example"), "");
    }

    #[test]
    fn a_list_is_a_table_too() {
        let dir = TestDir::new("signing");
        let (table, errors, _) = open_at(&dir, "example.com=k1, *=k2:@%", false);
        assert_eq!(errors, [""; 0]);
        assert_eq!(found(&table, "a", "example.com"), "k1");
        assert_eq!(found(&table, "a", "b.example"), "k2:@b.example");
    }

    #[test]
    fn percent_is_the_author_domain_only_as_a_whole_key_name() {
        let (table, errors, _) = open("refile", "*@a.example %:%-x@%\n*@b.example k%\n", false);
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            found(&table, "x", "a.example"),
            "a.example:a.example-x@a.example"
        );
        assert_eq!(found(&table, "x", "b.example"), "k%");
    }

    #[test]
    fn internationalized_domains_are_found_by_their_a_labels() {
        let (table, ..) = open(
            "refile",
            "*@B\u{fc}cher.example k1\n*@*.b\u{fc}cher.example k2\nJ\u{f6}rg@a.example k3\n",
            false,
        );
        assert_eq!(found(&table, "x", "xn--bcher-kva.example"), "k1");
        assert_eq!(found(&table, "x", "a.xn--bcher-kva.example"), "k2");
        assert_eq!(found(&table, "j\u{f6}rg", "a.example"), "k3");
        let (table, ..) = open("file", "b\u{fc}cher.example k1\n", false);
        assert_eq!(found(&table, "x", "xn--bcher-kva.example"), "k1");
    }

    #[test]
    fn nothing_is_found_for_what_is_no_host_name() {
        let (table, ..) = open("refile", "* k\n", false);
        for domain in [
            "../../etc/passwd",
            "a/b.example",
            "%.example",
            "",
            "Shop.example",
            "[192.0.2.1]",
        ] {
            assert_eq!(found(&table, "x", domain), "", "{domain}");
        }
        assert!(
            table
                .look_up(&[b'a'; MAX_LOCAL_PART + 1], "a.example")
                .is_empty()
        );
        assert_eq!(table.look_up(b"\xff\x00", "a.example").len(), 1);
    }

    #[test]
    fn malformed_entries_are_told_with_their_lines() {
        let content = "*@a.example\n*@b.example k1 k2\n*@c.example :@c.example\n*@d.example k:d.example\n*@e.example k:a b@x\n\
                       *@f.example k:@\n*@ok.example k : me@ok.example\n";
        let (_, errors, _) = open("refile", content, false);
        let wanted = "address, blanks, key name[:identity]";
        assert_eq!(
            errors,
            [
                format!("T:1: SigningTable: \"*@a.example\" has no key name; wanted: {wanted}"),
                format!("T:2: SigningTable: \"k1 k2\" is not one key name; wanted: {wanted}"),
                format!("T:3: SigningTable: \"*@c.example\" has no key name; wanted: {wanted}"),
                "T:4: SigningTable: identity \"d.example\" is not of the form [local-part]@domain"
                    .to_owned(),
                "T:5: SigningTable: identity \"a b@x\" is not of the form [local-part]@domain"
                    .to_owned(),
                "T:6: SigningTable: identity \"@\" is not of the form [local-part]@domain"
                    .to_owned(),
            ]
        );
    }

    #[test]
    fn entries_that_can_never_match_are_warned_of() {
        let starts = |warnings: &[String], wanted: &[&str]| {
            assert_eq!(warnings.len(), wanted.len(), "{warnings:?}");
            for (warning, wanted) in warnings.iter().zip(wanted) {
                assert!(warning.contains(wanted), "{warning}");
            }
        };
        let (_, _, warnings) = open(
            "file",
            "*@a.example k\nx@* k\n* k\nx*@* k\n.a.example k\n",
            false,
        );
        starts(
            &warnings,
            &[
                "T:1: SigningTable: \"*@a.example\" can never match",
                "T:4: SigningTable: \"x*@*\" can never",
            ],
        );
        let (_, _, warnings) = open("refile", "a.example k\n*a.example k\n", false);
        starts(
            &warnings,
            &["T:1: SigningTable: \"a.example\" can never match"],
        );
        for kind in ["file", "refile"] {
            let (_, _, warnings) = open(kind, "x@a.example k\nX@A.example k2\n", false);
            starts(
                &warnings,
                &["T:2: SigningTable: \"X@A.example\" stands already at T:1, which counts; \"Mult"],
            );
        }
    }

    /// What is tried does not grow with the table: every address meets its own domain's patterns only.
    #[test]
    fn two_hundred_thousand_domains_are_looked_up_by_hash() {
        let content = (0..200_000).fold(String::new(), |mut content, number| {
            let form = ["*@d", "info@*.d"][number % 2];
            let _ = writeln!(content, "{form}{number:06}.example k{number}");
            content
        });
        let (table, errors, _) = open("refile", &content, false);
        assert_eq!(errors, [""; 0]);
        let Index::Patterns(index) = &table.index else {
            panic!("patterns")
        };
        assert_eq!(index.tried_one_by_one(), 0);
        for (local_part, domain, wanted) in [
            ("x", "d000000.example", "k0"),
            ("info", "a.b.d099999.example", "k99999"),
            ("x", "d199998.example", "k199998"),
            ("x", "d200000.example", ""),
        ] {
            assert_eq!(found(&table, local_part, domain), wanted);
        }
    }
}
