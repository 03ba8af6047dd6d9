//! The recording device: what is written is kept in a file, in the order in which it arrived, so
//! that programs of any length can be cut short afterwards.
//!
//! ```text
//!   base (never written) ◄─ reads of what was not written
//!   spool: | data | data | data | …                     every write behind the one before it
//!   content: device bytes ─► place in the spool         what the device shows
//!   trace:   write, write, flush, write …               what a power cut may take back
//!
//!   make_all_durable() ─ program runs ─ recording() ─► Recording ─► crash_device(after, steps): the same base and spool, another map, a spool of its own
//! ```
//!
//! In memory there are places only: some 100 bytes an operation, whatever its length. Making the
//! device that a power cut leaves copies no data. It is the same kind of device, so that a recovery
//! on it can be cut short in its turn. The choice of what a cut leaves is the simulated device's.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::content::Content;
pub use super::content::Source;
use super::image::{self, CrashChoice, CrashStep};
use super::log::FlushOutcome;
use super::trace::{Trace, Traced};
use crate::check::{Limits, assert_geometry, error};
use crate::counters::LiveCounters;
use crate::descriptor::from_io;
use crate::inline::{InlineQueue, Positioned};
use crate::interval_map::RunValue;
use crate::{
    BlockDevice, DeviceCounters, DeviceQueue, EngineReport, ErrorKind, Geometry, Operation,
    QueueOptions, Request, Result,
};

/// One operation on a recording device. Operations are numbered from 0 by their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spooled {
    /// Bytes arrived, or a range was zeroed or discarded.
    Write {
        /// Device offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Where the bytes lie.
        source: Source,
    },
    /// A flush that was carried out.
    Flush {
        /// The operations before this one are what it answers for: those that were complete when it
        /// was asked for.
        covers: usize,
    },
}

impl Traced for Spooled {
    fn range(&self) -> Option<Range<u64>> {
        match self {
            Self::Write { offset, len, .. } => Some(*offset..offset + len),
            Self::Flush { .. } => None,
        }
    }

    fn is_volatile(&self) -> bool {
        matches!(self, Self::Write { .. })
    }

    fn flush(&self) -> Option<(usize, FlushOutcome)> {
        match self {
            Self::Flush { covers } => Some((*covers, FlushOutcome::Honoured)),
            Self::Write { .. } => None,
        }
    }
}

impl Spooled {
    fn apply_part(&self, content: &mut Content, part: &Range<u64>) {
        if let Self::Write { offset, source, .. } = self {
            content.put(offset + part.start..offset + part.end, source.skip(part.start));
        }
    }
}

const NAME: &str = "recording";

/// A device over another one, which it never writes to, and a file that takes what is written.
/// Flushes only count: nothing of it survives the machine.
///
/// A write that fails (the file system of the spool is full) is not in the recording.
#[derive(Debug)]
pub struct RecordingDevice {
    shared: Arc<Recorder>,
}

#[derive(Debug)]
struct Recorder {
    backing: Backing,
    state: Mutex<State>,
    counters: LiveCounters,
}

/// What a recording and everything made from it stand on.
#[derive(Debug, Clone)]
struct Backing {
    geometry: Geometry,
    base: Arc<dyn BlockDevice>,
    /// What [`Source::File`] counts. New bytes go to the last.
    files: Vec<Arc<File>>,
}

#[derive(Debug)]
struct State {
    /// What the device held when the recording began.
    start: Content,
    content: Content,
    trace: Trace<Spooled>,
    /// Where the next bytes go in the last file.
    next: u64,
}

impl RecordingDevice {
    /// Makes a device with the content of `base` that keeps what is written in `spool`, an empty
    /// file open for reading and writing.
    ///
    /// # Panics
    /// When the geometry breaks its own rules, or the base cannot be read in its logical blocks.
    #[must_use]
    pub fn over(base: Arc<dyn BlockDevice>, geometry: Geometry, spool: File) -> Arc<Self> {
        Self::new(Backing { geometry, base, files: vec![Arc::new(spool)] }, Content::default(), 0)
    }

    fn new(backing: Backing, content: Content, next: u64) -> Arc<Self> {
        assert_geometry(&backing.geometry);
        let (ours, below) = (backing.geometry.logical_block_size, backing.base.geometry());
        assert!(
            below.logical_block_size <= ours && below.buffer_align <= ours,
            "the base can be read in blocks of {ours} bytes"
        );
        let state = State { start: content.clone(), content, trace: Trace::new(), next };
        Arc::new(Self {
            shared: Arc::new(Recorder {
                backing,
                state: Mutex::new(state),
                counters: LiveCounters::default(),
            }),
        })
    }

    /// Makes what the device holds durable and begins the recording here. Not for use while
    /// requests are in flight.
    pub fn make_all_durable(&self) {
        let mut state = self.shared.state.lock();
        state.start = state.content.clone();
        state.trace = Trace::new();
    }

    /// Returns how many operations were recorded.
    #[must_use]
    pub fn operation_count(&self) -> usize {
        self.shared.state.lock().trace.len()
    }

