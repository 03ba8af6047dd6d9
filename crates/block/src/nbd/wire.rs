//! The numbers of the protocol NBD, of both sides, as its specification names them:
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>. All are sent with the most
//! significant byte first.

/// What a server says first: `NBDMAGIC`.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// What it says next, and what stands before each option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Before each chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of a request before its data.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of an option before its data.
pub const OPTION_BYTES: usize = 16;
/// Bytes of the reply to an option before its data.
pub const OPTION_REPLY_BYTES: usize = 20;
/// Bytes of a simple reply before its data.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// The longest name or description.
pub const STRING_BYTES_MAX: usize = 4096;

/// Flags of both sides at the beginning.
pub mod handshake {
    /// Options are negotiated in the fixed newstyle way.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No zeros follow the answer to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

/// What a client asks for before it uses an export.
pub mod option {
    /// Uses an export, the old way.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the negotiation.
    pub const ABORT: u32 = 2;
    /// Asks for the names of all exports.
    pub const LIST: u32 = 3;
    /// Begins TLS.
    pub const STARTTLS: u32 = 5;
    /// Asks about an export.
    pub const INFO: u32 = 6;
    /// Asks about an export, and uses it.
    pub const GO: u32 = 7;
    /// Agrees on replies in chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Asks for the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Chooses metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// What a server answers to an option.
pub mod option_reply {
    /// The option is done.
    pub const ACK: u32 = 1;
    /// The name of an export.
    pub const SERVER: u32 = 2;
    /// A fact about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not served.
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    /// The server is set up not to serve it.
    pub const ERR_POLICY: u32 = 1 << 31 | 2;
    /// The option has no such form.
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    /// TLS comes first.
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// What the answer to `INFO` and `GO` tells.
pub mod info {
    /// Size in bytes, and flags.
    pub const EXPORT: u16 = 0;
    /// The name of an export.
    pub const NAME: u16 = 1;
    /// A description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest request in bytes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do.
pub mod transmission {
    /// Set wherever there are flags.
    pub const HAS_FLAGS: u16 = 1;
    /// Changes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is served.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The flag `FUA` is served.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` is served.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is served.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The flag `DF` is served.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers what was answered on all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The flag `FAST_ZERO` is served.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Kinds of requests.
pub mod command {
    /// Reads.
    pub const READ: u16 = 0;
    /// Writes; the data follows.
    pub const WRITE: u16 = 1;
    /// Ends the connection; has no reply.
    pub const DISC: u16 = 2;
    /// Makes durable what was answered.
    pub const FLUSH: u16 = 3;
    /// A range is no longer needed.
    pub const TRIM: u16 = 4;
    /// Writes zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Asks how a range is allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a request.
pub mod flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1;
    /// The blocks stay allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The reply is one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fails where zeros are not faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of a structured reply.
pub mod chunk {
    /// The flag of a reply's last chunk.
    pub const DONE: u16 = 1;
    /// Data, behind its offset.
    pub const OFFSET_DATA: u16 = 1;
    /// How ranges are allocated.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error number and a line of text.
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// The one metadata context, and what its numbers mean.
pub mod allocation {
    /// What both sides call it.
    pub const NAME: &str = "base:allocation";
    /// What chunks call it.
    pub const ID: u32 = 1;
    /// No blocks are allocated.
    pub const HOLE: u32 = 1;
    /// Reads as zeros.
    pub const ZERO: u32 = 2;
}

/// Error numbers: the system's of the same names, the same everywhere.
pub mod errno {
    /// The export is read-only.
    pub const EPERM: u32 = 1;
    /// The medium failed.
    pub const EIO: u32 = 5;
    /// The request is not a valid one.
    pub const EINVAL: u32 = 22;
    /// There is not enough memory.
    pub const ENOMEM: u32 = 12;
    /// There is no room.
    pub const ENOSPC: u32 = 28;
    /// A number is too large.
    pub const EOVERFLOW: u32 = 75;
    /// Not served.
    pub const ENOTSUP: u32 = 95;
    /// The server is about to end.
    pub const ESHUTDOWN: u32 = 108;
}
