//! A live mount: how it starts, and how it ends.
//!
//! ```text
//!   start() ── mount point checked ── mounted, kernel answered ── live ── unmounted from outside, or unmount() ── session over ── finish()
//!                                                                                                                    │
//!                              volume unmounted, clean: wait() and unmount() return what came of it  ◄───────────────┘
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use bedplate_block::MountEntry;
use bedplate_fs::{FileSystem, Tunable};
use parking_lot::{Condvar, Mutex};

use super::attach::{self, Detach, Guard, Listed};
use super::lease::LeaseServer;
use super::lines::Lines;
use super::listener::Listener;
use super::mountpoint;
use super::serving_threads::ServingThreads;
use super::session::Session;
use super::settings::MountSettings;
use super::shared::Shared;
use super::views::Shown;
use crate::control::GroupHandle;
use crate::{Error, ErrorKind, Result};

/// How long an unmount waits for the last users to end, and how often it looks.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
const BUSY_STEP: Duration = Duration::from_millis(20);

/// How long an unmount waits for the session to end once the mount is gone from here.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// How long a forced unmount waits for the session to end by itself, and again after the connection
/// was cut.
const FORCE_PATIENCE: Duration = Duration::from_secs(1);
const _: () = assert!(
    BUSY_STEP.as_millis() < BUSY_PATIENCE.as_millis(),
    "a busy mount is asked more than once"
);

struct State {
    /// What is still to be closed when the session ends.
    open: Option<(Arc<Shared>, Option<Guard>)>,
    /// Takes requests of commands until then.
    listener: Option<Listener>,
    /// Looks after processes with leases until then.
    leases: Option<LeaseServer>,
    result: Option<Result<()>>,
}

struct Inner {
    mountpoint: PathBuf,
    threads: Arc<ServingThreads>,
    /// `major:minor`, by which the system knows the mount wherever it is.
    device: Option<String>,
    state: Mutex<State>,
    ended: Condvar,
}

/// A mounted volume, served by threads of its own. May be used from any number of threads.
///
/// Dropped while live, it is unmounted [by force](Self::force_unmount).
pub struct Mount {
    inner: Arc<Inner>,
}

impl Mount {
    /// Mounts `fs` on `directory` and returns once the mount is live. Call it after any fork: it
    /// starts threads.
    ///
    /// # Errors
    /// `MountPoint`, `Stale`, `Permission`, `Unavailable` or `Io`; the file system is left as it
    /// was, mounted in this process.
    pub fn start(fs: FileSystem, directory: &Path, settings: &MountSettings) -> Result<Self> {
        Self::start_on(None, fs, directory, settings)
    }

