//! Whether a key file is safe: who besides the daemon can read or replace it, along every directory that leads to it.
//!
//! A path is walked as the kernel walks it, through symbolic links, and each element on the way is judged: the file must
//! be nobody else's to read, and no directory may let others put another file in its place. Three settings that look
//! unsafe and are not are known: a key that the daemon's own group may read, a sticky directory such as `/tmp`, where
//! nobody can replace what is another's, and Kubernetes' secrets, links through `..data` that the pod's group may read.
//! What is found says which element is at fault, its owner and mode, and the command that mends it.
//!
//! Access lists beyond the mode bits are not looked at: where the kernel grants more or less by them, it decides.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Gid, Group, Uid, User};

/// The user and groups that read keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The user.
    pub uid: u32,
    /// The groups, all of them.
    pub gids: Vec<u32>,
}

impl Reader {
    /// The user and groups of this process.
    pub fn current() -> Self {
        let mut gids = vec![rustix::process::getegid().as_raw()];
        // The call cannot fail but for a list that grows between asking for its length and for itself.
        gids.extend(
            rustix::process::getgroups()
                .unwrap_or_default()
                .iter()
                .map(|gid| gid.as_raw()),
        );
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gids,
        }
    }

    /// Whether one of the permission bits `wanted` (as for others: 4 to read, 1 to enter) is granted by `status`.
    fn may(&self, status: Status, wanted: u32) -> bool {
        let granted = if self.uid == ROOT {
            return true;
        } else if self.uid == status.owner {
            status.mode >> 6
        } else if self.gids.contains(&status.group) {
            status.mode >> 3
        } else {
            status.mode
        };
        granted & wanted != 0
    }
}

/// Owner, group and permissions of an element of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The owner's user ID.
    pub owner: u32,
    /// The group ID.
    pub group: u32,
    /// The permission bits, with the sticky bit.
    pub mode: u32,
}

impl From<&Metadata> for Status {
    fn from(metadata: &Metadata) -> Self {
        Self {
            owner: metadata.uid(),
            group: metadata.gid(),
            mode: metadata.permissions().mode() & 0o7777,
        }
    }
}

/// An element of a path that is not as it should be, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathFault {
    /// The file or directory.
    pub path: PathBuf,
    /// Whose it is.
    pub status: Status,
    /// What is wrong with it.
    pub kind: FaultKind,
    /// Who reads keys.
    for_whom: Whom,
    /// The owner or group that is told of, by name if it has one.
    other: String,
}

/// The user that an element of a path was judged for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Whom {
    /// Its name, or else its number.
    name: String,
    is_root: bool,
    /// Whether it still gets at the element when others no longer do.
    is_owner_or_member: bool,
}

/// What is wrong with an element of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// A directory that the daemon cannot enter.
    CannotEnter,
    /// A file that the daemon cannot read.
    CannotRead,
    /// A file that everybody can read.
    ReadableByAll,
    /// A file that a group can read which is not the daemon's.
    ReadableByGroup,
    /// A file or directory that everybody can write to.
    WritableByAll,
    /// A file or directory that a group can write to.
    WritableByGroup,
    /// A file or directory of a user that is neither root nor the daemon's.
    OwnedByOther,
    /// A directory everybody can write to, in which files can be replaced by their owners only.
    Sticky,
}

