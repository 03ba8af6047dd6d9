//! An open file.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::cached::Pages;
use crate::client::{Client, Found};
use crate::handle::Handle;
use crate::inode::{Inode, Mode, Turn};
use crate::link::{Answer, Bytes, promise};
use crate::session::LockOwner;
use crate::transfer::{End, Transfer};
use crate::url::Stability;
use crate::wire::attr::{Attr, Changes, Kind};
use crate::wire::status::Status;
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
    /// How durable writes are that do not go through the cache; as the URL says where it is `None`.
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
    transfer: Transfer,
    mode: Mode,
    /// The open's own number.
    owner: u64,
    writes: bool,
    is_closed: bool,
    /// What may have locks through this open.
    owners: Mutex<Vec<LockOwner>>,
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
        self.open_granted(&found.handle, options)
    }

    /// Opens a file without a question whether this user may: the caller has asked, or has just made
    /// it. The server judges each call in any case.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_granted(&self, handle: &Handle, options: &OpenOptions) -> Result<File> {
        let inode = self.inode(handle);
        if options.write {
            inode.written_by(&self.1);
        }
        let owner = inode.open(options.mode);
        let stability = options.stability.unwrap_or(self.stability());
        let transfer = Transfer { client: self.clone(), inode, stability };
        let (mode, writes) = (options.mode, options.write);
        let file =
            File { transfer, mode, owner, writes, is_closed: false, owners: Mutex::default() };
        file.enter_mode()?;
        if options.truncate && options.write {
            file.set_size(0)?;
        }
        Ok(file)
    }
}

impl Client {
    /// Returns the attributes of a file as the opens of this client see it: with what they wrote
    /// that the server has not got yet, or may have lost.
    #[must_use]
    pub fn present(&self, handle: &Handle, mut attr: Attr) -> Attr {
        if let Some(inode) = self.known_inode(handle) {
            let pages = inode.pages.lock().clone();
            let kept_end = inode.kept.lock().end();
            attr.size = pages.map_or(attr.size.max(kept_end), |pages| pages.size());
        }
        attr
    }

    /// Makes a file longer or shorter, also for its opens in this client.
    ///
    /// # Errors
    /// The server's.
    pub fn set_size(&self, handle: &Handle, size: u64) -> Result<()> {
        cut(self, &self.inode(handle), size)
    }

    /// Writes to the server what pages of a file hold, so that times that are set then stay.
    ///
    /// # Errors
    /// The server's.
    pub fn write_back(&self, handle: &Handle) -> Result<()> {
        let pages = self.known_inode(handle).and_then(|inode| inode.pages.lock().clone());
        pages.map_or(Ok(()), |pages| pages.flush())
    }
}

/// Moves the end of a file.
fn cut(client: &Client, inode: &Inode, size: u64) -> Result<()> {
    check_range(0, size)?;
    let _order = inode.order(true, true);
    let pages = inode.pages.lock().clone();
    let change = pages.as_ref().map(|pages| pages.begin_cut(size));
    // A write in flight would make it longer again.
    let _alone = inode.gate.wait(true);
    let changes = Changes { size: Some(size), ..Changes::default() };
    let done = client.set_attributes_under(Some(&inode.guard), &inode.handle, &changes);
    if done.is_ok() {
        inode.kept.lock().forget(size, u64::MAX - size);
        if let Some(pages) = &pages {
            pages.end_cut(size);
        }
    }
    drop(change);
    done
}

impl File {
    /// Brings the file into the mode that this open asks for.
    fn enter_mode(&self) -> Result<()> {
        let inode = &self.transfer.inode;
        match self.mode {
            Mode::Concurrent => Ok(()),
            Mode::Direct => {
                // Writes that began in another mode end first.
                drop(inode.gate.wait(true));
                Ok(())
            }
            Mode::Cached => {
                let _alone = inode.lock.wait(true);
                drop(inode.gate.wait(true));
                let known = inode.pages.lock().clone();
                match known {
                    Some(pages) => {
                        pages.flush()?;
                        pages.compare(&self.attributes()?)
                    }
                    None => {
                        let pages = Pages::open(&self.transfer)?;
                        *inode.pages.lock() = Some(Arc::new(pages));
                        Ok(())
                    }
                }
            }
        }
    }

