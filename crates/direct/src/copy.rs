//! Copies one file.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bedplate_block::AlignedBuf;
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use twox_hash::XxHash3_128;

use crate::attributes::{self, Left};
use crate::error::{Error, ErrorKind, Result, system};
use crate::file::{DirectFile, Route};
use crate::partial::Partial;
use crate::rate::Rate;
use crate::share::{self, Reflink};
use crate::span::{self, Span, Windows};
use crate::windowed::Windowed;
use crate::{Progress, WINDOW_BYTES, WORKERS};

/// Bytes after which a copy that may be gone on with notes how far it is.
const MARKED_EVERY_BYTES: u64 = 256 << 20;

/// A part of a file that goes into a target that stays as it is around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte of the source.
    pub source: u64,
    /// Bytes; up to the end of the source where it is `None`.
    pub len: Option<u64>,
    /// First byte in the target.
    pub target: u64,
}

/// How files are copied.
#[derive(Debug)]
pub struct Options {
    /// Requests that are under way at once, at least one.
    pub workers: usize,
    /// Read the copy from the device once it is synced, and compare it with what was read.
    pub verify: bool,
    /// Whether blocks may be shared.
    pub reflink: Reflink,
    /// A limit that all copies share which have these options.
    pub rate: Option<Rate>,
    /// Go on from what an interrupted copy left, and leave what this one has done.
    pub resume: bool,
    /// Copy a part, into a target that exists.
    pub range: Option<Range>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: WORKERS,
            verify: false,
            reflink: Reflink::Auto,
            rate: None,
            resume: false,
            range: None,
        }
    }
}

/// What a copy did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of the source, or of the range.
    pub size: u64,
    /// Bytes that were read and written; the others are holes, shared, or were there.
    pub copied: u64,
    /// Bytes that an earlier copy had written.
    pub resumed_at: u64,
    /// The copy shares its blocks with the source; on a mount of a volume those that can be shared.
    pub is_shared: bool,
    /// The copy was read back and compared.
    pub is_verified: bool,
    /// How the source was read.
    pub read: Route,
    /// How the copy was written.
    pub write: Route,
    /// What of the source's attributes could not be kept.
    pub left: Vec<String>,
}

/// Copies one file of the system; leaves it to the caller to make it durable where `sync` is not
/// set.
pub(crate) fn copy_one(
    source: &Path,
    target: &Path,
    options: &Options,
    sync: bool,
    progress: Progress<'_>,
) -> Result<Copied> {
    let from = DirectFile::open(source)?;
    let there = match std::fs::metadata(target) {
        Ok(there) => Some(there),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::system("look at", target, &error)),
    };
    if let Some(there) = &there {
        refuse_itself(&from, there, source, target)?;
    }
    let in_place = options.range.is_some() || there.as_ref().is_some_and(|there| !there.is_file());
    if in_place {
        if options.resume || options.reflink == Reflink::Always {
            return Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "{} is written in place: it can neither share blocks nor be gone on with",
                    target.display()
                ),
            ));
        }
        return copy_into(&from, target, options, progress);
    }
    // A link to the target stays a link.
    let target = if there.is_some() {
        target.canonicalize().map_err(system("look at", target))?
    } else {
        target.to_owned()
    };
    copy_whole(&from, &target, options, sync, progress)
}

fn refuse_itself(from: &DirectFile, there: &Metadata, source: &Path, target: &Path) -> Result<()> {
    let is = from.metadata()?;
    if (is.dev(), is.ino()) == (there.dev(), there.ino()) {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("{} and {} are the same file", source.display(), target.display()),
        ));
    }
    Ok(())
}

