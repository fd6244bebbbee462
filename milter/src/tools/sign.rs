//! `dkim-sign`: a message in, the message with its DKIM-Signature fields out (RFC 6376 section 5).
//!
//! The body streams through twice, once to be hashed and once to be written, because signatures stand above it. Which
//! key belongs to which author is for the caller to know: the tool signs with what it is given.

use super::message_input::{CopyError, InputError, MessageInput, shown};
use super::on_token::{OnToken, OnTokenError, uri_parser};
use super::private_key::{KeyError, KeyLoader, KeyName};
use super::token_access::TokenArguments;
use super::{
    EX_DATAERR, EX_OK, EX_SOFTWARE, EX_UNAVAILABLE, EX_USAGE, Failure, OutputError, engine_parser,
    now, say, times, whole_number,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Parser};
use dkim_core::address::{AddressError, NoDomain, authors};
use dkim_core::canonicalization::Canonicalization;
use dkim_core::engine::{Engine, SigningError, SigningKey};
use dkim_core::message::HeaderFields;
use dkim_core::signature::{FIELD_NAME, Identity};
use dkim_core::signer::{
    BodyLength, DEFAULT_FIELDS, FieldChoice, FieldChoiceError, SignRequest, Signer, SignerError,
};
use pkcs11_engine::Fault;
use pkcs11_engine::uri::Uri;
use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NAME: &str = "dkim-sign";

/// Sign a message with DKIM: read it, and write it with a DKIM-Signature field on top.
#[derive(Debug, Parser)]
#[command(
    name = NAME,
    version,
    after_help = "Example: dkim-sign -d example.com -s mail -k mail.private < message > signed",
    after_long_help = "\
Example, RSA beside Ed25519:
  dkim-sign -d example.com -s rsa -k rsa.pem -s ed -k ed.pem message > signed

Example, with a key in a token:
  dkim-sign -d example.com -s mail -k 'pkcs11:token=mail;object=2026a' \\
    --pkcs11-module /usr/lib/softhsm/libsofthsm2.so --pkcs11-pin-file pin message > signed

Exit codes:
  0   signed
  64  the command line makes no sense
  65  not a message, or one that must not be signed
  66  the message or a key cannot be opened
  69  a token is not there, or does not sign now
  70  signing failed
  74  reading or writing failed
  78  a key is no good, or not to be had from its token"
)]
pub struct SignArguments {
    /// Signing domain (d=); once, or once for each selector
    #[arg(short, long = "domain", value_name = "DOMAIN", required = true)]
    domains: Vec<String>,

    /// Selector (s=); its key record is at SELECTOR._domainkey.DOMAIN. Repeat it with -k for several signatures
    #[arg(short, long = "selector", value_name = "SELECTOR", required = true)]
    selectors: Vec<String>,

    /// File with the private key, RSA or Ed25519: PEM, DER, or the base64 of an Ed25519 seed. Or the URI of a key in a
    /// token, pkcs11:...
    #[arg(short, long = "key", value_name = "KEY", required = true)]
    keys: Vec<OsString>,

    /// Canonicalization of header and body (c=); one word alone is for the header, and the body is simple
    #[arg(short, long, value_name = "HEADER/BODY", default_value = "relaxed/relaxed", value_parser = canonicalization_parser())]
    canonicalization: Canonicalization,

    /// Agent or user on whose behalf is signed (i=), LOCAL@DOMAIN or @DOMAIN; once, or once for each selector
    #[arg(short, long = "identity", value_name = "IDENTITY", value_parser = parse_identity)]
    identities: Vec<Identity>,

    /// Header fields to sign where present, names with colons or commas between; a name given n > 1 times stands n times in
    /// h=. Nothing is oversigned then but what --oversign-headers says
    #[arg(long, value_name = "NAMES")]
    sign_headers: Option<String>,

    /// Header fields to sign once more than they are present, so that none can be added [default: From]
    #[arg(long, value_name = "NAMES")]
    oversign_headers: Option<String>,

    /// Seconds after which the signature expires (x=)
    #[arg(long, value_name = "SECONDS", value_parser = whole_number(1_u64..))]
    expire: Option<u64>,

    /// State the length of the body (l=). Anybody can then add to it; it is seldom wise
    #[arg(long)]
    body_length: bool,

