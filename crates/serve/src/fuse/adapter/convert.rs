//! Values of the file system in the protocol library's types, and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bedplate_fs::{Attr, FileKind, Timestamp};
use fuser::{FileAttr, FileType, FopenFlags, Generation, INodeNo, Request, TimeOrNow};

use super::super::data::Opened;
use super::super::errno::Errno;
use super::super::names::Caller;

impl From<Errno> for fuser::Errno {
    fn from(errno: Errno) -> Self {
        Self::from_i32(errno.code())
    }
}

pub(super) fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), thread: req.pid() }
}

pub(super) fn open_flags(opened: Opened) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, !opened.direct);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct);
    flags.set(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES, opened.parallel);
    flags
}

/// Returns what tells an inode from another of the same number, for file handles.
///
/// A volume gives no number twice, except one whose creation a power cut undid: that inode was born
/// at another time. 32 bits are what a handle keeps.
pub(in crate::fuse) fn generation_of(attr: &Attr) -> u64 {
    const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    attr.btime.0.cast_unsigned().wrapping_mul(GOLDEN_RATIO) >> 32
}

pub(super) fn generation(attr: &Attr) -> Generation {
    Generation(generation_of(attr))
}

/// Converts attributes; `block_size` becomes what `stat` calls the preferred size.
pub(super) fn file_attr(attr: &Attr, block_size: u32) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.allocated_bytes.div_ceil(512),
        atime: attr.atime.into(),
        mtime: attr.mtime.into(),
        ctime: attr.ctime.into(),
        crtime: attr.btime.into(),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: block_size,
        flags: 0,
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn time_or_now(time: TimeOrNow) -> Timestamp {
    match time {
        TimeOrNow::Now => Timestamp::now(),
        TimeOrNow::SpecificTime(time) => timestamp(time),
    }
}

/// Converts a time that the protocol library decoded.
///
/// The kernel sends seconds (negative before 1970) and nanoseconds that always count forwards; the
/// library takes both away from the epoch together when the seconds are negative, which this
/// undoes.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(_) => time.into(),
        Err(before) => {
            let distance = before.duration();
            let nanos = Duration::from_nanos(distance.subsec_nanos().into());
            (UNIX_EPOCH - Duration::from_secs(distance.as_secs()) + nanos).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_keep_their_fraction() {
        // -1.8 s is sent as -2 s and 200 ms, and decoded as the epoch less 2.2 s.
        let decoded = UNIX_EPOCH - Duration::new(2, 200_000_000);
        assert_eq!(timestamp(decoded), Timestamp(-1_800_000_000));
        assert_eq!(timestamp(UNIX_EPOCH + Duration::from_nanos(5)), Timestamp(5));
        assert_eq!(timestamp(UNIX_EPOCH - Duration::from_secs(3)), Timestamp(-3_000_000_000));
    }

    #[test]
    fn only_cached_opens_go_through_the_page_cache() {
        let opened = |direct, parallel| open_flags(Opened { handle: 0, direct, parallel });
        assert_eq!(opened(false, false), FopenFlags::FOPEN_KEEP_CACHE);
        assert_eq!(opened(true, false), FopenFlags::FOPEN_DIRECT_IO);
        assert_eq!(
            opened(true, true),
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        );
    }
}