impl fmt::Display for PathFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            kind,
            for_whom,
            other,
            ..
        } = self;
        let path = path.display();
        let user = &for_whom.name;
        let Status { owner, group, mode } = self.status;
        match kind {
            FaultKind::CannotEnter => write!(f, "user {user} cannot enter {path}")?,
            FaultKind::CannotRead => write!(f, "user {user} cannot read {path}")?,
            FaultKind::ReadableByAll => write!(f, "{path} can be read by everybody")?,
            FaultKind::ReadableByGroup => write!(
                f,
                "{path} can be read by group {other}, which is not the daemon's"
            )?,
            FaultKind::WritableByAll => write!(f, "{path} can be written to by everybody")?,
            FaultKind::WritableByGroup => write!(f, "{path} can be written to by group {other}")?,
            FaultKind::OwnedByOther if for_whom.is_root => {
                write!(f, "{path} belongs to user {other}, not to root")?;
            }
            FaultKind::OwnedByOther => write!(
                f,
                "{path} belongs to user {other}, not to root or user {user}"
            )?,
            FaultKind::Sticky => write!(f, "{path} is a directory everybody can put files into")?,
        }
        write!(f, " (owner {owner}:{group}, mode {mode:04o}); ")?;
        match kind {
            FaultKind::CannotEnter => write!(f, "to mend: chmod o+x {path}"),
            // What root alone needs may be what keeps the service's own user out.
            FaultKind::OwnedByOther if for_whom.is_root => write!(
                f,
                "judged for root, as no UserID names another user: if the service runs as {other}, set UserID {other}, \
                 or check with --set UserID={other}"
            ),
            FaultKind::ReadableByGroup if for_whom.is_root => f.write_str(
                "judged for root, as no UserID names another user: if the service runs as one, set UserID to it, or check \
                 with --set UserID=NAME",
            ),
            FaultKind::CannotRead | FaultKind::OwnedByOther => {
                write!(f, "to mend: chown {user} {path}")
            }
            FaultKind::ReadableByAll if for_whom.is_root => write!(
                f,
                "to mend: chmod o= {path}, and where the service runs as another user, chown it to that user"
            ),
            FaultKind::ReadableByAll if !for_whom.is_owner_or_member => {
                write!(f, "to mend: chown {user} {path} && chmod o= {path}")
            }
            FaultKind::ReadableByAll => write!(f, "to mend: chmod o= {path}"),
            FaultKind::ReadableByGroup => write!(f, "to mend: chmod g= {path}"),
            FaultKind::WritableByAll => write!(f, "to mend: chmod o-w {path}"),
            FaultKind::WritableByGroup => write!(f, "to mend: chmod g-w {path}"),
            FaultKind::Sticky => write!(f, "better keep keys elsewhere"),
        }
    }
}

/// A path that cannot be walked to its end.
#[derive(Debug)]
pub(super) enum WalkError {
    /// A directory lets the daemon not in.
    Shut(PathFault),
    /// Anything else, and at which element.
    System(PathBuf, io::Error),
}

/// A path's elements from the root to a file, links resolved.
#[derive(Debug)]
pub(super) struct Walk {
    directories: Vec<(PathBuf, Status)>,
    /// Where the file really is.
    pub(super) file: PathBuf,
    is_kubernetes: bool,
}

impl Walk {
    /// Follows `path`; a relative one from the working directory.
    ///
    /// # Errors
    /// The first element that is missing or shut to this process, or more links than the kernel would follow.
    pub(super) fn along(path: &Path) -> Result<Self, WalkError> {
        let system = |at: &Path, error| WalkError::System(at.to_owned(), error);
        let absolute = std::path::absolute(path).map_err(|error| system(path, error))?;
        let mut walk = Self {
            directories: Vec::new(),
            file: PathBuf::from("/"),
            is_kubernetes: false,
        };
        let mut ahead: VecDeque<OsString> = names(&absolute);
        let mut links = 0;
        walk.enter().map_err(|error| system("/".as_ref(), error))?;
        while let Some(name) = ahead.pop_front() {
            if name == ".." {
                walk.file.pop();
                continue;
            }
            let next = walk.file.join(&name);
            let metadata = fs::symlink_metadata(&next).map_err(|error| walk.blame(&next, error))?;
            if metadata.is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(system(path, rustix::io::Errno::LOOP.into()));
                }
                walk.is_kubernetes |= name == KUBERNETES_LINK;
                let target = fs::read_link(&next).map_err(|error| system(&next, error))?;
                if target.is_absolute() {
                    walk.file = PathBuf::from("/");
                }
                for name in names(&target).into_iter().rev() {
                    ahead.push_front(name);
                }
                continue;
            }
            walk.file = next;
            if !ahead.is_empty() {
                walk.enter().map_err(|error| system(&walk.file, error))?;
            }
        }
        Ok(walk)
    }

    /// Every fault of the way and of the file, whose status is `file`, for `reader`.
    pub(super) fn judge(&self, file: Status, reader: &Reader) -> Judgement {
        let mut judgement = Judgement::default();
        for (path, status) in &self.directories {
            judge_directory(path, *status, reader, &mut judgement);
        }
        judge_file(&self.file, file, self.is_kubernetes, reader, &mut judgement);
        judgement
    }

    /// What keeps `reader` from the file, whose status is `file`; going by the mode bits.
    pub(super) fn obstacle(&self, file: Status, reader: &Reader) -> Option<PathFault> {
        let shut = self
            .directories
            .iter()
            .find(|(_, status)| !reader.may(*status, 0o1));
        match shut {
            Some((path, status)) => Some(fault(path, *status, FaultKind::CannotEnter, reader)),
            None if !reader.may(file, 0o4) => {
                Some(fault(&self.file, file, FaultKind::CannotRead, reader))
            }
            None => None,
        }
    }

    fn enter(&mut self) -> io::Result<()> {
        let status = Status::from(&fs::symlink_metadata(&self.file)?);
        self.directories.push((self.file.clone(), status));
        Ok(())
    }

    /// `error`, met at `next`, is the fault of the directory before it if that is shut.
    fn blame(&self, next: &Path, error: io::Error) -> WalkError {
        match self.directories.last() {
            Some((directory, status)) if error.kind() == io::ErrorKind::PermissionDenied => {
                WalkError::Shut(fault(
                    directory,
                    *status,
                    FaultKind::CannotEnter,
                    &Reader::current(),
                ))
            }
            _ => WalkError::System(next.to_owned(), error),
        }
    }
}

