//! Options of OpenDKIM that are known and not carried, why, and what to use instead.
//!
//! Those that do nothing to mail, or whose value asks for what is done anyway, only bring a warning; the others are
//! errors, because a configuration that needs them would not do what it says.

use super::super::values;

/// An option of OpenDKIM that is not carried.
#[derive(Debug)]
pub(in crate::config) struct NotCarried {
    /// Its name.
    pub(in crate::config) name: &'static str,
    /// When it is an error.
    pub(in crate::config) weight: Weight,
    /// Why it is not carried, or what to use instead.
    pub(in crate::config) why: &'static str,
}

/// When an option that is not carried is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum Weight {
    /// Never: it has no effect on mail.
    Harmless,
    /// When its value is yes.
    UnlessNo,
    /// Unless it has this value.
    Unless(&'static str),
    /// Always.
    Error,
}

impl NotCarried {
    /// Whether it is an error with `value`.
    pub(in crate::config) fn is_error(&self, value: &str) -> bool {
        match self.weight {
            Weight::Harmless => false,
            Weight::UnlessNo => values::switch(value) != Ok(false),
            Weight::Unless(wanted) => !value.eq_ignore_ascii_case(wanted),
            Weight::Error => true,
        }
    }
}

use Weight::{Error, Harmless, Unless, UnlessNo};

