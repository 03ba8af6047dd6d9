//! Page formats of databases: what a page says about whether it is whole. One small interface, one
//! file for each database.

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
    /// Returns the page size in bytes, if a file of this name whose first bytes are `head` holds
    /// such pages; `head` is [`HEAD_BYTES`] long, or shorter where the file is or cannot be read.
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

#[cfg(test)]
mod tests {
    use rand::{Rng, RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    #[test]
    fn any_bytes_are_pages_of_a_possible_size_or_none_and_never_whole_by_chance() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(12);
        for round in 0..2000 {
            let mut head = vec![0; rng.random_range(0..=HEAD_BYTES)];
            rng.fill_bytes(&mut head);
            // Half of them begin as the formats do, so that what follows is looked at.
            let starts: [(usize, &[u8]); 3] = [(0, b"SQLite format 3\0"), (20, &[8]), (4, &[0; 4])];
            for (at, bytes) in starts.into_iter().filter(|_| round % 2 == 0) {
                if let Some(place) = head.get_mut(at..at + bytes.len()) {
                    place.copy_from_slice(bytes);
                }
            }
            let mut page =
                vec![
                    0;
                    *[0, 7, 100, 512, 4096, 4097, 8192, 65_536][..].get(round % 8).unwrap_or(&0)
                ];
            rng.fill_bytes(&mut page);
            for (format, file) in page_formats()
                .into_iter()
                .flat_map(|format| ["16384", "t.ibd", "any.db"].map(|file| (format, file)))
            {
                let told = format.page_bytes(file, &head);
                assert!(
                    told.is_none_or(
                        |bytes| bytes.is_power_of_two() && (512..=65_536).contains(&bytes)
                    ),
                    "{} {told:?}",
                    format.name()
                );
                let offset = rng.random_range(0..1 << 40);
                // One in 65,536 of PostgreSQL's checksums is right by chance; none of these is.
                assert!(
                    page.is_empty() || !format.is_whole(file, offset / 65_536 * 65_536, &page),
                    "{} {}",
                    format.name(),
                    page.len()
                );
            }
        }
    }
}
