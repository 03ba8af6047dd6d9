//! What reached the simulated device, in the order in which it did.

use std::ops::Range;
use std::sync::Arc;

use super::trace::{Trace, Traced};
use crate::{AlignedBuf, BlockDevice, Result, Snapshot};

/// One operation that reached the medium or its volatile cache. Operations are numbered from 0 by
/// their place in the log.
///
/// A write that failed or was torn stands here with the bytes that arrived, a misdirected one with
/// the place where it arrived, and one that was lost not at all.
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
        /// The operations before this one are what the flush answers for: those that were complete
        /// when it was submitted.
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
    /// It failed. The cache counts as written all the same, as Linux has it: what it held may be
    /// gone, and no later flush brings it back.
    Failed,
}

impl Recorded {
    /// Returns the device range that changes; `None` for a flush.
    #[must_use]
    pub fn range(&self) -> Option<Range<u64>> {
        match self {
            Self::Write { offset, data } => Some(*offset..offset + data.len() as u64),
            Self::WriteZeroes { offset, len } | Self::Discard { offset, len } => {
                Some(*offset..offset + len)
            }
            Self::Decay { offset, .. } => Some(*offset..offset + 1),
            Self::Flush { .. } => None,
        }
    }

    /// Carries the operation out on another device, so that a recorded workload can be replayed
    /// over any base.
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

    /// Applies the part of the operation that lies within `part`, counted in bytes from the
    /// operation's start.
    pub(crate) fn apply_part(&self, content: &mut Snapshot, part: &Range<u64>) {
        match self {
            Self::Write { offset, data } => {
                content.write(&data[part.start as usize..part.end as usize], offset + part.start);
            }
            Self::WriteZeroes { offset, .. } | Self::Discard { offset, .. } => {
                content.clear(offset + part.start, part.end - part.start);
            }
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
}

impl Traced for Recorded {
    fn range(&self) -> Option<Range<u64>> {
        Self::range(self)
    }

    fn is_volatile(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteZeroes { .. } | Self::Discard { .. })
    }

    fn flush(&self) -> Option<(usize, FlushOutcome)> {
        match self {
            Self::Flush { covers, outcome } => Some((*covers, *outcome)),
            _ => None,
        }
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

/// The log, with what it takes to build an image of any moment quickly.
#[derive(Debug)]
pub(super) struct Log {
    trace: Trace<Recorded>,
    marks: Vec<Mark>,
}

impl Log {
    /// Marks are kept at flushes and at least this often, so that no image has to replay more.
    const OPERATIONS_PER_MARK: usize = 64;

    pub fn new(base: &Snapshot) -> Self {
        Self { trace: Trace::new(), marks: vec![Mark { at: 0, content: base.clone() }] }
    }

    pub fn len(&self) -> usize {
        self.trace.len()
    }

    pub fn operations(&self) -> &[Recorded] {
        self.trace.operations()
    }

    pub fn trace(&self) -> &Trace<Recorded> {
        &self.trace
    }

    /// Adds an operation and returns it; `content` is what the device holds before it.
    pub fn push(&mut self, operation: Recorded, content: &Snapshot) -> &Recorded {
        let at = self.len();
        let last = self.marks.last().map_or(0, |mark| mark.at);
        if last < at
            && (matches!(operation, Recorded::Flush { .. })
                || at - last >= Self::OPERATIONS_PER_MARK)
        {
            self.marks.push(Mark { at, content: content.clone() });
        }
        self.trace.push(operation)
    }

    /// Returns the content of some moment at or before operation `at`, and which one.
    pub fn content_before(&self, at: usize) -> (usize, Snapshot) {
        let mark = &self.marks[self.marks.partition_point(|mark| mark.at <= at) - 1];
        debug_assert!(mark.at <= at && at <= self.len(), "operation {at} of {}", self.len());
        (mark.at, mark.content.clone())
    }
}
