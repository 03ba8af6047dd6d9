//! Attributes, rights and room.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bedplate_fs::{Attr, FileKind, InodeNo, Timestamp};
use bedplate_nfs::{Changes, Client, Found, Kind, SetTime};

use super::files::{MAY_READ, MAY_RUN, MAY_WRITE};
use super::nodes::Node;
use super::requests::{Asked, Done, ROOT, Remote};
use crate::fuse::errno::{Answer, Errno};
use crate::fuse::translate::answers::Out;

/// How long the kernel may keep names and attributes where no program locks anything: what other
/// clients change is seen after that, and with an open.
const TTL: Duration = Duration::from_secs(1);
/// The length of reads and writes that programs are told to prefer.
const BLOCK_BYTES: u32 = 128 << 10;
/// The unit in which room is told.
const ROOM_BYTES: u32 = 4096;
/// The longest answer beside data and listings.
const SMALL_BYTES: usize = 256;

/// Puts a short answer together.
pub(super) fn small(put: impl FnOnce(&mut Out<'_>)) -> Vec<u8> {
    let mut bytes = vec![0; SMALL_BYTES];
    let mut out = Out::new(&mut bytes);
    put(&mut out);
    let len = out.len();
    bytes.truncate(len);
    bytes
}

pub(super) fn kind_of(kind: Kind) -> FileKind {
    match kind {
        Kind::File => FileKind::File,
        Kind::Directory => FileKind::Directory,
        Kind::BlockDevice => FileKind::BlockDevice,
        Kind::CharacterDevice => FileKind::CharDevice,
        Kind::Symlink => FileKind::Symlink,
        Kind::Socket => FileKind::Socket,
        Kind::Fifo => FileKind::Fifo,
    }
}

fn time_of([seconds, nanoseconds]: [u32; 2]) -> Timestamp {
    Timestamp(i64::from(seconds) * 1_000_000_000 + i64::from(nanoseconds.min(999_999_999)))
}

/// Returns attributes of the server as the translator has them.
fn attr_of(attr: &bedplate_nfs::Attr, is_hidden: bool) -> Attr {
    let [major, minor] = attr.device;
    Attr {
        ino: InodeNo(attr.number),
        kind: kind_of(attr.kind),
        mode: attr.mode & 0o7777,
        nlink: attr.links.saturating_sub(u32::from(is_hidden)),
        uid: attr.uid,
        gid: attr.gid,
        rdev: minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12,
        size: attr.size,
        allocated_bytes: attr.used,
        atime: time_of(attr.atime),
        mtime: time_of(attr.mtime),
        ctime: time_of(attr.ctime),
        btime: Timestamp(0),
        io_mode: None,
    }
}

/// Reads a time of `struct fuse_setattr_in`; `at` is where its seconds and nanoseconds stand.
fn time_in(asked: &Asked, given: u32, now: u32, at: (usize, usize)) -> Answer<SetTime> {
    let fields = asked.fields();
    let valid = fields.u32(0);
    if valid & given == 0 {
        return Ok(SetTime::Keep);
    }
    if valid & now != 0 {
        return Ok(SetTime::Now);
    }
    // The protocol has 32 bits, from 1970 on.
    let seconds = u32::try_from(fields.u64(at.0)).map_err(|_| Errno::INVAL)?;
    Ok(SetTime::To([seconds, fields.u32(at.1)]))
}

impl Remote {
    /// Returns how long the kernel may keep names and attributes. A program that agrees with others by
    /// locks sees under one what they did before.
    fn ttl(&self) -> Duration {
        if self.has_locks.load(SeqCst) { Duration::ZERO } else { TTL }
    }

    /// Puts what the kernel is told of a name (`struct fuse_entry_out`); returns the node's number.
    pub(super) fn put_entry(&self, out: &mut Out<'_>, found: &Found) -> u64 {
        let node = self.nodes.retain(&found.handle);
        let attr = self.callers.own().present(&found.handle, found.attr);
        node.note(&attr);
        let is_hidden = node.is_hidden();
        out.entry(&attr_of(&attr, is_hidden), node.number, (self.ttl(), self.ttl()), BLOCK_BYTES);
        node.number
    }

    /// Answers with a name.
    pub(super) fn entry(&self, found: &Found) -> Done {
        let mut number = 0;
        let bytes = small(|out| number = self.put_entry(out, found));
        Done { bytes, nodes: vec![number], ..Done::default() }
    }

    /// Answers with attributes (`struct fuse_attr_out`).
    fn attributes(&self, client: &Client, node: &Node) -> Answer<Done> {
        let attr = client.present(&node.handle, client.attributes(&node.handle)?);
        node.note(&attr);
        let attr = attr_of(&attr, node.is_hidden());
        let number = if node.number == ROOT { ROOT } else { attr.ino.0 };
        let ttl = self.ttl();
        Ok(Done::of(small(|out| {
            out.u64(ttl.as_secs());
            out.u32(ttl.subsec_nanos());
            out.u32(0);
            out.attr(&attr, number, BLOCK_BYTES);
        })))
    }

    pub(super) fn getattr(&self, asked: &Asked) -> Answer<Done> {
        let node = self.nodes.get(asked.header().node)?;
        self.attributes(&self.callers.of(asked.header()), &node)
    }

    pub(super) fn setattr(&self, asked: &Asked) -> Answer<Done> {
        const OF_HANDLE: u32 = 1 << 6;
        let fields = asked.fields();
        let valid = fields.u32(0);
        let given = |bit: u32, at: usize| (valid & bit != 0).then(|| fields.u32(at));
        let node = self.nodes.get(asked.header().node)?;
        // What is open was opened by one that may.
        let client = match valid & OF_HANDLE {
            0 => self.callers.of(asked.header()),
            _ => self.files.get(fields.u64(8))?.client.clone(),
        };
        let changes = Changes {
            mode: given(1, 68).map(|mode| mode & 0o7777),
            uid: given(1 << 1, 76),
            gid: given(1 << 2, 80),
            size: None,
            atime: time_in(asked, 1 << 4, 1 << 7, (32, 56))?,
            mtime: time_in(asked, 1 << 5, 1 << 8, (40, 60))?,
        };
        if valid & (1 << 3) != 0 {
            client.set_size(&node.handle, fields.u64(16))?;
        }
        if changes != Changes::default() {
            client.write_back(&node.handle)?;
            client.set_attributes(&node.handle, &changes)?;
        }
        self.attributes(&client, &node)
    }

    pub(super) fn access(&self, asked: &Asked) -> Answer<Done> {
        const LOOKUP: u32 = 0x02;
        const DELETE: u32 = 0x10;
        let mask = asked.fields().u32(0);
        let client = self.callers.of(asked.header());
        let node = self.nodes.get(asked.header().node)?;
        let is_dir = client.attributes(&node.handle)?.kind == Kind::Directory;
        let rights = [
            (4, MAY_READ),
            (2, if is_dir { MAY_WRITE | DELETE } else { MAY_WRITE }),
            (1, if is_dir { LOOKUP } else { MAY_RUN }),
        ];
        let asked_for = rights.iter().filter(|(bit, _)| mask & bit != 0);
        let wanted = asked_for.fold(0, |all, (_, right)| all | right);
        if client.access(&node.handle, wanted)? == wanted {
            Ok(Done::default())
        } else {
            Err(Errno::of_code(libc::EACCES))
        }
    }

    pub(super) fn statfs(&self, asked: &Asked) -> Answer<Done> {
        let room = self.callers.of(asked.header()).room()?;
        Ok(Done::of(small(|out| {
            for bytes in [room.total_bytes, room.free_bytes, room.available_bytes] {
                out.u64(bytes / u64::from(ROOM_BYTES));
            }
            out.u64(room.total_files);
            out.u64(room.free_files);
            [ROOM_BYTES, 255, ROOM_BYTES, 0].iter().for_each(|value| out.u32(*value));
            (0..6).for_each(|_| out.u32(0));
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_lost_its_name_has_none_to_show() {
        let attr = bedplate_nfs::Attr {
            kind: Kind::CharacterDevice,
            mode: 0o170_644,
            links: 1,
            uid: 2,
            gid: 3,
            size: 4,
            used: 5,
            device: [259, 0x12_345],
            fsid: 6,
            number: 7,
            atime: [8, u32::MAX],
            mtime: [u32::MAX, 9],
            ctime: [10, 11],
        };
        let told = attr_of(&attr, true);
        assert_eq!((told.nlink, attr_of(&attr, false).nlink, told.mode), (0, 1, 0o644));
        assert_eq!(told.rdev, 0x45 | 259 << 8 | 0x12_300 << 12, "as the kernel encodes it");
        assert_eq!(told.atime, Timestamp(8_999_999_999), "no server's number overflows");
        assert_eq!(told.mtime.0 / 1_000_000_000, i64::from(u32::MAX));
    }
}
