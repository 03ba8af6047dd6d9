//! An open file.

use std::ops::Range;
use std::sync::Arc;

use crate::client::{Client, Found, Handle, Later, read_status, unreadable};
use crate::inode::{Hold, Inode, Mode};
use crate::link::{Answer, Bytes, Failed, Reply, Submission, promise};
use crate::url::Stability;
use crate::wire::attr::{self, Attr, Changes, Kind};
use crate::wire::numbers as n;
use crate::wire::status::Status;
use crate::wire::xdr::Garbage;
use crate::{Error, ErrorKind, Result};

/// Bits of ACCESS.
const MAY_READ: u32 = 0x01;
const MAY_WRITE: u32 = 0x04 | 0x08;

/// How a file is opened.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// How its data moves.
    pub mode: Mode,
    /// It is written, too.
    pub write: bool,
    /// It is made where it is not there.
    pub create: bool,
    /// It is empty afterwards.
    pub truncate: bool,
    /// How durable writes are; as the URL says where it is `None`.
    pub stability: Option<Stability>,
    /// Permissions of a file that is made.
    pub permissions: u32,
}

impl OpenOptions {
    /// To read only.
    #[must_use]
    pub fn read_only(mode: Mode) -> Self {
        Self {
            mode,
            write: false,
            create: false,
            truncate: false,
            stability: None,
            permissions: 0o666,
        }
    }

    /// To read and write, and made where it is not there.
    #[must_use]
    pub fn create(mode: Mode) -> Self {
        Self { write: true, create: true, ..Self::read_only(mode) }
    }
}

/// A file that is open. Any number of threads may use it.
///
/// What was written and not synced is synced at the end; [`close`](Self::close) tells failures.
#[derive(Debug)]
pub struct File {
    client: Client,
    inode: Arc<Inode>,
    mode: Mode,
    writes: bool,
    stability: Stability,
    is_closed: bool,
}

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

/// The right to an access, held as long as any call of it is in flight.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    _order: Option<Arc<Hold>>,
    _gate: Option<Arc<Hold>>,
}

impl Client {
    /// Opens a file by its path from the mounted directory on.
    ///
    /// # Errors
    /// `NotFound`, `Permission`, `IsDirectory` and others of the server.
    pub fn open(&self, path: &[u8], options: &OpenOptions) -> Result<File> {
        let found = match self.find(path) {
            Err(error) if error.kind == ErrorKind::NotFound && options.create => {
                let (dir, name) = self.find_parent(path)?;
                self.create(&dir.handle, name, options.permissions, false)?
            }
            found => found?,
        };
        self.open_found(&found, options)
    }

    /// Opens a file that was found.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_found(&self, found: &Found, options: &OpenOptions) -> Result<File> {
        match found.attr.kind {
            Kind::File => {}
            Kind::Directory => return Err(Error::status("open a file", Status::IsDirectory)),
            _ => {
                let why = "cannot open what is neither a file nor a directory";
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
        }
        let wanted = MAY_READ | if options.write { MAY_WRITE } else { 0 };
        if self.access(&found.handle, wanted)? != wanted {
            return Err(Error::status("open a file", Status::Access));
        }
        let inode = self.inode(&found.handle);
        inode.open(options.mode);
        if options.mode == Mode::Direct {
            // Writes that began in another mode end first.
            drop(inode.gate.wait(true));
        }
        let file = File {
            client: self.clone(),
            inode,
            mode: options.mode,
            writes: options.write,
            stability: options.stability.unwrap_or(self.stability()),
            is_closed: false,
        };
        if options.truncate && options.write {
            file.set_size(0)?;
        }
        Ok(file)
    }
}

impl File {
    /// Returns by what the server knows it.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.inode.handle
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns as what it is served while its opens disagree.
    #[must_use]
    pub fn effective_mode(&self) -> Mode {
        self.inode.mode()
    }

    /// Returns its attributes, from the server.
    ///
    /// # Errors
    /// The server's.
    pub fn attributes(&self) -> Result<Attr> {
        self.client.attributes(self.handle())
    }

    /// Returns its size in bytes, from the server.
    ///
    /// # Errors
    /// The server's.
    pub fn size(&self) -> Result<u64> {
        Ok(self.attributes()?.size)
    }

