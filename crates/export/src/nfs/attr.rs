//! Attributes as the protocol has them, and changes of them.

use bedplate_nfs::wire::attr::{Attr, Kind, Time};
pub use bedplate_nfs::wire::attr::{Changes, SetTime};
use rustix::fs::{FileType, Statx, StatxTimestamp};

use super::handle::Key;
use super::xdr::Writer;

fn time(of: &StatxTimestamp) -> Time {
    // The protocol has no time before 1970 or after 2106.
    [u32::try_from(of.tv_sec.max(0)).unwrap_or(u32::MAX), of.tv_nsec]
}

/// Returns when the inode was changed.
pub fn changed(stat: &Statx) -> Time {
    time(&stat.stx_ctime)
}

fn kind(stat: &Statx) -> Kind {
    match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
        FileType::Directory => Kind::Directory,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::CharacterDevice => Kind::CharacterDevice,
        FileType::Symlink => Kind::Symlink,
        FileType::Socket => Kind::Socket,
        FileType::Fifo => Kind::Fifo,
        FileType::RegularFile | FileType::Unknown => Kind::File,
    }
}

fn of(stat: &Statx, key: &Key) -> Attr {
    Attr {
        kind: kind(stat),
        mode: u32::from(stat.stx_mode) & 0o7777,
        links: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        used: stat.stx_blocks * 512,
        device: [stat.stx_rdev_major, stat.stx_rdev_minor],
        // The system's number of the file system is another after each mount.
        fsid: key.number(2, b"fsid"),
        number: stat.stx_ino,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
    }
}

/// Writes `fattr3`.
pub fn write(out: &mut Writer, stat: &Statx, key: &Key) {
    of(stat, key).write(out);
}

/// Writes `post_op_attr`.
pub fn write_after(out: &mut Writer, stat: &Statx, key: &Key) {
    out.bool(true);
    write(out, stat, key);
}

/// Writes `wcc_data`: nothing of before, because other programs change files too, between a look
/// and the change.
pub fn write_change(out: &mut Writer, stat: &Statx, key: &Key) {
    out.bool(false);
    write_after(out, stat, key);
}
