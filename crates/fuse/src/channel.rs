//! A descriptor of `/dev/fuse`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use bedplate_block::AlignedBuf;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Setter, ioctl, opcode};

const DEVICE: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_CLONE`, which the kernel's number calls a read, and which is told a descriptor.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
/// Buffers that are kept for the next requests, of those that were answered by other threads.
const SPARE_MAX: usize = 4;

/// One descriptor of a connection. An answer goes to the descriptor that its request came from.
#[derive(Debug)]
pub(crate) struct Channel {
    fuse: OwnedFd,
    /// What other threads have answered; a leaf.
    spare: Mutex<Vec<AlignedBuf>>,
}

impl Channel {
    pub(crate) fn new(fuse: OwnedFd) -> Self {
        Self { fuse, spare: Mutex::default() }
    }

    /// Returns another descriptor of the same connection. The kernel lists the requests under way
    /// of each by itself.
    pub(crate) fn another(&self) -> io::Result<Self> {
        let fuse = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let ours = self.fuse.as_raw_fd().cast_unsigned();
        // SAFETY: the operation is given a pointer to a descriptor, four bytes, and only reads it.
        unsafe { ioctl(&fuse, Setter::<CLONE, u32>::new(ours)) }?;
        Ok(Self::new(fuse))
    }

    pub(crate) fn take_spare(&self) -> Option<AlignedBuf> {
        self.spare.lock().pop()
    }

    pub(crate) fn keep_spare(&self, memory: AlignedBuf) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(memory);
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fuse.as_fd()
    }
}
