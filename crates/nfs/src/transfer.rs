//! Bytes of a file between this process and the server: calls of reads and writes, commits, and what is
//! written again.

use std::ops::Range;
use std::sync::Arc;

use crate::client::{Client, Later, read_status, unreadable};
use crate::inode::{Inode, Piece, Turn};
use crate::link::{Answer, Bytes, Failed, Reply, Submission, promise};
use crate::url::Stability;
use crate::wire::attr;
use crate::wire::numbers as n;
use crate::wire::status::Status;
use crate::wire::xdr::Garbage;
use crate::{Error, ErrorKind, Result};

/// The end of one call that reads or writes.
#[derive(Debug)]
pub(crate) enum End<T> {
    Done(T),
    /// The server is to be asked again later.
    Later,
    Failed(Error),
}

/// What one call read.
#[derive(Debug)]
pub(crate) struct Part {
    reply: Reply,
    data: Range<usize>,
    /// The file ends behind it.
    pub is_end: bool,
}

impl Part {
    pub fn bytes(&self) -> &[u8] {
        &self.reply.body().rest()[self.data.clone()]
    }
}

impl<T> End<T> {
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> End<U> {
        match self {
            Self::Done(value) => End::Done(make(value)),
            Self::Later => End::Later,
            Self::Failed(error) => End::Failed(error),
        }
    }
}

/// What moves bytes of one file.
#[derive(Debug, Clone)]
pub(crate) struct Transfer {
    pub client: Client,
    pub inode: Arc<Inode>,
    pub stability: Stability,
}

impl Transfer {
    /// Fills `buf` from `offset`, as far as the file goes; returns how much that was.
    pub fn read(&self, buf: &mut [u8], offset: u64, turn: &Turn) -> Result<usize> {
        let step = self.client.0.limits.read_bytes as usize;
        // Before the server is asked, so that what is durable meanwhile is in its answer.
        let kept = Overlay::of(&self.inode, offset, buf.len());
        let begun: Vec<Answer<End<Part>>> = (0..buf.len().div_ceil(step))
            .map(|at| {
                let len = step.min(buf.len() - at * step);
                self.begin_read(offset + (at * step) as u64, len, turn)
            })
            .collect();
        let mut done = 0;
        let mut is_whole = true;
        // All are heard, whatever the first says.
        for (part, answer) in buf.chunks_mut(step).zip(begun) {
            let end = answer.wait();
            if is_whole {
                let got = self.read_rest(part, offset + done as u64, turn, end)?;
                done += got;
                is_whole = got == part.len();
            }
        }
        Ok(kept.lay(buf, offset, done))
    }

    /// Goes on with what one call read of a part, until it is full or the file ends.
    fn read_rest(
        &self,
        part: &mut [u8],
        offset: u64,
        turn: &Turn,
        first: End<Part>,
    ) -> Result<usize> {
        let mut done = 0;
        let mut end = first;
        let mut later = Later::new(self.client.url());
        loop {
            match end {
                End::Done(told) => {
                    let bytes = told.bytes();
                    part[done..done + bytes.len()].copy_from_slice(bytes);
                    done += bytes.len();
                    if done == part.len() || told.is_end {
                        return Ok(done);
                    }
                }
                End::Later if later.wait() => {}
                End::Later => return Err(Error::status("read", Status::Jukebox)),
                End::Failed(error) => return Err(error),
            }
            end = self.begin_read(offset + done as u64, part.len() - done, turn).wait();
        }
    }

    /// Writes all of `bytes` at `offset`.
    pub fn write(&self, bytes: &Bytes, offset: u64, turn: &Turn) -> Result<()> {
        let step = self.client.0.limits.write_bytes as usize;
        let begun: Vec<(Range<usize>, Answer<End<usize>>)> = (0..bytes.len().div_ceil(step))
            .map(|at| {
                let part = at * step..bytes.len().min((at + 1) * step);
                let answer = self.begin_write(bytes, part.clone(), offset, turn);
                (part, answer)
            })
            .collect();
        let mut outcome = Ok(());
        for (part, answer) in begun {
            let end = answer.wait();
            if outcome.is_ok() {
                let again = |part: Range<usize>| self.begin_write(bytes, part, offset, turn);
                outcome = self.write_rest(part, end, again);
            }
        }
        outcome
    }

    /// Goes on with what one call wrote of a part, until all of it is written.
    fn write_rest(
        &self,
        mut part: Range<usize>,
        first: End<usize>,
        again: impl Fn(Range<usize>) -> Answer<End<usize>>,
    ) -> Result<()> {
        let mut end = first;
        let mut later = Later::new(self.client.url());
        loop {
            match end {
                End::Done(count) => {
                    part.start += count;
                    if part.is_empty() {
                        return Ok(());
                    }
                }
                End::Later if later.wait() => {}
                End::Later => return Err(Error::status("write", Status::Jukebox)),
                End::Failed(error) => return Err(error),
            }
            end = again(part.clone()).wait();
        }
    }

