//! What client and daemon say to each other besides shared memory: the answer to an ioctl on a
//! file, and messages on a socket. All of fixed length, little-endian, checked on both sides.
//!
//! ```text
//! ioctl    client ──► FUSE descriptor        LEASE_IOCTL, nothing to write
//!          daemon ──► Offer                  socket, token, inode; or the reason why not
//!          client ──► FUSE descriptor        ODD_IOCTL + OddRequest: the right to odd writes of the file
//!          daemon ──► OddRequest::answer     given, or the reason why not
//!          client ──► FUSE descriptor        TAIL_IOCTL + TailRequest: a tail of the file
//!          daemon ──► TailRequest::answer    given, or the reason why not
//!          client ──► FUSE descriptor        SYNC_IOCTL, nothing to write or read: a data sync
//!          daemon ──► done, or ENOTTY        `fdatasync` has to do it
//! socket   (AF_UNIX, SOCK_SEQPACKET)
//!          client ──► Request::Attach        once a process, with the token
//!          daemon ──► Answer + 4 descriptors claim, device, control, slots (SCM_RIGHTS); 3 more where
//!                                           processes read in its cache: frames, directory, uses
//!          client ──► Publish, Close, Suspend, FlushFailed; each answered
//!          client ──► Requests              before its first asynchronous request
//!          daemon ──► Answer + 2 descriptors counter, life
//! ```
//!
//! A token names a process's open of one file, proves that the process could open it, and is worth
//! one request.

use crate::layout::LAYOUT_VERSION;
use crate::reader::Lease;
use crate::reason::Reason;

/// The ioctl on a file's descriptor: `_IOR(0xBE, 1, [u8; 256])`.
pub const LEASE_IOCTL: u32 = (2 << 30) | ((OFFER_BYTES as u32) << 16) | (0xBE << 8) | 1;

/// The ioctl on a file's descriptor by which a client asks for the right to odd writes of it:
/// `_IOWR(0xBE, 2, [u8; 16])`. On the descriptor, because the daemon may have to wait for a process
/// that does I/O on the file, and only what uses the file waits with it.
pub const ODD_IOCTL: u32 = (3 << 30) | ((ODD_BYTES as u32) << 16) | (0xBE << 8) | 2;

/// The length of an [`OddRequest`] and of its answer.
pub const ODD_BYTES: usize = 16;

/// The ioctl on a file's descriptor by which a client asks for a tail of it:
/// `_IOWR(0xBE, 3, [u8; 32])`.
pub const TAIL_IOCTL: u32 = (3 << 30) | ((TAIL_BYTES as u32) << 16) | (0xBE << 8) | 3;

/// The length of a [`TailRequest`] and of its answer.
pub const TAIL_BYTES: usize = 32;

/// Threads of a client share out places at the end of a file, and the write of the one that asks for a
/// tail may lie behind those of others, and the end: so far. The tail begins at the end.
pub const TAIL_GAP_BYTES_MAX: u64 = 1 << 20;

/// The ioctl on a file's descriptor by which a client has the daemon make the file's data durable:
/// `_IO(0xBE, 4)`. The kernel lets one `fsync` of a file into the mount at a time (`fuse_fsync` takes
/// the inode's lock), and any number of ioctls: syncs of several threads meet in the log there, and
/// share a flush. What the kernel holds of the file it does not write first, so the daemon answers
/// `ENOTTY` where that may be anything.
pub const SYNC_IOCTL: u32 = (0xBE << 8) | 4;

/// The ioctl on a file's descriptor by which a client asks for an append buffer for it, with a
/// [`TailRequest`]: `_IOWR(0xBE, 5, [u8; 32])`. What one for the file holds goes to the file first.
pub const APPEND_IOCTL: u32 = (3 << 30) | ((TAIL_BYTES as u32) << 16) | (0xBE << 8) | 5;

/// The length of an [`Offer`].
pub const OFFER_BYTES: usize = 256;

/// The length of a [`Request`].
pub const REQUEST_BYTES: usize = 64;

/// The length of an [`Answer`].
pub const ANSWER_BYTES: usize = 64;

