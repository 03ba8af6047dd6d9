//! What a relayout needs to know of a volume between two steps.

use std::ops::Range;
use std::time::Duration;

/// How long writes to a step's range wait at first for operations of older epochs.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(10);

/// What a volume remembers between steps. A leaf lock guards it.
#[derive(Debug)]
pub(crate) struct RelayoutStepState {
    pub timeout: Duration,
    /// What the last step failed with.
    pub last_error: Option<String>,
    /// The range whose copies were compared since.
    pub compared: Option<Range<u64>>,
}

impl Default for RelayoutStepState {
    fn default() -> Self {
        Self { timeout: DRAIN_TIMEOUT, last_error: None, compared: None }
    }
}
