//! Open files: what the kernel holds handles on, and what is known of how the kernel caches each inode.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use fs::{File, InodeNo};
use parking_lot::Mutex;

use super::data::Durability;
use super::table::Table;

/// What all opens of one inode share.
#[derive(Debug)]
pub(super) struct OpenInode {
    pub(super) ino: InodeNo,
    /// Opens that go through the kernel's page cache, and those of them that may write.
    cached_opens: AtomicUsize,
    cached_writers: AtomicUsize,
    /// Page cache traffic was seen on a direct open: the file is mapped.
    mapped: AtomicBool,
}

impl OpenInode {
    /// Tells whether the kernel may hold pages of this inode, or be reading some in.
    pub(super) fn has_kernel_pages(&self) -> bool {
        self.cached_opens.load(Relaxed) > 0 || self.mapped.load(Relaxed)
    }

    /// Tells whether some of these pages may be dirty: collected writes, or stores through a mapping.
    pub(super) fn may_have_dirty_pages(&self) -> bool {
        self.cached_writers.load(Relaxed) > 0 || self.mapped.load(Relaxed)
    }

    pub(super) fn note_mapped(&self) {
        if !self.mapped.load(Relaxed) {
            self.mapped.store(true, Relaxed);
        }
    }
}

/// How a file was opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// The kernel hands every read and write on, instead of going through its page cache.
    pub(super) direct: bool,
    pub(super) writable: bool,
    pub(super) durability: Durability,
    /// The thread that opened it.
    pub(super) pid: u32,
}

/// One open.
pub(super) struct OpenFile {
    pub(super) file: File,
    pub(super) inode: Arc<OpenInode>,
    /// The kernel hands every read and write on, instead of going through its page cache.
    pub(super) direct: bool,
    pub(super) writable: bool,
    /// What every change through this open makes durable.
    pub(super) durability: Durability,
    /// The thread that opened it.
    pub(super) pid: u32,
    /// I/Os that were not aligned, of an open that goes past the kernel's page cache.
    pub(super) misaligned: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) sync_wait_ns: AtomicU64,
    /// The epoch of privileges in which this open was last found to have none to take away; see `privileges.rs`.
    pub(super) clean_epoch: AtomicU64,
}

impl OpenFile {
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
}

impl OpenFiles {
    pub(super) fn new() -> Self {
        Self { table: Table::new(), by_inode: Mutex::new(HashMap::new()) }
    }

    /// Takes in an open file and returns its handle.
    pub(super) fn insert(&self, file: File, how: How) -> u64 {
        let How { direct, writable, durability, pid } = how;
        let ino = file.ino();
        let mut by_inode = self.by_inode.lock();
        let entry = by_inode.entry(ino).or_insert_with(|| Entry {
            inode: Arc::new(OpenInode {
                ino,
                cached_opens: AtomicUsize::new(0),
                cached_writers: AtomicUsize::new(0),
                mapped: AtomicBool::new(false),
            }),
            handles: Vec::new(),
        });
        if !direct {
            entry.inode.cached_opens.fetch_add(1, Relaxed);
            entry.inode.cached_writers.fetch_add(usize::from(writable), Relaxed);
        }
        let open = OpenFile {
            file,
            inode: Arc::clone(&entry.inode),
            direct,
            writable,
            durability,
            pid,
            misaligned: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            sync_wait_ns: AtomicU64::new(0),
            clean_epoch: AtomicU64::new(0),
        };
        let handle = self.table.insert(Arc::new(open));
        entry.handles.push(handle);
        handle
    }

    pub(super) fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.table.get(handle)
    }

    /// Returns some open of the inode.
    pub(super) fn any_of(&self, ino: InodeNo) -> Option<Arc<OpenFile>> {
        let handle = *self.by_inode.lock().get(&ino)?.handles.first()?;
        self.table.get(handle)
    }

    /// Returns the opens of the inode, the oldest first.
    pub(super) fn all_of(&self, ino: InodeNo) -> Vec<Arc<OpenFile>> {
        let handles = self.by_inode.lock().get(&ino).map(|entry| entry.handles.clone()).unwrap_or_default();
        handles.into_iter().filter_map(|handle| self.table.get(handle)).collect()
    }

    /// Ends an open. The file closes when the last request on it has ended.
    pub(super) fn release(&self, handle: u64) {
        let Some(open) = self.table.remove(handle) else { return };
        let mut by_inode = self.by_inode.lock();
        if !open.direct {
            open.inode.cached_opens.fetch_sub(1, Relaxed);
            open.inode.cached_writers.fetch_sub(usize::from(open.writable), Relaxed);
        }
        if let Some(entry) = by_inode.get_mut(&open.inode.ino) {
            entry.handles.retain(|other| *other != handle);
            if entry.handles.is_empty() {
                by_inode.remove(&open.inode.ino);
            }
        }
        drop(by_inode);
        drop(open);
    }

    /// Ends every open.
    pub(super) fn clear(&self) {
        self.by_inode.lock().clear();
        self.table.clear();
    }
}
