//! The protocols' numbers.

/// NFS, among programs of RPC.
pub const NFS: u32 = 100_003;
/// MOUNT.
pub const MOUNT: u32 = 100_005;
/// The version of both.
pub const VERSION: u32 = 3;
/// The portmapper.
pub const PORTMAP: u32 = 100_000;
/// Its version.
pub const PORTMAP_VERSION: u32 = 2;
/// Its port.
pub const PORTMAP_PORT: u16 = 111;
/// Its procedure that tells the port of a program.
pub const GETPORT: u32 = 3;
/// MOUNT's procedure that tells the handle of a directory.
pub const MNT: u32 = 1;
/// The number of TCP for the portmapper.
pub const TCP: u32 = 6;

/// The most bytes of a handle.
pub const HANDLE_BYTES_MAX: usize = 64;
/// The most bytes of a name that are looked at.
pub const NAME_BYTES_MAX: usize = 255;
/// The most bytes of what a symbolic link leads to.
pub const TARGET_BYTES_MAX: usize = 4095;

/// Attributes of a file.
pub const GETATTR: u32 = 1;
/// Changes of them.
pub const SETATTR: u32 = 2;
/// A name in a directory.
pub const LOOKUP: u32 = 3;
/// What a user may do.
pub const ACCESS: u32 = 4;
/// What a symbolic link leads to.
pub const READLINK: u32 = 5;
/// Bytes of a file.
pub const READ: u32 = 6;
/// Bytes for a file.
pub const WRITE: u32 = 7;
/// A new file.
pub const CREATE: u32 = 8;
/// A new directory.
pub const MKDIR: u32 = 9;
/// A new symbolic link.
pub const SYMLINK: u32 = 10;
/// A new device, socket or named pipe.
pub const MKNOD: u32 = 11;
/// A name less.
pub const REMOVE: u32 = 12;
/// A directory less.
pub const RMDIR: u32 = 13;
/// Another name.
pub const RENAME: u32 = 14;
/// One name more.
pub const LINK: u32 = 15;
/// Names with attributes and handles.
pub const READDIRPLUS: u32 = 17;
/// Room of a file system.
pub const FSSTAT: u32 = 18;
/// Limits of a server.
pub const FSINFO: u32 = 19;
/// Makes what was written durable.
pub const COMMIT: u32 = 21;

/// A write may wait for a commit.
pub const UNSTABLE: u32 = 0;
/// Data is durable when a write is answered, and what leads to it.
pub const DATA_SYNC: u32 = 1;
/// Data and attributes are.
pub const FILE_SYNC: u32 = 2;

/// A creation that finds a file takes it.
pub const UNCHECKED: u32 = 0;
/// A creation that finds a file fails.
pub const GUARDED: u32 = 1;
/// A creation that finds a file fails, unless the same one made it.
pub const EXCLUSIVE: u32 = 2;
