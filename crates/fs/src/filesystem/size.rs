//! The size of a file system, what its device need not keep, and where its intent log lies.

use std::sync::Arc;

use bedplate_block::BlockDevice;

use super::FileSystem;
use crate::{IoMode, LogMove, LogMoveOptions, Result, ShrinkPlan, ShrinkStep, TrimStep};
use crate::{log_place, mount};

impl FileSystem {
    /// Returns the I/O size in bytes that programs are told to prefer for a file with that mode of
    /// its own, or without one: the tunable `preferred-io` where it goes past the caller's caches,
    /// the allocation unit elsewhere. A power of two.
    #[must_use]
    pub fn preferred_io(&self, mode: Option<IoMode>) -> u32 {
        self.inner.fs.preferred_io(mode)
    }
    /// Takes over the device's present size; returns the new size in bytes. Does nothing where the
    /// device did not grow.
    ///
    /// # Errors
    /// `Invalid` when the device shrank; device errors.
    pub fn grow(&self) -> Result<u64> {
        mount::grow(&self.inner.fs)
    }
    /// Makes the file system smaller by a step of a fraction of a second, of which the first begins
    /// the shrink and the last, [`ShrinkStep::is_done`], ends it: then the size is durable, and what
    /// lies beyond it on the device is not needed any more. Other threads go on meanwhile; files,
    /// clones and checkpoints keep what they have, and what they share stays shared. Left alone for
    /// a minute it is given up.
    ///
    /// # Errors
    /// `NoSpace` where there is too little room before the new end, which says what lacks and what
    /// holds it; `Invalid` for a size that is not smaller or too small; `Busy` where something does
    /// not leave; device errors. The shrink is given up then: blocks were moved, and nothing else.
    pub fn shrink(&self, size_bytes: u64) -> Result<ShrinkStep> {
        self.inner.fs.shrink(size_bytes)
    }
    /// Gives up a shrink that is under way, if one is: the file system keeps its size.
    pub fn stop_shrink(&self) {
        self.inner.fs.stop_shrink();
    }
    /// Lets an image file end where the file system does, behind which nothing is needed any more;
    /// returns whether it did. Devices and groups of devices stay as they are.
    ///
    /// # Errors
    /// `ReadOnly`; device errors.
    pub fn cut_off_image(&self) -> Result<bool> {
        self.inner.fs.begin_change()?;
        self.keeping_size(|size_bytes| self.inner.fs.cut_device(size_bytes))
    }
    /// Returns what a shrink to this size would have to do, and whether there is room for it.
    ///
    /// # Errors
    /// `Invalid` for a size that is not smaller or too small; device errors.
    pub fn plan_shrink(&self, size_bytes: u64) -> Result<ShrinkPlan> {
        self.inner.fs.plan_shrink(size_bytes)
    }
    /// Tells the device of free runs of at least `run_bytes_min` bytes, from byte `from` of the
    /// volume on: one step of at most 4 GiB in 1,024 runs, [`TrimStep::next`] says where the next
    /// begins. The first, from 0, makes durable what was removed until now. Other threads go on
    /// meanwhile. What is discarded is needed by no file and no checkpoint, and by nothing that a
    /// power cut brings back.
    ///
    /// # Errors
    /// `ReadOnly`; device errors.
    pub fn trim(&self, from: u64, run_bytes_min: u64) -> Result<TrimStep> {
        self.inner.fs.trim(from, run_bytes_min)
    }
    /// Calls `work` with the size in bytes that the file system has and keeps until it returns, so
    /// that the volume below can be made smaller.
    pub fn keeping_size<T>(&self, work: impl FnOnce(u64) -> T) -> T {
        mount::keeping_size(&self.inner.fs, work)
    }
    /// Moves the intent log onto a device of its own, or home to the volume, while other threads go
    /// on: what syncs waits for the switch only. Returns once the log is there durably; a power cut
    /// before leaves it in one of the two places, whole. The former device holds no log then.
    ///
    /// # Errors
    /// `Exists` for a device that holds something, unless forced; `Invalid` for a size or device that
    /// does not suit, and where the log is home already; `NoSpace` where the volume has no free run
    /// that is long enough; `Busy` while the file system becomes smaller; device errors.
    pub fn move_log(
        &self,
        device: Option<Arc<dyn BlockDevice>>,
        options: &LogMoveOptions,
    ) -> Result<LogMove> {
        self.inner.fs.move_log(device, options)
    }
    /// Gives the intent log another size where it lies, in bytes; with `is_dry` only tells what would
    /// be done. As [`move_log`](Self::move_log).
    ///
    /// # Errors
    /// As [`move_log`](Self::move_log).
    pub fn resize_log(&self, size_bytes: u64, is_dry: bool) -> Result<LogMove> {
        self.inner.fs.resize_log(size_bytes, is_dry)
    }
    /// Gives the volume an identity that nothing else has, as one needs that is a copy of another's;
    /// returns it. A power cut leaves the old one or the new one.
    ///
    /// # Errors
    /// `ReadOnly`; `NoSpace` where the metadata has no room for what the log holds; device errors.
    pub fn renew_identity(&self) -> Result<String> {
        self.inner.fs.renew_identity()
    }
    /// Gives a volume that is not mounted, and whose log's device is lost, an empty log on itself.
    /// After an unmount nothing is lost.
    ///
    /// # Errors
    /// `Corrupt` where the volume was not unmounted, unless forced: what the log alone had is lost
    /// then. As [`move_log`](Self::move_log), and as [`mount`](Self::mount).
    pub fn bring_log_home(
        device: Arc<dyn BlockDevice>,
        options: &LogMoveOptions,
    ) -> Result<LogMove> {
        log_place::bring_home(device, options)
    }
}
