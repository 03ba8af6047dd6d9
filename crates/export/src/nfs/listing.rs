//! Directories in an order that changes with nothing: that of the hashes of their names.
//!
//! A cookie is the hash of the name that was told last, so it holds across restarts and whatever is
//! made and removed meanwhile: what was there all the time is told exactly once. From one pass over
//! a directory a window of it stays: the names that follow, as many as are told in the next
//! requests.

use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_block::FileHandle;
use parking_lot::Mutex;
use rustix::fs::{Dir, OFlags};

use super::handle::Key;
use super::status::Answer;
use super::tree::Node;

/// How many names one pass finds.
const WINDOW_NAMES: usize = 16_384;
/// How many windows stay.
const WINDOWS_MAX: usize = 8;
/// Of how many directories it is known when the last listing began.
const BEGUN_MAX: usize = 4096;

/// The cookies of the directory itself and of the one above.
pub const DOT: u64 = 1;
pub const DOT_DOT: u64 = 2;

/// One name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    pub cookie: u64,
    pub name: Vec<u8>,
    pub number: u64,
}

/// The names whose cookies come next after one.
#[derive(Debug)]
pub struct Window {
    after: u64,
    names: Vec<Listed>,
    /// There are more behind the last.
    has_more: bool,
}

impl Window {
    fn holds(&self, cookie: u64) -> bool {
        let last = self.names.last().map_or(self.after, |listed| listed.cookie);
        self.after <= cookie && (!self.has_more || cookie < last)
    }

    /// Returns the names after a cookie.
    pub fn after(&self, cookie: u64) -> &[Listed] {
        &self.names[self.names.partition_point(|listed| listed.cookie <= cookie)..]
    }

    /// Returns whether the last of the names is the directory's last.
    pub fn is_last(&self) -> bool {
        !self.has_more
    }
}

#[derive(Debug, Default)]
struct Kept {
    windows: Vec<(FileHandle, Arc<Window>, Instant)>,
    /// Which of all listings was the last that began in a directory.
    begun: HashMap<FileHandle, u64>,
    count: u64,
    /// How often that was forgotten.
    forgotten: u64,
}

impl Kept {
    fn begin(&mut self, dir: &FileHandle) {
        self.windows.retain(|(handle, ..)| handle != dir);
        if self.begun.len() == BEGUN_MAX {
            self.forget();
        }
        self.count += 1;
        self.begun.insert(dir.clone(), self.count);
    }

    fn forget(&mut self) {
        self.windows = Vec::new();
        self.begun = HashMap::new();
        self.forgotten += 1;
    }

    /// Returns what is another after a listing of the directory has begun.
    fn stage(&self, dir: &FileHandle) -> (Option<u64>, u64) {
        (self.begun.get(dir).copied(), self.forgotten)
    }
}

/// The windows that stay, of all directories.
#[derive(Debug, Default)]
pub struct Listings(Mutex<Kept>);

impl Listings {
    /// Returns a window with the names after a cookie.
    ///
    /// A listing that begins finds none of those that were made before it: it could miss a name that
    /// was there when it began.
    pub fn window(&self, dir: &Node, cookie: u64, key: &Key) -> Answer<Arc<Window>> {
        let stage = {
            let mut kept = self.0.lock();
            if cookie == 0 {
                kept.begin(&dir.handle);
            }
            let found = kept
                .windows
                .iter_mut()
                .find(|(handle, window, _)| *handle == dir.handle && window.holds(cookie));
            if let Some((_, window, used)) = found {
                *used = Instant::now();
                return Ok(Arc::clone(window));
            }
            kept.stage(&dir.handle)
        };
        let window = Arc::new(pass(dir, if cookie <= DOT_DOT { 0 } else { cookie }, key)?);
        let mut kept = self.0.lock();
        if kept.stage(&dir.handle) == stage {
            if kept.windows.len() == WINDOWS_MAX {
                let oldest = (0..WINDOWS_MAX).min_by_key(|at| kept.windows[*at].2).unwrap_or(0);
                kept.windows.swap_remove(oldest);
            }
            kept.windows.push((dir.handle.clone(), Arc::clone(&window), Instant::now()));
        }
        Ok(window)
    }

    /// Forgets what nothing used for a time.
    pub fn drop_idle(&self, idle: Duration) {
        let mut kept = self.0.lock();
        kept.windows.retain(|(.., used)| used.elapsed() < idle);
        if kept.windows.is_empty() && !kept.begun.is_empty() {
            kept.forget();
        }
    }
}

/// Reads a directory once, and keeps the names that come next after a cookie.
fn pass(dir: &Node, after: u64, key: &Key) -> Answer<Window> {
    let open = dir.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut next = Nearest::new(after, WINDOW_NAMES);
    for entry in Dir::new(open)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            next.offer(cookie_of(key, name), name, entry.ino());
        }
    }
    Ok(next.window())
}

/// Returns the cookie of a name: 62 bits, above those of the dots. Two names that
/// share one, of which the second may be left out, are in a directory of a billion names with a
/// chance of one in ten.
fn cookie_of(key: &Key, name: &[u8]) -> u64 {
    (key.number(1, name) >> 2).max(DOT_DOT + 1)
}

/// The least cookies above one.
#[derive(Debug)]
struct Nearest {
    after: u64,
    len: usize,
    /// The greatest first.
    heap: BinaryHeap<Listed>,
    has_more: bool,
}

impl Nearest {
    fn new(after: u64, len: usize) -> Self {
        Self { after, len, heap: BinaryHeap::new(), has_more: false }
    }

    fn offer(&mut self, cookie: u64, name: &[u8], number: u64) {
        if cookie <= self.after {
            return;
        }
        if self.heap.len() == self.len {
            self.has_more = true;
            if self.heap.peek().is_some_and(|greatest| greatest.cookie <= cookie) {
                return;
            }
            self.heap.pop();
        }
        self.heap.push(Listed { cookie, name: name.to_vec(), number });
    }

    fn window(self) -> Window {
        Window { after: self.after, names: self.heap.into_sorted_vec(), has_more: self.has_more }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn window(names: &BTreeSet<u32>, after: u64, len: usize) -> Window {
        let key = Key::forged(3);
        let mut next = Nearest::new(after, len);
        for name in names {
            let name = name.to_string().into_bytes();
            next.offer(cookie_of(&key, &name), &name, 0);
        }
        next.window()
    }

    #[test]
    fn s_469_what_is_there_all_the_time_is_told_once_while_others_come_and_go() {
        let mut names: BTreeSet<u32> = (0..1000).collect();
        for len in [1, 7, 100, 999, 1000, 5000] {
            let (mut cookie, mut told, mut round) = (0, Vec::new(), 0);
            loop {
                let window = window(&names, cookie, len);
                let next = window.after(cookie);
                let Some(last) = next.last() else { break };
                assert!(window.holds(cookie) && (window.is_last() || !window.holds(last.cookie)));
                told.extend(next.iter().map(|listed| listed.name.clone()));
                cookie = last.cookie;
                // Others come and go.
                round += 1;
                names.insert(2000 + round);
                names.remove(&(1999 + round));
            }
            let stayed =
                |name: &&Vec<u8>| str::from_utf8(name).unwrap().parse::<u32>().unwrap() < 1000;
            let told: Vec<_> = told.iter().filter(stayed).collect();
            assert_eq!(told.len(), 1000, "windows of {len}");
            assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), 1000);
            names.retain(|name| *name < 1000);
        }
    }
}
