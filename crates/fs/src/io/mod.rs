//! The data path.

use std::sync::Arc;
use std::time::Instant;

use crate::inode::Inode;
use crate::state::Fs;
use crate::{File, OpenOptions, Result};

/// Everything about an inode's data: locks, extent map, opens, cache.
#[derive(Debug, Default)]
pub(crate) struct FileState {}

impl FileState {
    /// States that the inode is new: its extent map is empty and needs no reading.
    pub(crate) fn set_empty(&self) {}

    /// Returns whether nothing is lost when the inode is dropped from memory: no opens, no dirty pages, no pending extents.
    pub(crate) fn is_idle(&self) -> bool {
        true
    }
}

/// Opens a file (pins the inode).
pub(crate) fn open(_fs: &Arc<Fs>, _inode: &Arc<Inode>, _options: &OpenOptions) -> Result<File> {
    todo!()
}

/// Cuts or extends.
pub(crate) fn set_size(_fs: &Fs, _inode: &Arc<Inode>, _size: u64) -> Result<()> {
    todo!()
}

/// Frees every extent of an inode without names and pins, in bounded records; drops its cached pages.
pub(crate) fn free_all(_fs: &Fs, _inode: &Arc<Inode>) -> Result<()> {
    Ok(())
}

/// Goes on with a truncation that a crash interrupted (the inode has an orphan row and still a name); removes the orphan row at the end.
pub(crate) fn resume_truncate(_fs: &Fs, _inode: &Arc<Inode>) -> Result<()> {
    todo!()
}

/// Takes over a changed I/O mode of the file on its live opens.
pub(crate) fn mode_changed(_fs: &Fs, _inode: &Arc<Inode>) -> Result<()> {
    Ok(())
}

/// Writes an inode's dirty library-cache pages to the device (no flush).
pub(crate) fn flush_inode(_fs: &Fs, _inode: &Arc<Inode>) -> Result<()> {
    Ok(())
}

/// Writes all dirty library-cache pages to the device (no flush).
pub(crate) fn flush_all(_fs: &Fs) -> Result<()> {
    Ok(())
}

/// Writes pages that are dirty since before `then`.
pub(crate) fn flush_aged(_fs: &Fs, _then: Instant) -> Result<()> {
    Ok(())
}
