//! A device that watches what a hostile volume makes the file system ask of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use bedplate_block::{
    BlockDevice, DeviceCall, Error, ErrorKind, Hook, HookedDevice, MemoryDevice, Operation, Result,
    Snapshot,
};
use bedplate_fs::forge::RegionPlace;

/// Operations that one input may cost: far above what any sound volume of this size needs, far
/// below what feels like a hang.
const OPERATIONS_MAX: u64 = 500_000;
/// The longest single transfer in bytes: nothing here is larger than the volume.
const TRANSFER_MAX: usize = 64 << 20;

/// Bytes that only file data has. A write that begins with them is a write of file data.
pub const MARK: [u8; 16] = *b"\xd7file data mark\xd7";

/// A memory device that notes everything no file system may do.
pub type Checked = HookedDevice<Watch>;

/// What it notes.
#[derive(Debug)]
pub struct Watch {
    inner: Arc<MemoryDevice>,
    read_only: AtomicBool,
    operations: AtomicU64,
    writes: AtomicU64,
    writes_elsewhere: AtomicU64,
    /// Where no file data may go.
    regions: Vec<RegionPlace>,
    /// The first thing that must not be.
    broken: OnceLock<String>,
}

impl Watch {
    /// Makes a device that starts with the content of `snapshot`; writes of marked bytes into
    /// `regions` are broken.
    pub fn over(snapshot: &Snapshot, regions: Vec<RegionPlace>) -> Arc<Checked> {
        let inner = MemoryDevice::from_snapshot(snapshot, MemoryDevice::GEOMETRY);
        let watch = Self {
            inner: Arc::clone(&inner),
            read_only: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            writes_elsewhere: AtomicU64::new(0),
            regions,
            broken: OnceLock::new(),
        };
        HookedDevice::named("hostile".to_owned(), inner, watch)
    }

    /// From now on every write is broken.
    pub fn forbid_writes(&self) {
        self.read_only.store(true, Relaxed);
    }

    /// How many writes came.
    pub fn writes(&self) -> u64 {
        self.writes.load(Relaxed)
    }

    /// How many writes went elsewhere than into the metadata and the superblocks.
    pub fn writes_elsewhere(&self) -> u64 {
        self.writes_elsewhere.load(Relaxed)
    }

    /// The content.
    pub fn snapshot(&self) -> Snapshot {
        self.inner.snapshot()
    }

    /// Panics with the first thing that must not have been.
    pub fn assert_obeyed(&self) {
        if let Some(what) = self.broken.get() {
            panic!("{what}");
        }
    }

    fn note(&self, what: impl FnOnce() -> String) {
        self.broken.get_or_init(what);
    }

    fn count(&self, operation: Operation) -> Result<()> {
        if self.operations.fetch_add(1, Relaxed) < OPERATIONS_MAX {
            return Ok(());
        }
        self.note(|| {
            format!("more than {OPERATIONS_MAX} device operations for one small volume: a loop")
        });
        let detail = "it lost its patience".to_owned();
        Err(Error {
            kind: ErrorKind::Io,
            operation,
            device: "hostile".to_owned(),
            offset: None,
            detail,
            errno: None,
        })
    }

    fn range(&self, what: &str, offset: u64, len: u64) {
        let size = self.inner.size_bytes();
        if offset.checked_add(len).is_none_or(|end| end > size) || len > TRANSFER_MAX as u64 {
            self.note(|| {
                format!("{what} of {len} bytes at {offset}, outside the device of {size}")
            });
        }
    }

    fn writing(&self, offset: u64, bytes: &[u8], len: u64) {
        self.writes.fetch_add(1, Relaxed);
        let inside = |region: &RegionPlace| {
            region.start <= offset && offset.saturating_add(len) <= region.start + region.len
        };
        if !self
            .regions
            .iter()
            .any(|region| matches!(region.name, "metadata" | "superblock") && inside(region))
        {
            self.writes_elsewhere.fetch_add(1, Relaxed);
        }
        self.range("a write", offset, len);
        if self.read_only.load(Relaxed) {
            self.note(|| format!("a write of {len} bytes at {offset} to what may only be read"));
        }
        if bytes.starts_with(&MARK) {
            for region in &self.regions {
                if offset < region.start + region.len && region.start < offset.saturating_add(len) {
                    self.note(|| {
                        format!(
                            "file data written at {offset} into the {} at {}+{}",
                            region.name, region.start, region.len
                        )
                    });
                }
            }
        }
    }
}

impl Hook for Watch {
    fn call(&self, call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.count(call.operation())?;
        match call {
            DeviceCall::Read { offset, len } => self.range("a read", offset, len),
            DeviceCall::Write { offset, bytes } => self.writing(offset, bytes, bytes.len() as u64),
            DeviceCall::WriteZeroes { offset, len } | DeviceCall::Discard { offset, len } => {
                self.writing(offset, &[], len);
            }
            DeviceCall::Flush => {}
        }
        pass()
    }
}
