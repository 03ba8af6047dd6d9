//! The connection with the kernel: what is agreed on, what serves it, and the messages to it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use bedplate_fs::InodeNo;
use bedplate_fuse::{Connection, Flags, Lanes, Notifier, Terms, Threads, is_serving};

use super::shared::Shared;
use super::translate::translator;
use super::transport::threads_each;

/// Requests that the kernel may have under way in the background: read-ahead, write-back,
/// asynchronous direct I/O.
const BACKGROUND_MAX: u16 = 512;

/// The largest payload of one request in bytes: what the kernel sends and asks for at most
/// (`fs.fuse.max_pages_limit` by default).
const PAYLOAD_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(
    PAYLOAD_BYTES_MAX.is_power_of_two(),
    "the longest payload is whole blocks of every device"
);

/// What the mount cannot do without. All of it is older than Linux 6.6.
const REQUIRED: Flags = Flags::PARALLEL_DIROPS
    .with(Flags::ASYNC_DIO)
    .with(Flags::HANDLE_KILLPRIV_V2)
    .with(Flags::SETXATTR_EXT)
    .with(Flags::EXPLICIT_INVAL_DATA);

/// What it takes where the kernel offers it. Locks are not among them, so that the kernel keeps
/// them itself, as it does for any local file system.
const WELCOME: Flags = Flags::DO_READDIRPLUS
    .with(Flags::READDIRPLUS_AUTO)
    .with(Flags::CACHE_SYMLINKS)
    .with(Flags::DIRECT_IO_ALLOW_MMAP)
    .with(Flags::EXPORT_SUPPORT);

/// A connection on which the kernel has agreed to everything, and the threads that serve it.
pub(super) struct Session {
    /// Threads that read `/dev/fuse`.
    threads: Threads,
    /// Threads over io_uring.
    lanes: Option<Lanes>,
}

impl Session {
    /// Agrees with the kernel on how to talk, and begins to serve it.
    pub(super) fn open(
        shared: &Arc<Shared>,
        connection: OwnedFd,
        threads: usize,
    ) -> io::Result<Self> {
        let connection = Connection::open(connection, &terms(shared))?;
        shared.kernel.connect(connection.notifier());
        let serve = translator(shared);
        if !shared.asks_for_ring {
            let threads = connection.serve(threads, &serve)?;
            shared.threads.begin(vec![Arc::clone(threads.load())], Some(threads.count()));
            return Ok(Self { threads, lanes: None });
        }
        // The kernel makes no request until it is served so. Through the device it says what it
        // forgets, and nothing else.
        let lanes = connection.serve_over_ring(threads_each(threads), &serve)?;
        shared.threads.begin(lanes.loads().to_vec(), None);
        Ok(Self { threads: connection.serve(1, &serve)?, lanes: Some(lanes) })
    }

    /// Serves until the connection ends.
    pub(super) fn serve(self) -> io::Result<()> {
        let served = self.threads.join();
        served.and(self.lanes.map_or(Ok(()), Lanes::join))
    }
}

fn terms(shared: &Shared) -> Terms {
    let mut required = REQUIRED;
    if shared.asks_for_ring {
        required = required | Flags::OVER_IO_URING;
    }
    if shared.write_back {
        required = required | Flags::WRITEBACK_CACHE;
    }
    if shared.acls {
        // With lists the directory decides whether the umask counts, which the kernel then leaves
        // to the mount.
        required = required | Flags::POSIX_ACL | Flags::DONT_MASK;
    }
    Terms {
        required,
        welcome: WELCOME,
        payload_bytes: PAYLOAD_BYTES_MAX,
        background_max: BACKGROUND_MAX,
    }
}

/// Messages to the kernel. Each waits for the kernel, and so for requests that event threads
/// answer: not for those (I-LIN-1).
#[derive(Debug, Default)]
pub(super) struct Kernel {
    notifier: OnceLock<Notifier>,
}

impl Kernel {
    fn connect(&self, notifier: Notifier) {
        assert!(self.notifier.set(notifier).is_ok(), "a mount has one session");
    }

    /// Returns the way to the kernel, which no event thread may take; `None` before the kernel has
    /// answered.
    fn notifier(&self) -> Option<&Notifier> {
        assert!(!is_serving(), "I-LIN-1: an event thread waits for the kernel");
        self.notifier.get()
    }

    /// Returns whether the kernel may be told that a name is absent: where it can be told to forget
    /// that by threads whose answer it waits for (S-540).
    pub(super) fn may_know_absent(&self) -> bool {
        self.notifier.get().is_some_and(Notifier::has_epochs)
    }

    /// Makes the kernel look up what it took for absent. It looks every other name up once more too.
    pub(super) fn forget_absent(&self) {
        let Some(notifier) = self.notifier.get().filter(|it| it.has_epochs()) else { return };
        if let Err(error) = notifier.expire_all() {
            tracing::warn!("the kernel may take names for absent that are not: {error}");
        }
    }

    /// Makes the kernel write its dirty pages of a range (`len` 0: to the end) and drop all of
    /// them.
    pub(super) fn drop_pages(&self, number: InodeNo, offset: u64, len: u64) {
        let (Some(notifier), Ok(offset), Ok(len)) =
            (self.notifier(), i64::try_from(offset), i64::try_from(len))
        else {
            return;
        };
        if let Err(error) = notifier.inval_inode(number.0, offset, len) {
            tracing::debug!("the kernel kept pages of inode {}: {error}", number.0);
        }
    }

    /// Makes the kernel ask for attributes when they are wanted next.
    pub(super) fn drop_attributes(&self, number: InodeNo) {
        let Some(notifier) = self.notifier() else { return };
        // An offset below 0: no pages.
        if let Err(error) = notifier.inval_inode(number.0, -1, 0) {
            tracing::debug!("the kernel kept the attributes of inode {}: {error}", number.0);
        }
    }

    /// Makes the kernel take a file for at least as long as up to this byte, which is the file's, of
    /// a file of which it has no pages and none are left.
    pub(super) fn raise_size(&self, number: InodeNo, last: u64, byte: u8) {
        let Some(notifier) = self.notifier() else { return };
        if let Err(error) = notifier.store(number.0, last, &[byte]) {
            tracing::debug!("the kernel kept the size of inode {}: {error}", number.0);
        }
        self.drop_pages(number, last, 1);
    }

    /// Makes the kernel look a name up again when it is used next.
    pub(super) fn expire_name(&self, dir: InodeNo, name: &OsStr) {
        let Some(notifier) = self.notifier() else { return };
        if let Err(error) = notifier.expire_entry(dir.0, name) {
            tracing::debug!("the kernel kept the name {name:?}: {error}");
        }
    }

    /// Makes the kernel forget a name.
    pub(super) fn drop_name(&self, dir: InodeNo, name: &OsStr) {
        let Some(notifier) = self.notifier() else { return };
        if let Err(error) = notifier.inval_entry(dir.0, name) {
            tracing::debug!("the kernel kept the name {name:?}: {error}");
        }
    }
}
