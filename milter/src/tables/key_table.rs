//! The key table: what the name of a key stands for.
//!
//! An entry is `name domain:selector:key[:algorithm]`. `domain` may be `%`, the author's domain. `key` is the path of a
//! file when it begins with `/`, `./` or `../`, where each `%` is the author's domain; anything else is the private key
//! itself, in base64 or PEM, or the PKCS#11 URI of a key in a token (RFC 7512), in which `%` is that URI's own. A name is
//! found exactly, octet by octet; only a `refile:` has patterns for names.
//!
//! Key files and tokens are not touched here: `keys` does that.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use dkim_core::engine::KeyType;
use pkcs11_engine::uri::Uri;
use zeroize::Zeroizing;

use super::domain::{is_host_name, is_selector, to_host_name};
use super::source::{Entry, resolve, seen_from};
use super::text_lines::shown;
use super::wildcard;
use super::{DataSet, Findings, Origin, TableFault, TableNote};

/// The key table, read and indexed.
#[derive(Debug, Default)]
pub struct KeyTable {
    entries: Vec<KeyEntry>,
    by_name: HashMap<Box<str>, u32>,
    /// The entries whose name is a pattern, in order.
    patterns: Vec<u32>,
}

/// An entry of the key table.
#[derive(Debug)]
pub struct KeyEntry {
    /// Its name.
    pub name: Box<str>,
    /// The signing domain, a host name; `None` for the author's domain.
    pub domain: Option<Box<str>>,
    /// The selector.
    pub selector: Box<str>,
    /// Where the private key is.
    pub source: KeySource,
    /// The kind of key it must be, if the entry says so.
    pub key_type: Option<KeyType>,
    /// Where the entry stands.
    pub origin: Origin,
}

/// Where a private key is.
#[derive(Debug)]
pub enum KeySource {
    /// In this file; the path starts from the root or from the working directory of the start.
    File(PathBuf),
    /// In a file of the author's domain.
    FilePerDomain {
        /// The directory from which `template` starts if it is relative.
        base: Box<Path>,
        /// The path, each `%` in it standing for the author's domain.
        template: Box<str>,
    },
    /// In the entry itself.
    Inline(InlineKey),
    /// In the token that this URI names.
    Token(Box<Uri>),
}

/// The text of a private key, base64 or PEM; wiped when dropped and never shown.
pub struct InlineKey(Zeroizing<String>);

/// An entry as it applies to one author.
#[derive(Debug)]
pub struct SigningKeyChoice<'t> {
    /// The signing domain (`d=`), a host name.
    pub domain: Cow<'t, str>,
    /// The selector (`s=`).
    pub selector: &'t str,
    /// Where the private key is.
    pub source: SigningKeySource<'t>,
    /// The kind of key it must be, if the entry says so.
    pub key_type: Option<KeyType>,
    /// Where the entry stands.
    pub origin: &'t Origin,
}

