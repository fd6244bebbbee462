//! Options of the file, the service and its log.

use std::path::PathBuf;

use super::{Opt, Preset, Spec, YES_NO};
use crate::config::socket::{self, RawAddress};
use crate::config::types::{Facility, UserId};
use crate::config::values;

/// Not an option in the sense of the others: the grammar itself carries it out.
pub(in crate::config) static INCLUDE: Spec = Spec::new(
    "Include",
    "file",
    Preset::Unset("nothing is included"),
    "Reads another file as if its lines stood here. Included files may include others, five deep. A relative path starts \
     from the working directory.",
    "/etc/dkim-milter.d/local.conf",
);

pub(in crate::config) static BASE_DIRECTORY: Opt<PathBuf> = Opt {
    spec: Spec::new(
        "BaseDirectory",
        "directory",
        Preset::Unset("the working directory at start"),
        "The directory from which relative paths in other options and in data sets start. Files named by Include are not \
         affected.",
        "/etc/dkim-milter",
    ),
    parse: values::path,
};

pub(in crate::config) static SOCKET: Opt<RawAddress> = Opt {
    spec: Spec::new(
        "Socket",
        "inet:port[@host] | inet6:port[@host] | local:path",
        Preset::Unset("no socket; one must be given here or with -p"),
        "Where the MTA connects. \"local:\", \"unix:\" or nothing before an absolute path makes a Unix socket there. \
         \"inet:\" and \"inet6:\" listen on a TCP port of the host, an IP address (in brackets or not) or a name; \
         \"localhost\" is 127.0.0.1 and ::1 with \"inet:\", and ::1 with \"inet6:\". Without a host the port is open to \
         localhost only, unless ListenAnywhere allows more; OpenDKIM would open it to everybody. The option may be given \
         several times, and then all the sockets are listened on. -p replaces those of the file.",
        "local:/run/dkim-milter/dkim-milter.sock",
    )
    .active(),
    parse: socket::parse,
};

pub(in crate::config) static STATUS_SOCKET: Opt<RawAddress> = Opt {
    spec: Spec::new(
        "StatusSocket",
        "inet:port[@host] | inet6:port[@host] | local:path",
        Preset::Unset("none, and nobody is told"),
        "Where the service tells by HTTP how it is: /live (200, or 503 when it is stuck and should be restarted), /ready (200, \
         or 503 with one line per reason when mail may go unsigned: a key that cannot be used, a token that is away, a Unix \
         socket that is gone) and /metrics (for Prometheus). \"dkim-milter --status ready\" asks it. A socket is written as for \
         Socket; without a host, a port is open to localhost only, whatever ListenAnywhere says. What is told has no mail and \
         no secret in it, but names of keys and files, so think of who can reach it. While it is set, each token is tried \
         every 20 seconds, so that one that is away is known before mail comes. (Not an option of OpenDKIM.)",
        "inet:8892@localhost",
    ),
    parse: socket::parse,
};

pub(in crate::config) static LISTEN_ANYWHERE: Opt<bool> = Opt::switch(
    "ListenAnywhere",
    "no",
    "Allows sockets on addresses other hosts can reach, and lets a port without a host be open on all addresses. The milter \
     protocol knows no authentication: whoever reaches the socket can have mail signed in the name of every domain in \
     the configuration. Say yes only where a firewall or a private network keeps others out.",
);

pub(in crate::config) static UMASK: Opt<u32> = Opt {
    spec: Spec::new(
        "UMask",
        "octal number",
        Preset::Unset("the mask that the process was started with"),
        "The file mode bits that a Unix socket and the PID file shall not have. An MTA under another user must be able to \
         write to the socket: with 007 its user must be in the socket's group.",
        "007",
    )
    .active(),
    parse: values::umask,
};

pub(in crate::config) static USER_ID: Opt<UserId> = Opt {
    spec: Spec::new(
        "UserID",
        "user[:group]",
        Preset::Unset("the user that started it"),
        "The user to become after the sockets are open, and the group if it shall not be the user's own. Needs to be started \
         as root; under systemd, User= and Group= of the unit do the same, and UserID must then name the same user.",
        "dkim-milter",
    ),
    parse: values::user_id,
};

pub(in crate::config) static PID_FILE: Opt<PathBuf> = Opt {
    spec: Spec::new(
        "PidFile",
        "path",
        Preset::Unset("none is written"),
        "A file for the process ID, written before the starting command returns.",
        "/run/dkim-milter/dkim-milter.pid",
    ),
    parse: values::path,
};

pub(in crate::config) static BACKGROUND: Opt<bool> = Opt {
    spec: Spec::new(
        "Background",
        YES_NO,
        Preset::Value("yes"),
        "Whether the starting command returns once the service runs. With no, and with -f, it stays in the foreground and \
         logs to its standard error.",
        "no",
    ),
    parse: values::switch,
};

pub(in crate::config) static MAXIMUM_CONNECTIONS: Opt<u64> = Opt {
    spec: Spec::new(
        "MaximumConnections",
        "number",
        Preset::Value("2000"),
        "How many connections from the MTA are served at the same time. As many again are taken and their mail deferred, and \
         still more have to wait. It bounds the memory in use. (Not an option of OpenDKIM.)",
        "500",
    ),
    parse: values::number::<1, 1_000_000>,
};

pub(in crate::config) static DRAIN_TIMEOUT: Opt<u64> = Opt {
    spec: Spec::new(
        "DrainTimeout",
        "seconds",
        Preset::Value("30"),
        "How long messages under way may take to end when the service is told to stop. (Not an option of OpenDKIM.)",
        "60",
    ),
    parse: values::number::<0, 3600>,
};

pub(in crate::config) static SYSLOG: Opt<bool> = Opt::switch(
    "Syslog",
    "yes",
    "Whether to log to syslog while in the background: one line per message, and every fault. In the foreground the log \
     goes to standard error. (In OpenDKIM the default is no.)",
);

pub(in crate::config) static SYSLOG_FACILITY: Opt<Facility> = Opt {
    spec: Spec::new(
        "SyslogFacility",
        "facility",
        Preset::Value("mail"),
        "The facility to log under, by its name in syslog.conf: mail, daemon, local0 to local7 and so on.",
        "local3",
    ),
    parse: values::facility,
};

pub(in crate::config) static SYSLOG_NAME: Opt<String> = Opt {
    spec: Spec::new(
        "SyslogName",
        "name",
        Preset::Value("dkim-milter"),
        "The program name in log lines, to tell instances apart.",
        "dkim-outgoing",
    ),
    parse: values::word,
};

pub(in crate::config) static SYSLOG_SUCCESS: Opt<bool> = Opt::switch(
    "SyslogSuccess",
    "yes",
    "Whether messages that were accepted get their log line too; otherwise only those that were refused, deferred, \
     discarded or put aside do. (In OpenDKIM the default is no.)",
);

pub(in crate::config) static LOG_WHY: Opt<bool> = Opt::switch(
    "LogWhy",
    "no",
    "Whether to log, besides the one line for each message, what may break its signature on the way: 8-bit octets, lines \
     over 998 octets. (In OpenDKIM it has more to add, as why a message was not signed; that is in the line here.)",
);