    /// As [`start`](Self::start), for a volume that lies on a group of devices, which commands
    /// reach through the mount too.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_on(
        group: Option<GroupHandle>,
        fs: FileSystem,
        directory: &Path,
        settings: &MountSettings,
    ) -> Result<Self> {
        let volume = fs.clone();
        let mount = Self::start_showing(fs, directory, settings, Shown::Volume)?;
        mount.inner.listen(group);
        mount.inner.lease();
        mount.inner.list();
        let inner = Arc::downgrade(&mount.inner);
        volume.before_scheduled(move || {
            if let Some(Err(error)) = inner.upgrade().map(|inner| inner.sync_pages()) {
                tracing::debug!(
                    "the kernel kept dirty pages before a checkpoint by schedule: {error}"
                );
            }
        });
        Ok(mount)
    }

    /// As [`start`](Self::start), for the volume or a checkpoint of it.
    pub(super) fn start_showing(
        fs: FileSystem,
        directory: &Path,
        settings: &MountSettings,
        shown: Shown,
    ) -> Result<Self> {
        let mountpoint = mountpoint::prepare(directory, settings)?;
        let lines = Lines::start().map_err(|e| Error::io("cannot start a thread", e))?;
        // What the volume holds counts where no option was given, so the file system is asked.
        let threads = usize::try_from(fs.tunable(Tunable::Threads)).unwrap_or(1);
        let shared = Arc::new(Shared::new(fs, settings, shown, threads, lines));
        let (connection, guard) =
            attach::attach(&mountpoint, settings, &Listed::volume(&shared.source))?;

        let device = MountEntry::at(&mountpoint).ok().flatten().map(|entry| entry.device);
        let for_kernel = Arc::clone(&shared);
        for_kernel.is_mounted_on(&mountpoint, device.as_deref());
        let started = Session::open(&shared, connection, threads).and_then(|session| {
            let state = Mutex::new(State {
                open: Some((shared, guard)),
                listener: None,
                leases: None,
                result: None,
            });
            let inner = Arc::new(Inner {
                mountpoint: mountpoint.clone(),
                threads: Arc::clone(&for_kernel.threads),
                device,
                state,
                ended: Condvar::new(),
            });
            let serving = Arc::clone(&inner);
            let serve = move || serving.finish(session.serve());
            Builder::new().name("bedplate-mount".into()).spawn(serve)?;
            Ok(Self { inner })
        });
        match started {
            Ok(mount) => {
                for_kernel.widen_read_ahead();
                for_kernel.widen_kernel_dirty();
                Ok(mount)
            }
            Err(error) => {
                attach::detach(&mountpoint, Detach::Lazily)?;
                Err(Error::io(
                    format!("the kernel did not take up the mount on {}", mountpoint.display()),
                    error,
                ))
            }
        }
    }

    /// Has it show one directory of the volume instead of all. Call it before the mount is told of.
    ///
    /// # Errors
    /// `Part`: there is no such directory; `Permission`: this user may not; `Io`.
    pub fn show_part(&self, path: &Path) -> Result<()> {
        let shared = self.inner.state.lock().open.as_ref().map(|(shared, _)| Arc::clone(shared));
        shared.map_or(Ok(()), |shared| shared.show_part(path))
    }

    /// Returns the directory it is mounted on, its real path.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.inner.mountpoint
    }

    /// Returns how busy the threads are that serve it.
    #[must_use]
    pub fn threads(&self) -> Arc<ServingThreads> {
        Arc::clone(&self.inner.threads)
    }

    /// Returns whether it is still mounted.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.inner.state.lock().result.is_none()
    }

    /// Waits until it is unmounted (`umount`, `fusermount3 -u`, [`unmount`](Self::unmount)) and the
    /// volume is clean.
    ///
    /// # Errors
    /// `FileSystem` when the last writes failed; `Broken` when an invariant was found broken; `Io`
    /// when the kernel cut the connection.
    pub fn wait(&self) -> Result<()> {
        let mut state = self.inner.state.lock();
        loop {
            if let Some(result) = &state.result {
                return result.clone();
            }
            self.inner.ended.wait(&mut state);
        }
    }

    /// Unmounts, and waits until the volume is clean.
    ///
    /// # Errors
    /// `Busy`, naming its users, when it is still in use after a second: the mount stays as it is.
    /// `Busy` too when it is gone from here, but other mount namespaces (containers) hold copies of
    /// it, which are named: it ends when they end. Otherwise as [`wait`](Self::wait).
    pub fn unmount(&self) -> Result<()> {
        let deadline = Instant::now() + BUSY_PATIENCE;
        while self.is_live() {
            match self.inner.detach(Detach::Cleanly) {
                Err(error) if error.kind == ErrorKind::Busy && Instant::now() < deadline => {
                    std::thread::sleep(BUSY_STEP);
                }
                result => {
                    result?;
                    self.inner.wait_for_copies()?;
                    break;
                }
            }
        }
        self.wait()
    }

    /// Unmounts even while in use: writes what is dirty, takes the mount away from the names at
    /// once, cuts its users off, and waits until the volume is clean.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn force_unmount(&self) -> Result<()> {
        if !self.is_live() {
            return self.wait();
        }
        self.inner.write_dirty_pages();
        self.inner.detach(Detach::Lazily)?;
        if !self.inner.wait_until(Instant::now() + FORCE_PATIENCE) {
            if let Some(device) = &self.inner.device {
                cut_connection(device);
            }
            if !self.inner.wait_until(Instant::now() + FORCE_PATIENCE) {
                // The kernel keeps the connection for remaining users; requests from now on are
                // refused.
                self.inner.finish(Ok(()));
            }
        }
        self.wait()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_live()
            && let Err(error) = self.force_unmount()
        {
            tracing::error!("unmounting {}: {error}", self.inner.mountpoint.display());
        }
    }
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("mountpoint", &self.inner.mountpoint).finish_non_exhaustive()
    }
}

impl Inner {
    /// Lets commands reach the mount. One that cannot be reached is a mount all the same.
    fn listen(&self, group: Option<GroupHandle>) {
        let mut state = self.state.lock();
        // It may be over already.
        let Some((shared, _)) = &state.open else { return };
        let started = match &self.device {
            Some(device) => Listener::start(shared, group, device.clone()),
            None => Err(std::io::Error::other("the list of mounts does not show it")),
        };
        match started {
            Ok(listener) => state.listener = Some(listener),
            Err(error) => {
                let dir = self.mountpoint.display();
                tracing::warn!(
                    "no socket for commands: {error}; those that change {dir}, or ask about more \
                     than one file, do not reach it"
                );
            }
        }
    }

    /// Has lists of mounts show how it is mounted.
    fn list(&self) {
        // Under the lock, so that the end takes it out again.
        if let Some((shared, _)) = &self.state.lock().open {
            shared.list_options();
        }
    }

