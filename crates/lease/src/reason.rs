//! Why something has no lease: a file at the daemon, a call in the library.

/// Why the daemon leases no file to a process. The numbers are the protocol's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Reason {
    /// The mount hands out no leases (`lease=off`).
    Off = 1,
    /// The process runs as a user that `lease=` does not name.
    User = 2,
    /// The file is not served in a mode in which the device is the only copy.
    Mode = 3,
    /// The open, or another one, came with a suffix or is mapped into memory.
    Suspended = 4,
    /// The file has untorn writes.
    Untorn = 5,
    /// Bytes of the file wait in memory until their sector is whole.
    HeldBytes = 6,
    /// The volume's layout has to see every write.
    Volume = 7,
    /// Not a regular file of the live file system.
    Kind = 8,
    /// No more files can be published.
    TooManyFiles = 9,
    /// No more clients can attach.
    TooManyClients = 10,
    /// The mount ends, is read-only, or its device failed.
    State = 11,
    /// Library and daemon speak different versions.
    Version = 12,
    /// The token is unknown or was used before.
    Token = 13,
    /// The request is none that the daemon knows.
    Request = 14,
    /// The daemon could not make what it wanted to hand out.
    Failed = 15,
    /// The file has checksums of its data.
    Integrity = 16,
    /// The file does not grow in a way that a tail serves, or the volume has little room.
    Tail = 17,
    /// The file is served in `concurrent+cache`, and the mount cannot share its cache.
    Cache = 18,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 18] = [
        Self::Off,
        Self::User,
        Self::Mode,
        Self::Suspended,
        Self::Untorn,
        Self::HeldBytes,
        Self::Volume,
        Self::Kind,
        Self::TooManyFiles,
        Self::TooManyClients,
        Self::State,
        Self::Version,
        Self::Token,
        Self::Request,
        Self::Failed,
        Self::Integrity,
        Self::Tail,
        Self::Cache,
    ];

    /// Returns the reason with this number.
    pub fn of(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u32 == code)
    }

    /// A word for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::User => "user",
            Self::Mode => "mode",
            Self::Suspended => "suspended",
            Self::Untorn => "untorn",
            Self::HeldBytes => "held-bytes",
            Self::Volume => "volume",
            Self::Kind => "kind",
            Self::TooManyFiles => "too-many-files",
            Self::TooManyClients => "too-many-clients",
            Self::State => "state",
            Self::Version => "version",
            Self::Token => "token",
            Self::Request => "request",
            Self::Failed => "failed",
            Self::Integrity => "integrity",
            Self::Tail => "tail",
            Self::Cache => "cache",
        }
    }

    /// Says the reason to people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Off => "this mount hands out no leases (lease=off)",
            Self::User => "the mount option lease= does not name the user of this process",
            Self::Mode => "the file is not served in a mode in which the device is the only copy",
            Self::Suspended => "an open with a suffix or a mapping keeps the file on the mount",
            Self::Untorn => "the file has untorn writes, which the mount has to make",
            Self::HeldBytes => "bytes of the file wait in the mount's memory",
            Self::Volume => "the volume's layout has to see every write",
            Self::Kind => "only regular files of the live file system are leased",
            Self::TooManyFiles => "the mount cannot publish more files",
            Self::TooManyClients => "the mount cannot serve more clients",
            Self::State => "the mount ends, is read-only, or its device failed",
            Self::Version => "library and mount are of different versions of bedplate",
            Self::Token => "the token is unknown or was used before",
            Self::Request => "the mount does not know this request",
            Self::Integrity => "the file has checksums, which the mount has to make and compare",
            Self::Tail => "the file ends within a block, or the volume has little room",
            Self::Cache => "the mount could not share the memory of its cache; its log says more",
            Self::Failed => "the mount could not make what a lease needs; its log says more",
        }
    }
}

const _: () = {
    let mut at = 0;
    while at < Reason::ALL.len() {
        assert!(Reason::ALL[at] as usize == at + 1, "the protocol's numbers have no gap");
        at += 1;
    }
    at = 0;
    while at < Fallback::COUNT {
        assert!(Fallback::ALL[at] as usize == at, "counters lie in the order of their list");
        at += 1;
    }
};

/// Why one call went to the mount although its file is leased. Each has a counter in the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Fallback {
    /// The file was being changed, or is published no more.
    Revoked = 0,
    /// No one written extent covers the range.
    Unmapped = 1,
    /// The file or the extent may not be written, or not be read.
    Forbidden = 2,
    /// The range passes the file's size.
    BeyondSize = 3,
    /// Place or length is no multiple of the device's sector.
    Unaligned = 4,
    /// A record that replay would look at names blocks of the file.
    Unsealed = 5,
    /// A checkpoint came or went after the map was made.
    Shared = 6,
    /// The mount as a whole allows it not.
    State = 7,
    /// Something of the file waits in the log, so the mount has to sync.
    Unsynced = 8,
    /// Anything else: no free slot, a descriptor that was reused, a signal in the midst of a call.
    Other = 9,
    /// The file is read in the daemon's cache: what is not there, and all writes, are the mount's.
    Uncached = 10,
}

impl Fallback {
    /// How many there are.
    pub const COUNT: usize = 11;

    /// All of them, in the order of their counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Revoked,
        Self::Unmapped,
        Self::Forbidden,
        Self::BeyondSize,
        Self::Unaligned,
        Self::Unsealed,
        Self::Shared,
        Self::State,
        Self::Unsynced,
        Self::Other,
        Self::Uncached,
    ];

    /// A word for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::Unmapped => "unmapped",
            Self::Forbidden => "forbidden",
            Self::BeyondSize => "beyond-size",
            Self::Unaligned => "unaligned",
            Self::Unsealed => "unsealed",
            Self::Shared => "shared",
            Self::State => "state",
            Self::Unsynced => "unsynced",
            Self::Other => "other",
            Self::Uncached => "uncached",
        }
    }
}
