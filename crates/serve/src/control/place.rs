//! Where the socket of a mount lies, and how a command finds it.
//!
//! The kernel's list of mounts tells the number of the device behind a mount, and which user
//! mounted it; both lead to the socket, and nothing in the environment does. Where the first
//! directory cannot be had, the second one is used.
//!
//! | mounted by | directories | socket |
//! | --- | --- | --- |
//! | root | `/run/bedplate`, or `bedplate-0` in `/tmp` | `MAJOR-MINOR.sock` |
//! | user N | `/run/user/N/bedplate`, or `bedplate-N` in `/tmp` | `MAJOR-MINOR.sock` |
//!
//! - I-CTL-1: a socket is bound only in a directory that this process's user alone may use, and a
//!   command connects only in one of the mount's user: so no other user answers for a mount.
//! - I-CTL-2: while a mount lives the kernel gives its number to no other, so a socket of that name
//!   that is there already is left from a dead process, and is replaced.

use std::fs::{DirBuilder, File};
use std::io::{self, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use bedplate_block::MountEntry;
use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::request::{Answer, Request};
use super::wire;
use crate::mountinfo;
use crate::{Error, ErrorKind, Result};

/// How names of sockets end.
const SUFFIX: &str = ".sock";

/// Returns the directories for sockets of a user's mounts, the preferred one first.
fn directories(user: u32) -> [PathBuf; 2] {
    let first = if user == 0 {
        "/run/bedplate".into()
    } else {
        format!("/run/user/{user}/bedplate").into()
    };
    [first, Path::new("/tmp").join(format!("bedplate-{user}"))]
}

/// Returns the name of the socket of a mount, of the `major:minor` of its device.
fn name_of(device: &str) -> String {
    format!("{}{SUFFIX}", device.replace(':', "-"))
}

/// A socket that this process listens on. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket in its directory: another one may get its name.
    identity: (u64, u64),
}

impl Bound {
    /// Returns whether the socket is still where commands look for it: a runtime directory goes
    /// when its user logs out.
    pub(crate) fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|found| found == self.identity)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let removed = self.path.parent().map_or(Ok(()), |dir| {
            let _lock = lock(dir)?;
            if self.is_there() { std::fs::remove_file(&self.path) } else { Ok(()) }
        });
        if let Err(error) = removed {
            tracing::debug!("{} stays: {error}", self.path.display());
        }
    }
}

/// Makes the socket of a mount.
pub(crate) fn bind(device: &str) -> io::Result<Bound> {
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    for dir in directories(rustix::process::geteuid().as_raw()) {
        match bind_in(&dir, device) {
            Ok(bound) => return Ok(bound),
            Err(error) => {
                refused = io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
            }
        }
    }
    Err(refused)
}

fn bind_in(dir: &Path, device: &str) -> io::Result<Bound> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => require_private(dir, rustix::process::geteuid().as_raw())?,
    }
    let _lock = lock(dir)?;
    sweep(dir)?;
    let path = dir.join(name_of(device));
    // Taken over in one step (I-CTL-2): a name that leads to a socket leads to one that is listened
    // on.
    let new = dir.join(format!(".{}", name_of(device)));
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&new)?;
    listener.set_nonblocking(true)?;
    let identity = identity(&new)?;
    std::fs::rename(&new, &path)?;
    Ok(Bound { listener, path, identity })
}

/// Removes the sockets of processes that died. Called under the lock of the directory.
fn sweep(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.to_str().is_some_and(|path| path.ends_with(SUFFIX)) && is_dead(&path) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Tells whether no process listens on a socket; does not wait for one that is busy.
fn is_dead(path: &Path) -> bool {
    let Ok(address) = SocketAddrUnix::new(path) else { return false };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    socket.is_ok_and(|socket| connect(&socket, &address) == Err(rustix::io::Errno::CONNREFUSED))
}

/// Takes the lock of a directory of sockets, which is held for a moment only: while one is put
/// there, or taken away.
fn lock(dir: &Path) -> io::Result<File> {
    let file = File::open(dir)?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = path.symlink_metadata()?;
    Ok((meta.dev(), meta.ino()))
}

/// Refuses a directory that others than its user could put a socket into (I-CTL-1).
fn require_private(dir: &Path, user: u32) -> io::Result<()> {
    let meta = dir.symlink_metadata()?;
    if meta.is_dir() && meta.uid() == user && meta.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "it is no directory that only user {user} may use, so it is not used"
    )))
}