    /// Hands out leases where that is wanted. A mount that cannot is a mount all the same.
    fn lease(&self) {
        let mut state = self.state.lock();
        let Some((shared, _)) =
            state.open.as_ref().filter(|(shared, _)| shared.settings.hands_out_leases())
        else {
            return;
        };
        let started = shared
            .start_leases()
            .and_then(|()| LeaseServer::start(shared).map_err(|error| error.to_string()));
        match started {
            Ok(server) => state.leases = Some(server),
            Err(error) => {
                let dir = self.mountpoint.display();
                tracing::warn!("no leases: {error}; programs read and write through {dir}");
            }
        }
    }

    /// Closes everything and unmounts the volume, once; `session` is how serving ended.
    fn finish(&self, session: std::io::Result<()>) {
        let (open, listener) = {
            let mut state = self.state.lock();
            (state.open.take(), (state.listener.take(), state.leases.take()))
        };
        let Some((shared, guard)) = open else { return };
        drop(listener);
        if !matches!(shared.shown, Shown::Checkpoint(_)) {
            shared.unlist_options();
            shared.fs.lease_stop();
        }
        shared.asks.stop();
        shared.lines.stop();
        shared.views.end();
        shared.files.clear();
        shared.dirs.clear();
        let result = if shared.is_broken() {
            let message = "a broken invariant was found while serving: the volume was left as \
                           after a crash; mount it to recover, and check it";
            Err(Error::new(ErrorKind::Broken, message))
        } else if matches!(shared.shown, Shown::Checkpoint(_)) {
            Ok(())
        } else {
            shared.fs.clone().unmount().map_err(Error::from)
        };
        let result = result.and_then(|()| {
            session
                .map_err(|e| Error::io(format!("serving {} ended", self.mountpoint.display()), e))
        });
        drop(guard);
        self.state.lock().result = Some(result);
        self.ended.notify_all();
    }

    /// Waits for the end of a mount that is gone from here; fails when copies of it in other mount
    /// namespaces keep it.
    fn wait_for_copies(&self) -> Result<()> {
        while !self.wait_until(Instant::now() + END_PATIENCE) {
            let holders = self.device.as_deref().map(mountpoint::holders_of).unwrap_or_default();
            if !holders.is_empty() {
                let shown = holders[..holders.len().min(3)].join(", ");
                let message = format!(
                    "{} is unmounted here, but other mount namespaces still have a copy of the \
                     mount, those of {shown}: it ends when they end",
                    self.mountpoint.display()
                );
                return Err(Error::new(ErrorKind::Busy, message));
            }
        }
        Ok(())
    }

    /// Waits for the end; returns whether it came before `deadline`.
    fn wait_until(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        while state.result.is_none() {
            if self.ended.wait_until(&mut state, deadline).timed_out() {
                return state.result.is_some();
            }
        }
        true
    }

    /// Takes the mount away, and before it what is mounted of it beside, the latest first.
    fn detach(&self, how: Detach) -> Result<()> {
        let Some(device) = &self.device else { return attach::detach(&self.mountpoint, how) };
        let entries =
            MountEntry::all().map_err(|e| Error::io("cannot read the list of mounts", e))?;
        let own = entries.iter().rev().filter(|entry| entry.device == *device);
        let (first, beside): (Vec<_>, Vec<_>) = own.partition(|entry| entry.dir == self.mountpoint);
        beside.iter().chain(&first).try_for_each(|entry| {
            let on_top = entries.iter().rfind(|other| other.dir == entry.dir);
            if on_top.is_some_and(|on_top| on_top.device != *device) {
                let message = format!(
                    "{} has another file system mounted over it: unmount that first",
                    entry.dir.display()
                );
                return Err(Error::new(ErrorKind::Busy, message));
            }
            attach::detach(&entry.dir, how)
        })
    }

    /// Makes the kernel send us what it holds back.
    fn sync_pages(&self) -> std::io::Result<()> {
        let place = mountpoint::reached_at(&self.mountpoint, self.device.as_deref());
        let root = std::fs::File::open(place.as_ref().unwrap_or(&self.mountpoint))?;
        bedplate_block::sync_file_system(&root)
    }

    /// As [`sync_pages`](Self::sync_pages), at the end.
    fn write_dirty_pages(&self) {
        if let Err(error) = self.sync_pages() {
            tracing::warn!(
                "the kernel's dirty pages of {} may be lost: {error}",
                self.mountpoint.display()
            );
        }
    }
}

/// Ends a FUSE connection through its control directory, where that is mounted.
pub(crate) fn cut_connection(device: &str) {
    let Some((_, minor)) = device.split_once(':') else { return };
    if let Err(error) = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1") {
        tracing::debug!("cannot cut the connection: {error}");
    }
}
