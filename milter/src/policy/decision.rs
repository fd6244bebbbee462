//! Sign, verify or leave alone (RFC 6376 sections 5.1 and 6).
//!
//! Mail is signed when it comes from somebody we speak for (an internal host, an authenticated client, what the options
//! `MTA` and `MacroList` name) and its author's domain has a key; other mail is verified. The author is whoever From
//! names: the null sender of a bounce and the login of a submitter decide nothing.

use crate::config::{Config, SignerSource, SingleKey};
use crate::keys::{KeyError, KeyFault, SigningIdentity};
use crate::settings::Settings;
use crate::tables::{KeyTable, Origin, SignerChoice, to_host_name};
use dkim_core::address::{Mailbox, message_authors};
use dkim_core::domain_name::is_within;
use dkim_core::message::HeaderFields;
use dkim_core::signature::Identity;
use pkcs11_engine::uri::OnAway;
use std::fmt;
use std::net::IpAddr;

/// What is known of a message at the end of its header.
pub struct Facts<'a> {
    /// The client's name as the MTA verified it.
    pub client_name: &'a [u8],
    /// The client's address, if it has one.
    pub client_address: Option<IpAddr>,
    /// The value of a macro, by its name without braces.
    pub macros: &'a dyn Fn(&[u8]) -> Option<&'a [u8]>,
    /// A recipient that `DontSignMailTo` names.
    pub exempt_recipient: Option<&'a str>,
    /// The header.
    pub header: &'a HeaderFields,
}

/// What is done with a message.
#[derive(Debug)]
pub enum Decision {
    /// It is signed, once for each order.
    Sign {
        /// The signatures wanted, the first to end on top.
        orders: Vec<Order>,
        /// Why we speak for it.
        trust: Trust,
        /// The author's address, for people to read.
        author: String,
        /// Signatures that are wanted and cannot be made, which is to be no hindrance; why not.
        missing: Vec<String>,
    },
    /// It is verified; why it was not signed, if it might have been.
    Verify {
        /// The reason, in one line.
        unsigned: Option<String>,
    },
    /// Nothing is done but for removing forged results; why.
    LeaveAlone {
        /// The reason, in one line.
        reason: String,
    },
    /// It should be signed and cannot be; why.
    CannotSign {
        /// The reason, in one line.
        reason: String,
        /// If the key is in a token that is away, what becomes of the message.
        on_away: Option<OnAway>,
    },
}

/// One signature that is wanted.
#[derive(Debug)]
pub struct Order {
    /// Key, domain and selector.
    pub signer: SigningIdentity,
    /// What `i=` is to say.
    pub identity: Option<Identity>,
    /// The order, by its place, that this one is carried out in place of if that one's token is away, and else not at all.
    pub instead_of: Option<usize>,
}

/// Why we speak for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Its client is in `InternalHosts`.
    InternalHost,
    /// Its client has authenticated.
    Authenticated {
        /// The login's name.
        login: String,
    },
    /// It came in by a listener that `MTA` names.
    Listener(String),
    /// A macro has a value that `MacroList` names.
    Macro,
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InternalHost => f.write_str("internal host"),
            Self::Authenticated { login } if login.is_empty() => f.write_str("authenticated"),
            Self::Authenticated { login } => write!(f, "authenticated as {login}"),
            Self::Listener(name) => write!(f, "MTA {name}"),
            Self::Macro => f.write_str("MacroList"),
        }
    }
}

/// Whether mail from this client is passed on without a look (`PeerList`).
pub fn is_peer(settings: &Settings, client_name: &[u8], client_address: Option<IpAddr>) -> bool {
    settings
        .config
        .selection
        .peer_list
        .contains(Some(client_name), client_address)
}