    /// Further tag for the signature
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = parse_tag)]
    tags: Vec<(String, String)>,

    /// Time of signing (t=), in seconds since 1970 [default: now]
    #[arg(long, value_name = "EPOCH", value_parser = whole_number(0_u64..))]
    now: Option<u64>,

    /// Write the DKIM-Signature fields alone
    #[arg(long, action = ArgAction::SetTrue)]
    header_only: bool,

    /// Engine to sign with where the key is in a file [default: the first that takes the key]
    #[arg(long, value_name = "NAME", value_parser = engine_parser())]
    engine: Option<&'static dyn Engine>,

    /// PKCS#11 module by which tokens are reached, for keys whose URI has neither module-path nor module-name
    #[arg(long = "pkcs11-module", value_name = "FILE")]
    module: Option<PathBuf>,

    /// Token that hashes the body: pkcs11:token=...
    #[arg(long = "pkcs11-digest", value_name = "URI", value_parser = uri_parser())]
    digest_by: Option<Uri>,

    #[command(flatten)]
    tokens: TokenArguments,

    /// The message, with CRLF or LF line ends; - is standard input
    #[arg(default_value = "-", value_name = "FILE")]
    message: PathBuf,
}

/// Signs as `arguments` say, and writes the result to standard output.
///
/// # Errors
/// Why there is no signature.
pub fn sign(arguments: SignArguments) -> Result<u8, SignError> {
    let tokens = arguments.tokens.with_module(arguments.module.as_deref());
    let token = OnToken::open(NAME, &tokens, None, arguments.digest_by.as_ref())?;
    let signed = KeyLoader::run(NAME, arguments.engine, tokens, |loader| {
        sign_with(&arguments, &token, loader)
    });
    token.finish(signed.as_ref().err().map(ToString::to_string));
    signed
}

fn sign_with(
    arguments: &SignArguments,
    token: &OnToken,
    loader: &mut KeyLoader,
) -> Result<u8, SignError> {
    check_pairs(arguments)?;
    let fields = field_choice(arguments)?;
    let names: Result<Vec<_>, _> = arguments
        .keys
        .iter()
        .map(|key| KeyName::parse(key))
        .collect();
    let names = names?;
    let is_file = |name: &KeyName| matches!(name, KeyName::File(_));
    if arguments.engine.is_some() && !names.iter().any(is_file) {
        return Err(SignError::EngineOfToken);
    }
    let keys: Result<Vec<_>, _> = names.iter().map(|name| loader.load(name)).collect();
    let keys = keys?;

    let mut input = MessageInput::open(&arguments.message, !arguments.header_only)?;
    input.read_header()?;
    check_author(input.header(), &arguments.message)?;
    warn(arguments, &fields, input.header());
    let requests = requests(arguments, &keys, &fields);
    let mut signer = Signer::new(input.header(), requests).map_err(|error| match error {
        SignerError::NoFrom | SignerError::SeveralFrom { .. } => SignError::Message {
            path: arguments.message.clone(),
            source: error,
        },
        error => SignError::Request(error),
    })?;

    let mut on_token = token.body(&signer.to_digest());
    let mut line_ends = LineEnds::default();
    for field in input.header().iter() {
        line_ends.see(field.octets());
        line_ends.see(b"\r\n");
    }
    input.read_body(|chunk| {
        line_ends.see(chunk);
        match &mut on_token {
            Some(body) => body.update(chunk),
            None => signer.body(chunk),
        }
        true
    })?;
    if line_ends.has_bare() {
        say(NAME, &BARE_LINE_ENDS);
    }

    let pieces = match on_token {
        Some(body) => {
            let hashes: Result<Vec<_>, _> = body.finish().into_iter().collect();
            signer.to_sign_with(input.header(), &hashes.map_err(SignError::Digest)?)
        }
        None => signer.to_sign(input.header()),
    };
    let mut signed = String::new();
    for to_sign in pieces {
        let signature = keys[to_sign.request].sign(&to_sign.octets);
        let signature = signature.map_err(|source| SignError::Signing {
            key: names[to_sign.request].clone(),
            source,
        })?;
        // There is a value for each request that was given back to be signed.
        let value = signer.field_value(to_sign.request, &signature);
        let value = value.unwrap_or_default();
        signed.push_str(&format!("{FIELD_NAME}:{value}\r\n"));
    }
    let signed = signed.replace("\r\n", input.line_end());

    let mut output = BufWriter::new(io::stdout().lock());
    if arguments.header_only {
        output
            .write_all(signed.as_bytes())
            .map_err(OutputError::from)?;
    } else {
        input.copy_with(signed.as_bytes(), &mut output)?;
    }
    output.flush().map_err(OutputError::from)?;
    Ok(EX_OK)
}

