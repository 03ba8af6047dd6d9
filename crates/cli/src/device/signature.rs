//! Recognizes what lies on a device already, so that `format` destroys nothing by mistake.

use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use bedplate::AlignedBuf;

use crate::device::place;
use crate::failure::{Failure, Result};

/// Offset, magic bytes, name.
const SIGNATURES: [(usize, &[u8], &str); 18] = [
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (0x36, b"FAT1", "a FAT file system"),
    (0x52, b"FAT32", "a FAT file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (0x8001, b"CD001", "an ISO 9660 image"),
    (0x200, b"EFI PART", "a GPT partition table"),
    (0, b"LUKS\xba\xbe", "an encrypted LUKS volume"),
    (0x200, b"LABELONE", "an LVM physical volume"),
    (0xff6, b"SWAPSPACE2", "a swap area"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (0, b"QFI\xfb", "a QCOW2 image"),
    (0, b"\x7fELF", "a program"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0x101, b"ustar", "a tar archive"),
];

/// How far the last signature reaches.
const HEAD_BYTES: u64 = 0x1_0048;

/// Refuses what is no device at all. Opening some of it would wait for ever, as a pipe does.
pub fn refuse_kind(path: &Path) -> Result<()> {
    if place::is_remote(path) {
        return Ok(());
    }
    let file = place::file_of(path);
    let kind = std::fs::metadata(file).map_err(|e| Failure::system("find", path, &e))?.file_type();
    let what = match (kind.is_file() || kind.is_block_device(), kind.is_dir()) {
        (true, _) => return Ok(()),
        (_, true) => "is a directory",
        _ => "is neither a block device nor a regular file",
    };
    Err(Failure::new(
        "unsupported",
        format!("{} {what}: name a block device or an image file", path.display()),
    ))
}

/// Returns the name of what lies at `path`, if it is anything known.
pub fn recognize(path: &Path) -> Result<Option<&'static str>> {
    refuse_kind(path)?;
    let is_part = place::file_of(path) != path;
    let head =
        if is_part || place::is_remote(path) { head_of_export(path)? } else { head_of(path)? };
    Ok(SIGNATURES
        .iter()
        .find(|(at, magic, _)| head.get(*at..).is_some_and(|tail| tail.starts_with(magic)))
        .map(|(_, _, name)| *name))
}

fn head_of(path: &Path) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| Failure::system("open", path, &e))?;
    file.take(HEAD_BYTES).read_to_end(&mut head).map_err(|e| Failure::system("read", path, &e))?;
    Ok(head)
}

fn head_of_export(path: &Path) -> Result<Vec<u8>> {
    let device = bedplate_block::open(path, &place::to_look())?;
    let block = u64::from(device.geometry().logical_block_size);
    let len = HEAD_BYTES.next_multiple_of(block).min(device.size_bytes());
    let mut head = AlignedBuf::zeroed(len as usize);
    device.read_at(&mut head, 0)?;
    Ok(head.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_recognized_where_it_stands_and_lies_within_what_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for (at, magic, name) in SIGNATURES {
            let mut content = vec![0; at];
            content.extend_from_slice(magic);
            assert!(content.len() as u64 <= HEAD_BYTES);
            std::fs::write(&path, &content).unwrap();
            assert_eq!(recognize(&path).unwrap(), Some(name));
            std::fs::write(&path, &content[..content.len() - 1]).unwrap();
            assert_eq!(recognize(&path).unwrap(), None);
        }
    }

    #[test]
    fn zeros_and_emptiness_are_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for len in [0, 512, 1 << 20] {
            std::fs::write(&path, vec![0; len]).unwrap();
            assert_eq!(recognize(&path).unwrap(), None);
        }
    }
}
