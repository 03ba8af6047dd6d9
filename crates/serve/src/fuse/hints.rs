//! What a name suffix asked for, carried from the lookup of the name to the open that follows.
//!
//! `LOOKUP users.dbf::concurrent` answers the inode of `users.dbf` itself, so that there is one
//! kernel inode, one page cache and one set of locks per file whatever name it was opened by.
//! `OPEN` names the inode only. The kernel sends both from one thread, one after the other, and the
//! answer to a suffixed name is never cached, so every open by such a name is preceded by its
//! lookup: the hint is kept under the thread's id until that thread opens the inode, looks up
//! something else, or [`LIFE`] has passed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate_fs::{InodeNo, IoMode};
use parking_lot::Mutex;

/// How long a hint waits for its open. Long enough for an open that waits behind a stalled device.
const LIFE: Duration = Duration::from_secs(10);
/// The most hints kept; a flood of suffixed lookups that are never opened drops the old ones.
const COUNT_MAX: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Hint {
    ino: InodeNo,
    mode: IoMode,
    born: Instant,
}

/// Hints by thread id.
#[derive(Debug, Default)]
pub(super) struct Hints {
    by_thread: Mutex<HashMap<u32, Hint>>,
    /// Size of the map, so that requests of mounts without suffixes take no lock.
    count: AtomicUsize,
}

impl Hints {
    /// Notes that `thread` looked up `ino` by a name that asks for `mode`, or (`None`) by a plain
    /// name.
    pub(super) fn note(&self, thread: u32, ino: InodeNo, mode: Option<IoMode>) {
        if mode.is_none() && self.count.load(Relaxed) == 0 {
            return;
        }
        let mut map = self.by_thread.lock();
        match mode {
            Some(mode) => {
                if map.len() >= COUNT_MAX {
                    map.retain(|_, hint| hint.born.elapsed() < LIFE);
                }
                if map.len() >= COUNT_MAX {
                    map.clear();
                }
                map.insert(thread, Hint { ino, mode, born: Instant::now() });
            }
            None => {
                map.remove(&thread);
            }
        }
        debug_assert!(map.len() <= COUNT_MAX, "hints are bounded: {}", map.len());
        self.count.store(map.len(), Relaxed);
    }

    /// Takes the mode that `thread`'s last lookup asked for, if it was of `ino`.
    pub(super) fn take(&self, thread: u32, ino: InodeNo) -> Option<IoMode> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let mut map = self.by_thread.lock();
        let hint = map.remove(&thread)?;
        self.count.store(map.len(), Relaxed);
        (hint.ino == ino && hint.born.elapsed() < LIFE).then_some(hint.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNo = InodeNo(7);

    #[test]
    fn a_hint_serves_one_open_of_its_inode_by_its_thread() {
        let hints = Hints::default();
        hints.note(1, FILE, Some(IoMode::Concurrent));
        assert_eq!(hints.take(2, FILE), None);
        assert_eq!(hints.take(1, FILE), Some(IoMode::Concurrent));
        assert_eq!(hints.take(1, FILE), None);
    }

    #[test]
    fn another_lookup_or_open_ends_a_hint() {
        let hints = Hints::default();
        hints.note(1, FILE, Some(IoMode::Direct));
        hints.note(1, InodeNo(8), None);
        assert_eq!(hints.take(1, FILE), None);
        hints.note(1, FILE, Some(IoMode::Direct));
        assert_eq!(hints.take(1, InodeNo(8)), None);
        assert_eq!(hints.take(1, FILE), None);
    }

    #[test]
    fn a_flood_of_hints_is_bounded() {
        let hints = Hints::default();
        for thread in 0..3 * COUNT_MAX as u32 {
            hints.note(thread, FILE, Some(IoMode::Direct));
        }
        assert!(hints.by_thread.lock().len() <= COUNT_MAX);
    }
}
