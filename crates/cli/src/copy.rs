//! Copies file contents into and out of a volume: large aligned requests, holes left out.

use std::fmt;
use std::fs::File as SystemFile;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use bedplate::{AlignedBuf, File};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::render::progress::Bytes;
use crate::render::text;

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
    /// Reports a copy to `path` that began at `started` and moved `copied_bytes` of a file's
    /// `size_bytes`; the others are holes.
    pub fn new(path: PathBuf, size_bytes: u64, copied_bytes: u64, started: Instant) -> Self {
        Self {
            path,
            size_bytes,
            copied_bytes,
            duration_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
        }
    }
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = bedplate::format_duration(Duration::from_micros(self.duration_us));
        write!(
            f,
            "{}: {} in {took}",
            text::name(&self.path),
            bedplate::format_size(self.size_bytes)
        )?;
        match self.size_bytes.saturating_sub(self.copied_bytes) {
            0 => Ok(()),
            holes => write!(f, ", {} of it holes", bedplate::format_size(holes)),
        }
    }
}

/// Copies a regular file of the system, its holes too. Returns the bytes copied.
pub fn from_file(
    source: &SystemFile,
    path: &Path,
    target: &File,
    progress: &mut Bytes,
) -> Result<u64> {
    let explain = |error: io::Error| Failure::system("read", path, &error);
    let size = source.metadata().map_err(explain)?.len();
    let (mut at, mut copied) = (0, 0);
    while let Some((start, end)) = next_data(source, at, size).map_err(explain)? {
        let read = |buffer: &mut [u8], position| source.read_at(buffer, position).map_err(explain);
        copied += pump(start..end, read, |bytes, position| {
            target.write_at(bytes, position)?;
            progress.advance(bytes.len() as u64);
            Ok(())
        })?;
        at = end;
    }
    if target.size() < size {
        target.set_size(size)?;
    }
    Ok(copied)
}

/// Moves a range piece by piece: one thread reads while this one writes. Returns the bytes moved; a
/// source that got shorter ends it.
fn pump(
    range: Range<u64>,
    read: impl Fn(&mut [u8], u64) -> Result<usize> + Send,
    mut write: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<u64> {
    /// One is written, one is ready, one is being read.
    const BUFFERS: usize = 3;
    let length = usize::try_from(range.end - range.start)
        .map_or(REQUEST_BYTES, |length| length.min(REQUEST_BYTES));
    let (give, free) = sync_channel(BUFFERS);
    let (send, ready) = sync_channel(BUFFERS);
    for _ in 0..BUFFERS {
        give.send(AlignedBuf::zeroed(length)).expect("the channel has room for every buffer");
    }
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || -> Result<()> {
            let mut position = range.start;
            // The writer is gone when a channel is closed; it knows why.
            while position < range.end
                && let Ok(mut buffer) = free.recv()
            {
                let wanted =
                    usize::try_from(range.end - position).map_or(length, |left| left.min(length));
                let len = read(&mut buffer[..wanted], position)?;
                if len == 0 || send.send((buffer, position, len)).is_err() {
                    break;
                }
                position += len as u64;
            }
            Ok(())
        });
        // Owned here, so that a writer that fails closes the channel and the reader does not wait
        // for ever.
        let give = give;
        let mut moved = 0;
        for (buffer, position, len) in ready {
            write(&buffer[..len], position)?;
            moved += len as u64;
            // A reader that is done takes no buffers back.
            let _taken = give.send(buffer);
        }
        reader.join().map_err(|_| Failure::new("io", "the thread that reads died"))??;
        Ok(moved)
    })
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
        let len = fill(source, &mut buffer)
            .map_err(|error| Failure::system("read", Path::new(name), &error))?;
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
pub fn to_file(
    source: &File,
    target: &SystemFile,
    path: &Path,
    progress: &mut Bytes,
) -> Result<u64> {
    let explain = |error: io::Error| Failure::system("write", path, &error);
    let size = source.size();
    let (mut at, mut copied) = (0, 0);
    while let Some(start) = source.seek_data(at)?.filter(|&start| start < size) {
        let end = source.seek_hole(start)?.unwrap_or(size).min(size);
        let read = |buffer: &mut [u8], position| Ok(source.read_at(buffer, position)?);
        copied += pump(start..end, read, |bytes, position| {
            target.write_all_at(bytes, position).map_err(explain)?;
            progress.advance(bytes.len() as u64);
            Ok(())
        })?;
        at = end;
    }
    target.set_len(size).map_err(explain)?;
    Ok(copied)
}

/// Copies to a pipe or another stream. Returns the bytes copied; a reader that has seen enough ends
/// the copy.
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
            written => written.map_err(|error| {
                Failure::new("io", format!("cannot write to standard output: {error}"))
            })?,
        }
        copied += len as u64;
    }
    target
        .flush()
        .or_else(
            |error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) },
        )
        .map_err(|error| Failure::new("io", format!("cannot write to standard output: {error}")))?;
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pump_moves_everything_in_order_and_ends_with_the_source() {
        let source = |buffer: &mut [u8], position: u64| {
            let len = buffer
                .len()
                .min(usize::try_from(20_000_000_u64.saturating_sub(position)).unwrap())
                .min(3_000_000);
            buffer[..len].fill(u8::try_from(position % 251).unwrap());
            Ok(len)
        };
        let mut expected = 1000;
        let moved = pump(1000..30_000_000, source, |bytes, position| {
            assert_eq!((position, bytes[0]), (expected, u8::try_from(position % 251).unwrap()));
            expected += bytes.len() as u64;
            Ok(())
        });
        assert_eq!((moved.unwrap(), expected), (20_000_000 - 1000, 20_000_000));
    }

    #[test]
    fn a_failure_on_either_side_ends_a_pump() {
        let fails = || Failure::new("io", "no more");
        let read = pump(
            0..1 << 30,
            |buffer, position| if position > 9 << 20 { Err(fails()) } else { Ok(buffer.len()) },
            |_, _| Ok(()),
        );
        assert_eq!(read.unwrap_err().message, "no more");
        let written = pump(
            0..1 << 30,
            |buffer, _| Ok(buffer.len()),
            |_, position| if position > 9 << 20 { Err(fails()) } else { Ok(()) },
        );
        assert_eq!(written.unwrap_err().message, "no more");
    }
}
