//! Release-behind in the kernel's page cache: of files that ask for it, the pages that a sequential
//! reader has used, or that the kernel has sent, are dropped from it.
//!
//! ```text
//!   READ, for pages, goes on where the open's last one ended ──► what the reader can have left behind ──┐
//!   WRITE goes on where the file's last one ended ──► what was sent a while ago ────────────────────────┼──► dropped, 1 MiB and more at a time
//!   close ──► the rest ─────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A server sees what the kernel reads ahead, and not how far the program has come. The kernel asks
//! for the next window when the program enters the last one, so what lies two of the largest
//! windows behind a READ is used. To open such files past the page cache (`FOPEN_DIRECT_IO`) would
//! be exact, and would make every small read of the program a request.

use std::ops::Range;
use std::sync::Arc;

use bedplate_fs::Tunable;
use parking_lot::Mutex;

use super::open_files::OpenFile;
use super::shared::Shared;

/// The least that is dropped before the end: each drop is a message to the kernel.
const STEP_BYTES: u64 = 1 << 20;
/// How far before or behind its place a request still belongs to a stream: the kernel has several
/// under way, and they come in any order.
const REACH_BYTES: u64 = 4 << 20;
/// From here on a request is a sequential reader's or writer's for itself.
const LONG_BYTES: u64 = 256 << 10;
/// How far behind the last request pages were written for certain.
const SENT_BYTES: u64 = 4 << 20;
const _: () = assert!(
    LONG_BYTES <= STEP_BYTES && STEP_BYTES <= REACH_BYTES,
    "what is dropped at once lies within the reach of a stream"
);

/// Where a sequential reader or writer of the page cache is. The lock is a leaf.
#[derive(Debug, Default)]
pub(super) struct Stream(Mutex<Position>);

#[derive(Debug, Default)]
struct Position {
    /// Up to here pages were dropped.
    dropped: u64,
    /// Up to here there were requests.
    next: u64,
    /// There was more than one, or a long one, or one at the beginning of the file.
    sequential: bool,
}

impl Stream {
    /// Notes a request; returns what may be dropped of all that lies more than `lag` bytes behind.
    fn note(&self, request: &Range<u64>, lag: u64) -> Option<Range<u64>> {
        debug_assert!(request.start <= request.end, "a request has a place: {request:?}");
        let mut at = self.0.lock();
        let first = at.next.saturating_sub(REACH_BYTES).max(at.dropped);
        let last = at.next.saturating_add(REACH_BYTES);
        if at.next == 0 || !(first..=last).contains(&request.start) {
            let Range { start, end } = *request;
            let from = if at.next == 0 && start <= REACH_BYTES { 0 } else { start };
            let sequential = start == 0 || end - start >= LONG_BYTES;
            let left =
                std::mem::replace(&mut *at, Position { dropped: from, next: end, sequential });
            return left.rest();
        }
        at.sequential = true;
        at.next = at.next.max(request.end);
        let upto = at.next.saturating_sub(lag) / STEP_BYTES * STEP_BYTES;
        let behind = at.dropped..upto;
        debug_assert!(
            at.dropped <= at.next && upto <= at.next,
            "what is dropped was asked for: {} and {upto} of {}",
            at.dropped,
            at.next
        );
        (behind.start < behind.end).then(|| {
            at.dropped = behind.end;
            behind
        })
    }

    /// Ends the stream; returns what was not dropped of it.
    fn end(&self) -> Option<Range<u64>> {
        std::mem::take(&mut *self.0.lock()).rest()
    }
}

impl Position {
    /// Returns what was not dropped. Of a request that stands for itself nothing: it may be used
    /// again.
    fn rest(self) -> Option<Range<u64>> {
        (self.sequential && self.dropped < self.next).then_some(self.dropped..self.next)
    }
}

impl Shared {
    /// Notes a READ that fills pages.
    pub(super) fn release_behind_read(self: &Arc<Self>, open: &Arc<OpenFile>, read: Range<u64>) {
        if open.file.release_behind().reads() {
            let lag = 2 * self.fs.tunable(Tunable::ReadAheadMax) + STEP_BYTES;
            self.drop_behind(open, open.pages_read.note(&read, lag));
        }
    }

    /// Notes a WRITE of pages, or through them; returns what may be dropped once it is answered.
    pub(super) fn sent_behind(&self, open: &OpenFile, sent: &Range<u64>) -> Option<Range<u64>> {
        let is_asked = open.file.release_behind().writes();
        is_asked.then(|| open.inode.pages_sent.note(sent, SENT_BYTES)).flatten()
    }

    /// Drops what an open that has ended has left.
    pub(super) fn release_behind_close(self: &Arc<Self>, open: &Arc<OpenFile>) {
        self.drop_behind(open, open.pages_read.end());
        if !open.inode.has_cached_writers() {
            self.drop_behind(open, open.inode.pages_sent.end());
        }
    }

    /// Drops pages, where there are any to drop.
    pub(super) fn drop_behind(self: &Arc<Self>, open: &Arc<OpenFile>, behind: Option<Range<u64>>) {
        let Some(behind) = behind else { return };
        debug_assert!(behind.start < behind.end, "what is dropped is something: {behind:?}");
        let len = behind.end - behind.start;
        open.file.count_released(len);
        let ino = open.inode.ino;
        self.run_for_caches(move |shared| shared.kernel.drop_pages(ino, behind.start, len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn request(at: u64) -> Range<u64> {
        at * MIB..(at + 1) * MIB
    }

    #[test]
    fn s_250_what_lies_behind_is_dropped_once_and_the_rest_at_the_end() {
        let stream = Stream::default();
        let dropped: Vec<_> = (0..8).filter_map(|at| stream.note(&request(at), 5 * MIB)).collect();
        assert_eq!(dropped, [request(0), request(1), request(2)]);
        assert_eq!(stream.end(), Some(3 * MIB..8 * MIB));
        assert_eq!(stream.end(), None);
    }

    #[test]
    fn s_250_requests_come_in_any_order() {
        let stream = Stream::default();
        for at in [1, 0, 3, 2, 5, 4] {
            assert_eq!(stream.note(&request(at), 8 * MIB), None);
        }
        assert_eq!(stream.note(&request(9), 8 * MIB), Some(0..2 * MIB));
        assert_eq!(stream.end(), Some(2 * MIB..10 * MIB));
    }

    #[test]
    fn s_250_a_stream_that_goes_on_elsewhere_leaves_nothing() {
        let stream = Stream::default();
        assert_eq!(stream.note(&request(0), 8 * MIB), None);
        assert_eq!(stream.note(&request(40), 8 * MIB), Some(request(0)));
        assert_eq!(stream.note(&request(1), 8 * MIB), Some(request(40)));
        assert_eq!(stream.end(), Some(request(1)));
    }

    #[test]
    fn s_250_random_requests_drop_nothing() {
        let stream = Stream::default();
        for at in [100, 6, 300, 50, 2000] {
            let request = at * MIB..at * MIB + 8192;
            assert_eq!(stream.note(&request, 0), None, "{at}");
            assert_eq!(stream.end(), None);
            assert_eq!(stream.note(&request, 0), None, "{at}");
        }
    }
}