/// Decides on a message.
pub fn decide(settings: &Settings, facts: &Facts<'_>) -> Decision {
    let config = &settings.config;
    if let Ok(author) = author(facts.header)
        && config
            .selection
            .exempt_domains
            .contains(author.host.as_bytes())
    {
        let reason = format!("{} is in ExemptDomains", author.host);
        return Decision::LeaveAlone { reason };
    }
    let trust = trust(config, facts);
    let is_external = trust.is_none();
    let unsigned = match (config.mode.sign, trust) {
        (false, _) => None,
        (true, None) => external_sender(settings, facts),
        (true, Some(trust)) => match orders(settings, facts) {
            Ok((Orders { orders, missing }, author)) => {
                return Decision::Sign {
                    orders,
                    trust,
                    author,
                    missing,
                };
            }
            Err(Unsigned::Because(reason)) => Some(reason),
            Err(Unsigned::KeyFault { reason, then }) => {
                let on_away = match then {
                    Then::Away(on_away) => Some(on_away),
                    Then::Stop | Then::Other => None,
                };
                return Decision::CannotSign { reason, on_away };
            }
        },
    };
    match unsigned {
        unsigned if config.mode.verify => Decision::Verify { unsigned },
        None => Decision::LeaveAlone {
            reason: "client is external, and Mode is to sign only".into(),
        },
        // That it is a stranger's is no reason to leave it alone: it would be verified.
        Some(reason) if is_external => Decision::LeaveAlone {
            reason: format!("{reason}, and Mode is to sign only"),
        },
        Some(reason) => Decision::LeaveAlone { reason },
    }
}

/// Why a message is not signed.
enum Unsigned {
    /// Nobody wants it signed.
    Because(String),
    /// Its key cannot be used.
    KeyFault { reason: String, then: Then },
}

/// What is to be done when a key cannot be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The message is not to pass as if nothing were.
    Stop,
    /// What is said for a token that is away.
    Away(OnAway),
    /// Another key of the author's is to be used, if there is one.
    Other,
}

impl Then {
    /// Whether the message may be signed without this key.
    fn may_go_on(self) -> bool {
        matches!(
            self,
            Self::Other | Self::Away(OnAway::Next | OnAway::Accept)
        )
    }

    /// Whether a further key of the author's stands in.
    fn wants_other(self) -> bool {
        matches!(self, Self::Other | Self::Away(OnAway::Next))
    }
}

/// The signatures wanted.
struct Orders {
    orders: Vec<Order>,
    /// Why some others cannot be made, which is to be no hindrance.
    missing: Vec<String>,
}

fn trust(config: &Config, facts: &Facts<'_>) -> Option<Trust> {
    let selection = &config.selection;
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    if let Some(name) = (facts.macros)(b"daemon_name")
        && selection.mta.contains(name)
    {
        return Some(Trust::Listener(text(name)));
    }
    if selection
        .macro_list
        .matches(|name| (facts.macros)(name.as_bytes()))
    {
        return Some(Trust::Macro);
    }
    if selection
        .internal_hosts
        .contains(Some(facts.client_name), facts.client_address)
    {
        return Some(Trust::InternalHost);
    }
    let authenticated = (facts.macros)(b"auth_type").is_some_and(|kind| !kind.is_empty());
    authenticated.then(|| Trust::Authenticated {
        login: (facts.macros)(b"auth_authen").map(text).unwrap_or_default(),
    })
}

/// A stranger who writes as one of ours may be a submitter whom nobody configured: worth a word in the log.
fn external_sender(settings: &Settings, facts: &Facts<'_>) -> Option<String> {
    let author = author(facts.header).ok()?;
    let selection = &settings.config.selection;
    let is_ours = match &settings.config.signing.signers {
        None => false,
        Some(SignerSource::Single(single)) => single.signing_domain(&author.host).is_some(),
        Some(SignerSource::Tables { signing, .. }) => {
            !signing.look_up(&author.local_part, &author.host).is_empty()
        }
    };
    let may_be = selection
        .external_ignore_list
        .contains(Some(facts.client_name), facts.client_address);
    (is_ours && !may_be).then(|| format!("external client sends as {}", author.host))
}

