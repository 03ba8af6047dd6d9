//! A file as the device, and memory that the daemon shares.

use std::ffi::CStr;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A memory of words with a descriptor.
#[derive(Clone)]
pub struct Memory(Arc<Mapped>);

struct Mapped {
    fd: OwnedFd,
    at: *const AtomicU64,
    words: usize,
}

// SAFETY: the words are atomic, and mapped for as long as this lives.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Memory {
    pub fn new(name: &CStr, words: usize) -> Self {
        let bytes = words * 8;
        // SAFETY: a new descriptor, a new mapping of all of it.
        unsafe {
            let fd = libc::memfd_create(name.as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            let file = File::from_raw_fd(fd);
            file.set_len(bytes as u64).unwrap();
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
            Self(Arc::new(Mapped { fd: file.into(), at: at.cast(), words }))
        }
    }

    pub fn fd(&self) -> i32 {
        self.0.fd.as_raw_fd()
    }
}

impl Deref for Memory {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: mapped whole for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.0.at, self.0.words) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing borrows it any more.
        unsafe { libc::munmap(self.at.cast_mut().cast(), self.words * 8) };
    }
}
