//! Damages the superblocks of an image, for tests of what a mount makes of them. The layout is that
//! of docs/format.md.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Result;

/// Byte addresses of the two copies.
pub const COPIES: [u64; 2] = [0, 8 << 20];
/// Bytes of a copy that carry content and are under its checksum.
const CONTENT_BYTES: usize = 4096;
const VERSION_AT: usize = 8;
const CHECKSUM_AT: usize = 12;

fn open(image: &Path) -> Result<File> {
    Ok(OpenOptions::new().read(true).write(true).open(image)?)
}

/// Overwrites a few bytes in the middle of a copy's content.
pub fn corrupt(image: &Path, copy: u64) -> Result<()> {
    open(image)?.write_all_at(&[0xA5; 16], copy + 40)?;
    Ok(())
}

/// Makes both copies say that they are of format `version`, with checksums that fit.
pub fn set_version(image: &Path, version: u32) -> Result<()> {
    let file = open(image)?;
    for copy in COPIES {
        let mut content = vec![0; CONTENT_BYTES];
        file.read_exact_at(&mut content, copy)?;
        content[VERSION_AT..VERSION_AT + 4].copy_from_slice(&version.to_le_bytes());
        content[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
        let checksum = crc32c(&content);
        content[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        file.write_all_at(&content, copy)?;
    }
    Ok(())
}

/// CRC-32C, bit by bit: slow, and short enough to be right without the product's own.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }
}
