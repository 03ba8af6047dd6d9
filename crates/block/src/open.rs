//! Opening a device by what names it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::check::error;
use crate::window::{Window, WindowPiece};
use crate::{
    BlockDevice, DeviceOptions, ErrorKind, Operation, Part, Result, file, in_place,
    in_place_device, nbd,
};

/// Opens a block device, an image file, or an export of an NBD server where the path is its URI:
/// `nbd://HOST[:PORT]/NAME` or `nbd+unix:///NAME?socket=/PATH`, with `timeout=SECONDS` behind `?` or
/// `&` where 30 are not right.
///
/// `PATH#4M+100M` is a part of a block device or an image, [`Part`]. `in-place:PATH` is the volume of
/// one that is being converted in place, for reading.
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
    if nbd::is_nbd_uri(path) {
        return nbd::open(path, options);
    }
    if let Some(device) = in_place_device(path) {
        return in_place::open(&device, options);
    }
    match Part::parse(path) {
        Some(part) => open_part(&part, options),
        None => file::open(path, options, None),
    }
}

/// Opens a part as a device.
fn open_part(part: &Part, options: &DeviceOptions) -> Result<Arc<dyn BlockDevice>> {
    let whole = file::open(&part.device, options, Some(&part.pieces))?;
    let name = part.path().display().to_string();
    let size = whole.size_bytes();
    if let Some(piece) = part.pieces.iter().find(|piece| piece.end > size) {
        let detail = format!("the device ends at byte {size}, before its part does");
        let at = Some(piece.start);
        return Err(error(&name, ErrorKind::OutOfRange, Operation::Open, at, detail));
    }
    let piece = |piece: &Range<u64>| WindowPiece {
        device: Arc::clone(&whole),
        start: piece.start,
        len: piece.end - piece.start,
    };
    Ok(Window::open(name, part.pieces.iter().map(piece).collect()))
}
