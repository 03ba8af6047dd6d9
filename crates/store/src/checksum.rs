//! CRC-32C, the one checksum of the format.

use std::sync::OnceLock;

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// Returns the CRC-32C (Castagnoli) of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32_iscsi(bytes)
}

/// Accumulates the CRC-32C of bytes that come in pieces.
#[derive(Debug, Default)]
pub struct Crc32c {
    /// That of what was added so far, as long as there is no digest; `None`: nothing was.
    known: Option<u32>,
    /// From the second piece on.
    digest: Option<Digest>,
}

impl Crc32c {
    /// Begins with nothing.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        let Some(known) = self.known else {
            self.known = Some(crc32c(bytes));
            return;
        };
        let digest = self.digest.get_or_insert_with(|| {
            Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!known))
        });
        digest.update(bytes);
    }

    /// Adds bytes of which the checksum is known, and how many they are: a power of two.
    ///
    /// # Panics
    /// Where it is none.
    #[inline]
    pub fn join(&mut self, sum: u32, len: u64) {
        self.known = Some(self.value().map_or(sum, |before| shifted(before, len) ^ sum));
        self.digest = None;
    }

    fn value(&self) -> Option<u32> {
        let known = |digest: &Digest| {
            u32::try_from(digest.finalize()).expect("a 32-bit checksum fits 32 bits")
        };
        self.digest.as_ref().map(known).or(self.known)
    }

    /// Returns the checksum of all that was added; that of nothing is 0.
    #[inline]
    pub fn finish(self) -> u32 {
        self.value().unwrap_or(0)
    }
}

/// The polynomial, its highest power in the lowest bit, as in all that follows.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Returns the product of two polynomials, modulo the polynomial.
fn product(one: u32, mut other: u32) -> u32 {
    let mut sum = 0;
    for bit in (0..32).rev() {
        if one >> bit & 1 == 1 {
            sum ^= other;
        }
        other = other >> 1 ^ if other & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    sum
}

/// What a checksum becomes by bytes behind it, by each of its four bytes.
type Shift = [[u32; 256]; 4];

fn shift(len: u64) -> Box<Shift> {
    // x, squared as often as the number of bits is twice the one before.
    let power = (0..(len * 8).ilog2()).fold(1 << 30, |power, _| product(power, power));
    let mut shift = Box::new([[0; 256]; 4]);
    for (place, of_byte) in shift.iter_mut().enumerate() {
        for (byte, sum) in of_byte.iter_mut().enumerate() {
            *sum = product(power, (byte as u32) << (8 * place));
        }
    }
    shift
}

/// Returns what the checksum of bytes adds to that of these and `len` others behind them.
fn shifted(sum: u32, len: u64) -> u32 {
    static SHIFTS: [OnceLock<Box<Shift>>; 61] = [const { OnceLock::new() }; 61];
    assert!(len.is_power_of_two(), "a block has a power of two of bytes: {len}");
    let shift = SHIFTS[len.ilog2() as usize].get_or_init(|| shift(len));
    let bytes = sum.to_le_bytes();
    shift.iter().zip(bytes).fold(0, |sum, (of_byte, byte)| sum ^ of_byte[usize::from(byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_the_whole_have_the_same_checksum() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut pieces = Crc32c::new();
        pieces.update(b"1234");
        pieces.update(b"");
        pieces.update(b"56789");
        assert_eq!(pieces.finish(), 0xe306_9283);
        assert_eq!(Crc32c::new().finish(), crc32c(b""));
    }

    #[test]
    fn checksums_of_blocks_join_to_that_of_all() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
        for len in [1, 2, 8, 512, 4096, 65_536] {
            for (before, blocks, behind) in [(0, 1, 0), (0, 3, 5), (7, 1, 3), (1000, 2, 0)] {
                let (mut sum, end) = (Crc32c::new(), before + blocks * len);
                sum.update(&bytes[..before]);
                for block in bytes[before..end].chunks(len) {
                    sum.join(crc32c(block), len as u64);
                }
                sum.update(&bytes[end..end + behind]);
                sum.update(&[]);
                assert_eq!(sum.finish(), crc32c(&bytes[..end + behind]), "{len}, {before}");
            }
        }
    }
}
