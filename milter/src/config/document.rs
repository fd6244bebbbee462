//! The manual page and the annotated sample, printed from the table of options.

use std::fmt::Write;

use super::options::{self, Preset, SECTIONS, Sample, Spec, Weight};

/// The manual page dkim-milter.conf(5), in mdoc.
pub fn manual_page() -> String {
    let mut page = String::from(PAGE_HEAD);
    // Writing to a String cannot fail; so below.
    for section in &SECTIONS {
        let _ = writeln!(page, ".Ss {}\n.Bl -tag -width Ds", escape(section.title));
        for spec in section.options {
            let _ = writeln!(page, ".It Cm {} Ar {}", spec.name, quote(spec.form));
            let _ = writeln!(page, "{}", text_lines(spec.about, 78));
            let _ = match spec.default {
                Preset::Value(value) => writeln!(page, ".Pp\nDefault:\n.Li {}", quote(value)),
                Preset::Unset(meaning) => writeln!(page, ".Pp\nDefault: {}.", escape(meaning)),
            };
            let example = quote(&format!("{} {}", spec.name, spec.example));
            let _ = writeln!(
                page,
                ".Pp
Example:
.Dl {example}"
            );
        }
        page.push_str(".El\n");
    }
    page.push_str(PAGE_URIS);
    page.push_str(PAGE_NOT_CARRIED);
    for option in options::NOT_CARRIED {
        let _ = writeln!(
            page,
            ".It Cm {} Pq {}",
            option.name,
            weight_words(option.weight)
        );
        let _ = writeln!(page, "{}", text_lines(&sentence(option.why), 78));
    }
    page.push_str(".El\n");
    page.push_str(PAGE_TAIL);
    page
}

/// The sample dkim-milter.conf, every option with its description.
pub fn sample() -> String {
    let mut sample = String::from(SAMPLE_HEAD);
    for section in &SECTIONS {
        let _ = write!(sample, "\n##\n## {}\n##\n", section.title);
        for spec in section.options {
            let _ = write!(sample, "\n{}", sample_entry(spec));
        }
    }
    sample
}

fn sample_entry(spec: &Spec) -> String {
    let mut entry = String::new();
    for line in wrap(spec.about, 76) {
        let _ = writeln!(entry, "## {line}");
    }
    let _ = match spec.default {
        Preset::Value(value) => writeln!(entry, "## Default: {value}"),
        Preset::Unset(meaning) => writeln!(entry, "## Default: {meaning}"),
    };
    let mark = if spec.sample == Sample::Active {
        ""
    } else {
        "#"
    };
    let _ = writeln!(entry, "{mark}{} {}", spec.name, spec.example);
    entry
}

fn weight_words(weight: Weight) -> String {
    match weight {
        Weight::Harmless => "warning".to_owned(),
        Weight::UnlessNo => "warning with no, otherwise an error".to_owned(),
        Weight::Unless(value) => format!("warning with {value}, otherwise an error"),
        Weight::Error => "error".to_owned(),
    }
}

/// `why` as a sentence of its own.
fn sentence(why: &str) -> String {
    let mut letters = why.chars();
    let first = letters
        .next()
        .map(|letter| letter.to_uppercase().to_string())
        .unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

/// `text` in lines that troff takes as text.
fn text_lines(text: &str, width: usize) -> String {
    wrap(text, width)
        .iter()
        .map(|line| escape(line))
        .collect::<Vec<_>>()
        .join("\n")
}

/// `text` in lines of at most `width` characters, as far as its words allow.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// `text` without what troff would take for a request or an escape.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e");
    match text.as_bytes().first() {
        Some(b'.' | b'\'') => format!("\\&{text}"),
        _ => text,
    }
}

/// `value` as one argument of a macro.
fn quote(value: &str) -> String {
    format!("\"{}\"", escape(value).replace('"', "\"\""))
}

