//! Answers, as the kernel's structs.

use std::time::Duration;

use bedplate_fs::{Attr, FileKind, InodeNo, IoMode, Timestamp};
use bedplate_fuse::Reply;

use super::super::data::Opened;
use super::super::dirs::Listed;
use super::super::errno::{Answer, Errno};
use super::super::names::Entry;
use super::super::trees::Node;
use super::{ROOT, Translator};

/// `struct fuse_entry_out`.
pub(crate) const ENTRY_BYTES: usize = 128;

/// Bytes of an answer, put together in the payload.
pub(crate) struct Out<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Out<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0 }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn handle(&mut self, handle: u64, flags: u32) {
        self.u64(handle);
        self.u32(flags);
        self.u32(0);
    }

    /// `struct fuse_attr`.
    pub(crate) fn attr(&mut self, attr: &Attr, number: u64, block_size: u32) {
        let times = [attr.atime, attr.mtime, attr.ctime].map(time_parts);
        self.u64(number);
        self.u64(attr.size);
        self.u64(attr.allocated_bytes.div_ceil(512));
        times.iter().for_each(|(seconds, _)| self.u64(seconds.cast_unsigned()));
        times.iter().for_each(|(_, nanoseconds)| self.u32(*nanoseconds));
        self.u32(kind_bits(attr.kind) << 12 | attr.mode & 0o7777);
        for value in [attr.nlink, attr.uid, attr.gid, attr.rdev, block_size, 0] {
            self.u32(value);
        }
    }

    /// `struct fuse_statx`.
    fn statx(&mut self, attr: &Attr, number: u64, block_size: u32) {
        let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
        [mask, block_size, 0, 0, attr.nlink, attr.uid, attr.gid]
            .iter()
            .for_each(|value| self.u32(*value));
        // 16 bits, and 16 spare ones.
        let mode = (kind_bits(attr.kind) << 12 | attr.mode & 0o7777) as u16;
        self.put(&mode.to_ne_bytes());
        self.put(&[0; 2]);
        [number, attr.size, attr.allocated_bytes.div_ceil(512), 0]
            .iter()
            .for_each(|value| self.u64(*value));
        for time in [attr.atime, attr.btime, attr.ctime, attr.mtime] {
            let (seconds, nanoseconds) = time_parts(time);
            self.u64(seconds.cast_unsigned());
            self.u32(nanoseconds);
            self.u32(0);
        }
        let (major, minor) = device_parts(attr.rdev);
        [major, minor, 0, 0].iter().for_each(|value| self.u32(*value));
        (0..14).for_each(|_| self.u64(0));
    }

    /// `struct fuse_entry_out`.
    pub(crate) fn entry(
        &mut self,
        attr: &Attr,
        number: u64,
        ttls: (Duration, Duration),
        block_size: u32,
    ) {
        let (name, attributes) = ttls;
        self.u64(number);
        self.u64(if number == ROOT { 0 } else { generation_of(attr) });
        self.u64(name.as_secs());
        self.u64(attributes.as_secs());
        self.u32(name.subsec_nanos());
        self.u32(attributes.subsec_nanos());
        self.attr(attr, if number == ROOT { ROOT } else { attr.ino.0 }, block_size);
    }

    /// `struct fuse_entry_out` of a name that is absent, and that the kernel may take for absent so
    /// long.
    pub(crate) fn absent(&mut self, ttl: Duration) {
        [0, 0, ttl.as_secs(), 0].iter().for_each(|value| self.u64(*value));
        self.u32(ttl.subsec_nanos());
        // How long attributes would be kept, and the attributes.
        self.u32(0);
        self.put(&[0; 88]);
    }

    /// A name of a directory (`struct fuse_dirent`), behind its entry where one is given; `false`,
    /// and nothing, where it has no room.
    pub(crate) fn name(
        &mut self,
        listed: &Listed<'_>,
        number: InodeNo,
        before: usize,
        entry: impl FnOnce(&mut Self),
    ) -> bool {
        const HEADER_BYTES: usize = 24;
        let len = (before + HEADER_BYTES + listed.name.len()).next_multiple_of(8);
        if self.bytes.len() - self.len < len {
            return false;
        }
        let end = self.len + len;
        entry(self);
        self.u64(number.0);
        self.u64(listed.cookie);
        self.u32(listed.name.len() as u32);
        self.u32(kind_bits(listed.kind));
        self.put(listed.name);
        self.bytes[self.len..end].fill(0);
        self.len = end;
        true
    }
}

