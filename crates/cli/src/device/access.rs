//! What a command wants to do with a device.

/// What a command wants to do with a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only look.
    ReadOnly,
    /// Change it.
    ReadWrite,
}