    /// Returns what was recorded so far; later operations do not touch it.
    #[must_use]
    pub fn recording(&self) -> Recording {
        let state = self.shared.state.lock();
        Recording::new(self.shared.backing.clone(), state.start.clone(), state.trace.clone())
    }

    /// Hands what the device holds now to `write`, in order, without the zeros at the ends of what
    /// is not mapped: offset in bytes, bytes.
    ///
    /// # Errors
    /// Those of reading, and those of `write`.
    pub fn copy_to(&self, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        const PART: u64 = 1 << 20;
        let size = self.size_bytes();
        let mut buf = crate::AlignedBuf::zeroed(PART as usize);
        for at in (0..size).step_by(PART as usize) {
            let part = &mut buf[..PART.min(size - at) as usize];
            self.read_at(part, at)?;
            for (index, page) in
                part.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0))
            {
                write(at + 4096 * index as u64, page)?;
            }
        }
        Ok(())
    }
}

/// What a recording device recorded: enough to make the device that any power cut leaves. May be
/// used from any number of threads.
#[derive(Debug)]
pub struct Recording {
    backing: Backing,
    start: Content,
    trace: Trace<Spooled>,
    /// The content before some operation, so that images made in the order of their cuts need not
    /// begin at the start.
    cursor: Mutex<(usize, Content)>,
}

impl Recording {
    fn new(backing: Backing, start: Content, trace: Trace<Spooled>) -> Self {
        let cursor = Mutex::new((0, start.clone()));
        Self { backing, start, trace, cursor }
    }

    /// Makes a recording of parts that were stored: `start` is what the device held when it began,
    /// as [`start`](Self::start) told it.
    ///
    /// # Errors
    /// `OutOfRange` or `Unaligned` when a part leads out of the device or out of the spool, or a
    /// flush covers what came after it.
    ///
    /// # Panics
    /// As [`RecordingDevice::over`].
    pub fn restore(
        base: Arc<dyn BlockDevice>,
        geometry: Geometry,
        spool: File,
        start: &[(Range<u64>, Source)],
        operations: &[Spooled],
    ) -> Result<Self> {
        let stored = spool.metadata().map_err(|e| from_io(NAME, Operation::Open, None, &e))?.len();
        let device = RecordingDevice::over(base, geometry, spool);
        let backing = device.shared.backing.clone();
        let mut content = Content::default();
        for (range, source) in start {
            check_stored(
                &backing,
                stored,
                range.start,
                range.end.saturating_sub(range.start),
                *source,
            )?;
            content.put(range.clone(), *source);
        }
        let mut trace = Trace::new();
        for (number, operation) in operations.iter().enumerate() {
            match operation {
                Spooled::Write { offset, len, source } => {
                    check_stored(&backing, stored, *offset, *len, *source)?;
                }
                Spooled::Flush { covers } if *covers <= number => {}
                Spooled::Flush { .. } => {
                    return Err(damaged(
                        None,
                        format!("operation {number} is a flush that covers later operations"),
                    ));
                }
            }
            trace.push(*operation);
        }
        Ok(Self::new(backing, content, trace))
    }

    /// Returns what the device held when the recording began, where that is not the base's.
    pub fn start(&self) -> impl Iterator<Item = (Range<u64>, Source)> {
        self.start.iter().map(|(run, source)| (run, *source))
    }

    /// Returns the operations.
    #[must_use]
    pub fn operations(&self) -> &[Spooled] {
        self.trace.operations()
    }

    /// Returns what the device stated about itself.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.backing.geometry
    }

    /// Returns the numbers of the writes that a power cut after the first `after` operations may
    /// take back, ascending.
    ///
    /// # Panics
    /// When the recording is shorter.
    #[must_use]
    pub fn unflushed(&self, after: usize) -> Vec<usize> {
        image::unflushed(&self.trace, &self.backing.geometry, after)
    }

    /// Returns what a choice means for a power cut after the first `after` operations.
    ///
    /// # Panics
    /// When the recording is shorter, or the choice names an operation that is not unflushed.
    #[must_use]
    pub fn crash_steps(&self, after: usize, choice: &CrashChoice) -> Vec<CrashStep> {
        image::plan(&self.trace, &self.backing.geometry, after, choice)
    }

    /// Returns the device that a power cut after the first `after` operations leaves when of the
    /// unflushed ones `steps` arrived. What is written to it goes to `scratch`, an empty file open
    /// for reading and writing. Copies no data; quickest when cuts come in ascending order.
    ///
    /// # Panics
    /// When the recording is shorter, or a step lies outside its operation.
    #[must_use]
    pub fn crash_device(
        &self,
        after: usize,
        steps: &[CrashStep],
        scratch: File,
    ) -> Arc<RecordingDevice> {
        let geometry = &self.backing.geometry;
        let first = image::first_uncertain(&self.trace, geometry, after);
        let mut content = self.content_before(first);
        image::replay(&self.trace, geometry, first..after, steps, |operation, part| {
            assert!(
                part.start <= part.end && part.end <= operation.len(),
                "a step lies within its operation"
            );
            operation.apply_part(&mut content, &part);
        });
        let mut backing = self.backing.clone();
        backing.files.push(Arc::new(scratch));
        RecordingDevice::new(backing, content, 0)
    }

    fn content_before(&self, first: usize) -> Content {
        let mut cursor = self.cursor.lock();
        if cursor.0 > first {
            *cursor = (0, self.start.clone());
        }
        let (at, content) = &mut *cursor;
        for operation in &self.trace.operations()[*at..first] {
            operation.apply_part(content, &(0..operation.len()));
        }
        *at = first;
        content.clone()
    }
}