/// Descriptors that come with the answer to [`Request::Attach`], in this order: the daemon's
/// description of the device, which is only kept; one of the client's own for I/O; the control
/// memory; the slots. Those of the daemon's cache follow where processes read there: the frames, the
/// directory, the uses.
pub const ATTACH_DESCRIPTORS: usize = 7;

/// Descriptors that come with the answer to [`Request::Requests`]: an eventfd that the kernel raises
/// by one for every asynchronous request that ends; a memory that the client maps for as long as its
/// own memory lives, so that the daemon can tell when that is gone.
pub const REQUESTS_DESCRIPTORS: usize = 2;

/// The longest name of a socket.
pub const SOCKET_BYTES_MAX: usize = 108;

// Each message has room for the longest of its kind, and its length is known before it is read.
const _: () = assert!(OFFER_BYTES >= 8 + 4 + 4 + 8 + 8 + 16 + 1 + SOCKET_BYTES_MAX);
const _: () = assert!(REQUEST_BYTES >= 4 + 4 + size_of::<Token>());
const _: () = assert!(ANSWER_BYTES >= 4 + 4 + 4 + 4 + 8);

/// What an open of a file is worth once.
pub type Token = [u8; 16];

const OFFER_MAGIC: [u8; 8] = *b"BPLOFFER";

/// The daemon's answer to the ioctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The number of the mount, as in the control memory.
    pub mount: u64,
    /// The file's inode.
    pub inode: u64,
    /// Where to attach, or why not.
    pub leased: Result<Place, Reason>,
}

/// Where to attach, and with what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// To be shown to the daemon once.
    pub token: Token,
    /// The socket.
    pub socket: SocketName,
}

/// The address of a socket: a path, or a name without a file, whose first byte is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketName {
    bytes: [u8; SOCKET_BYTES_MAX],
    len: u8,
}

impl SocketName {
    /// Takes the bytes of a path, or 0 and the bytes of a name; nothing where they are too many,
    /// none, or a path has a 0 within.
    pub fn new(name: &[u8]) -> Option<Self> {
        let is_path = name.first().is_some_and(|&first| first != 0);
        // A path ends with a 0 in the address.
        let max = SOCKET_BYTES_MAX - usize::from(is_path);
        if name.is_empty() || name.len() > max || (is_path && name.contains(&0)) {
            return None;
        }
        let mut bytes = [0; SOCKET_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Some(Self { bytes, len: name.len() as u8 })
    }

    /// Returns the bytes, without a 0 behind a path.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Offer {
    /// Encodes it.
    pub fn encode(&self) -> [u8; OFFER_BYTES] {
        let mut out = Out { bytes: [0; OFFER_BYTES], at: 0 };
        out.put(&OFFER_MAGIC);
        out.put(&LAYOUT_VERSION.to_le_bytes());
        out.put(&self.leased.err().map_or(0, |reason| reason as u32).to_le_bytes());
        out.put(&self.mount.to_le_bytes());
        out.put(&self.inode.to_le_bytes());
        if let Ok(place) = &self.leased {
            out.put(&place.token);
            out.put(&[place.socket.len]);
            out.put(place.socket.as_bytes());
        }
        out.bytes
    }

    /// Decodes it; nothing where these bytes are not the answer of a daemon. One of another
    /// version is [`Reason::Version`], whatever follows.
    pub fn decode(bytes: &[u8; OFFER_BYTES]) -> Option<Self> {
        let mut from = In { bytes };
        if from.take::<8>()? != OFFER_MAGIC {
            return None;
        }
        if from.u32()? != LAYOUT_VERSION {
            return Some(Self { mount: 0, inode: 0, leased: Err(Reason::Version) });
        }
        let code = from.u32()?;
        let (mount, inode) = (from.u64()?, from.u64()?);
        if code != 0 {
            let reason = Reason::of(code).unwrap_or(Reason::Failed);
            return Some(Self { mount, inode, leased: Err(reason) });
        }
        let token = from.take::<16>()?;
        let [len] = from.take::<1>()?;
        let socket = SocketName::new(from.bytes.get(..usize::from(len))?)?;
        Some(Self { mount, inode, leased: Ok(Place { token, socket }) })
    }
}

/// A client asks for the right to odd writes of the file on whose descriptor it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OddRequest {
    /// Its number, as its slots have it.
    pub client: u64,
}

