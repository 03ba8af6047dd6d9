//! The size of the library cache as a share of the memory that there is.

use std::sync::LazyLock;

use super::Tunable;
use bedplate_block::memory_limit_bytes;

const MIB: u64 = 1 << 20;

/// Where nothing is asked for, the cache has this part of the memory, within bounds: what is written
/// in a burst has room, and several mounts have.
const PART_BY_DEFAULT: u64 = 32;
const MIN_BY_DEFAULT: u64 = 128 * MIB;
const MAX_BY_DEFAULT: u64 = 1024 * MIB;

/// Returns the cap of the library cache in bytes where nothing is asked for: the same as long as the
/// process lives.
pub(super) fn default_bytes() -> u64 {
    static BYTES: LazyLock<u64> = LazyLock::new(|| default_of(memory_limit_bytes()));
    *BYTES
}

fn default_of(memory: u64) -> u64 {
    (memory / PART_BY_DEFAULT / MIB * MIB).clamp(MIN_BY_DEFAULT, MAX_BY_DEFAULT)
}

/// Reads the size in bytes that a tunable gets by a share of the memory in per cent, of which `text`
/// is the number.
pub(super) fn parse(tunable: Tunable, text: &str) -> Result<u64, String> {
    if tunable != Tunable::Cache {
        return Err(format!(
            "'{text}%' is no size: of all sizes only that of 'cache' is given in per cent of the \
             memory"
        ));
    }
    let percent = text.parse().ok().filter(|percent| (1..=100).contains(percent));
    let percent = percent.ok_or_else(|| {
        format!(
            "'{text}%' is no share of the memory: write whole per cent from 1% to 100%, or a size"
        )
    })?;
    match memory_limit_bytes() {
        0 => Err(format!("{text}% of what is not known: the system tells no size of its memory")),
        memory => Ok(share(memory, percent)),
    }
}

/// Returns so many per cent, up to the next whole MiB.
fn share(memory: u64, percent: u64) -> u64 {
    let bytes = u128::from(memory) * u128::from(percent) / 100;
    u64::try_from(bytes).unwrap_or(u64::MAX).div_ceil(MIB).saturating_mul(MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S-522
    #[test]
    fn s_522_a_share_is_rounded_up_to_a_whole_mib() {
        let cases = [
            (64 << 30, 10, 6_872_367_104),
            (1000 * MIB, 10, 100 * MIB),
            (1000 * MIB + 4096, 10, 101 * MIB),
            (24_684_092 << 10, 100, 24_106 * MIB),
            (MIB, 1, MIB),
            (u64::MAX, 1, 175_921_860_445 * MIB),
        ];
        for (memory, percent, expected) in cases {
            let found = share(memory, percent);
            assert_eq!(found, expected, "{percent}% of {memory}");
            assert!(
                found.is_multiple_of(MIB)
                    && u128::from(found) * 100
                        >= u128::from(memory) * u128::from(percent) / 100 * 100
            );
        }
    }

    /// S-547: of a memory that is not known, or small, the least; of any, at most a gigabyte.
    #[test]
    fn s_547_the_default_is_a_part_of_the_memory_within_bounds() {
        let cases = [(0, 128), (512, 128), (4 << 10, 128), (24_106, 753), (1 << 20, 1024)];
        for (memory, expected) in cases {
            assert_eq!(default_of(memory * MIB), expected * MIB, "S-547: of {memory} MiB");
        }
        let (bytes, twice) = (default_bytes(), default_bytes());
        assert!((MIN_BY_DEFAULT..=MAX_BY_DEFAULT).contains(&bytes) && bytes == twice, "S-547");
    }

    /// S-522: only the cache, and only what is a share.
    #[test]
    fn s_522_what_is_no_share_is_refused_in_one_sentence() {
        let memory = memory_limit_bytes();
        assert!(memory > 0, "this system tells how much memory it has");
        assert_eq!(Tunable::Cache.parse("10%").unwrap(), share(memory, 10));
        assert_eq!(Tunable::Cache.parse("100%").unwrap(), share(memory, 100));
        for wrong in ["0%", "101%", "-1%", "2.5%", "%", "10%%", "ten%"] {
            let error = Tunable::Cache.parse(wrong).unwrap_err();
            assert_eq!(
                error.message,
                format!(
                    "cache: '{wrong}' is no share of the memory: write whole per cent from 1% to \
                     100%, or a size"
                )
            );
        }
        for other in [Tunable::ReadAheadMax, Tunable::MetadataCache, Tunable::DelayWrites] {
            let error = other.parse("10%").unwrap_err();
            assert_eq!(
                error.message,
                format!(
                    "{}: '10%' is no size: of all sizes only that of 'cache' is given in per cent \
                     of the memory",
                    other.info().name
                )
            );
        }
    }
}
