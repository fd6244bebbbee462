//! Sets of plain texts: domains, mail addresses, names; each entry either as it is or with `*` for any octets.

use std::collections::HashSet;

use super::domain::{climb, is_host_name, to_ascii};
use super::source::Entry;
use super::text_lines::shown;
use super::wildcard;
use super::{DataSet, Findings, TableFault, TableNote};

/// A set of texts, read and indexed.
#[derive(Debug)]
pub struct TextSet {
    kind: TextKind,
    texts: HashSet<Box<str>>,
    patterns: Vec<Box<str>>,
}

/// What the texts of a set are, which tells what is the same and what may stand there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    /// Domain names: case does not count, U-labels are A-labels.
    Domain,
    /// Domain names, or `.domain` for all names below it.
    DomainOrBelow,
    /// Mail addresses: case does not count.
    Address,
    /// Names that are compared octet by octet.
    Name,
}

impl TextSet {
    /// A set without entries.
    pub fn empty(kind: TextKind) -> Self {
        Self {
            kind,
            texts: HashSet::new(),
            patterns: Vec::new(),
        }
    }

    /// Reads and checks `set`, whose entries are `kind`.
    ///
    /// What is wrong or odd goes to `findings`; with an error among it, the set must not be used.
    pub fn open(set: &DataSet<'_>, kind: TextKind, findings: &mut Findings) -> Self {
        let mut texts = Self::empty(kind);
        if let Some(opened) = set.find_source(findings) {
            opened.read(findings, &mut |entry, findings| {
                texts.add(set.option, &entry, findings)
            });
        }
        texts
    }

    /// Whether `text` is in the set. Takes one look-up, then one comparison per pattern.
    pub fn contains(&self, text: &[u8]) -> bool {
        let Some(text) = self.query(text) else {
            return false;
        };
        let below = self.kind == TextKind::DomainOrBelow
            && climb(&text)
                .skip(1)
                .any(|above| self.texts.contains(&*format!(".{above}")));
        below || self.contains_text(&text)
    }

    /// Of a set of domains: the one that `domain`, a host name in lower case, belongs to. That is `domain` itself if it
    /// is in the set; else, with `sub_domains`, the nearest domain above it that is; else `domain` itself if a pattern
    /// matches.
    pub fn covering<'d>(&self, domain: &'d str, sub_domains: bool) -> Option<&'d str> {
        if !is_host_name(domain) {
            return None;
        }
        let reach = if sub_domains { usize::MAX } else { 1 };
        let plain = climb(domain)
            .take(reach)
            .find(|domain| self.texts.contains(*domain));
        plain.or_else(|| self.contains_text(domain).then_some(domain))
    }

    /// The texts that are in the set as they are, in order, and whether there are patterns beside them.
    pub(crate) fn plain(&self) -> (Vec<&str>, bool) {
        let mut texts: Vec<&str> = self.texts.iter().map(AsRef::as_ref).collect();
        texts.sort_unstable();
        (texts, !self.patterns.is_empty())
    }

    /// Whether the set has no entry.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.patterns.is_empty()
    }

    fn contains_text(&self, text: &str) -> bool {
        let mut patterns = self.patterns.iter();
        self.texts.contains(text)
            || patterns.any(|pattern| wildcard::matches(pattern.as_bytes(), text.as_bytes()))
    }

    /// `text` as the set holds it; `None` if it can be no member.
    fn query(&self, text: &[u8]) -> Option<String> {
        let text = std::str::from_utf8(text)
            .ok()
            .filter(|text| text.len() <= MAX_QUERY)?;
        Some(self.kind.normalize(text))
    }

    fn add(&mut self, option: &'static str, entry: &Entry<'_>, findings: &mut Findings) {
        if let Some(rest) = entry.value {
            let (key, text) = (shown(entry.key), shown(rest));
            findings.warning(
                option,
                entry.origin.clone(),
                TableNote::ExtraText { key, text },
            );
        }
        // How operators say that a set is empty.
        if matches!(entry.key, "-" | ".") {
            return;
        }
        let text = self.kind.normalize(entry.key);
        if !self.kind.allows(&text) {
            let text = shown(entry.key);
            findings.error(option, entry.origin.clone(), TableFault::BadDomain { text });
        } else if text.contains('*') {
            self.patterns.push(text.into());
        } else {
            self.texts.insert(text.into());
        }
    }
}

