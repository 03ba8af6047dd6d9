//! Memory that any device accepts.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::num::NonZeroU64;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A heap buffer aligned to [`AlignedBuf::ALIGN`] bytes, zeroed when made, owned by one place at a
/// time.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// Place in the buffer table of the queue that made it.
    pub(crate) slot: Option<Slot>,
}

/// A place in one queue's table of registered buffers, in one word because buffers are moved about
/// a lot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(NonZeroU64);

impl Slot {
    /// Names entry `index` of table `pool`, which counts from 1 and is unique in the process.
    pub fn new(pool: u64, index: u16) -> Self {
        assert!(pool < 1 << 48, "a process opens fewer than 2^48 queues");
        Self(NonZeroU64::new(pool << 16 | u64::from(index)).expect("tables count from 1"))
    }

    pub fn pool(self) -> u64 {
        self.0.get() >> 16
    }

    pub fn index(self) -> u16 {
        self.0.get() as u16
    }
}

const _: () = assert!(
    AlignedBuf::ALIGN.is_power_of_two() && AlignedBuf::ALIGN >= 512,
    "a buffer is aligned for direct I/O"
);

// SAFETY: the buffer owns its memory exclusively; nothing about it is tied to a thread.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Alignment in bytes of every buffer: a page, which covers every device known to Linux.
    pub const ALIGN: usize = 4096;

    /// A buffer of just this length in bytes lies in one large page, where the system has such
    /// (transparent huge pages): the kernel then pins it for direct I/O at once, and not page by page.
    pub const HUGE_BYTES: usize = 2 << 20;

    /// Makes a zeroed buffer of `len` bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { ptr: NonNull::dangling(), len, slot: None };
        }
        let layout = Self::layout(len);
        let ptr = if Self::is_huge(len) {
            Self::huge_zeroed(layout)
        } else {
            // SAFETY: the layout has a non-zero size.
            unsafe { alloc_zeroed(layout) }
        };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        Self { ptr, len, slot: None }
    }

    fn is_huge(len: usize) -> bool {
        len == Self::HUGE_BYTES
    }

    /// Allocates memory and asks for a large page before the first byte is touched (`madvise(2)`).
    fn huge_zeroed(layout: Layout) -> *mut u8 {
        // SAFETY: the layout has a non-zero size.
        let ptr = unsafe { alloc(layout) };
        if ptr.is_null() {
            return ptr;
        }
        // SAFETY: the range was just allocated, and the advice changes no byte of it; where the
        // system has no such pages it says so, and nothing is lost.
        let _given = unsafe { libc::madvise(ptr.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        // SAFETY: `ptr` is valid for as many bytes.
        unsafe { ptr.write_bytes(0, layout.size()) };
        ptr
    }

    /// Makes a buffer that holds a copy of `bytes`.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Returns the address of byte `at`, for the kernel. Unlike a slice it does not claim exclusive
    /// use of the memory.
    pub(crate) fn address(&self, at: usize) -> *mut u8 {
        assert!(at <= self.len, "byte {at} lies beyond the buffer");
        self.ptr.as_ptr().wrapping_add(at)
    }

    fn layout(len: usize) -> Layout {
        let align = if Self::is_huge(len) { Self::HUGE_BYTES } else { Self::ALIGN };
        Layout::from_size_align(len, align).expect("a buffer's length is far below isize::MAX")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: `ptr` came from `alloc_zeroed` with this very layout and is freed once.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) }
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `len` initialised bytes (dangling only when `len` is 0) and
        // borrowed from `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}
