//! The exported directory: as long as its mount lives, and again when another one takes its place.
//!
//! ```text
//!   attached ── the mount dies: lost() ──► detached ── the directory has its key again: attach() ──┐
//!      ▲                                                                                           │
//!      └───────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! The verifier changes before anything is served of another mount (`lose`).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use bedplate_block::FileHandle;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::handle::{Key, cannot_keep_key};
use super::identity::Users;
use super::listing::Listings;
use super::locks::{LockTimes, Locks};
use super::open_files::{IDLE_TIME, OpenFile, OpenFiles};
use super::status::{Answer, Status};
use super::verifier::Verifier;
use crate::{Error, Result};

/// What of an export may be done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rights {
    /// The users.
    pub users: Users,
    /// Every change is refused.
    pub read_only: bool,
    /// How long clients with locks have.
    pub lock_times: LockTimes,
}

/// A directory that is exported, with all below it on the same file system.
#[derive(Debug)]
pub struct Tree {
    path: PathBuf,
    key: Key,
    pub(super) rights: Rights,
    pub(super) verifier: Verifier,
    attached: Mutex<Option<Arc<Attached>>>,
}

/// The directory on the mount that it lies on now.
#[derive(Debug)]
pub struct Attached {
    pub root: Node,
    /// For the system's calls by handle, which take no `O_PATH`.
    mount: OwnedFd,
    device: (u32, u32),
    pub files: OpenFiles,
    pub listings: Listings,
    pub locks: Locks,
    /// Another one for each.
    pub number: u64,
    lost: AtomicBool,
}

/// Something in the tree.
#[derive(Debug)]
pub struct Node {
    /// Open with `O_PATH`.
    pub fd: OwnedFd,
    pub handle: FileHandle,
    pub stat: Statx,
}

impl Tree {
    /// Takes a directory. The process is the superuser's.
    ///
    /// # Errors
    /// `Usage` where the system does not let this process open files by handle, or the file system
    /// has no handles; `System` where it cannot be opened.
    pub fn open(path: &Path, rights: Rights) -> Result<Self> {
        let path = path.canonicalize().map_err(|error| Error::system("export", path, error))?;
        let failed = |error| Error::system("export", &path, error);
        let root = open_root(&path).map_err(|error| failed(error.into()))?;
        let key = Key::read_or_make(&root).map_err(|error| cannot_keep_key(&path, error))?;
        let attached =
            Attached::new(root, rights.lock_times).map_err(|error| match error.raw_os_error() {
                Some(code) if code == Errno::PERM.raw_os_error() => Error::Usage(
                    "files are opened by handle and for the users of clients, which takes the \
                 superuser's rights: run as root"
                        .into(),
                ),
                Some(code) if code == Errno::OPNOTSUPP.raw_os_error() => Error::Usage(format!(
                    "the file system of {} has no file handles, so it cannot be exported",
                    path.display()
                )),
                _ => failed(error),
            })?;
        key.seal(&attached.root.handle).map_err(|_| {
            Error::Usage(format!(
                "the file handles of the file system of {} are longer than NFS has room for",
                path.display()
            ))
        })?;
        let start = getrandom::u64().map_err(|error| failed(io::Error::other(error)))?;
        Ok(Self {
            key,
            rights,
            verifier: Verifier::new(start),
            attached: Mutex::new(Some(Arc::new(attached))),
            path,
        })
    }

    /// Returns the directory's path, without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the directory as it is attached; clients ask later where it is not.
    pub(super) fn attached(&self) -> Answer<Arc<Attached>> {
        let mut attached = self.attached.lock();
        if let Some(live) = attached.as_ref().filter(|live| !live.lost.load(SeqCst)) {
            return Ok(Arc::clone(live));
        }
        *attached = None;
        match self.attach() {
            Ok(live) => {
                let live = Arc::new(live);
                *attached = Some(Arc::clone(&live));
                tracing::info!("{} is there again and served", self.path.display());
                Ok(live)
            }
            Err(error) => {
                tracing::debug!("{} is not there: {error}", self.path.display());
                Err(Status::Jukebox.into())
            }
        }
    }

    /// Looks for the directory: the one that was exported, and not what its mount covered.
    fn attach(&self) -> io::Result<Attached> {
        let root = open_root(&self.path)?;
        if Key::read(&root)? != Some(self.key) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it is another directory"));
        }
        Attached::new(root, self.rights.lock_times)
    }

    /// Returns the number of the mount that is served now.
    pub(super) fn mount_number(&self) -> Option<u64> {
        let attached = self.attached.lock();
        attached.as_ref().filter(|live| !live.lost.load(SeqCst)).map(|live| live.number)
    }

    /// Looks whether the mount of the directory is alive, after something failed.
    pub(super) fn is_alive(&self, live: &Attached) -> bool {
        let asked = rustix::fs::statx(
            &live.mount,
            c"",
            AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC,
            StatxFlags::BASIC_STATS,
        );
        let is_dead = matches!(asked, Err(Errno::NOTCONN | Errno::CONNABORTED));
        if is_dead {
            self.lose(live);
        }
        !is_dead && !live.lost.load(SeqCst)
    }

    fn lose(&self, live: &Attached) {
        let mut attached = self.attached.lock();
        if !live.lost.swap(true, SeqCst) {
            self.verifier.lost();
            tracing::warn!(
                "the mount of {} is gone: clients wait until it is there again",
                self.path.display()
            );
        }
        // What is open there would keep the mount point busy.
        if attached.as_ref().is_some_and(|live| live.lost.load(SeqCst)) {
            *attached = None;
        }
    }

    /// Closes what nothing uses, and looks whether the mount is alive.
    pub(super) fn keep_house(&self) {
        let live = self.attached.lock().clone();
        match live {
            Some(live) => {
                if self.is_alive(&live) {
                    live.files.close_idle(IDLE_TIME, &self.verifier);
                    live.listings.drop_idle(IDLE_TIME);
                    live.locks.keep_house();
                }
            }
            None => {
                // Its answer is in the log.
                let _attached = self.attached();
            }
        }
    }
}