    /// Returns by what the server knows it.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.transfer.inode.handle
    }

    pub(crate) fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// Returns as what it is served while its opens disagree.
    #[must_use]
    pub fn effective_mode(&self) -> Mode {
        self.transfer.inode.mode()
    }

    /// Returns its attributes, from the server.
    ///
    /// # Errors
    /// The server's.
    pub fn attributes(&self) -> Result<Attr> {
        self.transfer.client.attributes(self.handle())
    }

    /// Returns its size in bytes: from the server, and of a file with pages in the cache with what
    /// was written there.
    ///
    /// # Errors
    /// The server's.
    pub fn size(&self) -> Result<u64> {
        let pages = self.transfer.inode.pages.lock().clone();
        pages.map_or_else(|| Ok(self.attributes()?.size), |pages| Ok(pages.size()))
    }

    /// Makes it longer or shorter.
    ///
    /// # Errors
    /// The server's.
    pub fn set_size(&self, size: u64) -> Result<()> {
        cut(&self.transfer.client, &self.transfer.inode, size)
    }

    /// Fills `buf` from `offset`, as far as the file goes; returns how much that was.
    ///
    /// # Errors
    /// The server's.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        check_range(buf.len(), offset)?;
        let turn = self.turn(false, true).expect("it was waited for");
        match &turn.pages {
            Some(pages) => pages.read(buf, offset),
            None => self.transfer.read(buf, offset, &turn),
        }
    }

    /// Reads at most `len` bytes from `offset` on, in the background: the answer is a future of one
    /// call, past the cache, which has fewer bytes where the server gives fewer at once.
    ///
    /// Waits only while as many calls are in flight as may be.
    pub fn read_later(&self, offset: u64, len: usize) -> Answer<Result<Vec<u8>>> {
        let (promise, answer) = promise();
        let len = len.min(self.transfer.client.0.limits.read_bytes as usize);
        if let Err(error) = check_range(len, offset) {
            promise.keep(Err(error));
            return answer;
        }
        let turn = self.turn(false, true).expect("it was waited for");
        if let Some(pages) = &turn.pages {
            let mut bytes = vec![0; len];
            let read = pages.read(&mut bytes, offset);
            promise.keep(read.map(|read| {
                bytes.truncate(read);
                bytes
            }));
            return answer;
        }
        let call = self.transfer.reading(offset, len, turn, |end| {
            promise.keep(match end {
                End::Done(part) => Ok(part.bytes().to_vec()),
                End::Later => Err(Error::status("read", Status::Jukebox)),
                End::Failed(error) => Err(error),
            });
        });
        self.transfer.client.0.link().submit(call);
        answer
    }

    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// The server's; a part may be written then.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.write_shared(&Bytes::from(buf), offset)
    }

    /// As [`write_at`](Self::write_at), of bytes that need not be copied.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn write_shared(&self, bytes: &Arc<[u8]>, offset: u64) -> Result<()> {
        check_range(bytes.len(), offset)?;
        let turn = self.turn(true, true).expect("it was waited for");
        if let Some(pages) = &turn.pages {
            return pages.write(bytes, offset);
        }
        self.transfer.write(bytes, offset, &turn)?;
        // A commit that writes again has to be alone.
        drop(turn);
        self.transfer.bound()
    }

    /// Takes the turn of an access; `None` where another has it and it is not to be waited for.
    pub(crate) fn turn(&self, writes: bool, waits: bool) -> Option<Turn> {
        self.transfer.inode.turn(writes, waits)
    }

    /// Makes durable what was written, through whichever open of this client, before it was called.
    /// What a server lost that has started again is written again.
    ///
    /// # Errors
    /// The server's. What could not be made durable is kept, and the next sync tries it again.
    pub fn sync(&self) -> Result<()> {
        let earlier = self.transfer.inode.failure.lock().take();
        let pages = self.transfer.inode.pages.lock().clone();
        let written = pages.map_or(Ok(()), |pages| pages.flush());
        let synced = self.transfer.sync();
        earlier.map_or(Ok(()), Err).and(written).and(synced)
    }

    /// Returns this open as an owner of locks.
    #[must_use]
    pub fn owner(&self) -> LockOwner {
        LockOwner { number: self.owner, process: std::process::id() }
    }

    /// Notes that an owner may have locks through this open, which end with it.
    pub(crate) fn locked_by(&self, owner: LockOwner) {
        let mut owners = self.owners.lock();
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }

    pub(crate) fn locks_no_more(&self, owner: LockOwner) {
        self.owners.lock().retain(|known| known.number != owner.number);
    }

    /// Ends the open: what was written is durable.
    ///
    /// # Errors
    /// As [`sync`](Self::sync); what could not be made durable is lost then, unless another open of
    /// the file in this client syncs it.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        let inode = &self.transfer.inode;
        let mut done = if self.writes { self.sync() } else { Ok(()) };
        let owners = std::mem::take(&mut *self.owners.lock());
        for owner in owners {
            done = done.and(self.unlock_all(owner));
        }
        if self.mode != Mode::Cached {
            inode.close(self.mode);
            return done;
        }
        let _alone = inode.lock.wait(true);
        let pages = inode.pages.lock().clone().filter(|_| inode.is_last(self.mode));
        if let Some(pages) = pages {
            // Other opens wrote into the cache, too; from then on they go past it.
            let written = pages.flush().and_then(|()| self.transfer.sync());
            if let Err(error) = &written {
                *inode.failure.lock() = Some(error.clone());
            }
            done = done.and(written);
            *inode.pages.lock() = None;
        }
        inode.close(self.mode);
        done
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!("what was written to a file over NFS is lost: {error}");
        }
    }
}

/// Refuses what no file holds.
pub(crate) fn check_range(len: usize, offset: u64) -> Result<()> {
    let end = offset.checked_add(len as u64).filter(|end| i64::try_from(*end).is_ok());
    end.map(drop).ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("no file has {len} bytes from byte {offset} on"))
    })
}
