//! CRC-32C, the one checksum of the format.

use crc_fast::{CrcAlgorithm, checksum};

/// Returns the CRC-32C (Castagnoli) of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, bytes)).expect("a 32-bit checksum fits 32 bits")
}
