//! Files that are open, and their data, which goes past every cache of the kernel.

use std::sync::Arc;

use bedplate_nfs::{
    Client, ErrorKind, File, Found, Handle, LockOwner, Mode, OpenOptions, Stability,
};

use super::attrs::small;
use super::nodes::Node;
use super::requests::{Asked, Done, Remote};
use crate::fuse::data::Opened as Told;
use crate::fuse::errno::{Answer, Errno};
use crate::fuse::translate::answers::put_opened;

/// Bits of ACCESS.
pub(super) const MAY_READ: u32 = 0x01;
pub(super) const MAY_WRITE: u32 = 0x04 | 0x08;
pub(super) const MAY_RUN: u32 = 0x20;
/// An open that is to run the file (`__FMODE_EXEC`).
const TO_RUN: i32 = 0x20;

/// A file that is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) client: Client,
    pub(super) node: Arc<Node>,
    writes: bool,
    /// Its writes are durable when they are answered.
    is_stable: bool,
}

impl Remote {
    pub(super) fn open(&self, asked: &Asked) -> Answer<Done> {
        let flags = asked.fields().u32(0).cast_signed();
        let client = self.callers.of(asked.header());
        let node = self.nodes.get(asked.header().node)?;
        let wanted = match flags & libc::O_ACCMODE {
            libc::O_RDONLY if flags & TO_RUN != 0 => MAY_RUN,
            libc::O_RDONLY => MAY_READ,
            libc::O_WRONLY => MAY_WRITE,
            _ => MAY_READ | MAY_WRITE,
        };
        if client.access(&node.handle, wanted)? != wanted {
            return Err(Errno::of_code(libc::EACCES));
        }
        let number = self.open_node(&client, &node, flags)?;
        self.compare(&client, &node);
        Ok(Done {
            bytes: small(|out| self.put_opened(out, number)),
            file: Some(number),
            ..Done::default()
        })
    }

    /// Has the kernel ask for what it keeps of a file where another client changed it: what was
    /// closed there is seen by what is opened here.
    fn compare(&self, client: &Client, node: &Node) {
        let Ok(attr) = client.attributes(&node.handle) else { return };
        let is_other = node.note(&client.present(&node.handle, attr));
        if let (true, Some(notifier)) = (is_other, self.notifier.get())
            // Attributes alone: nothing that the kernel would wait for.
            && let Err(error) = notifier.inval_inode(node.number, -1, 0)
        {
            tracing::debug!("the kernel kept the attributes of a file: {error}");
        }
    }

    pub(super) fn create(&self, asked: &Asked) -> Answer<Done> {
        let (fields, name) = (asked.fields(), asked.name()?);
        let (flags, mode) = (fields.u32(0).cast_signed(), fields.u32(4) & 0o7777);
        let client = self.callers.of(asked.header());
        let dir = self.nodes.get(asked.header().node)?;
        let found = if flags & libc::O_EXCL != 0 {
            client.create_new(&dir.handle, name, mode)?
        } else {
            make_or_find(&client, &dir.handle, name, mode)?
        };
        let mut done = self.entry(&found);
        let opened = self
            .nodes
            .find(&found.handle)
            .ok_or(Errno::STALE)
            .and_then(|node| self.open_node(&client, &node, flags));
        match opened {
            Ok(number) => {
                done.bytes.extend(small(|out| self.put_opened(out, number)));
                done.file = Some(number);
                Ok(done)
            }
            Err(errno) => {
                done.nodes.iter().for_each(|number| self.nodes.forget(*number, 1));
                Err(errno)
            }
        }
    }

    fn put_opened(&self, out: &mut crate::fuse::translate::answers::Out<'_>, handle: u64) {
        put_opened(out, Told { handle, direct: true, parallel: self.mode == Mode::Concurrent });
    }