fn copy_whole(
    from: &DirectFile,
    target: &Path,
    options: &Options,
    sync: bool,
    progress: Progress<'_>,
) -> Result<Copied> {
    let is = from.metadata()?;
    let size = from.size()?;
    let (partial, resumed_at) = Partial::begin(target, &is, options.resume)?;
    let is_shared = resumed_at == 0 && share(from, &is, &partial.file, options, target)?;
    let mut copied = 0;
    if is_shared {
        progress(size);
    } else {
        let spans = span::data(from, size, partial.file.grid().max(from.grid()))?;
        partial.file.set_size(size)?;
        reserve(&partial.file, &spans, target)?;
        let spans = span::from(spans, resumed_at);
        progress(resumed_at);
        copied = spans.iter().map(|span| span.len).sum();
        let transfer = Transfer::new(from, &partial.file, options, spans, progress);
        let marks = options.resume.then_some(&partial);
        transfer.run(marks, resumed_at)?;
        // The last block was written whole.
        partial.file.set_size(size)?;
        refuse_change(from, &is)?;
        transfer.verify()?;
    }
    let mut left = Left::new();
    if is.is_file() {
        attributes::keep(from.system(), &is, partial.file.system(), target, &mut left)?;
    }
    let write = partial.file.route();
    debug_assert!(copied + resumed_at <= size || is_shared, "what is copied is of the source");
    partial.finish(sync)?;
    Ok(Copied {
        size,
        copied,
        resumed_at,
        is_shared,
        is_verified: options.verify && !is_shared,
        read: from.route(),
        write,
        left: left.into_iter().collect(),
    })
}

/// Copies into a target that stays as it is around what is written.
fn copy_into(
    from: &DirectFile,
    target: &Path,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Copied> {
    let is = from.metadata()?;
    let range = options.range.unwrap_or(Range { source: 0, len: None, target: 0 });
    let rest = from.size()?.saturating_sub(range.source);
    let size = range.len.unwrap_or(rest);
    if size > rest || range.target.checked_add(size).is_none() {
        let path = from.path().display();
        return Err(Error::new(
            ErrorKind::Usage,
            format!(
                "{path} has no {size} bytes from byte {} on: it ends at byte {}",
                range.source,
                from.size()?
            ),
        ));
    }
    let into = DirectFile::open_to_change(target)?;
    debug_assert!(size <= rest, "no more is copied than the source has: {size} of {rest}");
    let end = range.target + size;
    let before = into.size()?;
    if !into.is_regular()? && end > before {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!("{} has {before} bytes, and {end} are needed", target.display()),
        ));
    }
    let spans = vec![Span { source: range.source, target: range.target, len: size }];
    let transfer = Transfer::new(from, &into, options, spans, progress);
    transfer.run(None, 0)?;
    if into.is_regular()? {
        into.set_size(before.max(end))?;
    }
    into.sync()?;
    refuse_change(from, &is)?;
    transfer.verify()?;
    Ok(Copied {
        size,
        copied: size,
        resumed_at: 0,
        is_shared: false,
        is_verified: options.verify,
        read: from.route(),
        write: into.route(),
        left: Vec::new(),
    })
}

/// Shares the source's blocks with the copy where that is wanted and can be.
fn share(
    from: &DirectFile,
    is: &Metadata,
    into: &DirectFile,
    options: &Options,
    target: &Path,
) -> Result<bool> {
    if options.reflink == Reflink::Never {
        return Ok(false);
    }
    if share::at_once(from, into, options.reflink, target)? {
        return Ok(true);
    }
    // What a mount copies is neither compared nor bound to a rate.
    if options.verify || options.rate.is_some() || !share::on_mount(from, is, into)? {
        return Ok(false);
    }
    refuse_change(from, is)?;
    Ok(true)
}

/// Takes the room for all that will be written, so that a full file system says so first, and so
/// that workers which write side by side do not leave the file in pieces.
pub(crate) fn reserve(into: &DirectFile, spans: &[Span], target: &Path) -> Result<()> {
    for span in spans {
        let reserved =
            rustix::fs::fallocate(into.system(), FallocateFlags::empty(), span.target, span.len);
        match reserved {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(()),
            Err(error) => {
                return Err(Error::system("take the room for", target, &error.into()));
            }
        }
    }
    Ok(())
}