/// Asks the daemon of a mount.
///
/// # Errors
/// `Permission`: it serves another user. `Unavailable`: no daemon of a mount there is reachable.
/// `Io`: it gave no answer.
pub fn ask(mountpoint: &Path, request: &Request) -> Result<Answer> {
    let stream = reach_daemon(mountpoint)?;
    converse(&stream, request).map_err(|error| {
        let shown = mountpoint.display();
        Error::new(ErrorKind::Io, format!("the daemon of {shown} gave no answer: {error}"))
    })
}

/// Returns the process that listens for requests to the daemon of a mount.
///
/// # Errors
/// As [`ask`].
pub fn process(mountpoint: &Path) -> Result<i32> {
    let stream = reach_daemon(mountpoint)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(|error| {
        Error::io(
            format!("cannot tell the process of the daemon of {}", mountpoint.display()),
            error.into(),
        )
    })?;
    Ok(peer.pid.as_raw_nonzero().get())
}

fn reach_daemon(mountpoint: &Path) -> Result<UnixStream> {
    let shown = mountpoint.display();
    let entry = MountEntry::at(mountpoint)
        .map_err(|error| Error::io("cannot read the list of mounts", error))?;
    let known = entry.as_ref().and_then(|entry| Some((entry, mountinfo::owner(entry)?)));
    let Some((entry, owner)) = known else {
        return Err(Error::new(
            ErrorKind::Unavailable,
            format!("{shown} is no mount whose daemon can be asked"),
        ));
    };
    reach(entry, owner).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Error::new(
            ErrorKind::Permission,
            format!(
                "{shown} is served by a process of user {owner}: only that user and root may ask it"
            ),
        ),
        _ => {
            let why = "it was just unmounted or killed, or runs in another container, where this \
                       command has to run";
            Error::new(
                ErrorKind::Unavailable,
                format!("the daemon of {shown} is not reachable from here: {why}"),
            )
        }
    })
}

/// Connects to the daemon of a mount.
fn reach(entry: &MountEntry, owner: u32) -> io::Result<UnixStream> {
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    for dir in directories(owner) {
        let connected = require_private(&dir, owner)
            .and_then(|()| UnixStream::connect(dir.join(name_of(&entry.device))));
        match connected
            .and_then(|stream| Ok((rustix::net::sockopt::socket_peercred(&stream)?, stream)))
        {
            Ok((peer, stream)) if peer.uid.as_raw() == owner => return Ok(stream),
            Ok(_) => refused = io::Error::other("a process of another user listens there"),
            // What the second directory says of a user that has only the first is less than that it
            // may not be used.
            Err(error) if refused.kind() != io::ErrorKind::PermissionDenied => refused = error,
            Err(_) => {}
        }
    }
    Err(refused)
}

fn converse(stream: &UnixStream, request: &Request) -> io::Result<Answer> {
    // A daemon that refuses need not have read the request: what it says counts.
    let written = wire::write(&mut &*stream, request);
    let answered = wire::read_answer(&mut BufReader::new(stream));
    answered.map_err(|error| written.err().unwrap_or(error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn i_ctl_1_a_directory_that_others_may_use_is_not_used() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("sockets");
        drop(bind_in(&dir, "0:77").unwrap());
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        let own = rustix::process::geteuid().as_raw();
        assert!(
            require_private(&dir, own).is_ok() && require_private(&dir, own + 1).is_err(),
            "I-CTL-1"
        );
        for mode in [0o701, 0o720, 0o777] {
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode)).unwrap();
            let refusal = bind_in(&dir, "0:77").unwrap_err().to_string();
            assert!(refusal.contains("is not used"), "I-CTL-1: {mode:o}: {refusal}");
        }
        let link = outer.path().join("link");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(bind_in(&link, "0:77").is_err(), "I-CTL-1: a link leads anywhere");
    }

    #[test]
    fn i_ctl_2_a_socket_of_a_dead_process_is_taken_over_and_a_live_one_removes_only_itself() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("sockets");
        let first = bind_in(&dir, "0:77").unwrap();
        let path = dir.join("0-77.sock");
        let second = bind_in(&dir, "0:77").unwrap();
        assert!(!first.is_there() && second.is_there(), "I-CTL-2");
        drop(first);
        assert!(
            second.is_there() && UnixStream::connect(&path).is_ok(),
            "I-CTL-2: it removed another's"
        );
        drop(second);
        // As killed processes leave them.
        let left = dir.join("0-79.sock");
        drop(UnixListener::bind(&path).unwrap());
        drop(UnixListener::bind(&left).unwrap());
        assert!(is_dead(&path) && is_dead(&left));
        let again = bind_in(&dir, "0:77").unwrap();
        assert!(
            again.is_there() && UnixStream::connect(&path).is_ok() && !left.exists(),
            "I-CTL-2: what the dead left stays"
        );
        drop(again);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }
}
