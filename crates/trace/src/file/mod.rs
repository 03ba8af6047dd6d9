//! A trace as one file.
//!
//! ```text
//!  magic "BEDTRACE" │ version │ blocks …
//!  block: kind (4 bytes) │ length (4) │ CRC-32C of kind, length and content (4) │ content
//! ```
//!
//! Kinds in their order: `about` (JSON), `processes`, `files`, `events` (any number), `end`. A file
//! without `end`, or with a block that is not whole, was cut short; what lies before the cut is
//! read. Numbers are little-endian; those of processes, files and events have 7 bits a byte, the
//! last byte without the eighth.

mod decode;
mod encode;

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::error::{Error, Result};
use crate::trace::Trace;
#[cfg(feature = "forge")]
pub use encode::forged;

const MAGIC: &[u8; 8] = b"BEDTRACE";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 12;
const BLOCK_HEAD_BYTES: usize = 12;
/// The longest block that is written or read.
const BLOCK_BYTES_MAX: usize = 1 << 26;
/// Events of a block.
const BLOCK_EVENTS: usize = 16 << 10;

/// Kinds of blocks.
const ABOUT: u32 = 1;
const PROCESSES: u32 = 2;
const FILES: u32 = 3;
const EVENTS: u32 = 4;
const END: u32 = 5;

/// A trace that was read.
#[derive(Debug)]
pub struct Loaded {
    /// The trace, as far as it goes.
    pub trace: Trace,
    /// Where and why it ends too soon; nothing of a whole one.
    pub cut: Option<Cut>,
}

/// The end of a trace that is not whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Bytes that could be read.
    pub at_bytes: u64,
    /// What is wrong behind them.
    pub why: &'static str,
}

impl Trace {
    /// Writes a trace to a file, which is replaced.
    ///
    /// # Errors
    /// What the system says.
    pub fn save(&self, path: &Path) -> Result<()> {
        let failed = |error| Error::io("write", path, error);
        let mut file = fs::File::create(path).map_err(failed)?;
        file.write_all(&self.encode()).map_err(failed)?;
        file.sync_all().map_err(failed)
    }

    /// Reads a trace.
    ///
    /// # Errors
    /// What the system says, and that a file is none or of another version.
    pub fn load(path: &Path) -> Result<Loaded> {
        let bytes = fs::read(path).map_err(|error| Error::io("read", path, error))?;
        Self::decode(&bytes).map_err(|why| Error::foreign(path, why))
    }
}

fn checksum(kind: u32, content: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&kind.to_le_bytes());
    digest.update(&(content.len() as u32).to_le_bytes());
    digest.update(content);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests;
