//! Files to streams, and streams to files.

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use bedplate_block::AlignedBuf;
use parking_lot::{Condvar, Mutex};

use crate::error::{Error, ErrorKind, Result};
use crate::file::Route;
use crate::rate::Rate;
use crate::remote;
use crate::windowed::Windowed;
use crate::{Progress, WINDOW_BYTES};

/// Writes a file or a block device to a stream: workers read ahead, and write in turn. Returns the
/// bytes, and how they were read.
///
/// # Errors
/// When the file cannot be read, or the stream takes no more; `Closed` where its reader is gone.
pub fn read_to(
    path: &Path,
    out: &mut (dyn Write + Send),
    workers: usize,
    rate: Option<&Rate>,
    progress: Progress<'_>,
) -> Result<(u64, Route)> {
    let file = remote::open(path)?;
    let written = in_order(&*file, out, workers, rate, progress, |bytes| Ok(Cow::Borrowed(bytes)))?;
    Ok((written, file.route()))
}

/// Reads a file by windows on several threads, makes something of each, and writes that in the
/// order of the file. Returns the bytes written.
pub(crate) fn in_order(
    file: &dyn Windowed,
    out: &mut (dyn Write + Send),
    workers: usize,
    rate: Option<&Rate>,
    progress: Progress<'_>,
    make: impl Fn(&[u8]) -> Result<Cow<'_, [u8]>> + Sync,
) -> Result<u64> {
    let workers = workers.max(1);
    let line = Line {
        file,
        size: file.size()?,
        workers,
        rate,
        progress,
        turns: Turns { state: Mutex::new((0, None)), changed: Condvar::new() },
        out: Mutex::new((out, 0)),
    };
    let (line, make) = (&line, &make);
    std::thread::scope(|scope| {
        for first in 0..workers {
            scope.spawn(move || {
                let ends = EndsTurns(&line.turns);
                match line.work(first, make) {
                    Ok(()) => std::mem::forget(ends),
                    Err(error) => line.turns.fail(error),
                }
            });
        }
    });
    if let (_, Some(error)) = &*line.turns.state.lock() {
        return Err(error.clone());
    }
    let mut out = line.out.lock();
    out.0.flush().map_err(|error| line.refused(&error))?;
    Ok(out.1)
}

/// Workers that read side by side and write one after the other.
struct Line<'a> {
    file: &'a dyn Windowed,
    size: u64,
    workers: usize,
    rate: Option<&'a Rate>,
    progress: Progress<'a>,
    turns: Turns,
    /// The stream, and the bytes that it took.
    out: Mutex<(&'a mut (dyn Write + Send), u64)>,
}

impl Line<'_> {
    /// Does every window of one worker, from its first on.
    fn work(
        &self,
        first: usize,
        make: &(impl Fn(&[u8]) -> Result<Cow<'_, [u8]>> + Sync),
    ) -> Result<()> {
        let windows = self.size.div_ceil(WINDOW_BYTES as u64);
        let mut buffer = AlignedBuf::zeroed(WINDOW_BYTES);
        for turn in (first as u64..windows).step_by(self.workers) {
            let bytes = make(self.read(turn, &mut buffer)?)?;
            if !self.turns.wait(turn) {
                return Ok(());
            }
            let mut out = self.out.lock();
            out.0.write_all(&bytes).map_err(|error| self.refused(&error))?;
            out.1 += bytes.len() as u64;
            drop(out);
            self.turns.pass(turn);
            (self.progress)(self.len(turn) as u64);
        }
        Ok(())
    }

    fn len(&self, turn: u64) -> usize {
        (self.size - turn * WINDOW_BYTES as u64).min(WINDOW_BYTES as u64) as usize
    }

    fn read<'b>(&self, turn: u64, buffer: &'b mut AlignedBuf) -> Result<&'b [u8]> {
        let len = self.len(turn);
        if let Some(rate) = self.rate {
            rate.take(len as u64);
        }
        let whole = len.next_multiple_of(self.file.grid() as usize);
        debug_assert!(
            len > 0 && whole <= buffer.len(),
            "a window fits the buffer with its last block: {whole} of {}",
            buffer.len()
        );
        if self.file.read(&mut buffer[..whole], turn * WINDOW_BYTES as u64)? < len {
            return Err(Error::new(
                ErrorKind::Changed,
                format!("{} became shorter while it was read", self.file.path().display()),
            ));
        }
        Ok(&buffer[..len])
    }

    fn refused(&self, error: &std::io::Error) -> Error {
        Error::system("write to the stream that reads", self.file.path(), error)
    }
}

