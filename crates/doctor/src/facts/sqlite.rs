//! A database file of SQLite: its header, byte by byte as sqlite.org/fileformat.html has it.

use std::path::Path;

use crate::system::{Seen, System};

/// What the header tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sqlite {
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// It keeps a write-ahead log.
    pub has_wal: bool,
    /// Pages of the file.
    pub pages: u64,
    /// Pages of it that hold nothing.
    pub free_pages: u64,
    /// Bytes of the write-ahead log; 0 where there is none.
    pub wal_bytes: u64,
}

/// Reads the header of a file.
///
/// # Errors
/// Where it is no database, or cannot be read.
pub fn read(system: &dyn System, file: &Path) -> Seen<Sqlite> {
    let header = system.bytes(file, 0, 100)?;
    let mut found =
        parse(&header).ok_or_else(|| format!("{} is no database of SQLite", file.display()))?;
    let mut wal = file.as_os_str().to_owned();
    wal.push("-wal");
    // Without a log the file is not there.
    found.wal_bytes = std::fs::metadata(system.at(Path::new(&wal))).map_or(0, |meta| meta.len());
    Ok(found)
}

fn parse(header: &[u8]) -> Option<Sqlite> {
    let u32_at =
        |at: usize| Some(u64::from(u32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?)));
    if header.get(..16)? != b"SQLite format 3\0" {
        return None;
    }
    let page_bytes = match u16::from_be_bytes(header.get(16..18)?.try_into().ok()?) {
        1 => 65536,
        bytes => u64::from(bytes),
    };
    if !page_bytes.is_power_of_two() || page_bytes < 512 {
        return None;
    }
    Some(Sqlite {
        page_bytes,
        has_wal: *header.get(18)? == 2,
        pages: u32_at(28)?,
        free_pages: u32_at(36)?,
        wal_bytes: 0,
    })
}

#[cfg(test)]
pub(crate) fn header(page_bytes: u16, has_wal: bool, pages: u32, free_pages: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    bytes[..16].copy_from_slice(b"SQLite format 3\0");
    bytes[16..18].copy_from_slice(&page_bytes.to_be_bytes());
    bytes[18] = if has_wal { 2 } else { 1 };
    bytes[28..32].copy_from_slice(&pages.to_be_bytes());
    bytes[36..40].copy_from_slice(&free_pages.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_header_are_none() {
        for bytes in [&[][..], b"SQLite format 3\0", &[0xFF; 100], &header(1000, true, 1, 0)] {
            assert_eq!(parse(bytes), None);
        }
        let found = parse(&header(1, true, 10, 3)).unwrap();
        assert_eq!((found.page_bytes, found.has_wal, found.free_pages), (65536, true, 3));
    }
}
