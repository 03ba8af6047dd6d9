//! The translator: requests of the kernel, in its own structs, onto [`Shared`], and answers back. It
//! is the same whichever way they come (`crates/fuse`).

pub(crate) mod answers;
pub(crate) mod fields;
mod files;
mod requests;

use std::sync::Arc;

use bedplate_fs::InodeNo;
use bedplate_fuse::Serve;

use super::shared::Shared;
use super::trees::Node;

/// Carries requests to [`Shared`].
struct Translator(Arc<Shared>);

impl Translator {
    /// Returns the inode that the kernel means: what it calls the root may be a checkpoint's.
    fn ino(&self, number: u64) -> InodeNo {
        self.node(number).ino
    }

    /// Returns the inode that the kernel means, and through which tree.
    fn node(&self, number: u64) -> Node {
        if number == ROOT {
            return Node { ino: self.0.shown.root(), tree: None };
        }
        Node::of(number)
    }
}

/// What the kernel calls the root (`FUSE_ROOT_ID`).
const ROOT: u64 = 1;

/// Returns what serves the requests of a mount.
pub(super) fn translator(shared: &Arc<Shared>) -> Serve {
    let translator = Translator(Arc::clone(shared));
    Arc::new(move |reply| translator.serve(reply))
}
