//! What reached the simulated device, in the order in which it did.

use std::ops::Range;
use std::sync::Arc;

use crate::{AlignedBuf, BlockDevice, Result, Snapshot};

/// One operation that reached the medium or its volatile cache. Operations are numbered from 0 by their place in the log.
///
/// A write that failed or was torn stands here with the bytes that arrived, a misdirected one with the place where it arrived, and one
/// that was lost not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// Bytes arrived at a device offset.
    Write {
        /// Device offset in bytes.
        offset: u64,
        /// The bytes.
        data: Arc<[u8]>,
    },
    /// A range was zeroed.
    WriteZeroes {
        /// Device offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A range was discarded; it reads as zeros from then on.
    Discard {
        /// Device offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A flush was asked for.
    Flush {
        /// The operations before this one are what the flush answers for: those that were complete when it was submitted.
        covers: usize,
        /// What became of it.
        outcome: FlushOutcome,
    },
    /// The medium changed bits by itself, past cache and flush.
    Decay {
        /// Device offset in bytes.
        offset: u64,
        /// The bits that turned.
        mask: u8,
    },
}

/// What became of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushOutcome {
    /// It was carried out and acknowledged.
    Honoured,
    /// It was acknowledged and not carried out; a later honoured flush makes up for it.
    Lost,
    /// It failed. The cache counts as written all the same, as Linux has it: what it held may be gone, and no later flush brings it back.
    Failed,
}

impl Recorded {
    /// Returns the device range that changes; `None` for a flush.
    #[must_use]
    pub fn range(&self) -> Option<Range<u64>> {
        match self {
            Self::Write { offset, data } => Some(*offset..offset + data.len() as u64),
            Self::WriteZeroes { offset, len } | Self::Discard { offset, len } => Some(*offset..offset + len),
            Self::Decay { offset, .. } => Some(*offset..offset + 1),
            Self::Flush { .. } => None,
        }
    }

    /// Carries the operation out on another device, so that a recorded workload can be replayed over any base.
    ///
    /// # Errors
    /// Those of the device.
    pub fn replay(&self, device: &dyn BlockDevice) -> Result<()> {
        match self {
            Self::Write { offset, data } => device.write_at(&AlignedBuf::from_slice(data), *offset),
            Self::WriteZeroes { offset, len } => device.write_zeroes(*offset, *len),
            Self::Discard { offset, len } => device.discard(*offset, *len).map(|_| ()),
            Self::Flush { outcome: FlushOutcome::Honoured, .. } => device.flush(),
            Self::Flush { .. } => Ok(()),
            Self::Decay { offset, mask } => replay_decay(device, *offset, *mask),
        }
    }

    /// Applies the part of the operation that lies within `part`, counted in bytes from the operation's start.
    pub(crate) fn apply_part(&self, content: &mut Snapshot, part: &Range<u64>) {
        match self {
            Self::Write { offset, data } => content.write(&data[part.start as usize..part.end as usize], offset + part.start),
            Self::WriteZeroes { offset, .. } | Self::Discard { offset, .. } => content.clear(offset + part.start, part.end - part.start),
            Self::Decay { offset, mask } => flip(content, *offset, *mask),
            Self::Flush { .. } => {}
        }
    }

    /// Applies the whole operation.
    pub(crate) fn apply(&self, content: &mut Snapshot) {
        if let Some(range) = self.range() {
            self.apply_part(content, &(0..range.end - range.start));
        }
    }

    /// Says whether a power cut may take the operation back while no flush covers it.
    pub(crate) fn is_volatile(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteZeroes { .. } | Self::Discard { .. })
    }
}

fn flip(content: &mut Snapshot, offset: u64, mask: u8) {
    let mut byte = [0];
    content.read(&mut byte, offset);
    content.write(&[byte[0] ^ mask], offset);
}

