//! What all requests of one mount share, and the frame that every request runs in.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use bedplate_block::Workers;
use bedplate_fs::{FilePath, FileSystem, InodeLockSetting, InodeNo, Tunable};
use parking_lot::Mutex;

use super::aliases::Aliases;
use super::asks::Asks;
use super::dirs::DirStream;
use super::errno::{Answer, Errno};
use super::hints::Hints;
use super::lease::Desk;
use super::lines::Lines;
use super::open_files::{OpenFile, OpenFiles};
use super::parts::Parts;
use super::privileges::Privileges;
use super::serving_threads::ServingThreads;
use super::session::Kernel;
use super::settings::MountSettings;
use super::sizes::{ToldSizes, Visits};
use super::table::Table;
use super::transport::{is_possible, threads_each};
use super::trees::Trees;
use super::views::{Shown, Views};

/// The state of one mount.
pub(super) struct Shared {
    pub(super) fs: FileSystem,
    /// Alignment of offset and length that direct I/O wants, in bytes; a power of two.
    pub(super) io_align: u64,
    /// Names that were found, for monitoring: checked before they are shown.
    pub(super) known_names: Mutex<HashMap<InodeNo, FilePath>>,
    /// Allocation unit.
    pub(super) block_size: u32,
    /// The kernel collects writes of cached files and owns their size and times.
    pub(super) write_back: bool,
    /// The kernel checks permissions by access control lists.
    pub(super) acls: bool,
    /// Requests are to come over io_uring, and the kernel offers that.
    pub(super) asks_for_ring: bool,
    /// How it is mounted.
    pub(super) settings: MountSettings,
    /// What lists of mounts show as what is mounted.
    pub(super) source: String,
    /// What it shows.
    pub(super) shown: Shown,
    /// Checkpoints that are mounted beside it.
    pub(super) views: Views,
    pub(super) inode_lock: InodeLockSetting,
    pub(super) files: OpenFiles,
    pub(super) dirs: Table<DirStream>,
    pub(super) hints: Hints,
    pub(super) aliases: Aliases,
    pub(super) privileges: Privileges,
    pub(super) lines: Lines,
    /// How many syncs event threads carry out themselves, and how many they may.
    inline_syncs: AtomicUsize,
    inline_syncs_max: AtomicUsize,
    /// How busy the event threads are.
    pub(super) threads: Arc<ServingThreads>,
    /// Messages to the kernel. Not for event threads: they wait for requests that those answer
    /// (I-LIN-1).
    pub(super) kernel: Kernel,
    /// Where it is mounted, and `major:minor`.
    pub(super) mountpoint: OnceLock<PathBuf>,
    pub(super) device: OnceLock<String>,
    /// Directories of the volume that were mounted beside it, and the trees that they show.
    pub(super) parts: Parts,
    pub(super) trees: Trees,
    pub(super) visits: Visits,
    pub(super) told_sizes: ToldSizes,
    /// Files of which the kernel is to ask for the attributes again.
    pub(super) asks: Asks,
    /// What programs ask for leases at, where the mount hands out any.
    pub(super) desk: OnceLock<Desk>,
    broken: AtomicBool,
}

impl Shared {
    pub(super) fn new(
        fs: FileSystem,
        settings: &MountSettings,
        shown: Shown,
        threads: usize,
        lines: Lines,
    ) -> Self {
        let info = fs.info();
        let asks_for_ring = is_possible(settings);
        let threads_of_line = if asks_for_ring { threads_each(threads) } else { threads };
        Self {
            io_align: info.io_align.into(),
            known_names: Mutex::default(),
            block_size: info.block_size,
            acls: settings.enforces_acls(fs.has_acls()),
            fs,
            write_back: settings.writes_back(info.mode),
            asks_for_ring,
            source: settings.source.clone().unwrap_or(info.device),
            settings: settings.clone(),
            shown,
            views: Views::default(),
            inode_lock: settings.file_system.inode_lock,
            files: OpenFiles::new(),
            dirs: Table::new(),
            hints: Hints::default(),
            aliases: Aliases::default(),
            privileges: Privileges::new(),
            lines,
            inline_syncs: AtomicUsize::new(0),
            inline_syncs_max: AtomicUsize::new(inline_syncs_max(threads_of_line)),
            threads: Arc::default(),
            kernel: Kernel::default(),
            mountpoint: OnceLock::new(),
            device: OnceLock::new(),
            parts: Parts::default(),
            trees: Trees::default(),
            visits: Visits::default(),
            told_sizes: ToldSizes::default(),
            asks: Asks::default(),
            desk: OnceLock::new(),
            broken: AtomicBool::new(false),
        }
    }

