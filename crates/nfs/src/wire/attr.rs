//! Attributes as the protocol has them, and changes of them.

use rustix::fs::{Timespec, UTIME_NOW, UTIME_OMIT};

use super::xdr::{Garbage, Reader, Writer};

/// A time of the protocol: seconds and nanoseconds, of 32 bits each.
pub type Time = [u32; 2];

/// What a name leads to (`ftype3`).
#[expect(missing_docs, reason = "the names are the protocol's, in words")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File = 1,
    Directory = 2,
    BlockDevice = 3,
    CharacterDevice = 4,
    Symlink = 5,
    Socket = 6,
    Fifo = 7,
}

impl Kind {
    fn read(from: &mut Reader<'_>) -> Result<Self, Garbage> {
        Ok(match from.u32()? {
            1 => Self::File,
            2 => Self::Directory,
            3 => Self::BlockDevice,
            4 => Self::CharacterDevice,
            5 => Self::Symlink,
            6 => Self::Socket,
            7 => Self::Fifo,
            _ => return Err(Garbage),
        })
    }
}

/// Attributes (`fattr3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// What it is.
    pub kind: Kind,
    /// Permissions.
    pub mode: u32,
    /// How many names it has.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes that it takes.
    pub used: u64,
    /// Which device it is.
    pub device: [u32; 2],
    /// The number of the file system.
    pub fsid: u64,
    /// The number in it.
    pub number: u64,
    /// When it was read.
    pub atime: Time,
    /// When it was written.
    pub mtime: Time,
    /// When it or its attributes were changed.
    pub ctime: Time,
}

impl Attr {
    /// Reads `fattr3`.
    ///
    /// # Errors
    /// What is none.
    pub fn read(from: &mut Reader<'_>) -> Result<Self, Garbage> {
        let kind = Kind::read(from)?;
        let [mode, links, uid, gid] = words(from)?;
        let (size, used) = (from.u64()?, from.u64()?);
        let device = words(from)?;
        let (fsid, number) = (from.u64()?, from.u64()?);
        let (atime, mtime, ctime) = (words(from)?, words(from)?, words(from)?);
        Ok(Self {
            kind,
            mode,
            links,
            uid,
            gid,
            size,
            used,
            device,
            fsid,
            number,
            atime,
            mtime,
            ctime,
        })
    }

    /// Writes `fattr3`.
    pub fn write(&self, out: &mut Writer) {
        for word in [self.kind as u32, self.mode, self.links, self.uid, self.gid] {
            out.u32(word);
        }
        out.u64(self.size);
        out.u64(self.used);
        self.device.iter().for_each(|word| out.u32(*word));
        out.u64(self.fsid);
        out.u64(self.number);
        for [seconds, nanoseconds] in [self.atime, self.mtime, self.ctime] {
            out.u32(seconds);
            out.u32(nanoseconds);
        }
    }
}

fn words<const N: usize>(from: &mut Reader<'_>) -> Result<[u32; N], Garbage> {
    let mut words = [0; N];
    for word in &mut words {
        *word = from.u32()?;
    }
    Ok(words)
}

/// Reads `post_op_attr`.
///
/// # Errors
/// What is none.
pub fn read_after(from: &mut Reader<'_>) -> Result<Option<Attr>, Garbage> {
    from.option(Attr::read)
}

/// Reads `wcc_data`; what was before is of no use.
///
/// # Errors
/// What is none.
pub fn read_change(from: &mut Reader<'_>) -> Result<Option<Attr>, Garbage> {
    from.option(Reader::array::<24>)?;
    read_after(from)
}

/// Changes of attributes (`sattr3`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Permissions.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// When it was read.
    pub atime: SetTime,
    /// When it was written.
    pub mtime: SetTime,
}

/// What becomes of a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SetTime {
    /// It stays.
    #[default]
    Keep,
    /// It becomes the server's present time.
    Now,
    /// It becomes this one.
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

    fn write(self, out: &mut Writer) {
        match self {
            Self::Keep => out.u32(0),
            Self::Now => out.u32(1),
            Self::To([seconds, nanoseconds]) => {
                [2, seconds, nanoseconds].iter().for_each(|word| out.u32(*word));
            }
        }
    }

    /// Returns it as the system takes it.
    #[must_use]
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
    /// Writes `sattr3`.
    pub fn write(&self, out: &mut Writer) {
        for id in [self.mode, self.uid, self.gid] {
            out.bool(id.is_some());
            id.iter().for_each(|id| out.u32(*id));
        }
        out.bool(self.size.is_some());
        self.size.iter().for_each(|size| out.u64(*size));
        self.atime.write(out);
        self.mtime.write(out);
    }

    /// Reads `sattr3`.
    ///
    /// # Errors
    /// What is none.
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
    #[must_use]
    pub fn are_possible(&self) -> bool {
        let is_id = |id: Option<u32>| id != Some(u32::MAX);
        is_id(self.uid)
            && is_id(self.gid)
            && self.atime.is_possible()
            && self.mtime.is_possible()
            && self.size.is_none_or(|size| i64::try_from(size).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_and_changes_are_read_as_they_were_written() {
        let attr = Attr {
            kind: Kind::Symlink,
            mode: 0o640,
            links: 2,
            uid: 3,
            gid: 4,
            size: 5 << 32,
            used: 6,
            device: [7, 8],
            fsid: 9,
            number: 10,
            atime: [11, 12],
            mtime: [13, 14],
            ctime: [15, 16],
        };
        let mut out = Writer::default();
        out.bool(true);
        attr.write(&mut out);
        assert_eq!(out.0.len(), 4 + 84);
        assert_eq!(read_after(&mut Reader::new(&out.0)), Ok(Some(attr)));
        assert_eq!(read_after(&mut Reader::new(&out.0[..87])), Err(Garbage));
        let changes = Changes {
            mode: Some(1),
            uid: None,
            gid: Some(2),
            size: Some(1 << 40),
            atime: SetTime::Now,
            mtime: SetTime::To([3, 4]),
        };
        let mut out = Writer::default();
        changes.write(&mut out);
        assert_eq!(Changes::read(&mut Reader::new(&out.0)), Ok(changes));
    }
}
