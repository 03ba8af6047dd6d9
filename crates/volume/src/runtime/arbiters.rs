//! Who may judge what scrubs on a schedule find.

use std::fmt;
use std::sync::Arc;

use crate::PageArbiter;

/// Finds one who judges what a scrub on a schedule found: whoever uses the volumes lends it. Called from the group's background thread, while
/// nothing is locked; `None` where nobody knows anything now.
pub type ArbiterProvider = dyn Fn() -> Option<Box<dyn PageArbiter>> + Send + Sync;

/// Who lends judges. A leaf lock.
#[derive(Default)]
pub(crate) struct ArbiterSlot(pub parking_lot::Mutex<Option<Arc<ArbiterProvider>>>);

impl fmt::Debug for ArbiterSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bench")
    }
}
