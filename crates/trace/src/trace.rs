//! A trace in memory.

use serde::{Deserialize, Serialize};

use crate::slot::{Call, how};

/// What a program did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// Circumstances.
    pub about: About,
    /// Its processes, in the order in which they came.
    pub processes: Vec<Process>,
    /// The files that it called by name or descriptor.
    pub files: Vec<TracedFile>,
    /// Its calls, by the time at which they began.
    pub events: Vec<Event>,
}

/// The circumstances of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// The version of the program that recorded it.
    pub version: String,
    /// The command.
    pub command: Vec<String>,
    /// When it began, in seconds since 1970.
    pub started: u64,
    /// The kernel.
    pub kernel: String,
    /// From the start to the end of the program.
    pub took_ns: u64,
    /// The program's exit code.
    pub exit_code: i32,
    /// Records that found no room.
    pub lost: u64,
    /// What was dirty was written before the start and at the end, so that the devices' counts are
    /// those of this program's work.
    pub settled: bool,
    /// What block devices did meanwhile.
    pub devices: Vec<DeviceCount>,
}

/// What a block device did, for this program and all others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceCount {
    /// The kernel's name.
    pub name: String,
    /// The device's number, as `stat` tells it of the files on it.
    pub device: u64,
    /// Completed reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Completed flushes.
    pub flushes: u64,
}

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its number at the system.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// Its program.
    pub program: String,
}

/// A file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TracedFile {
    /// Its path when it was first seen; of an open that failed what the program named.
    pub path: String,
    /// The device's number; 0 of a file that was never open.
    pub device: u64,
    /// The inode; 0 of a file that was never open.
    pub inode: u64,
    /// Its size when it was first seen.
    pub size_bytes: u64,
    /// It is a block device.
    pub is_device: bool,
}

/// A call. Times are nanoseconds from the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Which of the processes.
    pub process: u32,
    /// The thread's number at the system.
    pub thread: u32,
    /// The call.
    pub call: Call,
    /// Bits of [`how`].
    pub how: u8,
    /// The error's number; 0 of a call that succeeded.
    pub errno: u16,
    /// Which of the files; none of a call without one.
    pub file: Option<u32>,
    /// The flags of the call: of an open those of the open.
    pub flags: u32,
    /// When it began.
    pub begin_ns: u64,
    /// How long it took.
    pub took_ns: u64,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes were asked for.
    pub asked: u64,
    /// How many were moved.
    pub moved: u64,
    /// The alignment of the memory: a power of two of at most 4096.
    pub memory_align: u32,
}

impl Event {
    /// Returns when it ended.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.begin_ns.saturating_add(self.took_ns)
    }

    /// Tells whether the call succeeded.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.errno == 0 && self.how & how::UNFINISHED == 0
    }
}

/// Errors by their numbers, on Linux.
const NAMES: [(u16, &str); 26] = [
    (1, "EPERM"),
    (2, "ENOENT"),
    (4, "EINTR"),
    (5, "EIO"),
    (6, "ENXIO"),
    (9, "EBADF"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (14, "EFAULT"),
    (16, "EBUSY"),
    (17, "EEXIST"),
    (19, "ENODEV"),
    (20, "ENOTDIR"),
    (21, "EISDIR"),
    (22, "EINVAL"),
    (23, "ENFILE"),
    (24, "EMFILE"),
    (26, "ETXTBSY"),
    (27, "EFBIG"),
    (28, "ENOSPC"),
    (29, "ESPIPE"),
    (30, "EROFS"),
    (40, "ELOOP"),
    (95, "EOPNOTSUPP"),
    (122, "EDQUOT"),
];

/// Returns an error's name, or its number.
#[must_use]
pub fn errno_name(errno: u16) -> String {
    NAMES
        .iter()
        .find(|(number, _)| *number == errno)
        .map_or_else(|| format!("errno {errno}"), |(_, name)| (*name).to_owned())
}