/// What was found about a key file.
#[derive(Debug, Default)]
pub(super) struct Judgement {
    /// What makes it unsafe.
    pub(super) refusals: Vec<PathFault>,
    /// What is only odd.
    pub(super) warnings: Vec<PathFault>,
}

fn judge_file(
    path: &Path,
    status: Status,
    is_kubernetes: bool,
    reader: &Reader,
    judgement: &mut Judgement,
) {
    let fault = |kind| fault(path, status, kind, reader);
    let Status { owner, group, mode } = status;
    if owner != ROOT && owner != reader.uid {
        judgement.refusals.push(fault(FaultKind::OwnedByOther));
    }
    if mode & 0o002 != 0 {
        judgement.refusals.push(fault(FaultKind::WritableByAll));
    }
    if mode & 0o004 != 0 {
        // Others are those in the same container, which sees the secret because it needs it.
        let found = if is_kubernetes {
            &mut judgement.warnings
        } else {
            &mut judgement.refusals
        };
        found.push(fault(FaultKind::ReadableByAll));
    } else if mode & 0o040 != 0 && group != ROOT && !reader.gids.contains(&group) {
        judgement.warnings.push(fault(FaultKind::ReadableByGroup));
    }
    if mode & 0o020 != 0 && group != ROOT {
        judgement.warnings.push(fault(FaultKind::WritableByGroup));
    }
}

fn judge_directory(path: &Path, status: Status, reader: &Reader, judgement: &mut Judgement) {
    let fault = |kind| fault(path, status, kind, reader);
    let Status { owner, group, mode } = status;
    let is_sticky = mode & 0o1000 != 0;
    if mode & 0o002 != 0 {
        if is_sticky {
            judgement.warnings.push(fault(FaultKind::Sticky));
        } else {
            judgement.refusals.push(fault(FaultKind::WritableByAll));
        }
    } else if mode & 0o020 != 0 && !is_sticky && group != ROOT && !reader.gids.contains(&group) {
        judgement.warnings.push(fault(FaultKind::WritableByGroup));
    }
    if ![ROOT, OVERFLOW, reader.uid].contains(&owner) {
        judgement.warnings.push(fault(FaultKind::OwnedByOther));
    }
}

pub(super) fn fault(path: &Path, status: Status, kind: FaultKind, reader: &Reader) -> PathFault {
    // Now, not when it is told: that may be with each message, and names may come from another host.
    let other = match kind {
        FaultKind::OwnedByOther => user_name(status.owner),
        FaultKind::ReadableByGroup | FaultKind::WritableByGroup => group_name(status.group),
        _ => String::new(),
    };
    let name = match kind {
        FaultKind::CannotEnter
        | FaultKind::CannotRead
        | FaultKind::OwnedByOther
        | FaultKind::ReadableByAll => user_name(reader.uid),
        _ => String::new(),
    };
    let restricted = Status {
        mode: status.mode & !0o007,
        ..status
    };
    PathFault {
        path: path.to_owned(),
        status,
        kind,
        for_whom: Whom {
            name,
            is_root: reader.uid == ROOT,
            is_owner_or_member: reader.may(restricted, 0o4),
        },
        other,
    }
}

/// The user's name, or else its number.
fn user_name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// The group's name, or else its number.
fn group_name(gid: u32) -> String {
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    group.map_or_else(|| gid.to_string(), |group| group.name)
}

fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

const ROOT: u32 = 0;

/// How root's directories look from within a user namespace that does not have root (user_namespaces(7)).
const OVERFLOW: u32 = 65_534;

/// As many as Linux follows (path_resolution(7)).
const MAX_LINKS: u32 = 40;

