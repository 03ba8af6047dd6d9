//! Copies that share their blocks with the source.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::file::DirectFile;

/// Whether a copy shares its blocks with the source where the file system can: by `FICLONE`, or on a
/// mount of a volume by `copy_file_range(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reflink {
    /// Where it can; the data is copied elsewhere.
    Auto,
    /// By `FICLONE`, or the copy fails.
    Always,
    /// The data is copied.
    Never,
}

/// An attribute that every file has on a mount of a volume, and no other file.
const OF_A_MOUNT: &str = "user.bedplate.effective_mode";

/// Shares all blocks of the source with the copy, which is empty, as they are at one moment; `false`
/// where the file system cannot.
pub(crate) fn at_once(
    from: &DirectFile,
    into: &DirectFile,
    reflink: Reflink,
    target: &Path,
) -> Result<bool> {
    match rustix::fs::ioctl_ficlone(into.system(), from.system()) {
        Ok(()) => Ok(true),
        Err(error) if reflink == Reflink::Always => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} cannot share blocks with {}: {}",
                target.display(),
                from.path().display(),
                std::io::Error::from(error)
            ),
        )),
        Err(_) => Ok(false),
    }
}

/// Has a mount share the blocks with the copy, which is empty, that it can share, and copy the others,
/// in steps; `false` elsewhere. `FICLONE` does not reach a mount. Other file systems without that would
/// copy through the page cache.
pub(crate) fn on_mount(from: &DirectFile, is: &Metadata, into: &DirectFile) -> Result<bool> {
    let of_mount = rustix::fs::fgetxattr(into.system(), OF_A_MOUNT, &mut [0_u8; 0][..]);
    if !is.is_file() || is.dev() != into.metadata()?.dev() || of_mount.is_err() {
        return Ok(false);
    }
    let size = is.size();
    let (mut read, mut written) = (0, 0);
    while read < size {
        let len = usize::try_from(size - read).unwrap_or(usize::MAX);
        let moved = rustix::fs::copy_file_range(
            from.system(),
            Some(&mut read),
            into.system(),
            Some(&mut written),
            len,
        );
        // A full volume, which the copy of the data tells.
        if !moved.is_ok_and(|moved| moved > 0) {
            into.set_size(0)?;
            return Ok(false);
        }
    }
    debug_assert_eq!(read, written, "both begin with the first byte");
    into.set_size(size)?;
    Ok(true)
}
