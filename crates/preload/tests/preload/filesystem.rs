//! A mount with two files, `data` and `other`, that counts what reaches it.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use bedplate_lease::wire::{LEASE_IOCTL, SYNC_IOCTL, TAIL_IOCTL, TailRequest};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    IoctlFlags, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyOpen, ReplyWrite, Request, Session, SessionACL, WriteFlags,
};

use super::daemon::Daemon;

pub const DATA: u64 = 2;
pub const OTHER: u64 = 3;
pub const SIZE: u64 = 256 << 10;

/// What reached the mount.
#[derive(Default)]
pub struct Seen {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub syncs: AtomicU64,
    pub ioctls: AtomicU64,
    /// Syncs that were asked for by an ioctl.
    pub syncs_beside: AtomicU64,
    /// So many of those are answered together.
    pub syncs_together: AtomicU64,
    syncs_waiting: Mutex<Vec<ReplyIoctl>>,
    pub open: AtomicU64,
    /// The bytes of both files.
    pub bytes: Mutex<[Vec<u8>; 2]>,
}

struct Files {
    seen: Arc<Seen>,
    daemon: Arc<Daemon>,
}

fn attributes(ino: INodeNo) -> FileAttr {
    let is_root = ino == INodeNo::ROOT;
    FileAttr {
        ino,
        size: SIZE,
        blocks: SIZE / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_root { FileType::Directory } else { FileType::RegularFile },
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

const TTL: Duration = Duration::from_secs(60);

impl Files {
    fn with<T>(&self, ino: INodeNo, run: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        run(&mut self.seen.bytes.lock().unwrap()[(ino.0 - DATA) as usize])
    }
}

impl Files {
    /// Answers a sync once as many wait as are to be answered together.
    fn sync_beside(&self, reply: ReplyIoctl) {
        self.seen.syncs_beside.fetch_add(1, Ordering::SeqCst);
        let mut waiting = self.seen.syncs_waiting.lock().unwrap();
        waiting.push(reply);
        if waiting.len() as u64 == self.seen.syncs_together.load(Ordering::SeqCst) {
            waiting.drain(..).for_each(|reply| reply.ioctl(0, &[]));
        }
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ino = match name.as_bytes() {
            b"data" => DATA,
            b"other" => OTHER,
            _ => return reply.error(Errno::ENOENT),
        };
        reply.entry(&TTL, &attributes(INodeNo(ino)), Generation(0));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.seen.open.fetch_add(1, Ordering::SeqCst);
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.seen.open.fetch_sub(1, Ordering::SeqCst);
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.seen.reads.fetch_add(1, Ordering::SeqCst);
        self.with(ino, |bytes| {
            let at = (offset as usize).min(bytes.len());
            reply.data(&bytes[at..(at + size as usize).min(bytes.len())]);
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.seen.writes.fetch_add(1, Ordering::SeqCst);
        self.with(ino, |bytes| {
            let end = offset as usize + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[offset as usize..end].copy_from_slice(data);
        });
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.seen.syncs.fetch_add(1, Ordering::SeqCst);
        reply.ok();
    }

    fn ioctl(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        self.seen.ioctls.fetch_add(1, Ordering::SeqCst);
        if command == SYNC_IOCTL && self.seen.syncs_together.load(Ordering::SeqCst) > 0 {
            return self.sync_beside(reply);
        }
        if command == TAIL_IOCTL && self.daemon.give_tail() {
            return reply.ioctl(0, &TailRequest::answer(Ok(())));
        }
        if command != LEASE_IOCTL || !self.daemon.answers_ioctl() {
            return reply.error(Errno::ENOTTY);
        }
        reply.ioctl(0, &self.daemon.offer(ino.0).encode());
    }
}

/// A mount that lives as long as this.
pub struct Mounted {
    pub path: PathBuf,
    pub seen: Arc<Seen>,
    serving: Option<JoinHandle<()>>,
}

impl Mounted {
    /// Nothing where this machine mounts nothing.
    pub fn new(path: &Path, daemon: &Arc<Daemon>) -> Option<Self> {
        let fuse = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        std::fs::create_dir(path).unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
        let target = CString::new(path.as_os_str().as_bytes()).unwrap();
        let options = CString::new(options).unwrap();
        // SAFETY: the kernel reads the strings.
        let result = unsafe {
            libc::mount(
                c"lease-test".as_ptr(),
                target.as_ptr(),
                c"fuse".as_ptr(),
                0,
                options.as_ptr().cast(),
            )
        };
        if result != 0 {
            return None;
        }
        let seen = Arc::new(Seen::default());
        *seen.bytes.lock().unwrap() = [vec![b'M'; SIZE as usize], vec![b'O'; SIZE as usize]];
        let files = Files { seen: Arc::clone(&seen), daemon: Arc::clone(daemon) };
        let path = path.to_owned();
        let serving = std::thread::spawn(move || {
            let session =
                Session::from_fd(files, fuse.into(), SessionACL::All, Config::default()).unwrap();
            let _ = session.run();
        });
        Some(Self { path, seen, serving: Some(serving) })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let target = CString::new(self.path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the kernel reads the string.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}
