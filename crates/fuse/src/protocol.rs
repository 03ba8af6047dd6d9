//! What every request looks like, whichever way it comes.

/// `enum fuse_opcode`: what the kernel asks for. What is not here no kernel asks a mount like this
/// one for, or it asks once and is told that there is no such thing.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

/// Bytes of `struct fuse_in_header`.
pub(crate) const IN_HEADER_BYTES: usize = 40;
/// Bytes of `struct fuse_out_header`.
pub(crate) const OUT_HEADER_BYTES: usize = 16;
/// The longest header of an operation.
pub(crate) const OPERATION_BYTES_MAX: usize = 128;

/// Returns how long the header of an operation is, the kernel's struct for it; names, values and
/// data follow it. 0: it has none, or is not known.
pub(crate) fn operation_bytes(code: u32) -> usize {
    use opcode::*;
    match code {
        FORGET | BATCH_FORGET | MKDIR | RENAME | LINK | OPEN | OPENDIR | GETXATTR | LISTXATTR
        | ACCESS | INTERRUPT => 8,
        // With `FUSE_SETXATTR_EXT`, which is always agreed on.
        SETXATTR => 16,
        GETATTR | MKNOD | FSYNC | FSYNCDIR | CREATE | TMPFILE | RENAME2 | INIT => 16,
        RELEASE | RELEASEDIR | FLUSH | LSEEK | STATX => 24,
        IOCTL | FALLOCATE => 32,
        READ | WRITE | READDIR | READDIRPLUS => 40,
        GETLK | SETLK | SETLKW => 48,
        COPY_FILE_RANGE => 56,
        SETATTR => 88,
        _ => 0,
    }
}

/// The header of a request (`struct fuse_in_header`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderIn {
    /// What is asked for (`enum fuse_opcode`).
    pub opcode: u32,
    /// By which the kernel knows the answer.
    pub unique: u64,
    /// The inode that is meant.
    pub node: u64,
    /// The caller.
    pub uid: u32,
    /// The caller's group.
    pub gid: u32,
    /// The calling thread.
    pub pid: u32,
}

impl HeaderIn {
    /// Reads what a request begins with: at least [`IN_HEADER_BYTES`].
    pub(crate) fn read(header: &[u8]) -> Self {
        Self {
            opcode: u32_at(header, 4),
            unique: u64_at(header, 8),
            node: u64_at(header, 16),
            uid: u32_at(header, 24),
            gid: u32_at(header, 28),
            pid: u32_at(header, 32),
        }
    }

    /// Returns whether the kernel waits for an answer.
    pub(crate) fn wants_answer(self) -> bool {
        !matches!(self.opcode, opcode::FORGET | opcode::BATCH_FORGET)
    }
}

/// What the kernel asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The header of every request.
    pub header: HeaderIn,
    /// The header of the operation, as the kernel's struct has it; it may be longer.
    pub operation: &'a [u8],
    /// What follows it: names, values, data.
    pub payload: &'a [u8],
}

/// Writes `struct fuse_out_header`; the error number is positive.
pub(crate) fn write_out_header(header: &mut [u8], unique: u64, error: i32, payload_bytes: usize) {
    let len = u32::try_from(OUT_HEADER_BYTES + payload_bytes).expect("a payload is some MiB");
    header[0..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&(-error).to_ne_bytes());
    header[8..16].copy_from_slice(&unique.to_ne_bytes());
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_and_written_where_the_kernel_has_it() {
        let mut header = [0; IN_HEADER_BYTES];
        for (at, value) in [(4, 16_u32), (24, 1000), (28, 100), (32, 4711)] {
            header[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        for (at, value) in [(8, 77_u64), (16, 5)] {
            header[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        let read = HeaderIn::read(&header);
        assert_eq!(
            read,
            HeaderIn { opcode: 16, unique: 77, node: 5, uid: 1000, gid: 100, pid: 4711 }
        );
        write_out_header(&mut header, read.unique, 5, 8);
        assert_eq!(u32_at(&header, 0), 24);
        assert_eq!(u32_at(&header, 4).cast_signed(), -5);
        assert_eq!(u64_at(&header, 8), 77);
    }

    #[test]
    fn no_header_of_an_operation_is_longer_than_there_is_room() {
        assert!((0..u32::from(u8::MAX)).all(|code| operation_bytes(code) <= OPERATION_BYTES_MAX));
    }
}
