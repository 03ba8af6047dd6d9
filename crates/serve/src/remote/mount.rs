//! A directory of a server while it is mounted.
//!
//! ```text
//!   start() ── mounted, kernel answered ── live ── end(): unmounted ── session over ── files synced
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use bedplate_block::MountEntry;
use bedplate_fuse::{Connection, Flags, Serve, Terms, Threads};
use bedplate_nfs::{Client, Handle, Mode};
use parking_lot::{Condvar, Mutex};

use super::requests::{Remote, THREADS_MIN};
use crate::fuse::attach::{self, Detach, Guard, Listed};
use crate::fuse::mount::cut_connection;
use crate::fuse::mountpoint;
use crate::fuse::settings::MountSettings;
use crate::{Error, ErrorKind, Result};

/// The part of the file system's type behind `fuse.`.
const SUBTYPE: &str = "bedplate-nfs";
/// The largest payload of one request in bytes.
pub(super) const PAYLOAD_BYTES_MAX: usize = 512 << 10;
/// Requests that the kernel may have under way in the background.
const BACKGROUND_MAX: u16 = 128;
/// How long the session may take to end once the mount is gone, before its connection is cut.
const END_PATIENCE: Duration = Duration::from_secs(1);

const REQUIRED: Flags = Flags::PARALLEL_DIROPS.with(Flags::ASYNC_DIO).with(Flags::SETXATTR_EXT);
const WELCOME: Flags =
    Flags::DO_READDIRPLUS.with(Flags::READDIRPLUS_AUTO).with(Flags::DIRECT_IO_ALLOW_MMAP);

/// Programs' locks are passed on. Without these flags the kernel holds them itself.
const LOCKS: Flags = Flags::POSIX_LOCKS.with(Flags::FLOCK_LOCKS);

/// How a directory of a server is mounted.
#[derive(Debug, Clone, Copy)]
pub struct RemoteSettings {
    /// How the data of its files moves.
    pub mode: Mode,
    /// Programs of other users than this one may use it.
    pub allow_other: bool,
    /// The mount is taken away when this process dies. One that [`hide_mounts`](super::hide_mounts)
    /// hides needs no such care.
    pub auto_unmount: bool,
}

/// A directory of a server that is mounted, served by threads of its own.
#[derive(Debug)]
pub struct RemoteMount {
    remote: Arc<Remote>,
    mountpoint: PathBuf,
    /// `major:minor`, by which the system knows the mount.
    device: Option<String>,
    guard: Option<Guard>,
    session: Arc<Session>,
}

/// Whether the kernel has ended the session.
#[derive(Debug, Default)]
struct Session {
    is_over: Mutex<bool>,
    ended: Condvar,
}

impl RemoteMount {
    /// Mounts a directory of a server, which a client has found, on one of this machine, and returns
    /// once it is there. Call it after any fork: it starts threads.
    ///
    /// # Errors
    /// `MountPoint`, `Stale`, `Permission`, `Unavailable` or `Io`.
    pub fn start(
        (client, root): (Client, &Handle),
        directory: &Path,
        settings: RemoteSettings,
    ) -> Result<Self> {
        let url = client.url().to_string();
        let remote = Remote::new(client, root, settings.mode)
            .map_err(|error| Error::io("cannot start a thread", error))?;
        let own = MountSettings {
            allow_other: settings.allow_other,
            auto_unmount: settings.auto_unmount,
            nonempty: true,
            ..MountSettings::default()
        };
        let mountpoint = mountpoint::prepare(directory, &own)?;
        let checks_permissions = !remote.callers.is_one();
        let listed = Listed { source: &url, subtype: SUBTYPE, checks_permissions };
        let (connection, guard) = attach::attach(&mountpoint, &own, &listed)?;
        let device = MountEntry::at(&mountpoint).ok().flatten().map(|entry| entry.device);
        let (remote, session) = (Arc::new(remote), Arc::<Session>::default());
        let begun = begin(&remote, connection, Arc::clone(&session));
        if let Err(error) = begun {
            attach::detach(&mountpoint, Detach::Lazily)?;
            let what = format!("the kernel did not take up the mount on {}", mountpoint.display());
            return Err(Error::io(what, error));
        }
        Ok(Self { remote, mountpoint, device, guard, session })
    }

    /// Returns the directory it is mounted on, its real path.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns the number of a process of this one's that waits to unmount it, where there is one.
    #[must_use]
    pub fn helper(&self) -> Option<u32> {
        self.guard.as_ref().map(Guard::helper)
    }

    /// Unmounts it, whether it is in use or not, and makes durable what was written and not synced.
    /// Waits for the server as long as the client has patience.
    ///
    /// # Errors
    /// `Io` where something could not be made durable.
    pub fn end(self) -> Result<()> {
        attach::detach(&self.mountpoint, Detach::Lazily)?;
        if !self.session.wait(END_PATIENCE) {
            self.device.iter().for_each(|device| cut_connection(device));
            self.session.wait(END_PATIENCE);
        }
        let failures = self.remote.release_all();
        match failures.first() {
            None => Ok(()),
            Some(first) => {
                let count = failures.len();
                let what = format!("what was written to {count} open files is lost: {first}");
                Err(Error::new(ErrorKind::Io, what))
            }
        }
    }
}

impl Session {
    fn end(&self) {
        *self.is_over.lock() = true;
        self.ended.notify_all();
    }

    /// Waits until it is over; `false` where that takes too long.
    fn wait(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut is_over = self.is_over.lock();
        while !*is_over && !self.ended.wait_until(&mut is_over, until).timed_out() {}
        *is_over
    }
}

/// Agrees with the kernel on how to talk, and begins to serve it.
fn begin(
    remote: &Arc<Remote>,
    connection: std::os::fd::OwnedFd,
    session: Arc<Session>,
) -> std::io::Result<()> {
    let on_server = remote.callers.own().locks_on_server();
    let terms = Terms {
        required: if on_server { REQUIRED.with(LOCKS) } else { REQUIRED },
        welcome: WELCOME,
        payload_bytes: PAYLOAD_BYTES_MAX,
        background_max: BACKGROUND_MAX,
    };
    let connection = Connection::open(connection, &terms)?;
    let serving = Arc::clone(remote);
    let serve: Serve = Arc::new(move |reply| serving.serve(reply));
    assert!(remote.notifier.set(connection.notifier()).is_ok(), "a mount has one session");
    let threads = connection.serve(THREADS_MIN, &serve)?;
    assert!(remote.threads.set(threads.count()).is_ok(), "a mount has one session");
    let wait = move || {
        if let Err(error) = Threads::join(threads) {
            tracing::debug!("the connection with the kernel ended: {error}");
        }
        session.end();
    };
    Builder::new().name("bedplate-nfs-m".into()).spawn(wait).map(drop)
}
