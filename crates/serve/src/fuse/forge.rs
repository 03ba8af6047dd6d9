//! The mount without a kernel: any program may speak its protocol. For fuzzers and tests only.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bedplate_fs::FileSystem;

use super::lines::Lines;
use super::session::Session;
use super::settings::MountSettings;
use super::shared::Shared;
use super::views::Shown;

/// Serves `fs` on a connection whose other end sends one request a message, as the kernel would,
/// beginning with `FUSE_INIT`. Returns when the connection ends. The file system stays mounted.
///
/// # Errors
/// When the first message is no `FUSE_INIT`, when a message is no request, or when the connection
/// breaks.
pub fn serve_connection(
    fs: FileSystem,
    settings: &MountSettings,
    connection: OwnedFd,
) -> io::Result<()> {
    let shared = Arc::new(Shared::new(fs, settings, Shown::Volume, 1, Lines::start()?));
    let served = Session::open(&shared, connection, 1).and_then(Session::serve);
    shared.lines.stop();
    shared.files.clear();
    shared.dirs.clear();
    served
}
