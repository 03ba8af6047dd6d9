//! What background defragmentation does and did, and how fast it may be.

use bedplate_block::Waker;
use bedplate_block::sync::{Mutex, rank};
use serde::{Deserialize, Serialize};

use crate::{InodeNo, MountOptions};

/// How scattered a file is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fragmentation {
    /// Contiguous runs on the volume that hold the file, in file order.
    pub runs: u64,
    /// Bytes that these hold.
    pub bytes: u64,
    /// Runs, or parts of them, that checkpoints or other files need too.
    pub shared: u64,
}

/// What the defragmenter is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DefragmenterState {
    /// `defrag-rate` is 0, or nothing can be changed.
    #[default]
    Off,
    /// Nothing is scattered.
    Idle,
    /// Programs do more than `defrag-load` operations a second.
    Waiting,
    /// It moves.
    Working,
}

/// A file that was put together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedFile {
    /// Its inode.
    pub ino: InodeNo,
    /// How scattered it was.
    pub before: Fragmentation,
    /// How scattered it was afterwards.
    pub after: Fragmentation,
    /// Bytes that were copied.
    pub moved_bytes: u64,
    /// Bytes that stayed because the free space has no better place for them.
    pub stuck_bytes: u64,
}

/// What background defragmentation did since the mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefragmenterReport {
    /// What it is doing.
    pub state: DefragmenterState,
    /// Bytes that were copied.
    pub moved_bytes: u64,
    /// How often it stopped because programs were busy.
    pub waits: u64,
    /// How often all extents were looked at.
    pub surveys: u64,
    /// Scattered files that it has not come to.
    pub waiting_files: u64,
    /// The file it is at, as far as it has come: `after` is how scattered it was before.
    #[serde(default)]
    pub now: Option<MovedFile>,
    /// How many were put together.
    pub files: u64,
    /// The last of them, newest first.
    pub last: Vec<MovedFile>,
}

/// What is shared with the defragmenter.
#[derive(Debug, Default)]
pub(crate) struct DefragStatus {
    waker: Waker,
    /// Leaf.
    report: Mutex<DefragmenterReport, { rank::DEFRAGMENTER }>,
    /// Leaf: bytes a second, and operations a second.
    bounds: Mutex<(u64, u64), { rank::DEFRAGMENTER }>,
}

impl DefragStatus {
    pub(crate) fn new(options: &MountOptions) -> Self {
        let defragmenter = Self::default();
        defragmenter.take_over(options);
        defragmenter
    }

    /// Goes by other options.
    pub(crate) fn take_over(&self, options: &MountOptions) {
        let bounds = (options.defrag_rate_bytes, options.defrag_load_max.into());
        if std::mem::replace(&mut *self.bounds.lock(), bounds) != bounds {
            self.waker.wake();
        }
    }

    pub(crate) fn report(&self) -> DefragmenterReport {
        self.report.lock().clone()
    }

    pub(crate) fn set(&self, state: DefragmenterState) {
        let mut report = self.report.lock();
        report.waits += u64::from(state == DefragmenterState::Waiting && report.state != state);
        report.state = state;
    }

    /// Returns what wakes it before its time.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns how many bytes it may move in a second, and above how many operations a second of
    /// programs it waits.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        *self.bounds.lock()
    }

    /// Changes the report.
    pub(crate) fn update(&self, change: impl FnOnce(&mut DefragmenterReport)) {
        change(&mut self.report.lock());
    }
}
