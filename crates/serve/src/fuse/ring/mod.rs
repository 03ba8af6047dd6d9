//! Requests that come over io_uring: the second translator beside `adapter`, with the kernel's own
//! structs on both sides. What carries them is `crates/fuse-ring`.

mod answers;
mod fields;
mod requests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bedplate_fs::InodeNo;
use bedplate_fuse_ring::Lanes;

use super::buffers::PAYLOAD_BYTES_MAX;
use super::shared::Shared;
use super::transport::threads_each;

/// Carries requests to [`Shared`].
struct Translator(Arc<Shared>);

impl Translator {
    /// Returns the inode that the kernel means: what it calls the root may be a checkpoint's.
    fn ino(&self, number: u64) -> InodeNo {
        if number == ROOT { self.0.shown.root() } else { InodeNo(number) }
    }
}

/// What the kernel calls the root (`FUSE_ROOT_ID`).
const ROOT: u64 = 1;

/// Serves a connection on which the kernel agreed to io_uring, with so many threads or some more.
pub(super) fn serve(
    shared: &Arc<Shared>,
    connection: OwnedFd,
    threads: usize,
) -> io::Result<Lanes> {
    let translator = Translator(Arc::clone(shared));
    let serve = move |reply| translator.serve(reply);
    Lanes::start(connection, threads_each(threads), PAYLOAD_BYTES_MAX, serve)
}