/// Where the private key of a [`SigningKeyChoice`] is.
#[derive(Debug)]
pub enum SigningKeySource<'t> {
    /// In this file.
    File(Cow<'t, Path>),
    /// In the table.
    Inline(&'t InlineKey),
    /// In the token that this URI names.
    Token(&'t Uri),
}

/// The author's domain cannot stand for `%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the author's domain is no host name, so it cannot stand for \"%\" in the key table")]
pub struct NotAHostName;

impl KeyTable {
    /// Reads and checks `set`.
    ///
    /// What is wrong or odd goes to `findings`; with an error among it, the table must not be used.
    pub fn open(set: &DataSet<'_>, findings: &mut Findings) -> Self {
        let mut table = Self::default();
        if let Some(opened) = set.find_source(findings) {
            let has_patterns = opened.has_patterns();
            opened.read(
                findings,
                &mut |entry, findings| match parse_entry(set.base, &entry) {
                    Ok(parsed) => table.add(set.option, parsed, has_patterns, findings),
                    Err(fault) => findings.error(set.option, entry.origin, fault),
                },
            );
        }
        table
    }

    /// The entry called `name`; of several, the first in the table.
    pub fn look_up(&self, name: &str) -> Option<&KeyEntry> {
        let exact = self.by_name.get(name).copied();
        let pattern = self
            .patterns
            .iter()
            .copied()
            .take_while(|&number| exact.is_none_or(|exact| number < exact))
            .find(|&number| {
                self.entries
                    .get(number as usize)
                    .is_some_and(|entry| wildcard::matches(entry.name.as_bytes(), name.as_bytes()))
            });
        self.entries.get(pattern.or(exact)? as usize)
    }

    /// Every entry, in order, to load and check what can be before mail arrives.
    pub fn entries(&self) -> impl Iterator<Item = &KeyEntry> {
        self.entries.iter()
    }

    fn add(
        &mut self,
        option: &'static str,
        entry: KeyEntry,
        has_patterns: bool,
        findings: &mut Findings,
    ) {
        let Ok(number) = u32::try_from(self.entries.len()) else {
            return;
        };
        if has_patterns && entry.name.contains('*') {
            self.patterns.push(number);
        } else {
            let first = *self.by_name.entry(entry.name.clone()).or_insert(number);
            if first != number {
                let note = TableNote::Twice {
                    key: shown(&entry.name),
                    first: self.entries[first as usize].origin.clone(),
                    by_multiple: false,
                };
                findings.warning(option, entry.origin.clone(), note);
            }
        }
        self.entries.push(entry);
    }
}

impl KeyEntry {
    /// What the entry says for mail of an author at `author_domain`.
    ///
    /// # Errors
    /// The entry needs the author's domain, and `author_domain` is no host name in lower case: it could name any file,
    /// or a signing domain that is none.
    pub fn for_author(&self, author_domain: &str) -> Result<SigningKeyChoice<'_>, NotAHostName> {
        let author = || {
            let fits = is_host_name(author_domain);
            fits.then_some(author_domain).ok_or(NotAHostName)
        };
        Ok(SigningKeyChoice {
            domain: match &self.domain {
                Some(domain) => Cow::Borrowed(domain),
                None => Cow::Owned(author()?.to_owned()),
            },
            selector: &self.selector,
            source: match &self.source {
                KeySource::File(path) => SigningKeySource::File(Cow::Borrowed(path)),
                KeySource::FilePerDomain { base, template } => {
                    let path = resolve(base, template.replace(AUTHOR_DOMAIN, author()?));
                    SigningKeySource::File(Cow::Owned(path))
                }
                KeySource::Inline(key) => SigningKeySource::Inline(key),
                KeySource::Token(uri) => SigningKeySource::Token(uri),
            },
            key_type: self.key_type,
            origin: &self.origin,
        })
    }
}

impl InlineKey {
    /// The key's text; for the reader of keys only.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for InlineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InlineKey(..)")
    }
}

/// What stands for the author's domain: as the whole of the domain field, anywhere in a path.
const AUTHOR_DOMAIN: &str = "%";

/// Shorter base64 holds no key: the 32 octets of an Ed25519 key take 44 characters.
const SHORTEST_INLINE_KEY: usize = 43;

fn parse_entry(base: &Path, entry: &Entry<'_>) -> Result<KeyEntry, TableFault> {
    let name = || shown(entry.key);
    let mut fields = entry
        .value
        .unwrap_or_default()
        .splitn(3, ':')
        .map(str::trim);
    let (Some(domain), Some(selector), Some(rest)) = (fields.next(), fields.next(), fields.next())
    else {
        return Err(TableFault::KeyFields { name: name() });
    };
    if domain.is_empty() || selector.is_empty() || rest.is_empty() {
        return Err(TableFault::KeyFields { name: name() });
    }
    let (source, key_type) = parse_key(base, entry.key, rest)?;
    let bad_domain = || TableFault::BadSigningDomain {
        name: name(),
        domain: shown(domain),
    };
    if !is_selector(selector) {
        let selector = shown(selector);
        return Err(TableFault::BadSelector {
            name: name(),
            selector,
        });
    }
    Ok(KeyEntry {
        name: entry.key.into(),
        domain: match domain {
            AUTHOR_DOMAIN => None,
            _ => Some(to_host_name(domain).ok_or_else(bad_domain)?.into()),
        },
        selector: selector.into(),
        source,
        key_type,
        origin: entry.origin.clone(),
    })
}

