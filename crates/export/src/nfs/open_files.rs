//! Files that are open for requests, which open none: one open serves many reads or writes.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bedplate_block::FileHandle;
use parking_lot::Mutex;

use super::verifier::Verifier;

/// How many are open at most.
const OPEN_MAX: usize = 256;
/// How long one is kept that nothing uses.
pub const IDLE_TIME: Duration = Duration::from_secs(3);

/// A regular file that is open.
#[derive(Debug)]
pub struct OpenFile {
    pub fd: OwnedFd,
    /// Something was written that no flush covers.
    unstable: AtomicBool,
    /// Held over a flush: the system tells a failure to one that asks, and until that one has
    /// changed the verifier the next must not believe that all is well.
    flushing: Mutex<()>,
    used: Mutex<Instant>,
}

impl OpenFile {
    fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            unstable: AtomicBool::new(false),
            flushing: Mutex::default(),
            used: Mutex::new(Instant::now()),
        }
    }

    /// Says that something was written, which a flush that began before may not cover.
    pub fn wrote(&self) {
        self.unstable.store(true, SeqCst);
    }

    /// Makes what was written durable, with the attributes where `all`; a failure changes the
    /// verifier.
    pub fn flush(&self, all: bool, verifier: &Verifier) -> rustix::io::Result<()> {
        let flushing = self.flushing.lock();
        self.unstable.store(false, SeqCst);
        let synced =
            if all { rustix::fs::fsync(&self.fd) } else { rustix::fs::fdatasync(&self.fd) };
        if synced.is_err() {
            verifier.lost();
        }
        drop(flushing);
        synced
    }
}

/// What is open.
#[derive(Debug, Default)]
pub struct OpenFiles {
    files: Mutex<HashMap<(FileHandle, bool), Arc<OpenFile>>>,
    opened: AtomicU64,
}

impl OpenFiles {
    /// Returns a file open for reading, or for writing where `write`.
    pub fn get(
        &self,
        handle: &FileHandle,
        write: bool,
        verifier: &Verifier,
        open: impl FnOnce() -> rustix::io::Result<OwnedFd>,
    ) -> rustix::io::Result<Arc<OpenFile>> {
        let key = (handle.clone(), write);
        if let Some(file) = self.files.lock().get(&key) {
            *file.used.lock() = Instant::now();
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(OpenFile::new(open()?));
        self.opened.fetch_add(1, SeqCst);
        let mut files = self.files.lock();
        let file = Arc::clone(files.entry(key).or_insert(file));
        let surplus = (files.len() > OPEN_MAX).then(|| take_oldest(&mut files)).flatten();
        drop(files);
        self.close(surplus, verifier);
        Ok(file)
    }

    /// Closes what nothing used for a time, and returns the rest's number.
    pub fn close_idle(&self, idle: Duration, verifier: &Verifier) -> usize {
        let mut files = self.files.lock();
        let taken: Vec<_> = files
            .extract_if(|_, file| {
                Arc::strong_count(file) == 1 && file.used.lock().elapsed() >= idle
            })
            .map(|(_, file)| file)
            .collect();
        let left = files.len();
        drop(files);
        self.close(taken, verifier);
        left
    }

    /// Closes a file whose name was removed, so that its blocks are free with its last name.
    pub fn forget(&self, handle: &FileHandle, verifier: &Verifier) {
        let mut files = self.files.lock();
        let taken =
            [false, true].map(|write| files.remove(&(handle.clone(), write))).into_iter().flatten();
        let taken: Vec<_> = taken.collect();
        drop(files);
        self.close(taken, verifier);
    }

    /// What was written and is not flushed yet is flushed before the last one that would be told of
    /// a failure goes away.
    fn close(&self, files: impl IntoIterator<Item = Arc<OpenFile>>, verifier: &Verifier) {
        for file in files {
            let is_deleted = || rustix::fs::fstat(&file.fd).is_ok_and(|stat| stat.st_nlink == 0);
            if file.unstable.load(SeqCst)
                && !is_deleted()
                && let Err(error) = file.flush(true, verifier)
            {
                tracing::error!("what clients wrote may be lost, and they are told so: {error}");
            }
        }
    }
}

fn take_oldest(files: &mut HashMap<(FileHandle, bool), Arc<OpenFile>>) -> Option<Arc<OpenFile>> {
    let unused = files.iter().filter(|(_, file)| Arc::strong_count(file) == 1);
    let oldest = unused.min_by_key(|(_, file)| *file.used.lock())?.0.clone();
    files.remove(&oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: usize) -> FileHandle {
        FileHandle { kind: 1, bytes: number.to_ne_bytes().to_vec() }
    }

    #[test]
    fn s_467_the_number_of_open_files_is_bounded_and_one_in_use_stays_open() {
        let (files, verifier) = (OpenFiles::default(), Verifier::new(0));
        let open = || Ok(std::fs::File::open("/dev/null").unwrap().into());
        let used = files.get(&handle(0), false, &verifier, open).unwrap();
        for number in 1..3 * OPEN_MAX {
            files.get(&handle(number), number % 2 == 0, &verifier, open).unwrap();
        }
        assert_eq!(files.files.lock().len(), OPEN_MAX);
        let again = files.get(&handle(0), false, &verifier, || unreachable!("it is open"));
        assert!(Arc::ptr_eq(&used, &again.unwrap()));
        assert_eq!(files.close_idle(Duration::ZERO, &verifier), 1);
        drop(used);
        assert_eq!(files.close_idle(Duration::ZERO, &verifier), 0);
    }

    /// A pipe takes no flush, as a device that fails.
    #[test]
    fn s_464_a_flush_that_fails_changes_the_verifier_also_when_a_file_is_closed() {
        let (files, verifier) = (OpenFiles::default(), Verifier::new(0));
        let open = || Ok(std::io::pipe().unwrap().1.into());
        let (first, began) = (handle(1), verifier.value());
        let file = files.get(&first, true, &verifier, open).unwrap();
        drop(file);
        files.forget(&first, &verifier);
        assert_eq!(verifier.value(), began, "nothing was written");
        let file = files.get(&first, true, &verifier, open).unwrap();
        file.wrote();
        assert!(file.flush(true, &verifier).is_err());
        let after = verifier.value();
        assert_ne!(after, began);
        file.wrote();
        drop(file);
        files.forget(&first, &verifier);
        assert_ne!(verifier.value(), after);
    }
}
