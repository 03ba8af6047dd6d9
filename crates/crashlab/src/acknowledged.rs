//! What the user's program acknowledged, and when: its lines in a file, and for each how far the
//! device was when it was out.
//!
//! A line counts for a cut when the device had seen no more operations than the cut leaves at the
//! moment the line had been *read*. It was printed before that, so nothing is ever asked for that
//! the program did not acknowledge before the power went. A program that keeps lines in a buffer is
//! believed later than it could be.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bedplate_block::RecordingDevice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, mknodat};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result, plain};

/// One line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// How many operations the device had seen when the line had been read.
    pub after: usize,
    /// Where the line ends in the file of all lines, in bytes.
    pub end: u64,
}

/// All lines, in the order in which they were read.
#[derive(Debug)]
pub struct Lines {
    file: BufWriter<File>,
    acknowledgements: Vec<Acknowledgement>,
}

impl Lines {
    fn push(&mut self, line: &[u8], device: &RecordingDevice) -> io::Result<()> {
        self.file.write_all(line)?;
        debug_assert!(line.ends_with(b"\n"), "what is kept of the program's words is lines");
        let before = self.acknowledgements.last().map_or(0, |line| line.end);
        self.acknowledgements.push(Acknowledgement {
            after: device.operation_count(),
            end: before + line.len() as u64,
        });
        Ok(())
    }
}

/// How often an empty pipe is looked at again, so that the end of the program is noticed.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Collects lines while a program runs.
#[derive(Debug)]
pub struct Collector {
    lines: Arc<Mutex<Lines>>,
    device: Arc<RecordingDevice>,
    ended: Arc<AtomicBool>,
    readers: Vec<JoinHandle<io::Result<()>>>,
}

impl Collector {
    /// Makes a collector that keeps the lines in `file`.
    pub fn new(file: File, device: Arc<RecordingDevice>) -> Self {
        let lines = Lines { file: BufWriter::new(file), acknowledgements: Vec::new() };
        Self {
            lines: Arc::new(Mutex::new(lines)),
            device,
            ended: Arc::new(AtomicBool::new(false)),
            readers: Vec::new(),
        }
    }

    /// Makes a named pipe that programs write lines to.
    pub fn listen_at(&mut self, path: &Path) -> Result<()> {
        // Programs of every user write to it.
        let mode = Mode::from_raw_mode(0o622);
        let made = mknodat(CWD, path, FileType::Fifo, mode, 0)
            .and_then(|()| rustix::fs::chmod(path, mode));
        // Open for writing too: it neither waits for a first writer nor ends with the last.
        let opened = made.and_then(|()| {
            rustix::fs::open(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        });
        self.listen_to(opened.map_err(|error| Error::system("make the pipe", path, &error.into()))?)
    }

    /// Reads lines from a pipe until it ends, or the program has.
    pub fn listen_to(&mut self, pipe: OwnedFd) -> Result<()> {
        let failed = |error: io::Error| Error::io("listen to the program", &error);
        let flags = fcntl_getfl(&pipe).map_err(|error| failed(error.into()))?;
        fcntl_setfl(&pipe, flags | OFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        let (lines, device, ended) =
            (Arc::clone(&self.lines), Arc::clone(&self.device), Arc::clone(&self.ended));
        let thread = std::thread::Builder::new().name("acknowledgements".into());
        self.readers.push(
            thread
                .spawn(move || read(File::from(pipe), &lines, &device, &ended))
                .map_err(failed)?,
        );
        Ok(())
    }

    /// Takes what is still in the pipes of a program that has ended; returns the lines.
    pub fn finish(mut self) -> Result<Vec<Acknowledgement>> {
        let failed = |error: io::Error| Error::io("keep what the program acknowledged", &error);
        self.ended.store(true, Ordering::Release);
        for reader in self.readers.drain(..) {
            reader
                .join()
                .map_err(|_| {
                    Error::new(ErrorKind::Io, "the thread that reads acknowledgements died")
                })?
                .map_err(failed)?;
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.file.flush().map_err(failed)?;
        Ok(std::mem::take(&mut lines.acknowledgements))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
    }
}

fn read(
    mut pipe: File,
    lines: &Mutex<Lines>,
    device: &RecordingDevice,
    ended: &AtomicBool,
) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let mut pending = Vec::new();
    loop {
        let last = ended.load(Ordering::Acquire);
        match pipe.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => pending.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && last => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Whatever it says, the next read tells.
                let _readable =
                    poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&POLL_INTERVAL));
                continue;
            }
            Err(error) => return Err(error),
        }
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            lines.push(&line, device)?;
        }
    }
}

/// Returns how many lines were out before a cut after the first `after` operations.
pub fn before(lines: &[Acknowledgement], after: usize) -> usize {
    debug_assert!(
        lines.is_sorted_by_key(|line| line.after),
        "lines are kept in the order in which they came"
    );
    lines.partition_point(|line| line.after <= after)
}

/// Writes the first lines of all into a file of their own.
pub fn copy_first(all: &File, lines: &[Acknowledgement], count: usize, path: &Path) -> Result<()> {
    assert!(count <= lines.len(), "so many lines there are: {count} of {}", lines.len());
    let failed = |error: io::Error| Error::system("write", path, &error);
    let mut target = File::create(path).map_err(failed)?;
    let (mut at, end) = (0, count.checked_sub(1).map_or(0, |last| lines[last].end));
    let mut buffer = vec![0; 1 << 16];
    while at < end {
        let part = (end - at).min(buffer.len() as u64) as usize;
        all.read_exact_at(&mut buffer[..part], at).map_err(failed)?;
        target.write_all(&buffer[..part]).map_err(failed)?;
        at += part as u64;
    }
    Ok(())
}

/// Returns a line as text without its end.
pub fn line(all: &File, lines: &[Acknowledgement], number: usize) -> String {
    let start = number.checked_sub(1).map_or(0, |before| lines[before].end);
    let mut bytes = vec![0; (lines[number].end - start).min(200) as usize];
    match all.read_exact_at(&mut bytes, start) {
        Ok(()) => String::from_utf8_lossy(&bytes).trim_end().to_owned(),
        Err(error) => plain(&error),
    }
}
