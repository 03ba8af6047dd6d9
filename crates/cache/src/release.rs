//! Release-behind: pages of a sequential read or write leave the cache as soon as they are used, or
//! written, of files that ask for it (AIX calls it `rbr` and `rbw`).
//!
//! ```text
//!   read ──► goes on where a reader was? ──yes──► the pages that it has left behind ──┐
//!                                                                                     ├──► gone, but dirty ones and those used again and again
//!   write-behind of a run ──► long, or begins where the last one ended? ──yes─────────┘
//! ```
//!
//! The replacement keeps a scan from evicting the hot set by itself (S-110). What this adds: a scan
//! takes no room at all, and evicts nothing. A page that was read ahead and not used yet stays.

use std::ops::Range;

use super::behind::Release;
use super::file::CachedFile;
use super::layout::group_spans;
use super::shard::Key;

impl CachedFile {
    /// Says which pages leave the cache behind a sequential reader or writer.
    pub fn set_release(&self, release: Release) {
        if self.core.release() != release {
            self.core.set_release(release);
        }
    }

    /// Notes a read that was served; releases what its reader has left behind.
    #[inline]
    pub(super) fn release_read(&self, offset: u64, len: usize) {
        if self.core.release().read && len > 0 {
            self.release_bytes(&(offset..offset + len as u64));
        }
    }

    #[cold]
    fn release_bytes(&self, read: &Range<u64>) {
        let layout = self.cache.layout;
        let size = self.core.size();
        let Some(behind) = self.core.readers.lock().note(read, size) else { return };
        // A page that the reader is still in leaves with its next read, the last one with the end.
        let end = if behind.end >= size {
            layout.page_end(behind.end)
        } else {
            layout.page_of(behind.end)
        };
        let mut released = 0;
        for span in group_spans(layout.page_of(behind.start)..end) {
            let key = Key { file: self.core.id, group: span.group };
            let mut state = self.cache.shard(key.file, key.group).state.write();
            released +=
                (span.first..span.end).filter(|page| state.release(key, *page)).count() as u64;
        }
        self.cache.count_released(&self.core, released);
    }
}