/// Puts what the kernel needs to know of an open file (`struct fuse_open_out`).
pub(crate) fn put_opened(out: &mut Out<'_>, opened: Opened) {
    const DIRECT_IO: u32 = 1 << 0;
    const KEEP_CACHE: u32 = 1 << 1;
    const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    let how = if opened.direct { DIRECT_IO } else { KEEP_CACHE };
    let parallel = if opened.parallel { PARALLEL_DIRECT_WRITES } else { 0 };
    out.handle(opened.handle, how | parallel);
}

/// Returns seconds, negative before 1970, and nanoseconds, which count forwards.
fn time_parts(time: Timestamp) -> (i64, u32) {
    const SECOND: i64 = 1_000_000_000;
    (time.0.div_euclid(SECOND), time.0.rem_euclid(SECOND) as u32)
}

/// Takes apart what the kernel calls a device in its protocol (`new_encode_dev`): major and minor.
fn device_parts(rdev: u32) -> (u32, u32) {
    ((rdev & 0xf_ff00) >> 8, rdev & 0xff | (rdev >> 12) & 0xf_ff00)
}

/// Returns what tells an inode from another of the same number, for file handles.
///
/// A volume gives no number twice, except one whose creation a power cut undid: that inode was born
/// at another time. 32 bits are what a handle keeps.
fn generation_of(attr: &Attr) -> u64 {
    const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    attr.btime.0.cast_unsigned().wrapping_mul(GOLDEN_RATIO) >> 32
}

/// The kind of a file, as in the upper bits of its mode.
fn kind_bits(kind: FileKind) -> u32 {
    let mode = match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    };
    mode >> 12
}

