//! Verdict words (RFC 8601 section 2.7.1) and the Authentication-Results field (RFC 8601 section 2.2).
//!
//! [`format_results`] writes our field, and writes nothing by which a message could speak in our name;
//! [`claims_authserv_id`] finds the fields that do so, in whatever shape they come; [`AuthenticationResults`] reads a
//! field that keeps to the grammar. Which results are reported, and which fields are removed, is decided elsewhere.

mod claim;
mod mark;
mod read;
mod write;

pub use claim::claims_authserv_id;
pub use mark::signature_marks;
pub use read::{AuthenticationResults, ReadError, ReadProperty, ReadResult};
pub use write::{MAX_VALUE_LENGTH, MethodResult, Property, format_results};

/// The result of one DKIM evaluation, in the words of RFC 8601 section 2.7.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResultWord {
    /// The message was not signed.
    None,
    /// A signature was accepted and verified.
    Pass,
    /// A signature was acceptable but did not verify.
    Fail,
    /// A signature verified or not, but local policy does not accept it.
    Policy,
    /// A signature was there, but could not be read.
    Neutral,
    /// It could not be judged now; later it may.
    TempError,
    /// It can never be judged.
    PermError,
}

impl ResultWord {
    /// Every word.
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::Pass,
        Self::Fail,
        Self::Policy,
        Self::Neutral,
        Self::TempError,
        Self::PermError,
    ];

    /// The word as written in an Authentication-Results field.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Policy => "policy",
            Self::Neutral => "neutral",
            Self::TempError => "temperror",
            Self::PermError => "permerror",
        }
    }
}

/// `token` (RFC 2045 section 5.1): what may stand without quotes.
fn is_token_octet(octet: u8) -> bool {
    // As a pattern it is looked up by a mask; a search in a string of octets is now and then compiled as one.
    let is_special = matches!(
        octet,
        b'(' | b')'
            | b'<'
            | b'>'
            | b'@'
            | b','
            | b';'
            | b':'
            | b'\\'
            | b'"'
            | b'/'
            | b'['
            | b']'
            | b'?'
            | b'='
    );
    octet.is_ascii_graphic() && !is_special
}