/// The signatures wanted, and the author they are for.
fn orders(settings: &Settings, facts: &Facts<'_>) -> Result<(Orders, String), Unsigned> {
    let author = author(facts.header).map_err(Unsigned::Because)?;
    if let Some(recipient) = facts.exempt_recipient {
        let reason = format!("recipient {recipient} is in DontSignMailTo");
        return Err(Unsigned::Because(reason));
    }
    let orders = match &settings.config.signing.signers {
        None => Err(Unsigned::Because("no key is configured".into())),
        Some(SignerSource::Single(single)) => {
            single_order(settings, single, &author).map(|order| Orders {
                orders: vec![order],
                missing: Vec::new(),
            })
        }
        Some(SignerSource::Tables { signing, keys }) => {
            let choices = signing.look_up(&author.local_part, &author.host);
            if choices.is_empty() {
                let reason = format!("no entry for {} in SigningTable", author.host);
                return Err(Unsigned::Because(reason));
            }
            let further = || signing.further(&author.local_part, &author.host);
            table_orders(settings, keys, &choices, further, &author)
        }
    };
    orders.map(|orders| (orders, author.shown))
}

fn single_order(
    settings: &Settings,
    single: &SingleKey,
    author: &Author,
) -> Result<Order, Unsigned> {
    let domain = single
        .signing_domain(&author.host)
        .ok_or_else(|| Unsigned::Because(format!("{} is not in Domain", author.host)))?;
    let origin = settings
        .config
        .origin("KeyFile")
        .unwrap_or(&Origin::Default);
    let signer = settings.keys.single(origin, single, domain)?;
    // RFC 6376 section 3.10: the parent's key signs for a domain beneath it in the name of that domain.
    let identity = (domain != author.host).then(|| Identity {
        local_part: Vec::new(),
        domain: author.host.clone(),
    });
    Ok(Order {
        signer,
        identity,
        instead_of: None,
    })
}

/// The orders of the `choices`. Where a key whose token is away is to be stood in for, those of `further` choices follow.
fn table_orders<'t>(
    settings: &Settings,
    table: &KeyTable,
    choices: &[SignerChoice<'t>],
    further: impl FnOnce() -> Vec<SignerChoice<'t>>,
    author: &Author,
) -> Result<Orders, Unsigned> {
    let mut orders = Vec::new();
    let mut missing = Vec::new();
    // What is to be done if no key signs.
    let mut refusal = None;
    for choice in choices {
        match table_order(settings, table, choice, author) {
            Ok(order) => orders.push(order),
            Err(Unsigned::KeyFault { reason, then }) if then.may_go_on() => {
                missing.push(reason.clone());
                refusal.get_or_insert(Unsigned::KeyFault { reason, then });
            }
            Err(unsigned) => return Err(unsigned),
        }
    }
    let is_next = |order: &Order| order.signer.on_away == Some(OnAway::Next);
    let wants_next = match (&orders[..], &refusal) {
        ([order], None) => is_next(order),
        ([], Some(Unsigned::KeyFault { then, .. })) => then.wants_other(),
        _ => false,
    };
    if wants_next {
        for choice in further() {
            match table_order(settings, table, &choice, author) {
                Ok(order) => {
                    let is_last = !is_next(&order);
                    let instead_of = orders.len().checked_sub(1);
                    orders.push(Order {
                        instead_of,
                        ..order
                    });
                    if is_last {
                        break;
                    }
                }
                // The next but one may.
                Err(Unsigned::KeyFault { reason, then }) if then.wants_other() => {
                    missing.push(reason);
                }
                Err(_) => break,
            }
        }
    }
    match refusal {
        Some(refusal) if orders.is_empty() => Err(refusal),
        _ => Ok(Orders { orders, missing }),
    }
}

