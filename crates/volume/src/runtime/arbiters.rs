//! Where page arbiters come from for scheduled scrubs, and for copies that are compared before one of
//! them is copied from.

use std::fmt;
use std::sync::Arc;

use bedplate_block::sync::rank;

use crate::PageArbiter;

/// Returns an arbiter for copies that were found to differ; the program that uses the volumes provides
/// it. Called from the group's background thread, and from one that takes steps of a relayout or
/// brings members up to date, while nothing is locked; `None` where nothing is known of pages now.
pub type ArbiterProvider = dyn Fn() -> Option<Box<dyn PageArbiter>> + Send + Sync;

/// Holds the provider of arbiters.
#[derive(Default)]
pub(crate) struct ArbiterSlot(
    /// A leaf.
    pub bedplate_block::sync::Mutex<Option<Arc<ArbiterProvider>>, { rank::VOLUME_LEAF }>,
);

impl fmt::Debug for ArbiterSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArbiterSlot")
    }
}