/// Answers with what `make` puts together, or with an error.
pub(super) fn answer<T>(mut reply: Reply, answer: Answer<T>, make: impl FnOnce(&mut Out<'_>, T)) {
    match answer {
        Ok(value) => {
            let mut out = Out::new(reply.payload());
            make(&mut out, value);
            let len = out.len();
            reply.send(len);
        }
        Err(errno) => reply.refuse(errno.code()),
    }
}

pub(super) fn empty(reply: Reply, done: Answer<()>) {
    answer(reply, done, |_, ()| ());
}

/// Answers with the value of an attribute for a caller with room for `size` bytes; 0: with its
/// length.
pub(super) fn value(reply: Reply, size: u32, found: Answer<Vec<u8>>) {
    match found {
        Ok(value) if size == 0 => answer(reply, Ok(()), |out, ()| {
            out.u32(value.len() as u32);
            out.u32(0);
        }),
        Ok(value) if value.len() > size as usize => reply.refuse(Errno::RANGE.code()),
        found => answer(reply, found, |out, value| out.put(&value)),
    }
}

/// Answers an ioctl whose caller has room for so many bytes.
pub(super) fn ioctl(reply: Reply, out_size: u32, told: Answer<Vec<u8>>) {
    let told =
        told.and_then(
            |told| {
                if told.len() <= out_size as usize { Ok(told) } else { Err(Errno::INVAL) }
            },
        );
    answer(reply, told, |out, told| {
        (0..4).for_each(|_| out.u32(0));
        out.put(&told);
    });
}

impl Translator {
    pub(super) fn entry(&self, reply: Reply, made: Answer<Entry>) {
        answer(reply, made, |out, entry| self.put_entry(out, &entry));
    }

    pub(super) fn put_entry(&self, out: &mut Out<'_>, entry: &Entry) {
        let Entry { attr, name_ttl, tree } = entry;
        let is_root = tree.is_none() && attr.ino == self.0.shown.root();
        let node = Node { ino: attr.ino, tree: *tree };
        let number = if is_root { ROOT } else { node.number(attr.kind) };
        self.note_known(node, attr.kind);
        let ttls = (*name_ttl, self.attr_ttl(attr));
        out.entry(attr, number, ttls, self.0.preferred_io(attr));
    }

    /// Notes an inode that the kernel is about to know.
    fn note_known(&self, node: Node, kind: FileKind) {
        if node.tree.is_some() && kind == FileKind::Directory {
            self.0.trees.note_one();
        }
    }

    /// Returns how long the kernel may keep attributes: those of directories not while it knows any
    /// in two ways (I-TRE-1).
    fn attr_ttl(&self, attr: &Attr) -> Duration {
        if attr.kind == FileKind::Directory && self.0.trees.are_known() {
            return Duration::ZERO;
        }
        self.0.attr_ttl(attr.ino)
    }

    pub(super) fn attr(&self, reply: Reply, found: Answer<Attr>) {
        answer(reply, found, |out, attr| {
            let ttl = self.attr_ttl(&attr);
            out.u64(ttl.as_secs());
            out.u32(ttl.subsec_nanos());
            out.u32(0);
            out.attr(&attr, attr.ino.0, self.0.preferred_io(&attr));
        });
    }

    /// Answers with what `statx` shows (`struct fuse_statx_out`): of what the kernel asks for, all
    /// that `stat` shows, and the time of birth.
    pub(super) fn extended_attr(&self, reply: Reply, found: Answer<Attr>) {
        answer(reply, found, |out, attr| {
            let ttl = self.attr_ttl(&attr);
            out.u64(ttl.as_secs());
            out.u32(ttl.subsec_nanos());
            (0..5).for_each(|_| out.u32(0));
            out.statx(&attr, attr.ino.0, self.0.preferred_io(&attr));
        });
    }

    /// Lists a directory into as many bytes as the caller has room for.
    pub(super) fn list(&self, mut reply: Reply, handle: u64, cookie: u64, size: u32) {
        let room = (size as usize).min(reply.payload().len());
        let mut out = Out::new(&mut reply.payload()[..room]);
        let listed = self.0.run("readdir", || {
            self.0.readdir(handle, cookie, |listed| Ok(out.name(&listed, listed.ino, 0, |_| ())))
        });
        let len = out.len();
        finish(reply, listed, len);
    }

    /// As [`list`](Self::list), with attributes.
    pub(super) fn list_with_attributes(
        &self,
        mut reply: Reply,
        tree: Option<IoMode>,
        (handle, cookie, size): (u64, u64, u32),
    ) {
        let room = (size as usize).min(reply.payload().len());
        let mut out = Out::new(&mut reply.payload()[..room]);
        let listed = self.0.run("readdirplus", || {
            self.0.readdirplus(handle, cookie, |listed, attr| {
                let (node, is_dot) =
                    (Node { ino: attr.ino, tree }, listed.name == b"." || listed.name == b"..");
                let took = out.name(listed, attr.ino, ENTRY_BYTES, |out| {
                    let ttl = self.attr_ttl(attr);
                    let name_ttl = ttl.min(self.0.name_ttl());
                    let number = node.number(attr.kind);
                    out.entry(attr, number, (name_ttl, ttl), self.0.preferred_io(attr));
                });
                if took && !is_dot {
                    self.note_known(node, attr.kind);
                }
                took
            })
        });
        let len = out.len();
        finish(reply, listed, len);
    }
}

fn finish(reply: Reply, done: Answer<()>, len: usize) {
    match done {
        Ok(()) => reply.send(len),
        Err(errno) => reply.refuse(errno.code()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cached_opens_go_through_the_page_cache() {
        let flags = |direct, parallel| {
            let mut bytes = [0; 16];
            put_opened(&mut Out::new(&mut bytes), Opened { handle: 7, direct, parallel });
            assert_eq!(bytes[..8], 7_u64.to_ne_bytes());
            u32::from_ne_bytes(bytes[8..12].try_into().unwrap())
        };
        // `FOPEN_DIRECT_IO`, `FOPEN_KEEP_CACHE`, `FOPEN_PARALLEL_DIRECT_WRITES`.
        assert_eq!((flags(false, false), flags(true, false), flags(true, true)), (2, 1, 1 | 64));
    }

    #[test]
    fn a_device_is_taken_apart_as_the_kernel_puts_it_together() {
        for (major, minor) in [(1_u32, 3_u32), (259, 0), (4095, (1 << 20) - 1)] {
            let encoded = minor & 0xff | major << 8 | (minor & !0xff) << 12;
            assert_eq!(device_parts(encoded), (major, minor));
        }
    }

    #[test]
    fn a_listing_has_whole_names_and_ends_where_the_next_has_no_room() {
        let mut bytes = [0xff; 72];
        let mut out = Out::new(&mut bytes);
        let mut add = |name: &[u8]| {
            let listed = Listed { ino: InodeNo(9), cookie: 3, kind: FileKind::Directory, name };
            out.name(&listed, listed.ino, 0, |_| ())
        };
        assert!(add(b"a") && add(b"longer-n") && !add(b"b"), "32 and 32 of 72 bytes");
        let len = out.len();
        assert_eq!(len, 64);
        assert_eq!(bytes[24..32], *b"a\0\0\0\0\0\0\0");
        assert_eq!(u32::from_ne_bytes(bytes[20..24].try_into().unwrap()), 4, "a directory");
    }
}