impl OddRequest {
    /// Encodes it.
    pub fn encode(&self) -> [u8; ODD_BYTES] {
        odd(0, self.client)
    }

    /// Decodes it.
    pub fn decode(bytes: &[u8]) -> Result<Self, Reason> {
        let mut from = In { bytes };
        match (from.u32(), from.u32(), from.u64()) {
            (Some(version), ..) if version != LAYOUT_VERSION => Err(Reason::Version),
            (_, Some(0), Some(client)) if bytes.len() == ODD_BYTES => Ok(Self { client }),
            _ => Err(Reason::Request),
        }
    }

    /// Encodes the daemon's answer.
    pub fn answer(done: Result<(), Reason>) -> [u8; ODD_BYTES] {
        odd(done.err().map_or(0, |reason| reason as u32), 0)
    }

    /// Decodes it: whether the client has the right now.
    pub fn is_given(answer: &[u8; ODD_BYTES]) -> bool {
        *answer == odd(0, 0)
    }
}

/// A client asks for a tail of the file on whose descriptor it asks, or for an append buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailRequest {
    /// Its number, as its slots have it.
    pub client: u64,
    /// Where the write begins that is to go there, in bytes of the file.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

impl TailRequest {
    /// Encodes it.
    pub fn encode(&self) -> [u8; TAIL_BYTES] {
        tail(0, [self.client, self.offset, self.len])
    }

    /// Decodes it.
    pub fn decode(bytes: &[u8]) -> Result<Self, Reason> {
        let mut from = In { bytes };
        match (from.u32(), from.u32(), from.u64(), from.u64(), from.u64()) {
            (Some(version), ..) if version != LAYOUT_VERSION => Err(Reason::Version),
            (_, Some(0), Some(client), Some(offset), Some(len)) if bytes.len() == TAIL_BYTES => {
                Ok(Self { client, offset, len })
            }
            _ => Err(Reason::Request),
        }
    }

    /// Encodes the daemon's answer.
    pub fn answer(done: Result<(), Reason>) -> [u8; TAIL_BYTES] {
        tail(done.err().map_or(0, |reason| reason as u32), [0; 3])
    }

    /// Decodes it: whether the client has now what it asked for.
    pub fn is_given(answer: &[u8; TAIL_BYTES]) -> bool {
        *answer == tail(0, [0; 3])
    }
}

fn tail(code: u32, numbers: [u64; 3]) -> [u8; TAIL_BYTES] {
    let mut out = Out { bytes: [0; TAIL_BYTES], at: 0 };
    out.put(&LAYOUT_VERSION.to_le_bytes());
    out.put(&code.to_le_bytes());
    numbers.iter().for_each(|number| out.put(&number.to_le_bytes()));
    out.bytes
}

fn odd(code: u32, number: u64) -> [u8; ODD_BYTES] {
    let mut out = Out { bytes: [0; ODD_BYTES], at: 0 };
    out.put(&LAYOUT_VERSION.to_le_bytes());
    out.put(&code.to_le_bytes());
    out.put(&number.to_le_bytes());
    out.bytes
}

/// What a client asks on the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Be a client. The first request, and only the first. The daemon publishes the token's file
    /// with it where it can.
    Attach {
        /// Of an offer.
        token: Token,
    },
    /// Publish another file.
    Publish {
        /// Of an offer for that file.
        token: Token,
    },
    /// The process has closed its last descriptor of the file that it had under a lease.
    Close {
        /// The file.
        inode: u64,
    },
    /// Keep the file on the mount until this client closes it: the process is about to do what the
    /// lease cannot see, as mapping it.
    Suspend {
        /// The file.
        inode: u64,
    },
    /// A flush of the device failed in this process. The daemon latches it before it answers.
    FlushFailed {
        /// The error number.
        errno: u32,
    },
    /// The process is about to make asynchronous requests.
    Requests,
}

