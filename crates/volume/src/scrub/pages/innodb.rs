//! InnoDB's pages, of MySQL and MariaDB: 4 to 64 KiB (`storage/innobase/buf/checksum.cc`,
//! `buf/buf0buf.cc`, `include/fil0types.h` of their sources).
//!
//! ```text
//!   0   checksum       4  page number    16  LSN    24  type    26  not covered    38  content
//!   size - 8  checksum again, or the old formula     size - 4  low half of the LSN
//!   full_crc32 (MariaDB 10.5 on):    size - 8  low half of the LSN     size - 4  CRC-32C of all before it
//! ```
//! A page whose checksum says that there is none (`innodb_checksum_algorithm=none`), compressed and
//! encrypted pages are never called whole.

use super::{PageFormat, be32, is_zero};
use crate::wire::crc32c;

/// InnoDB's tablespaces: `*.ibd`, `ibdata1`, `undo*`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Innodb;

/// Where the first page tells what kind of tablespace it is.
const FLAGS: usize = 54;
/// Set in the flags where every page has one checksum at its end.
const FULL_CRC32: u32 = 1 << 4;
/// The type of the first page of a tablespace.
const TYPE_FIRST: [u8; 2] = [0, 8];

impl PageFormat for Innodb {
    fn name(&self) -> &'static str {
        "InnoDB"
    }

    fn page_bytes(&self, file: &str, head: &[u8]) -> Option<u64> {
        let name = file.rsplit('/').next()?;
        let named =
            name.ends_with(".ibd") || name.starts_with("ibdata") || name.starts_with("undo");
        if !named || head.len() < FLAGS + 4 || head[24..26] != TYPE_FIRST || be32(head, 4) != 0 {
            return None;
        }
        let flags = be32(head, FLAGS);
        let (code, compressed) = if flags & FULL_CRC32 != 0 {
            (flags & 15, flags >> 5 & 7)
        } else {
            (flags >> 6 & 15, flags >> 1 & 15)
        };
        match code {
            _ if compressed != 0 => None,
            0 if flags & FULL_CRC32 == 0 => Some(16 << 10),
            3..=7 => Some(512 << code),
            _ => None,
        }
    }

    fn is_whole(&self, _file: &str, offset: u64, page: &[u8]) -> bool {
        let size = page.len();
        if !size.is_power_of_two()
            || !(4096..=65_536).contains(&size)
            || !offset.is_multiple_of(size as u64)
        {
            return false;
        }
        if is_zero(page) {
            return true;
        }
        let low_lsn = be32(page, 20);
        if u64::from(be32(page, 4)) != offset / size as u64 {
            return false;
        }
        let full =
            low_lsn == be32(page, size - 8) && crc32c(&page[..size - 4]) == be32(page, size - 4);
        full || low_lsn == be32(page, size - 4) && (has_crc32(page) || has_fold(page))
    }
}

/// Both checksums are that of the page without what is written outside the buffer pool.
fn has_crc32(page: &[u8]) -> bool {
    let sum = crc32c(&page[4..26]) ^ crc32c(&page[38..page.len() - 8]);
    be32(page, 0) == sum && be32(page, page.len() - 8) == sum
}

/// The checksums before CRC-32C: the new formula at the start, the old one, which covers that, at
/// the end.
fn has_fold(page: &[u8]) -> bool {
    let (new, old) =
        (fold(&page[4..26]).wrapping_add(fold(&page[38..page.len() - 8])), fold(&page[..26]));
    be32(page, 0) == new && be32(page, page.len() - 8) == old
}

fn fold(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0_u32, |fold, byte| {
        let byte = u32::from(*byte);
        let mixed = (fold ^ byte ^ 1_653_893_711) << 8;
        (mixed.wrapping_add(fold) ^ 1_463_735_687).wrapping_add(byte)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of a tablespace, without its checksums.
    fn page(size: usize, number: u32) -> Vec<u8> {
        let mut page: Vec<u8> = (0..size).map(|at| (at * 7 % 251) as u8).collect();
        page[4..8].copy_from_slice(&number.to_be_bytes());
        let low_lsn: [u8; 4] = page[20..24].try_into().unwrap();
        page[size - 4..].copy_from_slice(&low_lsn);
        page
    }

    fn put(page: &mut [u8], at: usize, sum: u32) {
        page[at..at + 4].copy_from_slice(&sum.to_be_bytes());
    }

    fn with_crc32(size: usize, number: u32) -> Vec<u8> {
        let mut page = page(size, number);
        let sum = crc32c(&page[4..26]) ^ crc32c(&page[38..size - 8]);
        put(&mut page, 0, sum);
        put(&mut page, size - 8, sum);
        page
    }

    fn with_fold(size: usize, number: u32) -> Vec<u8> {
        let mut page = page(size, number);
        let new = fold(&page[4..26]).wrapping_add(fold(&page[38..size - 8]));
        put(&mut page, 0, new);
        let old = fold(&page[..26]);
        put(&mut page, size - 8, old);
        page
    }

    fn with_full_crc32(size: usize, number: u32) -> Vec<u8> {
        let mut page = page(size, number);
        let low_lsn = be32(&page, 20);
        put(&mut page, size - 8, low_lsn);
        let sum = crc32c(&page[..size - 4]);
        put(&mut page, size - 4, sum);
        page
    }

    #[test]
    fn pages_of_every_size_and_checksum_are_whole_until_a_bit_turns_or_they_lie_elsewhere() {
        for size in [4, 8, 16, 32, 64].map(|kib: usize| kib << 10) {
            for mut page in [with_crc32(size, 3), with_fold(size, 3), with_full_crc32(size, 3)] {
                let offset = 3 * size as u64;
                assert!(Innodb.is_whole("t.ibd", offset, &page), "{size}");
                assert!(!Innodb.is_whole("t.ibd", 0, &page));
                for at in [4, 21, size / 2, size - 7, size - 2] {
                    page[at] ^= 4;
                    assert!(!Innodb.is_whole("t.ibd", offset, &page), "byte {at} of {size}");
                    page[at] ^= 4;
                }
            }
            assert!(Innodb.is_whole("t.ibd", 7 * size as u64, &vec![0; size]));
            let mut unsummed = page(size, 3);
            [0, size - 8].into_iter().for_each(|at| put(&mut unsummed, at, 0xdead_beef));
            assert!(
                !Innodb.is_whole("t.ibd", 3 * size as u64, &unsummed),
                "a page without a checksum says nothing"
            );
        }
        assert!(!Innodb.is_whole("t.ibd", 0, &[0; 100]));
    }

    #[test]
    fn the_first_page_tells_the_size() {
        let told = |flags: u32| {
            let mut head = vec![0; 512];
            head[25] = 8;
            put(&mut head, FLAGS, flags);
            Innodb.page_bytes("/data/db/t.ibd", &head)
        };
        // As MariaDB 10.11 wrote them: full_crc32 of 16 KiB, crc32 of 4 KiB.
        assert_eq!((told(0x15), told(0xc0)), (Some(16 << 10), Some(4096)));
        assert_eq!(
            (told(0), told(0x21), told(0x17), told(0x1c0)),
            (Some(16 << 10), Some(16 << 10), Some(64 << 10), Some(64 << 10))
        );
        assert_eq!(
            (told(0x10), told(0x2a), told(0x35), told(0x3c0)),
            (None, None, None, None),
            "impossible or compressed"
        );
        assert_eq!(
            (Innodb.page_bytes("t.ibd", &[]), Innodb.page_bytes("t.frm", &[0; 512])),
            (None, None)
        );
    }
}
