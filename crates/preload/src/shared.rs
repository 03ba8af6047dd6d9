//! Memory that the daemon made and shares.

use std::sync::atomic::AtomicU64;

use bedplate_lease::PageReader;

use crate::sys::{self, Fd};

/// Memory of words that another process has too.
pub type Shared = &'static [AtomicU64];

/// The daemon's cache, as this process has it mapped.
pub struct Cache {
    /// What lies where.
    pub pages: PageReader<Shared>,
    /// The bytes of all frames.
    pub frames: Shared,
}

impl Cache {
    /// Maps the three pieces, and puts them together if they fit.
    pub fn of([frames, directory, uses]: [Option<Fd>; 3]) -> Option<Self> {
        let read = |fd: Option<Fd>| fd.and_then(|fd| map(fd, libc::PROT_READ));
        let (frames, directory) = (read(frames), read(directory));
        let uses = uses.and_then(|fd| map(fd, libc::PROT_READ | libc::PROT_WRITE));
        let frames = frames?;
        let pages = PageReader::open(directory?, uses?, size_of_val(frames)).ok()?;
        Some(Self { pages, frames })
    }
}

/// Maps a memory that cannot shrink, whole, and closes its descriptor.
pub fn map(fd: Fd, protection: i32) -> Option<Shared> {
    let seals = sys::fcntl(fd, libc::F_GET_SEALS, 0);
    let bytes = sys::stat(fd).map_or(0, |stat| stat.st_size as usize);
    let is_sealed = seals > 0 && seals as i32 & libc::F_SEAL_SHRINK != 0;
    let at = if is_sealed && (8..1 << 44).contains(&bytes) {
        sys::map(bytes, protection, Some(fd))
    } else {
        None
    };
    sys::close(fd);
    // SAFETY: mapped for good, of this length at least, which the seal keeps; both sides use it as
    // atomic words only. What is mapped only to be read is only read: `Reader` stores nothing.
    at.map(|at| unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>(), bytes / 8) })
}

/// Copies bytes that the daemon may be changing: what comes of it is anything then, and not used.
///
/// # Safety
///
/// `to` is memory of the caller's of `len` bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn copy_out(frames: Shared, at: usize, to: *mut u8, len: usize) {
    debug_assert!(at + len <= size_of_val(frames), "a frame lies among all: {at}");
    let from = frames.as_ptr().cast::<u8>().wrapping_add(at);
    // SAFETY: reads memory that is mapped for good and written by another process, in an
    // instruction and not in the language, to which such reads would be a race; writes the
    // caller's. The direction flag is clear, as the convention has it.
    unsafe {
        std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _,
            inout("rdi") to => _, options(nostack, preserves_flags));
    }
}

/// The same in whole words, of which parts are used at both ends.
///
/// # Safety
///
/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy_out(frames: Shared, at: usize, to: *mut u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    debug_assert!(at + len <= size_of_val(frames), "a frame lies among all: {at}");
    let mut done = 0;
    while done < len {
        let (word, skip) = ((at + done) / WORD, (at + done) % WORD);
        let bytes = frames[word].load(std::sync::atomic::Ordering::Relaxed).to_ne_bytes();
        let now = (WORD - skip).min(len - done);
        // SAFETY: within the caller's memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(skip), to.add(done), now) };
        done += now;
    }
}
