//! Making and taking away the mount itself: `mount(2)` where that is allowed, and the set-user-ID
//! helper `fusermount3` where it is not.
//!
//! Which users may make requests is the kernel's check alone (`allow_other`): its own write-back
//! comes in the name of whichever user.

use std::ffi::CString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{getegid, geteuid};

use super::mountpoint::FS_TYPE;
use super::settings::MountSettings;
use crate::{Error, ErrorKind, Result};

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// Keeps a helper that waits for this process to end (`auto_unmount`).
#[derive(Debug)]
pub(crate) struct Guard {
    socket: Option<UnixStream>,
    helper: Child,
}

impl Guard {
    /// Returns the number of the helper's process, a child of this one.
    pub(crate) fn helper(&self) -> u32 {
        self.helper.id()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The helper ends when the socket closes; it is waited for so that it leaves no zombie.
        self.socket = None;
        if let Err(error) = self.helper.wait() {
            tracing::debug!("waiting for {HELPER}: {error}");
        }
    }
}

/// As what a mount is listed, and what the kernel checks for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listed<'a> {
    pub(crate) source: &'a str,
    /// The part of the file system's type behind `fuse.`.
    pub(crate) subtype: &'a str,
    /// The kernel goes by the permission bits; where not, the server is asked alone.
    pub(crate) checks_permissions: bool,
}

impl<'a> Listed<'a> {
    /// Returns how a volume is listed.
    pub(crate) fn volume(source: &'a str) -> Self {
        let subtype = FS_TYPE.strip_prefix("fuse.").expect("it is a type of FUSE");
        Self { source, subtype, checks_permissions: true }
    }
}

/// How a mount is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detach {
    /// Only when it is not in use.
    Cleanly,
    /// From the names at once; its users keep it until they end.
    Lazily,
}

/// Mounts and returns the connection to the kernel.
pub(crate) fn attach(
    mountpoint: &Path,
    settings: &MountSettings,
    listed: &Listed<'_>,
) -> Result<(OwnedFd, Option<Guard>)> {
    if geteuid().is_root() && !settings.auto_unmount {
        match mount_directly(mountpoint, settings, listed) {
            Err(error) if error.kind == ErrorKind::Permission => {
                tracing::debug!("{error}; trying {HELPER}");
            }
            result => return Ok((result?, None)),
        }
    }
    mount_by_helper(mountpoint, settings, listed)
}

/// Unmounts what another process serves. It returns when the mount is gone from the names; the
/// process is then still making everything durable.
///
/// # Errors
/// `Busy`, naming its users, when it is in use; `Unavailable` and `Io` when the system or its
/// helper refuses.
pub fn unmount(mountpoint: &Path) -> Result<()> {
    detach(mountpoint, Detach::Cleanly)
}

/// Takes a mount away. One that is gone already is no error.
pub(crate) fn detach(mountpoint: &Path, how: Detach) -> Result<()> {
    let flags = match how {
        Detach::Cleanly => UnmountFlags::NOFOLLOW,
        Detach::Lazily => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::PERM) => detach_by_helper(mountpoint, how),
        Err(errno) => Err(detach_error(mountpoint, errno.into())),
    }
}

fn detach_error(mountpoint: &Path, error: io::Error) -> Error {
    if error.raw_os_error() == Some(libc::EBUSY) {
        let users = super::mountpoint::users_of(mountpoint);
        let by = if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) };
        let message = format!(
            "{} is in use{by}: close what is open on it and unmount again",
            mountpoint.display()
        );
        return Error { kind: ErrorKind::Busy, message, source: Some(std::sync::Arc::new(error)) };
    }
    Error::io(format!("cannot unmount {}", mountpoint.display()), error)
}

fn detach_by_helper(mountpoint: &Path, how: Detach) -> Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if how == Detach::Lazily {
        command.arg("-z");
    }
    let output =
        command.arg("--").arg(mountpoint).stdin(Stdio::null()).output().map_err(no_helper)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("Device or resource busy") {
        return Err(detach_error(mountpoint, io::Error::from_raw_os_error(libc::EBUSY)));
    }
    if said.contains("Invalid argument") || said.contains("not found in /etc/mtab") {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Io,
        format!("cannot unmount {}: {}", mountpoint.display(), said.trim()),
    ))
}

fn no_helper(error: io::Error) -> Error {
    let kind = if error.kind() == io::ErrorKind::NotFound {
        ErrorKind::Unavailable
    } else {
        ErrorKind::Io
    };
    let message = format!(
        "cannot run {HELPER}, which ordinary users need for mounting: {error}; install the package \
         fuse3"
    );
    Error { kind, message, source: Some(std::sync::Arc::new(error)) }
}