fn table_order(
    settings: &Settings,
    table: &KeyTable,
    choice: &SignerChoice<'_>,
    author: &Author,
) -> Result<Order, Unsigned> {
    let signer = settings
        .keys
        .look_up(table, &choice.key_name, &author.host)
        .ok_or_else(|| {
            let reason = format!(
                "{}: KeyTable has no key {:?}",
                choice.origin, choice.key_name
            );
            Unsigned::KeyFault {
                reason,
                then: Then::Stop,
            }
        })??;
    let identity = choice
        .identity
        .as_deref()
        .and_then(|identity| to_identity(identity, &signer.domain));
    Ok(Order {
        signer,
        identity,
        instead_of: None,
    })
}

impl From<KeyError> for Unsigned {
    fn from(error: KeyError) -> Self {
        let then = match &*error.fault {
            KeyFault::Token { on_away, .. } => Then::Away(*on_away),
            KeyFault::NotPublished(_) => Then::Other,
            _ => Then::Stop,
        };
        Self::KeyFault {
            reason: error.to_string(),
            then,
        }
    }
}

/// `[local-part]@domain`, unless it lies outside the signing domain, where `i=` may not be.
fn to_identity(text: &str, signing_domain: &str) -> Option<Identity> {
    let (local_part, domain) = text.rsplit_once('@')?;
    is_within(domain.as_bytes(), signing_domain.as_bytes()).then(|| Identity {
        local_part: local_part.as_bytes().to_vec(),
        domain: domain.to_owned(),
    })
}

/// The author as tables know one.
struct Author {
    local_part: Vec<u8>,
    /// A host name in lower case, U-labels turned into A-labels.
    host: String,
    /// The address, for people to read.
    shown: String,
}

/// The author of a message, if there is one for whom it can be signed.
fn author(header: &HeaderFields) -> Result<Author, String> {
    let fields = header.named("From").map(|field| field.value());
    let mailboxes = message_authors(fields).map_err(|fault| fault.to_string())?;
    let mut authors = mailboxes.iter().map(to_author);
    let first = authors.next().ok_or("message has no author")??;
    for other in authors {
        if other?.host != first.host {
            return Err("authors of different domains".into());
        }
    }
    Ok(first)
}

fn to_author(mailbox: &Mailbox) -> Result<Author, String> {
    let domain = mailbox.domain_name().map_err(|fault| fault.to_string())?;
    let host = std::str::from_utf8(domain).ok().and_then(to_host_name);
    Ok(Author {
        local_part: mailbox.local_part.clone(),
        host: host.ok_or_else(|| {
            format!(
                "author's domain {:?} is not a host name",
                String::from_utf8_lossy(domain)
            )
        })?,
        shown: mailbox.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use crate::keys::{KeySet, Reader};
    use dkim_core::message::MessageReader;

    /// Why a message of `author` is left alone by Mode s.
    fn reason(author: &str, internal: bool) -> String {
        let overrides = Overrides {
            set: ["Mode=s", "Domain=example.com", "Selector=s", "KeyFile=/k"]
                .map(str::to_owned)
                .to_vec(),
            ..Overrides::default()
        };
        let (config, _) = Config::load(None, &overrides).unwrap();
        let keys = KeySet::load(&config, Reader::current());
        let settings = Settings::new(config, keys, "host".to_owned()).unwrap();
        let mut reader = MessageReader::new(1024);
        let message = format!("From: {author}\r\n\r\n");
        reader.read(message.as_bytes(), |_| {}).unwrap();
        let client = if internal { "127.0.0.1" } else { "192.0.2.1" };
        let facts = Facts {
            client_name: b"client.example",
            client_address: client.parse().ok(),
            macros: &|_| None,
            exempt_recipient: None,
            header: reader.header(),
        };
        match decide(&settings, &facts) {
            Decision::LeaveAlone { reason } => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn mail_that_is_not_verified_is_left_alone_because_of_the_mode() {
        for (author, internal, wanted) in [
            (
                "ann@example.com",
                false,
                "external client sends as example.com, and Mode is to sign only",
            ),
            (
                "ann@other.example",
                false,
                "client is external, and Mode is to sign only",
            ),
            ("ann@other.example", true, "other.example is not in Domain"),
        ] {
            assert_eq!(reason(author, internal), wanted);
        }
    }
}