/// Longer than any mail address; keeps look-ups cheap for what is none.
const MAX_QUERY: usize = 1024;

impl TextKind {
    fn normalize(self, text: &str) -> String {
        match self {
            Self::Domain | Self::DomainOrBelow => to_ascii(text.strip_suffix('.').unwrap_or(text)),
            Self::Address => match text.rsplit_once('@') {
                Some((local, domain)) => {
                    format!("{}@{}", local.to_ascii_lowercase(), to_ascii(domain))
                }
                None => text.to_ascii_lowercase(),
            },
            Self::Name => text.to_owned(),
        }
    }

    /// Whether `text`, normalized, could be the text of a member.
    fn allows(self, text: &str) -> bool {
        let domain = match self {
            Self::Domain => text,
            Self::DomainOrBelow => text.strip_prefix('.').unwrap_or(text),
            Self::Address | Self::Name => return true,
        };
        // A star may stand for labels and for parts of them.
        is_host_name(&domain.replace('*', "x"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Origin;

    fn open(text: &str, kind: TextKind) -> (TextSet, Vec<String>) {
        let mut findings = Findings::default();
        let set = DataSet {
            option: "Domain",
            text,
            origin: Origin::Default,
            base: "/".as_ref(),
        };
        let set = TextSet::open(&set, kind, &mut findings);
        let (errors, _) = findings.finish(|_| Origin::Default);
        (set, errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn members_are_compared_as_their_kind_says() {
        use TextKind::{Address, Domain, DomainOrBelow, Name};
        for (text, kind, query, wanted) in [
            ("Example.com, b.example.", Domain, "EXAMPLE.com", true),
            ("Example.com, b.example.", Domain, "b.example", true),
            ("example.com", Domain, "a.example.com", false),
            ("*.example.com", Domain, "a.example.com", true),
            ("*", Domain, "a.example.com", true),
            ("b\u{fc}cher.example", Domain, "xn--bcher-kva.example", true),
            ("-", Domain, "-", false),
            (".example.com", DomainOrBelow, "a.b.example.com", true),
            (".example.com", DomainOrBelow, "example.com", false),
            ("mx.example.com", DomainOrBelow, "mx.example.com", true),
            ("Ann@Example.com", Address, "ann@example.com", true),
            ("*@example.com", Address, "ann@example.com", true),
            ("example.com", Address, "ann@example.com", false),
            ("ORIGINATING", Name, "ORIGINATING", true),
            ("ORIGINATING", Name, "originating", false),
        ] {
            let (set, errors) = open(text, kind);
            assert_eq!(errors, [""; 0]);
            assert_eq!(set.contains(query.as_bytes()), wanted, "{text} {query}");
        }
        assert!(!open("*", Domain).0.contains(b"\xff"));
        assert!(!open("*", Address).0.contains(&[b'a'; MAX_QUERY + 1]));
    }

    #[test]
    fn a_domain_is_covered_by_the_nearest_in_the_set() {
        let (set, _) = open(
            "example.com, a.example.com, *.example.org",
            TextKind::Domain,
        );
        for (domain, plain, with_sub_domains) in [
            ("example.com", Some("example.com"), Some("example.com")),
            ("b.example.com", None, Some("example.com")),
            ("x.a.example.com", None, Some("a.example.com")),
            (
                "x.example.org",
                Some("x.example.org"),
                Some("x.example.org"),
            ),
            ("notexample.com", None, None),
            ("../example.com", None, None),
        ] {
            assert_eq!(set.covering(domain, false), plain, "{domain}");
            assert_eq!(set.covering(domain, true), with_sub_domains, "{domain}");
        }
        let (set, _) = open("*", TextKind::Domain);
        assert_eq!(set.covering("any.example", true), Some("any.example"));
        assert_eq!(set.covering("a/b", true), None);
    }

    #[test]
    fn what_is_no_domain_is_refused() {
        for text in ["exa mple.com", "ann@example.com", "a/b", "a..b"] {
            assert_eq!(
                open(text, TextKind::Domain).1,
                [format!("default: Domain: \"{text}\" is not a domain name")]
            );
        }
    }
}