impl Request {
    /// Encodes it.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = Out { bytes: [0; REQUEST_BYTES], at: 0 };
        let mut put = |kind: u32, what: &[u8]| {
            out.put(&LAYOUT_VERSION.to_le_bytes());
            out.put(&kind.to_le_bytes());
            out.put(what);
        };
        match self {
            Self::Attach { token } => put(1, token),
            Self::Publish { token } => put(2, token),
            Self::Close { inode } => put(3, &inode.to_le_bytes()),
            Self::Suspend { inode } => put(4, &inode.to_le_bytes()),
            Self::FlushFailed { errno } => put(5, &errno.to_le_bytes()),
            Self::Requests => put(6, &[]),
        }
        out.bytes
    }

    /// Decodes one packet.
    pub fn decode(bytes: &[u8]) -> Result<Self, Reason> {
        let decode = || {
            let mut from = In { bytes };
            if from.u32()? != LAYOUT_VERSION {
                return Some(Err(Reason::Version));
            }
            Some(Ok(match from.u32()? {
                1 => Self::Attach { token: from.take()? },
                2 => Self::Publish { token: from.take()? },
                3 => Self::Close { inode: from.u64()? },
                4 => Self::Suspend { inode: from.u64()? },
                5 => Self::FlushFailed { errno: from.u32()? },
                6 => Self::Requests,
                _ => return None,
            }))
        };
        // A packet of another version may have another length.
        match decode() {
            Some(Ok(request)) if bytes.len() == REQUEST_BYTES => Ok(request),
            Some(Err(reason)) => Err(reason),
            _ => Err(Reason::Request),
        }
    }
}

/// What the daemon answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Done, or why not.
    pub done: Result<(), Reason>,
    /// The file's entry, where a request with a token published it. Attached without an entry: the
    /// client is welcome, this one file is not leased.
    pub lease: Option<Lease>,
    /// The device's description allows only reads.
    pub is_read_only: bool,
}

impl Answer {
    /// Done, with nothing to say.
    pub const DONE: Self = Self { done: Ok(()), lease: None, is_read_only: false };

    /// Not done.
    pub fn refused(reason: Reason) -> Self {
        Self { done: Err(reason), ..Self::DONE }
    }

    /// Encodes it.
    pub fn encode(&self) -> [u8; ANSWER_BYTES] {
        let mut out = Out { bytes: [0; ANSWER_BYTES], at: 0 };
        out.put(&LAYOUT_VERSION.to_le_bytes());
        out.put(&self.done.err().map_or(0, |reason| reason as u32).to_le_bytes());
        let entry = self.lease.map_or(0, |lease| lease.entry + 1);
        out.put(&entry.to_le_bytes());
        out.put(&u32::from(self.is_read_only).to_le_bytes());
        out.put(&self.lease.map_or(0, |lease| lease.generation).to_le_bytes());
        out.bytes
    }

    /// Decodes one packet; one that makes no sense is [`Reason::Version`].
    pub fn decode(bytes: &[u8]) -> Self {
        let decode = || {
            let mut from = In { bytes };
            let is_known = from.u32()? == LAYOUT_VERSION && bytes.len() == ANSWER_BYTES;
            let (code, entry, is_read_only) = (from.u32()?, from.u32()?, from.u32()? != 0);
            let generation = from.u64()?;
            let lease = entry.checked_sub(1).map(|entry| Lease { entry, generation });
            let done = match code {
                0 => Ok(()),
                code => Err(Reason::of(code).unwrap_or(Reason::Failed)),
            };
            is_known.then_some(Self { done, lease, is_read_only })
        };
        decode().unwrap_or(Self::refused(Reason::Version))
    }
}

struct Out<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Out<N> {
    fn put(&mut self, what: &[u8]) {
        self.bytes[self.at..self.at + what.len()].copy_from_slice(what);
        self.at += what.len();
    }
}

struct In<'a> {
    bytes: &'a [u8],
}

impl In<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}