/// A copy of a file that changed meanwhile is of no one moment.
pub(crate) fn refuse_change(from: &DirectFile, was: &Metadata) -> Result<()> {
    let is = from.metadata()?;
    let state = |of: &Metadata| (of.len(), of.mtime(), of.mtime_nsec());
    if was.is_file() && state(&is) != state(was) {
        return Err(changed(from.path()));
    }
    Ok(())
}

pub(crate) fn changed(path: &Path) -> Error {
    Error::new(
        ErrorKind::Changed,
        format!(
            "{} changed while it was copied, so the copy is of no one moment: stop what writes it, \
             or copy a checkpoint",
            path.display()
        ),
    )
}

/// Windows on their way from one file to another.
pub(crate) struct Transfer<'a> {
    from: &'a dyn Windowed,
    into: &'a dyn Windowed,
    options: &'a Options,
    progress: Progress<'a>,
    state: Mutex<State>,
}

struct State {
    windows: Windows,
    /// What the windows hold, if that is to be compared.
    hashes: Vec<(Span, u128)>,
    failure: Option<Error>,
    /// Up to where the partial file is marked; `None` while a worker marks it.
    marked: Option<u64>,
}

/// The memory of a worker.
struct Buffers {
    window: AlignedBuf,
    /// Of the source's blocks around a window, where they do not lie as in the target; and of the
    /// target's blocks that a window changes in part.
    around: AlignedBuf,
}

impl<'a> Transfer<'a> {
    pub(crate) fn new(
        from: &'a dyn Windowed,
        into: &'a dyn Windowed,
        options: &'a Options,
        spans: Vec<Span>,
        progress: Progress<'a>,
    ) -> Self {
        let state = State {
            windows: Windows::new(spans, WINDOW_BYTES as u64),
            hashes: Vec::new(),
            failure: None,
            marked: Some(0),
        };
        Self { from, into, options, progress, state: Mutex::new(state) }
    }

    /// Copies all windows; marks how far it is where a later copy may go on from there.
    pub(crate) fn run(&self, marks: Option<&Partial>, resumed_at: u64) -> Result<()> {
        self.state.lock().marked = Some(resumed_at);
        self.with_workers(|buffers| {
            let Some(window) = self.state.lock().windows.next() else { return Ok(false) };
            if let Some(rate) = &self.options.rate {
                rate.take(window.len);
            }
            self.move_window(&window, buffers, |bytes| {
                if self.options.verify {
                    let hash = XxHash3_128::oneshot(bytes);
                    self.state.lock().hashes.push((window, hash));
                }
            })?;
            self.state.lock().windows.finish(&window);
            (self.progress)(window.len);
            marks.map_or(Ok(()), |partial| self.mark(partial))?;
            Ok(true)
        })
    }

    /// Runs `step` on all workers until it has nothing left to do; returns the first failure.
    fn with_workers(&self, step: impl Fn(&mut Buffers) -> Result<bool> + Sync) -> Result<()> {
        std::thread::scope(|scope| {
            for _ in 0..self.options.workers.max(1) {
                scope.spawn(|| {
                    let grids = 2 * self.from.grid().max(self.into.grid()) as usize;
                    let mut buffers = Buffers {
                        window: AlignedBuf::zeroed(WINDOW_BYTES),
                        around: AlignedBuf::zeroed(WINDOW_BYTES + grids),
                    };
                    while self.state.lock().failure.is_none() {
                        match step(&mut buffers) {
                            Ok(true) => {}
                            Ok(false) => break,
                            Err(error) => {
                                self.state.lock().failure.get_or_insert(error);
                            }
                        }
                    }
                });
            }
        });
        self.state.lock().failure.take().map_or(Ok(()), Err)
    }