    fn open_node(&self, client: &Client, node: &Arc<Node>, flags: i32) -> Answer<u64> {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let stability = match flags & libc::O_SYNC {
            0 => None,
            libc::O_SYNC => Some(Stability::FileSync),
            _ => Some(Stability::DataSync),
        };
        let stability = stability.filter(|_| self.mode != Mode::Cached);
        let options = OpenOptions { write: writes, stability, ..OpenOptions::read_only(self.mode) };
        let told = client.url().stability;
        let is_stable =
            stability.unwrap_or(told) != Stability::Unstable && self.mode != Mode::Cached;
        node.state.lock().opens += 1;
        match client.open_granted(&node.handle, &options) {
            Ok(file) => {
                let (client, node) = (client.clone(), Arc::clone(node));
                Ok(self.files.insert(Opened { file, client, node, writes, is_stable }))
            }
            Err(error) => {
                node.state.lock().opens -= 1;
                Self::unhide(node);
                Err(error.into())
            }
        }
    }

    pub(super) fn read(&self, asked: &Asked) -> Answer<Done> {
        let fields = asked.fields();
        let opened = self.files.get(fields.u64(0))?;
        let mut bytes = vec![0; (fields.u32(16) as usize).min(super::mount::PAYLOAD_BYTES_MAX)];
        let len = opened.file.read_at(&mut bytes, fields.u64(8))?;
        bytes.truncate(len);
        Ok(Done::of(bytes))
    }

    pub(super) fn write(&self, asked: &Asked) -> Answer<Done> {
        let fields = asked.fields();
        let (offset, size, flags) = (fields.u64(8), fields.u32(16), fields.u32(32).cast_signed());
        let opened = self.files.get(fields.u64(0))?;
        if asked.payload.len() == size as usize {
            opened.file.write_shared(&asked.payload, offset)?;
        } else {
            let part = asked.payload.get(..size as usize).ok_or(Errno::IO)?;
            opened.file.write_at(part, offset)?;
        }
        // Also of this one call (`RWF_DSYNC`).
        if flags & libc::O_DSYNC != 0 && !opened.is_stable {
            opened.file.sync()?;
        }
        Ok(Done::of(small(|out| {
            out.u32(size);
            out.u32(0);
        })))
    }

    pub(super) fn sync(&self, asked: &Asked) -> Answer<Done> {
        self.files.get(asked.fields().u64(0))?.file.sync()?;
        Ok(Done::default())
    }

    /// Makes durable what was written, with the close of a descriptor, so that other clients see it
    /// and a failure is told. With it end the process's locks of the file.
    pub(super) fn flush(&self, asked: &Asked) -> Answer<Done> {
        let fields = asked.fields();
        let opened = self.files.get(fields.u64(0))?;
        let synced = if opened.writes { opened.file.sync() } else { Ok(()) };
        if opened.client.locks_on_server() {
            let owner = LockOwner { number: fields.u64(16), process: asked.header().pid };
            opened.file.unlock_all(owner)?;
        }
        synced?;
        Ok(Done::default())
    }

    /// Ends an open.
    pub(super) fn release(&self, number: u64) {
        if let Some(opened) = self.files.remove(number) {
            end(opened);
        }
    }

    /// Ends all opens, so that all that was written is durable. Returns the failures.
    pub(super) fn release_all(&self) -> Vec<bedplate_nfs::Error> {
        let all = self.files.drain().into_iter();
        let synced = all.map(|opened| {
            let synced = if opened.writes { opened.file.sync() } else { Ok(()) };
            end(opened);
            synced
        });
        synced.filter_map(Result::err).collect()
    }
}

/// Ends an open, unless a call still uses it, which then does.
fn end(opened: Arc<Opened>) {
    let node = Arc::clone(&opened.node);
    // The kernel lets go of a file after its last call: only one whose caller was killed is left.
    drop(opened);
    node.state.lock().opens -= 1;
    Remote::unhide(&node);
}

/// Takes the file of a name, or makes it.
fn make_or_find(
    client: &Client,
    dir: &Handle,
    name: &[u8],
    mode: u32,
) -> Result<Found, bedplate_nfs::Error> {
    match client.create(dir, name, mode, false) {
        // It is there, and is no file.
        Err(error) if error.kind == ErrorKind::Exists => client.lookup(dir, name),
        made => made,
    }
}