/// Every such option, by name.
pub(in crate::config) static NOT_CARRIED: &[NotCarried] = &[
    option("ADSPAction", Harmless, ADSP),
    option("ADSPNoSuchDomain", Harmless, ADSP),
    option(
        "AddAllSignatureResults",
        Harmless,
        "every signature gets its result",
    ),
    option(
        "AllowSHA1Only",
        Harmless,
        "SHA-256 is always there, and SHA-1 never counts (RFC 8301)",
    ),
    option("AnonymousStatistics", Harmless, STATISTICS),
    option("ATPSDomains", Error, ATPS),
    option("ATPSHashAlgorithm", Error, ATPS),
    option(
        "AuthservIDWithJobID",
        UnlessNo,
        "the authserv-id is a name alone; the queue ID is in the log line",
    ),
    option("AutoRestart", Harmless, RESTART),
    option("AutoRestartCount", Harmless, RESTART),
    option("AutoRestartRate", Harmless, RESTART),
    option("BodyLengthDB", Error, BODY_LENGTH),
    option("BogusKey", Harmless, DNSSEC),
    option("BogusPolicy", Harmless, ADSP),
    option(
        "CaptureUnknownErrors",
        UnlessNo,
        "use \"On-InternalError quarantine\"",
    ),
    option(
        "ChangeRootDirectory",
        Error,
        "use RootDirectory= of the systemd unit, or a container",
    ),
    option(
        "CheckSigningTable",
        Harmless,
        "the tables are always checked, which takes no time to speak of",
    ),
    option(
        "ConditionalSignatures",
        Error,
        "conditional signatures are not supported",
    ),
    option("DefaultSender", Error, SENDER),
    option("Diagnostics", Harmless, "z= tags are not written"),
    option(
        "DiagnosticDirectory",
        Harmless,
        "the log line says which part of a signature failed",
    ),
    option("DisableADSP", Harmless, ADSP),
    option(
        "DisableCryptoInit",
        Harmless,
        "there is nothing to switch off",
    ),
    option(
        "DNSConnect",
        Harmless,
        "TCP is used when an answer needs it",
    ),
    option(
        "DomainKeysCompat",
        Harmless,
        "key records are read by RFC 6376; DomainKeys (RFC 4870) is historic",
    ),
    option(
        "EnableCoredumps",
        Harmless,
        "use LimitCORE= of the systemd unit or ulimit -c",
    ),
    option("FinalPolicyScript", Error, LUA),
    option(
        "FixCRLF",
        UnlessNo,
        "what the MTA hands over is signed as it is; let the MTA normalize line ends",
    ),
    option("FlowData", Error, RATE_LIMITS),
    option("FlowDataFactor", Error, RATE_LIMITS),
    option("FlowDataTTL", Error, RATE_LIMITS),
    option("IdentityHeader", Error, "use the identity in SigningTable"),
    option(
        "IdentityHeaderRemove",
        UnlessNo,
        "use the identity in SigningTable",
    ),
    option(
        "IgnoreMalformedMail",
        UnlessNo,
        "malformed mail gets its result like any other; see On-SignatureError",
    ),
    option(
        "KeepAuthResults",
        UnlessNo,
        "Authentication-Results fields forged in our name are always removed",
    ),
    option("KeepTemporaryFiles", Harmless, TEMPORARY_FILES),
    option("LDAPAuthMechanism", Harmless, LDAP),
    option("LDAPAuthName", Harmless, LDAP),
    option("LDAPAuthRealm", Harmless, LDAP),
    option("LDAPAuthUser", Harmless, LDAP),
    option("LDAPBindPassword", Harmless, LDAP),
    option("LDAPBindUser", Harmless, LDAP),
    option("LDAPDisableCache", Harmless, LDAP),
    option("LDAPKeepaliveIdle", Harmless, LDAP),
    option("LDAPKeepaliveInterval", Harmless, LDAP),
    option("LDAPKeepaliveProbes", Harmless, LDAP),
    option("LDAPSoftStart", Harmless, LDAP),
    option("LDAPTimeout", Harmless, LDAP),
    option("LDAPUseTLS", Harmless, LDAP),
    option("LocalADSP", Harmless, ADSP),
    option(
        "LogResults",
        Harmless,
        "the log line has the result of every signature",
    ),
    option("MaximumSignedBytes", Error, BODY_LENGTH),
    option(
        "MilterDebug",
        Harmless,
        "there is no libmilter in it; see LogWhy",
    ),
    option(
        "Minimum",
        Error,
        "signatures that leave octets unsigned never pass unless AllowUnsignedTail says so",
    ),
    option("MTACommand", Harmless, REPORTS),
    option(
        "MustBeSigned",
        Error,
        "a verifier cannot ask for fields beyond From",
    ),
    option("NoDiscardableMailTo", Harmless, ADSP),
    option(
        "NoHeaderB",
        UnlessNo,
        "header.b is always written; it tells signatures of one domain apart",
    ),
    option("On-PolicyError", Harmless, ADSP),
    option(
        "POPDBFile",
        Error,
        "use SMTP AUTH, whose users' mail is always signed",
    ),
    option("Quarantine", UnlessNo, "use \"On-BadSignature quarantine\""),
    option(
        "QueryCache",
        Harmless,
        "answers of the DNS are always cached",
    ),
    option("RateLimits", Error, RATE_LIMITS),
    option(
        "RedirectFailuresTo",
        Error,
        "use \"On-BadSignature quarantine\" or reject",
    ),
    option(
        "RemoveARAll",
        Harmless,
        "fields in our name and in those of RemoveARFrom go whatever results they hold",
    ),
    option(
        "RemoveOldSignatures",
        UnlessNo,
        "old signatures do no harm, and signers should leave them (RFC 6376 section 4.2); so leave the option out, and do not \
         remove them by Postfix' header_checks either, which come before the milter: incoming mail would have none to verify",
    ),
    option("ReplaceHeaders", Error, REPLACE),
    option("ReplaceRules", Error, REPLACE),
    option("ReportAddress", Harmless, REPORTS),
    option("ReportBccAddress", Harmless, REPORTS),
    option("ReputationRoot", Error, REPUTATION),
    option("ReputationTest", Error, REPUTATION),
    option("RequestReports", UnlessNo, REPORTS),
    option(
        "RequiredHeaders",
        UnlessNo,
        "checks of RFC 5322's field counts are the MTA's; several From fields never pass",
    ),
    option("ResignAll", UnlessNo, RESIGN),
    option("ResignMailTo", Error, RESIGN),
    option(
        "ResolverConfiguration",
        Harmless,
        "the resolver needs none; see Nameservers",
    ),
    option("ResolverTracing", Harmless, "there is none; see LogWhy"),
    option("ScreenPolicyScript", Error, LUA),
    option(
        "SelectCanonicalizationHeader",
        Error,
        "no field of a message chooses how it is signed; see Canonicalization",
    ),
    option("SendADSPReports", Harmless, ADSP),
    option("SenderHeaders", Unless("From"), SENDER),
    option("SenderMacro", Error, SENDER),
    option("SendReports", UnlessNo, REPORTS),
    option("SetupPolicyScript", Error, LUA),
    option(
        "SingleAuthResult",
        Harmless,
        "there is one Authentication-Results field with a result for each signature",
    ),
    option("SMTPURI", Harmless, REPORTS),
    option("SoftStart", Harmless, LDAP),
    option(
        "SoftwareHeader",
        Harmless,
        "no field tells which software was at work",
    ),
    option("Statistics", Harmless, STATISTICS),
    option("StatisticsName", Harmless, STATISTICS),
    option("StatisticsPolicyScript", Error, LUA),
    option("StatisticsPrefix", Harmless, STATISTICS),
    option(
        "StrictHeaders",
        UnlessNo,
        "checks of RFC 5322's field counts are the MTA's; several From fields never pass",
    ),
    option("StrictTestMode", Harmless, "there is no test mode"),
    option("TemporaryDirectory", Harmless, TEMPORARY_FILES),
    option("TestDNSData", Error, "use TestPublicKeys"),
    option("TrustAnchorFile", Harmless, DNSSEC),
    option(
        "TrustSignaturesFrom",
        Error,
        "every signature gets its result; whom to trust is for who reads it, such as DMARC",
    ),
    option("UnprotectedKey", Unless("none"), DNSSEC),
    option("UnprotectedPolicy", Harmless, ADSP),
    option("VBR-Certifiers", Harmless, VBR),
    option("VBR-PurgeFields", Harmless, VBR),
    option("VBR-TrustedCertifiers", Harmless, VBR),
    option("VBR-TrustedCertifiersOnly", Harmless, VBR),
    option("VBR-Type", Harmless, VBR),
    option(
        "WeakSyntaxChecks",
        Harmless,
        "a fault in one signature never keeps the others from being verified",
    ),
    option("X-Header", Harmless, "OpenDKIM itself has dropped it"),
];