    /// Reads a window and writes it; `seen` is shown what it holds.
    fn move_window(
        &self,
        window: &Span,
        buffers: &mut Buffers,
        seen: impl FnOnce(&[u8]),
    ) -> Result<()> {
        let whole = span::around(&(window.target..window.target + window.len), self.into.grid());
        let head = (window.target - whole.start) as usize;
        let end = head + window.len as usize;
        self.read_source(window, buffers, head)?;
        seen(&buffers.window[head..end]);
        self.fill_edges(&whole, head..end, buffers)?;
        let len = (whole.end - whole.start) as usize;
        self.into.write(&buffers.window[..len], whole.start)
    }

    /// Reads a window's bytes to their place in its buffer.
    fn read_source(&self, window: &Span, buffers: &mut Buffers, head: usize) -> Result<()> {
        let grid = self.from.grid();
        let whole = span::around(&(window.source..window.source + window.len), grid);
        let (skip, len) = ((window.source - whole.start) as usize, window.len as usize);
        let want = (whole.end - whole.start) as usize;
        let lies_well = skip == 0 && head == 0 && want <= buffers.window.len();
        let into = if lies_well { &mut buffers.window } else { &mut buffers.around };
        let read = self.from.read(&mut into[..want], whole.start)?;
        if read < skip + len {
            return Err(changed(self.from.path()));
        }
        if !lies_well {
            buffers.window[head..head + len].copy_from_slice(&buffers.around[skip..skip + len]);
        }
        Ok(())
    }

    /// Reads what the target has in its first and last block around a window that begins or ends
    /// within them.
    fn fill_edges(
        &self,
        whole: &std::ops::Range<u64>,
        inner: std::ops::Range<usize>,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let grid = self.into.grid() as usize;
        let len = (whole.end - whole.start) as usize;
        let Buffers { window, around } = buffers;
        let read_block = |block: &mut [u8], at: usize| -> Result<()> {
            let read = self.into.read(block, whole.start + at as u64)?;
            block[read..].fill(0);
            Ok(())
        };
        if inner.start > 0 {
            read_block(&mut around[..grid], 0)?;
            window[..inner.start].copy_from_slice(&around[..inner.start]);
        }
        let last = len - grid;
        if inner.end < len {
            read_block(&mut around[..grid], last)?;
            window[inner.end..len].copy_from_slice(&around[inner.end - last..grid]);
        }
        Ok(())
    }

    /// Marks how far the copy is, now and then, by one worker at a time.
    fn mark(&self, partial: &Partial) -> Result<()> {
        let whole = {
            let mut state = self.state.lock();
            let whole = state.windows.written_up_to();
            match state.marked {
                Some(marked) if whole >= marked.saturating_add(MARKED_EVERY_BYTES) => {
                    state.marked = None;
                    whole
                }
                _ => return Ok(()),
            }
        };
        partial.mark(whole)?;
        self.state.lock().marked = Some(whole);
        Ok(())
    }

    /// Reads every window back and compares it, if that is asked for.
    pub(crate) fn verify(&self) -> Result<()> {
        if !self.options.verify {
            return Ok(());
        }
        self.into.sync()?;
        self.with_workers(|buffers| {
            let Some((window, hash)) = self.state.lock().hashes.pop() else { return Ok(false) };
            let whole =
                span::around(&(window.target..window.target + window.len), self.into.grid());
            let skip = (window.target - whole.start) as usize;
            let want = (whole.end - whole.start) as usize;
            let read = self.into.read(&mut buffers.around[..want], whole.start)?;
            let end = skip + window.len as usize;
            if read < end || XxHash3_128::oneshot(&buffers.around[skip..end]) != hash {
                return Err(Error::new(
                    ErrorKind::Differs,
                    format!(
                        "the copy of {} differs from what was written in the {} bytes from byte {}: \
                         the device below {} does not keep what it is given",
                        self.from.path().display(),
                        window.len,
                        window.target,
                        self.into.path().display()
                    ),
                ));
            }
            Ok(true)
        })
    }
}