/// The link that Kubernetes swaps when a secret changes.
const KUBERNETES_LINK: &str = "..data";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::test_dir::TestDir;
    use std::os::unix::fs::symlink;

    const DAEMON: u32 = 990;

    fn daemon() -> Reader {
        Reader {
            uid: DAEMON,
            gids: vec![991, 1000],
        }
    }

    fn status((owner, group, mode): (u32, u32, u32)) -> Status {
        Status { owner, group, mode }
    }

    /// The verdict on a key in one directory below the root, and the kinds of what was found.
    fn verdict(directory: (u32, u32, u32), file: (u32, u32, u32), is_kubernetes: bool) -> String {
        let walk = Walk {
            directories: vec![
                ("/".into(), status((0, 0, 0o755))),
                ("/keys".into(), status(directory)),
            ],
            file: "/keys/key.pem".into(),
            is_kubernetes,
        };
        if let Some(obstacle) = walk.obstacle(status(file), &daemon()) {
            return format!("refuse {:?}", obstacle.kind);
        }
        let found = walk.judge(status(file), &daemon());
        match (found.refusals.first(), found.warnings.first()) {
            (Some(first), _) => format!("refuse {:?}", first.kind),
            (None, Some(first)) => format!("warn {:?}", first.kind),
            (None, None) => "ok".to_owned(),
        }
    }

    #[test]
    fn keys_are_refused_only_where_others_can_read_or_replace_them() {
        let plain = (0, 0, 0o755);
        for (directory, file, wanted) in [
            (plain, (DAEMON, 991, 0o600), "ok"),
            (plain, (DAEMON, 55, 0o600), "ok"),
            (plain, (0, 991, 0o640), "ok"),
            (plain, (0, 1000, 0o440), "ok"),
            (plain, (DAEMON, 991, 0o644), "refuse ReadableByAll"),
            (plain, (DAEMON, 991, 0o602), "refuse WritableByAll"),
            (plain, (DAEMON, 991, 0o660), "warn WritableByGroup"),
            (plain, (DAEMON, 55, 0o640), "warn ReadableByGroup"),
            (plain, (DAEMON, 0, 0o640), "ok"),
            (plain, (0, 0, 0o600), "refuse CannotRead"),
            (plain, (100, 101, 0o600), "refuse CannotRead"),
            (plain, (100, 991, 0o640), "refuse OwnedByOther"),
            ((0, 0, 0o1777), (DAEMON, 991, 0o600), "warn Sticky"),
            ((0, 0, 0o777), (DAEMON, 991, 0o600), "refuse WritableByAll"),
            ((0, 55, 0o775), (DAEMON, 991, 0o600), "warn WritableByGroup"),
            ((0, 991, 0o770), (DAEMON, 991, 0o600), "ok"),
            ((DAEMON, 991, 0o700), (DAEMON, 991, 0o600), "ok"),
            ((55, 55, 0o755), (DAEMON, 991, 0o600), "warn OwnedByOther"),
            ((65_534, 65_534, 0o755), (DAEMON, 991, 0o600), "ok"),
            ((55, 55, 0o700), (DAEMON, 991, 0o600), "refuse CannotEnter"),
        ] {
            assert_eq!(
                verdict(directory, file, false),
                wanted,
                "{directory:?} {file:?}"
            );
        }
    }

    #[test]
    fn a_kubernetes_secret_is_safe_within_its_container() {
        for (file, wanted) in [
            ((0, 1000, 0o440), "ok"),
            ((0, 0, 0o444), "warn ReadableByAll"),
            ((0, 0, 0o644), "warn ReadableByAll"),
            ((0, 0, 0o666), "refuse WritableByAll"),
        ] {
            assert_eq!(verdict((0, 0, 0o755), file, true), wanted, "{file:?}");
        }
    }

    /// What is told of a key, with `user` as the reader.
    fn told(status: (u32, u32, u32), kind: FaultKind, user: u32) -> String {
        let reader = Reader {
            uid: user,
            gids: vec![NOBODYS],
        };
        fault("/k".as_ref(), self::status(status), kind, &reader).to_string()
    }

    /// A number that no user and no group has.
    const NOBODYS: u32 = 4_000_000_990;

    #[test]
    fn a_fault_names_the_element_its_owner_and_mode_and_the_remedy() {
        for (status, kind, wanted) in [
            (
                (100, 101, 0o644),
                FaultKind::CannotEnter,
                "user 4000000990 cannot enter /k (owner 100:101, mode 0644); to mend: chmod o+x /k",
            ),
            (
                (NOBODYS, 101, 0o644),
                FaultKind::ReadableByAll,
                "/k can be read by everybody (owner 4000000990:101, mode 0644); to mend: chmod o= /k",
            ),
            (
                (4_000_000_100, 101, 0o600),
                FaultKind::OwnedByOther,
                "/k belongs to user 4000000100, not to root or user 4000000990 (owner 4000000100:101, mode 0600); \
                 to mend: chown 4000000990 /k",
            ),
        ] {
            assert_eq!(told(status, kind, NOBODYS), wanted);
        }
    }

    #[test]
    fn users_and_groups_are_told_by_name() {
        let daemon = User::from_name("daemon").unwrap().unwrap();
        let group = Group::from_name("daemon").unwrap().unwrap().gid.as_raw();
        let uid = daemon.uid.as_raw();
        for (status, kind, user, wanted) in [
            (
                (0, 0, 0o600),
                FaultKind::CannotRead,
                uid,
                "user daemon cannot read /k (owner 0:0, mode 0600); to mend: chown daemon /k",
            ),
            (
                (uid, 0, 0o600),
                FaultKind::OwnedByOther,
                NOBODYS,
                "/k belongs to user daemon, not to root or user 4000000990",
            ),
            (
                (NOBODYS, group, 0o640),
                FaultKind::ReadableByGroup,
                NOBODYS,
                "/k can be read by group daemon, which is not",
            ),
        ] {
            let told = told(status, kind, user);
            assert!(told.starts_with(wanted), "{told}");
        }
    }

    #[test]
    fn no_remedy_keeps_the_users_own_service_from_its_key() {
        let daemon = User::from_name("daemon").unwrap().unwrap().uid.as_raw();
        let group = Group::from_name("daemon").unwrap().unwrap().gid.as_raw();
        for (status, kind, user, wanted) in [
            (
                (daemon, group, 0o600),
                FaultKind::OwnedByOther,
                ROOT,
                "not to root (owner {daemon}:{group}, mode 0600); judged for root, as no UserID names another user: if the \
                 service runs as daemon, set UserID daemon, or check with --set UserID=daemon",
            ),
            (
                (0, group, 0o640),
                FaultKind::ReadableByGroup,
                ROOT,
                "; judged for root, as no UserID names another user: if the service runs as one, set UserID to it, or check \
                 with --set UserID=NAME",
            ),
            (
                (0, 0, 0o644),
                FaultKind::ReadableByAll,
                ROOT,
                "; to mend: chmod o= /k, and where the service runs as another user, chown it to that user",
            ),
            (
                (0, 0, 0o644),
                FaultKind::ReadableByAll,
                daemon,
                "; to mend: chown daemon /k && chmod o= /k",
            ),
        ] {
            let wanted = wanted
                .replace("{daemon}", &daemon.to_string())
                .replace("{group}", &group.to_string());
            let told = told(status, kind, user);
            assert!(told.ends_with(&wanted), "{told}");
        }
    }

    #[test]
    fn links_are_followed_and_the_directories_behind_them_judged() {
        let dir = TestDir::new("walk");
        fs::create_dir_all(dir.path("mount/..2026_01")).unwrap();
        fs::write(dir.path("mount/..2026_01/key.pem"), "").unwrap();
        symlink("..2026_01", dir.path("mount/..data")).unwrap();
        symlink("..data/key.pem", dir.path("mount/key.pem")).unwrap();
        symlink(
            dir.path("mount/../mount/./key.pem"),
            dir.path("absolute.pem"),
        )
        .unwrap();
        let real = fs::canonicalize(dir.path("mount/..2026_01/key.pem")).unwrap();
        for path in ["mount/key.pem", "absolute.pem"] {
            let walk = Walk::along(&dir.path(path)).unwrap();
            assert_eq!(walk.file, real);
            assert!(walk.is_kubernetes);
            assert_eq!(walk.directories.last().unwrap().0, real.parent().unwrap());
            assert_eq!(walk.directories.first().unwrap().0, Path::new("/"));
        }
        assert!(!Walk::along(&real).unwrap().is_kubernetes);
    }

    #[test]
    fn the_element_that_is_missing_is_named() {
        let dir = TestDir::new("walk");
        symlink("loop", dir.path("loop")).unwrap();
        for (path, at) in [
            ("none/key.pem", "none"),
            ("key.pem", "key.pem"),
            ("loop", "loop"),
        ] {
            match Walk::along(&dir.path(path)) {
                Err(WalkError::System(element, _)) => assert_eq!(element, dir.path(at)),
                other => panic!("{other:?}"),
            }
        }
    }
}