/// Whose turn it is to write, and why there is none any more.
struct Turns {
    state: Mutex<(u64, Option<Error>)>,
    changed: Condvar,
}

impl Turns {
    /// Waits for a turn; `false` when all are over because of a failure.
    fn wait(&self, turn: u64) -> bool {
        let mut state = self.state.lock();
        while state.0 != turn && state.1.is_none() {
            self.changed.wait(&mut state);
        }
        state.1.is_none()
    }

    fn pass(&self, turn: u64) {
        let before = std::mem::replace(&mut self.state.lock().0, turn + 1);
        debug_assert_eq!(before, turn, "only the worker whose turn it is passes it on");
        self.changed.notify_all();
    }

    fn fail(&self, error: Error) {
        self.state.lock().1.get_or_insert(error);
        self.changed.notify_all();
    }
}

/// Ends the others' waiting when a worker fails, be it by a panic.
struct EndsTurns<'a>(&'a Turns);

impl Drop for EndsTurns<'_> {
    fn drop(&mut self) {
        self.0.fail(Error::new(ErrorKind::Io, "a worker ended early"));
    }
}

/// A window on its way to the file.
struct Piece {
    buffer: AlignedBuf,
    /// Bytes that count, and where they go.
    len: usize,
    at: u64,
}

/// A file that a stream is written to, past the page cache. Bytes are collected to windows, which
/// workers write. [`finish`](Self::finish) makes it durable and tells failures.
#[derive(Debug)]
pub struct Sink {
    file: Arc<dyn Windowed>,
    pieces: Option<SyncSender<Piece>>,
    free: Receiver<AlignedBuf>,
    failure: Arc<Mutex<Option<Error>>>,
    threads: Vec<JoinHandle<()>>,
    current: Option<AlignedBuf>,
    filled: usize,
    /// Bytes before the current window.
    before: u64,
}

