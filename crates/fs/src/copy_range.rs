//! Copies of ranges from one file to another: by reference where that is possible.

use crate::data::{ShareStep, SpaceDemand, share_range};
use crate::file::File;
use crate::{Error, ErrorKind, Result};

use bedplate_block::AlignedBuf;

/// How much is copied at once, in bytes.
const COPY_BYTES: u64 = 1 << 20;

/// What one step of a copy did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyStep {
    /// How many bytes of the target are as those of the source now; 0 at the end of the source.
    pub bytes: u64,
    /// Whether they lie in the same blocks, so that nothing was read or written.
    pub shared: bool,
}

impl File {
    /// Copies `length` bytes from byte `from` to byte `to` of another file, or of this one, on the
    /// same file system; returns how many, fewer only where the source ends. Whole blocks, from and
    /// to the same place in a block, are shared as by a clone where the target may have blocks in
    /// common with the source: what either is written afterwards the other does not see. Of what is
    /// shared, holes are holes in the target. Everything else is read and written, in pieces.
    ///
    /// Durable as a write is, with the next sync of the target; after a crash before it any part may
    /// be there. Other threads may read and write meanwhile, and may see, or come between, parts.
    ///
    /// # Errors
    /// `Invalid` for ranges of one file that overlap, for a target that was opened to append, and for
    /// files of two file systems; `NotPermitted` when this one is not open for reading or the other
    /// not for writing; `NoSpace`, `TooLarge`, `Io`, `ReadOnly`. After an error a part may be copied.
    pub fn copy_range(&self, from: u64, target: &Self, to: u64, length: u64) -> Result<u64> {
        // Where the source ends now: in one file, what is copied may move that.
        let length = length.min(self.size().saturating_sub(from));
        let mut copied = 0;
        while copied < length {
            let step = self.copy_step(from + copied, target, to + copied, length - copied)?;
            if step.bytes == 0 {
                break;
            }
            copied += step.bytes;
        }
        Ok(copied)
    }

    /// Carries out the first step of [`copy_range`](Self::copy_range): one record of blocks that are
    /// shared, or one piece of up to a MiB that is copied.
    ///
    /// # Errors
    /// As [`copy_range`](Self::copy_range).
    pub fn copy_step(&self, from: u64, target: &Self, to: u64, length: u64) -> Result<CopyStep> {
        self.may_read()?;
        target.may_write()?;
        target.fs().need_live(target.ino())?;
        let length = length.min(self.size().saturating_sub(from));
        self.need_apart(from, target, to, length)?;
        if length == 0 {
            return Ok(CopyStep { bytes: 0, shared: false });
        }
        self.note_read();
        let ask = || SpaceDemand::SetSize(to.saturating_add(length));
        let (source, other) = (self.io().inode, target.io().inode);
        let step = target
            .with_room(ask, || share_range(self.fs(), (source, from), (other, to), length))?;
        match step {
            ShareStep::Shared(bytes) => {
                if bytes > 0 && target.syncs_data() {
                    target.sync_range(to, bytes)?;
                }
                Ok(CopyStep { bytes, shared: true })
            }
            ShareStep::Copy(bytes) => self.copy_piece(from, target, to, bytes),
        }
    }

    /// Reads and writes the beginning of a range.
    fn copy_piece(&self, from: u64, target: &Self, to: u64, length: u64) -> Result<CopyStep> {
        let mut buf = AlignedBuf::zeroed(length.min(COPY_BYTES) as usize);
        let bytes = self.read_at(&mut buf, from)?;
        if bytes > 0 {
            target.write_at(&buf[..bytes], to)?;
        }
        Ok(CopyStep { bytes: bytes as u64, shared: false })
    }

    /// Refuses what cannot be copied.
    fn need_apart(&self, from: u64, target: &Self, to: u64, length: u64) -> Result<()> {
        let invalid = |message: &str| Err(Error::new(ErrorKind::Invalid, message));
        if !std::sync::Arc::ptr_eq(self.fs(), target.fs()) {
            return invalid("a range is copied within one file system");
        }
        if target.appends() {
            return invalid("a range cannot be copied to a file that was opened to append");
        }
        let overlap =
            from < to.saturating_add(length) && to < from.saturating_add(length) && length > 0;
        if self.ino() == target.ino() && overlap {
            return invalid("the ranges of one file overlap: copy them apart");
        }
        Ok(())
    }
}