    /// Makes it longer or shorter.
    ///
    /// # Errors
    /// The server's.
    pub fn set_size(&self, size: u64) -> Result<()> {
        let _order = self.inode.order(true, true);
        // A write in flight would make it longer again.
        let _alone = self.inode.gate.wait(true);
        let changes = Changes { size: Some(size), ..Changes::default() };
        self.client.set_attributes(self.handle(), &changes)?;
        self.inode.kept.lock().forget(size, u64::MAX - size);
        Ok(())
    }

    /// Fills `buf` from `offset`, as far as the file goes; returns how much that was.
    ///
    /// # Errors
    /// The server's.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        check_range(buf.len(), offset)?;
        let turn = self.read_turn(true).expect("it was waited for");
        let step = self.client.0.limits.read_bytes as usize;
        let begun: Vec<Answer<End<Part>>> = (0..buf.len().div_ceil(step))
            .map(|at| {
                let len = step.min(buf.len() - at * step);
                self.begin_read(offset + (at * step) as u64, len, &turn)
            })
            .collect();
        let mut done = 0;
        let mut is_whole = true;
        // All are heard, whatever the first says.
        for (part, answer) in buf.chunks_mut(step).zip(begun) {
            let end = answer.wait();
            if is_whole {
                let got = self.read_rest(part, offset + done as u64, &turn, end)?;
                done += got;
                is_whole = got == part.len();
            }
        }
        Ok(done)
    }

    /// Reads at most `len` bytes from `offset` on, in the background: the answer is a future of one
    /// call, which has fewer bytes where the server gives fewer at once.
    ///
    /// Waits only while as many calls are in flight as may be.
    pub fn read_later(&self, offset: u64, len: usize) -> Answer<Result<Vec<u8>>> {
        let (promise, answer) = promise();
        let len = len.min(self.client.0.limits.read_bytes as usize);
        if let Err(error) = check_range(len, offset) {
            promise.keep(Err(error));
            return answer;
        }
        let turn = self.read_turn(true).expect("it was waited for");
        self.client.0.link().submit(self.reading(offset, len, turn, |end| {
            promise.keep(match end {
                End::Done(part) => Ok(part.bytes().to_vec()),
                End::Later => Err(Error::status("read", Status::Jukebox)),
                End::Failed(error) => Err(error),
            });
        }));
        answer
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

    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// The server's; a part may be written then.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        check_range(buf.len(), offset)?;
        self.write_bytes(&Bytes::from(buf), offset)?;
        self.bound()
    }

    fn write_bytes(&self, bytes: &Bytes, offset: u64) -> Result<()> {
        let turn = self.turn(true).expect("it was waited for");
        let step = self.client.0.limits.write_bytes as usize;
        let begun: Vec<(Range<usize>, Answer<End<usize>>)> = (0..bytes.len().div_ceil(step))
            .map(|at| {
                let part = at * step..bytes.len().min((at + 1) * step);
                let answer = self.begin_write(bytes, part.clone(), offset, &turn);
                (part, answer)
            })
            .collect();
        let mut outcome = Ok(());
        for (part, answer) in begun {
            let end = answer.wait();
            if outcome.is_ok() {
                outcome = self.write_rest(bytes, part, offset, &turn, end);
            }
        }
        outcome
    }

    fn write_rest(
        &self,
        bytes: &Bytes,
        mut part: Range<usize>,
        offset: u64,
        turn: &Turn,
        first: End<usize>,
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
            end = self.begin_write(bytes, part.clone(), offset, turn).wait();
        }
    }

    /// Takes the turn of a write; `None` where another has it and it is not to be waited for.
    pub(crate) fn turn(&self, waits: bool) -> Option<Turn> {
        loop {
            let order = self.inode.order(true, waits).ok()?;
            let gate = self.inode.gate.take(false, waits)?;
            // An open may have made the mode stricter meanwhile.
            if order.is_some() || self.inode.mode() == Mode::Concurrent {
                return Some(Turn { _order: order.map(Arc::new), _gate: Some(Arc::new(gate)) });
            }
        }
    }

    /// Takes the turn of a read; likewise.
    pub(crate) fn read_turn(&self, waits: bool) -> Option<Turn> {
        let order = self.inode.order(false, waits).ok()?;
        Some(Turn { _order: order.map(Arc::new), _gate: None })
    }

    fn begin_read(&self, offset: u64, len: usize, turn: &Turn) -> Answer<End<Part>> {
        let (promise, answer) = promise();
        let call = self.reading(offset, len, turn.clone(), |end| promise.keep(end));
        self.client.0.link().submit(call);
        answer
    }

    /// Makes the call of a read of at most what the server allows.
    pub(crate) fn reading(
        &self,
        offset: u64,
        len: usize,
        turn: Turn,
        tell: impl FnOnce(End<Part>) + Send + 'static,
    ) -> Submission {
        let mut arguments = self.handle().arguments();
        arguments.u64(offset);
        arguments.u32(len as u32);
        self.client.0.submission(n::READ, &arguments, None, move |end| {
            drop(turn);
            tell(read_part(end, len));
        })
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
    pub(crate) fn writing(
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
        let mut arguments = self.handle().arguments();
        arguments.u64(at);
        arguments.u32(len);
        arguments.u32(stable);
        arguments.u32(len);
        let (inode, kept) = (Arc::clone(&self.inode), Arc::clone(bytes));
        let data = Some((Arc::clone(bytes), part.clone()));
        self.client.0.submission(n::WRITE, &arguments, data, move |end| {
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
        })
    }

    /// Makes a commit where more waits for one than may.
    pub(crate) fn bound(&self) -> Result<()> {
        let is_over = self.inode.kept.lock().bytes() > self.client.url().uncommitted_bytes;
        if is_over { self.sync() } else { Ok(()) }
    }

    /// Makes durable what was written, through whichever open of this client, before it was called.
    /// What a server lost that has started again is written again.
    ///
    /// # Errors
    /// The server's. What could not be made durable is kept, and the next sync tries it again.
    pub fn sync(&self) -> Result<()> {
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
        let mut arguments = self.handle().arguments();
        // All of the file.
        arguments.u64(0);
        arguments.u32(0);
        let committed = self.client.0.ask("make a file durable", n::COMMIT, &arguments, |from| {
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
        tracing::warn!(
            pieces = lost.len(),
            "the NFS server has lost what was not committed; it is written again"
        );
        let mut begun = Vec::new();
        for (at, piece) in lost {
            let (promise, answer) = promise();
            let offset = at - piece.part.start as u64;
            let (bytes, part) = (piece.bytes, piece.part);
            let tell = move |end| promise.keep(end);
            let call =
                self.writing_as(&bytes, part.clone(), offset, n::FILE_SYNC, None, tell);
            self.client.0.link().submit(call);
            begun.push((bytes, part, offset, answer));
        }
        let mut outcome = Ok(());
        for (bytes, part, offset, answer) in begun {
            let end = answer.wait();
            if outcome.is_ok() {
                outcome = self.again_rest(&bytes, part, offset, end);
            }
        }
        outcome
    }

    fn again_rest(
        &self,
        bytes: &Bytes,
        mut part: Range<usize>,
        offset: u64,
        first: End<usize>,
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
                End::Later => return Err(Error::status("write again", Status::Jukebox)),
                End::Failed(error) => return Err(error),
            }
            let (promise, answer) = promise();
            let tell = move |end| promise.keep(end);
            let call = self.writing_as(bytes, part.clone(), offset, n::FILE_SYNC, None, tell);
            self.client.0.link().submit(call);
            end = answer.wait();
        }
    }

    /// Ends the open: what was written is durable.
    ///
    /// # Errors
    /// As [`sync`](Self::sync); what could not be made durable is lost then, unless another open of
    /// the file in this client syncs it.
    pub fn close(mut self) -> Result<()> {
        self.is_closed = true;
        if self.writes { self.sync() } else { Ok(()) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.writes
            && !self.is_closed
            && let Err(error) = self.sync()
        {
            tracing::error!("what was written to a file over NFS is lost: {error}");
        }
        self.inode.close(self.mode);
    }
}

/// Refuses what no file holds.
pub(crate) fn check_range(len: usize, offset: u64) -> Result<()> {
    let end = offset.checked_add(len as u64).filter(|end| i64::try_from(*end).is_ok());
    end.map(drop).ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("no file has {len} bytes from byte {offset} on"))
    })
}

/// Reads the end of a READ of `len` bytes.
fn read_part(end: Result<Reply, Failed>, len: usize) -> End<Part> {
    let doing = "read";
    let reply = match end {
        Ok(reply) => reply,
        Err(failed) => return End::Failed(Error::failed(doing, &failed)),
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
        Err(failed) => return End::Failed(Error::failed(doing, &failed)),
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
