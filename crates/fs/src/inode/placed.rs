//! What a file remembers of the members that it is to lie on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::sync::{Mutex, rank};
use bedplate_store::Run;

/// The members that a file is to lie on, and where that is.
#[derive(Debug)]
pub(crate) struct Places {
    /// The members' identities.
    pub(crate) wanted: Vec<[u8; 16]>,
    /// What the device said of its members then.
    pub(crate) version: u64,
    /// The blocks of the volume that lie on them and on no other, by rising blocks and apart; none
    /// where the members have left, or addresses are being moved.
    pub(crate) runs: Vec<Run>,
}

/// What is known of a file's placement; valid with the copy-on-write epoch.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    is_wanted: AtomicBool,
    /// A leaf.
    known: Mutex<Option<Arc<Places>>, { rank::PLACEMENT }>,
}

impl Placed {
    pub(crate) fn set(&self, places: Option<Places>) {
        self.is_wanted.store(places.is_some(), Ordering::Relaxed);
        *self.known.lock() = places.map(Arc::new);
    }

    /// Returns where the file is to lie, where that was asked for.
    #[inline]
    pub(crate) fn get(&self) -> Option<Arc<Places>> {
        if self.is_wanted.load(Ordering::Relaxed) { self.known.lock().clone() } else { None }
    }
}
