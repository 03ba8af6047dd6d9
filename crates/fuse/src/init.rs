//! The first request, in which kernel and server agree on how to talk.

use std::fmt;
use std::io;
use std::ops::{BitAnd, BitOr};
use std::sync::Arc;

use crate::channel::Channel;
use crate::message::{Message, Received};
use crate::protocol::{opcode, u32_at};

/// The version of the protocol that is spoken here.
const MAJOR: u32 = 7;
const MINOR: u32 = 45;
/// Bytes of `struct fuse_init_out`.
const OUT_BYTES: usize = 64;
/// `FUSE_MAX_PAGES` counts these.
const PAGE_BYTES: usize = 4096;

/// What a kernel can do and a server may ask for (`FUSE_*` flags of INIT).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags(u64);

#[allow(missing_docs, reason = "the names are the kernel's")]
impl Flags {
    pub const NONE: Self = Self(0);
    pub const ASYNC_READ: Self = Self(1 << 0);
    pub const POSIX_LOCKS: Self = Self(1 << 1);
    pub const EXPORT_SUPPORT: Self = Self(1 << 4);
    pub const BIG_WRITES: Self = Self(1 << 5);
    pub const DONT_MASK: Self = Self(1 << 6);
    pub const FLOCK_LOCKS: Self = Self(1 << 10);
    pub const DO_READDIRPLUS: Self = Self(1 << 13);
    pub const READDIRPLUS_AUTO: Self = Self(1 << 14);
    pub const ASYNC_DIO: Self = Self(1 << 15);
    pub const WRITEBACK_CACHE: Self = Self(1 << 16);
    pub const PARALLEL_DIROPS: Self = Self(1 << 18);
    pub const POSIX_ACL: Self = Self(1 << 20);
    pub const MAX_PAGES: Self = Self(1 << 22);
    pub const CACHE_SYMLINKS: Self = Self(1 << 23);
    pub const EXPLICIT_INVAL_DATA: Self = Self(1 << 25);
    pub const HANDLE_KILLPRIV_V2: Self = Self(1 << 28);
    pub const SETXATTR_EXT: Self = Self(1 << 29);
    pub const INIT_EXT: Self = Self(1 << 30);
    pub const DIRECT_IO_ALLOW_MMAP: Self = Self(1 << 36);
    pub const OVER_IO_URING: Self = Self(1 << 41);

    const NAMES: [(Self, &str); 20] = [
        (Self::ASYNC_READ, "ASYNC_READ"),
        (Self::POSIX_LOCKS, "POSIX_LOCKS"),
        (Self::FLOCK_LOCKS, "FLOCK_LOCKS"),
        (Self::EXPORT_SUPPORT, "EXPORT_SUPPORT"),
        (Self::BIG_WRITES, "BIG_WRITES"),
        (Self::DONT_MASK, "DONT_MASK"),
        (Self::DO_READDIRPLUS, "DO_READDIRPLUS"),
        (Self::READDIRPLUS_AUTO, "READDIRPLUS_AUTO"),
        (Self::ASYNC_DIO, "ASYNC_DIO"),
        (Self::WRITEBACK_CACHE, "WRITEBACK_CACHE"),
        (Self::PARALLEL_DIROPS, "PARALLEL_DIROPS"),
        (Self::POSIX_ACL, "POSIX_ACL"),
        (Self::MAX_PAGES, "MAX_PAGES"),
        (Self::CACHE_SYMLINKS, "CACHE_SYMLINKS"),
        (Self::EXPLICIT_INVAL_DATA, "EXPLICIT_INVAL_DATA"),
        (Self::HANDLE_KILLPRIV_V2, "HANDLE_KILLPRIV_V2"),
        (Self::SETXATTR_EXT, "SETXATTR_EXT"),
        (Self::INIT_EXT, "INIT_EXT"),
        (Self::DIRECT_IO_ALLOW_MMAP, "DIRECT_IO_ALLOW_MMAP"),
        (Self::OVER_IO_URING, "OVER_IO_URING"),
    ];

    /// Returns both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

impl BitAnd for Flags {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMES.iter().filter(|(flag, _)| *self & *flag == *flag);
        f.write_str(&named.map(|(_, name)| *name).collect::<Vec<_>>().join(", "))
    }
}

/// What a server wants of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// It cannot do without these.
    pub required: Flags,
    /// It takes these where they are offered.
    pub welcome: Flags,
    /// The largest payload of a request in bytes.
    pub payload_bytes: usize,
    /// How many requests the kernel may have under way in the background: read-ahead, write-back,
    /// asynchronous direct I/O.
    pub background_max: u16,
}

/// What every server here takes that is offered it.
const ALWAYS: Flags =
    Flags::ASYNC_READ.with(Flags::BIG_WRITES).with(Flags::MAX_PAGES).with(Flags::INIT_EXT);

/// Answers the kernel's first request. Returns the minor version of the protocol that both speak.
pub(crate) fn negotiate(channel: &Arc<Channel>, terms: &Terms) -> io::Result<u32> {
    let mut message = Message::new(channel, terms.payload_bytes);
    loop {
        if message.receive()? == Received::End {
            let message = "the connection to the kernel ended before it had begun";
            return Err(io::Error::new(io::ErrorKind::NotConnected, message));
        }
        let request = message.request();
        if request.header.opcode != opcode::INIT {
            let code = request.header.opcode;
            message.answer(libc::EIO, 0);
            let said = format!("the kernel's first request is {code}, and not INIT");
            return Err(io::Error::new(io::ErrorKind::InvalidData, said));
        }
        let offer = Offer::read(request.operation, request.payload);
        match offer.accept(terms) {
            Ok(accepted) => {
                message.payload()[..OUT_BYTES].copy_from_slice(&accepted);
                message.answer(0, OUT_BYTES);
                message.end();
            }
            Err(error) => {
                message.answer(libc::EPROTO, 0);
                return Err(error);
            }
        }
        // A kernel of a later version asks again in this one.
        if offer.major <= MAJOR {
            return Ok(offer.minor.min(MINOR));
        }
        message = Message::new(channel, terms.payload_bytes);
    }
}

