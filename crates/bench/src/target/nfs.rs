//! A directory of an NFS server, through the client of this project: files of its own below it,
//! removed when the run ends.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bedplate::AlignedBuf;
use bedplate_nfs::{
    Client, Completion, ErrorKind, Found, Kind, LOCK_END, Mode, OpenOptions, Queue, Url,
};
use parking_lot::Mutex;

use super::raw::too_small;
use super::{
    Done, FileSpec, FileState, Op, OpKind, PageCacheLimit, QueueSetup, Target, TargetFile,
    TargetInfo, TargetQueue, fill,
};
use crate::measure::DeviceOps;
use crate::{Error, Result};

/// A directory of a server.
pub(crate) struct NfsTarget {
    info: TargetInfo,
    client: Client,
    parent: Found,
    name: Vec<u8>,
    directory: Found,
    mode: Mode,
    files: Mutex<BTreeMap<String, FileSpec>>,
}

fn failed(info: &TargetInfo) -> impl Fn(bedplate_nfs::Error) -> Error + '_ {
    move |e| Error::io(&info.label, "over NFS", e)
}

impl NfsTarget {
    /// Connects, and makes the directory of the run.
    pub(crate) fn new(mut info: TargetInfo, url: &Url, mode: Mode) -> Result<Self> {
        let (client, below) = Client::connect(url).map_err(|e| Error::target(e.message))?;
        let parent = client.find(&below).map_err(failed(&info))?;
        if parent.attr.kind != Kind::Directory {
            return Err(Error::target(format!(
                "{url}: an NFS target is a directory of the server and this is none"
            )));
        }
        let (read, write) = client.transfer_bytes();
        info.file_system = Some(format!("nfs, vers=3, rsize={read}, wsize={write}, mode={mode}"));
        // Targets of one run may lie in one directory.
        let label = info.label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
        let label: String = label.collect();
        let name = format!("bedplate-bench-{}-{label}", std::process::id()).into_bytes();
        let directory = match client.make_directory(&parent.handle, &name, 0o700) {
            Err(e) if e.kind == ErrorKind::Exists => client.lookup(&parent.handle, &name),
            made => made,
        };
        let directory = directory.map_err(failed(&info))?;
        Ok(Self { info, client, parent, name, directory, mode, files: Mutex::default() })
    }

    fn file(&self, name: &str, create: bool) -> Result<NfsFile> {
        let failed = failed(&self.info);
        let options = OpenOptions { truncate: create, ..OpenOptions::create(self.mode) };
        let dir = &self.directory.handle;
        let found = if create {
            self.client.create(dir, name.as_bytes(), 0o600, false)
        } else {
            self.client.lookup(dir, name.as_bytes())
        };
        let file = self.client.open_found(&found.map_err(&failed)?, &options).map_err(&failed)?;
        Ok(NfsFile { file: Arc::new(file), label: self.info.label.clone() })
    }
}

impl Drop for NfsTarget {
    fn drop(&mut self) {
        // A failure is not reported; the name says what made it.
        let dir = &self.directory.handle;
        for name in self.files.lock().keys() {
            let _removed = self.client.remove(dir, name.as_bytes());
        }
        let _removed = self.client.remove_directory(&self.parent.handle, &self.name);
    }
}

impl Target for NfsTarget {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn capacity_bytes(&self) -> Result<u64> {
        Ok(self.client.room().map_err(failed(&self.info))?.available_bytes)
    }

    fn create(&self, spec: &FileSpec) -> Result<()> {
        // The protocol allocates nothing ahead, and does not say where files lie.
        let is_filled = match spec.state {
            FileState::Written | FileState::Unwritten | FileState::Scattered => true,
            FileState::Empty => false,
        };
        if is_filled && self.files.lock().get(&spec.name) == Some(spec) {
            return Ok(());
        }
        self.remove(&spec.name)?;
        let free = self.capacity_bytes()?;
        if free < spec.size_bytes {
            return Err(too_small(&self.info, free, spec.size_bytes));
        }
        let file = self.file(&spec.name, true)?;
        self.files.lock().insert(spec.name.clone(), spec.clone());
        if is_filled { fill(&file, spec.size_bytes) } else { Ok(()) }
    }

    fn open(&self, name: &str) -> Result<Box<dyn TargetFile>> {
        Ok(Box::new(self.file(name, false)?))
    }

    fn open_lockable(&self, name: &str) -> Result<Box<dyn TargetFile>> {
        self.open(name)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.files.lock().remove(name);
        match self.client.remove(&self.directory.handle, name.as_bytes()) {
            Err(e) if e.kind != ErrorKind::NotFound => Err(failed(&self.info)(e)),
            _ => Ok(()),
        }
    }

