//! The size of a mounted file system: it grows with its device, or is kept while something below
//! relies on it.

use crate::engine::Engine;
use crate::{Error, ErrorKind, Result};

/// Calls `work` with the file system's size, which it keeps meanwhile.
pub(crate) fn keeping_size<T>(fs: &Engine, work: impl FnOnce(u64) -> T) -> T {
    let _none_grows = fs.lock_size();
    work(fs.superblock().size_bytes)
}

/// Takes over a larger device.
pub(crate) fn grow(fs: &Engine) -> Result<u64> {
    match fs.begin_change() {
        // This is what makes room.
        Err(e) if e.kind == ErrorKind::NoSpace => {}
        other => other?,
    }
    let one = fs.lock_size();
    if one.is_some() {
        return Err(Error::new(
            ErrorKind::Busy,
            "the file system is being made smaller: stop that, or wait until it has ended",
        ));
    }
    let block = u64::from(fs.block_size());
    let size = fs.refresh_device_bytes()? / block * block;
    let old = fs.superblock().size_bytes;
    if size < old {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{} shrank from {old} to {size} bytes below a mounted volume: restore its size",
                fs.device_name()
            ),
        ));
    }
    if size > old {
        fs.update_superblock(|superblock| superblock.size_bytes = size)?;
        fs.grow_space(size / block);
    }
    Ok(size)
}