/// Why a message is not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// A selector without a key, or the other way round.
    #[error("-s is given {} and -k {}: give one key for each selector", times(*selectors), times(*keys))]
    Unpaired {
        /// How often `-s` stands.
        selectors: usize,
        /// How often `-k` stands.
        keys: usize,
    },
    /// It is not clear which signature gets what.
    #[error(
        "{option} is given {} and -s {}: give {option} once, or once for each selector", times(*count), times(*selectors)
    )]
    Count {
        /// The option.
        option: &'static str,
        /// How often it stands.
        count: usize,
        /// How often `-s` stands.
        selectors: usize,
    },
    /// The lists of header fields make no sense.
    #[error("{0} (--sign-headers, --oversign-headers)")]
    Fields(#[from] FieldChoiceError),
    /// The options ask for a signature that must not be made.
    #[error("{0}")]
    Request(SignerError),
    /// `--engine` where no software signs.
    #[error(
        "--engine is for keys in files, and there is none: a key in a token is signed with by its token"
    )]
    EngineOfToken,
    /// The token that is to hash is not there.
    #[error(transparent)]
    Token(#[from] OnTokenError),
    /// The token did not hash the body.
    #[error("the body cannot be hashed (--pkcs11-digest): {0}")]
    Digest(Fault),
    /// A key cannot be had.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// There is no message.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The message has no one author.
    #[error("not signed: {source} ({})", shown(path))]
    Message {
        /// Where it is.
        path: PathBuf,
        /// What is wrong.
        source: SignerError,
    },
    /// The author cannot be read, and others may read another one (RFC 6376 section 5.3).
    #[error(
        "not signed: the From field cannot be read: {source} ({})",
        shown(path)
    )]
    Author {
        /// Where the message is.
        path: PathBuf,
        /// What is wrong.
        source: AddressError,
    },
    /// The author's domain is no name, and others may take it for one that it resembles.
    #[error("not signed: {source} ({})", shown(path))]
    AuthorDomain {
        /// Where the message is.
        path: PathBuf,
        /// What is wrong.
        source: NoDomain,
    },
    /// An engine broke down.
    #[error("{key} cannot sign: {source}")]
    Signing {
        /// The key.
        key: KeyName,
        /// What the engine said.
        source: SigningError,
    },
    /// The result cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The message cannot be written below its signature.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

impl Failure for SignError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Unpaired { .. }
            | Self::Count { .. }
            | Self::Fields(_)
            | Self::Request(_)
            | Self::EngineOfToken => EX_USAGE,
            Self::Token(error) => error.exit_code(),
            Self::Digest(_) => EX_UNAVAILABLE,
            Self::Key(error) => error.exit_code(),
            Self::Input(error) => error.exit_code(),
            Self::Message { .. } | Self::Author { .. } | Self::AuthorDomain { .. } => EX_DATAERR,
            Self::Signing {
                key: KeyName::Token(_),
                ..
            } => EX_UNAVAILABLE,
            Self::Signing { .. } => EX_SOFTWARE,
            Self::Output(error) => error.exit_code(),
            Self::Copy(error) => error.exit_code(),
        }
    }

    fn is_silent(&self) -> bool {
        match self {
            Self::Output(error) => error.is_silent(),
            Self::Copy(error) => error.is_silent(),
            _ => false,
        }
    }
}

const BARE_LINE_ENDS: &str = "warning: message has CR or LF by itself; mail systems change these on the way, and the \
                              signature breaks";

const L_IS_UNSAFE: &str = "warning: with l= anybody can add to the message without breaking the signature (RFC 6376 \
                           section 8.2)";

fn canonicalization_parser() -> impl TypedValueParser<Value = Canonicalization> {
    PossibleValuesParser::new([
        "relaxed/relaxed",
        "relaxed/simple",
        "simple/relaxed",
        "simple/simple",
        "relaxed",
        "simple",
    ])
    .try_map(|value| Canonicalization::parse(value.as_bytes()).ok_or("unknown canonicalization"))
}

fn parse_identity(text: &str) -> Result<Identity, String> {
    let (local_part, domain) = text
        .rsplit_once('@')
        .ok_or("no @ in it: write LOCAL@DOMAIN, or @DOMAIN for nobody in particular")?;
    Ok(Identity {
        local_part: local_part.as_bytes().to_vec(),
        domain: domain.to_owned(),
    })
}

