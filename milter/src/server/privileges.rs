//! What the process may do: the user it becomes, how many file descriptors it can have, and that it leaves no core files.
//!
//! Users are changed by the C library's calls, which change all threads.

use std::ffi::CString;

use nix::unistd::{Gid, Group, Uid, User, getgrouplist, setgid, setgroups, setuid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::UserId;
use crate::keys::Reader;

/// The user and groups to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAs {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

/// Why a user cannot be become.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// No such user.
    #[error("UserID: there is no user {0:?}")]
    NoUser(String),
    /// No such group.
    #[error("UserID: there is no group {0:?}")]
    NoGroup(String),
    /// A number that is no user's needs a group.
    #[error("UserID: user {0} is not known here, so its group must be given: user:group")]
    GroupNeeded(u32),
    /// Only root can.
    #[error(
        "UserID is not the user that this runs as ({0}), and only root can become another; start it as root, have the service \
         manager start it as that user (User= of the systemd unit), or leave UserID out"
    )]
    NotRoot(Uid),
    /// The system's reason.
    #[error("UserID: {call}: {cause}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// Why.
        cause: nix::Error,
    },
    /// The way back is open.
    #[error("UserID: the process could become root again")]
    NotDropped,
}

impl RunAs {
    /// Finds the user and group that `wanted` names, by name or number.
    ///
    /// # Errors
    /// There are none such.
    pub fn find(wanted: &UserId) -> Result<Self, UserError> {
        let number: Option<u32> = wanted.user.parse().ok();
        let user = match number {
            Some(number) => User::from_uid(Uid::from_raw(number)),
            None => User::from_name(&wanted.user),
        }
        .map_err(system("getpwnam"))?;
        let group = wanted.group.as_deref().map(find_group).transpose()?;
        let (uid, gid, name) = match (user, number, group) {
            (Some(user), _, group) => (user.uid, group.unwrap_or(user.gid), Some(user.name)),
            (None, Some(number), Some(group)) => (Uid::from_raw(number), group, None),
            (None, Some(number), None) => return Err(UserError::GroupNeeded(number)),
            (None, None, _) => return Err(UserError::NoUser(wanted.user.clone())),
        };
        let groups = match name.and_then(|name| CString::new(name).ok()) {
            Some(name) => getgrouplist(&name, gid).map_err(system("getgrouplist"))?,
            None => vec![gid],
        };
        Ok(Self { uid, gid, groups })
    }

    /// The one who will read keys.
    pub fn reader(&self) -> Reader {
        let mut gids = vec![self.gid.as_raw()];
        gids.extend(self.groups.iter().map(|gid| gid.as_raw()));
        Reader {
            uid: self.uid.as_raw(),
            gids,
        }
    }

    /// The user and the group that files of the daemon shall belong to.
    pub fn owner(&self) -> (u32, u32) {
        (self.uid.as_raw(), self.gid.as_raw())
    }

    /// Whether the process is that user already.
    pub fn is_current(&self) -> bool {
        Uid::effective() == self.uid && Gid::effective() == self.gid
    }

    /// Whether the process may become that user, or is it.
    ///
    /// # Errors
    /// The process is another user's, and not root's.
    pub fn may_be_assumed(&self) -> Result<(), UserError> {
        let current = Uid::effective();
        if self.is_current() || current.is_root() {
            Ok(())
        } else {
            Err(UserError::NotRoot(current))
        }
    }

    /// Becomes that user, for good.
    ///
    /// # Errors
    /// The process is not root's, or the system refuses.
    pub fn assume(&self) -> Result<(), UserError> {
        self.may_be_assumed()?;
        if self.is_current() {
            return Ok(());
        }
        setgroups(&self.groups).map_err(system("setgroups"))?;
        setgid(self.gid).map_err(system("setgid"))?;
        setuid(self.uid).map_err(system("setuid"))?;
        if !self.uid.is_root() && setuid(Uid::from_raw(0)).is_ok() {
            return Err(UserError::NotDropped);
        }
        Ok(())
    }
}

fn find_group(name: &str) -> Result<Gid, UserError> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    let group = Group::from_name(name).map_err(system("getgrnam"))?;
    group
        .map(|group| group.gid)
        .ok_or_else(|| UserError::NoGroup(name.to_owned()))
}

fn system(call: &'static str) -> impl Fn(nix::Error) -> UserError {
    move |cause| UserError::System { call, cause }
}

/// Keeps the memory of the process, which holds private keys, out of core files.
pub(super) fn forbid_core_files() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // Lowering a limit is allowed to everybody.
    let _ = setrlimit(Resource::Core, none);
}

/// Raises the limit on file descriptors as far as it goes; how many connections that allows.
pub(super) fn raise_descriptor_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    let limit = if raised.is_ok() { maximum } else { current };
    // `None` is no limit.
    let limit = limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    });
    connections_within(limit)
}

fn connections_within(descriptors: usize) -> usize {
    let reserved = RESERVED_DESCRIPTORS.min(descriptors / 2);
    (descriptors - reserved).max(1)
}

/// For listeners, log, files being reloaded, and look-ups in the DNS, of which at most a few dozen are under way; of a few
/// descriptors, half.
const RESERVED_DESCRIPTORS: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    fn find(user: &str, group: Option<&str>) -> Result<RunAs, String> {
        let wanted = UserId {
            user: user.to_owned(),
            group: group.map(str::to_owned),
        };
        RunAs::find(&wanted).map_err(|error| error.to_string())
    }

    #[test]
    fn a_low_limit_on_descriptors_leaves_connections() {
        for (descriptors, connections) in [
            (0, 1),
            (64, 32),
            (256, 128),
            (1024, 864),
            (usize::MAX, usize::MAX - 160),
        ] {
            assert_eq!(connections_within(descriptors), connections);
        }
    }

    #[test]
    fn users_and_groups_are_found_by_name_and_number() {
        let root = find("root", None).unwrap();
        assert_eq!(root.owner(), (0, 0));
        assert!(root.reader().gids.contains(&0));
        assert_eq!(find("0", None), Ok(root));
        assert_eq!(find("root", Some("12345")).unwrap().owner(), (0, 12345));
        assert_eq!(
            find("54321", Some("12345")).unwrap().owner(),
            (54321, 12345)
        );
        for (user, group, wanted) in [
            (
                "no-such-user",
                None,
                "UserID: there is no user \"no-such-user\"",
            ),
            (
                "root",
                Some("no-such-group"),
                "UserID: there is no group \"no-such-group\"",
            ),
            (
                "54321",
                None,
                "UserID: user 54321 is not known here, so its group must be given: user:group",
            ),
        ] {
            assert_eq!(find(user, group).unwrap_err(), wanted);
        }
    }
}