fn open_root(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

fn stat(fd: impl AsFd) -> rustix::io::Result<Statx> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

impl Attached {
    fn new(mount: OwnedFd, times: LockTimes) -> io::Result<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let handle = FileHandle::of(&mount, c"")?;
        let fd = handle.open(&mount)?;
        let stat = stat(&fd)?;
        Ok(Self {
            root: Node { fd, handle, stat },
            locks: Locks::open(mount.try_clone()?, times)?,
            number: NUMBERS.fetch_add(1, SeqCst),
            mount,
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            files: OpenFiles::default(),
            listings: Listings::default(),
            lost: AtomicBool::new(false),
        })
    }

    /// Opens what a handle names.
    pub fn node(&self, handle: FileHandle) -> Answer<Node> {
        let fd = handle.open(&self.mount)?;
        let stat = stat(&fd)?;
        if stat.stx_nlink == 0 || self.is_elsewhere(&stat) {
            return Err(Status::Stale.into());
        }
        Ok(Node { fd, handle, stat })
    }

    fn is_elsewhere(&self, stat: &Statx) -> bool {
        (stat.stx_dev_major, stat.stx_dev_minor) != self.device
    }

    /// Takes what was just opened with `O_PATH`.
    pub fn found(&self, fd: OwnedFd) -> Answer<Node> {
        let stat = stat(&fd)?;
        if self.is_elsewhere(&stat) {
            return Err(Status::CrossDevice.into());
        }
        Ok(Node { handle: FileHandle::of(&fd, c"")?, fd, stat })
    }

    /// Opens a name of a directory, as the user that this thread acts as.
    pub fn child(&self, dir: &Node, name: &[u8]) -> Answer<Node> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.found(rustix::fs::openat(&dir.fd, name, flags, Mode::empty())?)
    }

    /// Returns the directory that holds another one, and never one above the exported one.
    pub fn parent(&self, dir: &Node) -> Answer<Node> {
        /// Directories from one up to the root.
        const DEPTH_MAX: usize = 4096;
        if dir.handle == self.root.handle {
            return self.node(self.root.handle.clone());
        }
        let parent = self.child(dir, b"..")?;
        let mut above = parent.fd.try_clone()?;
        for _ in 0..DEPTH_MAX {
            let found = self.found(above)?;
            if found.handle == self.root.handle {
                return Ok(parent);
            }
            let next = self.child(&found, b"..")?;
            if next.handle == found.handle {
                break;
            }
            above = next.fd;
        }
        // It was moved out of what is exported.
        Err(Status::Stale.into())
    }
}

impl Node {
    pub fn file_type(&self) -> FileType {
        FileType::from_raw_mode(u32::from(self.stat.stx_mode))
    }

    /// Looks at the attributes once more.
    pub fn look_again(&mut self) -> rustix::io::Result<()> {
        self.stat = stat(&self.fd)?;
        Ok(())
    }

    /// Returns a path that leads to this very object, through no other name.
    pub fn own_path(&self) -> CString {
        CString::new(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
            .expect("a number has no zero byte")
    }

    /// Opens it again, for more than `O_PATH` allows.
    pub fn reopen(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        rustix::fs::openat(CWD, self.own_path(), flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// Returns it open for reading, or for writing where `write`; only a regular file is ever
    /// opened.
    pub fn open(&self, live: &Attached, write: bool, verifier: &Verifier) -> Answer<Arc<OpenFile>> {
        match self.file_type() {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Status::IsDirectory.into()),
            _ => return Err(Status::Invalid.into()),
        }
        let flags = if write { OFlags::WRONLY } else { OFlags::RDONLY } | OFlags::NONBLOCK;
        Ok(live.files.get(&self.handle, write, verifier, || self.reopen(flags))?)
    }

    /// Makes its attributes and, of a directory, its names durable, as far as the system can:
    /// nothing but files and directories can be asked for.
    pub fn sync(&self, live: &Attached, verifier: &Verifier) -> Answer<()> {
        match self.file_type() {
            FileType::RegularFile => Ok(self.open(live, false, verifier)?.flush(true, verifier)?),
            FileType::Directory => {
                let dir = self.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?;
                let synced = rustix::fs::fsync(&dir);
                if synced.is_err() {
                    verifier.lost();
                }
                Ok(synced?)
            }
            _ => Ok(()),
        }
    }
}
