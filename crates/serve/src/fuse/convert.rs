//! Values of the file system as the protocol library writes them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fs::{Attr, FileKind, Timestamp};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

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

/// Returns what `mknod` asks to be made; `None` for a kind that it cannot make.
pub(super) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(FileKind::File),
        libc::S_IFIFO => Some(FileKind::Fifo),
        libc::S_IFSOCK => Some(FileKind::Socket),
        libc::S_IFCHR => Some(FileKind::CharDevice),
        libc::S_IFBLK => Some(FileKind::BlockDevice),
        _ => None,
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
/// The kernel sends seconds (negative before 1970) and nanoseconds that always count forwards; the library takes both away from the epoch
/// together when the seconds are negative, which this undoes.
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
    fn mknod_makes_everything_but_directories_and_links() {
        assert_eq!(kind_of_mode(0o644), Some(FileKind::File));
        assert_eq!(kind_of_mode(libc::S_IFIFO | 0o600), Some(FileKind::Fifo));
        assert_eq!(kind_of_mode(libc::S_IFDIR | 0o755), None);
        assert_eq!(kind_of_mode(libc::S_IFLNK | 0o777), None);
    }
}