const ADSP: &str =
    "ADSP was withdrawn (RFC 5617 is historic), and OpenDKIM itself has dropped this";
const ATPS: &str = "third-party authorization (RFC 6541) is not supported";
const BODY_LENGTH: &str =
    "signatures always cover the whole body: with l= anybody can append to the message";
const DNSSEC: &str = "DNSSEC is left to the resolver: let Nameservers name one that validates";
const LDAP: &str = "it belongs to LDAP and SQL data sets, which are not supported";
const LUA: &str = "scripts are not supported";
const RATE_LIMITS: &str = "rate limits are the MTA's";
const REPLACE: &str =
    "sign after the MTA has rewritten addresses, instead of guessing what it will do";
const REPORTS: &str = "failure reports (RFC 6651) are neither asked for nor sent";
const REPUTATION: &str = "reputation services are not supported";
const RESIGN: &str = "mail that arrives signed is not signed again for forwarding";
const RESTART: &str = "use Restart= of the systemd unit";
const SENDER: &str = "the author is the address in From (RFC 6376 section 5.4)";
const STATISTICS: &str = "no statistics file is written; the log has all that was in it";
const TEMPORARY_FILES: &str = "no temporary files are written";
const VBR: &str = "Vouch By Reference (RFC 5518) is not supported; no VBR results are added";

const fn option(name: &'static str, weight: Weight, why: &'static str) -> NotCarried {
    NotCarried { name, weight, why }
}
