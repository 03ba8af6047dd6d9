//! Devices that are being converted in place: the volume that will be, before it is committed.
//!
//! ```text
//! in-place:/dev/sdb     the volume on /dev/sdb, whose old file system is still there
//!
//!   device   | old superblock | … | old bytes at 8 MiB | … | header | saved superblock | …
//!   window   | saved ────────────────────────────────────────────────┘
//!            everything else lies where it stays; the saved superblock shows at bytes 0 and 8 MiB
//! ```
//!
//! The header says where the volume's superblock is kept while the old file system has the places
//! where it belongs. It can be read only: a write would change what the old file system is.

mod header;

use std::path::Path;
use std::sync::Arc;

pub use header::{
    CONTENT_BYTES, HEADER_BYTES, InPlaceHeader, InPlaceState, OldKind, Watched, grain_bytes,
};

use crate::check::error;
use crate::window::{Window, WindowPiece};
use crate::{
    AlignedBuf, BlockDevice, DeviceOptions, Error, ErrorKind, Operation, Result, file,
    in_place_path,
};

/// Where the second copy of a volume's superblock belongs, in bytes.
pub const SECOND_COPY: u64 = 8 << 20;

fn refused(name: &str, kind: ErrorKind, detail: &str) -> Error {
    error(name, kind, Operation::Open, None, detail.to_owned())
}

/// Opens the volume of a device that is being converted, for reading.
pub(crate) fn open(device: &Path, options: &DeviceOptions) -> Result<Arc<dyn BlockDevice>> {
    let name = in_place_path(device).display().to_string();
    if !options.read_only {
        let detail = "a volume that is not committed can only be read: mount it with -o ro, or run \
                      'bedplate convert --commit' first";
        return Err(refused(&name, ErrorKind::ReadOnly, detail));
    }
    let whole = file::open(device, options, None)?;
    let Some(header) = InPlaceHeader::find(&*whole)? else {
        let detail = "no conversion in place was made there: 'bedplate convert --in-place' makes \
                      one, and one that is committed is opened by the device's own name";
        return Err(refused(&name, ErrorKind::NotFound, detail));
    };
    if header.state == InPlaceState::Committing {
        let detail = "its commit was cut short: run 'bedplate convert --commit' again, or \
                      'bedplate convert --abandon'";
        return Err(refused(&name, ErrorKind::Busy, detail));
    }
    if let Some(changed) = header.first_change(&*whole)? {
        let detail = format!(
            "the old file system was written to since it was converted (its bytes from {changed} \
             on): run 'bedplate convert --abandon', then convert it again"
        );
        return Err(refused(&name, ErrorKind::Unsupported, &detail));
    }
    Ok(show(name, &whole, &header))
}

/// Returns the device as it will be when it is committed: the saved superblock shows in both of its
/// places, everything else where it lies.
pub fn show(
    name: String,
    whole: &Arc<dyn BlockDevice>,
    header: &InPlaceHeader,
) -> Arc<dyn BlockDevice> {
    let content = CONTENT_BYTES as u64;
    let piece =
        |start: u64, end: u64| WindowPiece { device: Arc::clone(whole), start, len: end - start };
    let saved = || piece(header.superblock_at, header.superblock_at + content);
    Window::open(
        name,
        vec![
            saved(),
            piece(content, SECOND_COPY),
            saved(),
            piece(SECOND_COPY + content, whole.size_bytes()),
        ],
    )
}

/// Reads bytes of a device, in whole blocks of it.
pub(crate) fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Result<AlignedBuf> {
    let mut buf = AlignedBuf::zeroed(len);
    device.read_at(&mut buf, offset)?;
    Ok(buf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, create_image};

    /// S-600
    #[test]
    fn s_600_a_volume_that_is_not_committed_is_read_and_never_written() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        create_image(&image, 64 << 20, false).unwrap();
        let read_only = DeviceOptions { read_only: true, ..DeviceOptions::default() };
        let none = open(&image, &read_only).unwrap_err();
        assert_eq!(none.kind, ErrorKind::NotFound, "{none}");
        let device = crate::open(&image, &DeviceOptions::default()).unwrap();
        device.write_at(&AlignedBuf::from_slice(&[9; 4096]), 48 << 20).unwrap();
        let mut header = header::sample(&*device, 32 << 20);
        header.superblock_at = 48 << 20;
        header.write(&*device).unwrap();
        drop(device);
        let named = in_place_path(&image);
        let writing = crate::open(&named, &DeviceOptions::default()).unwrap_err();
        assert_eq!(writing.kind, ErrorKind::ReadOnly, "S-600: {writing}");
        let shown = crate::open(&named, &read_only).unwrap();
        assert!(shown.geometry().read_only && shown.size_bytes() == 64 << 20);
        for (at, byte) in [(0, 9), (4096, 0), (SECOND_COPY, 9), (SECOND_COPY + 4096, 0)] {
            let bytes = read(&*shown, at, 4096).unwrap();
            assert!(bytes.iter().all(|one| *one == byte), "S-600: byte {at}");
        }
        let refused = shown.write_at(&AlignedBuf::from_slice(&[1; 4096]), 48 << 20);
        assert_eq!(refused.unwrap_err().kind, ErrorKind::ReadOnly, "S-600");
    }

    #[test]
    fn one_that_changed_or_is_half_committed_is_not_opened() {
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(64 << 20);
        let header = header::sample(&*device, 32 << 20);
        assert_eq!(header.first_change(&*device).unwrap(), None);
        device.write_at(&AlignedBuf::from_slice(&[1; 4096]), 0).unwrap();
        assert_eq!(header.first_change(&*device).unwrap(), Some(0));
    }
}