const PAGE_HEAD: &str = r#".\" Printed from the table of options; to change it, change that.
.Dd November 30, 2026
.Dt DKIM-MILTER.CONF 5
.Os
.Sh NAME
.Nm dkim-milter.conf
.Nd configuration of dkim-milter
.Sh DESCRIPTION
The language of this file is that of
.Xr opendkim.conf 5 ,
so that a file in use there can be used here.
Each line has the name of an option, blanks, and a value.
Case does not count in names.
Everything from a
.Ql #
on is a comment, also inside a value, and empty lines mean nothing.
An option that is set twice has the value of the later line;
.Cm Socket
has both.
What
.Xr dkim-milter 8
is given with
.Fl -set
or
.Fl p
counts for more than the file.
.Pp
Yes and no are told by the first letter of the value: y, t and 1, or n, f and 0.
.Pp
.Dl dkim-milter -n -x dkim-milter.conf
.Pp
checks a file: every fault is told with its file and line, and the exit status is not 0 if there is one.
.Ss Data sets
A value that is called a data set below is a list or the name of a file with a list:
.Bl -tag -width Ds
.It Ar element , element , ...
A list, its elements separated by commas.
One that has a value is written
.Li key=value .
.Li csl:
may stand before the list.
.It Cm file: Ns Ar path
.It Ar /path
A file with one element on each line; what follows the first blank is its value.
.It Cm refile: Ns Ar path
Such a file, where each
.Ql *
in an element stands for any text and every other character for itself.
.El
.Pp
A single dot is an empty list.
Files are read at start and when the configuration is reloaded.
Domain names may be written with U-labels or A-labels.
.Sh OPTIONS
"#;

const PAGE_URIS: &str = r#".Sh PKCS#11 URIS
A key in a token is named by a URI (RFC 7512), in
.Cm KeyTable
and
.Cm KeyFile :
.Pp
.Dl "pkcs11:token=mail;object=2026a?pin-source=/etc/dkim/pin"
.Pp
Attributes before the
.Ql \&?
say which token and which key, and have
.Ql \&;
between them; all that are given must fit, and exactly one key must be left.
Those after it say how to get at the key, and have
.Ql &
between them.
Names are in lower case, and each is given once.
In values, letters, digits and
.Li \-._~:[]@!$'()*+,=
stand for themselves, as do
.Ql / ,
.Ql \&?
and
.Ql |
after the
.Ql \&? ;
any other octet is written as
.Ql %
and two hexadecimal digits, as
.Li %20
for a blank.
.Xr dkim-testkey 1
.Pq Fl -list
prints URIs of the keys that there are.
.Pp
Which token:
.Bl -tag -width Ds
.It Cm token Ns = Ns Ar label
The token's label.
.It Cm serial Ns = Ns Ar number
Its serial number, which tells apart tokens of the same label.
.It Cm manufacturer Ns = Ns Ar text
.It Cm model Ns = Ns Ar text
Who made the token, and its model.
.It Cm slot-id Ns = Ns Ar number
The number of its slot, in decimal.
Most modules change it at will, so better leave it out.
.It Cm slot-description Ns = Ns Ar text
.It Cm slot-manufacturer Ns = Ns Ar text
What the slot says of itself.
.It Cm library-description Ns = Ns Ar text
.It Cm library-manufacturer Ns = Ns Ar text
.It Cm library-version Ns = Ns Ar major.minor
What the module says of itself.
.El
.Pp
Which key:
.Bl -tag -width Ds
.It Cm object Ns = Ns Ar label
The key's label (CKA_LABEL).
.It Cm id Ns = Ns Ar octets
Its identifier (CKA_ID), mostly octets that no keyboard has:
.Li id=%01 .
.It Cm type Ns = Ns Cm private
The kind of object (CKA_CLASS).
It need not be given, as no other than a private key signs.
.El
.Pp
After the
.Ql \&? :
.Bl -tag -width Ds
.It Cm module-path Ns = Ns Ar /path
The module, a shared library, for this key instead of
.Cm Pkcs11Module .
.It Cm module-name Ns = Ns Ar name
The same, by its name without
.Pa lib
and
.Pa .so ,
to be found where packages put modules:
.Li softhsm2
is
.Pa /usr/lib/softhsm/libsofthsm2.so .
.It Cm pin-source Ns = Ns Ar path
.It Cm pin-source Ns = Ns Cm credential: Ns Ar name
Where the PIN is, for this key instead of
.Cm Pkcs11PinFile .
.It Cm pin-value Ns = Ns Ar PIN
The PIN itself; refused unless
.Cm Pkcs11AllowPinValue
is set.
.It Cm x-mechanism Ns = Ns Cm auto | rsa-pkcs | sha256-rsa-pkcs
How an RSA key signs: the token signs a hash that software made
.Pq Cm rsa-pkcs ,
or hashes what is to be signed as well
.Pq Cm sha256-rsa-pkcs .
The default is
.Cm auto ,
the first of these that the token has.
(Our own, as is the next.)
.It Cm x-on-token-away Ns = Ns Cm tempfail | next | accept | quarantine
What becomes of mail while this key's token does not sign, instead of what
.Cm On-TokenAway
says.
.El
.Pp
The URI of
.Cm Pkcs11Verify
or
.Cm Pkcs11Digest
names a token and no key, so that it has none of
.Cm object , id , type
and
.Cm x-on-token-away ;
that of
.Cm Pkcs11Digest
has no
.Cm x-mechanism
either.
"#;