impl Sink {
    /// Makes a file, or empties it; a block device is written from its start.
    ///
    /// # Errors
    /// When the file cannot be opened or is neither a file nor a block device.
    pub fn create(path: &Path, workers: usize) -> Result<Self> {
        let file: Arc<dyn Windowed> = remote::create(path)?.into();
        let workers = workers.max(1);
        let (pieces, queue) = sync_channel(workers);
        let (give_back, free) = channel();
        for _ in 0..=workers {
            // The receiver is here.
            let _given = give_back.send(AlignedBuf::zeroed(WINDOW_BYTES));
        }
        let failure = Arc::new(Mutex::new(None));
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..workers)
            .map(|_| {
                let (file, queue) = (Arc::clone(&file), Arc::clone(&queue));
                let (failure, give_back) = (Arc::clone(&failure), give_back.clone());
                std::thread::spawn(move || write_pieces(&*file, &queue, &give_back, &failure))
            })
            .collect();
        Ok(Self {
            file,
            pieces: Some(pieces),
            free,
            failure,
            threads,
            current: None,
            filled: 0,
            before: 0,
        })
    }

    /// Returns memory for the bytes that come next, not empty; [`fill`](Self::fill) says how many
    /// came.
    ///
    /// # Errors
    /// When an earlier window could not be written.
    pub fn space(&mut self) -> Result<&mut [u8]> {
        if self.current.is_none() {
            // A worker that fails gives its buffer back, too.
            self.current = Some(self.free.recv().map_err(|_closed| self.broken())?);
            if let Some(error) = &*self.failure.lock() {
                return Err(error.clone());
            }
        }
        let filled = self.filled;
        let current = self.current.as_mut().expect("a window was taken above");
        Ok(&mut current[filled..])
    }

    /// Takes over so many bytes of [`space`](Self::space).
    ///
    /// # Errors
    /// As [`space`](Self::space).
    pub fn fill(&mut self, bytes: usize) -> Result<()> {
        self.filled += bytes;
        assert!(self.filled <= WINDOW_BYTES, "no more is filled than there was space");
        if self.filled == WINDOW_BYTES { self.hand_over() } else { Ok(()) }
    }

    /// Gives the current window to the workers.
    fn hand_over(&mut self) -> Result<()> {
        let Some(buffer) = self.current.take() else { return Ok(()) };
        let piece = Piece { buffer, len: self.filled, at: self.before };
        self.before += self.filled as u64;
        self.filled = 0;
        let sent = self.pieces.as_ref().map(|pieces| pieces.send(piece).is_ok());
        if sent == Some(true) { Ok(()) } else { Err(self.broken()) }
    }

    /// Why the workers are gone.
    fn broken(&self) -> Error {
        self.failure.lock().clone().unwrap_or_else(|| {
            let path = self.file.path().display();
            Error::new(ErrorKind::Io, format!("what writes {path} ended early"))
        })
    }

    /// Writes what is left and makes all of it durable. Returns the bytes, and how they were
    /// written.
    ///
    /// # Errors
    /// When a window could not be written; the file holds a part then.
    pub fn finish(mut self) -> Result<(u64, Route)> {
        if self.filled > 0 {
            self.hand_over()?;
        }
        self.join();
        if let Some(error) = self.failure.lock().take() {
            return Err(error);
        }
        if self.file.is_regular()? {
            self.file.set_size(self.before)?;
        }
        self.file.sync()?;
        Ok((self.before, self.file.route()))
    }

    fn join(&mut self) {
        drop(self.pieces.take());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                let error = Error::new(
                    ErrorKind::Io,
                    format!("what writes {} ended early", self.file.path().display()),
                );
                self.failure.lock().get_or_insert(error);
            }
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.join();
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let space = self.space().map_err(std::io::Error::other)?;
        let len = space.len().min(bytes.len());
        space[..len].copy_from_slice(&bytes[..len]);
        self.fill(len).map_err(std::io::Error::other)?;
        Ok(len)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes windows until no more come. After a failure they are only given back, so that what sends
/// them does not wait forever.
fn write_pieces(
    file: &dyn Windowed,
    queue: &Mutex<Receiver<Piece>>,
    give_back: &Sender<AlignedBuf>,
    failure: &Mutex<Option<Error>>,
) {
    loop {
        let next = queue.lock().recv();
        let Ok(mut piece) = next else { return };
        if failure.lock().is_none()
            && let Err(error) = write_piece(file, &mut piece)
        {
            failure.lock().get_or_insert(error);
        }
        // The stream may have ended already.
        let _taken = give_back.send(piece.buffer);
    }
}

/// Writes a window; the last block is filled up with zeros, or with what a device has there.
fn write_piece(file: &dyn Windowed, piece: &mut Piece) -> Result<()> {
    let grid = file.grid() as usize;
    let whole = piece.len.next_multiple_of(grid);
    piece.buffer[piece.len..whole].fill(0);
    if whole > piece.len && !file.is_regular()? {
        let mut last = AlignedBuf::zeroed(grid);
        let within = piece.len - (whole - grid);
        file.read(&mut last, piece.at + (whole - grid) as u64)?;
        piece.buffer[piece.len..whole].copy_from_slice(&last[within..]);
    }
    file.write(&piece.buffer[..whole], piece.at)
}
