//! Memory that other processes map too, as words that all of them may read and write at any time.
//!
//! The size is sealed, so that no process can cut the memory short below a reader; where the others
//! are only to read, writing through any mapping but this one is sealed as well.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// What other processes may do with the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Read it.
    ReadOnly,
    /// Read and write it.
    ReadWrite,
}

/// Zeroed memory of a fixed number of words; cheap to clone, and unmapped with the last clone.
#[derive(Clone)]
pub struct SharedMemory(Arc<Mapping>);

struct Mapping {
    descriptor: OwnedFd,
    words: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping belongs to no thread, and what lies in it are atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above: shared access is atomic.
unsafe impl Sync for Mapping {}

impl SharedMemory {
    /// Makes memory of `count` words, at least one. It takes room only where it is touched.
    ///
    /// # Errors
    /// What the system says where it has no memory, descriptor or sealing.
    pub fn new(name: &str, count: usize, sharing: Sharing) -> io::Result<Self> {
        let bytes = count
            .checked_mul(size_of::<u64>())
            .filter(|bytes| *bytes > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let descriptor = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&descriptor, bytes as u64)?;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing of Rust's.
        let mapped = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &descriptor,
                0,
            )
        }?;
        let words = NonNull::new(mapped.cast::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping { descriptor, words, count };
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if sharing == Sharing::ReadOnly {
            seals |= SealFlags::FUTURE_WRITE;
        }
        fcntl_add_seals(&mapping.descriptor, seals | SealFlags::SEAL)?;
        Ok(Self(Arc::new(mapping)))
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor.as_fd()
    }
}

impl Deref for SharedMemory {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, aligned to a page, for as long as `self` lives;
        // its size is sealed, so no access of it faults; other processes and threads may write at
        // any time, which atomics allow.
        unsafe { std::slice::from_raw_parts(self.0.words.as_ptr(), self.0.count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, of this length, and no reference into it
        // outlives `self`.
        let unmapped = unsafe { munmap(self.words.as_ptr().cast(), self.count * size_of::<u64>()) };
        if let Err(error) = unmapped {
            tracing::debug!("shared memory stays mapped: {error}");
        }
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} words)", self.0.count)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn memory_is_shared_and_its_size_stays() {
        for (sharing, writable) in [(Sharing::ReadOnly, false), (Sharing::ReadWrite, true)] {
            let memory = SharedMemory::new("test", 1000, sharing).unwrap();
            assert!(memory.len() == 1000 && memory.iter().all(|word| word.load(Relaxed) == 0));
            memory[999].store(7, Relaxed);
            let path = format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd());
            let other = OpenOptions::new().read(true).write(true).open(path).unwrap();
            let mut word = [0; 8];
            other.read_exact_at(&mut word, 999 * 8).unwrap();
            assert_eq!(u64::from_le_bytes(word), 7);
            assert!(other.set_len(8).is_err() && other.set_len(1 << 20).is_err(), "sealed");
            assert_eq!(other.write_all_at(&[1; 8], 0).is_ok(), writable);
        }
        assert!(SharedMemory::new("none", 0, Sharing::ReadOnly).is_err());
    }
}
