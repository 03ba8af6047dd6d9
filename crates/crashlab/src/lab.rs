//! What every part of the lab needs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bedplate::BlockDevice;
use bedplate_serve::fuse::MountSettings;

use crate::workplace::Workplace;

/// What a lab is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The setup runs.
    Setup,
    /// The command runs.
    Recording,
    /// The checker runs where nothing was lost.
    Checking,
    /// States are tried.
    States {
        /// How many were.
        done: usize,
        /// How many are to be.
        total: usize,
        /// How many did not pass.
        failed: usize,
    },
}

/// A lab: what it works with, and how.
pub struct Lab<'a> {
    /// Options of the mounts.
    pub settings: MountSettings,
    /// The checker, a line for the shell: exit code 0 says that nothing is missing.
    pub check: &'a str,
    /// How long one run of the checker may take.
    pub timeout: Duration,
    /// How many states are tried at once. With 1 every mount is on the same directory.
    pub jobs: usize,
    /// Where failing states are kept as image files, as the cut left them.
    pub keep_failing: Option<&'a Path>,
    /// Opens an image that is only read.
    pub open_image: &'a (dyn Fn(&Path) -> bedplate::Result<Arc<dyn BlockDevice>> + Sync),
    /// Set from outside, it ends the lab early.
    pub stop: &'a AtomicBool,
    /// Told of every stage when it begins, and of every state when it was tried.
    pub progress: &'a (dyn Fn(Stage) + Sync),
    /// Where the lab works.
    pub workplace: Workplace,
}
