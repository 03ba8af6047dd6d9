//! Areas behind the measured part of the file, one for each way: what one way writes there, every
//! other one must read. So the figures are of ways to the same bytes, and no way keeps them back.

use serde::{Deserialize, Serialize};

use super::Way;
use crate::target::{TargetFile, fill_pattern};
use crate::{Error, ErrorKind, Result};
use bedplate::AlignedBuf;

/// Where the areas lie, and what is in them.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Areas {
    /// Where the first begins, in bytes; a multiple of `bytes`.
    pub start: u64,
    /// The size of each in bytes: a multiple of 512.
    pub bytes: u64,
    /// Tells the contents of one run from those of another.
    pub seed: u64,
}

impl Areas {
    /// Returns where the file ends that holds all of them.
    pub fn end(&self) -> u64 {
        self.start + Way::ALL.len() as u64 * self.bytes
    }

    /// Returns where the area of a way begins.
    pub fn offset(&self, way: usize) -> u64 {
        debug_assert!(way < Way::ALL.len(), "an area belongs to a way: {way}");
        self.start + way as u64 * self.bytes
    }

    /// Returns what the way with this number writes.
    pub fn content(&self, way: usize) -> AlignedBuf {
        let mut bytes = AlignedBuf::zeroed(self.bytes as usize);
        fill_pattern(&mut bytes, self.seed.wrapping_add(way as u64));
        bytes
    }

    /// Writes the area of a way, and makes it durable.
    pub fn write(&self, way: usize, file: &dyn TargetFile) -> Result<()> {
        file.write_at(&self.content(way), self.offset(way))?;
        file.sync_data()
    }

    /// Reads the areas of these ways, compares, and returns how many are as they were written.
    pub fn check(&self, ways: &[usize], file: &dyn TargetFile) -> Result<usize> {
        let mut found = AlignedBuf::zeroed(self.bytes as usize);
        for &way in ways {
            file.read_at(&mut found, self.offset(way))?;
            self.compare(way, &found)?;
        }
        Ok(ways.len())
    }

    /// Compares what was read of the area of a way with what it wrote.
    pub fn compare(&self, way: usize, found: &[u8]) -> Result<()> {
        let expected = self.content(way);
        let Some(at) = found.iter().zip(&*expected).position(|(a, b)| a != b) else {
            return Ok(());
        };
        let writer = Way::ALL.get(way).map_or("another way", |way| way.label());
        Err(Error::new(
            ErrorKind::Io,
            format!(
                "byte {} of the file is not what was written there and synced through: {writer}",
                self.offset(way) + at as u64
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_583_one_wrong_byte_is_told_with_its_place_and_its_writer() {
        let areas = Areas { start: 16_384, bytes: 8192, seed: 7 };
        assert_eq!(areas.end(), 16_384 + 8192 * Way::ALL.len() as u64);
        let mut bytes = areas.content(2);
        areas.compare(2, &bytes).unwrap();
        assert!(areas.compare(3, &bytes).is_err(), "each way has a content of its own");
        bytes[100] ^= 1;
        let told = areas.compare(2, &bytes).unwrap_err().to_string();
        assert!(told.contains(&format!("byte {}", 16_384 + 2 * 8192 + 100)), "{told}");
        assert!(told.contains("library"), "{told}");
    }
}