fn mount_directly(
    mountpoint: &Path,
    settings: &MountSettings,
    listed: &Listed<'_>,
) -> Result<OwnedFd> {
    let device = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE).map_err(
        |error| match error.kind() {
            io::ErrorKind::NotFound => {
                let message =
                    format!("{DEVICE} does not exist: load the kernel module with 'modprobe fuse'");
                Error {
                    kind: ErrorKind::Unavailable,
                    message,
                    source: Some(std::sync::Arc::new(error)),
                }
            }
            _ => Error::io(format!("cannot open {DEVICE}"), error),
        },
    )?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw()
    );
    if listed.checks_permissions {
        data.push_str(",default_permissions");
    }
    if settings.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("digits and letters hold no zero byte");
    match rustix::mount::mount(
        listed.source,
        mountpoint,
        format!("fuse.{}", listed.subtype),
        mount_flags(settings),
        Some(data.as_c_str()),
    ) {
        Ok(()) => Ok(device.into()),
        Err(errno) if errno == Errno::PERM || errno == Errno::ACCESS => Err(Error {
            kind: ErrorKind::Permission,
            ..Error::io("mount(2) is not allowed here", errno.into())
        }),
        Err(Errno::NODEV) => Err(Error::new(
            ErrorKind::Unavailable,
            "this kernel has no FUSE: load the module with 'modprobe fuse'",
        )),
        Err(errno) => {
            Err(Error::io(format!("cannot mount on {}", mountpoint.display()), errno.into()))
        }
    }
}

fn mount_flags(settings: &MountSettings) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, settings.is_read_only());
    flags.set(MountFlags::NODEV, !settings.dev);
    flags.set(MountFlags::NOSUID, !settings.suid);
    flags.set(MountFlags::NOEXEC, !settings.exec);
    flags.set(MountFlags::NOATIME, !settings.file_system.relatime);
    flags
}

/// Runs the helper, which mounts and sends the connection back over a socket that it finds as its
/// standard input.
fn mount_by_helper(
    mountpoint: &Path,
    settings: &MountSettings,
    listed: &Listed<'_>,
) -> Result<(OwnedFd, Option<Guard>)> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| Error::io("cannot make a socket", e))?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(helper_options(settings, listed)).arg("--").arg(mountpoint);
    command
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut helper = command.spawn().map_err(no_helper)?;
    drop(command);
    let connection = receive(&ours);
    let connection = match connection {
        Ok(connection) if settings.auto_unmount => {
            return Ok((connection, Some(Guard { socket: Some(ours), helper })));
        }
        other => other,
    };
    drop(ours);
    let mut said = String::new();
    if let Some(mut stderr) = helper.stderr.take() {
        stderr
            .read_to_string(&mut said)
            .map_err(|e| Error::io(format!("reading what {HELPER} says"), e))?;
    }
    helper.wait().map_err(|e| Error::io(format!("waiting for {HELPER}"), e))?;
    match connection {
        Ok(connection) => Ok((connection, None)),
        Err(error) => Err(helper_error(mountpoint, said.trim(), &error)),
    }
}

fn helper_error(mountpoint: &Path, said: &str, error: &io::Error) -> Error {
    if said.contains("user_allow_other") {
        let message = "allow_other is for root only unless /etc/fuse.conf says user_allow_other: \
                       add that line, or leave the option away";
        return Error::new(ErrorKind::Permission, message);
    }
    if said.contains("failed to open /dev/fuse") {
        let message = "ordinary users may not open /dev/fuse here: have root allow it with 'chmod \
                       666 /dev/fuse', as most systems do by default";
        return Error::new(ErrorKind::Permission, message);
    }
    let why = if said.is_empty() { error.to_string() } else { said.to_string() };
    let kind = if why.contains("ermission") || why.contains("permitted") {
        ErrorKind::Permission
    } else {
        ErrorKind::Io
    };
    Error::new(kind, format!("cannot mount on {}: {why}", mountpoint.display()))
}

fn helper_options(settings: &MountSettings, listed: &Listed<'_>) -> String {
    let mut options = format!("fsname={},subtype={}", escape(listed.source), listed.subtype);
    let mut add = |option: &str, wanted: bool| {
        if wanted {
            options.push(',');
            options.push_str(option);
        }
    };
    add("default_permissions", listed.checks_permissions);
    add("ro", settings.is_read_only());
    add("allow_other", settings.allow_other);
    add("auto_unmount", settings.auto_unmount);
    add("dev", settings.dev);
    add("suid", settings.suid);
    add("noexec", !settings.exec);
    add("noatime", !settings.file_system.relatime);
    options
}

/// The helper's own way of writing a comma inside an option.
fn escape(source: &str) -> String {
    source.replace('\\', r"\\").replace(',', r"\,")
}

/// Receives the connection; fails when the helper ends without sending one.
fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0_u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        match recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => break,
        }
    }
    let connection = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    connection.ok_or_else(|| io::Error::other(format!("{HELPER} ended without a connection")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_gets_what_mount_would_get() {
        let mut settings = MountSettings::default();
        assert_eq!(
            helper_options(&settings, &Listed::volume("a,b.img")),
            r"fsname=a\,b.img,subtype=bedplate,default_permissions"
        );
        assert_eq!(mount_flags(&settings), MountFlags::NODEV | MountFlags::NOSUID);
        settings = MountSettings::parse("ro,allow_other,suid,dev,noexec,noatime").unwrap();
        assert_eq!(
            helper_options(&settings, &Listed::volume("x")),
            "fsname=x,subtype=bedplate,default_permissions,ro,allow_other,dev,suid,noexec,noatime"
        );
        assert_eq!(
            mount_flags(&settings),
            MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::NOATIME
        );
    }

    #[test]
    fn a_helper_that_ends_without_a_connection_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(receive(&ours).is_err());
    }

    #[test]
    fn what_is_not_mounted_is_unmounted_without_an_error() {
        let dir = tempfile::tempdir().unwrap();
        if geteuid().is_root() {
            detach(dir.path(), Detach::Cleanly).unwrap();
        }
    }
}
