//! What I/O does, which both the map and the slots want to know.

/// What a call wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Direction {
    /// Read the file's bytes.
    Read = 0,
    /// Write to the file.
    Write = 1,
    /// Make what was written durable.
    Sync = 2,
}
