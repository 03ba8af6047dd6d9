//! The connection with the kernel: its session, and the messages to it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bedplate_fs::InodeNo;
use bedplate_fuse_ring::Lanes;
use fuser::{Config, INodeNo, InitFlags, KernelConfig, Notifier, SessionACL};

use super::super::buffers::PAYLOAD_BYTES_MAX;
use super::super::shared::Shared;
use super::Adapter;

/// Requests that the kernel may have under way in the background: read-ahead, write-back,
/// asynchronous direct I/O.
const BACKGROUND_MAX: u16 = 512;

/// What the mount cannot do without. All of it is older than Linux 6.6.
const REQUIRED: InitFlags = InitFlags::FUSE_PARALLEL_DIROPS
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA);

/// What it takes where the kernel offers it. Locks are not among them, so that the kernel keeps
/// them itself, as it does for any local file system.
const WELCOME: InitFlags = InitFlags::FUSE_DO_READDIRPLUS
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::FUSE_EXPORT_SUPPORT);

/// How the protocol library calls the threads that take requests.
const EVENT_THREADS: &str = "fuser-";

/// A connection on which the kernel has agreed to everything and waits to be served.
pub(in crate::fuse) struct Session(fuser::Session<Adapter>);

impl Session {
    /// Agrees with the kernel on how to talk.
    pub(in crate::fuse) fn open(
        shared: &Arc<Shared>,
        connection: OwnedFd,
        threads: usize,
        channel_each: bool,
    ) -> io::Result<Self> {
        let mut config = Config::default();
        // Over io_uring the library hears what the kernel forgets, and nothing else.
        config.n_threads = Some(if shared.asks_for_ring { 1 } else { threads });
        config.clone_fd = channel_each;
        // The library's own check of users would refuse the kernel's write-back; the kernel has
        // checked already.
        let session = fuser::Session::from_fd(
            Adapter(Arc::clone(shared)),
            connection,
            SessionACL::All,
            config,
        )?;
        shared.kernel.connect(session.notifier());
        Ok(Self(session))
    }

    /// Returns the connection where the kernel agreed to be served over io_uring: it makes no
    /// request until it is.
    pub(in crate::fuse) fn for_ring(&self, shared: &Shared) -> io::Result<Option<OwnedFd>> {
        let agreed = shared.kernel.is_over_ring.load(Relaxed);
        agreed.then(|| self.0.as_fd().try_clone_to_owned()).transpose()
    }

    /// Serves until the connection ends.
    pub(in crate::fuse) fn serve(self) -> io::Result<()> {
        match self.0.run() {
            // An event thread that took a request off the queue in the very moment of the unmount
            // is told so, instead of "no device".
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            result => result,
        }
    }
}

/// Messages to the kernel. Each waits for the kernel, and so for requests that event threads
/// answer: not for those (I-LIN-1).
#[derive(Debug, Default)]
pub(in crate::fuse) struct Kernel {
    notifier: OnceLock<Notifier>,
    /// It agreed to be served over io_uring.
    pub(super) is_over_ring: AtomicBool,
}

impl Kernel {
    fn connect(&self, notifier: Notifier) {
        assert!(self.notifier.set(notifier).is_ok(), "a mount has one session");
    }

    /// Returns the way to the kernel, which no event thread may take; `None` before the kernel has
    /// answered.
    fn notifier(&self) -> Option<&Notifier> {
        let on_event_thread = Lanes::is_one_of_them()
            || std::thread::current().name().is_some_and(|name| name.starts_with(EVENT_THREADS));
        assert!(!on_event_thread, "I-LIN-1: an event thread waits for the kernel");
        self.notifier.get()
    }

    /// Makes the kernel write its dirty pages of a range (`len` 0: to the end) and drop all of
    /// them.
    pub(in crate::fuse) fn drop_pages(&self, number: InodeNo, offset: u64, len: u64) {
        let (Some(notifier), Ok(offset), Ok(len)) =
            (self.notifier(), i64::try_from(offset), i64::try_from(len))
        else {
            return;
        };
        if let Err(error) = notifier.inval_inode(INodeNo(number.0), offset, len) {
            tracing::debug!("the kernel kept pages of inode {}: {error}", number.0);
        }
    }

    /// Makes the kernel ask for attributes when they are wanted next.
    pub(in crate::fuse) fn drop_attributes(&self, number: InodeNo) {
        let Some(notifier) = self.notifier() else { return };
        // An offset below 0: no pages.
        if let Err(error) = notifier.inval_inode(INodeNo(number.0), -1, 0) {
            tracing::debug!("the kernel kept the attributes of inode {}: {error}", number.0);
        }
    }

    /// Makes the kernel forget a name.
    pub(in crate::fuse) fn drop_name(&self, dir: InodeNo, name: &OsStr) {
        let Some(notifier) = self.notifier() else { return };
        if let Err(error) = notifier.inval_entry(INodeNo(dir.0), name) {
            tracing::debug!("the kernel kept the name {name:?}: {error}");
        }
    }
}

/// Tells the kernel what the mount cannot do without, and takes what it offers beyond that.
pub(super) fn agree(config: &mut KernelConfig, shared: &Shared) -> io::Result<()> {
    let mut required = REQUIRED;
    if shared.asks_for_ring {
        required |= InitFlags::FUSE_OVER_IO_URING;
        shared.kernel.is_over_ring.store(true, Relaxed);
    }
    if shared.write_back {
        required |= InitFlags::FUSE_WRITEBACK_CACHE;
    }
    config
        .add_capabilities(required)
        .map_err(|missing| io::Error::other(format!("this kernel's FUSE lacks {missing:?}")))?;
    let welcome = WELCOME & config.capabilities();
    config.add_capabilities(welcome).map_err(|missing| {
        io::Error::other(format!("this kernel offered {missing:?} and took it back"))
    })?;
    let refused = |nearest| io::Error::other(format!("the kernel's limit is {nearest}"));
    config.set_max_write(PAYLOAD_BYTES_MAX as u32).map_err(refused)?;
    config.set_max_background(BACKGROUND_MAX).map_err(|nearest| refused(nearest.into()))?;
    config
        .set_time_granularity(Duration::from_nanos(1))
        .map_err(|nearest| io::Error::other(format!("{nearest:?}")))?;
    Ok(())
}