/// What the kernel offers (`struct fuse_init_in`).
#[derive(Debug, Clone, Copy)]
struct Offer {
    major: u32,
    minor: u32,
    readahead_max: u32,
    flags: Flags,
}

impl Offer {
    fn read(operation: &[u8], more: &[u8]) -> Self {
        let low = u64::from(u32_at(operation, 12));
        let high = match more.get(..4) {
            Some(high) if low & Flags::INIT_EXT.0 != 0 => u64::from(u32_at(high, 0)),
            _ => 0,
        };
        Self {
            major: u32_at(operation, 0),
            minor: u32_at(operation, 4),
            readahead_max: u32_at(operation, 8),
            flags: Flags(low | high << 32),
        }
    }

    /// Returns the answer (`struct fuse_init_out`).
    fn accept(self, terms: &Terms) -> io::Result<[u8; OUT_BYTES]> {
        let unsupported = |said| Err(io::Error::new(io::ErrorKind::Unsupported, said));
        if self.major < MAJOR {
            let (major, minor) = (self.major, self.minor);
            return unsupported(format!("this kernel's FUSE is of version {major}.{minor}"));
        }
        let mut out = [0; OUT_BYTES];
        put(&mut out, 0, MAJOR.to_ne_bytes());
        put(&mut out, 4, MINOR.to_ne_bytes());
        if self.major > MAJOR {
            return Ok(out);
        }
        let missing = terms.required.without(self.flags);
        if missing != Flags::NONE {
            return unsupported(format!(
                "this kernel's FUSE lacks {missing}: Linux 6.6 and later have all of it but \
                 OVER_IO_URING, which is of 6.14"
            ));
        }
        let flags = (terms.required | terms.welcome | ALWAYS) & self.flags;
        let longest = terms.payload_bytes.max(self.readahead_max as usize);
        let pages = u16::try_from(longest.div_ceil(PAGE_BYTES)).unwrap_or(u16::MAX);
        let payload_bytes = u32::try_from(terms.payload_bytes).map_err(io::Error::other)?;
        put(&mut out, 8, self.readahead_max.to_ne_bytes());
        put(&mut out, 12, (flags.0 as u32).to_ne_bytes());
        put(&mut out, 16, terms.background_max.to_ne_bytes());
        // From here on the kernel calls the mount congested.
        put(&mut out, 18, (terms.background_max / 4 * 3).to_ne_bytes());
        put(&mut out, 20, payload_bytes.to_ne_bytes());
        // Times are told in nanoseconds.
        put(&mut out, 24, 1_u32.to_ne_bytes());
        put(&mut out, 28, pages.to_ne_bytes());
        put(&mut out, 32, ((flags.0 >> 32) as u32).to_ne_bytes());
        Ok(out)
    }
}

fn put<const N: usize>(out: &mut [u8; OUT_BYTES], at: usize, bytes: [u8; N]) {
    out[at..at + N].copy_from_slice(&bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        required: Flags::PARALLEL_DIROPS,
        welcome: Flags::DIRECT_IO_ALLOW_MMAP.with(Flags::CACHE_SYMLINKS),
        payload_bytes: 1 << 20,
        background_max: 512,
    };

    fn offer(flags: u64) -> Offer {
        let mut words = [0; 16];
        words[0..4].copy_from_slice(&7_u32.to_ne_bytes());
        words[4..8].copy_from_slice(&45_u32.to_ne_bytes());
        words[8..12].copy_from_slice(&(128_u32 << 10).to_ne_bytes());
        words[12..].copy_from_slice(&(flags as u32).to_ne_bytes());
        Offer::read(&words, &((flags >> 32) as u32).to_ne_bytes())
    }

    #[test]
    fn what_is_offered_and_wanted_is_taken() {
        let all = offer(u64::MAX).accept(&TERMS).unwrap();
        assert_eq!((u32_at(&all, 0), u32_at(&all, 4)), (7, 45));
        let flags = u64::from(u32_at(&all, 12)) | u64::from(u32_at(&all, 32)) << 32;
        assert_eq!(Flags(flags), TERMS.required | TERMS.welcome | ALWAYS);
        assert_eq!(u32_at(&all, 16), 512 | 384 << 16, "in the background, and congested");
        assert_eq!((u32_at(&all, 20), u32_at(&all, 24), u32_at(&all, 28)), (1 << 20, 1, 256));
    }

    #[test]
    fn flags_of_the_second_word_count_where_the_first_says_so() {
        let without = !Flags::INIT_EXT.0;
        let taken = offer(without).accept(&TERMS).unwrap();
        assert_eq!(u32_at(&taken, 32), 0);
    }

    #[test]
    fn what_is_required_and_not_offered_is_named() {
        let error = offer(0).accept(&TERMS).unwrap_err().to_string();
        assert!(error.contains("lacks PARALLEL_DIROPS"), "{error}");
        let old = Offer { major: 6, ..offer(u64::MAX) };
        assert!(old.accept(&TERMS).unwrap_err().to_string().contains("6.45"));
    }

    #[test]
    fn a_later_version_is_told_of_this_one() {
        let later = Offer { major: 8, ..offer(u64::MAX) }.accept(&TERMS).unwrap();
        assert_eq!((u32_at(&later, 0), u32_at(&later, 12)), (7, 0));
    }
}
