//! Open files: what the kernel holds handles on, and what is known of how the kernel caches each
//! inode.
//!
//! - I-PAG-1: a page gets into the kernel's cache only while an open of its inode goes through that
//!   cache, or is mapped, and stays after that open has ended. So the kernel holds none only after
//!   all were dropped while there was no such open, and as long as none comes.
//! - I-OPN-1: an open is in the table exactly as long as it is listed with its inode: both change
//!   under the lock of the lists, so that a handle that is used again never meets its former list
//!   entry.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use bedplate_fs::{File, InodeNo};
use parking_lot::Mutex;

use super::behind::Stream;
use super::data::Durability;
use super::table::Table;

/// What all opens of one inode share.
#[derive(Debug)]
pub(super) struct OpenInode {
    pub(super) ino: InodeNo,
    /// Opens that go through the kernel's page cache, and those of them that may write.
    cached_opens: AtomicUsize,
    cached_writers: AtomicUsize,
    /// How many opens through the page cache there were, and what that was when all pages were
    /// dropped (I-PAG-1).
    cached_opens_ever: AtomicU64,
    dropped_upto: AtomicU64,
    /// Page cache traffic was seen on a direct open: the file is mapped.
    mapped: AtomicBool,
    /// Whether any inode of this mount ever had pages in the kernel.
    pages_ever: Arc<AtomicBool>,
    /// Whether the kernel was made to ask for attributes again since there are cached writers.
    asked_again: AtomicBool,
    /// The pages that the kernel sends, for release-behind.
    pub(super) pages_sent: Stream,
}

/// What the kernel may hold in its page cache of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelPages {
    Nothing,
    /// Pages of opens that exist.
    InUse,
    /// Pages that opens left behind which have ended; no later open than this one, counted from the
    /// first, has left any.
    LeftUpto(u64),
}

impl OpenInode {
    pub(super) fn new(ino: InodeNo, pages_ever: &Arc<AtomicBool>) -> Self {
        Self {
            ino,
            cached_opens: AtomicUsize::new(0),
            cached_writers: AtomicUsize::new(0),
            // Opens that ended before this was made may have left pages behind.
            cached_opens_ever: AtomicU64::new(pages_ever.load(SeqCst).into()),
            dropped_upto: AtomicU64::new(0),
            mapped: AtomicBool::new(false),
            pages_ever: Arc::clone(pages_ever),
            asked_again: AtomicBool::new(false),
            pages_sent: Stream::default(),
        }
    }

    pub(super) fn opened(&self, how: &How) {
        if !how.direct {
            self.pages_ever.store(true, SeqCst);
            self.cached_opens_ever.fetch_add(1, SeqCst);
            self.cached_opens.fetch_add(1, SeqCst);
            self.cached_writers.fetch_add(usize::from(how.writable), SeqCst);
        }
    }

    pub(super) fn closed(&self, how: &How) {
        if !how.direct {
            debug_assert!(
                self.cached_opens.load(SeqCst) > 0,
                "I-PAG-1: an open of inode {} that ends was counted",
                self.ino.0
            );
            self.cached_opens.fetch_sub(1, SeqCst);
            debug_assert!(
                self.cached_writers.load(SeqCst) >= usize::from(how.writable),
                "I-PAG-1: an open of inode {} that ends was counted",
                self.ino.0
            );
            if self.cached_writers.fetch_sub(usize::from(how.writable), SeqCst) == 1 && how.writable
            {
                self.asked_again.store(false, SeqCst);
            }
        }
    }

    /// Tells whether opens write through the kernel's page cache.
    pub(super) fn has_cached_writers(&self) -> bool {
        self.cached_writers.load(SeqCst) > 0
    }

    /// Tells whether the kernel is to ask for attributes again: once as long as there are cached
    /// writers.
    pub(super) fn must_ask_again(&self) -> bool {
        self.cached_writers.load(Relaxed) > 0
            && !self.asked_again.load(Relaxed)
            && !self.asked_again.swap(true, SeqCst)
    }

    /// Tells what the kernel may hold of this inode, or be reading in. After a direct write it is
    /// asked once the write is done: pages that come later are filled with what was written.
    pub(super) fn kernel_pages(&self) -> KernelPages {
        let ever = self.cached_opens_ever.load(SeqCst);
        debug_assert!(
            self.dropped_upto.load(SeqCst) <= self.cached_opens_ever.load(SeqCst),
            "I-PAG-1: no more is dropped of inode {} than opens left behind",
            self.ino.0
        );
        if self.cached_opens.load(SeqCst) > 0 || self.mapped.load(SeqCst) {
            KernelPages::InUse
        } else if self.dropped_upto.load(SeqCst) == ever {
            KernelPages::Nothing
        } else {
            KernelPages::LeftUpto(ever)
        }
    }