/// The third field and, behind a colon, the fourth.
fn parse_key(
    base: &Path,
    name: &str,
    fields: &str,
) -> Result<(KeySource, Option<KeyType>), TableFault> {
    let name = || shown(name);
    if Uri::is_meant(fields.as_bytes()) {
        let (uri, key_type) = split_uri(fields);
        let uri = Uri::parse(uri.as_bytes()).map_err(|fault| TableFault::TokenUri {
            name: name(),
            fault,
        })?;
        return Ok((KeySource::Token(seen_from(base, Box::new(uri))), key_type));
    }
    let (key, algorithm) = match fields.split_once(':') {
        Some((key, algorithm)) => (key.trim(), Some(algorithm.trim())),
        None => (fields, None),
    };
    let key_type = match algorithm {
        None => None,
        Some("rsa-sha256") => Some(KeyType::Rsa),
        Some("ed25519-sha256") => Some(KeyType::Ed25519),
        Some("rsa-sha1") => return Err(TableFault::Sha1 { name: name() }),
        Some(algorithm) => {
            let algorithm = shown(algorithm);
            return Err(TableFault::BadAlgorithm {
                name: name(),
                algorithm,
            });
        }
    };
    let source = if ["/", "./", "../"]
        .iter()
        .any(|start| key.starts_with(start))
    {
        if key.contains(AUTHOR_DOMAIN) {
            KeySource::FilePerDomain {
                base: base.into(),
                template: key.into(),
            }
        } else {
            KeySource::File(resolve(base, key))
        }
    } else if is_inline_key(key) {
        KeySource::Inline(InlineKey(Zeroizing::new(key.to_owned())))
    } else {
        return Err(TableFault::NeitherPathNorKey { name: name() });
    };
    Ok((source, key_type))
}

/// The URI, and the algorithm behind it. A colon may stand in the URI too, as in `pin-source=file:/path`.
fn split_uri(fields: &str) -> (&str, Option<KeyType>) {
    for (algorithm, key_type) in [
        ("rsa-sha256", KeyType::Rsa),
        ("ed25519-sha256", KeyType::Ed25519),
    ] {
        if let Some(uri) = fields
            .strip_suffix(algorithm)
            .and_then(|rest| rest.trim_end().strip_suffix(':'))
        {
            return (uri.trim_end(), Some(key_type));
        }
    }
    (fields, None)
}

