//! SQLite's pages under its checksum VFS: eight bytes at the end of each (`ext/misc/cksumvfs.c` of
//! its sources). It is on where the header of the database keeps exactly eight bytes of every page
//! free.

use super::{PageFormat, be32, is_zero};

/// Databases of SQLite that were written through the checksum VFS.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sqlite;

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// How many bytes the checksum takes, and where the header says that they are kept free.
const SUM_BYTES: usize = 8;
const KEPT_FREE: usize = 20;

impl PageFormat for Sqlite {
    fn name(&self) -> &'static str {
        "SQLite"
    }

    fn page_bytes(&self, _file: &str, head: &[u8]) -> Option<u64> {
        if head.len() < 100 || head[..16] != MAGIC[..] || usize::from(head[KEPT_FREE]) != SUM_BYTES
        {
            return None;
        }
        let bytes = match be32(head, 14) & 0xffff {
            1 => 65_536,
            bytes => u64::from(bytes),
        };
        (bytes.is_power_of_two() && (512..=65_536).contains(&bytes)).then_some(bytes)
    }

    fn is_whole(&self, _file: &str, offset: u64, page: &[u8]) -> bool {
        let size = page.len();
        let fits = size.is_power_of_two()
            && (512..=65_536).contains(&size)
            && offset.is_multiple_of(size as u64);
        // All zeros sum up to zeros and say nothing.
        fits && page[size - SUM_BYTES..] == checksum(&page[..size - SUM_BYTES]) && !is_zero(page)
    }
}

/// Returns the two sums of a page's words, each of which runs into the other.
fn checksum(bytes: &[u8]) -> [u8; SUM_BYTES] {
    let (mut first, mut second) = (0_u32, 0_u32);
    for pair in bytes.as_chunks::<8>().0 {
        let word =
            |at: usize| u32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]);
        first = first.wrapping_add(word(0)).wrapping_add(second);
        second = second.wrapping_add(word(4)).wrapping_add(first);
    }
    let mut sum = [0; SUM_BYTES];
    sum[..4].copy_from_slice(&first.to_le_bytes());
    sum[4..].copy_from_slice(&second.to_le_bytes());
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_until_a_bit_turns() {
        let mut page: Vec<u8> = (0..4096).map(|at: usize| (at * 7 % 251) as u8).collect();
        // What the C code of the checksum VFS makes of these bytes.
        let (first, second) = (0xb04a_f9a9_u32, 0x6149_281e_u32);
        page[4088..4092].copy_from_slice(&first.to_le_bytes());
        page[4092..].copy_from_slice(&second.to_le_bytes());
        assert!(Sqlite.is_whole("any", 8192, &page));
        for at in [0, 2000, 4087, 4090] {
            page[at] ^= 1;
            assert!(!Sqlite.is_whole("any", 8192, &page), "byte {at}");
            page[at] ^= 1;
        }
        assert!(
            !Sqlite.is_whole("any", 0, &[0; 4096])
                && !Sqlite.is_whole("any", 8192, &page[..1000])
                && !Sqlite.is_whole("any", 100, &page)
        );
    }

    #[test]
    fn the_header_tells_the_size_and_whether_there_are_checksums() {
        let mut head = vec![0; 512];
        head[..16].copy_from_slice(MAGIC);
        head[KEPT_FREE] = 8;
        for (stored, bytes) in
            [(4096_u16, Some(4096)), (1, Some(65_536)), (512, Some(512)), (0, None), (3000, None)]
        {
            head[16..18].copy_from_slice(&stored.to_be_bytes());
            assert_eq!(Sqlite.page_bytes("any", &head), bytes);
        }
        head[16..18].copy_from_slice(&4096_u16.to_be_bytes());
        head[KEPT_FREE] = 0;
        assert_eq!((Sqlite.page_bytes("any", &head), Sqlite.page_bytes("any", &[])), (None, None));
    }
}
