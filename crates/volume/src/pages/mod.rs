//! Page formats of databases: what a page says about whether it is whole. One small interface, one file for each database.

mod innodb;
mod postgres;
mod sqlite;

pub use innodb::Innodb;
pub use postgres::Postgres;
pub use sqlite::Sqlite;

/// The pages of a database.
pub trait PageFormat {
    /// Returns the name for messages.
    fn name(&self) -> &'static str;
    /// Returns the page size in bytes, if a file of this name whose first bytes are `head` holds such pages; `head` is [`HEAD_BYTES`] long, or
    /// shorter where the file is or cannot be read.
    fn page_bytes(&self, file: &str, head: &[u8]) -> Option<u64>;
    /// Says whether the page at byte `offset` of the file is whole: its own checksum verifies.
    fn is_whole(&self, file: &str, offset: u64, page: &[u8]) -> bool;
}

/// How much of the beginning of a file tells what pages it holds.
pub const HEAD_BYTES: usize = 512;

/// Returns every format there is.
#[must_use]
pub fn page_formats() -> [&'static dyn PageFormat; 3] {
    [&Postgres, &Innodb, &Sqlite]
}

fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}

/// Reads a number as most databases store it, the highest byte first.
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
