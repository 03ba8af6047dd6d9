//! Mode `cached`: pages of files in the memory of this client, by the cache of the library.
//!
//! ```text
//!   read, write ── the inode's `lock`, shared and exclusive ── Pages ── PageCache
//!                                                                 │ read ahead, written behind
//!                                    Transfer ── READ, WRITE ◄── Wire, the cache's way to the server
//! ```
//! Close-to-open: an open asks the server for the file's attributes, and forgets the pages where it was
//! changed by others; a close writes what is dirty and commits it. Pages are those of the opens that
//! there are: with the last one they are gone.

use std::sync::atomic::{AtomicU64, Ordering, Ordering::AcqRel, Ordering::Acquire};
use std::sync::{Arc, Weak};

use bedplate_cache::{Backing, CachedFile, MapChange, Release};
use parking_lot::Mutex;

use crate::client::{Client, Inner};
use crate::inode::{CachedPages, Inode};
use crate::link::Bytes;
use crate::transfer::Transfer;
use crate::url::{ReleaseBehind, Stability};
use crate::wire::attr::Attr;
use crate::{Error, ErrorKind, Result};

/// One file's pages.
#[derive(Debug)]
pub(crate) struct Pages {
    file: CachedFile,
    size: Arc<AtomicU64>,
    wire: Arc<Wire>,
    /// By what is seen that others changed the file.
    seen: Mutex<Seen>,
}

/// What tells one state of a file from another.
type Seen = ([u32; 2], [u32; 2], u64);

fn seen(attr: &Attr) -> Seen {
    (attr.mtime, attr.ctime, attr.size)
}

impl Pages {
    /// Begins with no page of a file; nothing of it is in flight.
    pub fn open(transfer: &Transfer) -> Result<Self> {
        let attr = transfer.client.attributes(&transfer.inode.handle)?;
        let size = Arc::new(AtomicU64::new(attr.size));
        let wire = Arc::new(Wire {
            inner: Arc::downgrade(&transfer.client.0),
            inode: Arc::downgrade(&transfer.inode),
            size: AtomicU64::new(attr.size),
        });
        let backing: Arc<dyn Backing> = Arc::clone(&wire) as _;
        let cache = &transfer.client.0.cache;
        let file = cache.file(attr.number, Arc::downgrade(&backing), Arc::clone(&size));
        let release = transfer.client.url().release_behind;
        file.set_release(Release {
            read: matches!(release, ReleaseBehind::Read | ReleaseBehind::Both),
            written: matches!(release, ReleaseBehind::Written | ReleaseBehind::Both),
        });
        Ok(Self { file, size, wire, seen: Mutex::new(seen(&attr)) })
    }
}

impl CachedPages for Pages {
    fn compare(&self, attr: &Attr) -> Result<()> {
        let is_same = *self.seen.lock() == seen(attr);
        if is_same { Ok(()) } else { self.forget(attr) }
    }

    fn forget(&self, attr: &Attr) -> Result<()> {
        *self.seen.lock() = seen(attr);
        drop(self.file.begin_truncate(attr.size));
        drop(self.file.begin_map_change(0, u64::MAX).map_err(of_cache)?);
        self.wire.size.store(attr.size, Ordering::Release);
        Ok(())
    }

    fn size(&self) -> u64 {
        self.size.load(Acquire)
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buf, offset).map(|(read, _hit)| read).map_err(of_cache)
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            done += self.file.write_at(&buf[done..], offset + done as u64).map_err(of_cache)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.file.flush().map_err(of_cache)
    }

    fn begin_cut(&self, size: u64) -> MapChange {
        self.file.begin_truncate(size)
    }

    fn end_cut(&self, size: u64) {
        self.wire.size.store(size, Ordering::Release);
    }
}

/// The cache's way to the server. It holds nothing: what it needs is there as long as the file is open.
#[derive(Debug)]
struct Wire {
    inner: Weak<Inner>,
    inode: Weak<Inode>,
    /// Up to where the server has it.
    size: AtomicU64,
}

impl Wire {
    fn transfer(&self) -> Result<Transfer> {
        let (inner, inode) = (self.inner.upgrade(), self.inode.upgrade());
        let Some((inner, inode)) = inner.zip(inode) else {
            return Err(Error::new(ErrorKind::Closed, "the file is closed"));
        };
        let user = inode.writer();
        Ok(Transfer { client: Client(inner, user), inode, stability: Stability::Unstable })
    }
}

impl Backing for Wire {
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> bedplate_store::Result<usize> {
        let mut read = || -> Result<usize> {
            let transfer = self.transfer()?;
            transfer.read(buf, offset, &transfer.inode.no_turn())
        };
        let read = read().map_err(of_nfs)?;
        // Behind what the server has.
        buf[read..].fill(0);
        Ok(buf.len())
    }

    fn write_direct(&self, buf: &[u8], offset: u64, size_after: u64) -> bedplate_store::Result<()> {
        let end = (offset + buf.len() as u64).min(size_after);
        let len = end.saturating_sub(offset) as usize;
        let write = || -> Result<()> {
            let transfer = self.transfer()?;
            let turn = transfer.inode.write_back_turn();
            transfer.write(&Bytes::from(&buf[..len]), offset, &turn)?;
            drop(turn);
            transfer.bound()
        };
        write().map_err(of_nfs)?;
        self.size.fetch_max(end, AcqRel);
        Ok(())
    }

    fn reserve(&self, _offset: u64, _len: u64) -> bedplate_store::Result<()> {
        // The server says when it has no room.
        Ok(())
    }

    fn size(&self) -> u64 {
        self.size.load(Acquire)
    }
}

/// Makes an error of the cache of ours; [`of_cache`] takes it back.
fn of_nfs(error: Error) -> bedplate_store::Error {
    use bedplate_store::ErrorKind as K;
    let kind = match error.kind {
        ErrorKind::NoSpace => K::NoSpace,
        ErrorKind::NotFound | ErrorKind::Stale | ErrorKind::Closed => K::NotFound,
        ErrorKind::Permission => K::NotPermitted,
        ErrorKind::ReadOnly => K::ReadOnly,
        _ => K::Io,
    };
    bedplate_store::Error::new(kind, error.message)
}

fn of_cache(error: bedplate_store::Error) -> Error {
    use bedplate_store::ErrorKind as K;
    let kind = match error.kind {
        K::NoSpace => ErrorKind::NoSpace,
        K::NotFound => ErrorKind::Stale,
        K::NotPermitted => ErrorKind::Permission,
        K::ReadOnly => ErrorKind::ReadOnly,
        _ => ErrorKind::Io,
    };
    Error::new(kind, error.message)
}
