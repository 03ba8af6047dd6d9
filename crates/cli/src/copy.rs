//! Copies file contents into and out of a volume: large aligned requests, holes left out.

use std::fmt;
use std::fs::File as SystemFile;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bedplate::{AlignedBuf, File};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::progress::Bytes;

/// Bytes of one request: large enough that the request's fixed cost vanishes.
const REQUEST_BYTES: usize = 4 << 20;

/// What a copy did.
#[derive(Debug, Serialize)]
pub struct Copied {
    path: PathBuf,
    size_bytes: u64,
    copied_bytes: u64,
    duration_us: u64,
}

impl Copied {
    /// Reports a copy to `path` that began at `started` and moved `copied_bytes` of a file's `size_bytes`; the others are holes.
    pub fn new(path: PathBuf, size_bytes: u64, copied_bytes: u64, started: Instant) -> Self {
        Self { path, size_bytes, copied_bytes, duration_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX) }
    }
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = bedplate::format_duration(Duration::from_micros(self.duration_us));
        write!(f, "{}: {} in {took}", self.path.display(), bedplate::format_size(self.size_bytes))?;
        match self.size_bytes.saturating_sub(self.copied_bytes) {
            0 => Ok(()),
            holes => write!(f, ", {} of it holes", bedplate::format_size(holes)),
        }
    }
}

/// Copies a regular file of the system, its holes too. Returns the bytes copied.
pub fn from_file(source: &SystemFile, path: &Path, target: &File, progress: &mut Bytes) -> Result<u64> {
    let explain = |error: io::Error| Failure::system("read", path, &error);
    let size = source.metadata().map_err(explain)?.len();
    let mut buffer = AlignedBuf::zeroed(REQUEST_BYTES);
    let (mut at, mut copied) = (0, 0);
    while let Some((start, end)) = next_data(source, at, size).map_err(explain)? {
        let mut position = start;
        while position < end {
            let wanted = usize::try_from(end - position).map_or(REQUEST_BYTES, |left| left.min(REQUEST_BYTES));
            let len = source.read_at(&mut buffer[..wanted], position).map_err(explain)?;
            if len == 0 {
                break;
            }
            target.write_at(&buffer[..len], position)?;
            position += len as u64;
            copied += len as u64;
            progress.advance(len as u64);
        }
        at = end;
    }
    if target.size() < size {
        target.set_size(size)?;
    }
    Ok(copied)
}

/// Returns the next run of data at or after `at`; a file system that knows no holes has one run.
fn next_data(file: &SystemFile, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL) => return Ok(Some((at, size))),
        Err(error) => return Err(error.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    Ok(Some((start, end.min(size))))
}

/// Copies what a pipe or another stream gives until it ends.
pub fn from_stream(source: &mut impl Read, name: &str, target: &File) -> Result<u64> {
    let mut buffer = AlignedBuf::zeroed(REQUEST_BYTES);
    let mut copied = 0;
    loop {
        let len = fill(source, &mut buffer).map_err(|error| Failure::system("read", Path::new(name), &error))?;
        if len == 0 {
            return Ok(copied);
        }
        target.write_at(&buffer[..len], copied)?;
        copied += len as u64;
    }
}

/// Reads until the buffer is full or the stream ends, so that requests stay large and aligned.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(len) => filled += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Copies to a regular file of the system, holes too. Returns the bytes copied.
pub fn to_file(source: &File, target: &SystemFile, path: &Path, progress: &mut Bytes) -> Result<u64> {
    let explain = |error: io::Error| Failure::system("write", path, &error);
    let size = source.size();
    let mut buffer = AlignedBuf::zeroed(REQUEST_BYTES);
    let (mut at, mut copied) = (0, 0);
    while let Some(start) = source.seek_data(at)?.filter(|&start| start < size) {
        let end = source.seek_hole(start)?.unwrap_or(size).min(size);
        let mut position = start;
        while position < end {
            let wanted = usize::try_from(end - position).map_or(REQUEST_BYTES, |left| left.min(REQUEST_BYTES));
            let len = source.read_at(&mut buffer[..wanted], position)?;
            if len == 0 {
                break;
            }
            target.write_all_at(&buffer[..len], position).map_err(explain)?;
            position += len as u64;
            copied += len as u64;
            progress.advance(len as u64);
        }
        at = end;
    }
    target.set_len(size).map_err(explain)?;
    Ok(copied)
}

/// Copies to a pipe or another stream. Returns the bytes copied; a reader that has seen enough ends the copy.
pub fn to_stream(source: &File, target: &mut impl Write) -> Result<u64> {
    let mut buffer = AlignedBuf::zeroed(REQUEST_BYTES);
    let mut copied = 0;
    loop {
        let len = source.read_at(&mut buffer, copied)?;
        if len == 0 {
            break;
        }
        match target.write_all(&buffer[..len]) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written.map_err(|error| Failure::new("io", format!("cannot write to standard output: {error}")))?,
        }
        copied += len as u64;
    }
    target
        .flush()
        .or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
        .map_err(|error| Failure::new("io", format!("cannot write to standard output: {error}")))?;
    Ok(copied)
}