fn parse_tag(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("no = in it: write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn check_pairs(arguments: &SignArguments) -> Result<(), SignError> {
    let selectors = arguments.selectors.len();
    if selectors != arguments.keys.len() {
        return Err(SignError::Unpaired {
            selectors,
            keys: arguments.keys.len(),
        });
    }
    for (option, count) in [
        ("-d", arguments.domains.len()),
        ("-i", arguments.identities.len()),
    ] {
        if count > 1 && count != selectors {
            return Err(SignError::Count {
                option,
                count,
                selectors,
            });
        }
    }
    Ok(())
}

fn field_choice(arguments: &SignArguments) -> Result<Arc<FieldChoice>, SignError> {
    let (sign, oversign) = (&arguments.sign_headers, &arguments.oversign_headers);
    if sign.is_none() && oversign.is_none() {
        return Ok(Arc::default());
    }
    let sign = sign.as_deref().map_or(DEFAULT_FIELDS.to_vec(), names);
    let oversign = oversign.as_deref().map_or(Vec::new(), names);
    Ok(Arc::new(FieldChoice::new(&sign, &oversign)?))
}

fn names(list: &str) -> Vec<&str> {
    list.split([':', ',']).map(str::trim).collect()
}

/// Refuses a From that others may read in another way. How many such fields there may be is the signer's to judge, and
/// an author without a domain, or in another one, the caller's.
fn check_author(header: &HeaderFields, path: &Path) -> Result<(), SignError> {
    for from in header.named("From") {
        let authors = authors(from.value()).map_err(|source| SignError::Author {
            path: path.to_owned(),
            source,
        })?;
        for author in authors {
            if let Err(source @ NoDomain::Invalid(_)) = author.domain_name() {
                return Err(SignError::AuthorDomain {
                    path: path.to_owned(),
                    source,
                });
            }
        }
    }
    Ok(())
}

fn warn(arguments: &SignArguments, fields: &FieldChoice, header: &HeaderFields) {
    if arguments.body_length {
        say(NAME, &L_IS_UNSAFE);
    }
    for name in fields.left_out(header) {
        let warning = format!(
            "warning: {name} is not signed: it has a line of more than 998 octets, which mail systems break"
        );
        say(NAME, &warning);
    }
}

fn requests(
    arguments: &SignArguments,
    keys: &[Arc<dyn SigningKey>],
    fields: &Arc<FieldChoice>,
) -> Vec<SignRequest> {
    let timestamp = arguments.now.unwrap_or_else(now);
    let signatures = arguments.selectors.iter().zip(keys).enumerate();
    signatures
        .map(|(index, (selector, key))| SignRequest {
            domain: of_signature(&arguments.domains, index)
                .cloned()
                .unwrap_or_default(),
            selector: selector.clone(),
            key_type: key.key_type(),
            identity: of_signature(&arguments.identities, index).cloned(),
            canonicalization: arguments.canonicalization,
            fields: Arc::clone(fields),
            timestamp: Some(timestamp),
            expiration: arguments
                .expire
                .map(|seconds| timestamp.saturating_add(seconds)),
            body_length: if arguments.body_length {
                BodyLength::Whole
            } else {
                BodyLength::Unlimited
            },
            extra_tags: arguments.tags.clone(),
        })
        .collect()
}

/// What belongs to the signature at `index`, where one value may stand for all.
fn of_signature<T>(values: &[T], index: usize) -> Option<&T> {
    match values {
        [only] => Some(only),
        values => values.get(index),
    }
}

/// Whether CR and LF come in pairs (RFC 5322 section 2.3).
#[derive(Debug, Default)]
struct LineEnds {
    /// The last octet so far was a CR.
    is_after_cr: bool,
    has_bare: bool,
}

impl LineEnds {
    fn see(&mut self, chunk: &[u8]) {
        let Some(last) = chunk.len().checked_sub(1) else {
            return;
        };
        // Where the next LF must stand.
        let mut expected = self.is_after_cr.then_some(0);
        for at in memchr::memchr2_iter(b'\r', b'\n', chunk) {
            if chunk[at] == b'\n' {
                self.has_bare |= expected.take() != Some(at);
            } else {
                self.has_bare |= expected.replace(at + 1).is_some();
            }
        }
        self.is_after_cr = expected == Some(last + 1);
        self.has_bare |= expected.is_some() && !self.is_after_cr;
    }

    fn has_bare(&self) -> bool {
        self.has_bare || self.is_after_cr
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::check_command_line;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_defined_and_in_the_manual() {
        let manual = include_str!("../../../docs/dkim-sign.1");
        check_command_line(SignArguments::command(), manual);
    }

    #[test]
    fn cr_and_lf_must_come_in_pairs() {
        for (text, bare) in [
            ("", false),
            ("a\r\nb\r\n\r\n", false),
            ("a\nb", true),
            ("a\rb", true),
            ("a\r\r\n", true),
            ("\n", true),
            ("\r", true),
            ("a\r\n\n", true),
        ] {
            for size in 1..5 {
                let mut line_ends = LineEnds::default();
                text.as_bytes()
                    .chunks(size)
                    .for_each(|chunk| line_ends.see(chunk));
                assert_eq!(line_ends.has_bare(), bare, "{text:?} by {size}");
            }
        }
    }
}
