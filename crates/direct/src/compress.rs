//! zstd and gzip on several threads.
//!
//! Each window becomes a frame (zstd) or a member (gzip) of its own. Both formats say that what
//! stands one behind the other is read as one (RFC 8878, section 3; RFC 1952, section 2.2), so
//! `zstd -d` and `gzip -d` read the result.

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

use crc_fast::CrcAlgorithm;

use crate::error::{Error, ErrorKind, Result};
use crate::file::{DirectFile, Route};
use crate::rate::Rate;
use crate::{Progress, stream};

/// A format of compressed data, with its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// zstd, level 1 to 19.
    Zstd(u8),
    /// gzip, level 1 to 9.
    Gzip(u8),
}

impl Method {
    /// The most that the level may be.
    #[must_use]
    pub fn level_max(self) -> u8 {
        match self {
            Self::Zstd(_) => 19,
            Self::Gzip(_) => 9,
        }
    }

    fn level(self) -> u8 {
        match self {
            Self::Zstd(level) | Self::Gzip(level) => level,
        }
    }

    fn encode(self, bytes: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Zstd(level) => zstd::bulk::compress(bytes, i32::from(level)).map_err(|error| {
                Error::new(ErrorKind::Io, format!("zstd cannot compress: {error}"))
            }),
            Self::Gzip(level) => Ok(gzip_member(bytes, level)),
        }
    }
}

/// Compresses a file or a block device to a stream. Returns the bytes read and written, and how
/// they were read.
///
/// # Errors
/// As [`read_to`](crate::read_to); when the level is none of the format.
pub fn compress(
    path: &Path,
    out: &mut (dyn Write + Send),
    method: Method,
    workers: usize,
    rate: Option<&Rate>,
    progress: Progress<'_>,
) -> Result<(u64, u64, Route)> {
    let level = method.level();
    if !(1..=method.level_max()).contains(&level) {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("level {level} is not from 1 to {}", method.level_max()),
        ));
    }
    let file = DirectFile::open(path)?;
    let size = file.size()?;
    if size == 0 {
        // Nothing, too, is a stream that is read again.
        let empty = method.encode(&[])?;
        out.write_all(&empty)
            .and_then(|()| out.flush())
            .map_err(|error| Error::system("write what is made of", path, &error))?;
        return Ok((0, empty.len() as u64, file.route()));
    }
    let written = stream::in_order(&file, out, workers, rate, progress, |bytes| {
        method.encode(bytes).map(Cow::Owned)
    })?;
    Ok((size, written, file.route()))
}

/// Makes a member of a gzip file (RFC 1952).
fn gzip_member(bytes: &[u8], level: u8) -> Vec<u8> {
    const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let mut member = HEAD.to_vec();
    member.extend(miniz_oxide::deflate::compress_to_vec(bytes, level));
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, bytes) as u32;
    member.extend(crc.to_le_bytes());
    member.extend((bytes.len() as u32).to_le_bytes());
    member
}