    fn queue(&self, files: &[String], setup: &QueueSetup) -> Result<Box<dyn TargetQueue>> {
        let files = files.iter().map(|name| Ok(self.file(name, false)?.file));
        Ok(Box::new(NfsQueue::new(files.collect::<Result<_>>()?, setup, &self.info.label)))
    }

    fn quiesce(&self) -> Result<()> {
        // A file is durable when it is closed.
        Ok(())
    }

    fn make_cold(&self) -> Result<()> {
        // Nothing is kept here; what the server keeps is not the client's to forget.
        Ok(())
    }

    fn set_cache_bytes(&self, _bytes: u64) -> Result<Option<PageCacheLimit>> {
        Ok(None)
    }

    fn count_requests(&self, _on: bool) -> bool {
        false
    }

    fn device_ops(&self) -> Option<DeviceOps> {
        None
    }
}

/// A file of a server.
pub(crate) struct NfsFile {
    pub file: Arc<bedplate_nfs::File>,
    /// What messages call the target.
    pub label: String,
}

impl NfsFile {
    fn lock_bytes(&self, range: Range<u64>, is_exclusive: bool) -> Result<()> {
        let locked = self.file.lock(self.file.owner(), range, is_exclusive, (true, &|| false));
        locked.map(|_waited_for| ()).map_err(|e| self.failed("lock", e))
    }

    fn failed(&self, action: &str, e: bedplate_nfs::Error) -> Error {
        Error::io(&self.label, action, e)
    }
}

fn ended(label: &str) -> Error {
    Error::target(format!("{label}: the file ends before what is read of it"))
}

impl TargetFile for NfsFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let read = self.file.read_at(buf, offset).map_err(|e| self.failed("read", e))?;
        if read == buf.len() { Ok(()) } else { Err(ended(&self.label)) }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.file.write_at(buf, offset).map_err(|e| self.failed("write", e))
    }

    fn sync_data(&self) -> Result<()> {
        self.file.sync().map_err(|e| self.failed("sync", e))
    }

    fn align_bytes(&self) -> u64 {
        1
    }

    fn lock_range(&self, offset: u64, len: u64, exclusive: bool) -> Result<()> {
        self.lock_bytes(offset..offset + len, exclusive)
    }

    fn unlock_range(&self, offset: u64, len: u64) -> Result<()> {
        let range = offset..offset + len;
        self.file.unlock(self.file.owner(), &range).map_err(|e| self.failed("unlock", e))
    }

    fn lock(&self, exclusive: bool) -> Result<()> {
        self.lock_bytes(0..LOCK_END, exclusive)
    }

    fn unlock(&self) -> Result<()> {
        let all = 0..LOCK_END;
        self.file.unlock(self.file.owner(), &all).map_err(|e| self.failed("unlock", e))
    }
}

/// A list over files of one server.
pub(crate) struct NfsQueue {
    queue: Queue,
    files: Vec<Arc<bedplate_nfs::File>>,
    setup: QueueSetup,
    label: String,
    scratch: Vec<Completion>,
}

impl NfsQueue {
    pub(crate) fn new(
        files: Vec<Arc<bedplate_nfs::File>>,
        setup: &QueueSetup,
        label: &str,
    ) -> Self {
        Self {
            files,
            queue: Queue::new(setup.depth),
            setup: *setup,
            label: label.to_owned(),
            scratch: Vec::with_capacity(setup.depth),
        }
    }
}

impl TargetQueue for NfsQueue {
    fn take_buffer(&mut self) -> AlignedBuf {
        AlignedBuf::zeroed(self.setup.buffer_bytes)
    }

    fn push(&mut self, op: Op, buf: AlignedBuf) -> Result<()> {
        let file = &self.files[op.file];
        let pushed = match op.kind {
            OpKind::Read => self.queue.read(file, buf, op.offset, op.token),
            OpKind::Write => self.queue.write(file, buf, op.offset, op.token),
        };
        pushed.map_err(|_| Error::target("the queue took fewer operations than it was opened for"))
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Done>) -> Result<()> {
        self.queue.complete(min, &mut self.scratch);
        for completion in self.scratch.drain(..) {
            let moved = completion.result.map_err(|e| Error::io(&self.label, "over NFS", e))?;
            if moved < completion.buf.len() {
                return Err(ended(&self.label));
            }
            out.push(Done { token: completion.token, buf: completion.buf });
        }
        Ok(())
    }
}
