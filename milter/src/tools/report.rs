//! What `dkim-verify` found out about one message, for people and for programs.

use crate::shown::{is_steering, one_line};
use dkim_core::results::ResultWord;
use dkim_core::signature::Identity;
use dkim_core::verifier::Verdict;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::io;

/// One message: with `--json`, one line of output.
#[derive(Debug, Serialize)]
pub(super) struct MessageReport {
    /// As given on the command line, `-` for standard input.
    pub(super) file: String,
    /// One for each DKIM-Signature field, from the top.
    pub(super) signatures: Vec<SignatureReport>,
    /// The addresses in From; none if there is no such field, or several, or one that cannot be read.
    pub(super) authors: Vec<String>,
    /// Why there is nothing to report, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl MessageReport {
    /// Writes the report as JSON, on one line without an end. Programs read what the message has; a terminal sees escapes
    /// for what could play with it.
    pub(super) fn write_json(&self, output: &mut impl io::Write) -> io::Result<()> {
        let mut serializer = serde_json::Serializer::with_formatter(output, HarmlessStrings);
        Ok(self.serialize(&mut serializer)?)
    }
}

/// JSON in which all that steers is escaped, and not only what the grammar wants escaped.
struct HarmlessStrings;

impl serde_json::ser::Formatter for HarmlessStrings {
    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_steering) {
            let (plain, steering) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            let mut characters = steering.chars();
            for unit in characters.by_ref().take(1).flat_map(utf_16) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = characters.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

fn utf_16(character: char) -> Vec<u16> {
    character.encode_utf16(&mut [0; 2]).to_vec()
}

/// One DKIM-Signature field; `None` stands for what the field does not say or nobody could find out.
#[derive(Debug, Serialize)]
pub(super) struct SignatureReport {
    /// Counted from 0 at the top.
    index: usize,
    /// `d=`
    domain: Option<String>,
    /// `s=`
    selector: Option<String>,
    /// `i=`
    identity: Option<String>,
    /// `a=`
    algorithm: Option<String>,
    /// `c=`, header and body
    canonicalization: Option<String>,
    /// The word of RFC 8601.
    result: &'static str,
    /// Why, in one sentence.
    reason: String,
    /// The size of the key.
    key_bits: Option<u32>,
    /// `t=y` in the key record.
    testing: bool,
    /// Octets of the body beyond `l=`.
    unsigned_octets: u64,
}

impl From<&Verdict> for SignatureReport {
    fn from(verdict: &Verdict) -> Self {
        let claims = &verdict.claims;
        Self {
            index: verdict.index,
            domain: claims.domain.clone(),
            selector: claims.selector.clone(),
            identity: claims.identity.as_ref().map(identity),
            algorithm: claims.algorithm.clone(),
            canonicalization: claims.canonicalization.map(|c| c.to_string()),
            result: verdict.result.as_str(),
            reason: verdict.reason.to_string(),
            key_bits: verdict.key_bits,
            testing: verdict.testing,
            unsigned_octets: verdict.unsigned_octets,
        }
    }
}

/// As a line for people.
impl Display for SignatureReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let known = |value: &Option<String>| one_line(value.as_deref().unwrap_or("?"));
        write!(
            f,
            "{} d={} s={} a={}",
            self.result,
            known(&self.domain),
            known(&self.selector),
            known(&self.algorithm)
        )?;
        if let Some(bits) = self.key_bits {
            write!(f, " {bits} bits")?;
        }
        write!(f, ": {}", one_line(&self.reason))?;
        if self.testing {
            f.write_str(" (the domain is testing DKIM, t=y in the key record)")?;
        }
        Ok(())
    }
}

/// The line for people where there is no signature.
pub(super) fn no_signature() -> String {
    format!(
        "{}: message has no DKIM-Signature field",
        ResultWord::None.as_str()
    )
}

/// U+FFFD stands for octets that are not UTF-8.
fn identity(identity: &Identity) -> String {
    let local_part = String::from_utf8_lossy(&identity.local_part);
    format!("{local_part}@{}", identity.domain)
}
