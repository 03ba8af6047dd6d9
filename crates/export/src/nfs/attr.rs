//! Attributes as the protocol has them, and changes of them.

use rustix::fs::{FileType, Statx, StatxTimestamp, Timespec, UTIME_NOW, UTIME_OMIT};

use super::handle::Key;
use super::xdr::{Garbage, Reader, Writer};

/// A time of the protocol: seconds and nanoseconds, of 32 bits each.
pub type Time = [u32; 2];

fn time(of: &StatxTimestamp) -> Time {
    // The protocol has no time before 1970 or after 2106.
    [u32::try_from(of.tv_sec.max(0)).unwrap_or(u32::MAX), of.tv_nsec]
}

/// Returns when the inode was changed.
pub fn changed(stat: &Statx) -> Time {
    time(&stat.stx_ctime)
}

fn kind(stat: &Statx) -> u32 {
    match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
        FileType::Directory => 2,
        FileType::BlockDevice => 3,
        FileType::CharacterDevice => 4,
        FileType::Symlink => 5,
        FileType::Socket => 6,
        FileType::Fifo => 7,
        FileType::RegularFile | FileType::Unknown => 1,
    }
}

/// Writes `fattr3`.
pub fn write(out: &mut Writer, stat: &Statx, key: &Key) {
    out.u32(kind(stat));
    out.u32(u32::from(stat.stx_mode) & 0o7777);
    out.u32(stat.stx_nlink);
    out.u32(stat.stx_uid);
    out.u32(stat.stx_gid);
    out.u64(stat.stx_size);
    out.u64(stat.stx_blocks * 512);
    out.u32(stat.stx_rdev_major);
    out.u32(stat.stx_rdev_minor);
    // The system's number of the file system is another after each mount.
    out.u64(key.number(2, b"fsid"));
    out.u64(stat.stx_ino);
    for of in [&stat.stx_atime, &stat.stx_mtime, &stat.stx_ctime] {
        let [seconds, nanoseconds] = time(of);
        out.u32(seconds);
        out.u32(nanoseconds);
    }
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

/// Changes of attributes (`sattr3`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: SetTime,
    pub mtime: SetTime,
}

/// What becomes of a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SetTime {
    #[default]
    Keep,
    Now,
    To(Time),
}

impl SetTime {
    fn read(from: &mut Reader<'_>) -> Result<Self, Garbage> {
        match from.u32()? {
            0 => Ok(Self::Keep),
            1 => Ok(Self::Now),
            2 => Ok(Self::To([from.u32()?, from.u32()?])),
            _ => Err(Garbage),
        }
    }

    /// Returns it as the system takes it.
    pub fn timespec(self) -> Timespec {
        let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        match self {
            Self::Keep => special(UTIME_OMIT),
            Self::Now => special(UTIME_NOW),
            Self::To([seconds, nanoseconds]) => {
                Timespec { tv_sec: i64::from(seconds), tv_nsec: i64::from(nanoseconds) }
            }
        }
    }

    fn is_possible(self) -> bool {
        !matches!(self, Self::To([_, nanoseconds]) if nanoseconds >= 1_000_000_000)
    }
}

impl Changes {
    pub fn read(from: &mut Reader<'_>) -> Result<Self, Garbage> {
        Ok(Self {
            mode: from.option(Reader::u32)?,
            uid: from.option(Reader::u32)?,
            gid: from.option(Reader::u32)?,
            size: from.option(Reader::u64)?,
            atime: SetTime::read(from)?,
            mtime: SetTime::read(from)?,
        })
    }

    /// Returns whether the system can be asked for them: the numbers that it takes for "leave it"
    /// are no users, and nanoseconds are less than a second.
    pub fn are_possible(&self) -> bool {
        let is_id = |id: Option<u32>| id != Some(u32::MAX);
        is_id(self.uid)
            && is_id(self.gid)
            && self.atime.is_possible()
            && self.mtime.is_possible()
            && self.size.is_none_or(|size| i64::try_from(size).is_ok())
    }
}
