//! The order in which operations reached a device, and what of it a power cut may take back: the
//! same for a device that keeps what was written in memory and for one that keeps it in a file.

use std::ops::Range;

use super::log::FlushOutcome;

/// An operation, as far as power cuts are concerned.
pub(super) trait Traced {
    /// Returns the device range that changes; `None` for a flush.
    fn range(&self) -> Option<Range<u64>>;
    /// Says whether a power cut may take the operation back while no flush covers it.
    fn is_volatile(&self) -> bool;
    /// Returns, for a flush, the number of operations before it that it answers for, and what
    /// became of it.
    fn flush(&self) -> Option<(usize, FlushOutcome)>;

    /// Returns how many bytes change.
    fn len(&self) -> u64 {
        self.range().map_or(0, |range| range.end - range.start)
    }
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

/// Operations numbered from 0 by their order.
#[derive(Debug, Clone)]
pub(super) struct Trace<O> {
    operations: Vec<O>,
    watermarks: Vec<Watermark>,
    /// What failed flushes leave behind: never again certain to be durable.
    doubtful: Vec<Range<usize>>,
}

impl<O: Traced> Trace<O> {
    pub fn new() -> Self {
        Self { operations: Vec::new(), watermarks: Vec::new(), doubtful: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.operations.len()
    }

    pub fn operations(&self) -> &[O] {
        &self.operations
    }

    /// Adds an operation and returns it.
    pub fn push(&mut self, operation: O) -> &O {
        let at = self.operations.len();
        if let Some((covers, outcome)) = operation.flush() {
            self.note_flush(at, covers, outcome);
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

    /// Returns the operations that a power cut after the first `after` operations may take back
    /// where there is a volatile cache, in their order.
    pub fn unflushed(&self, after: usize) -> Vec<usize> {
        assert!(after <= self.len(), "the log holds {} operations, fewer than {after}", self.len());
        let count = self.watermarks.partition_point(|mark| mark.at < after);
        let (durable_until, doubtful) =
            match count.checked_sub(1).map(|last| &self.watermarks[last]) {
                Some(mark) => (mark.durable_until, &self.doubtful[..mark.doubtful]),
                None => (0, &[][..]),
            };
        let first =
            doubtful.iter().map(|range| range.start).chain([durable_until]).min().unwrap_or(0);
        let uncertain =
            |at: &usize| *at >= durable_until || doubtful.iter().any(|range| range.contains(at));
        (first..after).filter(uncertain).filter(|at| self.operations[*at].is_volatile()).collect()
    }
}