const PAGE_NOT_CARRIED: &str = r#".Sh OPTIONS OF OPENDKIM THAT ARE NOT SUPPORTED
A file that has one of these is used with a warning if nothing is lost without it; otherwise it is refused.
.Bl -tag -width Ds
"#;

const PAGE_TAIL: &str = r#".Sh SEE ALSO
.Xr dkim-milter 8 ,
.Xr opendkim.conf 5
.Pp
RFC 6376, RFC 8301, RFC 8463, RFC 8601, RFC 8616
"#;

const SAMPLE_HEAD: &str = "\
## dkim-milter.conf: every option, with its default.
##
## The language is OpenDKIM's: name, blanks, value; \"#\" starts a comment. To check a
## file before it is used: dkim-milter -n -x FILE. The manual is dkim-milter.conf(5).
##
## As it stands, mail is verified and none is signed: for that set Domain, Selector and
## KeyFile, or KeyTable and SigningTable, which are below.
";

#[cfg(test)]
mod tests {
    use super::*;
    use pkcs11_engine::uri::Uri;

    #[test]
    fn every_option_is_in_both() {
        let (page, sample) = (manual_page(), sample());
        for spec in options::all() {
            assert!(
                page.contains(&format!("\n.It Cm {} Ar ", spec.name)),
                "{}",
                spec.name
            );
            let line = format!("{} {}\n", spec.name, spec.example);
            assert!(
                sample.contains(&format!("\n#{line}")) || sample.contains(&format!("\n{line}")),
                "{}",
                spec.name
            );
        }
        for option in options::NOT_CARRIED {
            assert!(
                page.contains(&format!("\n.It Cm {} Pq ", option.name)),
                "{}",
                option.name
            );
        }
    }

    /// The words that the reader of URIs says it knows, from the end of what it says of `uri`.
    fn known_to_uris(uri: &str, before_them: &str) -> Vec<String> {
        let fault = Uri::parse(uri.as_bytes()).unwrap_err().to_string();
        let (_, words) = fault.split_once(before_them).unwrap();
        let words = words.replace(" or ", ", ");
        words.split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn every_attribute_of_uris_is_in_the_page() {
        let page = manual_page();
        let path = known_to_uris("pkcs11:elephant=1", "there can be ");
        let query = known_to_uris("pkcs11:token=a?x-elephant=1", "there can be ");
        assert!(path.len() > 10 && query.len() > 5, "{path:?} {query:?}");
        for name in path.iter().chain(&query) {
            assert!(
                page.contains(&format!("\n.It Cm {name} Ns = Ns ")),
                "{name}"
            );
        }
        for name in ["x-mechanism", "x-on-token-away"] {
            let words = known_to_uris(&format!("pkcs11:token=a?{name}=elephant"), ": it is ");
            let wanted = format!("\n.It Cm {name} Ns = Ns Cm {}\n", words.join(" | "));
            assert!(page.contains(&wanted), "{wanted}");
        }
    }

    #[test]
    fn troff_sees_text_as_text() {
        assert_eq!(text_lines("a .b 'c d", 3), "a\n\\&.b\n\\&'c\nd");
        assert_eq!(text_lines("a .b 'c d", 6), "a .b\n\\&'c d");
        assert_eq!(escape("\\fB"), "\\efB");
        assert_eq!(quote("a \"b\""), "\"a \"\"b\"\"\"");
    }

    #[test]
    fn lines_are_filled_and_never_broken_inside_a_word() {
        assert_eq!(
            wrap("aa bb  cc\ndddddd e", 5),
            ["aa bb", "cc", "dddddd", "e"]
        );
    }
}
