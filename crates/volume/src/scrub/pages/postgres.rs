//! PostgreSQL's pages: 8 KiB, a checksum of 16 bits at byte 8
//! (`src/include/storage/checksum_impl.h` of its sources).

use super::PageFormat;

/// PostgreSQL's relation files, in a cluster with `data_checksums` and pages of 8 KiB.
#[derive(Debug, Clone, Copy, Default)]
pub struct Postgres;

const PAGE_BYTES: u64 = 8192;
/// Pages of one segment file of 1 GiB.
const PAGES_PER_SEGMENT: u64 = 131_072;
const LANES: usize = 32;
const PRIME: u32 = 16_777_619;
const _: () = assert!(
    PAGE_BYTES.is_multiple_of(4 * LANES as u64),
    "every lane of a checksum takes the same share of a page"
);
/// The starting values of the parallel sums; part of PostgreSQL's page format.
const BASES: [u32; LANES] = [
    0x5B1F_36E9,
    0xB852_5960,
    0x02AB_50AA,
    0x1DE6_6D2A,
    0x79FF_467A,
    0x9BB9_F8A3,
    0x217E_7CD2,
    0x83E1_3D2C,
    0xF8D4_474F,
    0xE39E_B970,
    0x42C6_AE16,
    0x9932_16FA,
    0x7B09_3B5D,
    0x98DA_FF3C,
    0xF718_902A,
    0x0B1C_9CDB,
    0xE58F_764B,
    0x1876_36BC,
    0x5D7B_3BB1,
    0xE73D_E7DE,
    0x92BE_C979,
    0xCCA6_C0B2,
    0x304A_0979,
    0x85AA_43D4,
    0x7831_25BB,
    0x6CA8_EAA2,
    0xE407_EAC6,
    0x4B5C_FC3E,
    0x9FBF_8C76,
    0x15CA_20BE,
    0xF2CA_9FD3,
    0x959B_D756,
];

impl PageFormat for Postgres {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn page_bytes(&self, file: &str, _head: &[u8]) -> Option<u64> {
        segment_of(file).map(|_| PAGE_BYTES)
    }

    fn is_whole(&self, file: &str, offset: u64, page: &[u8]) -> bool {
        let Some(segment) = segment_of(file) else { return false };
        if page.len() as u64 != PAGE_BYTES || !offset.is_multiple_of(PAGE_BYTES) {
            return false;
        }
        let number = segment * PAGES_PER_SEGMENT + offset / PAGE_BYTES;
        let stored = u16::from_le_bytes([page[8], page[9]]);
        // A page that was never used is all zeros and has no checksum.
        if stored == 0 {
            page.iter().all(|byte| *byte == 0)
        } else {
            u32::try_from(number).is_ok_and(|number| checksum(page, number) == stored)
        }
    }
}

/// Returns the segment of a relation file: `16384`, `16384.2`, `16384_fsm`, `16384_vm.1`.
fn segment_of(file: &str) -> Option<u64> {
    let name = file.rsplit('/').next()?;
    let (stem, segment) = name
        .split_once('.')
        .map_or((name, Some(0)), |(stem, segment)| (stem, segment.parse().ok()));
    let relation = stem
        .strip_suffix("_fsm")
        .or(stem.strip_suffix("_vm"))
        .or(stem.strip_suffix("_init"))
        .unwrap_or(stem);
    let numeric = !relation.is_empty()
        && relation.len() <= 10
        && relation.bytes().all(|byte| byte.is_ascii_digit());
    segment.filter(|_| numeric)
}

fn mix(sum: u32, value: u32) -> u32 {
    let mixed = sum ^ value;
    mixed.wrapping_mul(PRIME) ^ (mixed >> 17)
}

/// Returns PostgreSQL's checksum of a page with its number in the relation.
fn checksum(page: &[u8], number: u32) -> u16 {
    let mut sums = BASES;
    for (at, word) in page.chunks_exact(4).enumerate() {
        let mut value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        if at == 2 {
            // The checksum itself counts as zero; the flags beside it do not.
            value &= 0xffff_0000;
        }
        sums[at % LANES] = mix(sums[at % LANES], value);
    }
    let folded = sums.into_iter().fold(0, |folded, sum| folded ^ mix(mix(sum, 0), 0));
    ((folded ^ number) % 65_535 + 1) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relation_files_are_told_by_their_names() {
        for (file, segment) in [
            ("/a/base/5/16384", Some(0)),
            ("16384.12", Some(12)),
            ("2619_fsm", Some(0)),
            ("2619_vm.1", Some(1)),
        ] {
            assert_eq!(segment_of(file), segment, "{file}");
        }
        for file in ["pg_control", "000000010000000000000001", "16384.x", "PG_VERSION", "", "_fsm"]
        {
            assert_eq!(segment_of(file), None, "{file}");
        }
    }

    #[test]
    fn a_page_with_its_checksum_is_whole_and_no_longer_with_a_bit_turned_or_elsewhere() {
        let mut page: Vec<u8> = (0..PAGE_BYTES).map(|at| (at * 7 % 251) as u8).collect();
        let sum = checksum(&page, 3);
        page[8..10].copy_from_slice(&sum.to_le_bytes());
        assert!(Postgres.is_whole("16384", 3 * PAGE_BYTES, &page));
        assert!(!Postgres.is_whole("16384", 4 * PAGE_BYTES, &page));
        assert!(!Postgres.is_whole("16384.1", 3 * PAGE_BYTES, &page));
        page[5000] ^= 1;
        assert!(!Postgres.is_whole("16384", 3 * PAGE_BYTES, &page));
        assert!(Postgres.is_whole("16384", 0, &vec![0; PAGE_BYTES as usize]));
    }
}
