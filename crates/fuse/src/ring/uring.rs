//! The ring of one thread, and whether the kernel has this way at all.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use io_uring::{IoUring, opcode, squeue, types};

use crate::layout::{COMMIT_AND_FETCH, REGISTER, command};
use crate::slot::Slot;

/// Where the kernel's switch is.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// The completion of the read that other threads wake a lane by.
pub(crate) const WOKEN: u64 = u64::MAX;
/// Operations between two calls: an answer for each slot, a new slot, the read.
const ENTRIES: u32 = 64;

/// Why the kernel cannot be served this way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The kernel does not have it.
    Kernel,
    /// The kernel has it, and it is turned off.
    Off,
    /// A process may not use io_uring, or it is not there.
    Ring(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => write!(f, "this kernel's FUSE has none; Linux 6.14 and later have"),
            Self::Off => {
                write!(f, "the kernel's switch is off: root turns it on by 'echo Y > {SWITCH}'")
            }
            Self::Ring(why) => write!(f, "io_uring cannot be set up: {why}"),
        }
    }
}

/// Returns why the kernel cannot be served over io_uring, if it cannot.
#[must_use]
pub fn offered() -> Option<Refusal> {
    match std::fs::read_to_string(SWITCH) {
        Err(_) => return Some(Refusal::Kernel),
        Ok(text) if text.trim() != "Y" => return Some(Refusal::Off),
        Ok(_) => {}
    }
    Ring::build().err().map(|error| Refusal::Ring(error.to_string()))
}

/// A ring with entries of 128 bytes, which the commands of FUSE need.
pub(crate) struct Ring {
    ring: IoUring<squeue::Entry128>,
    fuse: RawFd,
    queue: u16,
    /// What the read of the waker gives; the kernel may write there until after the ring is gone.
    woken: &'static mut u64,
}

impl Ring {
    fn build() -> io::Result<IoUring<squeue::Entry128>> {
        // A lane is used by one thread from the beginning to the end.
        IoUring::<squeue::Entry128>::builder()
            .setup_submit_all()
            .setup_coop_taskrun()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES)
    }

    /// Makes the ring of the calling thread, for requests of one processor's queue.
    pub(crate) fn new(fuse: BorrowedFd<'_>, queue: u16) -> io::Result<Self> {
        let fuse = fuse.as_raw_fd();
        Ok(Self { ring: Self::build()?, fuse, queue, woken: Box::leak(Box::new(0)) })
    }

    /// Gives a new slot to the kernel. It must live, where it is, until its completion is reaped or
    /// for ever (I-RING-1).
    pub(crate) fn register(&mut self, slot: &mut Slot) -> io::Result<()> {
        let vectors = slot.vectors();
        let mut entry = self.command(REGISTER, 0, slot.index);
        set_vectors(&mut entry, &vectors);
        self.push(&entry)?;
        // The kernel copies the two vectors in this call.
        self.ring.submit().map(drop)
    }

    /// Gives an answered slot back to the kernel, with the answer, for the next request.
    pub(crate) fn commit(&mut self, slot: &Slot) -> io::Result<()> {
        let entry = self.command(COMMIT_AND_FETCH, slot.commit(), slot.index);
        self.push(&entry)
    }

    /// Completes with [`WOKEN`] once another thread has written to the waker, which must live as
    /// long as this.
    pub(crate) fn listen(&mut self, waker: &OwnedFd) -> io::Result<()> {
        let into: *mut u64 = self.woken;
        let read = opcode::Read::new(types::Fd(waker.as_raw_fd()), into.cast(), 8);
        self.push(&read.build().user_data(WOKEN).into())
    }

    fn command(&self, what: u32, commit: u64, slot: usize) -> squeue::Entry128 {
        opcode::UringCmd80::new(types::Fd(self.fuse), what)
            .cmd(command(self.queue, commit))
            .build()
            .user_data(slot as u64)
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: what the entry points to outlives the operation: slots by I-RING-1, `woken`
        // for ever.
        if unsafe { self.ring.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        self.ring.submit()?;
        // SAFETY: as above.
        unsafe { self.ring.submission().push(entry) }
            .map_err(|_| io::Error::other("the submission ring is full after a submission"))
    }

    /// Submits what was pushed and waits for a completion; puts all there are at the end of `out`
    /// as what completed and its result.
    pub(crate) fn wait(&mut self, out: &mut Vec<(u64, i32)>) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => break,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        out.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        Ok(())
    }

    /// Returns the first error among completions that are there.
    pub(crate) fn refused(&mut self) -> Option<io::Error> {
        let failed = self.ring.completion().find(|entry| entry.result() < 0);
        failed.map(|entry| io::Error::from_raw_os_error(-entry.result()))
    }
}

/// Has an entry name header and payload of a slot, for which the library has no word.
fn set_vectors(entry: &mut squeue::Entry128, vectors: &[libc::iovec; 2]) {
    const { assert!(size_of::<squeue::Entry128>() == 128, "it is the kernel's io_uring_sqe") };
    let bytes: *mut u8 = std::ptr::from_mut(entry).cast();
    let address = vectors.as_ptr() as u64;
    // SAFETY: `addr` is at byte 16 and `len` at byte 24 of `struct io_uring_sqe`, which the entry is
    // (`repr(C)`), 128 bytes long; both lie within it and may be unaligned for Rust.
    unsafe {
        bytes.add(16).cast::<u64>().write_unaligned(address);
        bytes.add(24).cast::<u32>().write_unaligned(2);
    }
}