    /// Notes where it is mounted, and under which number the kernel knows it.
    pub(super) fn is_mounted_on(&self, mountpoint: &Path, device: Option<&str>) {
        self.mountpoint.get_or_init(|| mountpoint.to_owned());
        if let Some(device) = device {
            self.device.get_or_init(|| device.to_owned());
        }
    }

    /// Lets the kernel read ahead as far as the library would. Only root may; without it the
    /// kernel's default of 128 KiB stays.
    pub(super) fn widen_read_ahead(&self) {
        let kib = self.fs.tunable(Tunable::ReadAheadMax) / 1024;
        self.set_for_kernel("read_ahead_kb", kib);
    }

    /// Lets the kernel collect as many dirty pages as the mount's setting says. Its own bound for
    /// FUSE is a hundredth of what it allows the machine, strictly: a load of tables waits for the
    /// device at every 40 MiB of an idle machine with 24 GiB (`mm/page-writeback.c`,
    /// `BDI_CAP_STRICTLIMIT`). Only root may.
    pub(super) fn widen_kernel_dirty(&self) {
        if self.write_back {
            self.set_for_kernel("max_ratio", self.settings.kernel_dirty_percent.into());
        }
    }

    /// Sets what the kernel keeps of the mount as a device (`/sys/class/bdi`).
    fn set_for_kernel(&self, name: &str, value: u64) {
        let Some(device) = self.device.get() else { return };
        let path = format!("/sys/class/bdi/{device}/{name}");
        if let Err(error) = std::fs::write(path, value.to_string()) {
            tracing::debug!("the kernel's {name} of the mount stays as it is: {error}");
        }
    }

    /// Tells whether an invariant was found broken.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// Runs one operation. A broken invariant (a panic) ends in `EIO` for this and every later
    /// request: what is in memory cannot be trusted any more, and what is on the volume stays as a
    /// crash would leave it.
    pub(super) fn run<T>(
        &self,
        name: &'static str,
        operation: impl FnOnce() -> Answer<T>,
    ) -> Answer<T> {
        if self.is_broken() {
            return Err(Errno::IO);
        }
        catch_unwind(AssertUnwindSafe(operation)).unwrap_or_else(|_| {
            self.broken.store(true, Relaxed);
            self.fs.lease_stop();
            tracing::error!(
                event = "broken",
                "a broken invariant in '{name}': every request is refused from now on; unmount, \
                 mount again to recover, and run a check"
            );
            Err(Errno::IO)
        })
    }

    pub(super) fn open_file(&self, handle: u64) -> Answer<Arc<OpenFile>> {
        self.files.get(handle).ok_or(Errno::BADF)
    }

    /// Runs a sync on this event thread, unless nearly all of them are in syncs, so that requests
    /// that need no flush go on.
    pub(super) fn run_sync(self: &Arc<Self>, job: impl FnOnce(&Arc<Self>) + Send + 'static) {
        if self.inline_syncs.fetch_add(1, Relaxed) < self.inline_syncs_max.load(Relaxed) {
            job(self);
            self.inline_syncs.fetch_sub(1, Relaxed);
        } else {
            self.inline_syncs.fetch_sub(1, Relaxed);
            self.run_in(&self.lines.syncs, job);
        }
    }

    /// Has syncs leave enough of so many event threads to other requests.
    pub(super) fn bound_inline_syncs(&self, threads: usize) {
        self.inline_syncs_max.store(inline_syncs_max(threads), Relaxed);
    }

    /// Runs a job that has the kernel drop pages or names.
    pub(super) fn run_for_caches(self: &Arc<Self>, job: impl FnOnce(&Arc<Self>) + Send + 'static) {
        self.run_in(&self.lines.caches, job);
    }

    /// Runs a request of a command.
    pub(super) fn run_control(self: &Arc<Self>, job: impl FnOnce(&Arc<Self>) + Send + 'static) {
        self.run_in(&self.lines.control, job);
    }

    /// When the mount has ended the job is dropped, and the reply in it says so to the kernel.
    fn run_in(self: &Arc<Self>, line: &Workers, job: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let shared = Arc::clone(self);
        line.submit(move || job(&shared));
    }
}

/// Returns how many syncs event threads carry out themselves where there are so many.
fn inline_syncs_max(threads: usize) -> usize {
    threads.saturating_sub(2)
}