    fn begin_read(&self, offset: u64, len: usize, turn: &Turn) -> Answer<End<Part>> {
        let (promise, answer) = promise();
        let call = self.reading(offset, len, turn.clone(), |end| promise.keep(end));
        self.client.0.link().submit(call);
        answer
    }

    /// Makes the call of a read of at most what the server allows.
    pub fn reading(
        &self,
        offset: u64,
        len: usize,
        turn: Turn,
        tell: impl FnOnce(End<Part>) + Send + 'static,
    ) -> Submission {
        let mut arguments = self.inode.handle.arguments();
        arguments.u64(offset);
        arguments.u32(len as u32);
        let call = self.client.submission(n::READ, &arguments, None, move |end| {
            drop(turn);
            tell(read_part(end, len));
        });
        self.under_locks(call)
    }

    fn begin_write(
        &self,
        bytes: &Bytes,
        part: Range<usize>,
        offset: u64,
        turn: &Turn,
    ) -> Answer<End<usize>> {
        let (promise, answer) = promise();
        let call = self.writing(bytes, part, offset, turn.clone(), |end| promise.keep(end));
        self.client.0.link().submit(call);
        answer
    }

    /// Makes the call of a write of a part of `bytes`, which lie at `offset` in the file.
    pub fn writing(
        &self,
        bytes: &Bytes,
        part: Range<usize>,
        offset: u64,
        turn: Turn,
        tell: impl FnOnce(End<usize>) + Send + 'static,
    ) -> Submission {
        let stable = match self.stability {
            Stability::Unstable => n::UNSTABLE,
            Stability::DataSync => n::DATA_SYNC,
            Stability::FileSync => n::FILE_SYNC,
        };
        self.writing_as(bytes, part, offset, stable, Some(turn), tell)
    }

    fn writing_as(
        &self,
        bytes: &Bytes,
        part: Range<usize>,
        offset: u64,
        stable: u32,
        turn: Option<Turn>,
        tell: impl FnOnce(End<usize>) + Send + 'static,
    ) -> Submission {
        let at = offset + part.start as u64;
        let len = part.len() as u32;
        let mut arguments = self.inode.handle.arguments();
        arguments.u64(at);
        arguments.u32(len);
        arguments.u32(stable);
        arguments.u32(len);
        let (inode, kept) = (Arc::clone(&self.inode), Arc::clone(bytes));
        let data = Some((Arc::clone(bytes), part.clone()));
        let call = self.client.submission(n::WRITE, &arguments, data, move |end| {
            let end = read_written(end, part.len(), stable);
            let told = end.map(|written| {
                let count = written.count;
                let mut all = inode.kept.lock();
                if written.stable == n::UNSTABLE {
                    all.keep(at, kept, part.start..part.start + count, written.verifier);
                } else {
                    all.forget(at, count as u64);
                }
                count
            });
            // Only now, so that what is kept is complete for what was waiting to be alone.
            drop(turn);
            tell(told);
        });
        self.under_locks(call)
    }

    /// Makes a call one that is not made once a lock of the file was lost.
    fn under_locks(&self, call: Submission) -> Submission {
        Submission { guard: Some(Arc::clone(&self.inode.guard)), ..call }
    }

    /// Makes a commit where more waits for one than may.
    pub fn bound(&self) -> Result<()> {
        let is_over = self.inode.kept.lock().bytes() > self.client.url().uncommitted_bytes;
        if is_over { self.sync() } else { Ok(()) }
    }

    /// Makes durable what was written before it was called; what a server lost that has started again
    /// is written again.
    pub fn sync(&self) -> Result<()> {
        self.inode.check_locks()?;
        let mark = self.inode.kept.lock().mark();
        loop {
            if self.inode.kept.lock().is_empty() {
                return Ok(());
            }
            let verifier = self.commit()?;
            if self.inode.kept.lock().settle(verifier, mark) {
                return Ok(());
            }
            self.write_again(verifier)?;
        }
    }

    fn commit(&self) -> Result<u64> {
        let mut arguments = self.inode.handle.arguments();
        // All of the file.
        arguments.u64(0);
        arguments.u32(0);
        let committed = self.client.ask("make a file durable", n::COMMIT, &arguments, |from| {
            attr::read_change(from)?;
            from.u64()
        });
        if committed.as_ref().is_err_and(|error| error.kind == ErrorKind::Stale) {
            // The file is gone, and what was written with it.
            self.inode.kept.lock().forget(0, u64::MAX);
        }
        committed
    }

