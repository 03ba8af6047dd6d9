//! Where page arbiters for scheduled scrubs come from.

use std::fmt;
use std::sync::Arc;

use crate::PageArbiter;

/// Returns an arbiter for what a scheduled scrub found; the program that uses the volumes provides
/// it. Called from the group's background thread, while nothing is locked; `None` where nothing is
/// known of pages now.
pub type ArbiterProvider = dyn Fn() -> Option<Box<dyn PageArbiter>> + Send + Sync;

/// Holds the provider of arbiters. A leaf lock.
#[derive(Default)]
pub(crate) struct ArbiterSlot(pub parking_lot::Mutex<Option<Arc<ArbiterProvider>>>);

impl fmt::Debug for ArbiterSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bench")
    }
}