    /// Notes that the kernel has dropped all pages that were [left behind](KernelPages::LeftUpto).
    pub(super) fn dropped_left(&self, upto: u64) {
        assert!(
            upto <= self.cached_opens_ever.load(SeqCst),
            "I-PAG-1: pages of an open that never was are dropped"
        );
        self.dropped_upto.fetch_max(upto, SeqCst);
    }

    /// Tells whether some of these pages may be dirty: collected writes, or stores through a
    /// mapping.
    pub(super) fn may_have_dirty_pages(&self) -> bool {
        self.cached_writers.load(Relaxed) > 0 || self.mapped.load(Relaxed)
    }

    pub(super) fn note_mapped(&self) {
        if !self.mapped.load(Relaxed) {
            self.pages_ever.store(true, SeqCst);
            self.mapped.store(true, SeqCst);
        }
    }
}

/// How a file was opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// The kernel hands every read and write on, instead of going through its page cache.
    pub(super) direct: bool,
    pub(super) writable: bool,
    /// What every change through this open makes durable.
    pub(super) durability: Durability,
    /// The thread that opened it.
    pub(super) pid: u32,
}

impl How {
    fn is_cached_writer(&self) -> bool {
        self.writable && !self.direct
    }
}

/// One open.
pub(super) struct OpenFile {
    pub(super) file: File,
    pub(super) inode: Arc<OpenInode>,
    pub(super) how: How,
    /// I/Os that were not aligned, of an open that goes past the kernel's page cache.
    pub(super) misaligned: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) sync_wait_ns: AtomicU64,
    /// The epoch of privileges in which this open was last found to have none to take away; see
    /// `privileges.rs`.
    pub(super) clean_epoch: AtomicU64,
    /// The pages that the kernel fills through this open, for release-behind.
    pub(super) pages_read: Stream,
}

impl OpenFile {
    /// Notes that the file is mapped: the kernel is about to have pages of it, and a lease, of
    /// which it knows nothing, ends before (I-LEA-6).
    pub(super) fn is_mapped(&self) {
        self.inode.note_mapped();
        self.file.suspend_lease();
    }

    pub(super) fn count_sync(&self, took: Duration) {
        self.syncs.fetch_add(1, Relaxed);
        self.sync_wait_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }
}

struct Entry {
    inode: Arc<OpenInode>,
    handles: Vec<u64>,
}

/// All opens.
pub(super) struct OpenFiles {
    table: Table<OpenFile>,
    by_inode: Mutex<HashMap<InodeNo, Entry>>,
    pages_ever: Arc<AtomicBool>,
    /// Cached opens of all inodes that may write.
    cached_writers: AtomicUsize,
}

impl OpenFiles {
    pub(super) fn new() -> Self {
        Self {
            table: Table::new(),
            by_inode: Mutex::default(),
            pages_ever: Arc::default(),
            cached_writers: AtomicUsize::new(0),
        }
    }

    /// Takes in an open file and returns its handle.
    pub(super) fn insert(&self, file: File, how: How) -> u64 {
        let ino = file.ino();
        let mut by_inode = self.by_inode.lock();
        let new = || Entry {
            inode: Arc::new(OpenInode::new(ino, &self.pages_ever)),
            handles: Vec::new(),
        };
        let entry = by_inode.entry(ino).or_insert_with(new);
        entry.inode.opened(&how);
        self.cached_writers.fetch_add(usize::from(how.is_cached_writer()), SeqCst);
        let open = OpenFile {
            file,
            inode: Arc::clone(&entry.inode),
            how,
            misaligned: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            sync_wait_ns: AtomicU64::new(0),
            clean_epoch: AtomicU64::new(0),
            pages_read: Stream::default(),
        };
        let handle = self.table.insert(Arc::new(open));
        debug_assert!(
            !entry.handles.contains(&handle),
            "I-OPN-1: handle {handle} is new, so it is not listed"
        );
        entry.handles.push(handle);
        handle
    }