    /// Writes again what was told under another verifier, so that it is durable at once.
    fn write_again(&self, verifier: u64) -> Result<()> {
        let alone = self.inode.gate.wait(true);
        assert!(alone.is_exclusive(), "I-NFC-2: no write is in flight meanwhile");
        let lost = self.inode.kept.lock().lost(verifier);
        // The one that syncs need not be one that may write.
        let client = Client(Arc::clone(&self.client.0), self.inode.writer());
        let writer = Self { client, ..self.clone() };
        tracing::warn!(
            pieces = lost.len(),
            "the NFS server has lost what was not committed; it is written again"
        );
        let begin = |bytes: &Bytes, part: Range<usize>, offset: u64| {
            let (promise, answer) = promise();
            let tell = move |end| promise.keep(end);
            let call = writer.writing_as(bytes, part, offset, n::FILE_SYNC, None, tell);
            writer.client.0.link().submit(call);
            answer
        };
        let mut begun = Vec::new();
        for (at, piece) in lost {
            let offset = at - piece.part.start as u64;
            let answer = begin(&piece.bytes, piece.part.clone(), offset);
            begun.push((piece, offset, answer));
        }
        let mut outcome = Ok(());
        for (piece, offset, answer) in begun {
            let end = answer.wait();
            if outcome.is_ok() {
                let again = |part: Range<usize>| begin(&piece.bytes, part, offset);
                outcome = self.write_rest(piece.part.clone(), end, again);
            }
        }
        outcome
    }
}

/// What a server that started again may have lost of a range, and the sync will write again: until
/// then reads have it from here.
struct Overlay {
    pieces: Vec<(u64, Piece)>,
    /// Up to where the file reaches at least.
    end: u64,
}

impl Overlay {
    fn of(inode: &Inode, offset: u64, len: usize) -> Self {
        let kept = inode.kept.lock();
        let pieces = kept.over(offset..offset + len as u64);
        Self { pieces, end: kept.end() }
    }

    /// Lays it over what was read, `done` bytes; returns how many there are then.
    fn lay(&self, buf: &mut [u8], offset: u64, done: usize) -> usize {
        let least = self.end.saturating_sub(offset).min(buf.len() as u64) as usize;
        if least > done {
            buf[done..least].fill(0);
        }
        for (at, piece) in &self.pieces {
            let bytes = &piece.bytes[piece.part.clone()];
            let skipped = offset.saturating_sub(*at) as usize;
            let to = at.saturating_sub(offset) as usize;
            let len = (bytes.len() - skipped).min(buf.len() - to);
            buf[to..to + len].copy_from_slice(&bytes[skipped..skipped + len]);
        }
        done.max(least)
    }
}

/// Reads the end of a READ of `len` bytes.
fn read_part(end: Result<Reply, Failed>, len: usize) -> End<Part> {
    let doing = "read";
    let reply = match end {
        Ok(reply) => reply,
        Err(failed) => return End::Failed(failed.error(doing)),
    };
    let mut from = reply.body();
    let all = from.rest().len();
    let mut read = || -> Result<(Option<Status>, Range<usize>, bool), Garbage> {
        if let Some(status) = read_status(&mut from)? {
            return Ok((Some(status), 0..0, false));
        }
        attr::read_after(&mut from)?;
        let count = from.u32()? as usize;
        let is_end = from.bool()?;
        // The bytes stand behind their number.
        let first = all - from.rest().len() + 4;
        let data = from.opaque(len)?;
        if data.len() != count || count == 0 && len > 0 && !is_end {
            return Err(Garbage);
        }
        Ok((None, first..first + count, is_end))
    };
    match read() {
        Ok((None, data, is_end)) => End::Done(Part { reply, data, is_end }),
        Ok((Some(Status::Jukebox), ..)) => End::Later,
        Ok((Some(status), ..)) => End::Failed(Error::status(doing, status)),
        Err(Garbage) => End::Failed(unreadable(doing)),
    }
}

/// What a WRITE did.
struct Written {
    count: usize,
    stable: u32,
    verifier: u64,
}

/// Reads the end of a WRITE of `len` bytes.
fn read_written(end: Result<Reply, Failed>, len: usize, asked: u32) -> End<Written> {
    let doing = "write";
    let reply = match end {
        Ok(reply) => reply,
        Err(failed) => return End::Failed(failed.error(doing)),
    };
    let mut from = reply.body();
    let mut read = || -> Result<Result<Written, Status>, Garbage> {
        if let Some(status) = read_status(&mut from)? {
            return Ok(Err(status));
        }
        attr::read_change(&mut from)?;
        let (count, stable) = (from.u32()? as usize, from.u32()?);
        // Less stable than asked for is not written at all.
        if count > len || count == 0 && len > 0 || !(asked..=n::FILE_SYNC).contains(&stable) {
            return Err(Garbage);
        }
        Ok(Ok(Written { count, stable, verifier: from.u64()? }))
    };
    match read() {
        Ok(Ok(written)) => End::Done(written),
        Ok(Err(Status::Jukebox)) => End::Later,
        Ok(Err(status)) => End::Failed(Error::status(doing, status)),
        Err(Garbage) => End::Failed(unreadable(doing)),
    }
}