/// Whether `text` has the form of a private key in one line; whether it is one, its reader will find.
fn is_inline_key(text: &str) -> bool {
    let is_base64 = |o: u8| o.is_ascii_alphanumeric() || matches!(o, b'+' | b'/' | b'=' | b' ');
    text.starts_with("-----BEGIN ")
        || text.len() >= SHORTEST_INLINE_KEY && text.bytes().all(is_base64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::test_dir::TestDir;
    use std::fmt::Write;

    fn open(kind: &str, content: &str) -> (KeyTable, Vec<String>, Vec<String>) {
        let dir = TestDir::new("keys");
        dir.write("T", content);
        let mut findings = Findings::default();
        let set = DataSet {
            option: "KeyTable",
            text: &format!("{kind}:{}", dir.path("T").display()),
            origin: Origin::Default,
            base: "/base".as_ref(),
        };
        let table = KeyTable::open(&set, &mut findings);
        let (errors, warnings) = findings.finish(|_| Origin::Default);
        let told = |text: String| text.replace(&format!("{}/", dir.root().display()), "");
        (
            table,
            errors.iter().map(|error| told(error.to_string())).collect(),
            warnings
                .iter()
                .map(|warning| told(warning.to_string()))
                .collect(),
        )
    }

    /// `d= s= path` for an author.
    fn told(entry: &KeyEntry, author_domain: &str) -> Result<String, NotAHostName> {
        let choice = entry.for_author(author_domain)?;
        let source = match choice.source {
            SigningKeySource::File(path) => path.display().to_string(),
            SigningKeySource::Inline(key) => key.text().to_owned(),
            SigningKeySource::Token(uri) => uri.to_string(),
        };
        Ok(format!("{} {} {source}", choice.domain, choice.selector))
    }

    #[test]
    fn names_are_found_exactly() {
        let names = [
            "bvv",
            "bvvvolley",
            "b*",
            "b.v",
            "b?",
            "[b]",
            "b%",
            "%",
            "BVV",
        ];
        for reversed in [false, true] {
            let mut lines: Vec<String> = names
                .iter()
                .zip('a'..)
                .map(|(name, selector)| format!("{name} d.example:{selector}:/k\n"))
                .collect();
            if reversed {
                lines.reverse();
            }
            let (table, errors, _) = open("file", &lines.concat());
            assert_eq!(errors, [""; 0]);
            for (name, selector) in names.iter().zip('a'..) {
                let entry = table.look_up(name).unwrap();
                assert_eq!(&*entry.selector, selector.to_string(), "{name}");
            }
            for absent in ["bv", "bvvv", "bxv", "", "x"] {
                assert!(table.look_up(absent).is_none(), "{absent}");
            }
        }
    }

    #[test]
    fn a_refile_has_patterns_and_the_first_match_counts() {
        let (table, errors, _) = open(
            "refile",
            "one a.example:s:/1\n*.d b.example:s:/2\nx.d c.example:s:/3\na+ d.example:s:/4\n",
        );
        assert_eq!(errors, [""; 0]);
        for (name, domain) in [
            ("one", Some("a.example")),
            ("x.d", Some("b.example")),
            ("aa", None),
            ("a+", Some("d.example")),
        ] {
            assert_eq!(
                table
                    .look_up(name)
                    .and_then(|entry| entry.domain.as_deref()),
                domain,
                "{name}"
            );
        }
    }

    #[test]
    fn percent_is_an_author_domain_only_if_that_is_a_host_name() {
        let (table, ..) = open(
            "file",
            "one %:mail:../k.pem\nper %:mail:./keys/%/%.pem\nabs a.example:s:/keys/%\nfix a.example:s:/k\n",
        );
        let entry = |name| table.look_up(name).unwrap();
        let domain = "shop.example";
        for (name, wanted) in [
            ("one", "shop.example mail /base/../k.pem"),
            (
                "per",
                "shop.example mail /base/keys/shop.example/shop.example.pem",
            ),
            ("abs", "a.example s /keys/shop.example"),
            ("fix", "a.example s /k"),
        ] {
            assert_eq!(told(entry(name), domain).as_deref(), Ok(wanted), "{name}");
        }
        for hostile in [
            "../../etc/passwd",
            "a/b.example",
            "%.example",
            "..",
            "",
            "a\0b",
            "SHOP.example",
        ] {
            for name in ["one", "per", "abs"] {
                assert_eq!(
                    told(entry(name), hostile),
                    Err(NotAHostName),
                    "{name} {hostile}"
                );
            }
            assert!(
                told(entry("fix"), hostile).is_ok(),
                "needs no author domain"
            );
        }
    }

    #[test]
    fn fields_are_read_and_normalized() {
        let seed = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
        let (table, errors, _) = open(
            "file",
            &format!(
                "a B\u{fc}cher.Example.:2024.s_1:/k:rsa-sha256\nb b.example : S : {seed} : ed25519-sha256\nc c.example:s:-----BEGIN x\n"
            ),
        );
        assert_eq!(errors, [""; 0]);
        let entry = |name| table.look_up(name).unwrap();
        assert_eq!(
            told(entry("a"), "x").as_deref(),
            Ok("xn--bcher-kva.example 2024.s_1 /k")
        );
        assert_eq!(entry("a").key_type, Some(KeyType::Rsa));
        assert_eq!(told(entry("b"), "x"), Ok(format!("b.example S {seed}")));
        assert_eq!(entry("b").key_type, Some(KeyType::Ed25519));
        assert_eq!(entry("c").key_type, None);
        assert!(
            !format!("{table:?}").contains(seed),
            "a private key is never shown"
        );
    }

    #[test]
    fn malformed_entries_are_told_with_their_lines() {
        let content = "a\nb b.example:s\nc c.example::/k\nd %x:s:/k\ne e.example:a b:/k\nf f.example:s:keys/f.pem\n\
                       g g.example:s:mailkey\nh h.example:s:/k:sha\ni i.example:s:/k:rsa-sha1\n\
                       j j.example:s:pkcs11:objcet=j;type=private\nok ok.example:s:/k\n";
        let (table, errors, _) = open("file", content);
        let wanted = [
            "T:1: KeyTable: key \"a\" is not followed by domain:selector:key",
            "T:2: KeyTable: key \"b\" is not followed by domain:selector:key",
            "T:3: KeyTable: key \"c\" is not followed by domain:selector:key",
            "T:4: KeyTable: signing domain \"%x\" of key \"d\" is neither a domain name nor \"%\"",
            "T:5: KeyTable: selector \"a b\" of key \"e\" is not of the form label[.label...]",
            "T:6: KeyTable: the third field of key \"f\" is neither a path",
            "T:7: KeyTable: the third field of key \"g\" is neither a path",
            "T:8: KeyTable: the fourth field of key \"h\" is \"sha\"; wanted: rsa-sha256",
            "T:9: KeyTable: key \"i\" asks for rsa-sha1, which must not be used to sign (RFC 8301 section 3.1)",
            "T:10: KeyTable: key \"j\": ",
        ];
        assert_eq!(errors.len(), wanted.len(), "{errors:#?}");
        for (error, wanted) in errors.iter().zip(wanted) {
            assert!(error.starts_with(wanted), "{error}");
        }
        assert!(table.look_up("ok").is_some());
    }

    #[test]
    fn a_key_in_a_token_is_named_by_its_uri() {
        let (table, errors, _) = open(
            "file",
            "a a.example:s:pkcs11:token=t;object=a%20b\n\
             b %:s:PKCS11:object=b?pin-source=file:/run/pin : ed25519-sha256\n",
        );
        assert_eq!(errors, [""; 0]);
        let entry = |name| table.look_up(name).unwrap();
        assert_eq!(
            told(entry("a"), "x").as_deref(),
            Ok("a.example s pkcs11:token=t;object=a%20b")
        );
        assert_eq!(entry("a").key_type, None);
        assert!(
            told(entry("b"), "x.example")
                .unwrap()
                .starts_with("x.example s pkcs11:object=b?pin-source=")
        );
        assert_eq!(entry("b").key_type, Some(KeyType::Ed25519));
    }

    #[test]
    fn of_one_name_the_first_entry_counts_and_the_second_is_warned_of() {
        let (table, _, warnings) = open("file", "k a.example:s:/1\nk b.example:s:/2\n");
        assert_eq!(
            table.look_up("k").and_then(|entry| entry.domain.as_deref()),
            Some("a.example")
        );
        assert_eq!(
            warnings,
            ["T:2: KeyTable: \"k\" stands already at T:1, which counts"]
        );
    }

    #[test]
    fn many_keys_are_looked_up_by_hash() {
        let content = (0..50_000).fold(String::new(), |mut content, number| {
            let _ = writeln!(
                content,
                "d{number:06}.example d{number:06}.example:r:../_keys/k.pem"
            );
            content
        });
        let (table, errors, _) = open("file", &content);
        assert_eq!(errors, [""; 0]);
        assert_eq!((table.entries().count(), table.patterns.len()), (50_000, 0));
        for (name, found) in [
            ("d000000.example", true),
            ("d025000.example", true),
            ("d049999.example", true),
            ("d050000.example", false),
        ] {
            let entry = table.look_up(name);
            assert_eq!(entry.is_some(), found);
            assert!(entry.is_none_or(|entry| entry.domain.as_deref() == Some(name)));
        }
    }
}