/// Checks a stored run of bytes: on the device, and in the spool.
fn check_stored(
    backing: &Backing,
    stored: u64,
    offset: u64,
    len: u64,
    source: Source,
) -> Result<()> {
    let limits = Limits {
        geometry: &Geometry { read_only: false, ..backing.geometry },
        size_bytes: backing.base.size_bytes(),
    };
    limits.range(NAME, offset, len)?;
    match source {
        Source::Zeros => Ok(()),
        Source::File { file: 0, at } if at.checked_add(len).is_some_and(|end| end <= stored) => {
            Ok(())
        }
        Source::File { .. } => {
            Err(damaged(Some(offset), "its bytes lie beyond the end of what was stored".into()))
        }
    }
}

fn damaged(offset: Option<u64>, detail: String) -> crate::Error {
    error(NAME, ErrorKind::OutOfRange, Operation::Open, offset, detail)
}

impl Recorder {
    fn limits(&self) -> Limits<'_> {
        Limits { geometry: &self.backing.geometry, size_bytes: self.backing.base.size_bytes() }
    }

    /// Adds a change of a range whose bytes are in their place.
    fn push(&self, offset: u64, len: u64, source: Source) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let operation = Spooled::Write { offset, len, source };
        state.trace.push(operation).apply_part(&mut state.content, &(0..len));
    }

    fn read_uncounted(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.limits().transfer(NAME, Operation::Read, offset, buf.len(), buf.as_ptr() as usize)?;
        let pieces = self.state.lock().content.pieces(offset..offset + buf.len() as u64);
        for (range, source) in pieces {
            let part = &mut buf[(range.start - offset) as usize..(range.end - offset) as usize];
            match source {
                None => self.backing.base.read_at(part, range.start)?,
                Some(Source::Zeros) => part.fill(0),
                // What was written once is not written again: the lock need not be held.
                Some(Source::File { file, at }) => {
                    let read = self.backing.files[file as usize].read_exact_at(part, at);
                    read.map_err(|e| from_io(NAME, Operation::Read, Some(range.start), &e))?;
                }
            }
        }
        Ok(())
    }

    fn write_uncounted(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.limits().transfer(NAME, Operation::Write, offset, buf.len(), buf.as_ptr() as usize)?;
        if buf.is_empty() {
            return Ok(());
        }
        let len = buf.len() as u64;
        let at = {
            let mut state = self.state.lock();
            state.next += len;
            state.next - len
        };
        let last = self.backing.files.len() - 1;
        self.backing.files[last]
            .write_all_at(buf, at)
            .map_err(|e| from_io(NAME, Operation::Write, Some(offset), &e))?;
        self.push(offset, len, Source::File { file: last as u32, at });
        Ok(())
    }

    fn clear(&self, offset: u64, len: u64) -> Result<()> {
        self.limits().range(NAME, offset, len)?;
        if len > 0 {
            self.push(offset, len, Source::Zeros);
        }
        Ok(())
    }
}

impl Positioned for Recorder {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let result = self.read_uncounted(buf, offset);
        self.counters.count(Operation::Read, buf.len() as u64, result)
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.counters.count(Operation::Write, buf.len() as u64, self.write_uncounted(buf, offset))
    }

    /// Takes no time, so what is complete when it begins is what is complete when it ends.
    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock();
        let covers = state.trace.len();
        state.trace.push(Spooled::Flush { covers });
        self.counters.count(Operation::Flush, 0, Ok(()))
    }

    fn check(&self, request: &Request) -> Result<()> {
        self.counters.count(Operation::Queue, 0, self.limits().request(NAME, request))
    }
}

impl BlockDevice for RecordingDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn geometry(&self) -> Geometry {
        self.shared.backing.geometry
    }

    fn size_bytes(&self) -> u64 {
        self.shared.backing.base.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.shared.read(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.shared.write(buf, offset)
    }

    fn flush(&self) -> Result<()> {
        self.shared.flush()
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let result = self.shared.clear(offset, len);
        self.shared.counters.count(Operation::Write, len, result)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        let result = self.shared.clear(offset, len);
        self.shared.counters.count(Operation::Queue, 0, result).map(|()| true)
    }

    fn discard_to_zeros(&self, offset: u64, len: u64) -> Result<bool> {
        self.discard(offset, len)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        Ok(Box::new(InlineQueue::new(Arc::clone(&self.shared), options)))
    }

    fn engine(&self) -> EngineReport {
        EngineReport { name: NAME, fallback: None, threads: None }
    }

    fn counters(&self) -> DeviceCounters {
        self.shared.counters.snapshot()
    }
}
