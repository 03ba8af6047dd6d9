//! What a request says, read from the kernel's structs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use bedplate_fs::{SetAttr, Timestamp};
use bedplate_fuse::{Request, opcode};

use super::super::errno::{Answer, Errno};
use super::super::names::{Caller, Permissions};

/// A request of the kernel, read field by field.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) Request<'a>);

impl<'a> Fields<'a> {
    pub(super) fn caller(self) -> Caller {
        let header = self.0.header;
        Caller { uid: header.uid, gid: header.gid, thread: header.pid }
    }

    /// Returns a field of the operation's header.
    pub(crate) fn u32(self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0.operation[at..at + 4].try_into().expect("four bytes"))
    }

    /// Returns the mode that something is to be made with, and the caller's umask.
    pub(super) fn permissions(self, mode: usize, umask: usize) -> Permissions {
        Permissions { mode: self.u32(mode), umask: self.u32(umask) }
    }

    pub(crate) fn u64(self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0.operation[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Returns the name that the payload begins with, and what follows its end.
    pub(crate) fn name(self) -> Answer<(&'a OsStr, &'a [u8])> {
        split(self.0.payload)
    }

    /// Returns the two names of the payload.
    pub(crate) fn names(self) -> Answer<(&'a OsStr, &'a OsStr)> {
        let (first, rest) = self.name()?;
        Ok((first, split(rest)?.0))
    }

    /// Returns the nodes of a FORGET or a BATCH_FORGET, and how many references of each the kernel
    /// gives back.
    pub(crate) fn forgotten(self) -> impl Iterator<Item = (u64, u64)> {
        const ONE_BYTES: usize = 16;
        let is_batch = self.0.header.opcode == opcode::BATCH_FORGET;
        let alone = (!is_batch).then(|| (self.0.header.node, self.u64(0)));
        let count = if is_batch { self.u32(0) as usize } else { 0 };
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let each = self.0.payload.chunks_exact(ONE_BYTES).take(count);
        alone.into_iter().chain(each.map(move |one| (word(&one[..8]), word(&one[8..]))))
    }

    /// Reads `struct fuse_setattr_in`.
    pub(super) fn change(self) -> SetAttr {
        let valid = self.u32(0);
        let given = |bit: u32| valid & bit != 0;
        let time = |bit: u32, now: u32, seconds: usize, nanoseconds: usize| {
            given(bit).then(|| {
                if now != 0 && given(now) {
                    Timestamp::now()
                } else {
                    timestamp(self.u64(seconds).cast_signed(), self.u32(nanoseconds))
                }
            })
        };
        SetAttr {
            mode: given(1).then(|| self.u32(68) & 0o7777),
            uid: given(1 << 1).then(|| self.u32(76)),
            gid: given(1 << 2).then(|| self.u32(80)),
            size: given(1 << 3).then(|| self.u64(16)),
            atime: time(1 << 4, 1 << 7, 32, 56),
            mtime: time(1 << 5, 1 << 8, 40, 60),
            ctime: time(1 << 10, 0, 48, 64),
        }
    }
}

fn split(bytes: &[u8]) -> Answer<(&OsStr, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(Errno::IO)?;
    Ok((OsStr::from_bytes(&bytes[..end]), &bytes[end + 1..]))
}

/// The kernel sends seconds, negative before 1970, and nanoseconds that count forwards.
fn timestamp(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_fuse::HeaderIn;

    fn fields<'a>(operation: &'a [u8; 128], payload: &'a [u8]) -> Fields<'a> {
        let header = HeaderIn { opcode: 0, unique: 1, node: 1, uid: 0, gid: 0, pid: 0 };
        Fields(Request { header, operation, payload })
    }

    #[test]
    fn names_end_with_a_zero_and_one_that_does_not_is_refused() {
        let both = fields(&[0; 128], b"from\0to\0");
        assert_eq!(both.names(), Ok((OsStr::new("from"), OsStr::new("to"))));
        assert_eq!(both.name(), Ok((OsStr::new("from"), &b"to\0"[..])));
        for payload in [&b""[..], b"from", b"from\0to"] {
            assert_eq!(fields(&[0; 128], payload).names().err(), Some(Errno::IO));
        }
    }

    #[test]
    fn a_list_of_what_is_forgotten_is_no_longer_than_the_message() {
        let ones: Vec<u8> = [7_u64, 1, 8, 2].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let forgotten = |opcode, count: u64, payload: &[u8]| {
            let mut operation = [0; 128];
            operation[..8].copy_from_slice(&count.to_ne_bytes());
            let mut request = fields(&operation, payload).0;
            (request.header.opcode, request.header.node) = (opcode, 5);
            Fields(request).forgotten().collect::<Vec<_>>()
        };
        assert_eq!(forgotten(opcode::FORGET, 3, &[]), [(5, 3)]);
        assert_eq!(forgotten(opcode::BATCH_FORGET, 1, &ones), [(7, 1)]);
        assert_eq!(forgotten(opcode::BATCH_FORGET, 3, &ones), [(7, 1), (8, 2)]);
        assert_eq!(forgotten(opcode::BATCH_FORGET, 3, &ones[..31]), [(7, 1)]);
        assert_eq!(forgotten(opcode::BATCH_FORGET, u32::MAX.into(), &[]), []);
    }

    #[test]
    fn times_before_the_epoch_keep_their_fraction() {
        assert_eq!(timestamp(-2, 200_000_000), Timestamp(-1_800_000_000));
        assert_eq!(timestamp(i64::MAX, 5), Timestamp(i64::MAX));
    }

    #[test]
    fn a_change_has_what_is_marked_as_given() {
        let mut operation = [0; 128];
        let mut put = |at: usize, bytes: &[u8]| {
            operation[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, &(1_u32 | 8 | 16).to_ne_bytes());
        put(16, &4711_u64.to_ne_bytes());
        put(32, &(-2_i64).to_ne_bytes());
        put(56, &200_000_000_u32.to_ne_bytes());
        put(68, &0o100_644_u32.to_ne_bytes());
        let change = fields(&operation, &[]).change();
        assert_eq!((change.mode, change.size), (Some(0o644), Some(4711)));
        assert_eq!(change.atime, Some(Timestamp(-1_800_000_000)));
        assert!(change.mtime.is_none() && change.ctime.is_none() && change.uid.is_none());
    }
}