    pub(super) fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.table.get(handle)
    }

    /// Tells whether the inode has opens that write through the kernel's page cache.
    pub(super) fn has_cached_writers(&self, ino: InodeNo) -> bool {
        let of_inode =
            || self.by_inode.lock().get(&ino).is_some_and(|entry| entry.inode.has_cached_writers());
        self.cached_writers.load(SeqCst) > 0 && of_inode()
    }

    /// Returns some open of the inode.
    pub(super) fn any_of(&self, ino: InodeNo) -> Option<Arc<OpenFile>> {
        let handle = *self.by_inode.lock().get(&ino)?.handles.first()?;
        self.table.get(handle)
    }

    /// Returns the opens of the inode, the oldest first.
    pub(super) fn all_of(&self, ino: InodeNo) -> Vec<Arc<OpenFile>> {
        let handles =
            self.by_inode.lock().get(&ino).map(|entry| entry.handles.clone()).unwrap_or_default();
        handles.into_iter().filter_map(|handle| self.table.get(handle)).collect()
    }

    /// Ends an open, and returns it. The file closes when the last request on it has ended.
    pub(super) fn release(&self, handle: u64) -> Option<Arc<OpenFile>> {
        let open = self.table.get(handle)?;
        let mut by_inode = self.by_inode.lock();
        self.table.remove(handle)?;
        open.inode.closed(&open.how);
        let writer = usize::from(open.how.is_cached_writer());
        let writers = self.cached_writers.fetch_sub(writer, SeqCst);
        debug_assert!(writers >= writer, "I-PAG-1: a writer that ends was counted");
        if let Some(entry) = by_inode.get_mut(&open.inode.ino) {
            let listed = entry.handles.iter().position(|other| *other == handle);
            entry.handles.remove(listed.expect("I-OPN-1: an open in the table is listed"));
            if entry.handles.is_empty() {
                by_inode.remove(&open.inode.ino);
            }
        }
        drop(by_inode);
        Some(open)
    }

    /// Ends every open.
    pub(super) fn clear(&self) {
        let mut by_inode = self.by_inode.lock();
        by_inode.clear();
        self.table.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use bedplate_block::{BlockDevice, MemoryDevice};
    use bedplate_fs::{FileKind, FileSystem, FormatOptions, MountOptions, NewFile, OpenOptions};

    use super::*;

    const DIRECT: How = How { direct: true, writable: true, durability: Durability::None, pid: 1 };
    const CACHED: How = How { direct: false, writable: false, ..DIRECT };

    /// A cached open that came and went before a direct write, or during it, was forgotten: its
    /// pages kept the old bytes.
    #[test]
    fn i_pag_1_pages_are_left_until_they_were_dropped_with_no_cached_open() {
        let inode = OpenInode::new(InodeNo(7), &Arc::default());
        inode.opened(&DIRECT);
        assert_eq!(
            inode.kernel_pages(),
            KernelPages::Nothing,
            "no open ever went through the page cache"
        );
        inode.opened(&CACHED);
        assert_eq!(inode.kernel_pages(), KernelPages::InUse);
        inode.closed(&CACHED);
        let left = inode.kernel_pages();
        assert_eq!(left, KernelPages::LeftUpto(1), "I-PAG-1");
        inode.opened(&CACHED);
        inode.closed(&CACHED);
        inode.dropped_left(1);
        assert_eq!(
            inode.kernel_pages(),
            KernelPages::LeftUpto(2),
            "an open came while the pages were dropped"
        );
        inode.dropped_left(2);
        assert_eq!(inode.kernel_pages(), KernelPages::Nothing);
        inode.note_mapped();
        assert_eq!(inode.kernel_pages(), KernelPages::InUse);
    }

    #[test]
    fn i_pag_1_pages_outlive_what_is_known_of_an_inode() {
        let pages_ever = Arc::default();
        let before = OpenInode::new(InodeNo(7), &pages_ever);
        before.opened(&CACHED);
        before.closed(&CACHED);
        assert_eq!(
            OpenInode::new(InodeNo(7), &pages_ever).kernel_pages(),
            KernelPages::LeftUpto(1)
        );
        let mapped = Arc::default();
        OpenInode::new(InodeNo(7), &mapped).note_mapped();
        assert_eq!(OpenInode::new(InodeNo(7), &mapped).kernel_pages(), KernelPages::LeftUpto(1));
    }

    fn file_system() -> (FileSystem, InodeNo) {
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(64 << 20);
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let fs = FileSystem::mount(device, None, MountOptions::default()).unwrap();
        let ino = fs.make(InodeNo::ROOT, b"f", FileKind::File, NewFile::default(), 0).unwrap().ino;
        (fs, ino)
    }

    /// The handle was freed before the list was locked, used again for another open, and then that
    /// open taken off the list: `SEEK_DATA` did not know any more that there were dirty pages, and
    /// `cp` copied zeros.
    #[test]
    fn i_opn_1_a_handle_is_not_used_again_while_it_is_listed() {
        let (fs, ino) = file_system();
        let open = || fs.open_inode(ino, &OpenOptions::read_write()).unwrap();
        let (files, ids) = (OpenFiles::new(), AtomicU32::new(2));
        let handle = files.insert(open(), DIRECT);
        std::thread::scope(|scope| {
            let listed = files.by_inode.lock();
            let releases = scope.spawn(|| files.release(handle));
            // No time is enough for a release that keeps to the rule.
            for _ in 0..10_000 {
                assert!(files.get(handle).is_some(), "I-OPN-1: the handle is free, and listed");
                std::thread::yield_now();
            }
            drop(listed);
            releases.join().unwrap();
        });
        assert!(files.get(handle).is_none() && files.by_inode.lock().is_empty());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..3000 {
                        let pid = ids.fetch_add(1, Relaxed);
                        let handle = files.insert(open(), How { pid, ..DIRECT });
                        assert!(
                            files.all_of(ino).iter().any(|open| open.how.pid == pid),
                            "I-OPN-1: an open is not listed"
                        );
                        files.release(handle);
                    }
                });
            }
        });
        assert!(files.by_inode.lock().is_empty());
    }
}
