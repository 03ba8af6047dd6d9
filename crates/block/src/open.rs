//! Opening a device by what names it.

use std::path::Path;
use std::sync::Arc;

use crate::{BlockDevice, DeviceOptions, Result, file, nbd};

/// Opens a block device, an image file, or an export of an NBD server where the path is its URI:
/// `nbd://HOST[:PORT]/NAME` or `nbd+unix:///NAME?socket=/PATH`, with `timeout=SECONDS` behind `?` or
/// `&` where 30 are not right.
///
/// The size of an image that is not a whole number of logical blocks is rounded down. An export is
/// claimed on this machine alone: that others do not use it is its server's to see to. Once the
/// connection broke, every call fails until the export is opened again.
///
/// # Errors
/// `NotFound`, `Permission`, `Busy` (naming the user of the device where it is known), `ReadOnly`
/// (a read-only device asked to be writable), `Unsupported` (neither a block device nor a regular
/// file; io_uring demanded and forbidden; a URI that is refused; an export to be written to that
/// takes no flush) or `Io`.
pub fn open(path: impl AsRef<Path>, options: &DeviceOptions) -> Result<Arc<dyn BlockDevice>> {
    let path = path.as_ref();
    if nbd::is_nbd_uri(path) { nbd::open(path, options) } else { file::open(path, options) }
}