fn replay_decay(device: &dyn BlockDevice, offset: u64, mask: u8) -> Result<()> {
    let block = u64::from(device.geometry().logical_block_size);
    let mut sector = AlignedBuf::zeroed(block as usize);
    let start = offset - offset % block;
    device.read_at(&mut sector, start)?;
    sector[(offset - start) as usize] ^= mask;
    device.write_at(&sector, start)
}

/// A place in the log from which images are built: what the device held there.
#[derive(Debug, Clone)]
struct Mark {
    /// The operations before this one are in `content`.
    at: usize,
    content: Snapshot,
}

/// How durability changed with one flush.
#[derive(Debug, Clone)]
struct Watermark {
    /// The flush's own number.
    at: usize,
    /// The operations before this one are durable, except the doubtful ones.
    durable_until: usize,
    /// How many doubtful ranges there are.
    doubtful: usize,
}

/// The log, with what it takes to build an image of any moment quickly.
#[derive(Debug)]
pub(super) struct Log {
    operations: Vec<Recorded>,
    marks: Vec<Mark>,
    watermarks: Vec<Watermark>,
    /// What failed flushes leave behind: never again certain to be durable.
    doubtful: Vec<Range<usize>>,
}

impl Log {
    /// Marks are kept at flushes and at least this often, so that no image has to replay more.
    const OPERATIONS_PER_MARK: usize = 64;

    pub fn new(base: &Snapshot) -> Self {
        let marks = vec![Mark { at: 0, content: base.clone() }];
        Self { operations: Vec::new(), marks, watermarks: Vec::new(), doubtful: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.operations.len()
    }

    pub fn operations(&self) -> &[Recorded] {
        &self.operations
    }

    /// Adds an operation and returns it; `content` is what the device holds before it.
    pub fn push(&mut self, operation: Recorded, content: &Snapshot) -> &Recorded {
        let at = self.operations.len();
        let last = self.marks.last().map_or(0, |mark| mark.at);
        if let Recorded::Flush { covers, outcome } = operation {
            self.note_flush(at, covers, outcome);
        }
        if last < at && (matches!(operation, Recorded::Flush { .. }) || at - last >= Self::OPERATIONS_PER_MARK) {
            self.marks.push(Mark { at, content: content.clone() });
        }
        self.operations.push(operation);
        &self.operations[at]
    }

    fn note_flush(&mut self, at: usize, covers: usize, outcome: FlushOutcome) {
        let before = self.watermarks.last().map_or(0, |mark| mark.durable_until);
        let durable_until = match outcome {
            FlushOutcome::Lost => return,
            FlushOutcome::Honoured => before.max(covers),
            FlushOutcome::Failed => {
                self.doubtful.push(before..at);
                before
            }
        };
        self.watermarks.push(Watermark { at, durable_until, doubtful: self.doubtful.len() });
    }

    /// Returns the operations that a power cut after the first `after` operations may take back, in their order.
    pub fn unflushed(&self, after: usize) -> Vec<usize> {
        assert!(after <= self.len(), "the log holds {} operations, fewer than {after}", self.len());
        let count = self.watermarks.partition_point(|mark| mark.at < after);
        let (durable_until, doubtful) = match count.checked_sub(1).map(|last| &self.watermarks[last]) {
            Some(mark) => (mark.durable_until, &self.doubtful[..mark.doubtful]),
            None => (0, &[][..]),
        };
        let first = doubtful.iter().map(|range| range.start).chain([durable_until]).min().unwrap_or(0);
        let uncertain = |at: &usize| *at >= durable_until || doubtful.iter().any(|range| range.contains(at));
        (first..after).filter(uncertain).filter(|at| self.operations[*at].is_volatile()).collect()
    }

    /// Returns the content of some moment at or before operation `at`, and which one.
    pub fn content_before(&self, at: usize) -> (usize, Snapshot) {
        let mark = &self.marks[self.marks.partition_point(|mark| mark.at <= at) - 1];
        (mark.at, mark.content.clone())
    }
}
