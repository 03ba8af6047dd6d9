//! Where the bytes of a device lie, when they lie elsewhere: runs of the device, each in a file or
//! zeros. What no run covers is the base's.

use crate::interval_map::{IntervalMap, RunValue};

/// Where a run of bytes lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: they are zeros.
    Zeros,
    /// In one of a recording's files, from an offset in bytes on.
    File {
        /// Which file, counted from 0.
        file: u32,
        /// Offset in the file, in bytes.
        at: u64,
    },
}

impl RunValue for Source {
    /// Returns where the bytes lie that come `distance` later.
    fn skip(&self, distance: u64) -> Self {
        match *self {
            Self::Zeros => Self::Zeros,
            Self::File { file, at } => Self::File { file, at: at + distance },
        }
    }
}

/// A map from device bytes to their places.
pub(super) type Content = IntervalMap<Source>;
